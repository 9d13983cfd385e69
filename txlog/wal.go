package txlog

import (
	"crypto/aes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"github.com/dgraph-io/badger/v4/y"
)

// Badger's write-ahead log of a memtable: a header of 20 bytes, then entries: meta, user meta, key
// length, value length and expiry as uvarints, key, value, CRC-32C of all of it. The key ends with
// the version. The entries of a transaction are marked, the last one's value is the version as text.
// The header is the number of a data key (u64) and 12 bytes of an IV, whose last four are the offset of
// an entry: if the number is not 0, key and value are encrypted together. The checksum is of what stands there.
const (
	walHeaderBytes = 20
	walTxn         = 1 << 6
	walTxnEnd      = 1 << 7
)

// checkWAL reads a log as Badger replays it, up to the first entry that is not whole, and checks
// that its transactions continue the versions after newest without a gap. A gap means that the end
// of an earlier log, or a table, is missing: Badger would not notice. It returns the length of
// the file and the newest version in it, 0 if it has none.
func checkWAL(path string, newest uint64, keys dataKeys) (size int64, last uint64, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, fmt.Errorf("%w: log: %w", ErrDamaged, err)
	}
	w, err := newWALReader(b, keys)
	if err != nil {
		return 0, 0, fmt.Errorf("%w: log %q %w", ErrDamaged, filepath.Base(path), err)
	}
	for {
		version, ok := w.next()
		if !ok {
			return int64(len(b)), last, nil
		}
		// A log may repeat what is in the tables already: it is deleted only after its table is
		// written. Inside the log there is no such excuse.
		if version > newest+1 || last != 0 && version != last+1 {
			return 0, 0, fmt.Errorf("%w: log %q goes on at version %d after %d: something between is lost",
				ErrDamaged, filepath.Base(path), version, max(last, newest))
		}
		last, newest = version, max(newest, version)
	}
}

// walReader reads the transactions of a log.
type walReader struct {
	b    []byte // what is left
	size int    // of the file
	// key is the data key, nil if the log is in the clear; iv is its header's, plain what was decrypted last.
	key, plain []byte
	iv         [aes.BlockSize]byte
}

func newWALReader(file []byte, keys dataKeys) (walReader, error) {
	w := walReader{b: file[min(walHeaderBytes, len(file)):], size: len(file)}
	if len(file) < walHeaderBytes {
		return w, nil
	}
	id := binary.BigEndian.Uint64(file)
	if _, _, _, some := w.peek(); id == 0 && !some {
		return w, nil // killed before the header was written, or after it in a store without encryption
	}
	var err error
	w.key, err = keys.of(id)
	copy(w.iv[:], file[8:walHeaderBytes])
	return w, err
}

// next returns the version of the next whole transaction.
func (w *walReader) next() (version uint64, ok bool) {
	var current uint64 // of the transaction being read, 0 at its start
	for {
		meta, key, value, ok := w.entry()
		if !ok {
			return 0, false
		}
		switch {
		case meta&walTxnEnd != 0:
			v, err := strconv.ParseUint(string(value), 10, 64)
			return v, err == nil && v == current
		case meta&walTxn == 0 || len(key) < 8:
			return 0, false // this package writes nothing outside of a transaction
		}
		v := math.MaxUint64 - binary.BigEndian.Uint64(key[len(key)-8:])
		if current != 0 && v != current {
			return 0, false
		}
		current = v
	}
}

// entry returns the next entry, not ok at the end or where it is not whole. Key and value are valid
// until the next one.
func (w *walReader) entry() (meta byte, key, value []byte, ok bool) {
	split, from, end, ok := w.peek()
	if !ok {
		return 0, nil, nil, false
	}
	meta = w.b[0]
	both := w.b[from:end]
	if w.key != nil {
		binary.BigEndian.PutUint32(w.iv[12:], uint32(w.size-len(w.b)))
		w.plain = append(w.plain[:0], both...)
		if both = w.plain; y.XORBlock(both, both, w.key, w.iv[:]) != nil {
			return 0, nil, nil, false
		}
	}
	key, value = both[:split-from], both[split-from:]
	w.b = w.b[end+4:]
	return meta, key, value, true
}

// peek says where key, value and the end of the next entry are; not ok if it is not whole.
func (w *walReader) peek() (split, from, end int, ok bool) {
	if len(w.b) < 2 {
		return 0, 0, 0, false
	}
	at := 2
	var lengths [3]uint64 // key, value, expiry
	for i := range lengths {
		v, n := binary.Uvarint(w.b[at:])
		if n <= 0 {
			return 0, 0, 0, false
		}
		lengths[i], at = v, at+n
	}
	room := uint64(len(w.b) - at)
	if lengths[0] == 0 || lengths[0] > room || lengths[1] > room || lengths[0]+lengths[1]+4 > room {
		return 0, 0, 0, false
	}
	split, end = at+int(lengths[0]), at+int(lengths[0]+lengths[1])
	if crc32.Checksum(w.b[:end], castagnoli) != binary.BigEndian.Uint32(w.b[end:]) {
		return 0, 0, 0, false
	}
	return split, at, end, true
}
