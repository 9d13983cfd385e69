package rawlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ErrFormat: bytes that docs/format.md does not know.
var ErrFormat = errors.New("not as docs/format.md says")

// HashBytes is the size of an ID as it is stored: the first half of its SHA-256.
const HashBytes = 16

// Block is an ID block of an ID log.
type Block struct {
	Operator   string
	Generation uint64
	Time       time.Time // stream time of the task
	EntryBytes int       // 16, or 24 with a hash of the payload behind each ID's
	Entries    []byte
}

// IDs calls fn for the hash of each ID.
func (b Block) IDs(fn func(id [HashBytes]byte)) {
	for e := b.Entries; len(e) > 0; e = e[b.EntryBytes:] {
		fn([HashBytes]byte(e))
	}
}

// Commit is a commit record of an ID log.
type Commit struct {
	Sequence, Incarnation uint64
	Time                  time.Time
	Inputs                []Input
	Counters              map[string]uint64 // those that stand in this record
	Stores                []Store
}

// Input is how far a task has processed an input partition.
type Input struct {
	Partition
	TopicID string
	Next    int64
}

// Store is how far the changelog of a state store went as of the commit before.
type Store struct {
	Name, TopicID string
	Next          int64
}

// Same says whether two commit records or a commit record and offset metadata mean one transaction.
func (c Commit) Same(sequence, incarnation uint64) bool {
	return c.Sequence == sequence && c.Incarnation == incarnation
}

// DecodeIDLog decodes a record of an ID log: one of the two results is not nil.
func DecodeIDLog(key, value []byte) (*Block, *Commit, error) {
	if len(key) == 0 {
		return nil, nil, fmt.Errorf("%w: a record of an ID log without a key", ErrFormat)
	}
	switch key[0] {
	case 1:
		b, err := decodeBlock(key[1:], value)
		return b, nil, err
	case 2:
		if len(key) != 1 {
			return nil, nil, fmt.Errorf("%w: key %x of a commit record", ErrFormat, key)
		}
		c, err := decodeCommit(value)
		return nil, c, err
	}
	return nil, nil, fmt.Errorf("%w: kind %d in an ID log", ErrFormat, key[0])
}

func decodeBlock(operator, value []byte) (*Block, error) {
	const head = 1 + 8 + 12 + 1
	if len(operator) == 0 || len(operator) > maxString || len(value) <= head || value[0] != 1 {
		return nil, fmt.Errorf("%w: block of %q, %d bytes", ErrFormat, operator, len(value))
	}
	b := &Block{
		Operator: string(operator), Generation: binary.BigEndian.Uint64(value[1:]),
		EntryBytes: int(value[head-1]), Entries: value[head:],
	}
	r := Cursor{b: value[9:]}
	b.Time = r.Time()
	if b.EntryBytes != HashBytes && b.EntryBytes != HashBytes+8 || len(b.Entries)%b.EntryBytes != 0 || b.Generation == 0 {
		return nil, fmt.Errorf("%w: block of %q: %d bytes of entries of %d, generation %d", ErrFormat, operator, len(b.Entries), b.EntryBytes, b.Generation)
	}
	return b, r.Err()
}

func decodeCommit(value []byte) (*Commit, error) {
	r := Cursor{b: value}
	if f := r.Byte(); f != 1 {
		return nil, fmt.Errorf("%w: format %d of a commit record", ErrFormat, f)
	}
	c := &Commit{Sequence: r.Uint64(), Incarnation: r.Uint64(), Time: r.Time(), Counters: map[string]uint64{}}
	for range r.Count() {
		c.Inputs = append(c.Inputs, Input{Partition{r.Text(), int32(r.Uint32())}, r.Text(), int64(r.Uint64())})
	}
	for range r.Count() {
		name := r.Text()
		c.Counters[name] = r.Uint64()
	}
	for range r.Count() {
		c.Stores = append(c.Stores, Store{r.Text(), r.Text(), int64(r.Uint64())})
	}
	if r.Err() == nil && len(r.b) > 0 {
		return nil, fmt.Errorf("%w: %d bytes behind a commit record", ErrFormat, len(r.b))
	}
	return c, r.Err()
}

// Metadata is the text that is committed with an offset.
type Metadata struct {
	Sequence, Incarnation uint64
	TopicID               string
}

// DecodeMetadata decodes it. What another program committed is no error: ok is false.
func DecodeMetadata(text string) (m Metadata, ok bool, err error) {
	rest, ours := strings.CutPrefix(text, "streamd/")
	if !ours {
		return m, false, nil
	}
	fields := strings.Split(rest, " ")
	if fields[0] != "1" {
		return m, true, fmt.Errorf("%w: offset metadata %q", ErrFormat, text)
	}
	for _, f := range fields[1:] {
		name, v, _ := strings.Cut(f, "=")
		var err error
		switch name {
		case "seq":
			m.Sequence, err = strconv.ParseUint(v, 10, 64)
		case "inc":
			m.Incarnation, err = strconv.ParseUint(v, 16, 64)
		case "topic":
			m.TopicID = v
		case "at":
			_, err = time.Parse(time.RFC3339Nano, v)
		}
		if err != nil {
			return m, true, fmt.Errorf("%w: offset metadata %q: %w", ErrFormat, text, err)
		}
	}
	if m.Sequence == 0 {
		return m, true, fmt.Errorf("%w: offset metadata %q has no sequence", ErrFormat, text)
	}
	return m, true, nil
}

// maxString and maxCount bound what damaged bytes can make a decoder allocate.
const (
	maxString = 1024
	maxCount  = 1 << 20
)

// Cursor takes the primitives of docs/format.md off some bytes. After the first error all is zero.
type Cursor struct {
	b   []byte
	err error
}

// NewCursor begins at the first byte.
func NewCursor(b []byte) *Cursor { return &Cursor{b: b} }

// Err is the first error.
func (c *Cursor) Err() error { return c.err }

// Rest returns what was not taken yet.
func (c *Cursor) Rest() []byte { return c.b }

func (c *Cursor) take(n int) []byte {
	if c.err != nil || len(c.b) < n {
		if c.err == nil {
			c.err = fmt.Errorf("%w: %d bytes more were expected, %d are left", ErrFormat, n, len(c.b))
		}
		return make([]byte, n)
	}
	out := c.b[:n]
	c.b = c.b[n:]
	return out
}

// Byte takes one byte.
func (c *Cursor) Byte() byte { return c.take(1)[0] }

// Uint16 takes 2 bytes.
func (c *Cursor) Uint16() uint16 { return binary.BigEndian.Uint16(c.take(2)) }

// Uint32 takes 4 bytes.
func (c *Cursor) Uint32() uint32 { return binary.BigEndian.Uint32(c.take(4)) }

// Uint64 takes 8 bytes.
func (c *Cursor) Uint64() uint64 { return binary.BigEndian.Uint64(c.take(8)) }

// Count takes a uvarint that counts what follows.
func (c *Cursor) Count() int {
	if c.err != nil {
		return 0
	}
	n, size := binary.Uvarint(c.b)
	// What is counted takes at least one byte each.
	if size <= 0 || n > maxCount || n > uint64(len(c.b)) {
		c.err = fmt.Errorf("%w: a count of %d before %d bytes", ErrFormat, n, len(c.b))
		return 0
	}
	c.b = c.b[size:]
	return int(n)
}

// Text takes a string.
func (c *Cursor) Text() string {
	n := c.Count()
	if n > maxString {
		c.err = fmt.Errorf("%w: a string of %d bytes", ErrFormat, n)
		return ""
	}
	return string(c.take(n))
}

// Time takes 12 bytes: seconds and nanoseconds. The zero time stands for none.
func (c *Cursor) Time() time.Time {
	s, ns := int64(c.Uint64()), c.Uint32()
	if c.err != nil {
		return time.Time{}
	}
	if ns >= 1e9 {
		c.err = fmt.Errorf("%w: %d nanoseconds", ErrFormat, ns)
		return time.Time{}
	}
	if s == (time.Time{}).Unix() && ns == 0 {
		return time.Time{}
	}
	return time.Unix(s, int64(ns)).UTC()
}
