//go:build linux || darwin || freebsd

package txlog

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// dirLock is the lock on a state directory. The kernel's flock is free again after any kind of
// death of its holder; the text in the file only names the holder.
type dirLock struct{ f *os.File }

// lockDir locks the directory without waiting. The text is written by [dirLock.sign], so that a
// start that is refused for another reason changes nothing.
func lockDir(dir string) (*dirLock, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("txlog: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("txlog: lock %q: %w", path, err)
		}
		holder := make([]byte, 256)
		n, _ := f.ReadAt(holder, 0) // an unreadable name must not hide the lock itself
		pid, host, _ := strings.Cut(strings.TrimSpace(string(holder[:n])), " ")
		return nil, fmt.Errorf("txlog: %w: %q is locked by process %q on host %q", ErrLocked, dir, pid, host)
	}
	return &dirLock{f}, nil
}

// sign writes this process's name into the lock.
func (l *dirLock) sign() error {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	if err := l.f.Truncate(0); err != nil {
		return fmt.Errorf("txlog: sign lock: %w", err)
	}
	if _, err := l.f.WriteAt(fmt.Appendf(nil, "%d %s\n", os.Getpid(), host), 0); err != nil {
		return fmt.Errorf("txlog: sign lock: %w", err)
	}
	return nil
}

// release gives the lock back. The file stays: removing it would let two processes lock two files.
func (l *dirLock) release() error {
	return errors.Join(l.f.Truncate(0), l.f.Close())
}

// diskSpace returns the bytes that an ordinary user may still write on the disk of dir, and its size.
func diskSpace(dir string) (free, total uint64, err error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, 0, fmt.Errorf("txlog: free space of %q: %w", dir, err)
	}
	return uint64(st.Bavail) * uint64(st.Bsize), uint64(st.Blocks) * uint64(st.Bsize), nil
}

// allocated is what a file takes on the disk: Badger's logs are sparse, their length says nothing.
func allocated(info os.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}

// bootID names this boot of the machine, "" if it cannot be known.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// drawInstanceID returns 16 random hexadecimal digits. It is drawn once for each directory, so that no
// replay depends on it.
func drawInstanceID() (string, error) {
	f, err := os.Open("/dev/urandom")
	if err != nil {
		return "", err
	}
	defer f.Close()
	var b [8]byte
	if _, err := io.ReadFull(f, b[:]); err != nil {
		return "", err
	}
	return hex.EncodeToString(b[:]), nil
}

// transient says that an error comes from the process or the machine, not from the content of the
// store: nothing is set aside for it.
func transient(err error) bool {
	for _, e := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC, syscall.EDQUOT, syscall.EACCES,
		syscall.EPERM, syscall.EROFS, syscall.EINTR,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
