package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamd/streamd/internal/daemon"
)

// The pipelines that deploy/ starts have no mistake and no warning.
func TestPipelinesAreClean(t *testing.T) {
	values := documents(t, "values", read(t, "deploy/helm/streamd/values.yaml"))[0]
	chart := filepath.Join(t.TempDir(), "chart.yaml")
	if err := os.WriteFile(chart, []byte(values["pipeline"].(string)), 0o600); err != nil {
		t.Fatal(err)
	}
	files := []string{chart}
	for _, f := range []string{"compose/pipeline.yaml", "kubernetes/base/pipeline.yaml", "kubernetes/overlays/example/pipeline.yaml", "package/example.yaml"} {
		files = append(files, filepath.Join(repository, "deploy", f))
	}
	report, err := daemon.Validate(files, daemon.LoadConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if report.Err(true) != nil {
		var text strings.Builder
		_ = report.Write(&text, "text")
		t.Error(text.String())
	}
}
