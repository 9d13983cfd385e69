package ingress

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/record"
)

// FileHeader is the header of a line's record that says which file it stood in.
const FileHeader = "file"

// FilesConfig says which files are read. Zero values stand for the defaults.
type FilesConfig struct {
	// Paths and Exclude are patterns of filepath.Match.
	Paths, Exclude []string
	// Owner is whose positions these are: the host, or a name that all share who see the same files.
	Owner string
	// Positions is the topic of positions; it must be there.
	Positions string
	// MaxLine is the longest line in bytes; default 512 KiB, and never more than the topic takes.
	MaxLine int
	// SkipLong passes over longer lines; otherwise they end the source.
	SkipLong bool
	// Poll is how long to wait when nothing is new; default 500 ms.
	Poll time.Duration
	// LastLine is how long a file that was rotated away must not have grown for its last line to count, though it has no end; default 30 s.
	LastLine time.Duration
}

// Bounds of one step.
const (
	defaultMaxLine = 512 << 10
	// portion is how much is read of one file at a time: a line of the longest kind fits in.
	portion = 1 << 20
	// stepBytes bounds a transaction.
	stepBytes = 8 << 20
	// unreadableFor is how long a path may fail before that ends the source.
	unreadableFor = time.Minute
	// keepUnseen is how long a place is kept of a file that is not seen: it may be on a file system that comes back.
	keepUnseen = 24 * time.Hour
)

// Files appends the lines of files. It belongs to one goroutine.
type Files struct {
	cfg  FilesConfig
	log  *Log
	pos  *positions
	now  func() time.Time
	open func(path string) (handle, error)

	files  []*file  // that are open
	unseen []unseen // places of files that are not there, or not any more
	// What the next transaction does to places beside moving on.
	forgets []string
	keeps   []place
	waiting map[string]time.Time // copies, by path, and since when
	// What cannot be read, by path: since when, and whether that was so at the last look.
	unreadable map[string]time.Time
	failed     map[string]bool
	first      int // which file is read first: each in its turn, so that none waits for ever
}

// handle is an open file.
type handle interface {
	io.ReaderAt
	io.Closer
	Stat() (os.FileInfo, error)
}

func openFile(path string) (handle, error) { return os.Open(path) }

// file is one that is being read.
type file struct {
	place
	f     handle
	gone  bool      // no path of ours leads to it
	left  bool      // what it holds could not be verified: nothing of it is read this time
	size  int64     // as it was seen last
	grown time.Time // when that changed
}

// unseen is a place without its file.
type unseen struct {
	place
	since time.Time
}

// NewFiles makes a reader of files.
func NewFiles(cfg FilesConfig, log *Log) *Files {
	if cfg.MaxLine <= 0 {
		cfg.MaxLine = defaultMaxLine
	}
	// The ID, the path in a header and the format take some of what the topic allows.
	cfg.MaxLine = min(cfg.MaxLine, log.MaxRecord()-4096-overhead, portion/2)
	if cfg.Poll <= 0 {
		cfg.Poll = 500 * time.Millisecond
	}
	if cfg.LastLine <= 0 {
		cfg.LastLine = 30 * time.Second
	}
	return &Files{
		cfg: cfg, log: log, now: time.Now, open: openFile, waiting: map[string]time.Time{}, unreadable: map[string]time.Time{}, failed: map[string]bool{},
		pos: &positions{cluster: log.cfg.Cluster, topic: cfg.Positions, owner: cfg.Owner},
	}
}

// Run reads until ctx ends, and returns nil then. Errors: broker.ErrFenced (another process reads for the same owner), those of
// [Log] that no retry heals, and a line that is too long.
func (x *Files) Run(ctx context.Context) error {
	defer x.close()
	err := x.start(ctx)
	for err == nil {
		var more bool
		if more, err = x.step(ctx); err == nil && !more {
			err = sleep(ctx, x.cfg.Poll)
		}
	}
	if ctx.Err() != nil {
		return nil // a transaction that nobody knows the end of is found out at the next start
	}
	return err
}

// start takes the owner's place from whoever had it, and reads how far he was.
func (x *Files) start(ctx context.Context) error {
	if err := x.log.init(ctx); err != nil {
		return err
	}
	places, err := x.pos.read(ctx)
	if err != nil {
		return err
	}
	for _, id := range sortedIDs(places) {
		x.unseen = append(x.unseen, unseen{places[id], x.now()})
	}
	return nil
}

func sortedIDs(places map[string]place) []string {
	ids := make([]string, 0, len(places))
	for id := range places {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (x *Files) close() {
	for _, f := range x.files {
		_ = f.f.Close() // it was only read
	}
	x.log.Close()
}

// batch is what one transaction is made of.
type batch struct {
	outs  []broker.Output
	after map[*file]place // where the files are when it is committed
	bytes int
}

// step looks for files, and appends what is new in them with where they are then. more: there is more to read at once.
func (x *Files) step(ctx context.Context) (more bool, err error) {
	now := x.now()
	if err := x.scan(now); err != nil {
		return false, err
	}
	b := &batch{after: map[*file]place{}}
	lag := int64(0)
	if x.first++; x.first >= len(x.files) {
		x.first = 0
	}
	all := true
	for _, f := range slices.Concat(x.files[x.first:], x.files[:x.first]) {
		if f.left {
			continue
		}
		left, err := x.read(f, b, now)
		if err != nil {
			return false, err
		}
		lag += left
		more = more || left > 0
		if b.bytes >= stepBytes {
			more, all = true, false
			break
		}
	}
	if all {
		x.healed()
	}
	x.log.cfg.Metrics.Files(x.log.cfg.Source, len(x.files), lag)
	if err := x.commit(ctx, b, now); err != nil {
		return false, err
	}
	x.finish(now)
	// A part of a line that waits for its end is no reason to read it again at once.
	return more && len(b.after) > 0, nil
}

// commit writes lines and places, then moves on in memory.
func (x *Files) commit(ctx context.Context, b *batch, now time.Time) error {
	var mark place
	// First those that were left: a copy may have been found at once, and goes on with the same place. The last one counts.
	for _, at := range x.keeps {
		out, err := x.pos.output(at, now)
		if err != nil {
			return fmt.Errorf("ingress: position of %q: %w", at.Path, err)
		}
		b.outs = append(b.outs, out)
	}
	for _, f := range x.files {
		if at, ok := b.after[f]; ok {
			out, err := x.pos.output(at, now)
			if err != nil {
				return fmt.Errorf("ingress: position of %q: %w", at.Path, err)
			}
			b.outs, mark = append(b.outs, out), at
		}
	}
	for _, id := range x.forgets {
		b.outs = append(b.outs, x.pos.forget(id, now))
	}
	if len(b.outs) == 0 {
		return nil
	}
	fault.Point("ingress.taken")
	err := x.log.commit(ctx, b.outs, func(ctx context.Context) (bool, error) {
		places, err := x.pos.read(ctx)
		// Without a place it only forgets, which may be done again.
		return mark.ID != "" && places[mark.ID] == mark, err
	})
	if err != nil {
		return err
	}
	x.forgets, x.keeps = nil, nil
	for f, at := range b.after {
		f.place = at
	}
	return nil
}

// read takes the next whole lines of a file into the batch, and says how many bytes it has left behind them.
func (x *Files) read(f *file, b *batch, now time.Time) (left int64, err error) {
	info, err := f.f.Stat()
	if err != nil {
		return 0, x.endure(f.Path, err, now)
	}
	if info.Size() <= f.Offset {
		return 0, nil // if it is shorter, the next look at it sees that it was cut
	}
	buf := make([]byte, min(portion, info.Size()-f.Offset))
	n, err := f.f.ReadAt(buf, f.Offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, x.endure(f.Path, err, now)
	}
	records, size := len(b.outs), b.bytes
	// Its last line counts by how long the file has not grown: what came since that was looked at may go on.
	end := info.Size() == f.Offset+int64(n) && info.Size() == f.size
	at, err := x.take(f, buf[:n], b, now, end)
	if err != nil {
		return 0, err
	}
	if at.Offset == f.Offset {
		return 0, nil // a part of a line
	}
	at.Head, at.Tail, err = sums(f.f, at.Offset)
	same := false
	if err == nil {
		// What the sums are of must be what was read: the file may have been cut in between, and even have grown again.
		same, err = f.still(buf[:at.Offset-f.Offset])
	}
	if err != nil || !same {
		b.outs, b.bytes = b.outs[:records], size // without its place a line would come again
		if err == nil || errors.Is(err, errCut) {
			return 0, nil // the next look at it sees that it was cut
		}
		return 0, x.endure(f.Path, err, now)
	}
	b.after[f] = at
	return info.Size() - at.Offset, nil
}

// still says whether a file holds what was read of it, and these bytes behind that.
func (f *file) still(next []byte) (bool, error) {
	tail := next[max(0, len(next)-sumBytes):]
	now := make([]byte, len(tail))
	n, err := f.f.ReadAt(now, f.Offset+int64(len(next)-len(tail)))
	if n < len(now) {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return false, err
	}
	if !bytes.Equal(now, tail) {
		return false, nil
	}
	return f.intact()
}

// intact says whether a file holds what was read of it.
func (f *file) intact() (bool, error) {
	info, err := f.f.Stat()
	if err != nil {
		return false, err
	}
	return f.holds(f.f, info.Size())
}

// begunAnew: the file holds something else than what was read. Its lines are those of a new file. The place of the old content is kept, since it
// may be found in a copy.
func (x *Files) begunAnew(f *file, now time.Time) {
	x.log.cfg.Logger.Info("ingress: a file was truncated: it is read from its start", "source", x.log.cfg.Source, "file", f.Path, "offset", f.Offset)
	old := f.place
	f.place = place{ID: newFileID(), Path: f.Path, Dev: f.Dev, Inode: f.Inode}
	if !old.unmistakable() {
		x.forgets = append(x.forgets, old.ID)
		return
	}
	old.Dev, old.Inode = 0, 0 // they are the new content's now
	x.unseen, x.keeps = append(x.unseen, unseen{old, now}), append(x.keeps, old)
}

// take makes records of the lines in buf, which begins at the file's offset, and returns the place behind them.
func (x *Files) take(f *file, buf []byte, b *batch, now time.Time, end bool) (place, error) {
	at, base := f.place, 0
	if at.Skipping {
		i := strings.IndexByte(string(buf), '\n')
		if i < 0 {
			at.Offset += int64(len(buf))
			return at, nil
		}
		base, at.Skipping = i+1, false
	}
	c := cutLines(buf[base:], x.cfg.MaxLine)
	for _, l := range c.lines {
		x.add(f, b, f.Offset+int64(base+l.at), l.text, now)
	}
	rest := buf[base+c.used:]
	at.Offset = f.Offset + int64(base+c.used)
	switch {
	case c.long && !x.cfg.SkipLong:
		if c.used > 0 {
			return at, nil // first what stands before it; then it is met again
		}
		return at, fmt.Errorf("ingress: source %q: the line at byte %d of %q is longer than max_line (%d): raise it, or set on_long_line: skip", x.log.cfg.Source, at.Offset, f.Path, x.cfg.MaxLine)
	case c.long:
		x.log.cfg.Logger.Warn("ingress: a line that is too long is passed over", "source", x.log.cfg.Source, "file", f.Path, "offset", at.Offset, "most", x.cfg.MaxLine)
		x.log.cfg.Metrics.LongLine(x.log.cfg.Source)
		at.Skipping = true
		if i := strings.IndexByte(string(rest), '\n'); i >= 0 {
			at.Offset, at.Skipping = at.Offset+int64(i+1), false
		} else {
			at.Offset += int64(len(rest))
		}
	case end && len(rest) > 0 && f.gone && now.Sub(f.grown) >= x.cfg.LastLine:
		if text := strings.TrimSuffix(string(rest), "\r"); strings.TrimSpace(text) != "" {
			x.add(f, b, at.Offset, []byte(text), now)
		}
		at.Offset += int64(len(rest))
	}
	return at, nil
}

// add makes the record of a line. All lines of a file go to one partition, so that they stay in order.
func (x *Files) add(f *file, b *batch, offset int64, text []byte, now time.Time) {
	r := Record{
		ID: record.ID(fmt.Sprintf("%s/%d", f.ID, offset)), Value: text, Timestamp: now, Together: f.ID,
		Headers: record.Headers{{Key: FileHeader, Value: []byte(f.Path)}},
	}
	b.bytes += r.size()
	b.outs = append(b.outs, x.log.output(&r))
}

func newFileID() string { return strings.ToLower(rand.Text()[:16]) }
