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
	// Invariant: nothing that the store holds is due before it, but for due.
	next window.Millis
	// low is a lower bound of when anything that the store holds is due, also of what is being done. Without it each look
	// at the low end would pass over the graves of all that was deleted there since the last compaction.
	low window.Millis
	// due are pieces that were found in the store and are not done, in its order; the first one is the next.
	due []duePiece
	// piece is what the last Fire had in hand, for a dead letter.
	piece duePiece
}

// duePiece is a key that is due, and its value as far as it is needed. Both are copies.
type duePiece struct{ key, value []byte }

const (
	unknown window.Millis = math.MinInt64
	never   window.Millis = math.MaxInt64
	// dueAtOnce is how many pieces are taken from the store in one go.
	dueAtOnce = 256
)

func newDueList(op *operator, store Store, lag time.Duration) dueList {
	return dueList{op: op, store: store, lag: lag, w: window.NoTime, next: unknown, low: unknown}
}

// Advance implements Timed.
func (s *dueList) Advance(m Moment) bool {
	s.w = m.Watermark.Add(-s.lag)
	return len(s.due) > 0 || s.next <= s.w
}

// Reset implements Timed.
func (s *dueList) Reset(m Moment) {
	s.w, s.next, s.low, s.due = m.Watermark.Add(-s.lag), unknown, unknown, nil
}

// Pending implements Timed. It is the same after Reset: then a sink refused the output.
func (s *dueList) Pending() Piece {
	return Piece{What: "timer", Key: s.piece.key, Value: s.piece.value}
}

// expect takes note that something is due at a time.
func (s *dueList) expect(due window.Millis) {
	s.next, s.low = min(s.next, due), min(s.low, due)
}

// idle says that nothing is due, without a look at the store.
func (s *dueList) idle() bool { return len(s.due) == 0 && s.next > s.w }

// lookUp fills due with what the store has from the key from on (nil: the first; that of low, or one before it), before the
// key to, and what at says is due at or before the watermark; next becomes the time of what follows. at reads the time
// out of a key; false: here the pieces end.
func (s *dueList) lookUp(from, to []byte, values bool, at func(key []byte) (window.Millis, bool)) error {
	s.next = never
	low := s.w + 1
	var slab []byte // fresh each time: keys and values that are decoded may share it
	keep := func(b []byte) []byte {
		slab = append(slab, b...)
		return slab[len(slab)-len(b) : len(slab) : len(slab)]
	}
	err := s.store.Range(from, to, func(k, v []byte) bool {
		t, ok := at(k)
		switch {
		case !ok:
			return false
		case t > s.w, len(s.due) == dueAtOnce:
			s.next = t
			return false
		}
		low = min(low, t)
		p := duePiece{key: keep(k)}
		if values {
			p.value = keep(v)
		}
		s.due = append(s.due, p)
		return true
	})
	if err != nil {
		s.next, s.due = unknown, nil
		return s.op.fault("read state", err)
	}
	s.low = low // what a Fire deletes and that is undone was there when it was looked up, and is not before this
	return nil
}

// done takes the first piece off.
func (s *dueList) done() { s.due = s.due[1:] }

// dueIndex is for an operator that keeps all it has of a key in one list. The store has two kinds of keys:
//
//	01 due key   empty: something of the key is due then, or was when the entry was written
//	02 key       the list, with the time under which it stands in the index
//
// What grows does not move the index. When its time comes the list is looked at, and what is left of it gets a new time.
//
// A piece is one entry of a list: so if its result fails, it fails alone. While more of the list is due the list keeps its
// place in the index, and with it its turn: what was due of a key comes in one row, also across a crash.
type dueIndex struct {
	of      *dueList
	list    keyList
	tooLong error  // for a list of more than maxListBytes
	key     []byte // of the list in hand, with its first byte
	index   []byte // room for a key of the index
	buf     []byte // room for an encoded list
}

// keyList is all that an operator has of a key.
type keyList interface {
	// decode reads the list; nil is the empty one. What is in it aliases the memory of b.
	decode(b []byte) error
	append(dst []byte) []byte
	// indexed is the time under which it stands in the index; never: it is not in the store.
	indexed() *window.Millis
}

// maxListBytes bounds the list of one key: a changelog record and the local store take about a megabyte.
const maxListBytes = 512 << 10

// listHeader is what stands before the entries of a list: the time in the index.
const listHeader = timeBytes

// The first bytes of the two kinds of keys.
const (
	listIndex byte = 1
	listOf    byte = 2
)

// take makes the list of a key the one in hand.
func (x *dueIndex) take(key []byte) {
	x.key = append(append(x.key[:0], listOf), key...) // a copy: what follows encodes keys, too
}

// read decodes the list in hand. What is in it aliases the store's memory, which holds until the record or the piece is done.
func (x *dueIndex) read() error {
	b, err := x.of.store.Get(x.key)
	if err == nil {
		err = x.list.decode(b)
	}
	if err != nil {
		return x.of.op.fault("read state", err)
	}
	return nil
}

// write encodes the list in hand, of which something is due next at a time (never: it is empty), and moves the index if that
// is earlier than it says, or its time has come.
func (x *dueIndex) write(due window.Millis) error {
	indexed := x.list.indexed()
	was := *indexed
	if due == never {
		return x.remove(was)
	}
	if was == never || due < was || was <= x.of.w {
		if err := x.move(was, due); err != nil {
			return err
		}
		*indexed = due
	}
	return x.put()
}

// put writes the list in hand where it stands.
func (x *dueIndex) put() error {
	x.buf = x.list.append(x.buf[:0])
	if len(x.buf) > maxListBytes {
		return x.of.op.fail(x.tooLong)
	}
	return x.set(x.key, x.buf)
}

// hold notes which entry of the list in hand is the piece of this Fire.
func (x *dueIndex) hold(value []byte) {
	x.of.piece.value = append(make([]byte, 0, len(value)), value...) // a dead letter outlives the piece
}

// first takes the list that is due next in hand, reads it and returns its key; nil: none is due.
func (x *dueIndex) first() (key []byte, err error) {
	if x.of.idle() {
		return nil, nil
	}
	if len(x.of.due) == 0 {
		err := x.of.lookUp(x.after(x.of.low), []byte{listOf}, false, func(key []byte) (window.Millis, bool) {
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
	x.of.piece = duePiece{key: key}
	x.take(key)
	return key, x.read()
}

// settle writes what a piece left of the list in hand. more: something else of it is due now.
func (x *dueIndex) settle(more bool, due window.Millis) error {
	if more {
		return x.put()
	}
	if err := x.write(due); err != nil {
		return err
	}
	x.of.done()
	return nil
}

// move puts the list in hand to another time of the index.
func (x *dueIndex) move(was, due window.Millis) error {
	if was != never {
		if err := x.set(x.at(was), nil); err != nil {
			return err
		}
	}
	x.of.expect(due)
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
	x.index = append(x.after(due), x.key[1:]...)
	return x.index
}

// after is where the index begins to hold what is due at a time or later.
func (x *dueIndex) after(due window.Millis) []byte {
	b := append(x.index[:0], listIndex, 0, 0, 0, 0, 0, 0, 0, 0)
	putTime(b[1:], due)
	x.index = b
	return b
}
