//go:build linux

package namespace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Options say what else than mounts and processes is the tests' own.
type Options struct {
	// Network: only a loopback of one's own. See [Outside].
	Network bool
	// Groups: the control groups are seen from the tests' own one, and mounted anew.
	Groups bool
}

// inside marks the second process, and is its [Scratch].
const inside = "STREAMD_TEST_NAMESPACE"

// Scratch is a folder that is removed when the tests are over, whatever becomes of them.
func Scratch() string { return os.Getenv(inside) }

// hostNetwork is the descriptor of the network namespace that the tests have left.
const hostNetwork = 3

// Run runs m in namespaces of its own, and returns the exit code. It is for TestMain.
func Run(m *testing.M, o Options) int {
	run := outside
	if os.Getenv(inside) != "" {
		run = func(o Options) (int, error) {
			if err := enter(o); err != nil {
				return 1, err
			}
			return m.Run(), nil
		}
	}
	code, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "namespace:", err)
	}
	return code
}

// outside starts this program again.
func outside(o Options) (int, error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("mounts and processes of one's own need root: run it as root")
	}
	network, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return 1, err
	}
	defer network.Close()
	scratch, err := os.MkdirTemp("", "streamd-namespace-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(scratch)
	if err := os.Chmod(scratch, 0o755); err != nil { //nolint:gosec // containers have users of their own
		return 1, err
	}
	c := exec.Command(os.Args[0], os.Args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.ExtraFiles = []*os.File{network}
	c.Env = append(os.Environ(), inside+"="+scratch)
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL, // process 1 takes all others along
	}
	if o.Network {
		c.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET
	}
	if o.Groups {
		c.SysProcAttr.Cloneflags |= unix.CLONE_NEWCGROUP
	}
	err = c.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(1, exit.ExitCode()), nil
	}
	if err != nil {
		return 1, fmt.Errorf("this machine allows no namespaces of one's own (a container without privileges?): %w", err)
	}
	return 0, nil
}

// enter makes the namespaces fit to live in.
func enter(o Options) error {
	unix.CloseOnExec(hostNetwork)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	if o.Network {
		if err := loopbackUp(); err != nil {
			return err
		}
	}
	if o.Groups {
		return mountGroups()
	}
	return nil
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the loopback: %w", err)
	}
	defer unix.Close(s)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("the loopback: %w", err)
	}
	r.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r); err != nil {
		return fmt.Errorf("starting the loopback: %w", err)
	}
	return nil
}

// GroupsDir is where the control groups are mounted.
const GroupsDir = "/sys/fs/cgroup"

// GroupsV2 says whether the machine has control groups of version 2 alone.
func GroupsV2() bool {
	var s unix.Statfs_t
	return unix.Statfs(GroupsDir, &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC
}

// mountGroups mounts the tests' own part of the control groups. Of version 1 that is memory, the freezer, which is asked
// before anything is run in a container, and the one without a controller: crun refuses the two versions side by side.
func mountGroups() error {
	type mount struct{ kind, data, dir string }
	mounts := []mount{{"cgroup2", "", GroupsDir}}
	if !GroupsV2() {
		mounts = []mount{
			{"tmpfs", "mode=755", GroupsDir},
			{"cgroup", "none,name=systemd", filepath.Join(GroupsDir, "systemd")},
			{"cgroup", "memory", filepath.Join(GroupsDir, "memory")},
			{"cgroup", "freezer", filepath.Join(GroupsDir, "freezer")},
		}
	}
	for _, m := range mounts {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, m.data); err != nil {
			return fmt.Errorf("mounting %s (%s) on %s: %w", m.kind, m.data, m.dir, err)
		}
	}
	return nil
}

// Overlay mounts a copy-on-write view of this machine's files below dir, with /proc, /dev and an empty /tmp and /run, and
// returns its root. What is written there is in memory.
func Overlay(dir string) (string, error) {
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		return "", fmt.Errorf("mounting memory on %s: %w", dir, err)
	}
	for _, name := range []string{"up", "work", "root"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			return "", err
		}
	}
	layers := fmt.Sprintf("lowerdir=/,upperdir=%s,workdir=%s", filepath.Join(dir, "up"), filepath.Join(dir, "work"))
	if err := unix.Mount("overlay", root, "overlay", 0, layers); err != nil {
		return "", fmt.Errorf("mounting this machine's files on %s: %w", root, err)
	}
	if err := unix.Mount("proc", filepath.Join(root, "proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return "", fmt.Errorf("mounting its /proc: %w", err)
	}
	if err := Bind("/dev", filepath.Join(root, "dev")); err != nil {
		return "", err
	}
	for name, mode := range map[string]string{"run": "mode=755", "tmp": "mode=1777"} {
		if err := unix.Mount("tmpfs", filepath.Join(root, name), "tmpfs", 0, mode); err != nil {
			return "", fmt.Errorf("mounting its /%s: %w", name, err)
		}
	}
	return root, nil
}

// Bind shows a folder at a second place.
func Bind(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("showing %s at %s: %w", from, to, err)
	}
	return nil
}

// network is the machine's. It is opened once: whoever forgets a file closes it.
var network = sync.OnceValue(func() *os.File { return os.NewFile(hostNetwork, "network") })

// Outside makes a command that runs in the machine's network, for what is fetched.
func Outside(name string, args ...string) *exec.Cmd {
	c := exec.Command("nsenter", append([]string{fmt.Sprintf("--net=/proc/self/fd/%d", hostNetwork), "--", name}, args...)...)
	c.ExtraFiles = []*os.File{network()}
	c.Env = withoutMark(os.Environ())
	return c
}

func withoutMark(env []string) []string {
	var out []string
	for _, e := range env {
		if !strings.HasPrefix(e, inside+"=") {
			out = append(out, e)
		}
	}
	return out
}
