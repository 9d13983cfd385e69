package main

import (
	"strings"
	"testing"

	"github.com/streamd/streamd/internal/daemon"
)

// The pipelines that a reader starts from have no mistake and no warning.
func TestThePipelinesOfTheExamplesAreClean(t *testing.T) {
	files, err := daemon.Find([]string{"../../examples/...", "../../internal/demo"})
	if err != nil {
		t.Fatal(err)
	}
	report, err := daemon.Validate(files, daemon.LoadConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 2 || report.Err(true) != nil {
		var text strings.Builder
		_ = report.Write(&text, "text")
		t.Errorf("%v:\n%s", files, &text)
	}
}
