package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const repository = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(repository, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// documents reads every YAML document of a text.
func documents(t *testing.T, name, text string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var doc map[string]any
		err := d.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if doc != nil {
			out = append(out, doc)
		}
	}
}

// at follows a path of keys and indices.
func at(t *testing.T, v any, path ...any) any {
	t.Helper()
	for i, p := range path {
		switch p := p.(type) {
		case string:
			m, ok := v.(map[string]any)
			if v, ok = m[p], ok && m[p] != nil; !ok {
				t.Fatalf("nothing at %v", path[:i+1])
			}
		case int:
			l, ok := v.([]any)
			if !ok || p >= len(l) {
				t.Fatalf("nothing at %v", path[:i+1])
			}
			v = l[p]
		}
	}
	return v
}

// flags returns the names of all flags that the commands define: the first text among the arguments of a call like
// f.StringVar(&x, "name", ...).
func flags(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(repository, "cmd/streamd/*.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, path := range files {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) < 2 {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !strings.HasSuffix(strings.TrimSuffix(sel.Sel.Name, "P"), "Var") {
				return true
			}
			if lit, ok := call.Args[1].(*ast.BasicLit); ok && lit.Kind == token.STRING {
				name, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				names[name] = true
			}
			return true
		})
	}
	if !names["data-dir"] || !names["http"] || !names["check"] {
		t.Fatalf("flags found: %v", names)
	}
	return names
}

var (
	variable = regexp.MustCompile(`\bSTREAMD_([A-Z_]+)\b`)
	longFlag = regexp.MustCompile(`streamd[^\n]*?--([a-z][a-z-]+)`)
)

// A flag that does not exist stops the daemon at its start; a variable that does not exist does nothing, in silence.
func TestFlagsAndVariablesExist(t *testing.T) {
	known := flags(t)
	seen := 0
	err := filepath.WalkDir(filepath.Join(repository, "deploy"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range variable.FindAllStringSubmatch(string(text), -1) {
			seen++
			if name := strings.ToLower(strings.ReplaceAll(m[1], "_", "-")); !known[name] {
				t.Errorf("%s: STREAMD_%s belongs to no flag", path, m[1])
			}
		}
		for _, m := range longFlag.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(m[0], "docker") && !strings.Contains(m[0], "enable") && !known[m[1]] {
				t.Errorf("%s: there is no flag --%s (%q)", path, m[1], m[0])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 10 {
		t.Errorf("%d variables were looked at", seen)
	}
}

// Every YAML and JSON file can be read, those of the Helm chart's templates apart.
func TestEveryFileCanBeRead(t *testing.T) {
	seen := 0
	err := filepath.WalkDir(filepath.Join(repository, "deploy"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(filepath.ToSlash(path), "/templates/") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		switch filepath.Ext(path) {
		case ".yaml":
			documents(t, path, string(text))
		case ".json":
			if !json.Valid(text) {
				t.Errorf("%s is no JSON", path)
			}
		case ".sh":
			if !bytes.HasPrefix(text, []byte("#!/bin/sh\n")) {
				t.Errorf("%s does not say what runs it", path)
			}
		default:
			return nil
		}
		seen++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	documents(t, ".goreleaser.yaml", read(t, ".goreleaser.yaml"))
	if seen < 20 {
		t.Errorf("%d files were read", seen)
	}
}

// What compose mounts into its containers is there.
func TestComposeMountsWhatIsThere(t *testing.T) {
	compose := documents(t, "compose", read(t, "deploy/compose.yaml"))[0]
	services := at(t, compose, "services").(map[string]any)
	for _, name := range []string{"kafka", "streamd", "prometheus", "grafana"} {
		at(t, services, name, "image")
	}
	for name, s := range services {
		mounts, _ := s.(map[string]any)["volumes"].([]any)
		for _, m := range mounts {
			from, _, _ := strings.Cut(m.(string), ":")
			if !strings.HasPrefix(from, "./") {
				continue
			}
			if _, err := os.Stat(filepath.Join(repository, "deploy", from)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	// The provisioned folder is where the dashboard is mounted, and Prometheus finds its rules.
	provider := documents(t, "provider", read(t, "deploy/grafana/provisioning/dashboards/streamd.yaml"))[0]
	folder := at(t, provider, "providers", 0, "options", "path").(string)
	if !strings.Contains(read(t, "deploy/compose.yaml"), "./grafana/streamd.json:"+folder+"/") {
		t.Errorf("no dashboard is mounted into %s", folder)
	}
	scrape := documents(t, "prometheus", read(t, "deploy/compose/prometheus.yaml"))[0]
	if rules := at(t, scrape, "rule_files", 0).(string); !strings.Contains(read(t, "deploy/compose.yaml"), ":"+rules+":ro") {
		t.Errorf("no rules are mounted as %s", rules)
	}
}

// What the package installs is in the repository, or is made by `make dist`, and has a mode.
func TestPackageContents(t *testing.T) {
	nfpm := documents(t, "nfpm", read(t, "deploy/package/nfpm.yaml"))[0]
	var sources []string
	for _, c := range at(t, nfpm, "contents").([]any) {
		c := c.(map[string]any)
		if src, ok := c["src"].(string); ok {
			sources = append(sources, src)
		}
		at(t, c, "file_info", "mode") // else it is the mode of whoever builds
	}
	for _, s := range at(t, nfpm, "scripts").(map[string]any) {
		sources = append(sources, s.(string))
	}
	for _, src := range sources {
		if strings.HasPrefix(src, "${DIST}/") {
			continue
		}
		if _, err := os.Stat(filepath.Join(repository, src)); err != nil {
			t.Error(err)
		}
	}
}
