package archtest

import (
	"go/ast"
	"path"
	"strconv"
)

// goroutineDirs may start goroutines and make channels in any file.
var goroutineDirs = []string{"internal/kafka", "internal/web", "internal/daemon", "internal/demo", "internal/embedded", "internal/verify", "internal/soak", "internal/worker", "internal/ids", "internal/ingress", "sink", "cmd", "test", "internal/brokertest", "examples"}

// runnerFiles may do so too: those of processor that drive tasks, while the rest of it steps
// synchronously, and the gate that lets a store close only when no worker is inside.
var runnerFiles = []string{
	"processor/app*.go", "processor/assign*.go", "processor/engine*.go", "processor/external*.go", "processor/runner*.go", "processor/worker*.go",
	"txlog/store.go",
}

// pureDirs take time as a parameter and have no random, so that a run can be stepped and replayed.
var pureDirs = []string{"record", "topology", "dedup", "txlog", "changelog"}

// pureFiles are the pure part of a package that is not pure as a whole.
var pureFiles = []string{"processor/task*.go"}

// seededDirs may use a seeded generator, but no clock.
var seededDirs = []string{"internal/simbroker"}

// clocks are the names of package time that read the machine's clock or wait for it.
var clocks = map[string]bool{
	"Now": true, "Since": true, "Until": true, "Sleep": true, "After": true, "AfterFunc": true,
	"Tick": true, "NewTicker": true, "NewTimer": true,
}

// matchesAny tells whether a file's path fits one of the patterns of path.Match.
func matchesAny(name string, patterns []string) bool {
	for _, p := range patterns {
		if ok, err := path.Match(p, name); ok && err == nil {
			return true
		}
	}
	return false
}

// checkConcurrency keeps go statements and channels where a runner lives: everything else is
// stepped by one goroutine and needs no lock to reason about.
func checkConcurrency(r *Repo) []Finding {
	var found []Finding
	for _, f := range r.Go {
		if f.Test || withinAny(f.Dir, goroutineDirs) || matchesAny(f.Path, runnerFiles) {
			continue
		}
		ast.Inspect(f.Syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				found = append(found, Finding{f.Path, r.line(n), "go statement outside of a runner"})
			case *ast.CallExpr:
				if isBuiltin(n, "make") && len(n.Args) > 0 {
					if _, ok := n.Args[0].(*ast.ChanType); ok {
						found = append(found, Finding{f.Path, r.line(n), "channel made outside of a runner"})
					}
				}
			}
			return true
		})
	}
	return found
}

// checkPure bans clocks and random from the packages that a seed must be able to replay.
func checkPure(r *Repo) []Finding {
	var found []Finding
	for _, f := range r.Go {
		pure := withinAny(f.Dir, pureDirs) || matchesAny(f.Path, pureFiles)
		if f.Test || !pure && !withinAny(f.Dir, seededDirs) {
			continue
		}
		timeName := ""
		for _, spec := range f.Syntax.Imports {
			switch p := importPath(spec); {
			case p == "time" && spec.Name != nil:
				timeName = spec.Name.Name
			case p == "time":
				timeName = "time"
			case pure && (p == "math/rand" || p == "math/rand/v2" || p == "crypto/rand"):
				found = append(found, Finding{f.Path, r.line(spec), "imports " + p + ": a seed could not replay it"})
			}
		}
		if timeName == "" {
			continue
		}
		ast.Inspect(f.Syntax, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || !clocks[sel.Sel.Name] {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == timeName {
				found = append(found, Finding{f.Path, r.line(n), "time." + sel.Sel.Name + ": take the time as a parameter"})
			}
			return true
		})
	}
	return found
}

// checkPanics allows panic in internal/invariant, tests and doubles (which act a crash by it), and
// where a recovered one that is not for here goes on. It allows no init function at all.
func checkPanics(r *Repo) []Finding {
	var found []Finding
	for _, f := range r.Go {
		if f.Test || within(f.Dir, "internal/invariant") || within(f.Dir, "test") || withinAny(f.Dir, testOnly) {
			continue
		}
		for _, d := range f.Syntax.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if ok && fn.Recv == nil && fn.Name.Name == "init" {
				found = append(found, Finding{f.Path, r.line(fn), "init function: start nothing at import"})
			}
			if ok && callsTo(fn, "recover") != nil {
				continue
			}
			for _, call := range callsTo(d, "panic") {
				found = append(found, Finding{f.Path, r.line(call), "panic: return an error, or use internal/invariant"})
			}
		}
	}
	return found
}

// callsTo returns the calls of a builtin function below a node.
func callsTo(n ast.Node, builtin string) (calls []*ast.CallExpr) {
	ast.Inspect(n, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && isBuiltin(call, builtin) {
			calls = append(calls, call)
		}
		return true
	})
	return calls
}

func isBuiltin(call *ast.CallExpr, name string) bool {
	id, ok := call.Fun.(*ast.Ident)
	return ok && id.Name == name
}

// checkDocs wants doc.go with the package's comment in every package, and a comment on every
// exported name of every package that can be imported.
func checkDocs(r *Repo) []Finding {
	var found []Finding
	documented := map[string]bool{}
	for _, f := range r.Go {
		if path.Base(f.Path) == "doc.go" && f.Syntax.Doc != nil {
			documented[f.Dir] = true
		}
	}
	reported := map[string]bool{}
	for _, f := range r.Go {
		if !documented[f.Dir] && !reported[f.Dir] {
			reported[f.Dir] = true
			found = append(found, Finding{f.Dir, 0, "package without a doc.go that says what it is for"})
		}
		if f.Test || f.Syntax.Name.Name == "main" {
			continue
		}
		for _, d := range f.Syntax.Decls {
			for _, name := range undocumented(d) {
				found = append(found, Finding{f.Path, r.line(name), name.Name + " is exported and has no doc comment"})
			}
		}
	}
	return found
}

// undocumented returns the exported names of a declaration that no comment speaks of. One comment
// over a group of constants or variables speaks of them all.
func undocumented(d ast.Decl) []*ast.Ident {
	var names []*ast.Ident
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Doc == nil && d.Name.IsExported() && receiverExported(d) {
			names = append(names, d.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
					names = append(names, s.Name)
				}
			case *ast.ValueSpec:
				if d.Doc != nil || s.Doc != nil || s.Comment != nil {
					continue
				}
				for _, n := range s.Names {
					if n.IsExported() {
						names = append(names, n)
					}
				}
			}
		}
	}
	return names
}

// receiverExported tells whether a reader of the package's documentation can see the function.
func receiverExported(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr: // one type parameter
			t = x.X
		case *ast.IndexListExpr: // several
			t = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}

// maxLines bounds a Go file: above it there are two concepts in it.
const maxLines = 800

// checkSize holds maxLines for every Go file but generated ones.
func checkSize(r *Repo) []Finding {
	var found []Finding
	for _, f := range r.Go {
		if f.Lines > maxLines && !ast.IsGenerated(f.Syntax) {
			found = append(found, Finding{f.Path, 0, strconv.Itoa(f.Lines) + " lines: at most " + strconv.Itoa(maxLines)})
		}
	}
	return found
}
