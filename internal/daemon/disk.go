package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// DiskSpace is the room on the file system of a directory, which need not be there yet, in bytes.
func DiskSpace(dir string) (free, total uint64, err error) {
	at, err := existing(dir)
	if err != nil {
		return 0, 0, err
	}
	return diskUsage(at)
}

// Writable is an error if this user may not write in a directory, or make it. Nothing is written.
func Writable(dir string) error {
	at, err := existing(dir)
	if err != nil {
		return err
	}
	switch i, err := os.Stat(at); {
	case err != nil:
		return err
	case !i.IsDir():
		return fmt.Errorf("%s is no directory", at)
	}
	return mayWrite(at)
}

// existing is the directory, or the nearest one above it that is there.
func existing(dir string) (string, error) {
	at, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("disk: %w", err)
	}
	for {
		_, err := os.Stat(at)
		if parent := filepath.Dir(at); (errors.Is(err, fs.ErrNotExist) || notADirectory(err)) && parent != at {
			at = parent
			continue
		}
		return at, nil
	}
}
