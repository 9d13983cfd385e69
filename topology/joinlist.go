package topology

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/window"
)

// joinList is what a join of two streams has of a key: the records of both sides that can still find a match. The newest of them
// stand in the list itself; older ones are in chunks, values of their own, so that not all is written with each record.
// The encoding stands in docs/format.md.
type joinList struct {
	due     window.Millis // of its entry in the index
	chunks  []joinChunk   // in the order in which they were begun
	entries []joinEntry   // in the order of time, those of the same time in the order in which they came
}

// joinChunk is what is known of a chunk without reading it.
type joinChunk struct {
	number   uint64        // rises
	from, to window.Millis // the times of its first and its last record
	// look is when something is to be done about it, and tells whether it has a record that has a result of its own if no match comes: by
	// the windows and the kind of the join when it was written, which may be others by now.
	look  window.Millis
	tells bool
}

// joinEntry is a record that waits. id and value alias the store's or the instance's memory.
type joinEntry struct {
	at        window.Millis
	right     bool
	matched   bool // it has a result: no other one says that it has none
	id, value []byte
}

// joinListFormat is no first byte of a moment: in the lists of before there were chunks one stood there.
const joinListFormat byte = 1

// What stands in the flags of an entry.
const (
	flagRight   byte = 1
	flagMatched byte = 2
)

func (l *joinList) indexed() *window.Millis { return &l.due }

// insertEntry puts an entry behind those of its time and before it.
func insertEntry(entries []joinEntry, e joinEntry) []joinEntry {
	i := len(entries)
	for i > 0 && entries[i-1].at > e.at {
		i--
	}
	return slices.Insert(entries, i, e)
}

// append encodes the list.
func (l *joinList) append(dst []byte) []byte {
	dst = append(dst, make([]byte, listHeader)...)
	putTime(dst[len(dst)-timeBytes:], l.due)
	dst = append(dst, joinListFormat)
	dst = binary.AppendUvarint(dst, uint64(len(l.chunks)))
	var last joinChunk
	for _, c := range l.chunks {
		tells := int64(0)
		if c.tells {
			tells = 1
		}
		dst = binary.AppendUvarint(dst, c.number-last.number)
		dst = binary.AppendVarint(dst, int64(c.from-last.from))
		dst = binary.AppendUvarint(dst, uint64(c.to-c.from))
		dst = binary.AppendVarint(dst, int64(c.look-c.to)<<1|tells)
		last = c
	}
	return appendEntries(dst, l.entries)
}

// appendEntries encodes what a list or a chunk has.
func appendEntries(dst []byte, entries []joinEntry) []byte {
	for i := range entries {
		e := &entries[i]
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

// entryBytes is about what the encoding of entries takes.
func entryBytes(entries []joinEntry) (n int) {
	for i := range entries {
		n += timeBytes + 3 + len(entries[i].id) + len(entries[i].value)
	}
	return n
}

var errJoinList = errors.New("a list of records to be joined is damaged")

// decode reads a list; nil is the empty one.
func (l *joinList) decode(b []byte) (err error) {
	l.due, l.chunks, l.entries = never, l.chunks[:0], l.entries[:0]
	if b == nil {
		return nil
	}
	if len(b) <= listHeader || b[listHeader] != joinListFormat {
		return errJoinList
	}
	l.due = getTime(b)
	b, err = l.decodeChunks(b[listHeader+1:])
	if err != nil {
		return err
	}
	l.entries, err = decodeEntries(l.entries, b)
	return err
}

// decodeChunks reads what is known of the chunks, and returns what is behind it.
func (l *joinList) decodeChunks(b []byte) ([]byte, error) {
	whole := true
	next := func() uint64 {
		v, size := binary.Uvarint(b)
		whole = whole && size > 0
		b = b[max(size, 0):]
		return v
	}
	signed := func() window.Millis {
		u := next()
		return window.Millis(u>>1) ^ -window.Millis(u&1) // as binary.Varint
	}
	var c joinChunk
	for n := next(); n > 0 && whole; n-- {
		c.number += next()
		c.from += signed()
		c.to = c.from + window.Millis(next())
		look := signed()
		c.look, c.tells = c.to+look>>1, look&1 != 0
		l.chunks = append(l.chunks, c)
	}
	if !whole {
		return nil, errJoinList
	}
	return b, nil
}

// decodeEntries appends what appendEntries has written. It aliases the memory of b.
func decodeEntries(entries []joinEntry, b []byte) ([]joinEntry, error) {
	for len(b) > 0 {
		if len(b) <= timeBytes {
			return entries, errJoinList
		}
		e := joinEntry{at: getTime(b), right: b[timeBytes]&flagRight != 0, matched: b[timeBytes]&flagMatched != 0}
		b = b[timeBytes+1:]
		for _, part := range []*[]byte{&e.id, &e.value} {
			n, size := binary.Uvarint(b)
			if size <= 0 || n > uint64(len(b)-size) {
				return entries, errJoinList
			}
			*part, b = b[size:size+int(n):size+int(n)], b[size+int(n):]
		}
		entries = append(entries, e)
	}
	return entries, nil
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
