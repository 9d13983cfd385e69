package exampletest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// linesOf counts the lines of code of a program: all behind its imports but comments and blank lines.
func linesOf(t *testing.T, file string) (n int) {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, code, found := strings.Cut(string(src), "\n)\n")
	if !found {
		t.Fatalf("%s has no imports", file)
	}
	for line := range strings.Lines(code) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			n++
		}
	}
	return n
}

// TestEachExampleIsShorter: the examples are shorter than their originals, and docs/comparison.md has their lengths.
func TestEachExampleIsShorter(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "comparison.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name, original := range map[string]int{
		"wordcount": 30, "pageviews": 49, "anomalies": 31, "toparticles": 105, "sum": 32, "eventdedup": 89, "sessions": 41, "clicks": 22,
	} {
		n := linesOf(t, filepath.Join("..", "..", "examples", name, "main.go"))
		if n >= original {
			t.Errorf("%s has %d lines, the original %d", name, n, original)
		}
		if row := fmt.Sprintf("| %s | %d | %d |", name, n, original); !strings.Contains(string(page), row) {
			t.Errorf("docs/comparison.md has no row %q", row)
		}
	}
}
