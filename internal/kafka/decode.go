package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// aborted is an entry of a Fetch answer's list of aborted transactions: what this producer wrote
// from this offset on is to be left out, up to its abort marker.
type aborted struct {
	producer int64
	first    int64
}

// fetched is what a Fetch answer says of one partition.
type fetched struct {
	topic       string
	partition   int32
	code        sarama.KError
	highWater   int64
	lastStable  int64
	aborted     []aborted
	readReplica int32 // broker to fetch from instead, -1: this one
	records     []byte
}

// decodeFetch reads a Fetch answer of version 11.
func decodeFetch(b []byte) (code sarama.KError, throttle time.Duration, out []fetched, err error) {
	c := cursor{b: b}
	throttle = time.Duration(c.int32()) * time.Millisecond
	code = sarama.KError(c.int16())
	c.int32() // session ID
	for range c.count(6) {
		topic := c.string()
		for range c.count(38) {
			f := fetched{topic: topic, partition: c.int32(), code: sarama.KError(c.int16())}
			f.highWater, f.lastStable = c.int64(), c.int64()
			c.int64() // log start offset
			if n := c.count(16); n > 0 {
				f.aborted = make([]aborted, n)
				for i := range f.aborted {
					f.aborted[i] = aborted{c.int64(), c.int64()}
				}
			}
			f.readReplica = c.int32()
			f.records = c.bytes()
			out = append(out, f)
		}
	}
	return code, throttle, out, c.err
}

// What can be wrong with fetched bytes.
var (
	errCRC       = errors.New("the checksum of a record batch is wrong")
	errBatch     = errors.New("a record batch is malformed")
	errOldFormat = errors.New("the records are in a message format older than Kafka 0.11 (magic below 2)")
	errHugeBatch = fmt.Errorf("a record batch claims more than %d bytes", maxFrame)
)

// batchInfo is the header of a fetched record batch.
type batchInfo struct {
	base, last  int64 // offsets of the first and the last record, those that compaction removed included
	attributes  int16
	firstTime   int64
	maxTime     int64
	producer    int64
	count       int
	compression codec
}

func (b *batchInfo) control() bool       { return b.attributes&attrControl != 0 }
func (b *batchInfo) transactional() bool { return b.attributes&attrTxn != 0 }

// decoder turns fetched bytes into records. It keeps buffers and interned header keys; one
// goroutine uses it at a time.
type decoder struct {
	inflater inflater
	keys     map[string]string // header keys seen, at most maxKeys
	recent   []string          // header keys of the last record: the next one mostly has the same
	headers  []record.Header   // slab that headers are cut from
	open     map[int64]bool    // producers with an aborted transaction, within one partition's bytes
}

const maxKeys = 1024

// decode reads the visible records of one partition from offset next on. It returns the position
// behind everything that was complete. need > 0 says that not even one batch was complete and how
// many bytes it has. An error concerns the batch at the returned position; the records before it are good.
func (d *decoder) decode(f *fetched, next record.Offset, committed bool) (recs []broker.Record, pos record.Offset, need int, err error) {
	ab := f.aborted
	slices.SortFunc(ab, func(x, y aborted) int { return int(min(max(x.first-y.first, -1), 1)) })
	clear(d.open)
	d.headers = nil // a slab must not keep the bytes of an earlier answer alive
	recs = make([]broker.Record, 0, countRecords(f.records, int64(next)))
	data, start := f.records, next
	for {
		info, size, herr := splitBatch(data)
		if herr != nil {
			return recs, next, 0, herr
		}
		if size > len(data) || size == 0 {
			if next == start && len(data) > 0 {
				need = max(size, 2*len(data))
			}
			return recs, next, need, nil
		}
		// Take over the aborted transactions that began at or before this batch, then look at the batch:
		// the marker may be all that compaction left of one, and it must close what it belongs to.
		for committed && len(ab) > 0 && ab[0].first <= info.last {
			if d.open == nil {
				d.open = map[int64]bool{}
			}
			d.open[ab[0].producer] = true
			ab = ab[1:]
		}
		switch {
		case info.control():
			if abort, merr := d.abortMarker(data[batchHeader:size], &info); merr != nil {
				return recs, next, 0, merr
			} else if abort {
				delete(d.open, info.producer)
			}
		case info.transactional() && d.open[info.producer], info.last < int64(next):
		default:
			recs, err = d.batch(recs, data[batchHeader:size], &info, int64(next))
			if err != nil {
				return recs, next, 0, err
			}
		}
		next = max(next, record.Offset(info.last+1))
		data = data[size:]
	}
}

// splitBatch reads the header of the batch at the start of b and checks its CRC if it is complete.
// size is its whole length, which may be more than there is, or 0 if not even that is known.
func splitBatch(b []byte) (info batchInfo, size int, err error) {
	if len(b) < 17 {
		return info, 0, nil
	}
	be := binary.BigEndian
	length := int(int32(be.Uint32(b[8:])))
	// The CRC does not cover these fields, so that they are believed only as far as they make sense.
	if b[16] < batchMagic {
		return info, 0, errOldFormat
	}
	if b[16] > batchMagic || length < batchHeader-12 {
		return info, 0, errBatch
	}
	if length > maxFrame {
		return info, 0, errHugeBatch
	}
	size = 12 + length
	if size > len(b) {
		return info, size, nil
	}
	b = b[:size]
	if crc32.Checksum(b[21:], castagnoli()) != be.Uint32(b[17:]) {
		return info, 0, errCRC
	}
	info.base = int64(be.Uint64(b))
	info.attributes = int16(be.Uint16(b[21:]))
	info.compression = codec(info.attributes & attrCodec)
	info.last = info.base + int64(int32(be.Uint32(b[23:])))
	info.firstTime, info.maxTime = int64(be.Uint64(b[27:])), int64(be.Uint64(b[35:]))
	info.producer = int64(be.Uint64(b[43:]))
	info.count = int(int32(be.Uint32(b[57:])))
	if info.base < 0 || info.last < info.base || info.count < 0 {
		return info, 0, errBatch
	}
	return info, size, nil
}

// countRecords says for how many records room is to be made. Only counts that the bytes can hold are
// believed; compressed batches make their own room once they are inflated.
func countRecords(b []byte, next int64) (n int) {
	for {
		if len(b) < batchHeader {
			return n
		}
		be := binary.BigEndian
		size := 12 + int(int32(be.Uint32(b[8:])))
		if size < batchHeader || size > len(b) {
			return n
		}
		count, attr := int(int32(be.Uint32(b[57:]))), be.Uint16(b[21:])
		last := int64(be.Uint64(b)) + int64(int32(be.Uint32(b[23:])))
		if attr&(attrCodec|attrControl) == 0 && last >= next && count > 0 && count <= size/minRecordBytes {
			n += count
		}
		b = b[size:]
	}
}

// abortMarker says whether a control batch is an abort marker.
func (d *decoder) abortMarker(payload []byte, info *batchInfo) (bool, error) {
	if info.count == 0 { // compaction may leave an empty batch
		return false, nil
	}
	recs, err := d.batch(nil, payload, info, info.base)
	if err != nil {
		return false, err
	}
	if len(recs) == 0 {
		return false, errBatch
	}
	// The key is int16 version, int16 type: 0 abort, 1 commit. Other types are not about transactions.
	key := recs[0].Key
	return len(key) >= 4 && binary.BigEndian.Uint16(key[2:]) == 0, nil
}

// batch appends the records of one batch from offset next on.
func (d *decoder) batch(recs []broker.Record, payload []byte, info *batchInfo, next int64) ([]broker.Record, error) {
	b, err := d.inflater.inflate(info.compression, payload)
	if err != nil {
		return recs, fmt.Errorf("%w: %w", errBatch, err)
	}
	if info.count > len(b)/minRecordBytes {
		return recs, errBatch
	}
	recs = slices.Grow(recs, info.count)
	// A batch is delivered as a whole or not at all: the caller goes on behind the last good one.
	good := len(recs)
	appendTime := info.attributes&attrAppendTime != 0
	at, before := 0, int64(-1)
	for k := range info.count {
		size, i := varint(b, at)
		if i < 0 || size < minRecordBytes-1 || size > int64(len(b)-i) {
			return recs[:good], errBatch
		}
		// Fields are read within their record: a wrong length cannot reach into the next one. The slices
		// that are handed out cannot grow into it either.
		end := i + int(size)
		r := b[:end:end]
		delta, i := varint(r, i+1)
		off, i := varint(r, i)
		key, i := varBytes(r, i)
		value, i := varBytes(r, i)
		headers, i := varint(r, i)
		if i < 0 || off <= before || info.base+off > info.last {
			return recs[:good], errBatch
		}
		at, before = end, off
		if info.base+off < next { // a seek into the middle of a batch
			continue
		}
		ts := info.firstTime + delta
		if appendTime {
			ts = info.maxTime
		}
		rec := broker.Record{Offset: record.Offset(info.base + off), Timestamp: time.UnixMilli(ts), Key: key, Value: value}
		if headers != 0 {
			if rec.Headers, i = d.recordHeaders(r, i, headers, info.count-k); i < 0 {
				return recs[:good], errBatch
			}
		}
		recs = append(recs, rec)
	}
	return recs, nil
}

// varBytes reads bytes with a varint length at b[i:]; a negative length gives nil.
func varBytes(b []byte, i int) ([]byte, int) {
	n, i := varint(b, i)
	if i < 0 || n > int64(len(b)-i) {
		return nil, -1
	}
	if n < 0 {
		return nil, i
	}
	end := i + int(n)
	return b[i:end:end], end
}

// recordHeaders reads n headers at b[i:] into the slab. left is how many records of the batch,
// this one included, probably have as many.
func (d *decoder) recordHeaders(b []byte, i int, n int64, left int) (record.Headers, int) {
	if n < 0 || n > int64(len(b)-i)/2 {
		return nil, -1
	}
	if cap(d.headers)-len(d.headers) < int(n) {
		d.headers = make([]record.Header, 0, max(int(n), min(int(n)*left, 4096)))
	}
	from := len(d.headers)
	for k := range int(n) {
		var key, value []byte
		key, i = varBytes(b, i)
		value, i = varBytes(b, i)
		if i < 0 {
			return nil, -1
		}
		d.headers = append(d.headers, record.Header{Key: d.intern(key, k), Value: value})
	}
	return d.headers[from:len(d.headers):len(d.headers)], i
}

// intern gives the string of the k-th header key of a record without allocating it each time.
func (d *decoder) intern(key []byte, k int) string {
	if k < len(d.recent) && d.recent[k] == string(key) {
		return d.recent[k]
	}
	s, ok := d.keys[string(key)]
	if !ok {
		s = string(key)
		if d.keys == nil || len(d.keys) >= maxKeys {
			d.keys = make(map[string]string)
		}
		d.keys[s] = s
	}
	switch {
	case k < len(d.recent):
		d.recent[k] = s
	case k == len(d.recent) && k < 64:
		d.recent = append(d.recent, s)
	}
	return s
}
