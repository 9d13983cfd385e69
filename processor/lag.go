package processor

import (
	"errors"
	"maps"
	"strings"
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
	some  bool                    // batch holds something, a position at least
	since time.Time               // AppliedAt of the first batch in it
	at    map[string]*waitingKeys // by store
	bytes int
	slab  []byte // holds the keys, values and entries of batch
}

// waitingKeys are the keys of a store that wait, with their indexes in batch.State.
type waitingKeys struct {
	at    map[string]int
	order keysInOrder[int]
}

func newWaiting() *waiting {
	return &waiting{at: map[string]*waitingKeys{}, slab: make([]byte, 0, 4<<10)}
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
	var keys *waitingKeys
	for i := range b.State {
		c := &b.State[i]
		if keys == nil || store != c.Store {
			if store, keys = c.Store, x.at[c.Store]; keys == nil {
				keys = &waitingKeys{at: map[string]int{}}
				x.at[store] = keys
			}
		}
		k, ok := keys.at[string(c.Key)]
		if !ok {
			key := string(c.Key)
			keys.at[key] = len(x.batch.State)
			keys.order.set(key, len(x.batch.State))
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
	for _, keys := range x.at {
		clear(keys.at)
		keys.order.forget()
	}
	x.some, x.bytes, x.slab = false, 0, x.slab[:0]
}

// get returns the value of a key that waits; nil: it was deleted.
func (x *waiting) get(store string, key []byte) (value []byte, ok bool) {
	keys := x.at[store]
	if keys == nil {
		return nil, false
	}
	k, ok := keys.at[string(key)]
	if ok {
		value = x.batch.State[k].Value
	}
	return value, ok
}

// changes appends to dst what waits of a range of a store, in order, at most n.
func (x *waiting) changes(dst []change, store string, from, to []byte, n int) []change {
	keys := x.at[store]
	if keys == nil || len(keys.at) == 0 {
		return dst
	}
	if !keys.order.kept() {
		keys.order.keep(maps.All(keys.at))
	}
	return keys.order.take(dst, from, to, n, func(i int) []byte { return x.batch.State[i].Value })
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
	changes := func(dst []change, from, to []byte, n int) []change {
		l.mu.Lock() // not while fn runs, which may read
		defer l.mu.Unlock()
		return l.changesLocked(dst, store, from, to, n)
	}
	return rangeOver(l.under(store), from, to, changes, fn)
}

// under is a store without what waits.
func (l *lagging) under(store string) ranged {
	return func(from, to []byte, fn func(key, value []byte) bool) error {
		return l.store.Range(store, from, to, fn)
	}
}

// changesLocked appends to dst what waits of a range, in order, at most n. l.mu is held. What waits may have got into the
// store when it is read: it is the same there.
func (l *lagging) changesLocked(dst []change, store string, from, to []byte, n int) []change {
	older := l.back.changes(nil, store, from, to, n)
	if len(older) == 0 {
		return l.front.changes(dst, store, from, to, n)
	}
	newer, end := l.front.changes(nil, store, from, to, n), len(dst)+n
	for len(dst) < end && len(older)+len(newer) > 0 {
		order := -1
		if len(older) == 0 {
			order = 1
		} else if len(newer) > 0 {
			order = strings.Compare(older[0].key, newer[0].key)
		}
		if order >= 0 {
			dst, newer = append(dst, newer[0]), newer[1:]
		} else {
			dst = append(dst, older[0])
		}
		if order <= 0 {
			older = older[1:]
		}
	}
	return dst
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
