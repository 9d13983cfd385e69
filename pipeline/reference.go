package pipeline

import "slices"

// Section describes a mapping of a pipeline file: what the JSON Schema and the reference are made of. A test holds it against
// what the loader reads.
type Section struct {
	// Name is unique: "pipeline" is the file itself.
	Name string
	// Doc is a sentence or two.
	Doc string
	// Example is YAML; empty: none.
	Example string
	// Fields are in the order of the reference. Of a section with Members the names are the user's.
	Fields []Field
	// Members describes each value of a mapping whose names are the user's own; nil: the names are Fields'.
	Members *Field
	// OneOf lists fields of which exactly one is given.
	OneOf []string
}

// Field is a field of a Section.
type Field struct {
	Name     string
	Kind     Kind
	Required bool
	// Default is how the file would write it; empty: there is none.
	Default string
	Doc     string
	// Words are the values of a KindWord.
	Words []string
	// Section is what a KindSection, or each element of a KindSections, is.
	Section string
}

// Kind is what a field holds.
type Kind string

// The kinds.
const (
	KindText       Kind = "text"
	KindTexts      Kind = "text, or list of texts"
	KindBool       Kind = "true or false"
	KindWord       Kind = "one of"
	KindDuration   Kind = "duration"
	KindCount      Kind = "count"
	KindNumber     Kind = "number"
	KindExpression Kind = "expression"
	KindKey        Kind = "expression, or list of expressions"
	KindTemplate   Kind = "expression, or mapping or list of them"
	KindType       Kind = "type"
	KindAny        Kind = "any value"
	KindSection    Kind = "mapping"
	KindSections   Kind = "list of mappings"
	KindNames      Kind = "list of names"
)

// Reference describes the file format of this version.
func Reference() []Section {
	file := referenceOfFile()
	fields, sections := referenceOfIngress()
	source := &file[len(file)-1]
	source.Fields = append(source.Fields, fields...)
	return slices.Concat(file, sections, referenceOfSteps(), referenceOfTests())
}

func referenceOfFile() []Section {
	return []Section{
		{
			Name: "pipeline", Doc: "The file. Names of sources, steps and types are the user's own.",
			Fields: []Field{
				{Name: "version", Kind: KindWord, Required: true, Words: []string{fileVersion}, Doc: "Version of the file format."},
				{Name: "name", Kind: KindText, Required: true, Doc: "Consumer group, prefix of transactional IDs and of internal topics, label of metrics. Not to be changed once it has run. Letters, digits, `-` and `_`."},
				{Name: "kafka", Kind: KindSection, Required: true, Section: "kafka", Doc: "How to reach the cluster."},
				{Name: "types", Kind: KindSection, Section: "types", Doc: "Types of values: with them a slip in the name of a field is found when the file is loaded."},
				{Name: "sources", Kind: KindSection, Section: "sources", Doc: "The topics that are read. Required where there are no tables."},
				{Name: "tables", Kind: KindSection, Section: "tables", Doc: "The topics of which rows are looked up."},
				{Name: "steps", Kind: KindSections, Required: true, Section: "step", Doc: "What is done, in the order of the list."},
				{Name: "errors", Kind: KindSection, Section: "errors", Doc: "What becomes of records that a step cannot handle."},
				{Name: "processing", Kind: KindSection, Section: "processing", Doc: "How transactions are run."},
				{Name: "tracing", Kind: KindSection, Section: "tracing", Doc: "Where spans of OpenTelemetry go."},
				{Name: "state", Kind: KindSection, Section: "state", Doc: "Where the local state is."},
				{Name: "tests", Kind: KindSections, Section: "test", Doc: "Tests of the file, run by `streamd test`."},
			},
		},
		{
			Name: "kafka", Doc: "How to reach the cluster.",
			Example: "brokers: [\"${KAFKA_BROKERS:-localhost:9092}\"]\ntls: {}\nsasl: {mechanism: scram-sha-512, username: ann, password: \"${file:/run/secrets/kafka}\"}",
			Fields: []Field{
				{Name: "brokers", Kind: KindTexts, Required: true, Doc: "Bootstrap addresses, host:port. One text may hold several, separated by commas."},
				{Name: "client_id", Kind: KindText, Doc: "`client.id` of all requests."},
				{Name: "tls", Kind: KindSection, Section: "tls", Doc: "Transport security. `tls: {}` trusts the system's certificates; without it the connection is plain."},
				{Name: "sasl", Kind: KindSection, Section: "sasl", Doc: "Authentication."},
				{Name: "schema_registry", Kind: KindSection, Section: "schema_registry", Doc: "Where the schemas of the formats avro and protobuf are."},
			},
		},
		{
			Name: "schema_registry", Doc: "A schema registry with the API of Confluent's. username and password, token, token_file, or none of them. While it does not answer, records wait; none is lost.",
			Example: "url: https://registry:8081\nusername: ann\npassword: \"${file:/run/secrets/registry}\"\ntls: {ca_file: /etc/ssl/registry.pem}",
			Fields: []Field{
				{Name: "url", Kind: KindTexts, Required: true, Doc: "Its address, or several that are tried one after the other."},
				{Name: "username", Kind: KindText, Doc: "Who."},
				{Name: "password", Kind: KindText, Doc: "Best from a file: `${file:/run/secrets/registry}`."},
				{Name: "token", Kind: KindText, Doc: "A bearer token."},
				{Name: "token_file", Kind: KindText, Doc: "A file with a token, read again for each request."},
				{Name: "tls", Kind: KindSection, Section: "tls", Doc: "Certificates for https. Default: the system's."},
				{Name: "timeout", Kind: KindDuration, Default: "5s", Doc: "Of one request; at most 20s."},
			},
		},
		{
			Name: "tls", Doc: "Transport security.",
			Fields: []Field{
				{Name: "ca_file", Kind: KindText, Doc: "Certificates (PEM) to trust instead of the system's."},
				{Name: "cert_file", Kind: KindText, Doc: "The client's own certificate (PEM), with key_file."},
				{Name: "key_file", Kind: KindText, Doc: "Its key."},
				{Name: "server_name", Kind: KindText, Doc: "Name in the broker's certificate, if it is not the host's."},
				{Name: "insecure_skip_verify", Kind: KindBool, Default: "false", Doc: "Accept any certificate. For tests only."},
			},
		},
		{
			Name: "sasl", Doc: "Authentication. plain and scram want username and password, oauthbearer one of token and token_file.",
			Fields: []Field{
				{Name: "mechanism", Kind: KindWord, Required: true, Words: []string{saslPlain, saslScram256, saslScram512, saslOAuthBearer}, Doc: "The mechanism."},
				{Name: "username", Kind: KindText, Doc: "Who."},
				{Name: "password", Kind: KindText, Doc: "Best from a file: `${file:/run/secrets/kafka}`."},
				{Name: "token", Kind: KindText, Doc: "A token."},
				{Name: "token_file", Kind: KindText, Doc: "A file with a token, read again for each connection."},
			},
		},
		{
			Name: "processing", Doc: "How transactions are run.",
			Fields: []Field{
				{Name: "guarantee", Kind: KindWord, Words: []string{"exactly_once", "at_least_once", "at_most_once"}, Default: "exactly_once", Doc: "What topics get; `streamd explain` says what comes of it. exactly_once: the results are part of the transaction that carries state and positions. at_least_once: they are sent before it; after a crash some come again, with the same IDs. at_most_once: the positions are committed first; after a crash some results are missing. See docs/concepts/guarantees.md."},
				{Name: "dedup", Kind: KindWord, Words: []string{"auto", "always"}, Default: "auto", Doc: "auto: a dedup step that can find no duplicate, since another one before it has dropped them all, has no log of IDs. always: each has one."},
				{Name: "commit_interval", Kind: KindDuration, Doc: "The longest time that a transaction stays open: how much later than possible a result is seen."},
				{Name: "transaction_timeout", Kind: KindDuration, Doc: "After this time the broker aborts a transaction whose process is gone."},
			},
		},
		{
			Name: "tracing", Doc: "Where spans of OpenTelemetry go. Without it the process's `OTEL_EXPORTER_OTLP_ENDPOINT` says so; without that, too, there are none. See docs/tracing.md.",
			Example: "endpoint: http://localhost:4318\nsample: 0.1",
			Fields: []Field{
				{Name: "endpoint", Kind: KindText, Doc: "A receiver of OTLP over HTTP. Without a path, `/v1/traces` is added. Headers, certificates and limits are set by `OTEL_*`."},
				{Name: "sample", Kind: KindNumber, Doc: "Which part of the transactions become spans, above 0 to 1; default: as `OTEL_TRACES_SAMPLER` says, else all. Records go by what their own trace says."},
			},
		},
		{
			Name: "state", Doc: "Where the local state is.",
			Example: "dir: /var/lib/streamd/bills\nkey_file: /run/secrets/streamd/state-key",
			Fields: []Field{
				{Name: "dir", Kind: KindText, Doc: "Directory of the local state; default: one named as the pipeline in `--data-dir`."},
				{Name: "key_file", Kind: KindText, Doc: "A file with a key of 16, 24 or 32 bytes (`umask 077; openssl rand -out FILE 32`): the local state is encrypted with AES. A relative path goes by where the process was started. Default: it is not. From the first start of a directory on; see docs/security.md."},
				{Name: "old_key_file", Kind: KindText, Doc: "A file with the key before it: a directory that is still under that one is brought under the one of key_file at the start."},
			},
		},
		{
			Name: "errors", Doc: "What becomes of records that a step cannot handle.",
			Example: "on_error: dead_letter\ndead_letter_topic: bills.dlq",
			Fields: []Field{
				{Name: "on_error", Kind: KindWord, Words: []string{"stop", "dead_letter", "skip"}, Default: "stop", Doc: "For all sources and steps that say nothing else."},
				{Name: "dead_letter_topic", Kind: KindText, Doc: "Where dead letters go, in the transaction that would have carried the result."},
			},
		},
		{
			Name: "types", Doc: "A type is a mapping from names of fields to types: `string`, `int`, `float`, `decimal` (exact, for money), `bool`, `timestamp`, `bytes`, `any`, another type of the file, or `[type]` for a list.",
			Example: "Bill: {bill_id: string, account: string, amount: decimal, issued_at: timestamp, lines: [Line]}\nLine: {text: string, amount: decimal}",
			Members: &Field{Kind: KindSection, Section: "type", Doc: "A type."},
		},
		{
			Name: "type", Doc: "The fields of a type.",
			Members: &Field{Kind: KindType, Doc: "The type of the field."},
		},
		{
			Name: "sources", Doc: "The topics that are read, by the names that steps know them by.",
			Members: &Field{Kind: KindSection, Section: "source", Doc: "A source."},
		},
		{
			Name: "tables", Doc: "The topics of which joins look up the newest record of a key, by the names that joins know them by. A step that reads one (`from`) makes another table of it, or writes its changes.",
			Members: &Field{Kind: KindSection, Section: "table", Doc: "A table."},
		},
		{
			Name: "table", Doc: "A topic as a table: a record replaces the row of its key, one without a value deletes it. The topic should be compacted, and have as many partitions as what it is joined with, unless it is `global`.",
			Example: "topic: customers\ntype: Customer",
			Fields: []Field{
				{Name: "topic", Kind: KindText, Required: true, Doc: "The topic."},
				{Name: "format", Kind: KindWord, Words: inputFormats(), Default: formatJSON, Doc: "What the values are, as of a source. debezium: the row, `after`; a deletion deletes it. Not avro, protobuf, cloudevents and debezium with `global`."},
				{Name: "encoding", Kind: KindWord, Words: outputFormats(), Default: formatJSON, Doc: "As of a source."},
				{Name: "type", Kind: KindType, Default: "any", Doc: "The type of the rows. Left joins need one."},
				{Name: "global", Kind: KindBool, Default: "false", Doc: "true: each process has all rows in memory, so that a join by any key needs no topic. The rows are not part of the transaction's cut; see docs/concepts/tables.md. `key`, `timestamp`, `out_of_orderness` and `idleness` have no meaning then."},
				{Name: "max_bytes", Kind: KindCount, Default: "268435456", Doc: "With `global`: the memory of the rows at which the pipeline stops."},
				{Name: "key", Kind: KindKey, Default: varKey, Doc: "What a row is looked up by. Anything but the record's key goes through a topic, and a record without a value cannot delete its row: it is an error."},
				{Name: "timestamp", Kind: KindExpression, Doc: "As of a source."},
				{Name: "out_of_orderness", Kind: KindDuration, Default: "0s", Doc: "As of a source."},
				{Name: "idleness", Kind: KindDuration, Default: "30s", Doc: "As of a source."},
				{Name: "on_error", Kind: KindWord, Words: []string{"stop", "dead_letter", "skip"}, Doc: "What becomes of a record that cannot be read. With `global`: stop, which is the default then, or skip."},
			},
		},
		{
			Name: "source", Doc: "A topic that is read.",
			Example: "topic: bills.raw\nformat: json\ntype: Bill\ntimestamp: value.issued_at\nout_of_orderness: 5s",
			Fields: []Field{
				{Name: "topic", Kind: KindText, Required: true, Doc: "The topic."},
				{Name: "format", Kind: KindWord, Words: inputFormats(), Default: formatJSON, Doc: "What the values are. cloudevents: the value is the event's data, whether it came in binary or in structured mode, and the attributes are headers (`ce_id`, `ce_source`, ...). avro, protobuf: with a schema of `kafka.schema_registry`. debezium: the envelope of a change, `value.before`, `value.after`, `value.op`, `value.source`; records without a value are left out. See docs/concepts/formats.md."},
				{Name: "encoding", Kind: KindWord, Words: outputFormats(), Default: formatJSON, Doc: "With format debezium: what the envelopes are written in."},
				{Name: "type", Kind: KindType, Default: "any", Doc: "The type of the values."},
				{Name: "id", Kind: KindKey, Doc: "What identifies a record: names its outputs, so that a reader can drop copies. Default: the header `record-id`, else its position."},
				{Name: "on_missing_id", Kind: KindWord, Words: []string{"stop", "dead_letter", "forward"}, Default: "stop", Doc: "What becomes of a record without that ID."},
				{Name: "timestamp", Kind: KindExpression, Doc: "When it happened: a timestamp, milliseconds since 1970, or a text as `2026-01-02T15:04:05Z`. Default: the record's own time in Kafka."},
				{Name: "out_of_orderness", Kind: KindDuration, Default: "0s", Doc: "How much later than the newest record another one may come without being late. It delays all windows."},
				{Name: "idleness", Kind: KindDuration, Default: "30s", Doc: "After how long without a record a partition no longer holds time up, so that windows close though nothing comes. `never`: it always does."},
				{Name: "on_error", Kind: KindWord, Words: []string{"stop", "dead_letter", "skip"}, Doc: "What becomes of a record that cannot be read."},
				{Name: "start", Kind: KindWord, Words: []string{"earliest"}, Default: "earliest", Doc: "Where a new consumer group starts."},
			},
		},
	}
}

func referenceOfTests() []Section {
	record := []Field{
		{Name: "key", Kind: KindAny, Doc: "The key: a text, or a list for a key of several parts."},
		{Name: "value", Kind: KindAny, Doc: "The value; null is a tombstone."},
		{Name: "headers", Kind: KindSection, Section: "headers", Doc: "Headers."},
		{Name: "timestamp", Kind: KindText, Doc: "The record's time."},
	}
	return []Section{
		{
			Name: "test", Doc: "A test: records that come in, one after the other, and what steps of kind `to` write.",
			Example: "name: a bill sent twice counts once\ninput:\n  - {source: bills, value: {bill_id: b1, account: a, amount: \"10.10\"}}\n  - {source: bills, value: {bill_id: b1, account: a, amount: \"10.10\"}}\nexpect:\n  publish:\n    - {key: a, value: {total: \"10.10\"}}",
			Fields: []Field{
				{Name: "name", Kind: KindText, Required: true, Doc: "What is tested."},
				{Name: "input", Kind: KindSections, Required: true, Section: "input", Doc: "The records, in order."},
				{Name: "expect", Kind: KindSection, Required: true, Section: "expect", Doc: "What comes out."},
			},
		},
		{Name: "input", Doc: "A record that comes in. Without a timestamp it has the one of the record before it.", Fields: append([]Field{{Name: "source", Kind: KindText, Required: true, Doc: "The source that it comes from."}}, record...)},
		{Name: "expect", Doc: "By the name of a step of kind `to`: all records that it writes, in order. Steps that are not named are not looked at.", Members: &Field{Kind: KindSections, Section: "output", Doc: "The records."}},
		{Name: "output", Doc: "A record that comes out. What is not named in it is not compared.", Fields: record},
		{Name: "headers", Doc: "Headers by name.", Members: &Field{Kind: KindText, Doc: "The header's value."}},
	}
}
