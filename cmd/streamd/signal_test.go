package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/embedded"
)

const pipelineText = `
version: 1
name: p
kafka:
  brokers: ["localhost:1"]
sources:
  bills:
    topic: in
    format: json
steps:
  - name: unique
    dedup:
      id: value.id
      retention: 1d
      expected_ids: 10k
      scope: partition
  - name: publish
    to:
      topic: out
`

// process is a running streamd.
type process struct {
	*exec.Cmd
	out    *lockedBuffer
	done   chan error
	socket string // of daemonOf's
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	// What is killed cannot tidy up. Not t.TempDir: a socket's path must be short.
	tmp, err := os.MkdirTemp("", "streamd-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	p := &process{Cmd: exec.Command("streamd", args...), out: &lockedBuffer{}, done: make(chan error, 1)}
	p.Env = append(os.Environ(), "TMPDIR="+tmp)
	p.Stdout, p.Stderr = p.out, p.out
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.Wait() }()
	t.Cleanup(func() { _ = p.Process.Kill() }) // before tmp is removed
	return p
}

// ends waits for the end and returns the exit code.
func (p *process) ends(t *testing.T, within time.Duration) int {
	t.Helper()
	select {
	case err := <-p.done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return p.ProcessState.ExitCode()
	case <-time.After(within):
		t.Fatalf("it does not end within %v:\n%s", within, p.out)
		return 0
	}
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not in 60 s: %s", what)
}

// daemonOf starts a broker with the topics in and out, a process with a pipeline file on it, and a client that writes to in.
func daemonOf(t *testing.T, text string, flags ...string) (*embedded.Broker, *process, *daemon.Client, *kgo.Client) {
	t.Helper()
	b, err := embedded.Start(embedded.Config{Topics: []embedded.Topic{{Name: "in", Partitions: 2}, {Name: "out", Partitions: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	dir := t.TempDir()
	file := filepath.Join(dir, "p.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := "unix:" + filepath.Join(dir, "s")
	p := start(t, append([]string{"run", file, "-b", b.Address(), "--data-dir", dir, "--http", "off", "--admin", socket, "--log-format", "text"}, flags...)...)
	p.socket = socket
	c, err := daemon.NewClient(socket)
	if err != nil {
		t.Fatal(err)
	}
	k, err := kgo.NewClient(kgo.SeedBrokers(b.Address()), kgo.DefaultProduceTopic("in"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return b, p, c, k
}

// running starts a broker and a pipeline on it, with records coming in.
func running(t *testing.T, flags ...string) (*embedded.Broker, *process, *daemon.Client) {
	t.Helper()
	b, p, c, k := daemonOf(t, pipelineText, flags...)
	ctx, stop := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			r := &kgo.Record{Key: fmt.Append(nil, i), Value: fmt.Appendf(nil, `{"id":"%d"}`, i)}
			_ = k.ProduceSync(ctx, r) // ends with the test
		}
	})
	t.Cleanup(func() {
		stop()
		k.Close() // what was sent and not answered waits for it, not for the context
		sending.Wait()
	})
	waitFor(t, "commits", func() bool {
		list, err := c.Pipelines(t.Context())
		return err == nil && len(list) == 1 && list[0].Ready && list[0].Committed > 3
	})
	return b, p, c
}

func TestTheFirstSIGTERMEndsWithALastCommit(t *testing.T) {
	_, p, _ := running(t)
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.ends(t, 5*time.Second); code != 0 {
		t.Errorf("exit code %d:\n%s", code, p.out)
	}
	if !strings.Contains(p.out.String(), "stopping: finishing the open transaction") {
		t.Errorf("no word of it:\n%s", p.out)
	}
}

// A broker that is gone makes the last commit wait. The second signal does not.
func TestTheSecondSIGTERMEndsAtOnce(t *testing.T) {
	b, p, _ := running(t)
	b.Close()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "stopping", func() bool { return strings.Contains(p.out.String(), "stopping:") })
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.ends(t, 2*time.Second); code != daemon.ExitInterrupted {
		t.Errorf("exit code %d, want 130:\n%s", code, p.out)
	}
}

// Nor does it wait longer than it may.
func TestAShutdownThatTakesTooLong(t *testing.T) {
	b, p, _ := running(t, "--shutdown-timeout", "1s")
	b.Close()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.ends(t, 5*time.Second); code != daemon.ExitFailed || !strings.Contains(p.out.String(), "within the shutdown timeout") {
		t.Errorf("exit code %d, want 1:\n%s", code, p.out)
	}
}

// Profiles and payloads are for the user of the process alone: on its socket, not on its address.
func TestProfilesAreOnTheSocketOnly(t *testing.T) {
	_, p, c := running(t, "--http", "127.0.0.1:0")
	if text, err := c.Read(t.Context(), "/debug/pprof/goroutine?debug=1"); err != nil || !strings.Contains(string(text), "goroutine profile") {
		t.Errorf("on the socket: %v", err)
	}
	_, rest, _ := strings.Cut(p.out.String(), "page=")
	public, err := daemon.NewClient(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := public.Read(t.Context(), "/livez"); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/debug/pprof/", "/api/v1/pipelines/p/tap?step=unique", "/debug/logs"} {
		if _, err := public.Read(t.Context(), path); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("%s on the address: %v", path, err)
		}
	}
}

// children lists the child processes of a process (Linux).
func children(pid int) []int {
	var out []int
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for _, word := range strings.Fields(string(data)) {
			if n, err := strconv.Atoi(word); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

// lives says whether a process runs. A zombie does not.
func lives(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

// The worker of a demo does not outlive it, however the demo ends.
func TestTheDemoLeavesNoProcessBehind(t *testing.T) {
	if _, err := os.Stat("/proc/self/task"); err != nil {
		t.Fatalf("cannot see the children of a process: %v; run it on Linux with /proc: mount -t proc proc /proc", err)
	}
	for name, signal := range map[string]os.Signal{"Ctrl-C": os.Interrupt, "kill -9": os.Kill} {
		t.Run(name, func(t *testing.T) {
			p := start(t, "demo", "--http", "off")
			var worker []int
			waitFor(t, "a worker at work", func() bool {
				worker = children(p.Process.Pid)
				return len(worker) == 1 && strings.Contains(p.out.String(), "00:0") // any line: a slow machine has none for the first second
			})
			if err := p.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			code := p.ends(t, 60*time.Second)
			if signal == os.Interrupt && (code != 0 || !strings.Contains(p.out.String(), "✓ exactly once")) {
				t.Errorf("exit code %d:\n%s", code, p.out)
			}
			waitFor(t, "the worker's end", func() bool { return !lives(worker[0]) })
		})
	}
}
