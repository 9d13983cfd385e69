package files

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
)

// writer is a claim of one partition.
type writer struct {
	t    *target
	p    sink.Partition
	work string // the claim's own folder; gone when somebody else has claimed the partition
	log  string

	count uint64 // of the newest portion in the log; 0: none
	next  record.Offset
	known bool
	done  bool // failed: only the log knows what is there
	moved bool // the rename that commits the open portion was begun, and may be done yet

	// The open portion: next to end. Invariant: next <= end.
	end   record.Offset
	since time.Time // when Settle first saw it; zero: not yet
	size  int64
	file  file         // nil: no rows yet
	zip   *gzip.Writer // nil: not compressed
}

// Next is where the newest committed file ends.
func (w *writer) Next() (record.Offset, bool) { return w.next, w.known }

// Close drops the open file. It takes it away as well, unless it may be committed yet: on a full disk the next claim needs the room. What is left, and
// that of a process that was killed, that claim takes away.
func (w *writer) Close() error {
	var err error
	if f := w.file; f != nil {
		w.file = nil
		err = f.Close()
	}
	if !w.moved {
		err = errors.Join(err, w.t.empty(w.folder()))
	}
	return err
}

// Write appends a batch to the open file, and ends the file if it is large enough.
func (w *writer) Write(_ context.Context, b sink.Batch) error {
	if err := w.usable(); err != nil {
		return err
	}
	lines, err := w.t.lines(b.Rows)
	if err != nil {
		return err
	}
	if w.known && b.First < w.end {
		return fmt.Errorf("files: a batch from offset %d, the file has all up to %d", b.First, w.end)
	}
	w.done = true
	if err := w.append(b, lines); err != nil {
		return err
	}
	if w.size >= w.t.cfg.Size {
		if err := w.commit(); err != nil {
			return err
		}
	}
	w.done = false
	return nil
}

// Settle ends the open file if it has been open for long enough.
func (w *writer) Settle(_ context.Context, now time.Time) error {
	if w.end == w.next {
		return nil
	}
	if w.since.IsZero() {
		w.since = now
	}
	if now.Sub(w.since) < w.t.cfg.Interval {
		return nil
	}
	if err := w.usable(); err != nil {
		return err
	}
	w.done = true
	if err := w.commit(); err != nil {
		return err
	}
	w.done = false
	return nil
}

func (w *writer) usable() error {
	if w.done {
		return errors.New("files: the writer has failed before: claim the partition again")
	}
	return w.owned()
}

// owned fails if somebody else has claimed the partition.
func (w *writer) owned() error {
	there, err := w.t.disk.exists(w.work)
	if err != nil {
		return w.t.setup("look whether the partition is still ours", err)
	}
	if !there {
		return w.fenced()
	}
	return nil
}

func (w *writer) fenced() error {
	return fmt.Errorf("files: sink %q, partition %d: %w", w.p.Sink, w.p.Partition, sink.ErrFenced)
}

// fault is an error below the claim's folder: if that is gone, another claim is the cause.
func (w *writer) fault(what string, err error) error {
	if gone(err) {
		return w.fenced()
	}
	return w.t.setup(what, err)
}

func (w *writer) append(b sink.Batch, lines []byte) error {
	if !w.known {
		// Where the sink begins: without it a crash before the first file would look like progress that was lost.
		w.next, w.end = b.First, b.First
		if err := w.commit(); err != nil {
			return err
		}
	}
	if len(lines) > 0 {
		if err := w.opened(); err != nil {
			return err
		}
		out := w.file.Write
		if w.zip != nil {
			out = w.zip.Write
		}
		if _, err := out(lines); err != nil {
			return w.fault("write", err)
		}
		w.size += int64(len(lines))
	}
	w.end = b.Next
	return nil
}

// folder is where the open portion is made.
func (w *writer) folder() string { return filepath.Join(w.work, number(w.count+1)) }

// opened makes the open portion's file, if it is not there yet.
func (w *writer) opened() error {
	if w.file != nil {
		return nil
	}
	if err := w.t.disk.mkdir(w.folder()); err != nil {
		return w.fault("begin a file", err)
	}
	f, err := w.t.disk.create(filepath.Join(w.folder(), dataName))
	if err != nil {
		return w.fault("begin a file", err)
	}
	w.file, w.zip = f, nil
	head := w.t.head()
	w.size = int64(len(head))
	if w.t.cfg.Gzip {
		w.zip = gzip.NewWriter(f) // its header has no name and no time unless it is told some
		_, err = w.zip.Write(head)
	} else {
		_, err = f.Write(head)
	}
	if err != nil {
		return w.fault("begin a file", err)
	}
	return nil
}

// commit ends the open portion, makes it durable, puts it into the log, and shows its file.
//
//	sync data and portion.json in work/<claim>/<n>
//	rename work/<claim>/<n> to log/<n>, sync log       from here on it is committed
//	rename log/<n>/data to <directory>/<file>, sync    from here on it is seen; a claim does this again after a crash
//	remove log/<n-1>
func (w *writer) commit() error {
	p := portion{TopicID: w.p.TopicID, First: w.next, Next: w.end}
	if w.file == nil {
		if err := w.t.disk.mkdir(w.folder()); err != nil {
			return w.fault("end a file", err)
		}
	} else {
		p.File = fmt.Sprintf("%s-%d-%019d-%019d.%s", w.t.cfg.Table.Name, w.p.Partition, p.First, p.Next, w.t.extension())
		if err := w.finish(p.File); err != nil {
			return err
		}
	}
	meta, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("files: %w", err)
	}
	if err := w.t.whole(filepath.Join(w.folder(), metaName), append(meta, '\n')); err != nil {
		return w.fault("end a file", err)
	}
	if err := w.t.disk.sync(w.folder()); err != nil {
		return w.fault("end a file", err)
	}
	n := w.count + 1
	w.moved = true
	switch err := w.t.disk.rename(w.folder(), filepath.Join(w.log, number(n))); {
	case taken(err):
		return w.fenced() // somebody was here first
	case err != nil:
		return w.fault("commit a file", err)
	}
	if err := w.t.disk.sync(w.log); err != nil {
		return w.t.setup("commit a file", err)
	}
	if err := w.show(n, p); err != nil {
		return err
	}
	if w.count > 0 {
		if err := w.t.empty(filepath.Join(w.log, number(w.count))); err != nil {
			return w.t.setup("tidy the log", err)
		}
	}
	w.count, w.next, w.known, w.size, w.since, w.moved = n, p.Next, true, 0, time.Time{}, false
	return nil
}

// finish makes the open file's content durable.
func (w *writer) finish(name string) error {
	there, err := w.t.disk.exists(filepath.Join(w.t.cfg.Directory, name))
	if err != nil {
		return w.t.setup("end a file", err)
	}
	if there {
		return &sink.SetupError{
			Err:    fmt.Errorf("files: %q is there already, in %q, though the sink has not written it", name, w.t.cfg.Directory),
			Remedy: "move it away: it is of an earlier run whose progress was deleted, or another program's",
		}
	}
	if w.zip != nil {
		if err := w.zip.Close(); err != nil {
			return w.fault("end a file", err)
		}
		w.zip = nil
	}
	f := w.file
	w.file = nil
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return w.fault("end a file", err)
	}
	return nil
}
