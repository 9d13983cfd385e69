package pipeline

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

func compiledSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("pipeline.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("pipeline.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// asJSON reads YAML as an editor does.
func asJSON(t *testing.T, data []byte) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	out, err := jsonschema.UnmarshalJSON(strings.NewReader(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestSchemaAllows: what Load takes, the schema takes.
func TestSchemaAllows(t *testing.T) {
	s := compiledSchema(t)
	var files []string
	for _, pattern := range []string{"testdata/pipelines/*.yaml", "testdata/mistakes/*.yaml", "../examples/*/pipeline.yaml", "../internal/daemon/templates/*.yaml"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(found), err)
		}
		files = append(files, found...)
	}
	checked := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		o := testOptions(file)
		o.AllowUnset = true
		if _, err := Load(data, o); err != nil {
			continue
		}
		checked++
		if err := s.Validate(asJSON(t, data)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	if checked < 8 {
		t.Errorf("only %d files were held against the schema", checked)
	}
}

// TestSchemaRefuses: slips of the pen that an editor should underline.
func TestSchemaRefuses(t *testing.T) {
	s := compiledSchema(t)
	good := windowHead + "steps:\n  - {name: unique, dedup: {id: value.id, retention: 7d, scope: partition}}\n  - {name: out, to: {topic: out}}\n"
	if err := s.Validate(asJSON(t, []byte(good))); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{
		{"topic: in", "topik: in"},
		{"retention: 7d", "retention: 7 days"},
		{"retention: 7d", "retention: 7"},
		{"scope: partition", "scope: all"},
		{"retention: 7d, ", ""},
		{"dedup: {", "filter: value.a, dedup: {"},
		{"version: 1", "version: 2"},
		{"name: test\n", ""},
	} {
		text := strings.Replace(good, c[0], c[1], 1)
		if text == good {
			t.Fatalf("%q is not there", c[0])
		}
		if err := s.Validate(asJSON(t, []byte(text))); err == nil {
			t.Errorf("the schema takes %q", c[1])
		}
	}
}

// everything has every mapping of the file format at least once.
const everything = `version: 1
name: test
kafka: {brokers: ["a:1"], tls: {}, sasl: {mechanism: plain, username: a, password: b}, schema_registry: {url: "http://a:1"}}
processing: {}
state: {dir: d, key_file: k, old_key_file: o}
tracing: {endpoint: "http://localhost:4318", sample: 0.5}
errors: {dead_letter_topic: dlq}
types: {T: {a: string}}
sources:
  in: {topic: in, type: T}
  posted: {topic: posted, http: {address: "127.0.0.1:9000"}}
  lines: {topic: lines, file: {paths: [a]}}
  sent: {topic: sent, tcp: {address: "127.0.0.1:9001"}}
  rows-a: {topic: rows-a, postgres: {dsn: "postgres://a@b/c", table: t, column: id}}
  rows-b: {topic: rows-b, mysql: {dsn: "a:b@tcp(c:1)/d", table: t, column: id}}
tables: {rows: {topic: rows, type: T}, more: {topic: more, type: T}}
steps:
  - {name: unique, from: in, dedup: {id: value.a, retention: 7d, scope: partition}}
  - {name: sums, aggregate: {by: key, window: {hopping: {size: 10s, every: 5s}}, fields: {n: {count: true}}}}
  - {name: out, to: {topic: out, value: {n: value.n, t: window.start}}}
  - {name: named, from: unique, join: {table: rows, kind: left, value: {a: value.a, b: table.a}}}
  - {name: both, from: rows, join: {table: more, kind: outer, value: {a: value.a, b: table.a}}}
  - {name: some, filter: has(value.a)}
  - {name: changes, to: {topic: changes}}
  - {name: pairs, from: unique, join: {stream: named, within: 10s, value: {a: value.a, b: other.b}}}
  - {name: late, from: pairs, timer: {by: key, after: 10s, value: {a: value.a}}}
  - {name: out-late, to: {topic: late}}
  - {name: postgres, from: unique, to: {postgres: {dsn: "postgres://a@b/c", table: t, columns: {a: value.a}}}}
  - {name: mysql, from: unique, to: {mysql: {dsn: "a:b@tcp(c:1)/d", table: t, columns: {a: value.a}}}}
  - {name: sqlite, from: unique, to: {sqlite: {file: "a.db", table: t, columns: {a: value.a}}}}
  - {name: redis, from: unique, to: {redis: {url: "redis://a:1/0", table: t, columns: {a: value.a}, primary_key: [a]}}}
  - {name: files, from: unique, to: {files: {directory: "/d", format: csv, compress: gzip, size: 1M, interval: 10s, columns: {a: value.a}}}}
  - {name: http, from: unique, to: {http: {url: "https://h/", class: idempotent, method: PUT, batch: 10, headers: {X: x}, timeout: 1s, max_body: 1M, ca_file: a, cert_file: b, key_file: c, token_file: d, columns: {a: value.a}}}}
  - {name: out-posted, from: posted, to: {topic: out-posted}}
  - {name: out-lines, from: lines, to: {topic: out-lines}}
  - {name: out-sent, from: sent, to: {topic: out-sent}}
  - {name: out-rows-a, from: rows-a, to: {topic: out-rows-a}}
  - {name: out-rows-b, from: rows-b, to: {topic: out-rows-b}}
tests:
  - {name: t, input: [{source: in, headers: {a: b}}], expect: {out: [{key: a}]}}
`

// TestReferenceIsWhatIsRead: each mapping has the fields, and no others, that the loader asks for.
func TestReferenceIsWhatIsRead(t *testing.T) {
	names := map[string]string{
		"the pipeline": "pipeline", `test 1`: "test", `step 1`: "step", "a record of a test": "output",
	}
	sections := map[string]Section{}
	for _, s := range Reference() {
		sections[s.Name] = s
	}
	quoted := regexp.MustCompile(` ".*"$`)
	seen := map[string]bool{}
	d := newDocument(Options{File: "everything.yaml"})
	d.finished = func(o *object) {
		name := quoted.ReplaceAllString(o.what, "")
		if n, ok := names[o.what]; ok {
			name = n
		}
		if name == "field" {
			name = "function"
		}
		if name == "output" && slices.Contains(o.known, "source") {
			name = "input"
		}
		if name == "http" && slices.Contains(o.known, "url") {
			name = "http-target" // a source has one, too
		}
		if slices.Contains(o.known, "column") {
			name += "-source" // and a step
		}
		s, ok := sections[name]
		if !ok {
			t.Errorf("%s has no section", o.what)
			return
		}
		seen[name] = true
		var want []string
		for _, f := range s.Fields {
			want = append(want, f.Name)
		}
		got := slices.Clone(o.known)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the loader asks for %q, the reference has %q", name, got, want)
		}
	}
	p := &Pipeline{File: d.file}
	if !d.parse([]byte(everything)) {
		t.Fatal("not YAML")
	}
	p.plan = d.pipeline(p)
	if ds := d.finish(); d.failed() {
		t.Fatalf("%s", Format(ds))
	}
	for _, s := range Reference() {
		if s.Members == nil && !seen[s.Name] {
			t.Errorf("section %q was not met in the file", s.Name)
		}
	}
}

// TestReferenceExamples: each example of the reference, in its place, is read without an error.
func TestReferenceExamples(t *testing.T) {
	for _, s := range Reference() {
		if s.Example == "" {
			continue
		}
		if err := yaml.Unmarshal([]byte(s.Example), new(any)); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
	}
}

// TestReferenceText: docs/pipeline-reference.md is generated. After a change: go test ./pipeline -run ReferenceText -update.
func TestReferenceText(t *testing.T) {
	compare(t, "../docs/pipeline-reference.md", referenceHead+ReferenceText())
}

const referenceHead = `# The pipeline file

Generated from the program (` + "`go test ./pipeline -run ReferenceText -update`" + `); ` + "`streamd schema`" + ` prints the same as a JSON Schema for editors.
` + "`streamd init`" + ` writes a file to begin with, ` + "`streamd validate`" + ` finds what is wrong with one, ` + "`streamd test`" + ` runs its tests.

A **duration** is written ` + "`90s`, `15m`, `1h30m`, `7d`" + `, a **count** ` + "`1000`, `500k`, `50M`" + `. In place of any single value may stand
` + "`${VAR}`, `${VAR:-default}`, `${VAR:?message}`, `${file:/path}`" + `.

**Expressions** are [CEL](https://cel.dev). They know ` + "`key`, `value`, `headers`, `topic`, `partition`, `offset`, `timestamp`" + `, behind an aggregate with a
window ` + "`window.start` and `window.end`" + `, in the value of a join ` + "`table` or `other`" + `; and beside CEL's own functions ` + "`decimal`, `round`, `hash64`, `json`, `to_json`, `record_position`, `cloudevent_id`, `base64.encode`, `base64.decode`" + `.
Try one: ` + "`echo '{\"n\":1}' | streamd eval 'value.n + 1'`" + `.

`
