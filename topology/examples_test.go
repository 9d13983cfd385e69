package topology_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamd/streamd/topology"
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

var (
	// streams are the types of which a function that takes or makes one is an operator.
	streams = []string{"Stream", "KTable", "GlobalKTable", "Grouped", "WindowedStream"}
	// parts are those of what an operator is given to work with: stores, timers, schedules.
	parts = []string{"KeyValueStore", "TimerStore", "StateStore", "ProcessSetting"}
)

// operatorsOf are the exported functions that take or make one of the types.
func operatorsOf(files []*ast.File, types []string) map[string]bool {
	found := map[string]bool{}
	for _, f := range files {
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !fn.Name.IsExported() {
				continue
			}
			ast.Inspect(fn.Type, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && slices.Contains(types, id.Name) {
					found[fn.Name.Name] = true
				}
				return true
			})
		}
	}
	return found
}

func isTest(name string) bool { return strings.HasSuffix(name, "_test.go") }

// functions are those of the package that take or make one of the types, in alphabetical order.
func functions(t *testing.T, types []string, atLeast int) []string {
	t.Helper()
	all := slices.Sorted(maps.Keys(operatorsOf(sources(t, func(name string) bool { return !isTest(name) }), types)))
	if len(all) < atLeast {
		t.Fatalf("only %d functions of %v: %v", len(all), types, all)
	}
	return all
}

func operators(t *testing.T) []string { return functions(t, streams, 30) }

// all are the operators and what they are given.
func all(t *testing.T) []string { return append(operators(t), functions(t, parts, 7)...) }

// TestEveryOperatorIsExplained: TestExplainOfEveryCombination has each operator.
func TestEveryOperatorIsExplained(t *testing.T) {
	shown := topology.ExplainedFunctions()
	for _, name := range operators(t) {
		if !shown[name] {
			t.Errorf("no row of the table has %s", name)
		}
	}
}

// TestEveryOperatorIsInTheDocument: docs/concepts/operators.md says of each operator and of what it is given what a pipeline file has for it.
func TestEveryOperatorIsInTheDocument(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "concepts", "operators.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for i, word := range strings.Split(cells[1], "`") {
				named[word] = named[word] || i%2 == 1
			}
		}
	}
	for _, name := range all(t) {
		if !named[name] {
			t.Errorf("%s stands in no row", name)
		}
	}
}

// TestEveryOperatorHasAnExample: each operator, and what it is given, has an example with an output, which go test runs.
func TestEveryOperatorHasAnExample(t *testing.T) {
	runs := map[string]bool{}
	for _, e := range doc.Examples(sources(t, isTest)...) {
		name, _, _ := strings.Cut(e.Name, "_")
		runs[name] = runs[name] || e.Output != "" || e.EmptyOutput
	}
	for _, name := range all(t) {
		if !runs[name] {
			t.Errorf("%s has no example that is run: Example%s with an // Output", name, name)
		}
	}
}
