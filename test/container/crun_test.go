//go:build container && linux

package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/streamd/streamd/test/namespace"
)

// What Docker leaves a container that says nothing.
var usualCapabilities = strings.Fields(`CAP_CHOWN CAP_DAC_OVERRIDE CAP_FSETID CAP_FOWNER CAP_MKNOD CAP_NET_RAW CAP_SETGID CAP_SETUID
	CAP_SETFCAP CAP_SETPCAP CAP_NET_BIND_SERVICE CAP_SYS_CHROOT CAP_KILL CAP_AUDIT_WRITE`)

// settings are what an engine is told beside the image.
type settings struct {
	command         []string // instead of the image's
	env             map[string]string
	mounts          []mount
	volumes         map[string]string // folders by the image's volume; one that is not named is new and empty
	readOnly        bool
	noCapabilities  bool
	noNewPrivileges bool
	memory          int64 // in bytes, 0: no limit
	ownNetwork      bool
}

type mount struct{ from, to string }

// newVolume makes a volume as an engine does: with what the image has there, and its owner.
func (m *image) newVolume(t *testing.T, path string) string {
	t.Helper()
	from := filepath.Join(m.root, path)
	info, err := os.Stat(from)
	if err != nil {
		t.Fatalf("VOLUME %s: %v", path, err)
	}
	dir, err := os.MkdirTemp(namespace.Scratch(), "volume-")
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	if err := copyTree(from, dir, false, "", nil, int(owner.Uid), int(owner.Gid)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// container is one that was started.
type container struct {
	t       *testing.T
	name    string
	user    string
	pid     int // of its process 1, seen from here
	log     string
	ended   bool
	status  unix.WaitStatus
	deleted bool
}

const group = "/streamd-container-test/"

// start makes a container of the image and starts it, as an engine would.
func (m *image) start(t *testing.T, name string, s settings) *container {
	t.Helper()
	c := m.create(t, name, s)
	c.crun("start", name)
	return c
}

func (m *image) create(t *testing.T, name string, s settings) *container {
	t.Helper()
	bundle, err := os.MkdirTemp(namespace.Scratch(), name+"-")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.MarshalIndent(m.spec(t, name, s), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	c := &container{t: t, name: name, user: m.config.User, log: filepath.Join(bundle, "log")}
	log, err := os.Create(c.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	pid := filepath.Join(bundle, "pid")
	run := command("create", "--bundle", bundle, "--pid-file", pid, name)
	run.Stdout, run.Stderr = log, log // and the container's
	if err := run.Run(); err != nil {
		t.Fatalf("crun create %s: %v\n%s", name, err, c.said())
	}
	t.Cleanup(func() {
		if t.Failed() && !c.deleted { // the one at which it failed
			t.Logf("the end of what container %s wrote:\n%s", name, c.said())
		}
		c.delete()
	})
	b, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	if c.pid, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
		t.Fatal(err)
	}
	return c
}

// spec is the container as the runtime's specification writes it.
func (m *image) spec(t *testing.T, name string, s settings) map[string]any {
	t.Helper()
	uid, gid, err := m.user()
	if err != nil {
		t.Fatal(err)
	}
	args := s.command
	if args == nil {
		args = m.config.Cmd
	}
	env := slices.Clone(m.config.Env)
	for _, k := range slices.Sorted(maps.Keys(s.env)) {
		env = append(env, k+"="+s.env[k])
	}
	bounding := usualCapabilities
	if s.noCapabilities {
		bounding = []string{}
	}
	mounts := []any{
		map[string]any{"destination": "/proc", "type": "proc", "source": "proc"},
		map[string]any{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		map[string]any{"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
		map[string]any{"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": []string{"nosuid", "noexec", "nodev", "ro"}},
		map[string]any{"destination": namespace.GroupsDir, "type": "cgroup", "source": "cgroup", "options": []string{"nosuid", "noexec", "nodev", "ro"}},
	}
	for _, x := range s.mounts {
		mounts = append(mounts, map[string]any{"destination": x.to, "type": "bind", "source": x.from, "options": []string{"rbind", "ro"}})
	}
	for _, path := range m.config.Volumes {
		dir := s.volumes[path]
		if dir == "" {
			dir = m.newVolume(t, path)
		}
		mounts = append(mounts, map[string]any{"destination": path, "type": "bind", "source": dir, "options": []string{"rbind", "rw"}})
	}
	spaces := []any{}
	for _, kind := range []string{"pid", "ipc", "uts", "mount", "cgroup"} {
		spaces = append(spaces, map[string]any{"type": kind})
	}
	if s.ownNetwork {
		spaces = append(spaces, map[string]any{"type": "network"})
	}
	resources := map[string]any{}
	if s.memory > 0 {
		resources["memory"] = map[string]any{"limit": s.memory, "swap": s.memory}
	}
	return map[string]any{
		"ociVersion": "1.0.2",
		"hostname":   name,
		"root":       map[string]any{"path": m.root, "readonly": s.readOnly},
		"mounts":     mounts,
		"process": map[string]any{
			"user": map[string]any{"uid": uid, "gid": gid}, "args": append(slices.Clone(m.config.Entrypoint), args...), "env": env,
			"cwd": m.config.Dir, "noNewPrivileges": s.noNewPrivileges,
			// A user that is not root has only what it is bounded by.
			"capabilities": map[string]any{"bounding": bounding},
		},
		"linux": map[string]any{
			"namespaces": spaces, "cgroupsPath": group + name, "resources": resources,
			"maskedPaths":   []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"},
			"readonlyPaths": []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
}

func command(args ...string) *exec.Cmd {
	return exec.Command("crun", append([]string{"--root", filepath.Join(namespace.Scratch(), "crun"), "--cgroup-manager", "cgroupfs"}, args...)...)
}

func (c *container) crun(args ...string) {
	c.t.Helper()
	if out, err := command(args...).CombinedOutput(); err != nil {
		c.t.Fatalf("crun %s: %v\n%s\n%s", strings.Join(args, " "), err, out, c.said())
	}
}

// exec runs a command beside the container's process, as an engine runs a health check, and returns its exit code.
func (c *container) exec(args ...string) (code int, out string) {
	c.t.Helper()
	text, err := command(append([]string{"exec", "--user", c.user, c.name}, args...)...).CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode(), string(text)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return 0, string(text)
}

func (c *container) kill(signal string) {
	c.t.Helper()
	c.crun("kill", c.name, strings.TrimPrefix(signal, "SIG"))
}

// running says whether its process is still there. The process became this one's child when crun had made it.
func (c *container) running() bool {
	if c.ended {
		return false
	}
	pid, err := unix.Wait4(c.pid, &c.status, unix.WNOHANG, nil)
	c.ended = pid == c.pid || err != nil
	return !c.ended
}

// await returns how the container ended, and how long that took.
func (c *container) await(limit time.Duration) (unix.WaitStatus, time.Duration) {
	c.t.Helper()
	begin := time.Now()
	for c.running() {
		if time.Since(begin) > limit {
			c.t.Fatalf("container %s does not end within %v", c.name, limit)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return c.status, time.Since(begin)
}

// delete takes the container away, whether it runs or not.
func (c *container) delete() {
	c.t.Helper()
	if c.deleted {
		return
	}
	c.deleted = true
	if c.running() {
		_ = unix.Kill(c.pid, unix.SIGKILL)
		c.await(time.Minute)
	}
	if out, err := command("delete", c.name).CombinedOutput(); err != nil {
		c.t.Errorf("crun delete %s: %v\n%s", c.name, err, out)
	}
}

// said is the end of what the container wrote.
func (c *container) said() string {
	b, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-6000):])
}

// group reads a file of the container's control group for memory.
func (c *container) group(v1, v2 string) string {
	c.t.Helper()
	path := filepath.Join(namespace.GroupsDir, group, c.name, v2)
	if !namespace.GroupsV2() {
		path = filepath.Join(namespace.GroupsDir, "memory", group, c.name, v1)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// facts are lines "Key: value" of /proc/PID/status.
func (c *container) facts() map[string]string {
	c.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.pid))
	if err != nil {
		c.t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		out[key] = strings.Join(strings.Fields(value), " ")
	}
	return out
}

// writable lists the mounts of the container that can be written to, those of the kernel apart.
func (c *container) writable() []string {
	c.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", c.pid))
	if err != nil {
		c.t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line) // id parent dev root WHERE OPTIONS ... - type source options
		if len(f) < 6 || !strings.HasPrefix(f[5], "rw") {
			continue
		}
		// Without root, what can be written to there is memory or a device, and gone with the container.
		if top := "/" + strings.SplitN(f[4], "/", 3)[1]; top == "/proc" || top == "/dev" || top == "/sys" {
			continue
		}
		out = append(out, f[4])
	}
	return out
}
