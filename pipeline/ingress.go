package pipeline

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/topology"
)

// Ingress is what brings records into a source's topic from elsewhere than Kafka; streamd run runs it. Exactly one of the kinds is set.
type Ingress struct {
	// Partitions is how many the topic gets if it has to be made; 0: the default.
	Partitions int32
	HTTP       *HTTPIngress
	File       *FileIngress
	TCP        *TCPIngress
	Table      *TableIngress
}

// TCPIngress takes lines of TCP connections. Zero values stand for the defaults.
type TCPIngress struct {
	Address                   string // host:port
	Acknowledge               bool
	IDField, KeyField         string
	MaxLine                   int
	MaxQueued, MaxConnections int
	Idle                      time.Duration
}

// FileIngress reads the lines of files. Zero values stand for the defaults.
type FileIngress struct {
	Paths, Exclude []string
	// Owner is whose positions these are; empty: the host's name.
	Owner          string
	MaxLine        int
	SkipLong       bool
	Poll, LastLine time.Duration
}

// HTTPIngress is an HTTP endpoint. Zero values stand for the defaults.
type HTTPIngress struct {
	Address string // host:port
	Path    string
	// IDHeader, IDField, KeyField and Anonymous say how a record is identified, and by what it is partitioned.
	IDHeader, IDField, KeyField string
	Anonymous                   bool
	MaxBody, MaxRecords         int
	// MaxQueued bounds the bytes of all requests at once, MaxConnections their connections.
	MaxQueued, MaxConnections int
	Timeout                   time.Duration
	// TokenFile, CertFile, KeyFile and ClientCAFile protect it, as the HTTP port of streamd run is.
	TokenFile, CertFile, KeyFile, ClientCAFile string
}

// ingressKind is a field of a source that says from where its records come.
type ingressKind struct {
	name, doc string
	read      func(*planner, *sourcePlan, *object, *Ingress) topology.Entrance
	reference func() Section
}

func ingressKinds() []ingressKind {
	return []ingressKind{
		{"http", "Records are sent with HTTP requests.", (*planner).httpIngress, referenceOfHTTP},
		{"file", "Records are the lines of files.", (*planner).fileIngress, referenceOfFiles},
		{"tcp", "Records are lines that are sent over TCP connections.", (*planner).tcpIngress, referenceOfTCP},
		{"postgres", "Records are the new rows of a table in PostgreSQL.", (*planner).postgresIngress, referenceOfPostgres},
		{"mysql", "Records are the new rows of a table in MySQL or MariaDB.", (*planner).mysqlIngress, referenceOfMySQL},
	}
}

// ingress reads what brings records into the topic; nil: nothing of ours.
func (r *planner) ingress(o *object, s *sourcePlan) *Ingress {
	d, before := r.d, ""
	var in *Ingress
	for _, k := range ingressKinds() {
		key, n := o.pair(k.name)
		switch {
		case key == nil:
			continue
		case in != nil:
			d.errorf(key, RuleInvalidValue, "%s has no meaning beside %s: records come in by one way", k.name, before)
			continue
		}
		in, before = &Ingress{}, k.name
		x := d.object(key, n, k.name)
		if x == nil {
			continue
		}
		beside := d.beside
		d.beside = true // what is computed does not depend on it
		if n := x.get("partitions"); n != nil {
			in.Partitions = int32(min(d.count(n, "partitions"), maxPartitions+1))
			if in.Partitions > maxPartitions {
				d.errorf(n, RuleInvalidValue, "partitions must be 1 to %d", maxPartitions)
			}
		}
		s.entrance = k.read(r, s, x, in)
		d.beside = beside
		x.finish()
		if s.events || s.debezium || s.wire {
			d.errorf(key, RuleNotAvailable, "%s takes values of format json, string and bytes in this version", k.name)
		}
	}
	return in
}

// maxPartitions is the most that a topic is made with: a slip of the pen would be hard to take back.
const maxPartitions = 10_000

// fieldName is a name of a field of a JSON object, not an expression.
var fieldName = regexp.MustCompile(`^[^.\[\]()\s]+$`)

func (r *planner) httpIngress(s *sourcePlan, o *object, in *Ingress) topology.Entrance {
	d, h := r.d, &HTTPIngress{}
	in.HTTP = h
	if n := o.need("address"); n != nil {
		h.Address = r.listenAddress(n)
	}
	if n := o.get("path"); n != nil {
		if h.Path = d.text(n, "path"); h.Path != "" && (!strings.HasPrefix(h.Path, "/") || strings.ContainsAny(h.Path, "?# ") || h.Path == "/readyz") {
			d.errorf(n, RuleInvalidValue, "path %q must begin with / and hold neither a query nor spaces; /readyz is taken", h.Path)
		}
	}
	h.IDHeader = o.optional("id_header")
	h.IDField, h.KeyField = r.fieldOf(o, s, "id_field"), r.fieldOf(o, s, "key_field")
	if n := o.get("on_missing_id"); n != nil {
		if h.Anonymous = d.choice(n, "on_missing_id", "refuse", "generate") == "generate"; h.Anonymous {
			d.warnf(n, RuleAnonymous, "a request that is sent again without an ID is other records").
				hint("let clients send %s, or name the field that identifies a record: id_field", "Idempotency-Key").
				hint("else a dedup step by what the record itself holds is all that can tell a repeat")
		}
	}
	s.identified = !h.Anonymous
	h.MaxBody, h.MaxRecords = o.counted("max_body"), o.counted("max_records")
	h.MaxQueued, h.MaxConnections = o.counted("max_queued"), o.counted("max_connections")
	if n := o.get("timeout"); n != nil {
		if h.Timeout = d.duration(n, "timeout"); h.Timeout > time.Minute {
			d.errorf(n, RuleInvalidValue, "timeout must be at most 1m, this is %v", h.Timeout)
		}
	}
	if h.MaxQueued > 0 && h.MaxQueued < h.MaxBody {
		d.errorf(o.get("max_queued"), RuleInvalidValue, "max_queued %d is less than max_body %d: one request would fill it", h.MaxQueued, h.MaxBody)
	}
	h.TokenFile = o.optional("token_file")
	h.CertFile, h.KeyFile, h.ClientCAFile = r.listenTLS(o)
	if h.TokenFile == "" && h.ClientCAFile == "" {
		r.protected(o.get("address"), h.Address, "token_file asks for a token, client_ca_file for a client certificate")
	}
	return topology.EnteredByHTTP
}

func (r *planner) fileIngress(s *sourcePlan, o *object, in *Ingress) topology.Entrance {
	d, f := r.d, &FileIngress{}
	in.File = f
	if n := o.need("paths"); n != nil {
		f.Paths = r.patterns(n, "paths")
		if len(f.Paths) == 0 && !d.unset {
			d.errorf(n, RuleInvalidValue, "paths is empty")
		}
	}
	if n := o.get("exclude"); n != nil {
		f.Exclude = r.patterns(n, "exclude")
	}
	f.Owner = o.optional("owner")
	f.MaxLine = o.counted("max_line")
	if n := o.get("on_long_line"); n != nil {
		f.SkipLong = d.choice(n, "on_long_line", "stop", "skip") == "skip"
	}
	if n := o.get("poll"); n != nil {
		f.Poll = d.duration(n, "poll")
	}
	if n := o.get("last_line"); n != nil {
		f.LastLine = d.duration(n, "last_line")
	}
	return topology.EnteredByFile
}

func (r *planner) tcpIngress(s *sourcePlan, o *object, in *Ingress) topology.Entrance {
	d, t := r.d, &TCPIngress{}
	in.TCP = t
	if n := o.need("address"); n != nil {
		t.Address = r.listenAddress(n)
		r.protected(n, t.Address, "put a proxy in front of it, or a firewall")
	}
	if n := o.get("acknowledge"); n != nil {
		t.Acknowledge = d.boolean(n, "acknowledge")
	}
	t.IDField, t.KeyField = r.fieldOf(o, s, "id_field"), r.fieldOf(o, s, "key_field")
	t.MaxLine, t.MaxQueued, t.MaxConnections = o.counted("max_line"), o.counted("max_queued"), o.counted("max_connections")
	if n := o.get("idle"); n != nil {
		t.Idle = d.duration(n, "idle")
	}
	s.identified = t.IDField != ""
	if t.Acknowledge {
		return topology.EnteredByLines
	}
	return topology.EnteredBySocket
}

// counted reads a count from a field that need not be there.
func (o *object) counted(name string) int {
	n := o.get(name)
	if n == nil {
		return 0
	}
	return o.d.count(n, name)
}

// patterns reads names of files with wildcards.
func (r *planner) patterns(n *yaml.Node, what string) (out []string) {
	for _, e := range r.d.list(n, what, true) {
		text := r.d.text(e, what)
		if _, err := filepath.Match(text, ""); err != nil {
			r.d.errorf(e, RuleInvalidValue, "%q is not a pattern: * and ? stand for letters of a name, [a-z] for one of them", text)
			continue
		}
		if text != "" {
			out = append(out, text)
		}
	}
	return out
}

// fieldOf reads the name of a field.
func (r *planner) fieldOf(o *object, s *sourcePlan, name string) string {
	n := o.get(name)
	if n == nil {
		return ""
	}
	field := r.d.text(n, name)
	switch {
	case field == "":
	case s.out.format != formatJSON:
		r.d.errorf(n, RuleInvalidValue, "%s has no meaning with format %s: its records have no fields", name, s.out.format)
	case !fieldName.MatchString(field):
		r.d.errorf(n, RuleInvalidValue, "%s is the name of a field of the record, not an expression: %q", name, field)
	}
	return field
}

// listenAddress reads host:port.
func (r *planner) listenAddress(n *yaml.Node) string {
	address := r.d.text(n, "address")
	if address == "" {
		return ""
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		r.d.errorf(n, RuleInvalidValue, "address %q is not host:port", address).hint(`":9000" listens on all addresses, "127.0.0.1:9000" on this machine only`)
	}
	for _, s := range r.p.Sources {
		if s.Ingress != nil && s.Ingress.address() == address && !strings.HasSuffix(address, ":0") {
			r.d.errorf(n, RuleInvalidValue, "source %q listens on %s already", s.Name, address)
		}
	}
	return address
}

// IngressID is the transactional ID of a source, for an owner: the instance, or the owner of files. Two that are one would fence each other for
// ever. No name of a pipeline or source has a colon, so that it tells where they end; as with all IDs of a pipeline, its name and a dash come first.
func IngressID(pipeline, source, owner string) string {
	return pipeline + "-ingress:" + source + ":" + owner
}

// IngressOwner reads the ID of a source of a pipeline; false: it is none.
func IngressOwner(pipeline, id string) (source, owner string, ok bool) {
	rest, ours := strings.CutPrefix(id, pipeline+"-ingress:")
	source, owner, ok = strings.Cut(rest, ":")
	return source, owner, ours && ok
}

// PositionsTopic is the topic that holds how far the files or the table of a source were read.
func PositionsTopic(pipeline, source string) string { return pipeline + "-" + source + "-positions" }

// address is where it listens; empty: nowhere.
func (in *Ingress) address() string {
	switch {
	case in.HTTP != nil:
		return in.HTTP.Address
	case in.TCP != nil:
		return in.TCP.Address
	}
	return ""
}

// listenTLS reads what TLS needs.
func (r *planner) listenTLS(o *object) (cert, key, ca string) {
	cert, key, ca = o.optional("cert_file"), o.optional("key_file"), o.optional("client_ca_file")
	if (o.get("cert_file") == nil) != (o.get("key_file") == nil) {
		r.d.errorf(o.node, RuleMissingField, "cert_file and key_file go together, one is missing in %s", o.what)
	}
	if n := o.get("client_ca_file"); n != nil && o.get("cert_file") == nil {
		r.d.errorf(n, RuleInvalidValue, "client_ca_file needs TLS: cert_file and key_file")
	}
	return cert, key, ca
}

// protected warns of an address to which anybody on the network can write.
func (r *planner) protected(n *yaml.Node, address, remedy string) {
	host, _, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || host == "localhost" || ip != nil && ip.IsLoopback() {
		return
	}
	r.d.warnf(n, RuleOpenPort, "whoever reaches %s can write records", address).hint("%s", remedy)
}

// Way says in a few words where records come from; "" of a topic that others produce to.
func (in *Ingress) Way() string {
	if in == nil {
		return ""
	}
	switch {
	case in.File != nil:
		return ", from files " + strings.Join(in.File.Paths, ", ")
	case in.TCP != nil:
		return ", from tcp " + in.TCP.Address
	case in.Table != nil:
		return fmt.Sprintf(", from table %s of %s by %s", in.Table.Table, in.Table.database, in.Table.Column)
	case in.HTTP != nil:
		return ", from http " + in.HTTP.Address + in.HTTP.Path
	}
	return ""
}

func referenceOfHTTP() Section {
	return Section{
		Name: "http", Doc: "An endpoint of `streamd run`, on a port of its own. `POST` with one JSON value, an array of them, or a value on each line (`application/x-ndjson`); answered with 200 when Kafka has all of them. See docs/concepts/sources.md.",
		Example: "address: \":9000\"\npath: /bills\nid_field: bill_id\nkey_field: account\ntoken_file: /run/secrets/bills-token",
		Fields: []Field{
			{Name: "address", Kind: KindText, Required: true, Doc: "Where it listens, host:port. Each source has its own."},
			{Name: "path", Kind: KindText, Default: "/", Doc: "The path of requests."},
			{Name: "id_header", Kind: KindText, Default: "Idempotency-Key", Doc: "The request's header that is the same when a request is sent again. With the record's number in the request it is the header `record-id`, as `KEY/0`."},
			{Name: "id_field", Kind: KindText, Doc: "A top-level field, text or whole number, that identifies a record instead."},
			{Name: "key_field", Kind: KindText, Doc: "A top-level field that becomes the record's key. Without it records have no key, and their IDs spread them over the partitions, so that copies meet."},
			{Name: "on_missing_id", Kind: KindWord, Words: []string{"refuse", "generate"}, Default: "refuse", Doc: "What becomes of a request or record without an ID. generate: it gets a new one each time it is sent."},
			{Name: "partitions", Kind: KindCount, Default: "4", Doc: "How many the topic gets if it is not there yet."},
			{Name: "max_body", Kind: KindCount, Default: "4194304", Doc: "The most bytes of a request."},
			{Name: "max_records", Kind: KindCount, Default: "10000", Doc: "The most records of a request."},
			{Name: "max_queued", Kind: KindCount, Default: "67108864", Doc: "The most bytes of all requests that are being read or wait for Kafka. Beyond it the answer is 429 or 503, with Retry-After."},
			{Name: "max_connections", Kind: KindCount, Default: "1024", Doc: "The most connections at once."},
			{Name: "timeout", Kind: KindDuration, Default: "10s", Doc: "How long a request waits for Kafka; then the answer is 503."},
			{Name: "token_file", Kind: KindText, Doc: "A file with the token that clients send (`Authorization: Bearer`)."},
			{Name: "cert_file", Kind: KindText, Doc: "The server's certificate (PEM), with key_file: the port speaks TLS."},
			{Name: "key_file", Kind: KindText, Doc: "Its key."},
			{Name: "client_ca_file", Kind: KindText, Doc: "Certificates (PEM); a client certificate that one of them has signed lets its bearer in."},
		},
	}
}

func referenceOfFiles() Section {
	return Section{
		Name: "file", Doc: "The lines of files, each once: how far a file was read is committed with its lines. Rotation by renaming and by copying and truncating is noticed. See docs/concepts/sources.md.",
		Example: "paths: [/var/log/bills/*.jsonl]\nexclude: [\"*.tmp\"]",
		Fields: []Field{
			{Name: "paths", Kind: KindTexts, Required: true, Doc: "Which files: names with `*`, `?` and `[a-z]`. Files that come later are found."},
			{Name: "exclude", Kind: KindTexts, Doc: "Names, with or without their directories, that are left out."},
			{Name: "owner", Kind: KindText, Doc: "Whose positions these are. Default: the host's name. One process at a time reads for an owner; a later one ends the earlier."},
			{Name: "partitions", Kind: KindCount, Default: "4", Doc: "How many the topic gets if it is not there yet. The lines of a file go to one partition, in order."},
			{Name: "max_line", Kind: KindCount, Default: "524288", Doc: "The most bytes of a line: at most 524288, and what the topic takes."},
			{Name: "on_long_line", Kind: KindWord, Words: []string{"stop", "skip"}, Default: "stop", Doc: "What becomes of a longer one. skip: it is counted and passed over."},
			{Name: "poll", Kind: KindDuration, Default: "500ms", Doc: "How often files are looked at when nothing is new."},
			{Name: "last_line", Kind: KindDuration, Default: "30s", Doc: "How long a file that was renamed away or deleted must not have grown for its last line to count, though it has no end."},
		},
	}
}

func referenceOfTCP() Section {
	return Section{
		Name: "tcp", Doc: "Lines that are sent over TCP connections: a record each. Without `acknowledge` what is not in Kafka yet when something ends is lost, and nobody is told. See docs/concepts/sources.md.",
		Example: "address: \"127.0.0.1:9100\"\nacknowledge: true\nid_field: bill_id",
		Fields: []Field{
			{Name: "address", Kind: KindText, Required: true, Doc: "Where it listens, host:port. Each source has its own."},
			{Name: "acknowledge", Kind: KindBool, Default: "false", Doc: "Answer `ok N` when Kafka has the first N lines of the connection. The sender keeps the others and sends them again on another connection."},
			{Name: "id_field", Kind: KindText, Doc: "A top-level field, text or whole number, that identifies a record. Without it a line that is sent again is another record."},
			{Name: "key_field", Kind: KindText, Doc: "A top-level field that becomes the record's key."},
			{Name: "partitions", Kind: KindCount, Default: "4", Doc: "How many the topic gets if it is not there yet."},
			{Name: "max_line", Kind: KindCount, Default: "65536", Doc: "The most bytes of a line. A longer one ends the connection."},
			{Name: "max_queued", Kind: KindCount, Default: "67108864", Doc: "The most bytes of lines that wait for Kafka. Beyond it nothing is read, so that senders wait."},
			{Name: "max_connections", Kind: KindCount, Default: "1024", Doc: "The most connections at once; others wait."},
			{Name: "idle", Kind: KindDuration, Default: "5m", Doc: "A connection that sends nothing for so long is ended."},
		},
	}
}

// referenceOfIngress is a field of the source and a section for each way in.
func referenceOfIngress() (fields []Field, sections []Section) {
	for _, k := range ingressKinds() {
		section := k.reference()
		fields = append(fields, Field{Name: k.name, Kind: KindSection, Section: section.Name, Doc: fmt.Sprintf("%s They are appended to the topic, which is made if it is missing.", k.doc)})
		sections = append(sections, section)
	}
	return fields, sections
}
