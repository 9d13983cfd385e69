package demo

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

// stopLimit is how long a worker has for its last commit.
const stopLimit = 5 * time.Second

// worker is a child process.
type worker struct {
	cmd   *exec.Cmd
	stdin io.Closer // its end stops the worker
	done  chan struct{}
	err   error // of its end; read after done
	log   string
}

// startWorker starts this program again with the arguments. What it logs goes to the file.
func startWorker(executable, name string, args []string, logFile string) (*worker, error) {
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("demo: worker's log: %w", err)
	}
	defer out.Close() // the child has its own
	cmd := exec.Command(executable, args...)
	cmd.Args[0] = name
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = childAttributes()
	// Variables of this process must not change what the demo shows.
	cmd.Env = withoutOptions(os.Environ())
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("demo: worker: %w", err)
	}
	w := &worker{cmd: cmd, stdin: stdin, done: make(chan struct{}), log: logFile}
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
		return nil, fmt.Errorf("demo: starting the worker: %w", err)
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

func (w *worker) pid() int { return w.cmd.Process.Pid }

// kill ends the worker at once, in the midst of whatever it does (SIGKILL).
func (w *worker) kill() error {
	if err := w.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("demo: killing the worker: %w", err)
	}
	<-w.done
	return nil
}

// stop lets the worker commit and end. One that does not is killed, which is an error.
func (w *worker) stop(ctx context.Context) error {
	_ = w.stdin.Close()
	select {
	case <-w.done:
	case <-time.After(stopLimit):
		return errors.Join(fmt.Errorf("demo: the worker did not stop within %v", stopLimit), w.kill())
	case <-ctx.Done():
		return w.kill()
	}
	if w.err != nil {
		return fmt.Errorf("demo: the worker stopped with an error: %w\n%s", w.err, w.tail())
	}
	return nil
}

// tail returns the end of the worker's log.
func (w *worker) tail() string {
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
