package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// Process is a child process.
type Process struct {
	cmd   *exec.Cmd
	stdin io.Closer // its end stops the worker
	done  chan struct{}
	err   error // of its end; read after done
	log   string
}

// Start starts this program, whose path and argv[0] are given, again with the arguments. What it logs is
// appended to the file.
func Start(executable, name string, args []string, logFile string) (*Process, error) {
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("worker: its log: %w", err)
	}
	defer out.Close() // the child has its own
	cmd := exec.Command(executable, args...)
	cmd.Args[0] = name
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = childAttributes()
	// Variables of this process must not change what the worker does.
	cmd.Env = withoutOptions(os.Environ())
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	w := &Process{cmd: cmd, stdin: stdin, done: make(chan struct{}), log: logFile}
	started := make(chan error, 1)
	go func() {
		// The kernel sends the death signal when the thread that started the child ends, not the
		// process: keep the thread for as long as the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			w.err = cmd.Wait()
		}
		close(w.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("worker: start: %w", err)
	}
	return w, nil
}

// withoutOptions drops STREAMD_ variables.
func withoutOptions(env []string) []string {
	var out []string
	for _, v := range env {
		if !bytes.HasPrefix([]byte(v), []byte("STREAMD_")) {
			out = append(out, v)
		}
	}
	return out
}

// PID is its process ID.
func (w *Process) PID() int { return w.cmd.Process.Pid }

// Done is closed when it has ended. Then Err says how.
func (w *Process) Done() <-chan struct{} { return w.done }

// Err is how it ended; nil for a clean end. It is asked after Done only.
func (w *Process) Err() error { return w.err }

// Kill ends the worker at once, in the midst of whatever it does (SIGKILL).
func (w *Process) Kill() error {
	if err := w.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("worker: kill: %w", err)
	}
	<-w.done
	return nil
}

// Stop lets the worker commit and end. One that has not after the limit is killed, which is an error.
func (w *Process) Stop(ctx context.Context, limit time.Duration) error {
	_ = w.stdin.Close()
	select {
	case <-w.done:
	case <-time.After(limit):
		return errors.Join(fmt.Errorf("worker: it did not stop within %v", limit), w.Kill())
	case <-ctx.Done():
		return w.Kill()
	}
	if w.err != nil {
		return fmt.Errorf("worker: it stopped with an error: %w\n%s", w.err, w.Tail())
	}
	return nil
}

// Tail returns the end of the worker's log.
func (w *Process) Tail() string {
	data, err := os.ReadFile(w.log)
	if err != nil {
		return ""
	}
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	if len(lines) > 20 {
		lines = lines[len(lines)-20:]
	}
	return filepath.Base(w.log) + ":\n" + string(bytes.Join(lines, []byte("\n")))
}
