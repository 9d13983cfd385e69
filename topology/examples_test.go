package topology_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sources parses the package's files of which want is true.
func sources(t *testing.T, want func(name string) bool) (files []*ast.File) {
	t.Helper()
	set := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !want(name) {
			continue
		}
		f, err := parser.ParseFile(set, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// operatorsOf are the exported functions that take or make a stream or a table: the operators, and what stands around them.
func operatorsOf(files []*ast.File) map[string]bool {
	found := map[string]bool{}
	for _, f := range files {
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !fn.Name.IsExported() {
				continue
			}
			ast.Inspect(fn.Type, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && slices.Contains([]string{"Stream", "KTable", "GlobalKTable", "Grouped", "WindowedStream"}, id.Name) {
					found[fn.Name.Name] = true
				}
				return true
			})
		}
	}
	return found
}

// TestEveryOperatorHasAnExample: each operator has an example with an output, which go test runs.
func TestEveryOperatorHasAnExample(t *testing.T) {
	isTest := func(name string) bool { return strings.HasSuffix(name, "_test.go") }
	operators := operatorsOf(sources(t, func(name string) bool { return !isTest(name) }))
	if len(operators) < 30 {
		t.Fatalf("only %d operators: %v", len(operators), slices.Sorted(maps.Keys(operators)))
	}
	runs := map[string]bool{}
	for _, e := range doc.Examples(sources(t, isTest)...) {
		name, _, _ := strings.Cut(e.Name, "_")
		runs[name] = runs[name] || e.Output != "" || e.EmptyOutput
	}
	for _, name := range slices.Sorted(maps.Keys(operators)) {
		if !runs[name] {
			t.Errorf("%s has no example that is run: Example%s with an // Output", name, name)
		}
	}
}
