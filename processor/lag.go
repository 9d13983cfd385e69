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
// is then written once and not each time, which is most of what a local store costs. And it applies them beside
// the worker, which goes on with the next records meanwhile (docs/adr/0019).
//
// The store on the disk is behind Kafka by what waits here, never ahead (INV-5), and its position says so:
// after a crash the tail of the changelog is replayed. Whoever reads through a lagging sees all of it, as if
// it had been applied. Its methods may be called concurrently: a generation is sealed in the background.
type lagging struct {
	store LocalStore
	limit int              // of bytes; 0: each batch is applied at once
	aside func(job func()) // runs a job on another goroutine; nil: what waits is applied by the caller

	mu    sync.Mutex // guards the fields below
	front *waiting   // takes what comes
	// back is older than front: it is being applied, or that has failed. It is read until the store has it.
	back   *waiting
	flying bool // a job applies back
	landed sync.Cond
}

// waiting is batches that are to be applied as one.
type waiting struct {
	batch record.Batch
	some  bool                      // batch holds something, a position at least
	since time.Time                 // AppliedAt of the first batch in it
	at    map[string]map[string]int // indexes of batch.State by store and key
	bytes int
	slab  []byte // holds the keys, values and entries of batch
}

func newWaiting() *waiting {
	return &waiting{at: map[string]map[string]int{}, slab: make([]byte, 0, 4<<10)}
}

func newLagging(store LocalStore, limit int, aside func(job func())) *lagging {
	l := &lagging{store: store, limit: limit, aside: aside, front: newWaiting(), back: newWaiting()}
	l.landed.L = &l.mu
	return l
}

// Position implements LocalStore.
func (l *lagging) Position() (record.LocalPosition, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.positionLocked()
	return p.Clone(), ok
}

// positionLocked is Position for whoever holds l.mu. Its lists are changed by the next batch.
func (l *lagging) positionLocked() (record.LocalPosition, bool) {
	for _, x := range []*waiting{l.front, l.back} {
		if x.some {
			return x.batch.Position, true
		}
	}
	return l.store.Position()
}

// Apply implements LocalStore. After an error the batch has not been taken, and may be given again.
func (l *lagging) Apply(b *record.Batch) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A number that was dropped may begin anew, so that blocks must not be put in front of a drop.
	if len(b.Drops) > 0 || l.limit == 0 {
		if err := l.flush(); err != nil {
			return err
		}
		return l.store.Apply(b)
	}
	if l.front.bytes >= l.limit || l.oldLocked(b.Position.AppliedAt) {
		if err := l.start(); err != nil {
			return err
		}
	}
	l.front.take(b)
	return nil
}

// start applies what waits, beside the caller if that can be. The caller waits if what waited before is not applied
// yet: so there is never more than twice the limit, and a batch. l.mu is held.
func (l *lagging) start() error {
	if l.aside == nil {
		return l.flush()
	}
	if err := l.land(); err != nil || !l.front.some {
		return err
	}
	l.front, l.back = l.back, l.front
	l.flying = true
	x := l.back
	l.aside(func() {
		err := l.store.Apply(&x.batch) // nobody changes a back that flies
		l.mu.Lock()
		defer l.mu.Unlock()
		if err == nil {
			x.forget()
		} // else it is tried again, by somebody who can return the error
		l.flying = false
		l.landed.Broadcast()
	})
	return nil
}

// land waits until back is applied, and applies it if that has failed. l.mu is held.
func (l *lagging) land() error {
	for l.flying {
		l.landed.Wait()
	}
	return l.back.applyTo(l.store)
}

// settle applies what waits. After an error it waits still.
func (l *lagging) settle() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flush()
}

// flush is settle for whoever holds l.mu.
func (l *lagging) flush() error {
	if err := l.land(); err != nil {
		return err
	}
	return l.front.applyTo(l.store)
}

// applyTo applies what waits to a store.
func (x *waiting) applyTo(store LocalStore) error {
	if !x.some {
		return nil
	}
	if err := store.Apply(&x.batch); err != nil {
		return err
	}
	x.forget()
	return nil
}

// take adds a batch to what waits. It copies: a batch of a restore shares the memory of what was fetched.
func (x *waiting) take(b *record.Batch) {
	for _, blk := range b.Blocks {
		blk.Entries = x.keep(blk.Entries)
		x.batch.Blocks = append(x.batch.Blocks, blk)
	}
	var store string
	var at map[string]int
	for i := range b.State {
		c := &b.State[i]
		if at == nil || store != c.Store {
			if store, at = c.Store, x.at[c.Store]; at == nil {
				at = map[string]int{}
				x.at[store] = at
			}
		}
		k, ok := at[string(c.Key)]
		if !ok {
			at[string(c.Key)] = len(x.batch.State)
			x.batch.State = append(x.batch.State, record.StateChange{Store: store, Key: x.keep(c.Key), Value: x.keep(c.Value)})
			continue
		}
		if old := &x.batch.State[k].Value; c.Value != nil && *old != nil && cap(*old) >= len(c.Value) {
			*old = append((*old)[:0], c.Value...)
		} else {
			*old = x.keep(c.Value)
		}
	}
	if !x.some {
		x.some, x.since = true, b.Position.AppliedAt
	}
	x.batch.Position = b.Position.Clone()
}

// keep copies bytes, nil as nil.
func (x *waiting) keep(b []byte) []byte {
	if b == nil {
		return nil
	}
	from := len(x.slab)
	x.slab = append(x.slab, b...)
	x.bytes += len(b)
	return x.slab[from:len(x.slab):len(x.slab)]
}

// forget empties the buffer. The memory is used again.
func (x *waiting) forget() {
	clear(x.batch.Blocks)
	clear(x.batch.State)
	x.batch = record.Batch{Blocks: x.batch.Blocks[:0], State: x.batch.State[:0]}
	for _, at := range x.at {
		clear(at)
	}
	x.some, x.bytes, x.slab = false, 0, x.slab[:0]
}

// get returns the value of a key that waits; nil: it was deleted.
func (x *waiting) get(store string, key []byte) (value []byte, ok bool) {
	k, ok := x.at[store][string(key)]
	if ok {
		value = x.batch.State[k].Value
	}
	return value, ok
}

// Get implements LocalStore. The value is valid until the next Apply.
func (l *lagging) Get(store string, key []byte) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.getLocked(store, key)
}

// getLocked is Get for whoever holds l.mu.
func (l *lagging) getLocked(store string, key []byte) ([]byte, error) {
	for _, x := range []*waiting{l.front, l.back} {
		if v, ok := x.get(store, key); ok {
			return v, nil
		}
	}
	return l.store.Get(store, key)
}

// Range implements LocalStore. fn may read, and must not write.
func (l *lagging) Range(store string, from, to []byte, fn func(key, value []byte) bool) error {
	// A copy, since a seal in the background may have everything applied meanwhile.
	l.mu.Lock()
	values := l.changesLocked(store, from, to)
	l.mu.Unlock()
	return rangeOver(l.store, store, from, to, slices.Sorted(maps.Keys(values)), func(k string) []byte { return values[k] }, fn)
}

// changesLocked returns the values that wait of a range, nil of what was deleted. l.mu is held. Nothing that the store
// is given meanwhile shows beside them: it is given these keys only, as long as l.mu is held.
func (l *lagging) changesLocked(store string, from, to []byte) map[string][]byte {
	values := map[string][]byte{}
	for _, x := range []*waiting{l.back, l.front} {
		for k, i := range x.at[store] {
			if inRange(k, from, to) {
				values[k] = x.batch.State[i].Value
			}
		}
	}
	return values
}

// IDs implements LocalStore.
func (l *lagging) IDs(operator string) dedup.Log { return laggingIDs{l.store.IDs(operator), l} }

// Reset implements LocalStore.
func (l *lagging) Reset() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.flying {
		l.landed.Wait()
	}
	l.front.forget()
	l.back.forget()
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

// oldLocked says whether something has waited for as long as it may. now is of the clock of AppliedAt. What is on its way
// to the disk is left alone, what did not get there is not. l.mu is held.
func (l *lagging) oldLocked(now time.Time) bool {
	age := now.Sub(l.front.since) // what was restored may be of another host's clock
	return !l.flying && (l.back.some || l.front.some && (age >= lagAge || age < 0))
}

// catchUp begins to apply what waits, or what has waited for long enough.
func (l *lagging) catchUp(now time.Time, all bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flying || !all && !l.oldLocked(now) {
		return nil
	}
	return l.start()
}

// settleLags applies what waits in the stores of all tasks, or what has waited for long enough: a task that has nothing
// to do is not helped by its own commits. On a full disk it waits on.
func (w *worker) settleLags(all bool) error {
	now := w.now()
	for _, r := range w.runs {
		if r.local == nil {
			continue
		}
		if err := r.local.catchUp(now, all); err != nil && !errors.Is(err, txlog.ErrDiskFull) {
			return applyError(r, err)
		}
	}
	return nil
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
