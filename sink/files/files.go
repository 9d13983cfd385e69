package files

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/sink"
)

// Format is how rows are written.
type Format string

// The formats.
const (
	JSONLines Format = "jsonl" // an object on each line, see sink.Table.AppendJSON
	CSV       Format = "csv"   // RFC 4180 with a line of names; what is text is quoted, a null is nothing between commas
)

// Defaults of a Config.
const (
	DefaultSize     = 64 << 20
	DefaultInterval = time.Minute
)

const (
	// hidden is the target's own folder in the directory.
	hidden = ".streamd"
	// probePrefix and shownPrefix begin the names of what a check makes, there and in the directory. No folder of a sink begins so: a semicolon
	// is escaped in it.
	probePrefix = "probe;"
	shownPrefix = hidden + "-" + probePrefix
)

// Config says where and what to write.
type Config struct {
	// Directory must exist, on a file system that renames folders atomically, as all local ones and NFS do. It belongs to one
	// sink: another one is refused.
	Directory string
	// Table has the columns, and in Name what the names of files begin with. It has no key: rows are appended.
	Table sink.Table
	// Format is JSONLines if empty.
	Format Format
	// Gzip compresses each file, with a header that says nothing of when or where.
	Gzip bool
	// Size in bytes, before compression, from which on a file is ended with the batch that reached it. Default: DefaultSize.
	Size int64
	// Interval is how long a file is open at most; until it ends, no reader sees its rows. Default: DefaultInterval.
	Interval time.Duration
}

// Open makes a target. It touches nothing.
func Open(c Config) (sink.Target, error) {
	if c.Format == "" {
		c.Format = JSONLines
	}
	if c.Size == 0 {
		c.Size = DefaultSize
	}
	if c.Interval == 0 {
		c.Interval = DefaultInterval
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &target{cfg: c, disk: osDisk{}}, nil
}

func (c Config) validate() error {
	errs := []error{c.Table.Validate()}
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf("files: "+format, args...)) }
	if c.Directory == "" {
		fail("no directory")
	}
	if strings.HasPrefix(c.Table.Name, ".") || strings.ContainsAny(c.Table.Name, "/\x00") || len(c.Table.Name) > 100 {
		fail("%q cannot begin the name of a file: want at most 100 bytes without a slash, and no point in front", c.Table.Name)
	}
	if len(c.Table.Key) > 0 {
		fail("a key has no meaning: files are only appended to")
	}
	if c.Format != JSONLines && c.Format != CSV {
		fail("format %q, want %s or %s", c.Format, JSONLines, CSV)
	}
	if c.Size < 0 {
		fail("a size of %d bytes, want more than 0", c.Size)
	}
	if c.Interval < 0 {
		fail("an interval of %v, want more than 0", c.Interval)
	}
	return errors.Join(errs...)
}

type target struct {
	cfg  Config
	disk disk
}

// Class is Ledger: a file and the offsets that it stands for are committed by one rename.
func (t *target) Class() sink.Class { return sink.Ledger }

// Close has nothing to give back.
func (t *target) Close() error { return nil }

// Check tries, with a file that it takes away again, all that a commit does.
func (t *target) Check(context.Context) error {
	dir := t.cfg.Directory
	there, err := t.disk.exists(dir)
	switch {
	case err != nil:
		return t.setup("look for the directory", err)
	case !there:
		return &sink.SetupError{Err: fmt.Errorf("files: directory %q is not there", dir), Remedy: "create it; streamd does not, since a disk that is not mounted looks the same"}
	}
	if err := t.ensure(dir, hidden); err != nil {
		return err
	}
	if err := t.sweep(); err != nil {
		return err
	}
	id := rand.Text()
	folder, shown := filepath.Join(dir, hidden, probePrefix+id), filepath.Join(dir, shownPrefix+id)
	probe := filepath.Join(folder, dataName)
	err = t.disk.mkdir(folder)
	if err == nil {
		err = errors.Join(t.fill(probe), t.disk.sync(folder))
	}
	if err == nil {
		err = errors.Join(t.disk.rename(probe, shown), t.disk.sync(dir))
	}
	return t.setup("try to write a file", errors.Join(err, t.absent(shown), t.empty(folder)))
}

// sweep removes what checks have left that were killed. A check of another process that is under way is tried again by it.
func (t *target) sweep() error {
	dir := t.cfg.Directory
	root := filepath.Join(dir, hidden)
	shown, err := t.disk.names(dir)
	for _, name := range shown {
		if strings.HasPrefix(name, shownPrefix) {
			err = errors.Join(err, t.absent(filepath.Join(dir, name)))
		}
	}
	folders, listed := t.names(root)
	err = errors.Join(err, listed)
	for _, name := range folders {
		if strings.HasPrefix(name, probePrefix) {
			err = errors.Join(err, t.empty(filepath.Join(root, name)))
		}
	}
	return t.setup("remove what an older check has left", err)
}

// fill writes a file of one page: a full disk refuses it.
func (t *target) fill(path string) error {
	return t.whole(path, make([]byte, 4096))
}

// whole writes a small file durably, but for its name.
func (t *target) whole(path string, content []byte) error {
	f, err := t.disk.create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// absent removes what may be there.
func (t *target) absent(path string) error {
	if err := t.disk.remove(path); err != nil && !gone(err) {
		return err
	}
	return nil
}

// ensure makes folders, one in the other, durably.
func (t *target) ensure(in string, names ...string) error {
	for _, name := range names {
		path := filepath.Join(in, name)
		switch err := t.disk.mkdir(path); {
		case err == nil:
			if err := t.disk.sync(in); err != nil {
				return t.setup("make a folder", err)
			}
		case !taken(err):
			return t.setup("make a folder", err)
		}
		in = path
	}
	return nil
}

// setup says what an error of the file system means.
func (t *target) setup(what string, err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("files: %s: %w", what, err)
	switch {
	case full(err):
		return fmt.Errorf("files: no room on the disk of %q: %s: %w", t.cfg.Directory, what, err) // may come back
	case refused(err):
		return &sink.SetupError{Err: wrapped, Rights: true, Remedy: fmt.Sprintf("streamd's user needs the right to make and rename files and folders in %q, and its disk must not be read-only", t.cfg.Directory)}
	case broken(err):
		return &sink.SetupError{Err: wrapped, Remedy: fmt.Sprintf("%q must be a directory on one disk that can rename", t.cfg.Directory)}
	}
	return wrapped
}

// names lists the folders of a folder; none if it is not there.
func (t *target) names(path string) ([]string, error) {
	names, err := t.disk.names(path)
	if gone(err) {
		return nil, nil
	}
	return names, err
}

// sinkFolder makes the folder of a sink. A directory in which another sink has one is refused: files of both would have the same names.
func (t *target) sinkFolder(name string) (string, error) {
	root := filepath.Join(t.cfg.Directory, hidden)
	if err := t.ensure(t.cfg.Directory, hidden, name); err != nil {
		return "", err
	}
	names, err := t.names(root)
	if err != nil {
		return "", t.setup("look for other sinks", err)
	}
	others := slices.DeleteFunc(names, func(n string) bool {
		// The folder of an application whose name begins with a point is a sink's all the same.
		return n == name || strings.HasPrefix(n, probePrefix) || stray(n) && !strings.Contains(n, url.PathEscape("/"))
	})
	if len(others) > 0 {
		_ = t.disk.remove(filepath.Join(root, name)) // if it is new; one with progress is not empty
		return "", &sink.SetupError{
			Err:    fmt.Errorf("files: directory %q belongs to sink %q", t.cfg.Directory, others[0]),
			Remedy: fmt.Sprintf("give each sink a directory of its own; if that sink is gone for good, delete %s", filepath.Join(root, others[0])),
		}
	}
	return filepath.Join(root, name), nil
}
