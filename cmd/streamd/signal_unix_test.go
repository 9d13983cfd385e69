//go:build unix

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/daemon"
)

// TestSignalWhileReading: a command that waits for a file ends with the first signal, before it listens for one.
func TestSignalWhileReading(t *testing.T) {
	for _, command := range []string{"validate", "run"} {
		pipe := filepath.Join(t.TempDir(), "pipeline.yaml")
		if err := syscall.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		p := start(t, command, pipe)
		opened := make(chan *os.File, 1)
		go func() {
			w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // returns when somebody reads
			if err != nil {
				t.Error(err)
			}
			opened <- w
		}()
		select {
		case w := <-opened:
			defer w.Close()
		case <-time.After(60 * time.Second):
			t.Fatalf("%s does not read its file:\n%s", command, p.out)
		}
		if err := p.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if code := p.ends(t, 60*time.Second); code != daemon.ExitInterrupted {
			t.Errorf("%s ends with %d:\n%s", command, code, p.out)
		}
	}
}
