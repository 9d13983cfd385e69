package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/topology"
)

// fileVersion is the version of the file format that this package reads.
const fileVersion = "1"

func newDocument(o Options) *document {
	if o.ReadFile == nil {
		o.ReadFile = os.ReadFile
	}
	file := o.File
	if file == "" {
		file = "pipeline.yaml"
	}
	return &document{file: file, opts: o, origins: map[*yaml.Node]string{}, secrets: map[*yaml.Node]bool{}}
}

// pipeline reads the whole tree. What it returns is to be used only if nothing was reported as an error.
func (d *document) pipeline(p *Pipeline) *plan {
	o := d.object(&yaml.Node{Line: 1, Column: 1}, d.root, "the pipeline")
	if o == nil {
		return nil
	}
	if n := o.need("version"); n != nil {
		if s, ok := d.scalar(n, "version"); ok && !s.unset && s.text != fileVersion {
			d.errorf(n, RuleInvalidValue, "version %s is not known, this program reads version %s", d.shown(s), fileVersion)
		}
	}
	if n := o.need("name"); n != nil {
		p.Name = d.name(n, "name")
	}
	d.beside = true
	if key, n := o.pair("kafka"); n != nil {
		p.Kafka = d.kafka(key, n)
	} else {
		d.errorf(o.node, RuleMissingField, "missing field %q in %s", "kafka", o.what)
	}
	r := &planner{d: d, p: p, streams: map[string]*output{}}
	if key, n := o.pair("processing"); n != nil {
		r.processingKey = key
		p.Processing = d.processing(key, n)
	}
	if key, n := o.pair("tracing"); n != nil {
		p.Tracing = d.tracing(key, n)
	}
	if key, n := o.pair("state"); n != nil {
		if s := d.object(key, n, "state"); s != nil {
			p.StateDir = s.optional("dir")
			p.StateKeyFile, p.StateOldKeyFile = s.optional("key_file"), s.optional("old_key_file")
			if n := s.get("old_key_file"); n != nil && s.get("key_file") == nil {
				d.errorf(n, RuleMissingField, "old_key_file needs key_file, the key that comes after it")
			}
			s.finish()
		}
	}
	if key, n := o.pair("errors"); n != nil {
		r.errorsKey = key
		p.Errors, r.hasDeadLetter = d.errors(key, n)
	}
	d.beside = false
	r.read(o)
	if n := o.get("tests"); n != nil {
		p.Tests = r.tests(n)
	}
	o.finish()
	if r.plan != nil && !d.failed() && !d.unset {
		r.tryBuild()
	}
	return r.plan
}

func (d *document) kafka(key, n *yaml.Node) Kafka {
	var k Kafka
	o := d.object(key, n, "kafka")
	if o == nil {
		return k
	}
	if n := o.need("brokers"); n != nil {
		k.Brokers = d.brokers(n)
	}
	k.ClientID = o.optional("client_id")
	if key, n := o.pair("tls"); n != nil {
		k.TLS = d.tls(key, n)
	}
	if key, n := o.pair("sasl"); n != nil {
		k.SASL = d.sasl(key, n)
	}
	if key, n := o.pair("schema_registry"); n != nil {
		k.SchemaRegistry = d.schemaRegistry(key, n)
	}
	o.finish()
	return k
}

// brokers reads a list of addresses. One text may hold several, separated by commas, so that one
// variable can name them all.
func (d *document) brokers(n *yaml.Node) []string {
	var out []string
	list := d.list(n, "brokers", true)
	for _, e := range list {
		s, ok := d.scalar(e, "a broker")
		if !ok || s.unset {
			continue
		}
		for _, address := range strings.Split(s.text, ",") {
			address = strings.TrimSpace(address)
			host, port, err := net.SplitHostPort(address)
			if number, bad := strconv.Atoi(port); err != nil || host == "" || bad != nil || number < 1 || number > 65535 {
				d.errorf(e, RuleInvalidValue, "%s is not an address such as localhost:9092", d.shown(s))
				break
			}
			out = append(out, address)
		}
	}
	if v := d.visit(n); v != nil && v.Kind == yaml.SequenceNode && len(list) == 0 {
		d.errorf(n, RuleInvalidValue, "brokers is empty")
	}
	return out
}

func (d *document) tls(key, n *yaml.Node) *TLS {
	o := d.object(key, n, "tls")
	if o == nil {
		return nil
	}
	t := &TLS{
		CAFile: o.optional("ca_file"), CertFile: o.optional("cert_file"), KeyFile: o.optional("key_file"),
		ServerName: o.optional("server_name"),
	}
	if n := o.get("insecure_skip_verify"); n != nil {
		t.InsecureSkipVerify = d.boolean(n, "insecure_skip_verify")
	}
	if (o.get("cert_file") == nil) != (o.get("key_file") == nil) {
		d.errorf(key, RuleMissingField, "cert_file and key_file of tls belong together: one of them is missing")
	}
	o.finish()
	return t
}

// The SASL mechanisms as they stand in a file.
const (
	saslPlain       = "plain"
	saslScram256    = "scram-sha-256"
	saslScram512    = "scram-sha-512"
	saslOAuthBearer = "oauthbearer"
)

func (d *document) sasl(key, n *yaml.Node) *SASL {
	o := d.object(key, n, "sasl")
	if o == nil {
		return nil
	}
	for _, m := range o.members {
		if name := m.key.Value; name != "mechanism" && name != "username" && name != "token_file" {
			d.hide(m.value, 0) // a slip in the name must not show the password
		}
	}
	s := &SASL{}
	n = o.need("mechanism")
	if n != nil {
		s.Mechanism = strings.ToUpper(d.choice(n, "mechanism", saslPlain, saslScram256, saslScram512, saslOAuthBearer))
	}
	username, password := o.get("username"), o.get("password")
	token, tokenFile := o.get("token"), o.get("token_file")
	switch {
	case s.Mechanism == "":
	case strings.EqualFold(s.Mechanism, saslOAuthBearer):
		if (token == nil) == (tokenFile == nil) {
			d.errorf(key, RuleMissingField, "oauthbearer needs one of token and token_file")
		}
		if token != nil {
			s.Token = Secret(d.text(token, "token"))
		}
		if tokenFile != nil {
			s.TokenFile = d.text(tokenFile, "token_file")
		}
		username, password = d.notWith(o, "oauthbearer", "username"), d.notWith(o, "oauthbearer", "password")
	default:
		d.notWith(o, strings.ToLower(s.Mechanism), "token")
		d.notWith(o, strings.ToLower(s.Mechanism), "token_file")
		username, password = o.need("username"), o.need("password")
	}
	if username != nil {
		s.Username = d.text(username, "username")
	}
	if password != nil {
		s.Password = Secret(d.text(password, "password"))
	}
	o.finish()
	return s
}

// hide marks everything below a node as secret.
func (d *document) hide(n *yaml.Node, depth int) {
	v := d.visit(n)
	if v == nil || depth > maxDepth {
		return
	}
	if v.Kind == yaml.ScalarNode {
		d.secrets[v] = true
	}
	for _, c := range v.Content {
		d.hide(c, depth+1)
	}
}

// notWith reports a field that has no meaning beside the mechanism.
func (d *document) notWith(o *object, mechanism, name string) *yaml.Node {
	if key, _ := o.pair(name); key != nil {
		d.errorf(key, RuleInvalidValue, "%s has no meaning with %s", name, mechanism)
	}
	return nil
}

func (d *document) processing(key, n *yaml.Node) Processing {
	var p Processing
	o := d.object(key, n, "processing")
	if o == nil {
		return p
	}
	if n := o.get("guarantee"); n != nil {
		p.Guarantee = d.level(n, topology.ProcessingLevels()...)
	}
	if n := o.get("dedup"); n != nil {
		p.KeepLogs = d.choice(n, "dedup", "auto", "always") == "always"
	}
	if n := o.get("commit_interval"); n != nil {
		p.CommitInterval = d.duration(n, "commit_interval")
	}
	if n := o.get("transaction_timeout"); n != nil {
		p.TransactionTimeout = d.duration(n, "transaction_timeout")
	}
	o.finish()
	return p
}

func (d *document) tracing(key, n *yaml.Node) Tracing {
	var t Tracing
	o := d.object(key, n, "tracing")
	if o == nil {
		return t
	}
	if n := o.get("endpoint"); n != nil {
		if t.Endpoint = d.text(n, "endpoint"); t.Endpoint != "" {
			if err := CheckEndpoint(t.Endpoint); err != nil {
				d.errorf(n, RuleInvalidValue, "endpoint: %v", err)
			}
		}
	}
	if n := o.get("sample"); n != nil {
		t.Sample = d.ratio(n, "sample", 1e-6, 1)
	}
	o.finish()
	return t
}

// CheckEndpoint says what is wrong with the address of a receiver of spans.
func CheckEndpoint(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("want an address such as http://localhost:4318, this is %q", address)
	}
	if u.User != nil {
		return errors.New("the address of a receiver holds no password: use the variable OTEL_EXPORTER_OTLP_HEADERS")
	}
	return nil
}

// errors reads the errors section. hasTopic also holds for a dead letter topic whose name is not known.
func (d *document) errors(key, n *yaml.Node) (e Errors, hasTopic bool) {
	e.Policy = topology.PolicyStop
	o := d.object(key, n, "errors")
	if o == nil {
		return e, false
	}
	if n := o.get("on_error"); n != nil {
		e.Policy = d.policy(n)
	}
	if n := o.get("dead_letter_topic"); n != nil {
		e.DeadLetterTopic = d.topic(n, "dead_letter_topic")
		hasTopic = true
	}
	o.finish()
	return e, hasTopic
}

// policy reads on_error.
func (d *document) policy(n *yaml.Node) topology.Policy {
	switch d.choice(n, "on_error", "stop", "dead_letter", "skip") {
	case "stop":
		return topology.PolicyStop
	case "dead_letter":
		return topology.PolicyDeadLetter
	case "skip":
		return topology.PolicySkip
	}
	return topology.PolicyDefault
}

// action reads a policy of a dedup step.
func (d *document) action(n *yaml.Node, what string, allowed ...topology.Action) topology.Action {
	words := make([]string, len(allowed))
	for i, a := range allowed {
		words[i] = a.String()
	}
	word := d.choice(n, what, words...)
	for i, w := range words {
		if w == word {
			return allowed[i]
		}
	}
	return topology.ActionDefault
}

// finish turns what was found into the list that the user gets: sorted, without what the file silences,
// with the source lines.
func (d *document) finish() []Diagnostic {
	d.checkIgnores()
	var out []Diagnostic
	for _, x := range d.diags {
		if x.Severity == SeverityWarning && d.ignored(x) {
			continue
		}
		if x.Line >= 1 && x.Line <= len(d.lines) {
			text := strings.TrimRight(d.lines[x.Line-1], " \t\r")
			x.Excerpt = d.masked(x.Line, text)
			// What is masked before the column moves the caret.
			before := []rune(text)
			before = before[:min(max(x.Column-1, 0), len(before))]
			x.caret = x.Column - len(before) + len([]rune(d.masked(x.Line, string(before))))
		}
		out = append(out, x)
	}
	return sortDiagnostics(out)
}

// masked returns a source line, or the start of one, without the secrets in it.
func (d *document) masked(line int, text string) string {
	var here []*yaml.Node
	for n := range d.secrets {
		if line >= n.Line && line <= n.Line+strings.Count(n.Value, "\n")+1 && !strings.Contains(n.Value, "${") {
			here = append(here, n)
		}
	}
	// From the right to the left: what is replaced must not move the places of the others. One that began on an earlier line has no place here.
	slices.SortFunc(here, func(a, b *yaml.Node) int { return cmp.Or(b.Line-a.Line, b.Column-a.Column) })
	for _, n := range here {
		parts := strings.Split(n.Value, "\n")
		for _, part := range parts {
			if part = strings.TrimSpace(part); part != "" {
				text = maskAfter(text, part, line == n.Line, n.Column)
			}
		}
	}
	return text
}

// maskAfter replaces secret in text; on the line where the secret's scalar starts, only from its column on.
func maskAfter(text, secret string, starts bool, column int) string {
	from := 0
	if starts {
		for i := range text {
			if column--; column <= 0 {
				from = i
				break
			}
		}
	}
	return text[:from] + strings.ReplaceAll(text[from:], secret, "***")
}

// ignoreMark starts a comment that silences rules.
const ignoreMark = "streamd:ignore"

// ignoreList returns the rules that a comment on the line silences.
func ignoreList(line string) []string {
	i := strings.Index(line, "#")
	if i < 0 {
		return nil
	}
	at := strings.Index(line[i:], ignoreMark)
	if at < 0 {
		return nil
	}
	return strings.FieldsFunc(line[i+at+len(ignoreMark):], func(r rune) bool { return r == ' ' || r == ',' || r == '\t' || r == '\r' })
}

// ignored says whether a comment on the diagnostic's line, or in the comment lines right above, silences it.
func (d *document) ignored(x Diagnostic) bool {
	for line := x.Line; line >= 1 && line <= len(d.lines); line-- {
		text := d.lines[line-1]
		if line < x.Line && !strings.HasPrefix(strings.TrimSpace(text), "#") {
			return false
		}
		for _, rule := range ignoreList(text) {
			if rule == x.Rule {
				return true
			}
		}
	}
	return false
}

// checkIgnores warns of rules that do not exist: a comment with a slip of the pen silences nothing.
func (d *document) checkIgnores() {
	names := ruleNames()
	known := map[string]bool{}
	for _, n := range names {
		known[n] = true
	}
	for i, line := range d.lines {
		for _, rule := range ignoreList(line) {
			if !known[rule] {
				column := len([]rune(line[:strings.Index(line, ignoreMark)])) + 1
				d.at(i+1, column, SeverityWarning, RuleUnknownRule, fmt.Sprintf("there is no rule %q%s", rule, suggest(rule, names)))
				break
			}
		}
	}
}
