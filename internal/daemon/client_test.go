package daemon

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestAProcessThatHangs: one that takes the connection and says nothing is there, and one that is gone is not.
func TestAProcessThatHangs(t *testing.T) {
	dir, err := os.MkdirTemp("", "streamd-test-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewClient("unix:" + path)
	if err != nil {
		t.Fatal(err)
	}
	c.http.Timeout = 200 * time.Millisecond
	// A busy machine may not even get to the connection in that time.
	for limit := time.Now().Add(60 * time.Second); ; {
		_, err = c.Pipelines(t.Context())
		if errors.Is(err, ErrNoAnswer) || time.Now().After(limit) {
			break
		}
	}
	if !errors.Is(err, ErrNoAnswer) || errors.Is(err, ErrNotReachable) || ExitCode(err) != ExitTemporary {
		t.Errorf("a process that says nothing: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Pipelines(t.Context()); !errors.Is(err, ErrNotReachable) || ExitCode(err) != ExitTemporary {
		t.Errorf("a process that is gone: %v", err)
	}
}
