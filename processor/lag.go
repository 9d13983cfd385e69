package processor

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/txlog"
)

// How far the local store of a task may be behind its commits. A crash costs the reading of that much
// changelog, which takes less than the start of the process.
const (
	lagBytes = 1 << 20                // of keys, values and IDs
	lagAge   = 500 * time.Millisecond // from the first batch that waits to the last
)

// lagging is a LocalStore that applies several committed batches as one. A key that each transaction changes
// is then written once and not each time, which is most of what a local store costs.
//
// The store on the disk is behind Kafka by what waits here, never ahead (INV-5), and its position says so:
// after a crash the tail of the changelog is replayed. Whoever reads through a lagging sees all of it, as if
// it had been applied. Its methods may be called concurrently: a generation is sealed in the background.
type lagging struct {
	store LocalStore
	limit int // of bytes; 0: each batch is applied at once

	mu    sync.Mutex // guards the fields below
	batch record.Batch
	some  bool                      // batch holds something, a position at least
	since time.Time                 // AppliedAt of the first batch in it
	at    map[string]map[string]int // indexes of batch.State by store and key
	bytes int
	slab  []byte // holds the keys, values and entries of batch
}

func newLagging(store LocalStore, limit int) *lagging {
	return &lagging{store: store, limit: limit, at: map[string]map[string]int{}, slab: make([]byte, 0, 4<<10)}
}

// Position implements LocalStore.
func (l *lagging) Position() (record.LocalPosition, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.some {
		return clonePosition(l.batch.Position), true
	}
	return l.store.Position()
}

// Apply implements LocalStore. After an error the batch has not been taken, and may be given again.
func (l *lagging) Apply(b *record.Batch) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A number that was dropped may begin anew, so that blocks must not be put in front of a drop.
	alone := len(b.Drops) > 0 || l.limit == 0
	if alone || l.bytes >= l.limit || l.some && b.Position.AppliedAt.Sub(l.since) >= lagAge {
		if err := l.flush(); err != nil {
			return err
		}
	}
	if alone {
		return l.store.Apply(b)
	}
	l.take(b)
	return nil
}

// take adds a batch to what waits. It copies: a batch of a restore shares the memory of what was fetched.
func (l *lagging) take(b *record.Batch) {
	for _, blk := range b.Blocks {
		blk.Entries = l.keep(blk.Entries)
		l.batch.Blocks = append(l.batch.Blocks, blk)
	}
	var store string
	var at map[string]int
	for i := range b.State {
		c := &b.State[i]
		if at == nil || store != c.Store {
			if store, at = c.Store, l.at[c.Store]; at == nil {
				at = map[string]int{}
				l.at[store] = at
			}
		}
		k, ok := at[string(c.Key)]
		if !ok {
			at[string(c.Key)] = len(l.batch.State)
			l.batch.State = append(l.batch.State, record.StateChange{Store: store, Key: l.keep(c.Key), Value: l.keep(c.Value)})
			continue
		}
		if old := &l.batch.State[k].Value; c.Value != nil && *old != nil && cap(*old) >= len(c.Value) {
			*old = append((*old)[:0], c.Value...)
		} else {
			*old = l.keep(c.Value)
		}
	}
	if !l.some {
		l.some, l.since = true, b.Position.AppliedAt
	}
	l.batch.Position = clonePosition(b.Position)
}

// keep copies bytes, nil as nil.
func (l *lagging) keep(b []byte) []byte {
	if b == nil {
		return nil
	}
	from := len(l.slab)
	l.slab = append(l.slab, b...)
	l.bytes += len(b)
	return l.slab[from:len(l.slab):len(l.slab)]
}

// settle applies what waits. After an error it waits still.
func (l *lagging) settle() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flush()
}

// flush is settle for whoever holds l.mu.
func (l *lagging) flush() error {
	if !l.some {
		return nil
	}
	if err := l.store.Apply(&l.batch); err != nil {
		return err
	}
	l.forget()
	return nil
}

// forget empties the buffer. The memory is used again.
func (l *lagging) forget() {
	clear(l.batch.Blocks)
	clear(l.batch.State)
	l.batch = record.Batch{Blocks: l.batch.Blocks[:0], State: l.batch.State[:0]}
	for _, at := range l.at {
		clear(at)
	}
	l.some, l.bytes, l.slab = false, 0, l.slab[:0]
}

// Get implements LocalStore. The value is valid until the next Apply.
func (l *lagging) Get(store string, key []byte) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k, ok := l.at[store][string(key)]; ok {
		return l.batch.State[k].Value, nil
	}
	return l.store.Get(store, key)
}

// Range implements LocalStore. fn may read, and must not write.
func (l *lagging) Range(store string, from, to []byte, fn func(key, value []byte) bool) error {
	// A copy, since a seal in the background may have everything applied meanwhile.
	values := map[string][]byte{}
	l.mu.Lock()
	for k, i := range l.at[store] {
		if inRange(k, from, to) {
			values[k] = l.batch.State[i].Value
		}
	}
	l.mu.Unlock()
	return rangeOver(l.store, store, from, to, slices.Sorted(maps.Keys(values)), func(k string) []byte { return values[k] }, fn)
}

// IDs implements LocalStore.
func (l *lagging) IDs(operator string) dedup.Log { return laggingIDs{l.store.IDs(operator), l} }

// Reset implements LocalStore.
func (l *lagging) Reset() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget()
	return l.store.Reset()
}

// laggingIDs is an operator's log. What is still read and written of blocks happens after they were applied;
// sealed generations get no more blocks.
type laggingIDs struct {
	dedup.Log
	l *lagging
}

// Generations implements dedup.Log.
func (x laggingIDs) Generations() ([]record.Generation, error) {
	if err := x.l.settle(); err != nil {
		return nil, err
	}
	return x.Log.Generations()
}

// Blocks implements dedup.Log.
func (x laggingIDs) Blocks(gen uint64, fn func(record.IDBlock) error) error {
	if err := x.l.settle(); err != nil {
		return err
	}
	return x.Log.Blocks(gen, fn)
}

// Seal implements dedup.Log.
func (x laggingIDs) Seal(g record.Generation, run func(slot uint32) []byte, filter []byte) error {
	if err := x.l.settle(); err != nil {
		return err
	}
	return x.Log.Seal(g, run, filter)
}

// old says whether something has waited for as long as it may. now is of the clock of AppliedAt.
func (l *lagging) old(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	age := now.Sub(l.since) // what was restored may be of another host's clock
	return l.some && (age >= lagAge || age < 0)
}

// settleLags applies what waits in the stores of all tasks, or what has waited for long enough: a task that has nothing
// to do is not helped by its own commits. On a full disk it waits on.
func (w *worker) settleLags(all bool) error {
	now := w.now()
	for _, r := range w.runs {
		if r.local == nil || !all && !r.local.old(now) {
			continue
		}
		if err := r.local.settle(); err != nil && !errors.Is(err, txlog.ErrDiskFull) {
			return applyError(r, err)
		}
	}
	return nil
}

func clonePosition(p record.LocalPosition) record.LocalPosition {
	p.Inputs, p.Counters, p.Stores = slices.Clone(p.Inputs), slices.Clone(p.Counters), slices.Clone(p.Stores)
	p.Changelogs = slices.Clone(p.Changelogs)
	return p
}

// inRange says whether from <= key < to; a nil to is no bound.
func inRange(key string, from, to []byte) bool {
	return key >= string(from) && (to == nil || key < string(to))
}

// rangeOver calls fn for what a store holds, with the sorted keys and their values in place of its own. A nil
// value: the key is absent.
func rangeOver(local LocalStore, store string, from, to []byte, keys []string, value func(string) []byte, fn func(key, value []byte) bool) error {
	stopped := false
	emit := func(k string) bool {
		if v := value(k); v != nil {
			stopped = !fn([]byte(k), v)
		}
		return !stopped
	}
	err := local.Range(store, from, to, func(k, v []byte) bool {
		for len(keys) > 0 && keys[0] < string(k) {
			if !emit(keys[0]) {
				return false
			}
			keys = keys[1:]
		}
		if len(keys) > 0 && keys[0] == string(k) {
			ok := emit(keys[0])
			keys = keys[1:]
			return ok
		}
		stopped = !fn(k, v)
		return !stopped
	})
	if err != nil {
		return err
	}
	for _, k := range keys {
		if stopped || !emit(k) {
			break
		}
	}
	return nil
}
