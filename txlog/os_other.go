//go:build !linux && !darwin && !freebsd

package txlog

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// errPlatform: the local log stands on flock, on the fsync of directories and on renames of what is open. Where they are
// missing, or were never tried, it does not start: the commands that need no state work there.
var errPlatform = fmt.Errorf("txlog: %w: there is no local log on %s; run pipelines on Linux or macOS", errors.ErrUnsupported, runtime.GOOS)

type dirLock struct{}

func lockDir(string) (*dirLock, error) { return nil, errPlatform }

func (*dirLock) sign() error    { return errPlatform }
func (*dirLock) release() error { return nil }

func diskSpace(string) (free, total uint64, err error) { return 0, 0, errPlatform }

func allocated(info os.FileInfo) int64 { return info.Size() }

func bootID() string { return "" }

func drawInstanceID() (string, error) { return "", errPlatform }

func transient(error) bool { return true } // nothing is set aside where nothing can be judged
