//go:build unix

package daemon

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// mayWrite is an error if this user may not make files in a directory.
func mayWrite(dir string) error {
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

// notADirectory is whether a path leads through a file.
func notADirectory(err error) bool { return errors.Is(err, unix.ENOTDIR) }

// diskUsage returns the bytes of the file system that holds path: free for this user, and in all.
func diskUsage(path string) (free, size uint64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, 0, err
	}
	return s.Bavail * uint64(s.Bsize), s.Blocks * uint64(s.Bsize), nil
}
