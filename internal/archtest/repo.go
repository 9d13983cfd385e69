package archtest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"sort"
	"strconv"
	"strings"
)

// Repo is a source tree as the rules see it.
type Repo struct {
	// Module is the module path from go.mod, the prefix of the tree's own imports.
	Module string
	// Go holds every parsed Go file in path order.
	Go []*GoFile
	// Text holds every text file, the Go files included, in path order.
	Text []TextFile

	fset *token.FileSet
	bad  []Finding // files that do not parse
}

// GoFile is one Go file.
type GoFile struct {
	Path   string // from the root, with slashes
	Dir    string // the package's folder from the root, "." for the root
	Test   bool   // its name ends in _test.go
	Lines  int
	Syntax *ast.File
}

// TextFile is one file of text.
type TextFile struct {
	Path string
	Data []byte
}

// Finding is one place where a rule is broken.
type Finding struct {
	Path string
	Line int // 0: the file or folder as a whole
	What string
}

// String returns "path:line: what".
func (f Finding) String() string {
	if f.Line == 0 {
		return fmt.Sprintf("%s: %s", f.Path, f.What)
	}
	return fmt.Sprintf("%s:%d: %s", f.Path, f.Line, f.What)
}

// skippedDirs are no part of the sources: what git, the build and a running streamd leave behind.
// testdata may hold broken Go on purpose.
var skippedDirs = map[string]bool{
	".git": true, ".streamd": true, "streamd-demo": true, "build": true, "testdata": true, "target": true,
}

// Load reads the tree. A Go file that does not parse becomes a finding of every rule's run, so that
// a broken file cannot hide from the rules.
func Load(tree fs.FS) (*Repo, error) {
	r := &Repo{fset: token.NewFileSet()}
	mod, err := fs.ReadFile(tree, "go.mod")
	if err != nil {
		return nil, fmt.Errorf("archtest: reading the module path: %w", err)
	}
	for line := range strings.Lines(string(mod)) {
		if name, ok := strings.CutPrefix(line, "module "); ok {
			r.Module = strings.TrimSpace(name)
		}
	}
	if r.Module == "" {
		return nil, fmt.Errorf("archtest: go.mod names no module")
	}
	err = fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && skippedDirs[d.Name()]:
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		data, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		r.add(name, data)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("archtest: reading the tree: %w", err)
	}
	sort.Slice(r.Go, func(i, j int) bool { return r.Go[i].Path < r.Go[j].Path })
	sort.Slice(r.Text, func(i, j int) bool { return r.Text[i].Path < r.Text[j].Path })
	return r, nil
}

func (r *Repo) add(name string, data []byte) {
	// A NUL byte among the first ones is how git, too, tells binary files.
	if bytes.IndexByte(data[:min(len(data), 8000)], 0) >= 0 {
		return
	}
	r.Text = append(r.Text, TextFile{Path: name, Data: data})
	if path.Ext(name) != ".go" {
		return
	}
	syntax, err := parser.ParseFile(r.fset, name, data, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		r.bad = append(r.bad, Finding{Path: name, What: "does not parse: " + err.Error()})
		return
	}
	r.Go = append(r.Go, &GoFile{
		Path:   name,
		Dir:    path.Dir(name),
		Test:   strings.HasSuffix(name, "_test.go"),
		Lines:  bytes.Count(data, []byte("\n")),
		Syntax: syntax,
	})
}

func (r *Repo) line(n ast.Node) int { return r.fset.Position(n.Pos()).Line }

// own returns the folder that an import path means, if it is one of this module.
func (r *Repo) own(importPath string) (dir string, ok bool) {
	if importPath == r.Module {
		return ".", true
	}
	return strings.CutPrefix(importPath, r.Module+"/")
}

// importPath returns the path of an import without its quotes.
func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value
	}
	return p
}

// within tells whether dir is root or lies below it.
func within(dir, root string) bool {
	return dir == root || strings.HasPrefix(dir, root+"/")
}

// withinAny tells whether dir is one of roots or lies below one.
func withinAny(dir string, roots []string) bool {
	for _, root := range roots {
		if within(dir, root) {
			return true
		}
	}
	return false
}
