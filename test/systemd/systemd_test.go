//go:build systemd

package systemd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/streamd/streamd/test/crash"
	"github.com/streamd/streamd/test/kafkaenv"
)

const (
	unit       = "streamd@bills.service"
	partitions = 4
)

// machine is a running systemd.
type machine struct {
	t    *testing.T
	ctx  context.Context
	pid  int    // of its process 1, seen from here
	http string // of the unit
}

// boot starts a systemd that has the unit, with its pipeline, not started.
func boot(ctx context.Context, t *testing.T, brokers []string) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("a systemd of one's own needs root: run `make systemd-test` as root")
	}
	for _, p := range []string{"unshare", "nsenter", "systemctl", "journalctl"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("no %s on the PATH: install Debian's packages systemd and util-linux", p)
		}
	}
	program, err := crash.BuildProgram(ctx, "../..", "./cmd/streamd", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m := &machine{t: t, ctx: ctx, http: l.Addr().String()}
	config := t.TempDir()
	for name, text := range map[string]string{
		"bills.yaml": strings.ReplaceAll(crash.DedupFile, "BROKERS", strings.Join(brokers, `","`)),
		"bills.env":  "STREAMD_HTTP=" + m.http + "\n",
	} {
		if err := os.WriteFile(filepath.Join(config, name), []byte(text), 0o644); err != nil { //nolint:gosec // read by the unit's user
			t.Fatal(err)
		}
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "boot.log"))
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("unshare", "--mount", "--pid", "--cgroup", "--uts", "--ipc", "--fork", "--kill-child",
		"testdata/boot.sh", program, "../../deploy/systemd/streamd@.service", config)
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() && m.pid != 0 {
			out, _ := m.try("journalctl", "--no-pager", "-n", "60", "-u", unit)
			t.Logf("the end of the unit's journal:\n%s", out)
		}
		_ = c.Process.Kill() // takes process 1 and all of its processes along
		_ = c.Wait()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("boot.sh: %s", text)
		}
		_ = log.Close()
	})
	m.await("systemd runs", 30*time.Second, func() string {
		m.pid = child(c.Process.Pid)
		if m.pid == 0 {
			return "it has no process yet"
		}
		if out, err := m.try("systemctl", "is-system-running"); strings.TrimSpace(out) != "running" && strings.TrimSpace(out) != "degraded" {
			return fmt.Sprintf("%s %v", out, err)
		}
		return ""
	})
	return m
}

// child is the only child of a process, 0 for none.
func child(pid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
}

// try runs a command on the machine.
func (m *machine) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), 2*time.Minute)
	defer cancel()
	args = append([]string{"-t", strconv.Itoa(m.pid), "-m", "-p", "-C", "-u", "-i", "-r", "-w"}, args...)
	out, err := exec.CommandContext(ctx, "nsenter", args...).CombinedOutput()
	return string(out), err
}

func (m *machine) run(args ...string) string {
	m.t.Helper()
	out, err := m.try(args...)
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// property is one of the unit's.
func (m *machine) property(name string) string {
	m.t.Helper()
	return m.run("systemctl", "show", "--value", "-p", name, unit)
}

// await waits until why is empty.
func (m *machine) await(what string, limit time.Duration, why func() string) {
	m.t.Helper()
	said := ""
	for begin := time.Now(); time.Since(begin) < limit && m.ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		if said = why(); said == "" {
			return
		}
	}
	m.t.Fatalf("not within %v: %s: %s", limit, what, said)
}

// awaitState waits for an ActiveState.
func (m *machine) awaitState(want string, limit time.Duration) {
	m.t.Helper()
	m.await("the unit is "+want, limit, func() string {
		if s := m.property("ActiveState"); s != want {
			return "it is " + s
		}
		return ""
	})
}

// restarts waits until systemd has started the unit again so often, and all of it runs.
func (m *machine) restarts(n int) {
	m.t.Helper()
	m.await(fmt.Sprintf("%d restarts", n), time.Minute, func() string {
		if s := m.property("NRestarts"); s != strconv.Itoa(n) {
			return "NRestarts=" + s
		}
		return ""
	})
	m.awaitState("active", time.Minute)
	m.allRun()
}

// allRun says that readiness was not told too early: no task is still being restored.
func (m *machine) allRun() {
	m.t.Helper()
	s, err := crash.Scrape(m.ctx, m.http)
	if err != nil {
		m.t.Fatal("ready, and does not answer:", err)
	}
	if n, _ := s.Sum("streamd_tasks", map[string]string{"state": "running"}); n != partitions {
		m.t.Errorf("ready with %v of %d tasks running", n, partitions)
	}
}

// dropIn changes the unit until the machine ends; an empty text takes the change back.
func (m *machine) dropIn(text string) {
	m.t.Helper()
	const dir = "/run/systemd/system/streamd@bills.service.d"
	m.run("sh", "-c", `mkdir -p "$1" && printf "[Service]\n%s\n" "$2" > "$1/test.conf" && systemctl daemon-reload`, "sh", dir, text)
}

// TestUnit: the unit starts, tells that it is ready when all tasks run and not before, stops within its grace period with exit
// code 0, comes back after SIGKILL, after the kernel's OOM killer and when the watchdog misses it; and whatever happened, each
// record came out once and in its order.
func TestUnit(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	kafka := kafkaenv.Start(t)
	if err := crash.CreateTopics(ctx, kafka.Addresses(), partitions, "bills.raw", "bills.unique"); err != nil {
		t.Fatal(err)
	}
	m := boot(ctx, t, kafka.Addresses())
	m.notReadyBefore(kafka)

	w := crash.Workload{Seed: rand.Uint64(), Records: 300_000, Accounts: 2000, RepeatPercent: 5}
	check := crash.NewOrder(w.Accounts)
	reader, err := crash.NewReader(kafka.Addresses(), "bills.unique", partitions, check.Add)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reader.Start(ctx))
	want, sent := crash.Expectation{}, make(chan error, 1)
	go func() { // it lasts as long as what is done to the unit below
		var err error
		want, err = crash.Loader{Brokers: kafka.Addresses(), Topic: "bills.raw", Rate: 6000, Key: func(b crash.Bill) string { return b.Account }}.Run(ctx, w)
		sent <- err
	}()

	m.run("systemctl", "kill", "-s", "KILL", unit)
	m.restarts(1)
	m.stopsInTime()
	m.outOfMemory()
	m.watchdog()

	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if err := crash.AwaitCommitted(ctx, kafka.Addresses(), "bills-dedup", "bills.raw"); err != nil {
		t.Fatal(err)
	}
	m.stopsInTime()
	if err := reader.AwaitEnd(ctx); err != nil {
		t.Fatal(err)
	}
	reader.Locked(func() {
		if err := check.Verify(want); err != nil {
			t.Error(err)
		}
		t.Logf("%d records in, %d out, %d repeats", w.Records, check.Seen(), want.Repeats)
	})
}

// notReadyBefore starts the unit while the broker is frozen: it is "activating" until it can work.
func (m *machine) notReadyBefore(kafka *kafkaenv.Cluster) {
	m.t.Helper()
	if err := kafka.Pause(0); err != nil {
		m.t.Fatal(err)
	}
	m.run("systemctl", "start", "--no-block", unit)
	for begin := time.Now(); time.Since(begin) < 5*time.Second; time.Sleep(100 * time.Millisecond) {
		if s := m.property("ActiveState"); s != "activating" && s != "inactive" {
			m.t.Fatalf("without a broker that answers, the unit is %s", s)
		}
	}
	if err := kafka.Resume(0); err != nil {
		m.t.Fatal(err)
	}
	m.awaitState("active", 2*time.Minute)
	m.allRun()
}

// stopsInTime stops the unit and starts it again.
func (m *machine) stopsInTime() {
	m.t.Helper()
	begin := time.Now()
	m.run("systemctl", "stop", unit)
	took := time.Since(begin)
	if r, code := m.property("Result"), m.property("ExecMainStatus"); r != "success" || code != "0" || took > 60*time.Second {
		m.t.Errorf("stop took %v: result %s, exit code %s", took, r, code)
	}
	m.t.Logf("stopped in %v", took.Round(time.Millisecond))
	m.run("systemctl", "start", unit)
	m.allRun()
}

// outOfMemory gives the unit too little memory for a while.
func (m *machine) outOfMemory() {
	m.t.Helper()
	m.dropIn("MemoryMax=24M")
	m.run("systemctl", "restart", "--no-block", unit)
	m.await("the kernel kills it for its memory", time.Minute, func() string {
		// With the first version of cgroups systemd sees only that somebody has killed it.
		if r := m.property("Result"); r != "oom-kill" && (r != "signal" || m.property("ExecMainStatus") != "9") {
			return "Result=" + r
		}
		return ""
	})
	m.dropIn("")
	m.awaitState("active", time.Minute)
	m.allRun()
}

// watchdog freezes the process.
func (m *machine) watchdog() {
	m.t.Helper()
	m.dropIn("WatchdogSec=5s")
	m.run("systemctl", "restart", unit)
	pid := m.property("MainPID")
	m.run("systemctl", "kill", "-s", "STOP", unit)
	m.await("the watchdog ends a frozen process", time.Minute, func() string {
		if p := m.property("MainPID"); p == pid {
			return "it is still there"
		}
		return ""
	})
	m.dropIn("")
	m.awaitState("active", time.Minute)
	m.allRun()
}
