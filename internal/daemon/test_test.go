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
