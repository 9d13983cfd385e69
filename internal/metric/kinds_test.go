package metric_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamd/streamd/internal/metric"
)

// counterKinds reads the constants of type CounterKind, so that a new one cannot be forgotten here.
func counterKinds(t *testing.T) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "../../topology/runtime.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == "CounterKind" {
			for _, x := range v.Values {
				if kind, err := strconv.Unquote(x.(*ast.BasicLit).Value); err == nil {
					kinds = append(kinds, kind)
				}
			}
		}
		return true
	})
	return kinds
}

// Every counter that an operator can move is shown somewhere.
func TestEveryCounterOfAnOperatorIsShown(t *testing.T) {
	kinds := counterKinds(t)
	if len(kinds) < 15 {
		t.Fatalf("found only %v", kinds)
	}
	for _, kind := range kinds {
		reg := prometheus.NewPedanticRegistry()
		s, err := metric.New(reg, "p")
		if err != nil {
			t.Fatal(err)
		}
		s.Source(func() metric.Snapshot {
			return metric.Snapshot{Operators: []metric.Operator{{Name: "x", Kind: "none", Counters: map[string]uint64{kind: 77}}}}
		})
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		shown := 0
		for _, f := range families {
			for _, m := range f.Metric {
				if m.GetCounter().GetValue() == 77 {
					shown++
				}
			}
		}
		if shown != 1 {
			t.Errorf("counter %q is shown by %d series, want 1", kind, shown)
		}
	}
}
