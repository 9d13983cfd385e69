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
	at, err := filepath.Abs(dir)
	if err != nil {
		return 0, 0, fmt.Errorf("disk: %w", err)
	}
	for {
		_, err := os.Stat(at)
		if parent := filepath.Dir(at); errors.Is(err, fs.ErrNotExist) && parent != at {
			at = parent
			continue
		}
		break
	}
	return diskUsage(at)
}
