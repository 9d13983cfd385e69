package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link      = regexp.MustCompile(`\]\(([^)#:]+)\)`)
	namedFile = regexp.MustCompile("`?(deploy/[a-zA-Z0-9@._/-]*[a-zA-Z0-9])")
)

// Pages for those who install and operate name files that are there.
func TestPagesNameWhatIsThere(t *testing.T) {
	known := flags(t)
	for _, page := range []string{"install.md", "operations.md", "security.md", "comparison.md"} {
		text := read(t, "docs/"+page)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(repository, "docs", m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		for _, m := range namedFile.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(repository, m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		for _, m := range variable.FindAllStringSubmatch(text, -1) {
			if !known[strings.ToLower(strings.ReplaceAll(m[1], "_", "-"))] {
				t.Errorf("%s: STREAMD_%s belongs to no flag", page, m[1])
			}
		}
	}
}
