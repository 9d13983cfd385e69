package daemon

import (
	"log/slog"
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

const (
	// gcPercent is half of Go's default. Fetched records live for one transaction, so that the heap is
	// mostly garbage at any time: a quarter less memory for a twentieth more CPU (measured).
	gcPercent = 50
	// memoryPercent is the part of a control group's limit that Go may take. The rest is for what the runtime does not
	// count: mapped files of the local store, stacks of the kernel.
	memoryPercent = 85
	// minMemory is the least limit that is believed. Below it the collector would only run and free nothing.
	minMemory = 32 << 20
)

// saveMemory sets the garbage collector for a process of its own. Who embeds the library decides for
// himself; GOGC and GOMEMLIMIT in the environment win.
func saveMemory(log *slog.Logger) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	if limit, ok := memoryOfGroup("/"); ok && limit >= minMemory {
		goal := limit / 100 * memoryPercent
		debug.SetMemoryLimit(goal)
		log.Info("memory limit", "bytes", goal, "control_group", limit)
	}
}

// memoryOfGroup returns the least memory.max of the process's control group and of those above it (cgroup v2), false if
// there is none. root is the machine's root directory.
func memoryOfGroup(root string) (int64, bool) {
	text, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0, false // not Linux, or no /proc: no limit that we could know of
	}
	limit := int64(math.MaxInt64)
	for line := range strings.Lines(string(text)) {
		// The one of version 2 is "0::PATH". PATH is cleaned, so that it cannot lead out of the file system of groups.
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for group = path.Clean("/" + group); ; group = path.Dir(group) {
			b, err := os.ReadFile(filepath.Join(root, "sys/fs/cgroup", group, "memory.max"))
			// "max" is no number, and no limit.
			if n, nerr := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && nerr == nil && n > 0 {
				limit = min(limit, n)
			}
			if group == "/" {
				break
			}
		}
	}
	return limit, limit != math.MaxInt64
}
