//go:build !unix

package rawstore

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// lockShared refuses: where there is no flock, there is no local store either.
func lockShared(path string) (*os.File, error) {
	return nil, fmt.Errorf("rawstore: lock %s: %w on %s", path, errors.ErrUnsupported, runtime.GOOS)
}
