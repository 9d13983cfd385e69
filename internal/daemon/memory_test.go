package daemon

import (
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

func TestMemoryOfGroup(t *testing.T) {
	for name, c := range map[string]struct {
		group string            // content of /proc/self/cgroup, "": no such file
		max   map[string]string // memory.max by group
		want  int64
	}{
		"none":                     {},
		"its own":                  {"0::/a/b\n", map[string]string{"a/b": "1000\n"}, 1000},
		"of the group above":       {"0::/a/b\n", map[string]string{"a/b": "max\n", "a": "500\n"}, 500},
		"the least":                {"0::/a/b\n", map[string]string{"a/b": "300\n", "a": "500\n"}, 300},
		"of a container":           {"0::/\n", map[string]string{"": "700\n"}, 700},
		"both versions":            {"5:memory:/x\n0::/a\n", map[string]string{"a": "9\n", "x": "1\n"}, 9},
		"version 1 only":           {"5:memory:/x\n", map[string]string{"x": "1\n"}, 0},
		"no limit":                 {"0::/a\n", map[string]string{"a": "max\n"}, 0},
		"rubbish":                  {"0::/a\n", map[string]string{"a": "many\n"}, 0},
		"not a limit":              {"0::/a\n", map[string]string{"a": "-1\n"}, 0},
		"more than a number holds": {"0::/a\n", map[string]string{"a": "18446744073709551615\n"}, 0},
		"a path that leads out":    {"0::/../../../../etc\n", map[string]string{"etc": "4\n"}, 4},
	} {
		root := t.TempDir()
		put := func(path, text string) {
			path = filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, path, text)
		}
		if c.group != "" {
			put("proc/self/cgroup", c.group)
		}
		for group, text := range c.max {
			put(filepath.Join("sys/fs/cgroup", group, "memory.max"), text)
		}
		if got, ok := memoryOfGroup(root); ok != (c.want != 0) || ok && got != c.want {
			t.Errorf("%s: %d, %v, want %d", name, got, ok, c.want)
		}
	}
}

// GOMEMLIMIT of the environment wins: the runtime has read it already, and nothing here changes it.
func TestMemoryLimitOfTheEnvironment(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before); debug.SetGCPercent(100) })
	debug.SetMemoryLimit(math.MaxInt64 - 1)
	t.Setenv("GOMEMLIMIT", "1GiB")
	saveMemory(slog.New(slog.DiscardHandler))
	if got := debug.SetMemoryLimit(-1); got != math.MaxInt64-1 {
		t.Errorf("the limit became %d", got)
	}
}
