package topology

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/window"
)

// timerQueue is a set of timers in one task, as bytes. The store has two kinds of keys (docs/format.md):
//
//	01 time key   empty: the timer of the key may be due then
//	02 key        the time for which it is set, the time of its entry in the index, what set it
//
// A timer that is put off, as one is that watches for silence with each record of its key, changes only the second: the
// index says when to look at it, and then gets the new time. So that costs one write, and not three. An index entry
// is never later than its timer.
type timerQueue struct {
	store Store
	now   window.Millis // what the clock shows
	// low is a lower bound of the index. Without it each look would pass over the graves of all that was deleted
	// at its low end since the last compaction.
	low window.Millis
	// due are entries of the index that were due when they were looked up, in order; copies. next is a lower bound of
	// the entries behind them.
	due  [][]byte
	next window.Millis
	buf  []byte
}

// The first bytes of the two kinds of keys.
const (
	timerIndex byte = 1
	timerOf    byte = 2
)

// timerPrefix stands before a key in the index.
const timerPrefix = 1 + timeBytes

// timerState is what is known of a timer.
type timerState struct {
	at, indexed window.Millis
	setter      []byte // hash of the ID of what set it; empty: that had none. It aliases the store's memory.
}

// timerQueue returns the queue of a set, which all its users share.
func (c *instance) timerQueue(name string) *timerQueue {
	if c.timers == nil {
		c.timers = map[string]*timerQueue{}
	}
	if c.timers[name] == nil {
		c.timers[name] = &timerQueue{store: c.rt.Store(name), now: window.NoTime, low: unknown, next: unknown}
	}
	return c.timers[name]
}

// In the functions that follow key has timerPrefix bytes of room before the key itself, in which the two keys of the
// store take turns.

func (q *timerQueue) entryKey(key []byte) []byte {
	k := key[timeBytes:]
	k[0] = timerOf
	return k
}

func (q *timerQueue) indexKey(key []byte, at window.Millis) []byte {
	key[0] = timerIndex
	putTime(key[1:], at)
	return key
}

// read returns what is known of a timer. entry is its key behind room for one byte.
func (q *timerQueue) read(entry []byte) (st timerState, ok bool, err error) {
	entry[0] = timerOf
	b, err := q.store.Get(entry)
	if b == nil || err != nil {
		return st, false, err
	}
	if n := len(b) - 2*timeBytes; n != 0 && n != record.HashBytes {
		return st, false, fmt.Errorf("a timer of %d bytes is damaged", len(b))
	}
	return timerState{getTime(b), getTime(b[timeBytes:]), b[2*timeBytes:]}, true, nil
}

func (q *timerQueue) write(key []byte, st timerState) error {
	var b [2*timeBytes + record.HashBytes]byte
	putTime(b[:], st.at)
	putTime(b[timeBytes:], st.indexed)
	n := 2*timeBytes + copy(b[2*timeBytes:], st.setter)
	return q.store.Put(q.entryKey(key), b[:n])
}

func (q *timerQueue) set(key []byte, st timerState) error {
	old, found, err := q.read(key[timeBytes:])
	if err != nil {
		return err
	}
	if st.indexed = old.indexed; !found || st.at < old.indexed {
		if found {
			if err := q.store.Put(q.indexKey(key, old.indexed), nil); err != nil {
				return err
			}
		}
		if err := q.store.Put(q.indexKey(key, st.at), []byte{}); err != nil {
			return err
		}
		st.indexed = st.at
	}
	if err := q.write(key, st); err != nil {
		return err
	}
	q.expect(st.at)
	return nil
}

// expect takes note of a new time.
func (q *timerQueue) expect(at window.Millis) {
	q.low, q.next = min(q.low, at), min(q.next, at)
	if at <= q.now && len(q.due) > 0 {
		q.due, q.next = nil, unknown // its place may be among them: look again
	}
}

func (q *timerQueue) cancel(key []byte) error {
	old, found, err := q.read(key[timeBytes:])
	if err != nil || !found {
		return err
	}
	if err := q.store.Put(q.indexKey(key, old.indexed), nil); err != nil {
		return err
	}
	return q.store.Put(q.entryKey(key), nil)
}

// advance moves the clock. A host's clock may go back.
func (q *timerQueue) advance(now window.Millis) (due bool) {
	if now < q.now {
		q.forget()
	}
	q.now = now
	return len(q.due) > 0 || q.next <= now
}

// forget voids what is known of the store.
func (q *timerQueue) forget() { q.due, q.low, q.next = nil, unknown, unknown }

// head finds the first timer that is due; due[0] is its index entry then. moved: instead, it gave an index entry the
// time of its timer; that is a piece of work by itself, of which there may be many.
func (q *timerQueue) head() (at window.Millis, found, moved bool, err error) {
	for {
		if len(q.due) == 0 {
			if q.next > q.now {
				return 0, false, false, nil
			}
			if err := q.lookUp(); err != nil || len(q.due) == 0 {
				return 0, false, false, err
			}
		}
		index := q.due[0]
		q.buf = append(q.buf[:0], index...)
		st, ok, err := q.read(q.buf[timeBytes:])
		switch {
		case err != nil:
			return 0, false, false, err
		case !ok || st.indexed != getTime(index[1:]): // taken off or put elsewhere since it was looked up
			if b, err := q.store.Get(index); err != nil || b != nil {
				return 0, false, false, errors.Join(err, fmt.Errorf("an entry of the index, %x, has no timer", index))
			}
			q.due = q.due[1:]
		case st.at != st.indexed:
			return 0, false, true, q.move(index, st)
		default:
			return st.at, true, false, nil
		}
	}
}

// move gives the first entry its timer's time.
func (q *timerQueue) move(index []byte, st timerState) error {
	if err := q.store.Put(index, nil); err != nil {
		return err
	}
	if err := q.store.Put(q.indexKey(q.buf, st.at), []byte{}); err != nil {
		return err
	}
	st.indexed = st.at
	if err := q.write(q.buf, st); err != nil {
		return err
	}
	q.due = q.due[1:]
	q.expect(st.at)
	return nil
}

// lookUp fills due from the index.
func (q *timerQueue) lookUp() error {
	q.next = never
	q.buf = q.indexKey(append(q.buf[:0], make([]byte, timerPrefix)...), q.low)
	var slab []byte // fresh each time: keys that are decoded may share it
	var broken error
	err := q.store.Range(q.buf, []byte{timerOf}, func(k, _ []byte) bool {
		if len(k) < timerPrefix {
			broken = fmt.Errorf("an entry of the index, %x, is damaged", k)
			return false
		}
		if at := getTime(k[1:]); at > q.now || len(q.due) == dueAtOnce {
			q.next = at
			return false
		}
		slab = append(slab, k...)
		q.due = append(q.due, slab[len(slab)-len(k):len(slab):len(slab)])
		return true
	})
	if err != nil || broken != nil {
		q.forget()
		return errors.Join(err, broken)
	}
	if q.low = min(q.next, q.now+1); len(q.due) > 0 {
		q.low = getTime(q.due[0][1:]) // what is taken off from here on may be undone
	}
	return nil
}

// take takes the first timer off the store, and returns what set it. It stays in due until done says that
// it has fired.
func (q *timerQueue) take() (setter []byte, err error) {
	index := q.due[0]
	q.buf = append(q.buf[:0], index...)
	st, _, err := q.read(q.buf[timeBytes:])
	if err != nil {
		return nil, err
	}
	setter = bytes.Clone(st.setter)
	if err := q.store.Put(index, nil); err != nil {
		return nil, err
	}
	return setter, q.store.Put(q.entryKey(q.buf), nil)
}

// done lets go of an entry that has fired, if it is still the first.
func (q *timerQueue) done(index []byte) {
	if len(q.due) > 0 && bytes.Equal(q.due[0], index) {
		q.due = q.due[1:]
	}
}
