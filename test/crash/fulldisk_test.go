//go:build kills && linux

package crash

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// diskMiB is the size of the small disk: the free space below which nothing is written (256 MiB), and some.
const diskMiB = 420

// inNamespace tells the child that it may mount.
const inNamespace = "STREAMD_TEST_IN_NAMESPACE"

// smallDisk mounts a small file system on dir. Where this user may not mount, the test runs once more inside a
// namespace of its own, where he may; false: that was it.
func smallDisk(t *testing.T, dir string) bool {
	t.Helper()
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=420m")
	if err == nil {
		t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
		return true
	}
	if !errors.Is(err, syscall.EPERM) || os.Getenv(inNamespace) != "" {
		t.Fatalf("mounting a tmpfs: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	t.Logf("in a namespace, since mounting is not permitted here:\n%s", out)
	if err != nil {
		t.Fatal(err)
	}
	return false
}

// TestFullDisk: the disk of one host fills up while it works. Its tasks pause, saying so; a process that is killed and
// started meanwhile waits or is refused with a code that means "try again"; when there is space it goes on. Nothing
// is lost or doubled.
// CRASH 37
func TestFullDisk(t *testing.T) {
	disk := t.TempDir()
	if !smallDisk(t, disk) {
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
	for range diskMiB + 1 {
		if _, err := f.Write(block); err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("the disk does not fill up")
}
