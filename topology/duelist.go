package topology

import (
	"math"
	"time"

	"github.com/streamd/streamd/window"
)

// dueList is how an operator that is Timed by the watermark finds in its store what is due. What it holds in memory is a memory of the
// store: Reset voids it.
type dueList struct {
	op    *operator
	store Store
	lag   time.Duration // of the records that come, behind the watermark

	w window.Millis // the watermark here
	// next is a lower bound for the watermark at which something is due, unknown if that must be looked up.
	// Invariant: nothing that the store holds is due before it.
	next window.Millis
	// due are pieces that were found in the store and are not done, in its order; the first one is the next.
	due []duePiece
	// last is the piece that was done last.
	last duePiece
}

// duePiece is a key of the store that is due, and its value as far as it is needed. Both are copies.
type duePiece struct{ key, value []byte }

const (
	unknown window.Millis = math.MinInt64
	never   window.Millis = math.MaxInt64
	// dueAtOnce is how many pieces are taken from the store in one go.
	dueAtOnce = 256
)

func newDueList(op *operator, store Store, lag time.Duration) dueList {
	return dueList{op: op, store: store, lag: lag, w: window.NoTime, next: unknown}
}

// Advance implements Timed.
func (s *dueList) Advance(m Moment) bool {
	s.w = m.Watermark.Add(-s.lag)
	return s.next <= s.w
}

// Reset implements Timed.
func (s *dueList) Reset(m Moment) {
	s.w, s.next, s.due = m.Watermark.Add(-s.lag), unknown, nil
}

// Pending implements Timed. After Reset it is the last piece that was done: one of which a sink refused the output.
func (s *dueList) Pending() (key, value []byte) {
	if len(s.due) == 0 {
		return s.last.key, s.last.value
	}
	return s.due[0].key, s.due[0].value
}

// lookUp fills due with what the store has from the key from on (nil: the first) and what at says is due at or before
// the watermark; next becomes the time of what follows. at reads the time out of a key; false: here the pieces end.
func (s *dueList) lookUp(from []byte, values bool, at func(key []byte) (window.Millis, bool)) error {
	s.next = never
	var slab []byte // fresh each time: keys and values that are decoded may share it
	keep := func(b []byte) []byte {
		slab = append(slab, b...)
		return slab[len(slab)-len(b) : len(slab) : len(slab)]
	}
	err := s.store.Range(from, nil, func(k, v []byte) bool {
		t, ok := at(k)
		switch {
		case !ok:
			return false
		case t > s.w:
			s.next = t
			return false
		case len(s.due) == dueAtOnce:
			s.next = t
			return false
		}
		p := duePiece{key: keep(k)}
		if values {
			p.value = keep(v)
		}
		s.due = append(s.due, p)
		return true
	})
	if err != nil {
		return s.op.fault("read state", err)
	}
	if len(s.due) > 0 {
		s.next = unknown // until they are done
	}
	return nil
}

// done takes the first piece off.
func (s *dueList) done() { s.last, s.due = s.due[0], s.due[1:] }

// dueIndex is for an operator that keeps all it has of a key in one list. The store has two kinds of keys:
//
//	01 due key   empty: something of the key is due then, or was when the entry was written
//	02 key       the list, with the time under which it stands in the index
//
// What grows does not move the index. When its time comes the list is looked at, and what is left of it gets a new time.
type dueIndex struct {
	of    *dueList
	key   []byte // of the list in hand, with its first byte
	index []byte // room for a key of the index
}

// The first bytes of the two kinds of keys.
const (
	listIndex byte = 1
	listOf    byte = 2
)

// take makes the list of a key the one in hand.
func (x *dueIndex) take(key []byte) {
	x.key = append(append(x.key[:0], listOf), key...) // a copy: what follows encodes keys, too
}

// first takes the list that is due next in hand and returns its key; nil: none is due.
func (x *dueIndex) first() (key []byte, err error) {
	if len(x.of.due) == 0 {
		err := x.of.lookUp([]byte{listIndex}, false, func(key []byte) (window.Millis, bool) {
			if len(key) <= timeBytes || key[0] != listIndex {
				return 0, false
			}
			return getTime(key[1:]), true
		})
		if err != nil || len(x.of.due) == 0 {
			return nil, err
		}
	}
	key = x.of.due[0].key[1+timeBytes:]
	x.take(key)
	return key, nil
}

// move puts the list in hand to another time of the index.
func (x *dueIndex) move(was, due window.Millis) error {
	if was != never {
		if err := x.set(x.at(was), nil); err != nil {
			return err
		}
	}
	x.of.next = min(x.of.next, due)
	return x.set(x.at(due), []byte{})
}

// remove takes the list in hand out of the store.
func (x *dueIndex) remove(was window.Millis) error {
	if was == never {
		return nil // it never was there
	}
	if err := x.set(x.at(was), nil); err != nil {
		return err
	}
	return x.set(x.key, nil)
}

func (x *dueIndex) set(key, value []byte) error {
	if err := x.of.store.Put(key, value); err != nil {
		return x.of.op.fault("write state", err)
	}
	return nil
}

// at is the index's key for the list in hand.
func (x *dueIndex) at(due window.Millis) []byte {
	b := append(x.index[:0], listIndex, 0, 0, 0, 0, 0, 0, 0, 0)
	putTime(b[1:], due)
	x.index = append(b, x.key[1:]...)
	return x.index
}
