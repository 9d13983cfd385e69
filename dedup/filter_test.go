package dedup

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"
)

// sum appends the checksum that a snapshot ends with.
func sum(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// FuzzFilter: no bytes make decoding panic or allocate more than they are long, and what decodes
// is what would be encoded. The checksum is made right, so that the checks behind it are reached.
func FuzzFilter(f *testing.F) {
	g := newFilter(100, 0.01)
	for i := range 100 {
		h := hashOf(i)
		g.add(keyOf(&h))
	}
	good := g.finish().snapshot()
	body := good[:len(good)-snapshotCRC]
	f.Add(body, uint64(100))
	f.Add([]byte{}, uint64(0))
	for i := range snapshotHeader {
		b := bytes.Clone(body)
		b[i] ^= 0x81
		f.Add(b, uint64(100))
	}
	f.Fuzz(func(t *testing.T, body []byte, n uint64) {
		whole := sum(bytes.Clone(body))
		d, err := decodeFilter(whole, n)
		if err != nil {
			return
		}
		if !bytes.Equal(d.snapshot(), whole) {
			t.Fatal("another snapshot")
		}
		h := hashOf(1)
		d.maybe(keyOf(&h))
	})
}
