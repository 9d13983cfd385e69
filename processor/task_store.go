package processor

import (
	"fmt"
	"slices"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/txlog"
)

// cacheBytes bounds what a task keeps in memory of one store's committed content.
const cacheBytes = 8 << 20

// overlay is a state store as the chain sees it: the changes of the open transaction over a cache over
// the local store.
//
// Entries live in two maps. What is used moves to young; when young is full at a commit it becomes old,
// and what was still in old is forgotten: each entry costs one move, and no list is kept.
type overlay struct {
	name  string
	local LocalStore
	limit int // of key and value together, by the changelog topic's max.message.bytes

	young, old map[string]*stateEntry
	bytes      int // of young
	changed    int // bytes of the dirty entries
	dirty      []*stateEntry
	order      keysInOrder[*stateEntry] // of what is changed, if a range was read in this transaction
	committed  pager                    // of the local store
	undoLog    []undoEntry
	last       *stateEntry // found by the last call, nil or in young: an operator that reads a key mostly writes it next
}

// stateEntry is one key. A nil value: the key is absent.
type stateEntry struct {
	key   string
	value []byte
	dirty bool // Invariant: a dirty entry is in young and in overlay.dirty.
	fresh bool // of a dirty entry: before this transaction there was no such key
}

// changed says whether the transaction has made something else of the key. What comes and goes in one transaction, as a timer
// may, leaves nothing behind it.
func (e *stateEntry) changed() bool { return e.dirty && !(e.fresh && e.value == nil) }

// undoEntry is what a key was before the record in hand.
type undoEntry struct {
	entry *stateEntry
	was   stateEntry
}

func newOverlay(name string, local LocalStore, limit int) *overlay {
	o := &overlay{name: name, local: local, limit: limit, young: map[string]*stateEntry{}, old: map[string]*stateEntry{}}
	o.committed.store = func(from, to []byte, fn func(key, value []byte) bool) error { return local.Range(name, from, to, fn) }
	return o
}

// find returns the entry of a key, read through to the local store.
func (o *overlay) find(key []byte) (*stateEntry, error) {
	if o.last != nil && o.last.key == string(key) {
		return o.last, nil
	}
	e := o.young[string(key)]
	if e == nil {
		if e = o.old[string(key)]; e == nil {
			v, err := o.local.Get(o.name, key)
			if err != nil {
				return nil, err
			}
			e = &stateEntry{key: string(key), value: slices.Clone(v)}
		} else {
			delete(o.old, e.key)
		}
		o.young[e.key] = e
		o.bytes += len(key) + len(e.value) + 64
	}
	o.last = e
	return e, nil
}

// Get implements topology.Store.
func (o *overlay) Get(key []byte) ([]byte, error) {
	e, err := o.find(key)
	if err != nil {
		return nil, err
	}
	return e.value, nil
}

// Put implements topology.Store.
func (o *overlay) Put(key, value []byte) error {
	if n := len(key) + len(value); n > o.limit || len(key) > txlog.MaxKeyBytes || len(value) > txlog.MaxValueBytes {
		return fmt.Errorf("state store %q: a key of %d bytes with a value of %d bytes is %w: its changelog topic takes %d bytes together, the local store %d and %d",
			o.name, len(key), len(value), topology.ErrTooLarge, o.limit, txlog.MaxKeyBytes, txlog.MaxValueBytes)
	}
	e, err := o.find(key)
	if err != nil {
		return err
	}
	was := *e
	o.undoLog = append(o.undoLog, undoEntry{entry: e, was: was})
	if !e.dirty {
		e.dirty, e.fresh = true, e.value == nil
		o.dirty = append(o.dirty, e)
		o.changed += len(key) + len(e.value)
	}
	o.changed += len(value) - len(e.value)
	o.bytes += len(value) - len(e.value)
	if value == nil {
		e.value = nil
	} else {
		e.value = append(make([]byte, 0, len(value)), value...)
	}
	o.place(e, was.changed())
	return nil
}

// place puts an entry into the order, or takes it out of it, if it was not as it is.
func (o *overlay) place(e *stateEntry, changed bool) {
	switch {
	case changed == e.changed():
	case changed:
		o.order.remove(e.key)
	default:
		o.order.set(e.key, e)
	}
}

// Range implements topology.Store: the local store's keys merged with the transaction's changes.
func (o *overlay) Range(from, to []byte, fn func(key, value []byte) bool) error {
	committed := func(from, bound []byte, fn func(key, value []byte) bool) error {
		return o.committed.read(from, bound, to, fn)
	}
	return rangeOver(committed, from, to, o.changes, fn)
}

// changes appends to dst what the transaction has changed of a range, in order, at most n.
func (o *overlay) changes(dst []change, from, to []byte, n int) []change {
	if !o.order.kept() {
		o.order.keep(func(yield func(string, *stateEntry) bool) {
			for _, e := range o.dirty {
				if e.changed() && !yield(e.key, e) {
					return
				}
			}
		})
	}
	return o.order.take(dst, from, to, n, func(e *stateEntry) []byte { return e.value })
}

// keep accepts what the record in hand did.
func (o *overlay) keep() { o.undoLog = o.undoLog[:0] }

// undo takes it back, newest first.
func (o *overlay) undo() {
	for i := len(o.undoLog) - 1; i >= 0; i-- {
		u := o.undoLog[i]
		o.changed += len(u.was.value) - len(u.entry.value)
		if u.entry.dirty && !u.was.dirty {
			last := len(o.dirty) - 1 // it was the last one to become dirty
			o.changed -= len(u.entry.key) + len(u.was.value)
			o.dirty = o.dirty[:last]
		}
		o.bytes += len(u.was.value) - len(u.entry.value)
		changed := u.entry.changed()
		*u.entry = u.was
		o.place(u.entry, changed)
	}
	o.undoLog = o.undoLog[:0]
}

// appendChanges lists what the transaction changed, in the order of the first change of each key. The keys are copied to the
// arena.
func (o *overlay) appendChanges(to []record.StateChange, mem *arena) []record.StateChange {
	for _, e := range o.dirty {
		if !e.changed() {
			continue
		}
		key := append(mem.alloc(len(e.key)), e.key...)
		mem.keep(len(key))
		to = append(to, record.StateChange{Store: o.name, Key: key[:len(key):len(key)], Value: e.value})
	}
	return to
}

// commit makes the changes the committed content.
func (o *overlay) commit() {
	switch {
	case len(o.dirty) == 0:
	case o.order.kept():
		o.committed.apply(o.changes)
	default:
		o.committed.forget()
	}
	for _, e := range o.dirty {
		e.dirty = false
	}
	o.forgetChanges()
	if o.bytes > cacheBytes {
		o.young, o.old, o.bytes = map[string]*stateEntry{}, o.young, 0
	}
}

// abort forgets the changes: their keys are read from the local store again.
func (o *overlay) abort() {
	o.committed.forget()
	o.undoLog = o.undoLog[:0]
	for _, e := range o.dirty {
		o.bytes -= len(e.key) + len(e.value) + 64
		delete(o.young, e.key)
	}
	o.forgetChanges()
}

func (o *overlay) forgetChanges() {
	clear(o.dirty)
	o.dirty, o.changed, o.last = o.dirty[:0], 0, nil
	o.order.forget()
}
