package dedup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"

	"github.com/bits-and-blooms/bloom/v3"
)

// maxHashes is the largest k: -log2 of the smallest rate.
const maxHashes = 30

// A filter snapshot:
//
//	 0  1  format, 1
//	 1  1  k, number of hash functions, 1 to 30
//	 2  8  m, number of bits
//	10  8  n, IDs that were added
//	18  .  ceil(m/64) words
//	 .  4  CRC-32C of everything before
//
// Numbers are big-endian. The length of the whole is checked against m before anything is
// allocated: the library's own reader trusts its header and has no checksum.
const (
	snapshotFormat = 1
	snapshotHeader = 18
	snapshotCRC    = 4
)

// errSnapshot is any snapshot that cannot be used. It is never fatal: the filter is rebuilt.
var errSnapshot = errors.New("unusable filter snapshot")

// filter is the Bloom filter of one sealed generation. It is not changed once it is built.
//
// The library gives the parameters and the bits. The places come from the ID's own hash by double
// hashing (hi + i*(lo|1), scaled to m): they are the same for every filter up to that scaling, at
// a fifth of the cost of the library's own hash and division for each filter.
type filter struct {
	bloom *bloom.BloomFilter
	words []uint64 // the filter's bits
	m     uint64
	k     int
	n     uint64
	fill  float64 // share of bits set
}

func wrap(b *bloom.BloomFilter) *filter {
	return &filter{bloom: b, words: b.BitSet().Words(), m: uint64(b.Cap()), k: int(b.K())}
}

// newFilter makes an empty filter for n IDs.
func newFilter(n uint64, rate float64) *filter {
	m, k := bloom.EstimateParameters(uint(max(n, 1)), rate)
	k = min(max(k, 1), maxHashes)
	return wrap(bloom.New(max(m, 1), k))
}

// place scales a hash to the filter's bits.
func (f *filter) place(x uint64) uint64 {
	i, _ := bits.Mul64(x, f.m)
	return i
}

func (f *filter) add(k key) {
	step, x := k.lo|1, k.hi
	for range f.k {
		f.bloom.BitSet().Set(uint(f.place(x)))
		x += step
	}
	f.n++
}

// finish measures the fill, once: counting bits costs 0.1 ms for each million.
func (f *filter) finish() *filter {
	f.fill = float64(f.bloom.BitSet().Count()) / float64(f.m)
	return f
}

func (f *filter) bit(x uint64) uint64 {
	i := f.place(x)
	return f.words[i>>6] >> (i & 63)
}

// maybe is false if the ID was certainly not added.
func (f *filter) maybe(k key) bool {
	step, x, left := k.lo|1, k.hi, f.k
	// Half of the bits are set: a branch on each would be mispredicted half of the time and hold up the
	// next load. Four at once miss the cache together and end here for 15 of 16 absent IDs.
	for ; left >= 4; left -= 4 {
		if f.bit(x)&f.bit(x+step)&f.bit(x+2*step)&f.bit(x+3*step)&1 == 0 {
			return false
		}
		x += 4 * step
	}
	for ; left > 0; left-- {
		if f.bit(x)&1 == 0 {
			return false
		}
		x += step
	}
	return true
}

// falsePositives estimates the share of absent IDs for which maybe is true.
func (f *filter) falsePositives() float64 { return math.Pow(f.fill, float64(f.k)) }

func (f *filter) bytes() int { return 8 * len(f.words) }

// snapshot encodes the filter.
func (f *filter) snapshot() []byte {
	b := make([]byte, 0, snapshotHeader+8*len(f.words)+snapshotCRC)
	b = append(b, snapshotFormat, byte(f.k))
	b = binary.BigEndian.AppendUint64(b, f.m)
	b = binary.BigEndian.AppendUint64(b, f.n)
	for _, w := range f.words {
		b = binary.BigEndian.AppendUint64(b, w)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// decodeFilter reads a snapshot of a generation of n IDs. Any error is an errSnapshot.
func decodeFilter(b []byte, n uint64) (*filter, error) {
	if len(b) < snapshotHeader+8+snapshotCRC {
		return nil, fmt.Errorf("%w: %d bytes", errSnapshot, len(b))
	}
	body, sum := b[:len(b)-snapshotCRC], binary.BigEndian.Uint32(b[len(b)-snapshotCRC:])
	if crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)) != sum {
		return nil, fmt.Errorf("%w: checksum differs", errSnapshot)
	}
	k, m, added := int(body[1]), binary.BigEndian.Uint64(body[2:]), binary.BigEndian.Uint64(body[10:])
	words := body[snapshotHeader:]
	switch {
	case body[0] != snapshotFormat:
		return nil, fmt.Errorf("%w: format %d", errSnapshot, body[0])
	case k < 1 || k > maxHashes:
		return nil, fmt.Errorf("%w: %d hash functions", errSnapshot, k)
	// Without overflow: m lies in the last of the words that are there.
	case len(words)%8 != 0 || m > uint64(len(words))*8 || m <= uint64(len(words)-8)*8:
		return nil, fmt.Errorf("%w: %d bits in %d bytes", errSnapshot, m, len(words))
	case added != n:
		return nil, fmt.Errorf("%w: of %d IDs, the generation has %d", errSnapshot, added, n)
	}
	set := make([]uint64, len(words)/8)
	for i := range set {
		set[i] = binary.BigEndian.Uint64(words[8*i:])
	}
	f := wrap(bloom.FromWithM(set, uint(m), uint(k)))
	f.n = n
	return f.finish(), nil
}
