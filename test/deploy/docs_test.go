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
	linkInto  = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`) // also to a part of a page
	namedFile = regexp.MustCompile("`?(deploy/[a-zA-Z0-9@._/-]*[a-zA-Z0-9])")
)

// Each concept has a page that the index names, and the pages name what is there.
func TestEveryConceptIsInTheIndex(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(repository, "docs", "concepts", "*.md"))
	if err != nil || len(pages) < 10 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	listed := map[string]bool{}
	for _, m := range link.FindAllStringSubmatch(read(t, "docs/concepts/README.md"), -1) {
		listed[m[1]] = true
	}
	links := 0
	for _, page := range pages {
		name := filepath.Base(page)
		if name != "README.md" && !listed[name] {
			t.Errorf("docs/concepts/README.md does not name %s", name)
		}
		for _, m := range linkInto.FindAllStringSubmatch(read(t, "docs/concepts/"+name), -1) {
			links++
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if links < 40 {
		t.Errorf("only %d links were found", links)
	}
}

// Pages for those who install and operate name files that are there.
func TestPagesNameWhatIsThere(t *testing.T) {
	known := flags(t)
	links, files, variables := 0, 0, 0
	for _, page := range []string{"install.md", "operations.md", "security.md", "comparison.md", "migration.md"} {
		text := read(t, "docs/"+page)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			links++
			if _, err := os.Stat(filepath.Join(repository, "docs", m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		for _, m := range namedFile.FindAllStringSubmatch(text, -1) {
			files++
			if _, err := os.Stat(filepath.Join(repository, m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		for _, m := range variable.FindAllStringSubmatch(text, -1) {
			variables++
			if !known[strings.ToLower(strings.ReplaceAll(m[1], "_", "-"))] {
				t.Errorf("%s: STREAMD_%s belongs to no flag", page, m[1])
			}
		}
	}
	if links < 5 || files < 5 || variables < 1 {
		t.Errorf("only %d links, %d files and %d variables were found", links, files, variables)
	}
}
