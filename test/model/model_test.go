//go:build models

package model

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// check is one variant of a model.
type check struct {
	name    string
	file    string
	defines map[string]int
	safe    bool
}

func checks() []check {
	var all []check
	for n := range 8 {
		stable, target, fence := n>>2&1, n>>1&1, n&1
		all = append(all, check{
			fmt.Sprintf("restore: RequireStable %d, high watermark %d, generation %d", stable, target, fence),
			"restore.pml",
			map[string]int{"STABLE": stable, "TGT": target, "FENCE": fence},
			n == 7,
		})
	}
	all = append(all,
		check{"EndTxn: V1, repeated with the same epoch", "endtxn.pml", map[string]int{"MODE": 0}, false},
		check{"EndTxn: V1, a new epoch after a doubt", "endtxn.pml", map[string]int{"MODE": 1}, true},
		check{"EndTxn: V2", "endtxn.pml", map[string]int{"MODE": 2}, true},
		check{"late requests: the same epoch", "late.pml", map[string]int{"REINIT": 0}, false},
		check{"late requests: a new epoch after a doubt", "late.pml", map[string]int{"REINIT": 1}, true},
	)
	for bug, what := range []string{
		"as designed", "applied before the commit", "applied on an unknown outcome", "target written as the position",
		"overlay kept after an abort", "no truth read after an unknown outcome",
	} {
		all = append(all, check{"local store: " + what, "local.pml", map[string]int{"BUG": bug}, bug == 0})
	}
	for _, v := range []struct {
		what      string
		gen, drop int
		safe      bool
	}{
		{"the generation of the records, dropped with a new one", 1, 1, true},
		{"the generation of the records, kept", 1, 0, true},
		// Either of the two is enough: what a member commits is never older than what it has heard.
		{"the newest generation, dropped with a new one", 0, 1, true},
		{"the newest generation, kept", 0, 0, false},
		{"no generation", 2, 1, false},
	} {
		all = append(all, check{"fence: " + v.what, "fence.pml", map[string]int{"GEN": v.gen, "DROP": v.drop}, v.safe})
	}
	for bug, what := range []string{
		"as designed", "no fence", "the progress in a second transaction", "the position from the group's offsets",
		"written again after a lost answer", "next offset read before the fence", "a lost answer taken for success",
	} {
		all = append(all, check{"claim of a database sink: " + what, "claim.pml", map[string]int{"BUG": bug}, bug == 0})
	}
	return all
}

// tool finds a program or fails with what to do.
func tool(t *testing.T, name, remedy string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is needed to check the models: %s", name, remedy)
	}
	return path
}

func TestModels(t *testing.T) {
	spin := tool(t, "spin", "install it with `apt-get install spin` (Debian, Ubuntu) or `brew install spin`")
	cc := tool(t, "cc", "install a C compiler, for example with `apt-get install gcc libc6-dev`")
	for _, c := range checks() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			errors, states, out := verify(t, spin, cc, c)
			switch {
			case c.safe && errors > 0:
				t.Fatalf("the model is broken:\n%s", out)
			case !c.safe && errors == 0:
				t.Fatalf("the broken variant passes: the model cannot see this fault\n%s", out)
			}
			t.Logf("%s states, %d errors", states, errors)
		})
	}
}

var (
	errorCount = regexp.MustCompile(`errors: (\d+)`)
	stateCount = regexp.MustCompile(`(\d+) states, stored`)
)

// verify searches all states of one variant.
func verify(t *testing.T, spin, cc string, c check) (errors int, states, out string) {
	t.Helper()
	src, err := os.ReadFile(c.file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	head := ""
	for k, v := range c.defines {
		head += fmt.Sprintf("#define %s %d\n", k, v)
	}
	if err := os.WriteFile(filepath.Join(dir, "m.pml"), append([]byte(head), src...), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	run := func(name string, args ...string) string {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = dir
		b, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, b)
		}
		return string(b)
	}
	run(spin, "-a", "m.pml")
	// SAFETY: assertions and deadlocks only. NOREDUCE off: partial order reduction keeps both.
	run(cc, "-O1", "-DSAFETY", "-DNOCLAIM", "-o", "pan", "pan.c")
	// -E: processes that serve for ever end in no valid end state, which is no fault. -m: depth.
	out = run(filepath.Join(dir, "pan"), "-E", "-m200000")
	m := errorCount.FindStringSubmatch(out)
	if m == nil || strings.Contains(out, "max search depth too small") {
		t.Fatalf("the search is not complete:\n%s", out)
	}
	if _, err := fmt.Sscan(m[1], &errors); err != nil {
		t.Fatal(err)
	}
	if m := stateCount.FindStringSubmatch(out); m != nil {
		states = m[1]
	}
	return errors, states, out
}
