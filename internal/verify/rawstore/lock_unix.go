//go:build unix

package rawstore

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lockShared takes the directory's lock as a reader: several may look at a time, and no process starts.
func lockShared(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("rawstore: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("rawstore: %w: %s", ErrInUse, path)
		}
		return nil, fmt.Errorf("rawstore: lock %s: %w", path, err)
	}
	return f, nil
}
