package crash

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// Damage is what may become of a state directory while nobody uses it.
type Damage string

// What is done to a whole directory. More are made by DamageFile.
const (
	Wiped      Damage = "wiped"
	RolledBack Damage = "rolled back" // by a Campaign, which has the older copy
)

// The ways to damage a file, and the files: `*` is any number.
const (
	flip     = "flip"
	truncate = "truncate"
	remove   = "remove"
)

// FileDamages returns each way to damage each kind of file in a state directory.
func FileDamages() []Damage {
	var all []Damage
	for _, kind := range []string{"txlog/MANIFEST", "txlog/*.sst", "txlog/*.mem", "txlog/*.vlog", "txlog/KEYREGISTRY", "txlog/DISCARD", "STATE", "SESSION", "MARK", "LOCK"} {
		for _, way := range []string{flip, truncate, remove} {
			all = append(all, Damage(way+" "+kind))
		}
	}
	return all
}

// ErrNoFile: there is no file of the kind to damage.
var ErrNoFile = errors.New("crash: no file of the kind")

// Do does the damage to a directory. The same random numbers damage the same place.
func (d Damage) Do(dir string, random *rand.Rand) error {
	switch d {
	case Wiped:
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("crash: %w", err)
		}
		return nil
	case FilterLost:
		return emptyFilters(dir)
	}
	way, kind, _ := strings.Cut(string(d), " ")
	files, err := filepath.Glob(filepath.Join(dir, filepath.FromSlash(kind)))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("%w: %s in %s (%v)", ErrNoFile, kind, dir, err)
	}
	file := files[random.IntN(len(files))]
	if err := damageFile(file, way, random); err != nil {
		return fmt.Errorf("crash: %s: %w", d, err)
	}
	return nil
}

func damageFile(path, way string, random *rand.Rand) error {
	if way == remove {
		return os.Remove(path)
	}
	used, err := usedBytes(path)
	if err != nil {
		return err
	}
	if used == 0 {
		return ErrNoFile
	}
	if way == truncate {
		return os.Truncate(path, random.Int64N(used))
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	at := random.Int64N(used)
	var b [1]byte
	if _, err = f.ReadAt(b[:], at); err == nil {
		b[0] ^= 1 << random.IntN(8)
		_, err = f.WriteAt(b[:], at)
	}
	return errors.Join(err, f.Close())
}

// usedBytes is the length of a file without the zeros at its end: logs are made longer than their content.
func usedBytes(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	used := int64(0)
	err = chunks(f, func(at int64, b []byte) error {
		used = at + int64(len(b))
		return nil
	})
	return used, err
}

// chunks calls fn with each piece of a file that is not all zeros, cut at its last byte that is not.
func chunks(f *os.File, fn func(at int64, b []byte) error) error {
	buf := make([]byte, 256<<10)
	for at := int64(0); ; {
		n, err := f.Read(buf)
		if b := bytes.TrimRight(buf[:n], "\x00"); len(b) > 0 {
			if err := fn(at, b); err != nil {
				return err
			}
		}
		at += int64(n)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// CopyDir copies a directory with all that is in it. Holes in files stay holes. The copy must not exist.
func CopyDir(from, to string) error {
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			return os.Mkdir(target, 0o755)
		case d.Type().IsRegular():
			return copyFile(path, target)
		}
		return nil // a socket of a process
	})
	if err != nil {
		return fmt.Errorf("crash: copying %s: %w", from, err)
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return err
	}
	err = chunks(in, func(at int64, b []byte) error {
		_, err := out.WriteAt(b, at)
		return err
	})
	return errors.Join(err, out.Truncate(info.Size()), out.Close())
}
