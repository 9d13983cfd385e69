package files

import (
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// errDead is what every step of a process returns after its death.
var errDead = errors.New("dead")

// memDisk is a file system that knows what would be there after a power loss: the content that was synced, under names that were synced
// in their folders. It fails, or dies, at a step.
type memDisk struct {
	root  *node
	steps int
	// dieAt is the step at which the process dies, 0: never. The step itself is done if after says so.
	dieAt int
	after bool
	// fail returns the error of a step that is to fail.
	fail func(step, path string) error
}

type node struct {
	children, durable map[string]*node // nil: a file
	data, synced      []byte
}

func newFolder() *node { return &node{children: map[string]*node{}, durable: map[string]*node{}} }

// newMemDisk has one directory, /out.
func newMemDisk() *memDisk {
	d := &memDisk{root: newFolder()}
	out := newFolder()
	d.root.children["out"], d.root.durable["out"] = out, out
	return d
}

// survivor is what the next process finds: all that was done, or after a power loss what was durable only.
func (d *memDisk) survivor(powerLoss bool) *memDisk {
	if powerLoss {
		lose(d.root, map[*node]bool{})
	}
	return &memDisk{root: d.root}
}

func lose(n *node, seen map[*node]bool) {
	if seen[n] {
		return
	}
	seen[n] = true
	if n.children == nil {
		n.data = slices.Clone(n.synced)
		return
	}
	n.children = maps.Clone(n.durable)
	for _, c := range n.children {
		lose(c, seen)
	}
}

// step runs one step unless the process is dead or dies before it.
func (d *memDisk) step(name, path string, do func() error) error {
	d.steps++
	if d.dieAt > 0 && (d.steps > d.dieAt || d.steps == d.dieAt && !d.after) {
		return errDead
	}
	if d.fail != nil {
		if err := d.fail(name, path); err != nil {
			return &fs.PathError{Op: name, Path: path, Err: err}
		}
	}
	err := do()
	if err != nil {
		return &fs.PathError{Op: name, Path: path, Err: err}
	}
	if d.steps == d.dieAt {
		return errDead
	}
	return nil
}

func (d *memDisk) find(path string) *node {
	n := d.root
	for _, part := range strings.Split(strings.Trim(path, "/"), "/") {
		if n == nil || n.children == nil {
			return nil
		}
		n = n.children[part]
	}
	return n
}

// add puts a node under a name that is free.
func (d *memDisk) add(path string, n *node) error {
	in := d.find(filepath.Dir(path))
	if in == nil {
		return syscall.ENOENT
	}
	if in.children == nil {
		return syscall.ENOTDIR
	}
	if in.children[filepath.Base(path)] != nil {
		return syscall.EEXIST
	}
	in.children[filepath.Base(path)] = n
	return nil
}

func (d *memDisk) mkdir(path string) error {
	return d.step("mkdir", path, func() error { return d.add(path, newFolder()) })
}

func (d *memDisk) create(path string) (file, error) {
	n := &node{}
	err := d.step("create", path, func() error { return d.add(path, n) })
	if err != nil {
		return nil, err
	}
	return &memFile{d, n, path}, nil
}

func (d *memDisk) rename(from, to string) error {
	return d.step("rename", from, func() error {
		n, target := d.find(from), d.find(to)
		switch {
		case n == nil:
			return syscall.ENOENT
		case n == target:
			return nil // two names of one file: POSIX leaves both
		case target != nil && target.children != nil && len(target.children) > 0:
			return syscall.ENOTEMPTY
		case target != nil:
			delete(d.find(filepath.Dir(to)).children, filepath.Base(to))
		}
		if err := d.add(to, n); err != nil {
			return err
		}
		delete(d.find(filepath.Dir(from)).children, filepath.Base(from))
		return nil
	})
}

func (d *memDisk) remove(path string) error {
	return d.step("remove", path, func() error {
		switch n := d.find(path); {
		case n == nil:
			return syscall.ENOENT
		case len(n.children) > 0:
			return syscall.ENOTEMPTY
		}
		delete(d.find(filepath.Dir(path)).children, filepath.Base(path))
		return nil
	})
}

func (d *memDisk) names(path string) (names []string, err error) {
	err = d.step("names", path, func() error {
		n := d.find(path)
		if n == nil {
			return syscall.ENOENT
		}
		names = slices.Sorted(maps.Keys(n.children))
		return nil
	})
	return names, err
}

func (d *memDisk) read(path string) (b []byte, err error) {
	err = d.step("read", path, func() error {
		n := d.find(path)
		if n == nil {
			return syscall.ENOENT
		}
		b = slices.Clone(n.data)
		return nil
	})
	return b, err
}

func (d *memDisk) exists(path string) (there bool, err error) {
	err = d.step("exists", path, func() error {
		there = d.find(path) != nil
		return nil
	})
	return there, err
}

func (d *memDisk) sync(path string) error {
	return d.step("sync", path, func() error {
		n := d.find(path)
		if n == nil {
			return syscall.ENOENT
		}
		n.durable = maps.Clone(n.children)
		return nil
	})
}

type memFile struct {
	d    *memDisk
	n    *node
	path string
}

func (f *memFile) Write(b []byte) (int, error) {
	err := f.d.step("write", f.path, func() error {
		f.n.data = append(f.n.data, b...)
		return nil
	})
	return len(b), err
}

func (f *memFile) Sync() error {
	return f.d.step("fsync", f.path, func() error {
		f.n.synced = slices.Clone(f.n.data)
		return nil
	})
}

func (f *memFile) Close() error { return nil }
