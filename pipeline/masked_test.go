package pipeline

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMaskFile: secrets of each kind, in each place, are not in what is given away; what helps is.
func TestMaskFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "p.yaml")
	text := `# the password was SECRET-in-a-comment
version: 1
name: bills # SECRET-beside
kafka:
  brokers: ["${BROKERS:-localhost:9092}"]
  sasl: {mechanism: plain, username: ann, password: SECRET-inline}
sources:
  in: {topic: in, id: value.id}
steps:
  - name: rows
    to:
      postgres: {url: "postgres://u:SECRET-in-url@${DB_HOST}/x", table: t}
  - name: more
    from: in
    to:
      redis: {url: "${file:/run/secret}", table: t}
unknown: "${VARIABLE}"
tests:
  - {name: a, input: [{source: in, value: {iban: SECRET-record}}]}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := MaskFile(file, Options{
		LookupEnv: func(name string) (string, bool) {
			return map[string]string{"VARIABLE": "SECRET-variable", "DB_HOST": "db.internal"}[name], name == "VARIABLE" || name == "DB_HOST"
		},
		ReadFile: func(string) ([]byte, error) { return []byte("redis://:SECRET-file@h\n"), nil },
		Set:      []string{"kafka.sasl.password=SECRET-set"},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := string(m.Text)
	if strings.Contains(got, "SECRET") {
		t.Errorf("a secret is given away:\n%s", got)
	}
	for _, want := range []string{"name: bills", "localhost:9092", "username: ann", "${DB_HOST}", "${file:/run/secret}", "table: t"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "tests") || strings.Contains(got, "#") {
		t.Errorf("tests or comments are given away:\n%s", got)
	}
	for _, want := range []string{"SECRET-set", "redis://:SECRET-file@h"} {
		if !slices.Contains(m.Secrets, want) {
			t.Errorf("%q is not known as a secret: %q", want, m.Secrets)
		}
	}
	if err := os.WriteFile(file, []byte("a: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := MaskFile(file, Options{}); err == nil {
		t.Error("what is no YAML is given away")
	}
}
