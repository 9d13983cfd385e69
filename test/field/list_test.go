package field

import (
	"fmt"
	"go/ast"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/streamd/streamd/internal/archtest"
)

// faults are the numbers of all faults, by their chapters.
const faults = "A3 A5 A6 A7 A8 A9 A10 B1 B2 B3 B4 B6 B7 B9 B10 B11 B12 C1 C2 C3 C4 C5 C6 C7 C8 C9 C11 C12 C13 C14 " +
	"D6 D7 D9 D10 D11 D12 E2 E3 E4 E5 E6 E7 E8 E9 F1 F2 F3 F4 F5 F6 F7 G8 G9 H6 H7 H9 H10 H11 H12 H13 H14 I5 I6 I7 " +
	"J3 J4 J5 J6 J7 J8 J9 J10 J11 K1 K2 K3 K4 K5 K6 L1 L3 L7 L8 L9 M1 M2 M3 M4 M5 M6 M7 M8 M9 M10 M11 M12"

const listPath = "test/FIELD.md"

// sources is what the list is held against.
type sources struct {
	tests map[string]bool   // "dir.TestName"
	files map[string]string // every text file
	named map[string][]string
	text  map[string]string // of all Go files of a directory
}

var (
	mention  = regexp.MustCompile(`\bFIELD ([A-Z][0-9]+(?:, [A-Z][0-9]+)*)`)
	row      = regexp.MustCompile(`^\| ([A-Z][0-9]+) \|`)
	testRef  = regexp.MustCompile("`([a-z][a-z0-9/]*)\\.((?:Test|Fuzz|Example)[A-Za-z0-9_]*)`")
	factRef  = regexp.MustCompile("`([a-z][a-z0-9/]*) (\"[^\"`]+\")`")
	fileRef  = regexp.MustCompile("`([a-z][a-z0-9_/]*\\.go)`")
	sections = []string{"Held by a test", "Cannot apply", "Not built yet"}
)

func load(tree fs.FS) (*sources, error) {
	r, err := archtest.Load(tree)
	if err != nil {
		return nil, err
	}
	s := &sources{tests: map[string]bool{}, files: map[string]string{}, named: map[string][]string{}, text: map[string]string{}}
	for _, f := range r.Text {
		s.files[f.Path] = string(f.Data)
	}
	for _, f := range r.Go {
		text := s.files[f.Path]
		s.text[f.Dir] += text
		if !f.Test {
			continue
		}
		for _, d := range f.Syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				s.tests[f.Dir+"."+fn.Name.Name] = true
			}
		}
		for _, m := range mention.FindAllStringSubmatch(text, -1) {
			for _, n := range strings.Split(m[1], ", ") {
				s.named[n] = append(s.named[n], f.Path)
			}
		}
	}
	return s, nil
}

// check returns what is wrong with the list.
func (s *sources) check() (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	known := strings.Fields(faults)
	rows := map[string]string{} // all rows of a fault
	section := ""
	for i, line := range strings.Split(s.files[listPath], "\n") {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = title
		}
		m := row.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		where := fmt.Sprintf("%s:%d: %s", listPath, i+1, m[1])
		rows[m[1]] += line + "\n"
		if !slices.Contains(known, m[1]) {
			bad("%s: there is no such fault", where)
		}
		if !slices.Contains(sections, section) {
			bad("%s: stands in no section", where)
		}
		tests, facts, files := testRef.FindAllStringSubmatch(line, -1), factRef.FindAllStringSubmatch(line, -1), fileRef.FindAllStringSubmatch(line, -1)
		for _, r := range tests {
			if !s.tests[r[1]+"."+r[2]] {
				bad("%s: there is no test %s in %s", where, r[2], r[1])
			}
		}
		for _, r := range facts {
			if !strings.Contains(s.text[r[1]], r[2]) {
				bad("%s: no %s in %s", where, r[2], r[1])
			}
		}
		for _, r := range files {
			if s.files[r[1]] == "" {
				bad("%s: there is no file %s", where, r[1])
			}
		}
		switch {
		case section == sections[0] && len(tests)+len(facts) == 0:
			bad("%s: names no test", where)
		case section == sections[1] && len(files) == 0:
			bad("%s: names no file that shows it", where)
		case section == sections[2] && !strings.Contains(line, "to be held by"):
			bad("%s: does not say what it is to be held by", where)
		}
	}
	for _, n := range known {
		if rows[n] == "" {
			bad("%s: %s is missing", listPath, n)
		}
	}
	for n, paths := range s.named {
		for _, p := range paths {
			switch {
			case !slices.Contains(known, n):
				bad("%s: names %s, which is no fault", p, n)
			case !strings.Contains(rows[n], "`"+path.Dir(p)+"."):
				bad("%s: names %s, but the list does not name a test of %s for it", p, n, path.Dir(p))
			}
		}
	}
	slices.Sort(problems)
	return problems
}

// TestListIsHeldByTests: no fault is forgotten, and what is said to hold it exists.
func TestListIsHeldByTests(t *testing.T) {
	s, err := load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.tests) < 100 {
		t.Fatalf("found %d tests: this is not the repository", len(s.tests))
	}
	for _, p := range s.check() {
		t.Error(p)
	}
}

// TestListCanFail: each mistake is found.
func TestListCanFail(t *testing.T) {
	whole := "# x\n## Held by a test\n"
	for _, n := range strings.Fields(faults) {
		whole += "| " + n + " | x | `p.TestGood` | y |\n"
	}
	good := "package p\n\nimport \"testing\"\n\n// FIE" + "LD A3: is held.\nfunc TestGood(t *testing.T) {}\n"
	for name, c := range map[string]struct{ list, code, want string }{
		"good":             {whole, good, ""},
		"missing":          {strings.Replace(whole, "| M12 |", "| M |", 1), good, "M12 is missing"},
		"unknown":          {whole + "| Z9 | x | `p.TestGood` |\n", good, "Z9: there is no such fault"},
		"test is gone":     {strings.Replace(whole, "p.TestGood", "p.TestGone", 1), good, "there is no test TestGone in p"},
		"other directory":  {strings.Replace(whole, "p.TestGood", "q.TestGood", 1), good, "there is no test TestGood in q"},
		"no test":          {strings.Replace(whole, "`p.TestGood`", "hope", 1), good, "names no test"},
		"fact is gone":     {strings.Replace(whole, "`p.TestGood`", "`p \"water is wet\"`", 1), good, `no "water is wet" in p`},
		"no evidence":      {whole + "## Cannot apply\n| A3 | x | because |\n", good, "names no file"},
		"file is gone":     {whole + "## Cannot apply\n| A3 | x | `p/b.go` |\n", good, "there is no file p/b.go"},
		"nobody":           {whole + "## Not built yet\n| A3 | x | some day |\n", good, "what it is to be held by"},
		"comment of none":  {whole, strings.Replace(good, "A3", "A4", 1), "names A4, which is no fault"},
		"comment not here": {strings.Replace(whole, "| A3 | x | `p.TestGood`", "| A3 | x | `q.TestGood`", 1), good, "does not name a test of p"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := load(fstest.MapFS{
				"go.mod": {Data: []byte("module example.test/x\n")}, listPath: {Data: []byte(c.list)}, "p/a_test.go": {Data: []byte(c.code)},
			})
			if err != nil {
				t.Fatal(err)
			}
			all := strings.Join(s.check(), "\n")
			if c.want == "" && all != "" || !strings.Contains(all, c.want) {
				t.Errorf("found %q, want %q", all, c.want)
			}
		})
	}
}

// FIELD H13, H14: the README says which duplicates there are, who removes which, and that a position is no
// ID for those that were sent twice.
func TestReadmeNamesTheKindsOfDuplicates(t *testing.T) {
	data, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(data)), " ")
	for _, want := range []string{
		"a producer's retry of one request", "a record that a consumer reads again after a crash", "a record that was sent twice",
		`An "idempotent producer" does not remove the last kind`, "a position (topic, partition, offset) as ID does not either",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("README.md does not say %q", want)
		}
	}
}
