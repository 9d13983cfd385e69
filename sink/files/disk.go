package files

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// disk is what the target needs of a file system. Tests stand in between, to fail and to die at each step.
type disk interface {
	mkdir(path string) error
	// create makes a file that must not be there.
	create(path string) (file, error)
	rename(from, to string) error
	// remove takes away a file or an empty directory.
	remove(path string) error
	// names lists a directory, sorted.
	names(path string) ([]string, error)
	read(path string) ([]byte, error)
	exists(path string) (bool, error)
	// sync makes the entries of a directory durable.
	sync(path string) error
}

// file is one that is being written.
type file interface {
	Write(b []byte) (int, error)
	Sync() error
	Close() error
}

// osDisk is the real one.
type osDisk struct{}

func (osDisk) mkdir(path string) error          { return os.Mkdir(path, 0o755) }
func (osDisk) rename(from, to string) error     { return os.Rename(from, to) }
func (osDisk) remove(path string) error         { return os.Remove(path) }
func (osDisk) read(path string) ([]byte, error) { return os.ReadFile(path) }

func (osDisk) create(path string) (file, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err // not a nil *os.File in the interface
	}
	return f, nil
}

func (osDisk) names(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

func (osDisk) exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (osDisk) sync(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// full says that an error is about room, which may come back.
func full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// refused says that an error is about rights.
func refused(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)
}

// gone says that a path is not there: of a claim's own folder, that somebody else has taken it away.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESTALE) }

// taken says that a place has something in it. A rename onto a folder that is not empty fails by POSIX with EEXIST or ENOTEMPTY, which
// are both this.
func taken(err error) bool { return errors.Is(err, fs.ErrExist) }

// broken says that the directory is none, or lies on several disks or one that cannot rename.
func broken(err error) bool {
	for _, kind := range []error{syscall.ENOTDIR, syscall.EXDEV, syscall.ENAMETOOLONG, syscall.ENOSYS, syscall.ELOOP} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}
