package daemon

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

// templates are the files that init writes. They are pipelines as any other: they pass validate --strict and their own tests.
//
//go:embed templates/*.yaml
var templates embed.FS

// Templates are the names that Template knows, the simplest first.
func Templates() []string { return []string{"dedup", "totals", "windows", "enrich"} }

// Template returns a commented pipeline file.
func Template(name string) (string, error) {
	if !slices.Contains(Templates(), name) {
		return "", Usagef("template %q is not one of %s", name, strings.Join(Templates(), ", "))
	}
	b, err := templates.ReadFile("templates/" + name + ".yaml")
	if err != nil {
		return "", fmt.Errorf("template %s: %w", name, err)
	}
	return string(b), nil
}
