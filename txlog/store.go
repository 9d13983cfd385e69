package txlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"github.com/streamd/streamd/internal/fault"
)

const (
	// defaultMemTableBytes: smaller memtables are faster (they fit the CPU's cache) and leave less to
	// replay after a kill; below the minimum a value of 1 MiB does not fit a transaction.
	defaultMemTableBytes = 8 << 20
	minMemTableBytes     = 8 << 20

	// txnShare is how much of Badger's limit for one transaction is used, in percent. The rest
	// covers what Badger adds to it.
	txnShare = 90

	// entryOverhead is what Badger counts for an entry beside its key and value.
	entryOverhead = 12
)

// write is one change of a key. A nil value deletes it.
type write struct{ key, value []byte }

func (w write) size() int64 { return int64(len(w.key)+len(w.value)) + entryOverhead }

// kv is the Badger store: commits with own versions, reads, iteration, the disk floor.
//
// Badger is opened in managed mode, where the caller numbers the commits and a read does not wait
// for the commits of others (measured: 5 us against 0.1-0.2 ms, and 150 ms at worst).
type kv struct {
	db   *badger.DB
	dir  string // of the disk whose free space counts
	log  *slog.Logger
	mark *mark
	// view reads the newest version of everything. In managed mode it pins nothing, so that one
	// serves all readers for ever.
	view *badger.Txn
	gate gate

	maxCount, maxBytes int64 // of one transaction
	memTableBytes      int64
	floorSet           uint64 // given by the user, 0: computed
	floor              atomic.Uint64
	encrypted          bool
	indexCache         int64 // its size

	deleted atomic.Int64 // keys, since the last flatten

	// mu guards version and failed. It is held over a whole commit: the order of the versions must
	// be their order in the write-ahead log, without a gap, since that is checked at the next start.
	mu      sync.Mutex
	version uint64
	failed  error
}

// openKV opens Badger. A panic in this goroutine becomes an error.
func openKV(dir string, o Options, memTableBytes int64, log *slog.Logger) (*kv, error) {
	opt := badger.DefaultOptions(filepath.Join(dir, storeName)).
		WithLogger(badgerLogger{log}).
		WithCompression(options.None).
		WithBlockCacheSize(0).
		WithIndexCacheSize(0).
		WithDetectConflicts(false).
		WithMetricsEnabled(false).
		WithNumVersionsToKeep(1).
		WithNumCompactors(2).
		WithMemTableSize(memTableBytes).
		WithNumMemtables(3).
		WithValueLogFileSize(64 << 20). // address space only, no value is that large
		WithSyncWrites(o.Power).
		// inspect has verified every block, where a fault is an error; here it would end the process.
		WithChecksumVerificationMode(options.NoVerification)
	if len(o.Key) > 0 {
		opt = opt.WithEncryptionKey(o.Key).WithEncryptionKeyRotationDuration(dataKeyLife).
			// Badger decrypts into them, and would panic without.
			WithBlockCacheSize(blockCacheBytes).WithIndexCacheSize(minIndexCacheBytes)
	}
	var db *badger.DB
	if err := guardPanic(func() (err error) {
		db, err = badger.OpenManaged(opt)
		return err
	}); err != nil {
		return nil, fmt.Errorf("%w: open: %w", ErrDamaged, err)
	}
	mark, err := openMark(dir)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s := &kv{
		db: db, dir: dir, log: log, mark: mark,
		view:     db.NewTransactionAt(math.MaxUint64, false),
		maxCount: db.MaxBatchCount() * txnShare / 100, maxBytes: db.MaxBatchSize() * txnShare / 100,
		memTableBytes: memTableBytes, floorSet: o.MinFreeBytes, encrypted: len(o.Key) > 0,
		version: db.MaxVersion(),
	}
	s.gate.idle = make(chan struct{}, 1)
	// As after each commit: until it is told, Badger keeps every version and whatever was deleted.
	db.SetDiscardTs(s.version)
	s.followTables()
	if _, err := s.mark.advance(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// close waits for running calls, refuses new ones and closes Badger, which writes its memtables to
// tables.
func (s *kv) close() error {
	s.gate.close()
	err := s.db.Close()
	if _, merr := s.mark.advance(); merr != nil {
		err = errors.Join(err, merr)
	}
	return errors.Join(err, s.mark.close())
}

// commit applies the writes in one atomic transaction. They must be within the limits.
func (s *kv) commit(writes []write) error {
	if len(writes) == 0 {
		return nil
	}
	if err := s.gate.enter(); err != nil {
		return err
	}
	defer s.gate.exit()
	if last := writes[len(writes)-1].key[0]; last != kindPosition && last != kindVersion {
		// A position record is only ever replaced by a newer one, but other keys can be deleted and
		// vanish in a compaction; then the newest version would not be known at the next start.
		writes = append(writes, write{[]byte{kindVersion}, []byte{1}})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return s.failed
	}
	if moved, err := s.mark.advance(); err != nil {
		return err
	} else if moved {
		s.followTables()
	}
	txn := s.db.NewTransactionAt(math.MaxUint64, true)
	defer txn.Discard()
	for _, w := range writes {
		var err error
		if w.value == nil {
			err = txn.Delete(w.key)
		} else {
			err = txn.Set(w.key, w.value)
		}
		if err != nil {
			return fmt.Errorf("txlog: write: %w", err)
		}
	}
	fault.Point("badger.mid")
	if err := txn.CommitAt(s.version+1, nil); err != nil {
		// Whether it is in the log is not known, so no commit may follow.
		s.failed = fmt.Errorf("txlog: %w: commit: %w", ErrFailed, err)
		return s.failed
	}
	s.version++
	// Older versions are read by nobody. Without this Badger would keep all of them.
	s.db.SetDiscardTs(s.version)
	return nil
}

// followManifest brings the mark up to date while nothing is committed: compactions go on, and one
// that rewrites the MANIFEST must not stay unmarked until a kill.
func (s *kv) followManifest() {
	if s.gate.enter() != nil {
		return
	}
	defer s.gate.exit()
	if !s.mu.TryLock() {
		return // a commit does it
	}
	defer s.mu.Unlock()
	if moved, err := s.mark.advance(); err == nil && moved {
		s.followTables()
	}
}

// followTables brings up to date what goes by the tables that there are.
func (s *kv) followTables() {
	s.setFloor()
	if s.encrypted {
		s.growIndexCache()
	}
}

// growIndexCache keeps the cache of the decrypted indexes large enough for all of them.
func (s *kv) growIndexCache() {
	var tables int64
	for _, l := range s.db.Levels() {
		tables += l.Size
	}
	if want := minIndexCacheBytes + tables/indexShare; want > s.indexCache {
		if _, err := s.db.CacheMaxCost(badger.IndexCache, want); err != nil {
			s.log.Warn("the cache of decrypted indexes stays as it is", "dir", s.dir, "err", err)
		}
		s.indexCache = want
	}
}

// commitAll applies body and tail: in one transaction if they fit, otherwise the body in several, in
// its order, and then the tail in one.
func (s *kv) commitAll(body, tail []write) error {
	var rest int64
	for _, w := range tail {
		rest += w.size()
	}
	from, size := 0, int64(0)
	fits := func(n int, size int64) bool { return int64(n)+2 <= s.maxCount && size <= s.maxBytes }
	for i, w := range body {
		if i > from && !fits(i+1-from, size+w.size()) {
			if err := s.commit(body[from:i:i]); err != nil {
				return err
			}
			from, size = i, 0
		}
		size += w.size()
	}
	last := body[from:len(body):len(body)]
	if fits(len(last)+len(tail), size+rest) {
		return s.commit(append(last, tail...))
	}
	if err := s.commit(last); err != nil {
		return err
	}
	return s.commit(tail)
}

// get returns the value of a key, nil if there is none. The value belongs to the caller.
func (s *kv) get(key []byte) ([]byte, error) {
	if err := s.gate.enter(); err != nil {
		return nil, err
	}
	defer s.gate.exit()
	item, err := s.view.Get(key)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("txlog: read: %w", err)
	}
	// An item of Get owns its buffer, and no value is in the value log, so that the value may
	// outlive the callback.
	var value []byte
	if err := item.Value(func(v []byte) error { value = v; return nil }); err != nil {
		return nil, fmt.Errorf("txlog: read: %w", err)
	}
	if value == nil {
		value = []byte{} // present and empty
	}
	return value, nil
}

// flatten compacts the store into one level. Badger has no call that writes the memtable to a table,
// and as long as deletions stand in the memtable, what they delete stays on the disk: so it is
// filled up, and its table waited for.
func (s *kv) flatten() error {
	if err := s.gate.enter(); err != nil {
		return err
	}
	defer s.gate.exit()
	if deleted := s.deleted.Load(); deleted > 0 {
		if err := s.turnMemTable(); err != nil {
			return err
		}
		s.deleted.Add(-deleted)
	}
	if err := s.db.Flatten(1); err != nil {
		return fmt.Errorf("txlog: flatten: %w", err)
	}
	return nil
}

// turnMemTable makes Badger begin a new memtable and write the old one to a table.
func (s *kv) turnMemTable() error {
	store := s.db.Opts().Dir
	_, turned, err := logNumbers(store)
	if err != nil {
		return err
	}
	for range s.memTableBytes/maxBlockBytes + 2 {
		var newest uint64
		if _, newest, err = logNumbers(store); err != nil || newest != turned {
			break
		}
		if err = s.commit([]write{{[]byte{kindVersion}, make([]byte, maxBlockBytes)}}); err != nil {
			break
		}
	}
	if err != nil {
		return err
	}
	if err := s.commit([]write{{[]byte{kindVersion}, []byte{1}}}); err != nil {
		return err
	}
	// Syncing the directory takes its time, which is all that is wanted of it. An iteration somewhere
	// may keep the old log alive for longer; then its table is left to the next flatten.
	const patience = 2000
	for range patience {
		oldest, _, err := logNumbers(store)
		if err != nil || oldest > turned {
			return err
		}
		if err := syncDir(store); err != nil {
			return err
		}
	}
	return nil
}

// logNumbers returns the lowest and the highest number of a memtable's log.
func logNumbers(store string) (oldest, newest uint64, err error) {
	entries, err := os.ReadDir(store)
	if err != nil {
		return 0, 0, fmt.Errorf("txlog: %w", err)
	}
	for _, e := range entries {
		n, err := strconv.ParseUint(strings.TrimSuffix(e.Name(), ".mem"), 10, 64)
		if err != nil {
			continue
		}
		if oldest == 0 || n < oldest {
			oldest = n
		}
		newest = max(newest, n)
	}
	return oldest, newest, nil
}

// entry is what an iteration is at. Key and value are valid until the next step.
type entry struct {
	key  []byte
	item *badger.Item
}

func (e entry) valueBytes() int { return int(e.item.ValueSize()) }

func (e entry) value() (value []byte, err error) {
	err = e.item.Value(func(v []byte) error { value = v; return nil })
	if err != nil {
		return nil, fmt.Errorf("txlog: read: %w", err)
	}
	if value == nil {
		value = []byte{} // it is there
	}
	return value, nil
}

// each calls fn for the keys with the prefix from start on, in order, until it returns an error or
// a key to go on from that is not nil; a returned key may skip ahead.
func (s *kv) each(prefix, start []byte, fn func(entry) (seek []byte, err error)) error {
	if err := s.gate.enter(); err != nil {
		return err
	}
	defer s.gate.exit()
	// Without prefetching: Badger would start a goroutine per value, and they are in memory anyway.
	it := s.view.NewIterator(badger.IteratorOptions{Prefix: prefix})
	defer it.Close()
	if bytes.Compare(start, prefix) < 0 {
		start = prefix
	}
	for it.Seek(start); it.Valid(); {
		item := it.Item()
		seek, err := fn(entry{key: item.Key(), item: item})
		if errors.Is(err, errStop) {
			return nil
		}
		if err != nil {
			return err
		}
		if seek != nil {
			it.Seek(seek)
		} else {
			it.Next()
		}
	}
	return nil
}

// errStop ends an iteration without an error.
var errStop = errors.New("stop")

// after is the first key behind all keys with the prefix, nil if there can be none.
func after(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// setFloor computes the free space below which nothing is written: room for the memtables being
// written and for the largest compaction, which writes its result before it deletes its input.
func (s *kv) setFloor() {
	if s.floorSet > 0 {
		s.floor.Store(s.floorSet)
		return
	}
	var compaction, step int64
	for _, l := range s.db.Levels() {
		if l.Level == 0 || l.IsBaseLevel {
			compaction += l.Size
		}
		step = max(step, 11*l.TargetFileSize) // one table and the ten below it
	}
	s.floor.Store(uint64(max(DefaultMinFreeBytes, 4*s.memTableBytes+max(compaction, step))))
}

// room returns [ErrDiskFull] if less than the floor is free.
func (s *kv) room() error {
	free, _, err := diskSpace(s.dir)
	if err != nil {
		return err
	}
	return checkRoom(s.dir, free, s.floor.Load())
}

func checkRoom(dir string, free, floor uint64) error {
	if free < floor {
		return fmt.Errorf("txlog: %w: %d MB free on the disk of %q, needs %d MB; nothing was written",
			ErrDiskFull, free>>20, dir, floor>>20)
	}
	return nil
}

// gate counts the calls inside and lets the store close only when there is none. Unlike a
// RWMutex it lets a call be made from inside another one while somebody waits to close.
type gate struct {
	n    atomic.Int64
	idle chan struct{}
}

// gateClosed is added to the count when the gate closes: from then on it is negative.
const gateClosed = math.MinInt64 / 2

func (g *gate) enter() error {
	if g.n.Add(1) < 0 {
		g.exit()
		return fmt.Errorf("txlog: %w", ErrClosed)
	}
	return nil
}

func (g *gate) exit() {
	if g.n.Add(-1) == gateClosed {
		select {
		case g.idle <- struct{}{}:
		default:
		}
	}
}

func (g *gate) close() {
	if g.n.Add(gateClosed) == gateClosed {
		return
	}
	for range g.idle {
		if g.n.Load() == gateClosed {
			return
		}
	}
}

// usage sums up what the files of the store take on the disk.
func (s *kv) usage() (Sizes, error) {
	entries, err := os.ReadDir(s.db.Opts().Dir)
	if err != nil {
		return Sizes{}, fmt.Errorf("txlog: %w", err)
	}
	var z Sizes
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue // deleted since: Badger removes files at any time
		}
		n := allocated(info)
		z.Total += n
		switch filepath.Ext(e.Name()) {
		case ".sst":
			z.Tables += n
			z.TableFiles++
		case ".mem":
			z.Logs += n
		}
	}
	return z, nil
}

// badgerLogger passes Badger's messages on, each a level lower than Badger thinks: what is news to
// Badger is detail here.
type badgerLogger struct{ log *slog.Logger }

func (l badgerLogger) write(level slog.Level, format string, args []any) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, "badger: "+strings.TrimSpace(fmt.Sprintf(format, args...)))
	}
}

func (l badgerLogger) Errorf(f string, a ...any)   { l.write(slog.LevelError, f, a) }
func (l badgerLogger) Warningf(f string, a ...any) { l.write(slog.LevelWarn, f, a) }
func (l badgerLogger) Infof(f string, a ...any)    { l.write(slog.LevelDebug, f, a) }
func (l badgerLogger) Debugf(f string, a ...any)   { l.write(slog.LevelDebug-4, f, a) }
