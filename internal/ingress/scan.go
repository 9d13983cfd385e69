package ingress

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// scan finds out which files there are, and which of them are those that were read before.
func (x *Files) scan(now time.Time) error {
	for _, f := range x.files {
		f.left = false
	}
	clear(x.failed)
	paths, err := x.paths(now)
	if err != nil {
		return err
	}
	seen := map[*file]bool{}
	// First those that are known by their inodes, so that no copy is taken for one of them.
	for _, known := range []bool{true, false} {
		if !known {
			// And whether one was cut, so that its copy is not taken for a new file.
			if err := x.verify(now); err != nil {
				return err
			}
		}
		paths = slices.DeleteFunc(paths, func(path string) bool {
			f, ferr := x.find(path, known, now)
			switch {
			case errors.Is(ferr, fs.ErrNotExist): // it went in between
			case ferr != nil:
				err = errors.Join(err, x.endure(path, ferr, now))
			case f != nil:
				f.gone = false
				seen[f] = true
				return true
			}
			return false
		})
	}
	if err != nil {
		return err
	}
	for _, f := range x.files {
		// What could not be looked at may be what leads to it: then nothing is known of whether it is gone.
		if !seen[f] && !f.gone && len(x.failed) == 0 {
			f.gone, f.grown = true, now // a writer may still have it open
		}
	}
	return nil
}

// endure takes note that a path cannot be read, and returns the error once that has been so for longer than it may. Whoever makes a file may
// give it its rights only then, and a file server comes back. Other files are read meanwhile.
func (x *Files) endure(path string, err error, now time.Time) error {
	x.failed[path] = true
	x.log.cfg.Watch.failed(err)
	since, told := x.unreadable[path]
	if !told {
		since = now
		x.unreadable[path] = now
		x.log.cfg.Logger.Warn("ingress: a file cannot be read; trying again, and the source stops if that lasts", "source", x.log.cfg.Source, "file", path, "for", unreadableFor, "err", err)
	}
	if now.Sub(since) < unreadableFor {
		return nil
	}
	return fmt.Errorf("ingress: file %q cannot be read for %v; give streamd the right to, or leave it out with exclude: %w", path, now.Sub(since), err)
}

// healed forgets the paths that did not fail this time.
func (x *Files) healed() {
	for path := range x.unreadable {
		if !x.failed[path] {
			delete(x.unreadable, path)
			x.log.cfg.Logger.Info("ingress: a file can be read again, or is gone", "source", x.log.cfg.Source, "file", path)
		}
	}
	if len(x.unreadable) == 0 {
		x.log.cfg.Watch.waits("")
	}
}

// verify looks whether open files still hold what was read of them.
func (x *Files) verify(now time.Time) error {
	for _, f := range x.files {
		info, err := f.f.Stat()
		same := false
		if err == nil {
			same, err = f.holds(f.f, info.Size())
		}
		if err != nil {
			f.left = true
			if err := x.endure(f.Path, err, now); err != nil {
				return err
			}
			continue
		}
		if !same {
			x.begunAnew(f, now)
		}
		if info.Size() != f.size {
			f.size, f.grown = info.Size(), now
		}
	}
	return nil
}

// paths lists what the patterns name, in order, each once.
func (x *Files) paths(now time.Time) ([]string, error) {
	var all []string
	for _, pattern := range x.cfg.Paths {
		if err := x.listable(pattern, now); err != nil {
			return nil, err
		}
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("ingress: pattern %q: %w", pattern, err)
		}
		all = append(all, found...)
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(path string) bool {
		return slices.ContainsFunc(x.cfg.Exclude, func(pattern string) bool {
			whole, _ := filepath.Match(pattern, path) // checked when the file was loaded
			name, _ := filepath.Match(pattern, filepath.Base(path))
			return whole || name
		})
	}), nil
}

// listable looks whether the directories of a pattern can be: Glob takes one that cannot be read for an empty one, and a name in one that cannot be
// looked into for one that is not there.
func (x *Files) listable(pattern string, now time.Time) error {
	const meta = `*?[\`
	dir, name := filepath.Split(pattern)
	dirs := []string{filepath.Clean(dir)}
	if strings.ContainsAny(dir, meta) {
		if err := x.listable(dirs[0], now); err != nil {
			return err
		}
		var err error
		if dirs, err = filepath.Glob(dirs[0]); err != nil {
			return fmt.Errorf("ingress: pattern %q: %w", pattern, err)
		}
	}
	for _, path := range dirs {
		var err error
		if strings.ContainsAny(name, meta) {
			err = list(path)
		} else {
			path = filepath.Join(path, name)
			_, err = os.Lstat(path)
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		if err := x.endure(path, err, now); err != nil {
			return err
		}
	}
	return nil
}

// list says why a directory cannot be listed.
func list(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	_, err = d.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, d.Close())
}

// find is the file that a path leads to: one that is open, one whose place is known by the inode; or else, a moved or a new one. nil: none.
func (x *Files) find(path string, inodes bool, now time.Time) (*file, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil
	}
	name := placeName(path)
	dev, ino, _, known := inode(info)
	for _, f := range x.files {
		if known && f.Dev == dev && f.Inode == ino || !known && f.Path == name {
			f.Path = name
			return f, nil
		}
	}
	if info.Size() == 0 {
		return nil, nil // nothing yet, and maybe a copy in the making
	}
	h, err := x.open(path)
	if err != nil {
		return nil, err
	}
	if info, err = h.Stat(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	dev, ino, _, _ = inode(info)
	var f *file
	if inodes {
		f, err = x.returned(h, name, info, now)
	} else {
		f, err = x.newcomer(h, path, info, now)
	}
	if err != nil || f == nil {
		_ = h.Close() // it was only read
		return nil, err
	}
	f.f, f.Path, f.Dev, f.Inode = h, name, dev, ino
	x.files = append(x.files, f)
	delete(x.waiting, path)
	return f, nil
}

// returned is a file that was read before: the inode says that it may be the one; what stands in it, that it is.
func (x *Files) returned(h handle, name string, info os.FileInfo, now time.Time) (*file, error) {
	dev, ino, _, known := inode(info)
	return x.adopt(h, info, now, func(u *unseen) bool {
		// Numbers of devices change when a machine starts again: then the name has to agree.
		return known && u.Inode == ino && (u.Dev == dev || u.Path == name) || !known && u.Path == name
	})
}

// adopt goes on with the first place that may be the file's and whose content is.
func (x *Files) adopt(h handle, info os.FileInfo, now time.Time, may func(*unseen) bool) (*file, error) {
	for i := range x.unseen {
		u := &x.unseen[i]
		if !may(u) {
			continue
		}
		same, err := u.holds(h, info.Size())
		if err != nil {
			return nil, err
		}
		if same {
			f := &file{place: u.place, grown: now}
			x.unseen = slices.Delete(x.unseen, i, i+1)
			return f, nil
		}
	}
	return nil, nil
}

// newcomer is a file with an inode that says nothing: the copy of one that was read and is gone or was cut since, or a new one. nil: the copy of
// one that is being read, as copytruncate makes it before it cuts the original; it is read from there on when that has happened.
func (x *Files) newcomer(h handle, path string, info os.FileInfo, now time.Time) (*file, error) {
	f, err := x.adopt(h, info, now, func(u *unseen) bool { return u.unmistakable() })
	if f != nil || err != nil {
		return f, err
	}
	for _, f := range x.files {
		n, same, err := f.copied(h, info.Size())
		if errors.Is(err, errCut) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if !same {
			// It may have been, until the original was cut just now: then the next look finds it as the copy of what was read.
			if intact, err := f.intact(); err != nil || !intact {
				return nil, err
			}
		}
		// A short one that begins as another may be a copy in the making. It may as well be one that only begins alike: it has some time.
		sure := n >= sumBytes
		if !same || !sure && info.Size() >= f.Offset {
			continue
		}
		since, told := x.waiting[path]
		if !told {
			since = now
			x.waiting[path] = now
			x.log.cfg.Logger.Info("ingress: a file is, so far, a copy of another one: it is not read as long as that one has the same", "source", x.log.cfg.Source, "file", path, "original", f.Path)
		}
		if sure || now.Sub(since) < x.cfg.LastLine {
			return nil, nil
		}
	}
	return &file{place: place{ID: newFileID()}, grown: now}, nil
}

// copied says whether another file holds what stands in this one, as far as it goes or this one was read: n bytes.
func (f *file) copied(h handle, size int64) (n int64, same bool, err error) {
	n = min(size, f.Offset)
	head, tail, err := sums(h, n)
	if err != nil || n == 0 {
		return n, false, err
	}
	ownHead, ownTail, err := sums(f.f, n)
	if errors.Is(err, errCut) {
		return n, false, nil
	}
	return n, err == nil && head == ownHead && tail == ownTail, err
}

// finish closes files that are gone and were read to their end, and forgets places that nobody will ask for.
func (x *Files) finish(now time.Time) {
	x.files = slices.DeleteFunc(x.files, func(f *file) bool {
		if !f.gone || now.Sub(f.grown) < x.cfg.LastLine {
			return false
		}
		info, err := f.f.Stat()
		if err != nil || info.Size() > f.Offset {
			return false // the next look says what is wrong with it
		}
		_ = f.f.Close() // it was only read
		_, _, links, _ := inode(info)
		switch {
		case f.Offset == 0: // nothing is kept of it
		case links == 0: // deleted: nobody can find it again
			x.forgets = append(x.forgets, f.ID)
		default:
			x.unseen = append(x.unseen, unseen{f.place, now})
		}
		return true
	})
	x.unseen = slices.DeleteFunc(x.unseen, func(u unseen) bool {
		if now.Sub(u.since) < keepUnseen {
			return false
		}
		if u.Offset > 0 {
			x.forgets = append(x.forgets, u.ID)
		}
		return true
	})
}
