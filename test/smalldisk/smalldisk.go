//go:build linux

package smalldisk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// MiB is the size: the free space below which streamd writes nothing (256 MiB), and some.
const MiB = 420

// inNamespace tells the child that it may mount.
const inNamespace = "STREAMD_TEST_IN_NAMESPACE"

// Mount mounts a small file system on dir. Where this user may not mount, the test runs once more inside a
// namespace of its own, where he may; false: that was it.
func Mount(t *testing.T, dir string) bool {
	t.Helper()
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", MiB))
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
