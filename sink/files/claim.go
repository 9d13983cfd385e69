package files

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
)

// The names in a portion's folder.
const (
	dataName = "data"
	metaName = "portion.json"
)

// disownTries is how often a folder is emptied that somebody who is being shut out still fills.
const disownTries = 100

// portion is what a folder of the log stands for.
type portion struct {
	TopicID string        `json:"topic_id"`
	First   record.Offset `json:"first_offset"`
	Next    record.Offset `json:"next_offset"`
	// File is the name that readers see; empty: the range made no row.
	File string `json:"file,omitempty"`
}

// Claim shuts out whoever wrote the partition before, drops what he had not committed, and shows what he had.
func (t *target) Claim(ctx context.Context, p sink.Partition) (sink.Writer, error) {
	in, err := t.sinkFolder(url.PathEscape(p.Sink))
	if err != nil {
		return nil, err
	}
	part := strconv.Itoa(int(p.Partition))
	if err := errors.Join(t.ensure(in, part, "work"), t.ensure(in, part, "log")); err != nil {
		return nil, err
	}
	w := &writer{t: t, p: p, work: filepath.Join(in, part, "work", rand.Text()), log: filepath.Join(in, part, "log")}
	// First its own folder, then a look for others: of two who claim at once, one at least sees the other.
	if err := t.disk.mkdir(w.work); err != nil {
		return nil, t.setup("claim", err)
	}
	if err := w.disown(ctx); err != nil {
		return nil, t.setup("claim", err)
	}
	if err := w.owned(); err != nil {
		return nil, err
	}
	if err := w.recover(); err != nil {
		return nil, err
	}
	return w, nil
}

// disown takes away the folders of all other claims, so that none of them can commit any more when it returns. Two rules make that so even
// for a rename that is on its way to a file server:
//
//   - a portion is moved away before it is emptied. The rename that would commit it finds it whole or not at all.
//   - the folder of a claim is removed, and not moved, after that. What is removed takes nothing in, under no handle.
func (w *writer) disown(ctx context.Context) error {
	all := filepath.Dir(w.work)
	others, err := w.t.names(all)
	if err != nil {
		return err
	}
	trash := 0
	for _, other := range others {
		folder := filepath.Join(all, other)
		if folder == w.work || stray(other) {
			continue
		}
		for try := 0; ; try++ {
			if err := ctx.Err(); err != nil {
				return err
			}
			portions, err := w.t.names(folder)
			if err != nil {
				return err
			}
			for _, name := range portions {
				if stray(name) { // in the way of the removal, and no portion
					if err := w.t.absent(filepath.Join(folder, name)); err != nil {
						return err
					}
					continue
				}
				trash++
				away := filepath.Join(w.work, "trash-"+strconv.Itoa(trash))
				if err := w.t.disk.rename(filepath.Join(folder, name), away); err != nil && !gone(err) {
					return err
				}
				if err := w.t.empty(away); err != nil {
					return err
				}
			}
			err = w.t.absent(folder)
			if err == nil {
				break
			}
			if !taken(err) || try == disownTries {
				return err
			}
		}
	}
	return nil
}

// empty removes a folder of files, if it is there.
func (t *target) empty(folder string) error {
	names, err := t.names(folder)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := t.absent(filepath.Join(folder, name)); err != nil {
			return err
		}
	}
	return t.absent(folder)
}

// recover reads the log and shows what was committed and not shown.
func (w *writer) recover() error {
	names, err := w.t.names(w.log)
	if err != nil {
		return w.t.setup("read the log", err)
	}
	names = slices.DeleteFunc(names, stray)
	for _, name := range names {
		n, err := strconv.ParseUint(name, 10, 64)
		if err != nil {
			return w.damaged(name, err)
		}
		w.count = max(w.count, n)
	}
	if w.count == 0 {
		return nil
	}
	last, err := w.portion(w.count)
	if err != nil {
		return err
	}
	if last.TopicID != w.p.TopicID {
		return &sink.SetupError{
			Err: fmt.Errorf("files: the progress of sink %q, partition %d, is offset %d of topic %s with ID %s; the topic now has ID %s: it was deleted and made anew",
				w.p.Sink, w.p.Partition, last.Next, w.p.Topic, last.TopicID, w.p.TopicID),
			Remedy: fmt.Sprintf("if the old files may stay, move them away and delete %s", filepath.Dir(w.log)),
		}
	}
	if err := w.show(w.count, last); err != nil {
		return err
	}
	for _, name := range names {
		if name != number(w.count) {
			if err := w.t.empty(filepath.Join(w.log, name)); err != nil {
				return w.t.setup("tidy the log", err)
			}
		}
	}
	w.next, w.end, w.known = last.Next, last.Next, true
	return nil
}

// portion reads a folder of the log.
func (w *writer) portion(n uint64) (p portion, err error) {
	b, err := w.t.disk.read(filepath.Join(w.log, number(n), metaName))
	if err != nil && !gone(err) {
		return p, w.t.setup("read the log", err)
	}
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err == nil && (p.First < 0 || p.Next < p.First || p.File != filepath.Base(p.File) && p.File != "") {
		err = errors.New("offsets or a file that cannot be")
	}
	if err != nil {
		return p, w.damaged(filepath.Join(number(n), metaName), err)
	}
	return p, nil
}

func (w *writer) damaged(name string, err error) error {
	return &sink.SetupError{
		Err:    fmt.Errorf("files: %s: %w", filepath.Join(w.log, name), err),
		Remedy: "somebody else wrote there: restore it from a backup, or set next_offset in a portion.json to what the files' names say",
	}
}

// show lets readers see a committed portion. One that has no data any more was shown before, as long as the portion itself is there: a disk that
// was taken out has neither.
func (w *writer) show(n uint64, p portion) error {
	if p.File == "" {
		return nil
	}
	dir := w.t.cfg.Directory
	err := w.t.disk.rename(filepath.Join(w.log, number(n), dataName), filepath.Join(dir, p.File))
	if gone(err) {
		there, err := w.t.disk.exists(filepath.Join(w.log, number(n), metaName))
		if err == nil && !there {
			return w.fenced()
		}
		return w.t.setup("show a file", err)
	}
	// The two ends of the rename, and in this order: a power loss in between leaves both, which is shown again under the same name, and never
	// none. A rename of one onto the other does nothing then.
	if err == nil {
		err = w.t.disk.sync(dir)
	}
	if err == nil {
		err = w.t.absent(filepath.Join(w.log, number(n), dataName))
	}
	if err == nil {
		err = w.t.disk.sync(filepath.Join(w.log, number(n)))
	}
	return w.t.setup("show a file", err)
}

// stray says that something is not the target's own: file servers and file managers leave files whose names begin with a point, and none
// of its own do.
func stray(name string) bool { return strings.HasPrefix(name, ".") }

// number is the name of a portion's folder.
func number(n uint64) string { return strconv.FormatUint(n, 10) }
