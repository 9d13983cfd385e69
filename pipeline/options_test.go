package pipeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const optionsFile = `version: 1
name: ${NAME}
kafka:
  brokers: ["${BROKERS:-localhost:9092}"]
  client_id: a$${b}c
  tls: {ca_file: ca.pem, server_name: kafka}
  sasl:
    mechanism: scram-sha-512
    username: ${USER_NAME:?who are you}
    password: ${file:/run/secrets/password}
sources: {in: {topic: "in-${ENV}"}}
steps:
  - name: unique
    dedup: {id: value.id, retention: "${RETENTION:-7d}", expected_ids: 50M, scope: partition}
  - name: out
    to: {topic: out}
`

func optionsEnv() Options {
	env := map[string]string{"NAME": "bills", "BROKERS": "a:1, b:2", "USER_NAME": "ann", "ENV": "prod"}
	return Options{
		LookupEnv: func(n string) (string, bool) { v, ok := env[n]; return v, ok },
		ReadFile: func(path string) ([]byte, error) {
			if path != "/run/secrets/password" {
				return nil, os.ErrNotExist
			}
			return []byte("hunter2\n"), nil
		},
	}
}

func TestSubstitution(t *testing.T) {
	p := mustLoad(t, optionsFile, optionsEnv())
	want := Kafka{
		Brokers: []string{"a:1", "b:2"}, ClientID: "a${b}c", TLS: &TLS{CAFile: "ca.pem", ServerName: "kafka"},
		SASL: &SASL{Mechanism: "SCRAM-SHA-512", Username: "ann", Password: "hunter2"},
	}
	if !reflect.DeepEqual(p.Kafka, want) {
		t.Errorf("got %#v", p.Kafka)
	}
	if p.Name != "bills" || p.Sources[0].Topic != "in-prod" || p.plan.steps[0].dedup.retention.Hours() != 7*24 || p.plan.steps[0].dedup.expected != 50e6 {
		t.Errorf("got %+v, %+v", p, p.plan.steps[0].dedup)
	}
	// However it is printed, the password is not.
	text, err := json.Marshal(p.Kafka)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "sasl", p.Kafka.SASL, "password", p.Kafka.SASL.Password)
	all := fmt.Sprintf("%v %+v %#v %s %q %s %s", p.Kafka.SASL, p.Kafka.SASL, *p.Kafka.SASL, p.Kafka.SASL.Password, p.Kafka.SASL.Password, text, log.String())
	if strings.Contains(all, "hunter2") {
		t.Errorf("the password is shown: %s", all)
	}
	if p.Kafka.SASL.Password.Reveal() != "hunter2" {
		t.Error("the password is lost")
	}
}

// TestAllowUnset checks a file without its environment: what cannot be known is taken as right.
func TestAllowUnset(t *testing.T) {
	p, err := Load([]byte(optionsFile), Options{AllowUnset: true, ReadFile: func(string) ([]byte, error) { return nil, os.ErrNotExist }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Topology(); !errors.Is(err, ErrUnset) {
		t.Errorf("got %v", err)
	}
	// Each field of the format may hold a variable.
	for _, field := range []string{
		"value.id", "7d", "50M", "0.001", "partition", "id", "stop", "drop", "bills.out",
	} {
		text := head(`
sources: {in: {topic: in, format: json, start: earliest}}
steps:
  - name: unique
    dedup: {id: value.id, retention: 7d, expected_ids: 50M, false_positive_rate: 0.001, scope: partition, compare: id, on_missing_id: stop, on_duplicate: drop}
  - {name: out, to: {topic: bills.out}}
`)
		if !strings.Contains(text, ": "+field) {
			t.Fatalf("%q is not in the file", field)
		}
		text = strings.Replace(text, ": "+field, ": \"${X}\"", 1)
		if _, err := Load([]byte(text), Options{AllowUnset: true}); err != nil {
			t.Errorf("%s: %v", field, err)
		}
		if _, err := Load([]byte(text), Options{}); err == nil {
			t.Errorf("%s: no error without AllowUnset", field)
		}
	}
}

func TestSet(t *testing.T) {
	o := optionsEnv()
	o.Brokers = []string{"x:1", "y:2"}
	o.Set = []string{
		"steps.unique.dedup.retention=3d", "kafka.client_id=me", "processing.commit_interval=200ms", "sources.in.topic=other",
		"errors={on_error: skip}", "steps.out.to.topic=a.b", "kafka.sasl.password=other=secret",
	}
	p := mustLoad(t, optionsFile, o)
	if got := p.plan.steps[0].dedup.retention.Hours(); got != 72 {
		t.Errorf("retention %v h", got)
	}
	if fmt.Sprint(p.Kafka.Brokers) != "[x:1 y:2]" || p.Kafka.ClientID != "me" || p.Sources[0].Topic != "other" || p.plan.steps[1].topic != "a.b" ||
		p.Processing.CommitInterval.Milliseconds() != 200 || p.Kafka.SASL.Password.Reveal() != "other=secret" {
		t.Errorf("got %+v", p)
	}
	for set, want := range map[string]string{
		"steps.uniqe.dedup.retention=3d":   `--set steps.uniqe.dedup.retention: error: nothing in "steps" is named "uniqe" [set]`,
		"steps.unique.dedup.retention=3":   `--set steps.unique.dedup.retention: error: "3" has no unit [retention-missing-unit]`,
		"steps.unique.dedup.id=value. ":    `--set steps.unique.dedup.id: error: unexpected '.' [expression]`,
		"name.x=1":                         `--set name.x: error: "name" holds a text, it has no parts [set]`,
		"nonsense":                         `--set nonsense: error: want path=value [set]`,
		"kafka.nope=1":                     `--set kafka.nope: error: unknown field "nope" in kafka`,
		"kafka.sasl.mechanism=hunter3":     `--set kafka.sasl.mechanism: error: "hunter3" is not one of`,
		"kafka.sasl.password={a: hunter3}": `--set kafka.sasl.password: error: password must be a single value`,
	} {
		o := optionsEnv()
		o.Set = []string{set}
		_, err := Load([]byte(optionsFile), o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got\n%v\nwant %s", set, err, want)
		}
	}
}

func TestLoadFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := LoadFile(filepath.Join(dir, "nope.yaml"), Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	large := filepath.Join(dir, "large.yaml")
	if err := os.WriteFile(large, make([]byte, 3*maxFileBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	var e *Error
	if _, err := LoadFile(large, Options{}); !errors.As(err, &e) || e.Diagnostics[0].Rule != RuleTooLarge {
		t.Errorf("got %v", err)
	}
	if e.Diagnostics[0].File != large {
		t.Errorf("file %q", e.Diagnostics[0].File)
	}
}

func TestTestsSection(t *testing.T) {
	p := mustLoad(t, head(`
sources: {in: {topic: in}}
steps:
  - {name: out, to: {topic: out}}
tests:
  - name: one
    input:
      - {source: in, key: k, value: {b: 1.50, a: [x, null, true, 0x10]}, headers: {h: v}, timestamp: "2026-01-02T03:04:05Z"}
      - {source: in, value: "10.10"}
    expect:
      out: [{key: k, value: {b: 1.50}}]
`), Options{})
	got := p.Tests[0]
	if got.Name != "one" || got.Line != 9 || len(got.Input) != 2 || string(got.Input[0].Value) != `{"b":1.50,"a":["x",null,true,16]}` ||
		string(got.Input[0].Key) != `"k"` || got.Input[0].Headers[0] != [2]string{"h", "v"} || string(got.Input[1].Value) != `"10.10"` ||
		got.Expect[0].Step != "out" || string(got.Expect[0].Records[0].Value) != `{"b":1.50}` || got.Input[0].Timestamp.Year() != 2026 {
		t.Errorf("got %+v", got)
	}
}

// FuzzLoad: no file makes the loader panic or run away, and every position lies in the file.
func FuzzLoad(f *testing.F) {
	for _, dir := range []string{"testdata/mistakes", "testdata/pipelines"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Add([]byte(optionsFile))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Load(data, testOptions("f.yaml"))
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || len(e.Diagnostics) == 0 {
				t.Fatalf("%T: %v", err, err)
			}
			lines := strings.Count(strings.ReplaceAll(string(data), "\r", "\n"), "\n") + 2
			for _, d := range e.Diagnostics {
				if d.Line < 0 || d.Line > lines || d.Line > 0 && d.Column < 1 {
					t.Fatalf("%s lies outside of %d lines", d.Position(), lines)
				}
			}
			return
		}
		if _, err := p.Topology(); err != nil {
			t.Fatalf("the file is right, the topology is not: %v", err)
		}
	})
}

// TestTracing: where spans go is an address, and a share is one.
func TestTracing(t *testing.T) {
	head := "version: 1\nname: p\nkafka: {brokers: [\"a:1\"]}\nsources: {in: {topic: in, id: value.id}}\nsteps: [{name: out, to: {topic: out}}]\ntracing: "
	p, err := Load([]byte(head+"{endpoint: 'https://c/x', sample: 0.25}\n"), Options{})
	if err != nil || p.Tracing != (Tracing{Endpoint: "https://c/x", Sample: 0.25}) {
		t.Errorf("%+v, %v", p, err)
	}
	for text, want := range map[string]string{
		"{endpoint: 'c:4317'}":              "want an address such as",
		"{endpoint: 'http://u:pw@c'}":       "OTEL_EXPORTER_OTLP_HEADERS",
		"{endpoint: 'http://c', sample: 0}": "sample must be a number from",
		"{headers: x}":                      `unknown field "headers"`,
	} {
		_, err := Load([]byte(head+text+"\n"), Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
