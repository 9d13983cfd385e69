package kafka

import (
	"encoding/binary"
	"hash/crc32"
	"time"

	"github.com/streamd/streamd/internal/broker"
)

// The header of a record batch, format 2 (KIP-98), all numbers big endian:
//
//	 0 int64 base offset      21 int16 attributes         43 int64 producer ID
//	 8 int32 length from 12   23 int32 last offset delta  51 int16 producer epoch
//	12 int32 leader epoch     27 int64 first timestamp    53 int32 base sequence
//	16 int8  magic (2)        35 int64 max timestamp      57 int32 count
//	17 uint32 CRC-32C of 21.. 61 the records
const (
	batchHeader    = 61
	batchMagic     = 2
	attrAppendTime = 1 << 3
	attrTxn        = 1 << 4
	attrControl    = 1 << 5
	attrCodec      = 7
	minRecordBytes = 7 // length, attributes, two deltas, key length, value length, header count
)

// outBatch is one record batch in the making. Records are encoded as they come; what is only known
// when it is sent (producer, epoch, sequence, CRC) is stamped then, and again after an Init.
type outBatch struct {
	// buf holds room for the header and then the encoded records.
	buf []byte
	// packed is buf with its records compressed by kind; empty if they are sent as they are.
	packed []byte
	kind   codec
	// index is, for each record, its index in the order of Add.
	index       []int32
	first, last int64 // timestamps of the first record and the latest one, in milliseconds
}

func (b *outBatch) count() int { return len(b.index) }

// reset empties the batch for its next use.
func (b *outBatch) reset() {
	b.buf, b.packed, b.kind, b.index = b.buf[:0], b.packed[:0], codecNone, b.index[:0]
}

// begin makes room for the header and sets the base timestamp.
func (b *outBatch) begin(ts int64) {
	if cap(b.buf) < batchHeader {
		b.buf = make([]byte, 0, 16<<10)
	}
	b.buf = b.buf[:batchHeader]
	b.first, b.last = ts, ts
}

// add encodes one record, whose length without its length prefix is size (see recordSize).
func (b *outBatch) add(o *broker.Output, ts int64, size int, index int32) {
	buf := binary.AppendVarint(b.buf, int64(size))
	buf = append(buf, 0) // attributes
	buf = binary.AppendVarint(buf, ts-b.first)
	buf = binary.AppendVarint(buf, int64(len(b.index)))
	buf = appendVarBytes(buf, o.Key)
	buf = appendVarBytes(buf, o.Value)
	buf = binary.AppendVarint(buf, int64(len(o.Headers)))
	for i := range o.Headers {
		h := &o.Headers[i]
		buf = binary.AppendVarint(buf, int64(len(h.Key)))
		buf = append(buf, h.Key...)
		buf = appendVarBytes(buf, h.Value)
	}
	b.buf = buf
	b.last = max(b.last, ts)
	b.index = append(b.index, index)
}

// recordSize is the length of a record behind its length prefix.
func recordSize(o *broker.Output, tsDelta int64, offsetDelta int) int {
	n := 1 + varintSize(tsDelta) + varintSize(int64(offsetDelta)) + varBytesSize(o.Key) + varBytesSize(o.Value)
	n += varintSize(int64(len(o.Headers)))
	for i := range o.Headers {
		k := len(o.Headers[i].Key)
		n += varintSize(int64(k)) + k + varBytesSize(o.Headers[i].Value)
	}
	return n
}

// appendVarBytes writes bytes with a varint length; nil and empty differ (a nil value is a tombstone).
func appendVarBytes(b, v []byte) []byte {
	if v == nil {
		return append(b, 1) // varint -1
	}
	b = binary.AppendVarint(b, int64(len(v)))
	return append(b, v...)
}

func varBytesSize(v []byte) int {
	if v == nil {
		return 1
	}
	return varintSize(int64(len(v))) + len(v)
}

// pack compresses the records, if that makes them smaller.
func (b *outBatch) pack(c *compressor, kind codec) error {
	if kind == codecNone || len(b.packed) > 0 {
		return nil
	}
	if cap(b.packed) < batchHeader {
		b.packed = make([]byte, 0, batchHeader+len(b.buf)/2)
	}
	out, err := c.compress(kind, b.packed[:batchHeader], b.buf[batchHeader:])
	if err != nil {
		return err
	}
	if len(out) >= len(b.buf) {
		b.packed = out[:0]
		return nil
	}
	b.packed, b.kind = out, kind
	return nil
}

// wire is the batch as it is sent.
func (b *outBatch) wire() []byte {
	if len(b.packed) > 0 {
		return b.packed
	}
	return b.buf
}

// stamp fills in the header. attributes are those beside the codec: attrTxn, or none.
func (b *outBatch) stamp(attributes uint16, pid int64, epoch int16, seq int32) {
	w := b.wire()
	be := binary.BigEndian
	be.PutUint64(w[0:], 0)
	be.PutUint32(w[8:], uint32(len(w)-12))
	be.PutUint32(w[12:], ^uint32(0)) // leader epoch -1: unknown
	w[16] = batchMagic
	be.PutUint16(w[21:], attributes|uint16(b.kind))
	be.PutUint32(w[23:], uint32(b.count()-1))
	be.PutUint64(w[27:], uint64(b.first))
	be.PutUint64(w[35:], uint64(b.last))
	be.PutUint64(w[43:], uint64(pid))
	be.PutUint16(w[51:], uint16(epoch))
	be.PutUint32(w[53:], uint32(seq))
	be.PutUint32(w[57:], uint32(b.count()))
	be.PutUint32(w[17:], crc32.Checksum(w[21:], castagnoli()))
}

// castagnoli is the table of CRC-32C; the standard library makes it once.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// split moves the second half of the records into a new batch. It needs at least two. Deltas are
// relative to the batch, so that the moved records are encoded again.
func (b *outBatch) split(into *outBatch) {
	half, at, latest := b.count()/2, batchHeader, b.first
	for range half {
		ts, _, end := b.timestampAt(at)
		latest, at = max(latest, ts), end
	}
	cut := at
	for i := half; i < b.count(); i++ {
		ts, tail, end := b.timestampAt(at)
		if i == half {
			into.begin(ts)
		}
		into.addTail(b.buf[tail:end], ts, b.index[i])
		at = end
	}
	b.buf, b.index, b.last = b.buf[:cut], b.index[:half], latest
	b.packed, b.kind = b.packed[:0], codecNone
}

// timestampAt reads the timestamp of the record at buf[at:], where its key begins and where it ends.
// buf is our own encoding, so that nothing can be missing.
func (b *outBatch) timestampAt(at int) (ts int64, tail, end int) {
	size, body := varint(b.buf, at)
	delta, i := varint(b.buf, body+1)
	_, tail = varint(b.buf, i)
	return b.first + delta, tail, body + int(size)
}

// addTail adds a record that is encoded already but for its deltas.
func (b *outBatch) addTail(tail []byte, ts int64, index int32) {
	delta, off := ts-b.first, int64(b.count())
	b.buf = binary.AppendVarint(b.buf, int64(1+varintSize(delta)+varintSize(off)+len(tail)))
	b.buf = append(b.buf, 0)
	b.buf = binary.AppendVarint(b.buf, delta)
	b.buf = binary.AppendVarint(b.buf, off)
	b.buf = append(b.buf, tail...)
	b.last = max(b.last, ts)
	b.index = append(b.index, index)
}

// recordMillis is the timestamp of an output; one without a time gets now.
func recordMillis(t time.Time, now func() time.Time) int64 {
	if t.IsZero() {
		t = now()
	}
	return t.UnixMilli()
}
