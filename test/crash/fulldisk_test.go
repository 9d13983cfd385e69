//go:build kills && linux

package crash

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/streamd/streamd/test/smalldisk"
)

// TestFullDisk: the disk of one host fills up while it works. Its tasks pause, saying so; a process that is killed and
// started meanwhile waits or is refused with a code that means "try again"; when there is space it goes on. Nothing
// is lost or doubled.
// CRASH 37
func TestFullDisk(t *testing.T) {
	disk := t.TempDir()
	if !smalldisk.Mount(t, disk) {
		return
	}
	m := newCampaign(t, 5*time.Minute, CampaignConfig{Program: program(t), Seed: seedOf(t)})
	h := m.Hosts[0]
	h.Kill()
	h.Dir = filepath.Join(disk, "data")
	if err := errors.Join(h.Start(), m.AwaitFlow(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := m.await(h, "tasks", time.Minute, func() bool { return running(m, h) > 0 }); err != nil {
		t.Fatal(err)
	}
	for round, kill := range []bool{false, true} {
		ballast := filepath.Join(disk, "ballast")
		fill(t, ballast)
		if err := m.await(h, "pause", time.Minute, func() bool {
			line, _ := h.Scan("state disk is full")
			return line != ""
		}); err != nil {
			t.Fatalf("round %d: %v\n%s", round, err, h.Tail())
		}
		if kill {
			h.Kill()
			if err := h.Start(); err != nil {
				t.Fatal(err)
			}
			code, log, err := m.end(h, time.Minute)
			if err != nil || code != 75 || !strings.Contains(log, "MB free") {
				t.Fatalf("a start on a full disk: exit code %d, %v\n%s", code, err, log)
			}
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		if kill {
			if err := h.Start(); err != nil {
				t.Fatal(err)
			}
		}
		// All of them: of a task that has not seen the space yet the next round would see no pause.
		if err := m.await(h, "running tasks only", time.Minute, func() bool { return running(m, h) > 0 && tasks(m, h, "paused") == 0 }); err != nil {
			t.Fatalf("round %d: %v\n%s", round, err, h.Tail())
		}
		if err := errors.Join(m.Check(), m.AwaitFlow(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Finish(finishLimit); err != nil {
		t.Fatal(err)
	}
}

// fill writes until nothing is free.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for range smalldisk.MiB + 1 {
		if _, err := f.Write(block); err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("the disk does not fill up")
}
