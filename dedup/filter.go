package dedup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

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

// locations are an ID's places in every filter, before they are taken modulo its size. They are
// made once per ID from its hash by double hashing, at 1/5 of what the library's own murmur hash costs for
// each filter.
type locations [maxHashes]uint64

func (l *locations) fill(k key, n int) {
	step := k.lo | 1
	x := k.hi
	for i := range l[:n] {
		l[i] = x
		x += step
	}
}

// filter is the Bloom filter of one sealed generation. It is not changed once it is built.
type filter struct {
	bloom *bloom.BloomFilter
	k     int
	n     uint64
	fill  float64 // share of bits set
}

// newFilter makes an empty filter for n IDs.
func newFilter(n uint64, rate float64) *filter {
	m, k := bloom.EstimateParameters(uint(max(n, 1)), rate)
	k = min(max(k, 1), maxHashes)
	return &filter{bloom: bloom.New(max(m, 1), k), k: int(k)}
}

func (f *filter) add(k key) {
	m, set := uint64(f.bloom.Cap()), f.bloom.BitSet()
	step, x := k.lo|1, k.hi
	for range f.k {
		set.Set(uint(x % m))
		x += step
	}
	f.n++
}

// finish measures the fill, once: counting bits costs 0.1 ms for each million.
func (f *filter) finish() *filter {
	f.fill = float64(f.bloom.BitSet().Count()) / float64(f.bloom.Cap())
	return f
}

// maybe is false if the ID was certainly not added.
func (f *filter) maybe(l *locations) bool { return f.bloom.TestLocations(l[:f.k]) }

// falsePositives estimates the share of absent IDs for which maybe is true.
func (f *filter) falsePositives() float64 { return math.Pow(f.fill, float64(f.k)) }

func (f *filter) bytes() int { return 8 * len(f.bloom.BitSet().Words()) }

// snapshot encodes the filter.
func (f *filter) snapshot() []byte {
	words := f.bloom.BitSet().Words()
	b := make([]byte, 0, snapshotHeader+8*len(words)+snapshotCRC)
	b = append(b, snapshotFormat, byte(f.k))
	b = binary.BigEndian.AppendUint64(b, uint64(f.bloom.Cap()))
	b = binary.BigEndian.AppendUint64(b, f.n)
	for _, w := range words {
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
	f := &filter{bloom: bloom.FromWithM(set, uint(m), uint(k)), k: k, n: n}
	return f.finish(), nil
}
