package pipeline

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/streamd/streamd/internal/tlsfile"
	"github.com/streamd/streamd/serde/registry"
)

// The formats whose schemas are in a registry. Their values are JSON as soon as they are read and until they are written, so that
// expressions, state and topics in between know one value model (package serde/registry).
const (
	formatAvro     = string(registry.Avro)
	formatProtobuf = string(registry.Protobuf)
)

// inputFormats are the formats of sources and tables.
func inputFormats() []string {
	return []string{formatJSON, formatString, formatBytes, formatCloudEvents, formatAvro, formatProtobuf, formatDebezium}
}

// outputFormats are those that a step of kind to can ask for.
func outputFormats() []string { return []string{formatJSON, formatAvro, formatProtobuf} }

// SchemaRegistry says how the schema registry is reached.
type SchemaRegistry struct {
	// URLs are the addresses, tried in this order.
	URLs     []string
	Username string
	Password Secret
	// Token and TokenFile are for bearer authentication. TokenFile is read again for each request.
	Token     Secret
	TokenFile string
	// TLS is nil for the system's certificates.
	TLS *TLS
	// Timeout bounds one request; 0: the default of 5 s.
	Timeout time.Duration
}

// maxRegistryTimeout bounds what one request may take: the worker that waits for it commits nothing meanwhile.
const maxRegistryTimeout = 20 * time.Second

// schemaRegistry reads kafka.schema_registry.
func (d *document) schemaRegistry(key, n *yaml.Node) *SchemaRegistry {
	o := d.object(key, n, "schema_registry")
	if o == nil {
		return nil
	}
	for _, m := range o.members {
		if !slices.Contains([]string{"url", "username", "token_file", "tls", "timeout"}, m.key.Value) {
			d.hide(m.value, 0) // a slip in the name must not show the password
		}
	}
	s := &SchemaRegistry{Username: o.optional("username"), Password: Secret(o.optional("password")), Token: Secret(o.optional("token")), TokenFile: o.optional("token_file")}
	if n := o.need("url"); n != nil {
		s.URLs = d.registryURLs(n)
	}
	if key, n := o.pair("tls"); n != nil {
		s.TLS = d.tls(key, n)
	}
	if n := o.get("timeout"); n != nil {
		if s.Timeout = d.duration(n, "timeout"); s.Timeout > maxRegistryTimeout {
			d.errorf(n, RuleInvalidValue, "timeout must be at most %v: a transaction is open while a schema is asked for", maxRegistryTimeout)
		}
	}
	var ways []string
	for _, name := range []string{"username", "token", "token_file"} {
		if k, _ := o.pair(name); k != nil {
			ways = append(ways, name)
		}
	}
	if len(ways) > 1 {
		d.errorf(key, RuleInvalidValue, "schema_registry has %s: want one of them", strings.Join(ways, " and "))
	}
	if (o.get("username") == nil) != (o.get("password") == nil) {
		d.errorf(key, RuleMissingField, "username and password of schema_registry belong together: one of them is missing")
	}
	o.finish()
	return s
}

func (d *document) registryURLs(n *yaml.Node) (out []string) {
	for _, e := range d.list(n, "url", true) {
		s, ok := d.scalar(e, "an address")
		if !ok || s.unset {
			continue
		}
		for _, address := range strings.Split(s.text, ",") {
			address = strings.TrimSpace(address)
			if err := registry.CheckURL(address); err != nil {
				if strings.Contains(address, "@") {
					d.hide(e, 0) // it may hold a password
				}
				d.errorf(e, RuleInvalidValue, "url: %v", err)
				break
			}
			out = append(out, address)
		}
	}
	return out
}

// client makes the client of the registry. nil: its address is not known.
func (s *SchemaRegistry) client() (*registry.Client, error) {
	if len(s.URLs) == 0 {
		return nil, nil
	}
	c := registry.Config{
		URLs: s.URLs, Username: s.Username, Password: s.Password.Reveal(), Token: s.Token.Reveal(), TokenFile: s.TokenFile, Timeout: s.Timeout,
	}
	if t := s.TLS; t != nil {
		f := tlsfile.Files{CA: t.CAFile, Cert: t.CertFile, Key: t.KeyFile, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify}
		c.TLS = f.Config
	}
	return registry.New(c)
}

// codec makes the codec of a format for what a node asks for; nil after a report, and if the registry's address is not known.
func (r *planner) codec(n *yaml.Node, o registry.Output) *registry.Codec {
	s := r.p.Kafka.SchemaRegistry
	if s == nil {
		r.d.errorf(n, RuleMissingField, "format %s needs the schema registry", o.Format).hint("say how it is reached: kafka: {schema_registry: {url: http://localhost:8081}}")
		return nil
	}
	if r.registry == nil {
		var err error
		if r.registry, err = s.client(); err != nil {
			return nil // reported where it stands
		}
	}
	if r.registry == nil {
		return nil
	}
	return registry.NewCodec(r.registry, o)
}

// sourceCodec reads what the values of a source or table are encoded with, besides its format.
func (r *planner) sourceCodec(o *object, s *sourcePlan, format string, n *yaml.Node) {
	wire, at := format, n
	if key, e := o.pair("encoding"); e != nil {
		if format != formatDebezium {
			r.d.errorf(key, RuleInvalidValue, "encoding has a meaning with format debezium only")
			return
		}
		wire, at = r.d.choice(e, "encoding", outputFormats()...), e
	}
	if wire == formatAvro || wire == formatProtobuf {
		s.wire = true
		s.codec = r.codec(at, registry.Output{Format: registry.Format(wire)})
	}
}

// sinkFormat reads how a step of kind to writes its values.
func (r *planner) sinkFormat(o *object, s *stepPlan) {
	d := r.d
	format := formatJSON
	if n := o.get("format"); n != nil {
		format = d.choice(n, "format", outputFormats()...)
	}
	out := registry.Output{Format: registry.Format(format), Subject: o.optional("subject"), Message: o.optional("message")}
	if n := o.get("register"); n != nil {
		out.Register = d.boolean(n, "register")
	}
	schemaKey, schema := o.pair("schema")
	if format != formatAvro && format != formatProtobuf {
		for _, name := range []string{"subject", "message", "schema", "register"} {
			if key, _ := o.pair(name); key != nil && format != "" {
				d.errorf(key, RuleInvalidValue, "%s has no meaning with format %s", name, format)
			}
		}
		return
	}
	if out.Subject == "" {
		out.Subject = s.topic + "-value"
	}
	if schema != nil {
		out.Schema = r.schemaFile(schema)
	}
	if out.Schema == "" && out.Register {
		d.errorf(o.get("register"), RuleMissingField, "register needs the schema that is to be registered: schema: FILE")
	}
	if out.Schema != "" {
		if err := out.Check(); err != nil {
			d.errorf(schemaKey, RuleInvalidValue, "schema: %v", err)
		}
	}
	if got := r.sinkValues(s); got != formatJSON {
		d.errorf(o.get("format"), RuleInvalidValue, "format %s needs values with fields, these are %s", format, got).hint("give the step a value: value: {field: expression}")
	}
	s.codec = r.codec(o.get("format"), out)
}

// sinkValues is the format of what a step of kind to writes.
func (r *planner) sinkValues(s *stepPlan) string {
	in := s.in[0]
	if s.value != nil {
		return computedFormat(in.format, s.value.typ)
	}
	return in.format
}

// schemaFile reads the file of a schema, which is named as seen from the pipeline file.
func (r *planner) schemaFile(n *yaml.Node) string {
	s, ok := r.d.scalar(n, "schema")
	if !ok || s.unset {
		return ""
	}
	path := s.text
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(r.d.file), path)
	}
	b, err := r.d.opts.ReadFile(path)
	switch {
	case err != nil:
		r.d.errorf(n, RuleInvalidValue, "schema: %v", err).hint("the file's name is seen from the directory of the pipeline file")
	case len(b) > maxFileBytes:
		r.d.errorf(n, RuleTooLarge, "the schema has %d bytes, at most %d are read", len(b), maxFileBytes)
	case strings.TrimSpace(string(b)) == "":
		r.d.errorf(n, RuleInvalidValue, "the schema's file is empty")
	default:
		return string(b)
	}
	return ""
}

// ResolveSchemas finds the schemas that outputs are written by in the registry: they must be there, or be what can become the next version. It
// is for the start: what is wrong is known before the first record. An error is serde.ErrUnavailable if the registry cannot be
// asked, which a later call may heal. A pipeline without such outputs asks nobody.
func (p *Pipeline) ResolveSchemas(ctx context.Context) error {
	var errs []error
	for _, s := range p.plan.steps {
		if s.codec == nil {
			continue
		}
		if err := s.codec.Resolve(ctx); err != nil {
			errs = append(errs, fmt.Errorf("pipeline %q, step %q (%s:%d): %w", p.Name, s.name, p.File, s.line, err))
		}
	}
	return errors.Join(errs...)
}

// SchemaProbe is what the schema registry says to one use of it.
type SchemaProbe struct {
	Name string // of the source, table or step
	// Found says what is there; empty with an error.
	Found string
	// Unknown: the registry does not have the subject that values which are read usually have. They carry the ID of their schema, so that it need not.
	Unknown bool
	Err     error // as of ResolveSchemas
}

// ProbeSchemas asks the schema registry about each source, table and step that uses it, and changes nothing there.
func (p *Pipeline) ProbeSchemas(ctx context.Context) []SchemaProbe {
	var out []SchemaProbe
	for _, s := range p.plan.sources {
		out = s.probe(ctx, out)
	}
	for _, t := range p.plan.tables {
		if t.src != nil {
			out = t.src.probe(ctx, out)
		}
	}
	for _, s := range p.plan.steps {
		if s.codec != nil {
			found, err := s.codec.Probe(ctx)
			out = append(out, SchemaProbe{Name: s.name, Found: found, Err: err})
		}
	}
	return out
}

// probe adds what the registry says to a source.
func (s *sourcePlan) probe(ctx context.Context, to []SchemaProbe) []SchemaProbe {
	if s.codec == nil {
		return to
	}
	subject := s.topic + "-value"
	known, err := s.codec.Reaches(ctx, subject)
	p := SchemaProbe{Name: s.out.name, Err: err, Unknown: err == nil && !known}
	switch {
	case p.Unknown:
		p.Found = "the registry answers, and has no subject " + subject
	case err == nil:
		p.Found = "subject " + subject + " is there"
	}
	return append(to, p)
}
