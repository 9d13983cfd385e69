package dbenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// startTimeout is for a machine that is busy with other tests.
const startTimeout = 2 * time.Minute

// Server is a database server that was started here.
type Server struct {
	Kind string // postgres, mariadb or redis
	// Address is HOST:PORT. It stays the same over Kill and Start.
	Address string
	Dir     string

	command func() *exec.Cmd
	ready   func(context.Context) error
	cmd     *exec.Cmd
	exited  chan struct{}
}

// find looks for a program on the PATH and where Debian hides it.
func find(name, pkg string, elsewhere ...string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, pattern := range elsewhere {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return "", fmt.Errorf("dbenv: %w", err)
		}
		if len(found) > 0 {
			return slices.Max(found), nil
		}
	}
	return "", fmt.Errorf("dbenv: no program %q: `make tools` installs it (Debian's package %s)", name, pkg)
}

// freePort returns a port of 127.0.0.1 that nobody listened on a moment ago.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("dbenv: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// unprivileged is another user's identity if this process is root, which PostgreSQL refuses to run as.
func unprivileged(name string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("dbenv: PostgreSQL does not run as root, and there is no user %q to run it as: %w", name, err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("dbenv: user %q: %w", name, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("dbenv: user %q: %w", name, err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// dataDir makes the server's directory. It is not the test's own: another user must reach it.
func dataDir(kind string, owner *syscall.Credential) (string, error) {
	dir, err := os.MkdirTemp("", "streamd-"+kind+"-")
	if err != nil {
		return "", fmt.Errorf("dbenv: %w", err)
	}
	if owner != nil {
		if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
			return "", fmt.Errorf("dbenv: %w", err)
		}
	}
	return dir, nil
}

// run runs a program to its end.
func run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("dbenv: %s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

// Start starts the server, again after Kill or Stop, and waits until it answers. A server that ends at
// once is started again: after a kill -9 the children of PostgreSQL may still hold its memory for a moment.
func (s *Server) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := s.start(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (s *Server) start(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(s.Dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("dbenv: %w", err)
	}
	defer func() { _ = log.Close() }() // the child has its own
	cmd := s.command()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("dbenv: %s: %w", s.Kind, err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(exited)
	}()
	s.cmd, s.exited = cmd, exited
	for {
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-exited:
			s.cmd = nil
			return fmt.Errorf("dbenv: %s ended at its start: %s", s.Kind, s.Log())
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("dbenv: %s did not answer: %w\n%s", s.Kind, err, s.Log()), s.Kill())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Kill ends the server as a power loss of the process would.
func (s *Server) Kill() error { return s.end(syscall.SIGKILL) }

// Stop ends the server in order.
func (s *Server) Stop() error { return s.end(syscall.SIGTERM) }

// Pause stops the server in its tracks, Resume lets it go on.
func (s *Server) Pause() error { return s.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (s *Server) Resume() error { return s.cmd.Process.Signal(syscall.SIGCONT) }

func (s *Server) end(sig syscall.Signal) error {
	if s.cmd == nil {
		return nil
	}
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("dbenv: %s: %w", s.Kind, err)
	}
	select {
	case <-s.exited:
	case <-time.After(startTimeout):
		return fmt.Errorf("dbenv: %s does not end after signal %d", s.Kind, sig)
	}
	s.cmd = nil
	return nil
}

// Remove kills the server and removes its directory.
func (s *Server) Remove() error {
	return errors.Join(s.Kill(), os.RemoveAll(s.Dir))
}

// Log returns the end of the server's log.
func (s *Server) Log() string {
	text, err := os.ReadFile(filepath.Join(s.Dir, "server.log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}

// answers says whether something listens at the address.
func answers(address string) error {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}
