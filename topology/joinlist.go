package topology

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/window"
)

// joinList is what a join of two streams has of a key: the records of both sides that can still find a match, in the order
// of time, those of the same time in the order in which they came. Its encoding stands in docs/format.md.
type joinList struct {
	due     window.Millis // of its entry in the index
	entries []joinEntry
}

// joinEntry is a record that waits. id and value alias the store's or the instance's memory.
type joinEntry struct {
	at        window.Millis
	right     bool
	matched   bool // it has a result: no other one says that it has none
	id, value []byte
}

// What stands in the flags of an entry.
const (
	flagRight   byte = 1
	flagMatched byte = 2
)

func (l *joinList) indexed() *window.Millis { return &l.due }

// insert puts an entry behind those of its time and before it.
func (l *joinList) insert(e joinEntry) {
	i := len(l.entries)
	for i > 0 && l.entries[i-1].at > e.at {
		i--
	}
	l.entries = slices.Insert(l.entries, i, e)
}

// append encodes the list.
func (l *joinList) append(dst []byte) []byte {
	dst = append(dst, make([]byte, listHeader)...)
	putTime(dst[len(dst)-timeBytes:], l.due)
	for i := range l.entries {
		e := &l.entries[i]
		var head [timeBytes + 1]byte
		putTime(head[:], e.at)
		if e.right {
			head[timeBytes] |= flagRight
		}
		if e.matched {
			head[timeBytes] |= flagMatched
		}
		dst = append(dst, head[:]...)
		for _, part := range [][]byte{e.id, e.value} {
			dst = append(binary.AppendUvarint(dst, uint64(len(part))), part...)
		}
	}
	return dst
}

var errJoinList = errors.New("a list of records to be joined is damaged")

// decode reads a list; nil is the empty one.
func (l *joinList) decode(b []byte) error {
	l.due, l.entries = never, l.entries[:0]
	if b == nil {
		return nil
	}
	if len(b) < listHeader {
		return errJoinList
	}
	l.due = getTime(b)
	for b = b[listHeader:]; len(b) > 0; {
		if len(b) <= timeBytes {
			return errJoinList
		}
		e := joinEntry{at: getTime(b), right: b[timeBytes]&flagRight != 0, matched: b[timeBytes]&flagMatched != 0}
		b = b[timeBytes+1:]
		for _, part := range []*[]byte{&e.id, &e.value} {
			n, size := binary.Uvarint(b)
			if size <= 0 || n > uint64(len(b)-size) {
				return errJoinList
			}
			*part, b = b[size:size+int(n):size+int(n)], b[size+int(n):]
		}
		l.entries = append(l.entries, e)
	}
	return nil
}

// pairIdentity is the identity of what an operator makes of two records: the same whichever of them came last. None if one of them
// has no ID.
func (c *instance) pairIdentity(op *operator, left, right []byte) record.Identity {
	if len(left) == 0 || len(right) == 0 {
		return record.Identity{}
	}
	b := c.roomForID(len(left) + len(right) + 2*binary.MaxVarintLen32)
	b = append(binary.AppendUvarint(b, uint64(len(left))), left...)
	b = append(binary.AppendUvarint(b, uint64(len(right))), right...)
	return c.keepID(b).Child(op.hash, 0)
}

// aloneIdentity is the identity of what an operator makes of one record that comes out of the state.
func (c *instance) aloneIdentity(op *operator, id []byte) record.Identity {
	return c.keepID(append(c.roomForID(len(id)), id...)).Child(op.hash, 0)
}
