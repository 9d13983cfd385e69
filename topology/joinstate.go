package topology

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/streamd/streamd/window"
)

// joinState is what a join of two streams has of the key in hand: its list (see dueIndex) and the chunks of that, a third kind of
// keys in the store:
//
//	03 number key   older records of the key
//
// A record reads the list and those chunks that have something near to it in time. It writes the list, which is short, the chunks in which
// something has its first match, and, for each few of them, one chunk.
type joinState struct {
	dueIndex
	joinList
	grace       window.Millis
	left, right joinReach

	matches  []joinEntry
	chunk    []joinEntry // of the chunk that was read last
	chunkKey []byte
	chunkBuf []byte
}

// joinReach is how far a record of one side looks.
type joinReach struct {
	// back and reach are how much earlier and later than the record its match may be.
	back, reach window.Millis
	alone       bool // a record without a match has a result
}

// chunkOf is the first byte of the keys of chunks.
const chunkOf byte = 3

// joinInline and joinChunkBytes bound what entries may take in a list, and in a chunk that has more than those of one list, as long as there
// are few chunks: see room. A record costs about half of the one and, spread over the records of a list, of the other. Variables for tests.
var (
	joinInline     = 256
	joinChunkBytes = 2 << 10
)

// A list has about ten bytes for each chunk. So that it does not become what a record costs, both bounds grow with the number
// of chunks, and all three with the square root of what waits.
const (
	chunksBeforeGrowth = 32
	mostGrowth         = 128 // chunks of 256 KiB
)

// room is what a list and a chunk may take.
func (x *joinState) room() (inline, chunk int) {
	growth := min(1+len(x.chunks)/chunksBeforeGrowth, mostGrowth)
	return joinInline * growth, joinChunkBytes * growth
}

// closesAt is when an entry finds no match any more: one at the end of its reach would be late.
func (x *joinState) closesAt(e *joinEntry) window.Millis {
	if e.right {
		return e.at + x.right.reach + x.grace + 1
	}
	return e.at + x.left.reach + x.grace + 1
}

func (x *joinState) closed(e *joinEntry) bool { return x.closesAt(e) <= x.of.w }

// tells says whether an entry has a result of its own if no match comes.
func (x *joinState) tells(e *joinEntry) bool {
	if e.right {
		return x.right.alone && !e.matched
	}
	return x.left.alone && !e.matched
}

// lookAt is when something is to be done about entries: when the first that tells closes or, if none does, when all are closed. Until
// then those that are closed are in nobody's way: who could still match them would be late.
func (x *joinState) lookAt(entries []joinEntry) (at window.Millis, tells bool) {
	if len(entries) == 0 {
		return never, false
	}
	first, last := never, window.Millis(math.MinInt64)
	for i := range entries {
		closes := x.closesAt(&entries[i])
		last = max(last, closes)
		if x.tells(&entries[i]) {
			first, tells = min(first, closes), true
		}
	}
	if tells {
		return first, true
	}
	return last, false
}

// earliest is when something is to be done about the list in hand; never if it has nothing.
func (x *joinState) earliest() window.Millis {
	at, _ := x.lookAt(x.entries)
	for i := range x.chunks {
		at = min(at, x.chunks[i].look)
	}
	return at
}

// openOf takes out what is closed and tells nothing.
func (x *joinState) openOf(entries []joinEntry) []joinEntry {
	return slices.DeleteFunc(entries, func(e joinEntry) bool { return x.closed(&e) && !x.tells(&e) })
}

// match notes that a record of a time and a side has matched all that it matches, and returns that in the order of time. It is valid until
// the next call.
func (x *joinState) match(at window.Millis, isRight bool) ([]joinEntry, error) {
	side := x.left
	if isRight {
		side = x.right
	}
	from, to := at-side.back, at+side.reach
	x.matches = x.matches[:0]
	among := func(entries []joinEntry) (first bool) {
		for i := range entries {
			if m := &entries[i]; m.right != isRight && from <= m.at && m.at <= to {
				first = first || !m.matched
				m.matched = true // also where nobody tells what has no match: the join may become one that does
				x.matches = append(x.matches, *m)
			}
		}
		return first
	}
	for i := range x.chunks {
		c := &x.chunks[i]
		if c.to < from || c.from > to {
			continue
		}
		entries, err := x.readChunk(c)
		if err != nil {
			return nil, err
		}
		if among(entries) {
			if err := x.writeChunk(c, entries); err != nil {
				return nil, err
			}
		}
	}
	among(x.entries)
	if len(x.chunks) > 0 {
		slices.SortStableFunc(x.matches, func(a, b joinEntry) int { return cmp.Compare(a.at, b.at) })
	}
	return x.matches, nil
}

// enter puts a record to the list in hand, and writes that.
func (x *joinState) enter(e joinEntry) error {
	x.entries = insertEntry(x.entries, e)
	inline, _ := x.room()
	if entryBytes(x.entries) > inline {
		x.entries = x.openOf(x.entries)
		if entryBytes(x.entries) > inline {
			if err := x.putAway(); err != nil {
				return err
			}
		}
	}
	return x.write(x.earliest())
}

// putAway moves what stands in the list to its last chunk, or to a new one if that has no room.
func (x *joinState) putAway() error {
	var c joinChunk
	_, most := x.room()
	entries := x.entries
	if n := len(x.chunks); n > 0 {
		c = x.chunks[n-1]
		old, err := x.readChunk(&c)
		if err != nil {
			return err
		}
		old = x.openOf(old)
		if entryBytes(old)+entryBytes(entries) <= most {
			for _, e := range entries {
				old = insertEntry(old, e)
			}
			x.chunk, entries = old, old
			x.chunks = x.chunks[:n-1]
		} else {
			c.number++
		}
	}
	if err := x.writeChunk(&c, entries); err != nil {
		return err
	}
	x.chunks, x.entries = append(x.chunks, c), x.entries[:0]
	return nil
}

// close lets go of what is closed of the list in hand, and takes out the first record, by time, of which it is to be said that it
// had no match. more: there is another one.
func (x *joinState) close() (alone joinEntry, found, more bool, err error) {
	x.entries = x.openOf(x.entries)
	in, at := -1, slices.IndexFunc(x.entries, func(e joinEntry) bool { return x.closed(&e) }) // the chunk and the place of it
	if at >= 0 {
		alone, found = x.entries[at], true
	}
	for i := range x.chunks {
		c := &x.chunks[i]
		if c.look > x.of.w || found && c.tells && (c.from > alone.at || c.from == alone.at && in >= 0) {
			continue // nothing is due, or comes before what was found: of the same time that of the older chunk came first, and those of the list last
		}
		entries, err := x.readChunk(c)
		if err != nil {
			return alone, false, false, err
		}
		j := slices.IndexFunc(entries, func(e joinEntry) bool { return x.tells(&e) && x.closed(&e) })
		switch {
		case j < 0: // all is closed; or the windows were others when this was written
			if err := x.writeChunk(c, x.openOf(entries)); err != nil {
				return alone, false, false, err
			}
		case !found || entries[j].at < alone.at || in < 0 && entries[j].at == alone.at:
			alone, found, in, at = entries[j], true, i, j
		}
	}
	switch {
	case in >= 0:
		entries, err := x.readChunk(&x.chunks[in])
		if err == nil {
			err = x.writeChunk(&x.chunks[in], x.openOf(slices.Delete(entries, at, at+1)))
		}
		if err != nil {
			return alone, false, false, err
		}
	case found:
		x.entries = slices.Delete(x.entries, at, at+1)
	}
	x.dropEmpty()
	more = slices.ContainsFunc(x.entries, func(e joinEntry) bool { return x.closed(&e) }) ||
		slices.ContainsFunc(x.chunks, func(c joinChunk) bool { return c.look <= x.of.w })
	return alone, found, more, nil
}

// dropEmpty forgets the chunks that writeChunk has emptied.
func (x *joinState) dropEmpty() {
	x.chunks = slices.DeleteFunc(x.chunks, func(c joinChunk) bool { return c.look == never })
}

// readChunk returns what a chunk has, until the next call. What is in it aliases the store's memory, as that of a list.
func (x *joinState) readChunk(c *joinChunk) ([]joinEntry, error) {
	b, err := x.of.store.Get(x.keyOfChunk(c))
	if err == nil && b == nil {
		err = errJoinList
	}
	if err == nil {
		x.chunk, err = decodeEntries(x.chunk[:0], b)
	}
	if err != nil {
		return nil, x.of.op.fault("read state", err)
	}
	return x.chunk, nil
}

// writeChunk makes entries what a chunk has. One without any is deleted: see dropEmpty.
func (x *joinState) writeChunk(c *joinChunk, entries []joinEntry) error {
	c.look, c.tells = x.lookAt(entries)
	if len(entries) == 0 {
		return x.set(x.keyOfChunk(c), nil)
	}
	c.from, c.to = entries[0].at, entries[len(entries)-1].at
	x.chunkBuf = appendEntries(x.chunkBuf[:0], entries)
	return x.set(x.keyOfChunk(c), x.chunkBuf)
}

// keyOfChunk is the store's key for a chunk of the list in hand.
func (x *joinState) keyOfChunk(c *joinChunk) []byte {
	b := binary.BigEndian.AppendUint64(append(x.chunkKey[:0], chunkOf), c.number)
	x.chunkKey = append(b, x.key[1:]...)
	return x.chunkKey
}
