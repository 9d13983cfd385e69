package crash

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/streamd/streamd/internal/fault"
)

// BuildDaemon builds streamd from the sources at root into dir, with more flags of go build if there are
// any, and returns the program's path.
func BuildDaemon(ctx context.Context, root, dir string, flags ...string) (string, error) {
	return BuildProgram(ctx, root, "./cmd/streamd", dir, flags...)
}

// BuildProgram is BuildDaemon for another program, which is started as a [Daemon] too: it takes the arguments of streamd run.
func BuildProgram(ctx context.Context, root, folder, dir string, flags ...string) (string, error) {
	program := filepath.Join(dir, filepath.Base(folder))
	args := append(append([]string{"build"}, flags...), "-o", program, folder)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("crash: building %s: %w\n%s", folder, err, out)
	}
	return program, nil
}

// DedupFile is a pipeline file that drops repeats, the application bills-dedup from bills.raw to bills.unique; BROKERS stands for the addresses.
const DedupFile = `version: 1
name: bills-dedup

kafka:
  brokers: ["BROKERS"]

sources:
  bills:
    topic: bills.raw
    format: json

steps:
  - name: unique
    dedup:
      id: value.bill_id
      scope: partition
      retention: 7d
      expected_ids: 2M

  - name: publish
    to:
      topic: bills.unique
`

// BuildWithPoints is BuildDaemon with points at which the table dies that it makes beside the program: who starts it names the table in
// fault.Variable.
func BuildWithPoints(ctx context.Context, root, dir string) (program string, table *fault.Table, err error) {
	if program, err = BuildDaemon(ctx, root, dir, "-tags", "faultpoints"); err != nil {
		return "", nil, err
	}
	table, err = fault.OpenTable(filepath.Join(dir, "table"))
	return program, table, err
}

// Daemon is one streamd, which lives, is killed, and lives again.
type Daemon struct {
	Program string
	File    string // the pipeline file
	Dir     string // the data directory
	HTTP    string // host:port of /metrics
	Log     string // file that gets the output of all its lives
	Args    []string
	Env     []string // name=value, beside that of this process

	cmd  *exec.Cmd
	done chan struct{} // closed when the process is gone
	err  error         // of Wait; set before done is closed
}

// Start starts a life.
func (d *Daemon) Start() error {
	if d.Running() {
		return errors.New("crash: the daemon runs already")
	}
	log, err := os.OpenFile(d.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("crash: %w", err)
	}
	defer log.Close() // the child has its own descriptor
	args := append([]string{"run", d.File, "--data-dir", d.Dir, "--http", d.HTTP, "--log-format", "json", "--stop-on-eof"}, d.Args...)
	cmd := exec.Command(d.Program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if d.Env != nil {
		cmd.Env = append(os.Environ(), d.Env...)
	}
	// With --stop-on-eof it ends when this process does, however that ends.
	if _, err := cmd.StdinPipe(); err != nil {
		return fmt.Errorf("crash: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("crash: %w", err)
	}
	done := make(chan struct{})
	d.cmd, d.done = cmd, done
	go func() {
		d.err = cmd.Wait()
		close(done)
	}()
	return nil
}

// Running tells whether the process is alive.
func (d *Daemon) Running() bool {
	if d.done == nil {
		return false
	}
	select {
	case <-d.done:
		return false
	default:
		return true
	}
}

// Done is closed when the present life has ended.
func (d *Daemon) Done() <-chan struct{} { return d.done }

// Kill ends the life with SIGKILL and waits until the process is gone.
func (d *Daemon) Kill() {
	if d.Running() {
		_ = d.cmd.Process.Kill()
		<-d.done
	}
}

// Pause stops the process (SIGSTOP), Continue lets it go on as if nothing had happened.
func (d *Daemon) Pause() error { return d.signal(syscall.SIGSTOP) }

// Continue ends a Pause.
func (d *Daemon) Continue() error { return d.signal(syscall.SIGCONT) }

func (d *Daemon) signal(s os.Signal) error {
	if err := d.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("crash: %w", err)
	}
	return nil
}

// Ended says how the last life ended: its exit code, or the signal that killed it. ok is false while it lives.
func (d *Daemon) Ended() (code int, signal syscall.Signal, ok bool) {
	if d.done == nil || d.Running() {
		return 0, 0, false
	}
	if status, is := d.cmd.ProcessState.Sys().(syscall.WaitStatus); is && status.Signaled() {
		return -1, status.Signal(), true
	}
	return d.cmd.ProcessState.ExitCode(), 0, true
}

// Stop asks the daemon to end (SIGTERM) and returns its exit code, or an error if it is not gone in time.
func (d *Daemon) Stop(within time.Duration) (code int, err error) {
	if err := d.signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	select {
	case <-d.done:
		return d.cmd.ProcessState.ExitCode(), nil
	case <-time.After(within):
		return 0, fmt.Errorf("crash: streamd did not end within %v of SIGTERM", within)
	}
}

// Tail returns the end of the log.
func (d *Daemon) Tail() string {
	const most = 6000
	data, err := os.ReadFile(d.Log)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-most):])
}

// LogHas tells whether the log of any life has the text.
func (d *Daemon) LogHas(text string) (bool, error) {
	data, err := os.ReadFile(d.Log)
	if err != nil {
		return false, fmt.Errorf("crash: %w", err)
	}
	return bytes.Contains(data, []byte(text)), nil
}
