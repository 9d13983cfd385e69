package daemon

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// runTests runs the tests of a file and returns what is printed.
func runTests(t *testing.T, file string) (string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipeline.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := Test(&out, []string{path}, TestConfig{})
	return out.String(), err
}

const timesFile = `version: 1
name: times
kafka: {brokers: ["localhost:9092"]}
sources: {in: {topic: in, timestamp: value.at}}
steps:
  - {name: out, to: {topic: out}}
tests:
  - name: times
    input:
      - {source: in, value: {at: "0001-01-01T00:00:00Z"}}
    expect:
      out: [{timestamp: "EXPECTED"}]
`

// TestTimestampsOfTests: the zero time is one that a test can expect, and that can be missed.
func TestTimestampsOfTests(t *testing.T) {
	if out, err := runTests(t, strings.ReplaceAll(timesFile, "EXPECTED", "0001-01-01T00:00:00Z")); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, is := range []string{"2026-01-02T00:00:00Z", "0001-01-01T00:00:00Z"} {
		file := strings.Replace(strings.ReplaceAll(timesFile, "EXPECTED", "0001-01-01T00:00:00Z"), `"0001-01-01T00:00:00Z"`, `"`+is+`"`, 1)
		if out, err := runTests(t, file); (err == nil) != (is[0] == '0') || err != nil && (!errors.Is(err, ErrTests) || !strings.Contains(out, "want 0001-01-01T00:00:00Z")) {
			t.Errorf("%s: %v\n%s", is, err, out)
		}
	}
}

const unsetFile = `version: 1
name: unset
kafka: {brokers: ["${NO_SUCH_BROKERS:?the cluster}"], tls: {ca_file: "${NO_SUCH_CA}"}}
sources: {in: {topic: "bills.${NO_SUCH_STAGE}"}}
steps:
  - {name: copy, filter: "value.n > 0"}
  - {name: out, to: {topic: "${NO_SUCH_TOPIC:?where to}"}}
  - {name: rows, from: copy, to: {postgres: {dsn: "${file:/no/such/file}", table: t, class: plain, columns: {n: "int(value.n)"}}}}
errors: {on_error: dead_letter, dead_letter_topic: "${NO_SUCH_TOPIC}.dead"}
tests:
  - name: copied
    input: [{source: in, value: {n: 1}}]
    expect: {out: [{value: {n: 1}}], rows: [{value: {n: 1}}]}
`

// TestUnsetVariables: what needs neither a broker nor a database needs no values for how they are reached.
func TestUnsetVariables(t *testing.T) {
	if out, err := runTests(t, unsetFile); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	file := filepath.Join(t.TempDir(), "pipeline.yaml")
	if err := os.WriteFile(file, []byte(unsetFile), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Explain(&out, file, LoadConfig{}, false, ""); err != nil {
		t.Error(err)
	}
	if g, err := Graph(file, LoadConfig{}, "text", true); err != nil || !strings.Contains(g, "bills.NO_SUCH_STAGE") || !strings.Contains(g, "NO_SUCH_TOPIC") {
		t.Errorf("%s, %v", g, err)
	}
	if _, err := Load([]string{file}, LoadConfig{}); err == nil || !strings.Contains(err.Error(), "NO_SUCH_BROKERS") || !strings.Contains(err.Error(), "NO_SUCH_TOPIC") {
		t.Errorf("run takes the file: %v", err)
	}
	// What a step computes depends on its expression: the variable is named.
	if _, err := runTests(t, strings.Replace(unsetFile, "value.n > 0", "value.n > ${NO_SUCH_LIMIT}", 1)); err == nil || !strings.Contains(err.Error(), "NO_SUCH_LIMIT") {
		t.Errorf("a variable in an expression: %v", err)
	}
}
