//go:build unix

package fault

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// A point that is listed and stands nowhere would never be hit; one that stands somewhere and is not
// listed ends the process. The engine's own name for such a place is point.
func TestNamesStandInTheSource(t *testing.T) {
	call := regexp.MustCompile(`(?:fault\.Point|\.point)\("([a-z._]+)"\)`)
	found := map[string]int{}
	for _, dir := range []string{"processor", "txlog", "dedup", "changelog", "internal/kafka", "internal/ingress", "internal/operate"} {
		files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(dir), "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		for _, f := range files {
			src, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range call.FindAllStringSubmatch(string(src), -1) {
				found[m[1]]++
			}
		}
	}
	for _, name := range all() {
		if found[name] == 0 {
			t.Errorf("%q is listed and stands nowhere", name)
		}
		delete(found, name)
	}
	for name := range found {
		t.Errorf("%q stands in the source and is not listed", name)
	}
}

func TestTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table")
	a, err := OpenTable(path)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := OpenTable(path) // as another process would
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	*a.row("produce").hits = 7
	a.Arm("produce", 3, Stop)
	if r := b.row("produce"); b.Hits("produce") != 7 || *r.at != 10 || Action(*r.action) != Stop || b.Hits("flush.done") != 0 {
		t.Errorf("the other mapping has %d hits, armed at %d", b.Hits("produce"), *r.at)
	}
	b.Disarm("produce")
	if *a.row("produce").at != 0 {
		t.Error("still armed")
	}
	if err := os.WriteFile(path+"2", []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenTable(path + "2"); err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("a file that is no table: %v", err)
	}
}

// In the program's own terms: built with the tag it dies at the hit that was asked for, with -9; built
// without it nothing happens, whatever the environment says.
func TestPointKills(t *testing.T) {
	if os.Getenv(Variable) != "" { // the child
		for range 5 {
			Point("produce")
		}
		return
	}
	for _, c := range []struct {
		tags string
		hits uint64
	}{{"faultpoints", 3}, {"", 0}} {
		dir := t.TempDir()
		table, err := OpenTable(filepath.Join(dir, "table"))
		if err != nil {
			t.Fatal(err)
		}
		defer table.Close()
		table.Arm("produce", 3, Kill)
		bin := filepath.Join(dir, "fault.test")
		if out, err := exec.CommandContext(t.Context(), "go", "test", "-tags", c.tags, "-c", "-o", bin, ".").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		cmd := exec.CommandContext(t.Context(), bin, "-test.run=^TestPointKills$")
		cmd.Env = append(os.Environ(), Variable+"="+filepath.Join(dir, "table"))
		_ = cmd.Run()
		status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if killed := ok && status.Signaled() && status.Signal() == syscall.SIGKILL; killed != (c.hits > 0) {
			t.Errorf("tags %q: ended with %v", c.tags, cmd.ProcessState)
		}
		if table.Hits("produce") != c.hits || table.Fired("produce") != c.hits/3 {
			t.Errorf("tags %q: %d hits, fired %d times", c.tags, table.Hits("produce"), table.Fired("produce"))
		}
	}
}
