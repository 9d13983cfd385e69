package archtest

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestLicencesAreListed: docs/licenses.md names exactly the modules that the daemon and the library are linked with.
func TestLicencesAreListed(t *testing.T) {
	const format = `{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}`
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", format,
		"./cmd/streamd", "./processor", "./topology", "./pipeline")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	linked := strings.Fields(string(out))
	slices.Sort(linked)
	linked = slices.Compact(linked)
	text, err := os.ReadFile("../../docs/licenses.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, " | "); len(cells) == 2 && strings.Contains(cells[0], ".") {
			listed[strings.TrimPrefix(cells[0], "| ")] = true
		}
	}
	for _, m := range linked {
		if !listed[m] {
			t.Errorf("%s is linked in and its licence is not in docs/licenses.md", m)
		}
		delete(listed, m)
	}
	for m := range listed {
		t.Errorf("%s is in docs/licenses.md and not linked in", m)
	}
}
