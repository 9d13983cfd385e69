package planted

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Change replaces one piece of a source file. The piece must stand there exactly once: a planted bug
// that no longer fits its place fails, it is not passed over.
type Change struct {
	File string // below the module's root, with slashes
	Old  string
	New  string
}

// Bug is one mistake.
type Bug struct {
	Layer   string // L1, L2, ...: whose sensitivity it measures
	Name    string
	Changes []Change // several of one file are made in order
}

// Search is how a bug is looked for.
type Search struct {
	Package string        // whose tests are compiled, for example ./test/sim
	Tags    string        // build tags of that package, comma-separated; may be empty
	Build   []string      // further arguments of go test -c
	Args    []string      // of the test binary; it must stop at the first red seed and print Red
	Limit   int           // within how many seeds it must be found
	Timeout time.Duration // of the whole search; default 3 minutes
}

// Red is what a search prints at the first red seed: how many seeds it took, that one included.
func Red(seeds int) string { return fmt.Sprintf("red after %d seeds", seeds) }

var seedsToRed = regexp.MustCompile(`red after (\d+) seeds`)

// Check fails if a bug does not fit its place in the source any more.
func Check(t *testing.T, bugs []Bug) {
	t.Helper()
	root := ModuleRoot(t)
	for _, b := range bugs {
		if _, err := b.files(root); err != nil {
			t.Errorf("%q: %v", b.Name, err)
		}
	}
}

// Find fails unless the search is red within its limit, and prints the line about it.
func Find(t *testing.T, b Bug, s Search) {
	t.Helper()
	if s.Timeout == 0 {
		s.Timeout = 3 * time.Minute
	}
	root := ModuleRoot(t)
	bin := compile(t, root, b, s)
	ctx, cancel := context.WithTimeout(t.Context(), s.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, s.Args...)
	cmd.Dir = filepath.Join(root, filepath.FromSlash(s.Package))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	found := "none"
	if m := seedsToRed.FindStringSubmatch(string(out)); m != nil && errors.As(err, &exit) {
		if n, _ := strconv.Atoi(m[1]); n <= s.Limit {
			found = m[1]
		}
	}
	Report(b, found, s.Limit, firstError(string(out)))
	if found == "none" {
		t.Errorf("%q is not found within %d seeds (%v):\n%s", b.Name, s.Limit, err, tail(string(out), 20))
	}
}

// Report prints the line about a bug: within how many seeds (or kills) of the limit it was found, "none" if it was
// not, and by which error. It goes to standard output, not to the test's log: it is shown without -v, and begins
// its line.
func Report(b Bug, found string, limit int, err string) {
	fmt.Printf("PLANTED layer=%s seeds=%s limit=%d bug=%q error=%q\n", b.Layer, found, limit, b.Name, err)
}

// compile builds the test binary with the bug in it.
func compile(t *testing.T, root string, b Bug, s Search) string {
	t.Helper()
	dir := t.TempDir()
	list, err := b.Overlay(root, dir)
	if err != nil {
		t.Fatalf("%q: %v", b.Name, err)
	}
	bin := filepath.Join(dir, "planted.test")
	args := append([]string{"test", "-vet=off", "-ldflags=-s -w", "-tags", s.Tags, "-overlay", list, "-c", "-o", bin}, s.Build...)
	cmd := exec.CommandContext(t.Context(), "go", append(args, s.Package)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%q: compile: %v\n%s", b.Name, err, out)
	}
	return bin
}

// Overlay writes the changed files of the module at root into dir, and the file that go build -overlay takes.
func (b Bug) Overlay(root, dir string) (list string, err error) {
	files, err := b.files(root)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for name, src := range files {
		changed := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(changed, []byte(src), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, filepath.FromSlash(name))] = changed
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	list = filepath.Join(dir, "overlay.json")
	return list, os.WriteFile(list, overlay, 0o600)
}

// files returns the changed files by name.
func (b Bug) files(root string) (map[string]string, error) {
	files := map[string]string{}
	for _, c := range b.Changes {
		src, ok := files[c.File]
		if !ok {
			raw, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(c.File)))
			if err != nil {
				return nil, err
			}
			src = string(raw)
		}
		if n := strings.Count(src, c.Old); n != 1 {
			return nil, fmt.Errorf("%s: its place is there %d times: the planted bug must follow the code\n%s", c.File, n, c.Old)
		}
		files[c.File] = strings.Replace(src, c.Old, c.New, 1)
	}
	return files, nil
}

// ModuleRoot is the folder of go.mod above the test's own.
func ModuleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	t.Fatalf("no go.mod above the test (%v)", err)
	return ""
}

// firstError is the first line of a red seed's report that says what was wrong.
func firstError(out string) string {
	lines := strings.Split(out, "\n")
	for i, l := range lines {
		if strings.Contains(l, "replay with") && i+1 < len(lines) {
			return strings.TrimSpace(lines[i+1])
		}
	}
	return ""
}

func tail(s string, n int) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
