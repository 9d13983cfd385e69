package txlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/streamd/streamd/internal/fault"
)

// Remove removes the log of an application from a directory, and the directory if nothing else is in it. One that is not there is
// no error. ErrLocked while a process has it, ErrOtherApp if it is another application's. Killed in the middle, it leaves a
// directory that Open would restore in full, and that Remove can remove.
//
// What is to be done before, first, is done when it is known that nothing is in the way, and while nobody can open the directory. If it
// fails nothing is removed.
func Remove(dir, app string, first func() error) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return first()
	}
	lock, err := lockDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(removeLog(dir, app, lock, first), lock.release())
}

func removeLog(dir, app string, lock *dirLock, first func() error) error {
	var s state
	if known, err := readJSON(dir, stateName, &s); err == nil && known && s.App != app {
		return fmt.Errorf("txlog: %w: %q is of %q, not of %q", ErrOtherApp, dir, s.App, app)
	}
	// The lock is held without it; it tells others by whom. A full disk has no room for that, and this is what makes some.
	_ = lock.sign()
	if err := first(); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("txlog: remove: %w", err)
	}
	for _, e := range entries {
		if e.Name() != storeName && !strings.HasPrefix(e.Name(), asidePrefix) {
			continue
		}
		fault.Point("reset.file")
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("txlog: remove: %w", err)
		}
	}
	// What says whose the directory is goes last.
	for _, name := range []string{sessionName, markName, stateName, lockName} {
		fault.Point("reset.file")
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("txlog: remove: %w", err)
		}
	}
	if entries, err = os.ReadDir(dir); err != nil {
		return fmt.Errorf("txlog: remove: %w", err)
	}
	if len(entries) > 0 {
		return nil // of somebody else
	}
	if err := os.Remove(dir); err != nil {
		return fmt.Errorf("txlog: remove: %w", err)
	}
	return nil
}
