package dedup

import (
	"encoding/binary"
	"math/bits"

	"github.com/streamd/streamd/internal/invariant"
	"github.com/streamd/streamd/record"
)

const (
	// maxSetIDs is what a position in the index can name: 24 bits, 0 meaning empty.
	maxSetIDs = 1<<24 - 1
	// chunkBits makes chunks of 4096 entries (64 KiB): little slack, no copying when a set grows.
	chunkBits = 12
	// flatBits is for sets that keep their entries in one piece.
	flatBits = 24
	minIndex = 256
)

// key is an ID's hash as two numbers. Its bits are uniform (SHA-256), so that any of them serve as
// home slot, tag, run slot or filter location.
type key struct{ hi, lo uint64 }

func keyOf(h *record.Hash) key {
	return key{binary.BigEndian.Uint64(h[:8]), binary.BigEndian.Uint64(h[8:])}
}

func entryKey(e []byte) key {
	return key{binary.BigEndian.Uint64(e[:8]), binary.BigEndian.Uint64(e[8:16])}
}

// set is an exact set of entries in the order of their arrival.
//
// The entries stand in chunks; the index is an open-addressing table of positions with 8 bits of
// the hash beside each, so that an absent ID costs one cache miss and no look at an entry.
//
// Invariant: the index is what inserting the entries one by one gives. Taking away the
// last entries is therefore exact, without tombstones: nothing was probed past them.
type set struct {
	entryBytes int
	shift      uint // entries of a chunk: 1 << shift
	n          int
	chunks     [][]byte
	index      []uint32 // 0: empty; else tag<<24 | position+1
}

// newSet makes an empty set; hint is how many IDs to have room for in the index.
func newSet(entryBytes int, shift uint, hint int) *set {
	return &set{entryBytes: entryBytes, shift: shift, index: make([]uint32, max(minIndex, hint+hint/4))}
}

// entry returns the entry at a position.
func (s *set) entry(pos int) []byte {
	c := s.chunks[pos>>s.shift]
	o := (pos & (1<<s.shift - 1)) * s.entryBytes
	return c[o : o+s.entryBytes]
}

// home is where the probing for a key begins: hi scaled to the table (no division).
func (s *set) home(k key) int {
	i, _ := bits.Mul64(k.hi, uint64(len(s.index)))
	return int(i)
}

func tagOf(k key) uint32 { return uint32(k.lo) << 24 }

// find returns the position of a key, -1 if it is not in the set.
func (s *set) find(k key) int {
	tag := tagOf(k)
	for i := s.home(k); ; {
		x := s.index[i]
		if x == 0 {
			return -1
		}
		if x&0xff000000 == tag {
			pos := int(x&0x00ffffff) - 1
			if entryKey(s.entry(pos)) == k {
				return pos
			}
		}
		if i++; i == len(s.index) {
			i = 0
		}
	}
}

// add appends an entry whose key is not in the set. The caller keeps n below maxSetIDs.
func (s *set) add(k key, entry []byte) {
	s.appendEntry(entry)
	// At 4/5 full an absent key is found so after 13 probes, all in one or two cache lines.
	if s.n*5 > len(s.index)*4 {
		s.grow()
		return
	}
	s.place(k, s.n-1)
}

// load appends an entry that may be in the set already, as it can be in a log that was written twice. It
// keeps both, so that counts agree with the log's; the first one is found.
func (s *set) load(entry []byte) {
	k := entryKey(entry)
	if s.find(k) < 0 {
		s.add(k, entry)
		return
	}
	s.appendEntry(entry)
}

func (s *set) appendEntry(entry []byte) {
	invariant.Check(s.n < maxSetIDs, "INV-4 an exact set holds at most %d IDs", maxSetIDs)
	c := s.n >> s.shift
	if c == len(s.chunks) {
		// The first chunk grows from nothing, the others are surely filled.
		var chunk []byte
		if c > 0 {
			chunk = make([]byte, 0, s.entryBytes<<s.shift)
		}
		s.chunks = append(s.chunks, chunk)
	}
	s.chunks[c] = append(s.chunks[c], entry...)
	s.n++
}

func (s *set) place(k key, pos int) {
	i := s.home(k)
	for s.index[i] != 0 {
		if i++; i == len(s.index) {
			i = 0
		}
	}
	s.index[i] = tagOf(k) | uint32(pos+1)
}

// grow makes the index half as large again and fills it in the order of arrival.
func (s *set) grow() {
	s.index = make([]uint32, len(s.index)+len(s.index)/2)
	for pos := range s.n {
		k := entryKey(s.entry(pos))
		if s.find(k) < 0 {
			s.place(k, pos)
		}
	}
}

// truncate takes away the entries from position n on.
func (s *set) truncate(n int) {
	for s.n > n {
		s.n--
		s.remove(entryKey(s.entry(s.n)), s.n)
		c := s.n >> s.shift
		s.chunks[c] = s.chunks[c][:len(s.chunks[c])-s.entryBytes]
		if len(s.chunks[c]) == 0 && c > 0 {
			s.chunks = s.chunks[:c]
		}
	}
}

func (s *set) remove(k key, pos int) {
	want := tagOf(k) | uint32(pos+1)
	for i := s.home(k); s.index[i] != 0; {
		if s.index[i] == want {
			s.index[i] = 0
			return
		}
		if i++; i == len(s.index) {
			i = 0
		}
	}
}

// reset empties the set and keeps its memory, unless an exceptional transaction made it large.
func (s *set) reset() {
	const keepIndex, keepBytes = 1 << 16, 2 << 20
	switch {
	case len(s.index) > keepIndex:
		s.index = make([]uint32, minIndex)
	case s.n*16 < len(s.index):
		s.truncate(0)
	default:
		clear(s.index)
	}
	s.n = 0
	if len(s.chunks) > 0 && cap(s.chunks[0]) > keepBytes {
		s.chunks = nil
	}
	if len(s.chunks) > 0 {
		s.chunks = s.chunks[:1]
		s.chunks[0] = s.chunks[0][:0]
	}
}

// bytes is the memory that the set holds.
func (s *set) bytes() int {
	n := 4 * len(s.index)
	for _, c := range s.chunks {
		n += cap(c)
	}
	return n
}
