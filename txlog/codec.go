package txlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/streamd/streamd/record"
)

// castagnoli is read only.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	positionFormat = 1
	blockFormat    = 1
	sealFormat     = 1

	timeBytes        = 12
	blockHeaderBytes = 2 + timeBytes
	sealBytes        = 66

	// maxBlockBytes is the most entries of one block value. It keeps a value inside the tables
	// (Badger moves one of 1 MiB to its value log) and well below the limit of a transaction.
	maxBlockBytes = 512 << 10

	// hashedEntryBytes is the size of an entry with a payload hash beside it.
	hashedEntryBytes = record.HashBytes + 8
)

func validEntryBytes(n int) bool { return n == record.HashBytes || n == hashedEntryBytes }

// logged counts what a generation was given: the part of the position record that the content is
// checked against.
type logged struct {
	genID
	entryBytes int
	ids        uint64
	nextSeq    uint64
}

func appendTime(b []byte, t time.Time) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(t.Unix()))
	return binary.BigEndian.AppendUint32(b, uint32(t.Nanosecond()))
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendCRC(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// checkCRC returns the value without its checksum.
func checkCRC(b []byte) ([]byte, error) {
	if len(b) < 4 {
		return nil, fmt.Errorf("%w: value of %d bytes", ErrDamaged, len(b))
	}
	body := b[:len(b)-4]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return nil, fmt.Errorf("%w: checksum of a value of %d bytes", ErrDamaged, len(b))
	}
	return body, nil
}

// reader takes a value apart. After the first fault all further reads give zero values; the
// fault is in err. It allocates no more than the value is long.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrDamaged, what)
	}
	r.b = nil
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.fail("value is too short")
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) u8() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) time() time.Time {
	seconds, nanos := int64(r.u64()), r.u32()
	if nanos >= 1e9 {
		r.fail("time out of range")
	}
	if r.err != nil {
		return time.Time{}
	}
	return time.Unix(seconds, int64(nanos)).UTC()
}

func (r *reader) string() string {
	n, k := binary.Uvarint(r.b)
	if k <= 0 || n > uint64(len(r.b)-k) {
		r.fail("string is too short")
		return ""
	}
	r.b = r.b[k:]
	return string(r.take(int(n)))
}

// count reads the length of a list whose elements have at least size bytes each.
func (r *reader) count(size int) int {
	n, k := binary.Uvarint(r.b)
	if k <= 0 || n > uint64((len(r.b)-k)/size) {
		r.fail("list is too short")
		return 0
	}
	r.b = r.b[k:]
	return int(n)
}

// end checks that nothing is left.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail(fmt.Sprintf("%d bytes too many", len(r.b)))
	}
	return r.err
}

// encodePosition makes the position record. gens must be sorted.
func encodePosition(p *record.LocalPosition, gens []logged) []byte {
	b := make([]byte, 0, 256+64*(len(p.Inputs)+len(p.Changelogs)+len(p.Counters))+27*len(gens))
	b = append(b, positionFormat, completeFlag(p.Complete))
	b = binary.BigEndian.AppendUint64(b, p.Sequence)
	b = binary.BigEndian.AppendUint64(b, p.Incarnation)
	b = appendTime(b, p.StreamTime)
	b = appendTime(b, p.AppliedAt)
	b = binary.AppendUvarint(b, uint64(len(p.Inputs)))
	for _, in := range p.Inputs {
		b = appendString(b, in.Topic)
		b = binary.BigEndian.AppendUint32(b, uint32(in.Partition))
		b = appendString(b, in.TopicID)
		b = binary.BigEndian.AppendUint64(b, uint64(in.Next))
	}
	b = binary.AppendUvarint(b, uint64(len(p.Changelogs)))
	for _, c := range p.Changelogs {
		b = appendString(b, c.Topic)
		b = binary.BigEndian.AppendUint32(b, uint32(c.Partition))
		b = appendString(b, c.TopicID)
		b = binary.BigEndian.AppendUint64(b, uint64(c.Next))
	}
	b = binary.AppendUvarint(b, uint64(len(p.Counters)))
	for _, c := range p.Counters {
		b = appendString(b, c.Name)
		b = binary.BigEndian.AppendUint64(b, c.Value)
	}
	b = binary.AppendUvarint(b, uint64(len(gens)))
	for _, g := range gens {
		b = binary.BigEndian.AppendUint16(b, g.op)
		b = binary.BigEndian.AppendUint64(b, g.gen)
		b = append(b, byte(g.entryBytes))
		b = binary.BigEndian.AppendUint64(b, g.ids)
		b = binary.BigEndian.AppendUint64(b, g.nextSeq)
	}
	return appendCRC(b)
}

func completeFlag(on bool) byte {
	if on {
		return 1
	}
	return 0
}

// decodePosition takes a position record apart.
func decodePosition(value []byte) (record.LocalPosition, []logged, error) {
	fail := func(err error) (record.LocalPosition, []logged, error) {
		return record.LocalPosition{}, nil, fmt.Errorf("position record: %w", err)
	}
	body, err := checkCRC(value)
	if err != nil {
		return fail(err)
	}
	r := reader{b: body}
	if f := r.u8(); r.err == nil && f != positionFormat {
		return fail(fmt.Errorf("%w: format %d, this program knows %d", ErrDamaged, f, positionFormat))
	}
	var p record.LocalPosition
	flags := r.u8()
	if flags > 1 {
		r.fail("unknown flags")
	}
	p.Complete = flags == 1
	p.Sequence, p.Incarnation = r.u64(), r.u64()
	p.StreamTime, p.AppliedAt = r.time(), r.time()
	// The smallest element of each list bounds what a false length can make us allocate.
	if n := r.count(14); n > 0 {
		p.Inputs = make([]record.InputPosition, n)
		for i := range p.Inputs {
			p.Inputs[i].Topic = r.string()
			p.Inputs[i].Partition = record.Partition(int32(r.u32()))
			p.Inputs[i].TopicID = r.string()
			p.Inputs[i].Next = record.Offset(r.u64())
		}
	}
	if n := r.count(14); n > 0 {
		p.Changelogs = make([]record.ChangelogPosition, n)
		for i := range p.Changelogs {
			p.Changelogs[i].Topic = r.string()
			p.Changelogs[i].Partition = record.Partition(int32(r.u32()))
			p.Changelogs[i].TopicID = r.string()
			p.Changelogs[i].Next = record.Offset(r.u64())
		}
	}
	if n := r.count(9); n > 0 {
		p.Counters = make([]record.Counter, n)
		for i := range p.Counters {
			p.Counters[i] = record.Counter{Name: r.string(), Value: r.u64()}
		}
	}
	gens := decodeLogged(&r)
	if err := r.end(); err != nil {
		return fail(err)
	}
	return p, gens, nil
}

func decodeLogged(r *reader) []logged {
	n := r.count(27)
	gens := make([]logged, n)
	for i := range gens {
		g := logged{genID: genID{op: r.u16(), gen: r.u64()}, entryBytes: int(r.u8()), ids: r.u64(), nextSeq: r.u64()}
		if r.err == nil && (!validEntryBytes(g.entryBytes) || i > 0 && gens[i-1].compare(g.genID) >= 0) {
			r.fail("list of generations")
		}
		gens[i] = g
	}
	return gens
}

// encodeBlock makes the value of one block.
func encodeBlock(streamTime time.Time, entryBytes int, entries []byte) []byte {
	b := make([]byte, 0, blockHeaderBytes+len(entries))
	b = append(b, blockFormat, byte(entryBytes))
	return append(appendTime(b, streamTime), entries...)
}

// decodeBlock takes a block apart. Entries alias the value.
func decodeBlock(gen uint64, value []byte) (record.IDBlock, error) {
	r := reader{b: value}
	format, entryBytes, at := r.u8(), int(r.u8()), r.time()
	if r.err == nil && (format != blockFormat || !validEntryBytes(entryBytes) || len(r.b)%entryBytes != 0) {
		r.fail("block")
	}
	if r.err != nil {
		return record.IDBlock{}, r.err
	}
	return record.IDBlock{Generation: gen, StreamTime: at, EntryBytes: entryBytes, Entries: r.b}, nil
}

// seal is the content of a seal marker.
type seal struct {
	entryBytes  int
	slots       uint32
	ids, logged uint64
	from, to    time.Time
	filterBytes uint64
	filterCRC   uint32
	runs        uint32
}

func encodeSeal(s *seal) []byte {
	b := make([]byte, 0, sealBytes)
	b = append(b, sealFormat, byte(s.entryBytes))
	b = binary.BigEndian.AppendUint32(b, s.slots)
	b = binary.BigEndian.AppendUint64(b, s.ids)
	b = binary.BigEndian.AppendUint64(b, s.logged)
	b = appendTime(appendTime(b, s.from), s.to)
	b = binary.BigEndian.AppendUint64(b, s.filterBytes)
	b = binary.BigEndian.AppendUint32(b, s.filterCRC)
	b = binary.BigEndian.AppendUint32(b, s.runs)
	return appendCRC(b)
}

func decodeSeal(value []byte) (*seal, error) {
	body, err := checkCRC(value)
	if err != nil {
		return nil, fmt.Errorf("seal marker: %w", err)
	}
	r := reader{b: body}
	format := r.u8()
	s := &seal{
		entryBytes: int(r.u8()), slots: r.u32(), ids: r.u64(), logged: r.u64(),
		from: r.time(), to: r.time(), filterBytes: r.u64(), filterCRC: r.u32(), runs: r.u32(),
	}
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("seal marker: %w", err)
	}
	switch {
	case format != sealFormat, !validEntryBytes(s.entryBytes), s.slots == 0, s.slots&(s.slots-1) != 0,
		s.runs > s.slots, s.ids > s.logged, s.filterBytes > math.MaxInt64:
		return nil, fmt.Errorf("seal marker: %w", ErrDamaged)
	}
	return s, nil
}
