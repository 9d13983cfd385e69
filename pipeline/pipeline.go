package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/streamd/streamd/topology"
)

// Options say where Load takes from what the file does not hold itself. The zero value reads files,
// knows no environment variable and changes nothing.
type Options struct {
	// File is the file's name in messages. Default "pipeline.yaml"; LoadFile sets it.
	File string
	// LookupEnv resolves ${VAR}; os.LookupEnv for the process's environment. nil: none is set.
	LookupEnv func(name string) (value string, ok bool)
	// ReadFile resolves ${file:/path}. Default os.ReadFile.
	ReadFile func(path string) ([]byte, error)
	// AllowUnset takes a variable without a value, and a file that cannot be read, for a value of the
	// right type instead of an error: to check a file without its environment. The pipeline that comes
	// out must not be run: Topology refuses.
	AllowUnset bool
	// Set changes single values of the file before it is read, each as "path=value" with the value in
	// YAML: "kafka.client_id=x", "steps.unique.dedup.retention=3d" (a step by its name).
	Set []string
	// Brokers replaces kafka.brokers if not empty.
	Brokers []string
}

// Secret is a text that prints as ***, whichever way.
type Secret string

// String returns "***", or nothing for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "***"
}

// GoString is String, for %#v.
func (s Secret) GoString() string { return s.String() }

// MarshalText is String, for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue is String, for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Reveal returns the text itself.
func (s Secret) Reveal() string { return string(s) }

// Kafka says how to reach the cluster.
type Kafka struct {
	// Brokers are the bootstrap addresses, host:port.
	Brokers []string
	// ClientID is client.id; empty: the default.
	ClientID string
	// TLS is nil for plain text.
	TLS *TLS
	// SASL is nil for none.
	SASL *SASL
	// SchemaRegistry is nil if there is none.
	SchemaRegistry *SchemaRegistry
}

// TLS is the transport security of the connection to Kafka.
type TLS struct {
	// CAFile holds the certificates (PEM) to trust; empty: the system's.
	CAFile string
	// CertFile and KeyFile (PEM) are the client's own certificate; both or none.
	CertFile, KeyFile string
	// ServerName is checked against the certificate instead of the broker's host name, if not empty.
	ServerName string
	// InsecureSkipVerify accepts any certificate. For tests only.
	InsecureSkipVerify bool
}

// SASL is the authentication.
type SASL struct {
	// Mechanism is PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER.
	Mechanism string
	Username  string
	Password  Secret
	// Token and TokenFile are for OAUTHBEARER. TokenFile is read again for each connection.
	Token     Secret
	TokenFile string
}

// Processing is how transactions are run. Zero values stand for the processor's defaults.
type Processing struct {
	// Guarantee is one of topology.ProcessingLevels.
	Guarantee topology.Level
	// CommitInterval is the longest time that a transaction stays open.
	CommitInterval time.Duration
	// TransactionTimeout is the time after which the broker aborts a transaction.
	TransactionTimeout time.Duration
	// KeepLogs is dedup: always: every dedup step has a log of its own, also where it can find nothing
	// (topology.Always).
	KeepLogs bool
}

// Level is the guarantee that the pipeline is run with.
func (p Processing) Level() topology.Level { return cmp.Or(p.Guarantee, topology.ExactlyOnce) }

// Tracing is where spans go. Its zero value leaves that to the environment (OTEL_EXPORTER_OTLP_ENDPOINT).
type Tracing struct {
	// Endpoint is the address of a receiver of OTLP over HTTP; empty: not given.
	Endpoint string
	// Sample is which part of the transactions become spans; 0: not given.
	Sample float64
}

// Errors is what happens to records that a step cannot handle.
type Errors struct {
	// Policy is the default of all steps.
	Policy topology.Policy
	// DeadLetterTopic is empty if there is none.
	DeadLetterTopic string
}

// Pipeline is a pipeline file, read and checked. It is immutable and safe for concurrent use.
type Pipeline struct {
	// File is the name it was loaded under.
	File string
	// Name is the application ID: consumer group, prefix of transactional IDs and internal topics.
	Name       string
	Kafka      Kafka
	Processing Processing
	Errors     Errors
	Tracing    Tracing
	// StateDir is the directory of the local state; empty: the processor's default.
	StateDir string
	// StateKeyFile holds the key that the local state is encrypted under; empty: it is not encrypted.
	// StateOldKeyFile holds the one that it may still be under.
	StateKeyFile, StateOldKeyFile string
	// Sources are the inputs in the order of the file; behind them the tables.
	Sources []Source
	// Tests are the cases of the file's tests section, checked for their shape only.
	Tests []Test
	// Warnings are the diagnostics that do not prevent a run, sorted by position.
	Warnings []Diagnostic

	plan  *plan
	unset bool // a variable has no value: Options.AllowUnset
}

// DedupIDs says by which expressions the dedup steps tell repeats, as the file has them.
func (p *Pipeline) DedupIDs() map[string]string {
	out := map[string]string{}
	for _, s := range p.plan.steps {
		if s.dedup == nil || s.dedup.id == nil {
			continue
		}
		var parts []string
		for _, e := range s.dedup.id.parts {
			parts = append(parts, e.text)
		}
		out[s.name] = strings.Join(parts, ", ")
		if s.dedup.id.list {
			out[s.name] = "[" + out[s.name] + "]"
		}
	}
	return out
}

// Source is an input of a pipeline.
type Source struct {
	Name, Topic string
	// Format is json, string, bytes, cloudevents, avro, protobuf or debezium.
	Format string
	// Start is where a new consumer group starts: "earliest".
	Start string
	// Ingress brings records into the topic; nil: others do.
	Ingress *Ingress
}

// Test is one case of the tests section.
type Test struct {
	Name string
	// Line is where it stands in the file.
	Line  int
	Input []TestRecord
	// Expect has the outputs by the name of the step that writes them, in the order of the file.
	Expect []TestOutput
}

// TestRecord is a record of a test. Key and Value are JSON; nil where the test says nothing of it.
type TestRecord struct {
	Source     string
	Key, Value []byte
	Headers    [][2]string
	Timestamp  *time.Time // nil: not given
	Line       int
}

// TestOutput is what a test expects of one step.
type TestOutput struct {
	Step    string
	Records []TestRecord
}

// LoadFile reads a pipeline file. What is wrong with the file itself is an [*Error].
func LoadFile(path string, o Options) (*Pipeline, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("pipeline: %w", err)
	}
	defer f.Close()
	// One byte more than allowed: Load says that it is too large.
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("pipeline: read %q: %w", path, err)
	}
	if o.File == "" {
		o.File = path
	}
	return Load(data, o)
}

// Load reads a pipeline from the bytes of a file. If the file cannot run it returns an [*Error] with
// everything that is wrong; else the pipeline, with what is doubtful in Pipeline.Warnings.
func Load(data []byte, o Options) (*Pipeline, error) {
	d := newDocument(o)
	p := &Pipeline{File: d.file}
	if d.parse(data) && d.applySet() {
		p.plan = d.pipeline(p)
	}
	ds := d.finish()
	for _, x := range ds {
		if x.Severity == SeverityError {
			return nil, &Error{Diagnostics: ds}
		}
	}
	p.Warnings = ds
	p.unset = d.unset
	return p, nil
}

// ErrUnset is returned by Topology when the file was loaded with Options.AllowUnset and a variable on which the topology
// depends has no value. It does not depend on how the cluster and databases are reached, nor on the names of topics: a
// variable in one of those stands for itself.
var ErrUnset = errors.New("pipeline: a variable of the file has no value, so that it can be checked but not run")

// Topology builds what the pipeline computes. Each call returns a new one.
func (p *Pipeline) Topology() (*topology.Topology, error) {
	if p.unset {
		return nil, ErrUnset
	}
	t, err := p.plan.build()
	if err != nil {
		return nil, fmt.Errorf("pipeline: %q: %w", p.Name, err)
	}
	return t, nil
}
