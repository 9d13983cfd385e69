//go:build prometheus

package prometheus

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Every query of the Grafana dashboard is one for Prometheus' own parser: as a rule each, which promtool checks.
func TestQueriesOfTheDashboard(t *testing.T) {
	text, err := os.ReadFile("../../deploy/grafana/streamd.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels      []struct{ Targets []struct{ Expr string } }
		Annotations struct{ List []struct{ Expr string } }
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	var queries []string
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			queries = append(queries, q.Expr)
		}
	}
	for _, a := range d.Annotations.List {
		queries = append(queries, a.Expr)
	}
	if len(queries) < 50 {
		t.Fatalf("%d queries", len(queries))
	}
	rules := &strings.Builder{}
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for i, q := range queries {
		// As Grafana puts in its variables.
		q = strings.NewReplacer("$__rate_interval", "1m", "$pipeline", ".*", "$operator", ".*", "$instance", ".*").Replace(q)
		fmt.Fprintf(rules, "  - {record: \"query_%d\", expr: %q}\n", i, q)
	}
	path := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err := os.WriteFile(path, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), program(t, "promtool"), "check", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
