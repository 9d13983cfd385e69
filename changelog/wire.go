package changelog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/record"
)

var (
	// ErrNewerFormat: written by a newer version of streamd. Nothing must be changed; run that version.
	ErrNewerFormat = errors.New("changelog: written in a newer format")
	// ErrForeign: not written by streamd.
	ErrForeign = errors.New("changelog: not written by streamd")
	// ErrCorrupt: written by streamd, but not decodable.
	ErrCorrupt = errors.New("changelog: corrupt")
)

// format is the version of the values of the ID log.
const format = 1

const (
	maxNameBytes = 1024
	timeBytes    = 12
	blockHeader  = 1 + 8 + timeBytes + 1
	// payloadBytes is the size of a payload's hash behind an ID's.
	payloadBytes = 8
)

// Kind is what a record of the ID log is: the first byte of its key.
type Kind byte

// The kinds.
const (
	KindBlock  Kind = 1
	KindCommit Kind = 2
)

// KindOf returns the kind of a record of the ID log. ErrForeign if the key is none of ours,
// ErrNewerFormat for a kind that is not known.
func KindOf(key []byte) (Kind, error) {
	switch {
	case len(key) == 0:
		return 0, fmt.Errorf("%w: a record without a key", ErrForeign)
	case key[0] == byte(KindBlock), key[0] == byte(KindCommit):
		return Kind(key[0]), nil
	case key[0] < ' ':
		return 0, fmt.Errorf("%w: a record of kind %d", ErrNewerFormat, key[0])
	}
	return 0, fmt.Errorf("%w: key %q", ErrForeign, key[:min(len(key), 40)])
}

// EncodeBlock returns the record of the ID log for a block. Both are new memory.
func EncodeBlock(b record.OperatorBlock) (key, value []byte) {
	key = append([]byte{byte(KindBlock)}, b.Operator...)
	value = make([]byte, 0, blockHeader+len(b.Entries))
	value = append(value, format)
	value = binary.BigEndian.AppendUint64(value, b.Generation)
	value = appendTime(value, b.StreamTime)
	value = append(value, byte(b.EntryBytes))
	return key, append(value, b.Entries...)
}

// DecodeBlock is the reverse. The entries alias value.
func DecodeBlock(key, value []byte) (record.OperatorBlock, error) {
	var b record.OperatorBlock
	if n := len(key) - 1; n < 1 || n > maxNameBytes || key[0] != byte(KindBlock) {
		return b, fmt.Errorf("%w: a block's key of %d bytes", ErrCorrupt, len(key))
	}
	r, err := newReader(value)
	if err != nil {
		return b, err
	}
	b.Operator = string(key[1:])
	b.Generation = r.uint64()
	b.StreamTime = r.time()
	b.EntryBytes = int(r.byte())
	b.Entries = r.b
	switch {
	case r.failed:
		return record.OperatorBlock{}, fmt.Errorf("%w: a block of %d bytes", ErrCorrupt, len(value))
	case b.EntryBytes != record.HashBytes && b.EntryBytes != record.HashBytes+payloadBytes:
		return record.OperatorBlock{}, fmt.Errorf("%w: a block with entries of %d bytes", ErrCorrupt, b.EntryBytes)
	case len(b.Entries) == 0 || len(b.Entries)%b.EntryBytes != 0:
		return record.OperatorBlock{}, fmt.Errorf("%w: a block with %d bytes in entries of %d", ErrCorrupt, len(b.Entries), b.EntryBytes)
	}
	return b, nil
}

// EncodeCommit returns the commit record: the last one that a transaction writes into the ID log.
// Counters that have not changed since the last commit record may be left out of the point.
func EncodeCommit(p record.CommitPoint) (key, value []byte) {
	value = append(value, format)
	value = binary.BigEndian.AppendUint64(value, p.Sequence)
	value = binary.BigEndian.AppendUint64(value, p.Incarnation)
	value = appendTime(value, p.StreamTime)
	value = binary.AppendUvarint(value, uint64(len(p.Inputs)))
	for _, in := range p.Inputs {
		value = appendString(value, in.Topic)
		value = binary.BigEndian.AppendUint32(value, uint32(in.Partition))
		value = appendString(value, in.TopicID)
		value = binary.BigEndian.AppendUint64(value, uint64(in.Next))
	}
	value = binary.AppendUvarint(value, uint64(len(p.Counters)))
	for _, c := range p.Counters {
		value = appendString(value, c.Name)
		value = binary.BigEndian.AppendUint64(value, c.Value)
	}
	value = binary.AppendUvarint(value, uint64(len(p.Stores)))
	for _, s := range p.Stores {
		value = appendString(value, s.Store)
		value = appendString(value, s.TopicID)
		value = binary.BigEndian.AppendUint64(value, uint64(s.Next))
	}
	return []byte{byte(KindCommit)}, value
}

// DecodeCommit decodes the value of a commit record.
func DecodeCommit(value []byte) (record.CommitPoint, error) {
	r, err := newReader(value)
	if err != nil {
		return record.CommitPoint{}, err
	}
	p := record.CommitPoint{Sequence: r.uint64(), Incarnation: r.uint64(), StreamTime: r.time()}
	// Each list grows as its elements are found to be there: a count alone allocates nothing.
	for n := r.uvarint(); n > 0 && !r.failed; n-- {
		in := record.InputPosition{}
		in.Topic = r.string()
		in.Partition = record.Partition(r.uint32())
		in.TopicID = r.string()
		in.Next = record.Offset(r.uint64())
		if in.Topic == "" || in.Partition < 0 || in.Next < 0 {
			r.failed = true
		}
		p.Inputs = append(p.Inputs, in)
	}
	for n := r.uvarint(); n > 0 && !r.failed; n-- {
		p.Counters = append(p.Counters, record.Counter{Name: r.string(), Value: r.uint64()})
	}
	for n := r.uvarint(); n > 0 && !r.failed; n-- {
		s := record.StorePosition{Store: r.string(), TopicID: r.string(), Next: record.Offset(r.uint64())}
		if s.Next < 0 {
			r.failed = true
		}
		p.Stores = append(p.Stores, s)
	}
	if r.failed || len(r.b) > 0 || p.Sequence == 0 {
		return record.CommitPoint{}, fmt.Errorf("%w: a commit record of %d bytes", ErrCorrupt, len(value))
	}
	return p, nil
}

func appendTime(b []byte, t time.Time) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(t.Unix()))
	return binary.BigEndian.AppendUint32(b, uint32(t.Nanosecond()))
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// reader takes a value apart. After the first thing that is not there it has failed, and gives zeros.
type reader struct {
	b      []byte
	failed bool
}

// newReader checks the format, which stands first.
func newReader(value []byte) (*reader, error) {
	switch {
	case len(value) == 0 || value[0] == 0:
		return nil, fmt.Errorf("%w: a value without a format", ErrCorrupt)
	case value[0] > format:
		return nil, fmt.Errorf("%w: %d, this version knows %d", ErrNewerFormat, value[0], format)
	}
	return &reader{b: value[1:]}, nil
}

func (r *reader) take(n uint64) []byte {
	if r.failed || n > uint64(len(r.b)) {
		r.failed = true
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.failed = true
		return 0
	}
	r.take(uint64(n))
	return v
}

func (r *reader) string() string {
	n := r.uvarint()
	if n > maxNameBytes {
		r.failed = true
	}
	return string(r.take(n))
}

func (r *reader) time() time.Time {
	sec, nano := int64(r.uint64()), r.uint32()
	if nano >= 1e9 {
		r.failed = true
		nano = 0
	}
	return time.Unix(sec, int64(nano)).UTC()
}
