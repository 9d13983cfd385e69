package operate

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/serde/registry/registrytest"
)

// TestDoctorAsksTheRegistry: what a start would end with, or wait for, is known before it; and nothing is registered.
func TestDoctorAsksTheRegistry(t *testing.T) {
	b, err := embedded.Start(embedded.Config{Topics: []embedded.Topic{{Name: "in", Partitions: 1}, {Name: "out", Partitions: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	dir := t.TempDir()
	const schema = `{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}`
	if err := os.WriteFile(filepath.Join(dir, "r.avsc"), []byte(schema), 0o600); err != nil {
		t.Fatal(err)
	}
	status := func(code int) func(r *registrytest.Registry) {
		return func(r *registrytest.Registry) {
			r.Instead(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
		}
	}
	both := func(r *registrytest.Registry) {
		r.Add("in-value", "AVRO", schema)
		r.Add("out-value", "AVRO", schema)
	}
	for _, c := range []struct {
		name, to string
		prepare  func(r *registrytest.Registry)
		severity Severity // the worst of the check "schemas"
		words    string
		code     int
	}{
		{"all is there", "", both, Fine, "out: subject out-value: avro schema 2 is its newest version", 0},
		{"the file's is there", ", schema: r.avsc", both, Fine, "out: subject out-value: the file's schema is 2 there", 0},
		{"no subject of what is read", "", func(r *registrytest.Registry) { r.Add("out-value", "AVRO", schema) }, Warning, "in: the registry answers, and has no subject in-value", 0},
		{"no subject of what is written", "", func(r *registrytest.Registry) { r.Add("in-value", "AVRO", schema) }, Failure, "no such subject", daemon.ExitConfig},
		{"not registered", ", schema: r.avsc", func(r *registrytest.Registry) { r.Add("in-value", "AVRO", schema) }, Failure, "is not registered there", daemon.ExitConfig},
		{"to be registered", ", schema: r.avsc, register: true", func(r *registrytest.Registry) { r.Add("in-value", "AVRO", schema) }, Fine, "can be its next version", 0},
		{"not compatible", ", schema: r.avsc, register: true", func(r *registrytest.Registry) {
			r.Add("in-value", "AVRO", schema)
			r.Add("out-value", "AVRO", `"int"`)
			r.Incompatible("field a is new")
		}, Failure, "field a is new", daemon.ExitConfig},
		{"denied", "", status(http.StatusUnauthorized), Failure, "does not accept the credentials", daemon.ExitNotAllowed},
		{"away", "", status(http.StatusServiceUnavailable), Failure, "503", daemon.ExitTemporary},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := registrytest.New(t)
			c.prepare(r)
			p, err := pipeline.Load([]byte("version: 1\nname: t\nkafka: {brokers: [\""+b.Address()+"\"], schema_registry: {url: \""+r.URL+"\"}}\n"+
				"sources: {in: {topic: in, format: avro}}\nsteps: [{name: out, to: {topic: out, format: avro"+c.to+"}}]\n"),
				pipeline.Options{File: filepath.Join(dir, "t.yaml"), ReadFile: os.ReadFile})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			e, err := Doctor(ctx, p, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			worst, text := Fine, ""
			for _, f := range e.Findings {
				if f.Check != "schemas" {
					continue
				}
				text += f.Message + "\n"
				if f.Severity == Failure || f.Severity == Warning && worst == Fine {
					worst = f.Severity
				}
				if f.Severity != Fine && f.Remedy == "" {
					t.Errorf("no remedy: %s", f.Message)
				}
			}
			if worst != c.severity || !strings.Contains(text, c.words) {
				t.Errorf("%s, want %s with %q:\n%s", worst, c.severity, c.words, text)
			}
			if code := daemon.ExitCode(e.Err()); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if i := slices.IndexFunc(r.Requests(), func(q string) bool { return strings.HasPrefix(q, "POST") && strings.HasSuffix(q, "/versions") }); i >= 0 {
				t.Errorf("something was registered: %v", r.Requests())
			}
		})
	}
}
