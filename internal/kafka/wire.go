package kafka

import (
	"encoding/binary"
	"errors"
	"math"
)

// Keys and versions of the two requests that we encode ourselves. Both versions are the last ones
// without "flexible" fields; every broker from 2.4 to 4.x speaks them.
const (
	keyProduce, versionProduce = 0, 8
	keyFetch, versionFetch     = 1, 11
)

// maxFrame bounds one request or answer: above it a length is taken for corrupt, so that a bad byte
// cannot ask for gigabytes. Brokers' socket.request.max.bytes is 100 MiB by default.
const maxFrame = 256 << 20

// errShort says that an answer ends before its fields do.
var errShort = errors.New("answer is shorter than its fields")

// appendFrame starts a request frame with a header of version 1; its length is set by finishFrame.
func appendFrame(b []byte, key, version int16, correlation int32, client string) []byte {
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(key))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	b = binary.BigEndian.AppendUint32(b, uint32(correlation))
	return appendString(b, client)
}

// finishFrame sets the length of a frame.
func finishFrame(b []byte) []byte {
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func appendString(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

func append32(b []byte, v int32) []byte { return binary.BigEndian.AppendUint32(b, uint32(v)) }
func append64(b []byte, v int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(v)) }

// cursor reads the fields of an answer. After the first read behind the end every read gives zero
// and err is set: the caller checks once.
type cursor struct {
	b   []byte
	err error
}

func (c *cursor) take(n int) []byte {
	if c.err != nil || n < 0 || n > len(c.b) {
		c.fail()
		return nil
	}
	out := c.b[:n:n]
	c.b = c.b[n:]
	return out
}

func (c *cursor) fail() {
	if c.err == nil {
		c.err = errShort
	}
	c.b = nil
}

func (c *cursor) int16() int16 {
	if b := c.take(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (c *cursor) int32() int32 {
	if b := c.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (c *cursor) int64() int64 {
	if b := c.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

// string reads a string; null gives "".
func (c *cursor) string() string {
	n := c.int16()
	if n < 0 {
		return ""
	}
	return string(c.take(int(n)))
}

// bytes reads bytes with a length of four bytes; null gives nil. They alias the answer.
func (c *cursor) bytes() []byte {
	n := c.int32()
	if n < 0 {
		return nil
	}
	return c.take(int(n))
}

// count reads an array's length; null gives 0. each is the least size of one element, so that a
// corrupt length never asks for more memory than the answer itself has.
func (c *cursor) count(each int) int {
	n := c.int32()
	if n <= 0 {
		return 0
	}
	if int(n) > len(c.b)/each {
		c.fail()
		return 0
	}
	return int(n)
}

// varint reads a zigzag varint at b[i:] and returns the index behind it, -1 if there is none.
func varint(b []byte, i int) (int64, int) {
	if i >= 0 && i < len(b) && b[i] < 0x80 { // most are one byte
		return int64(b[i]>>1) ^ -int64(b[i]&1), i + 1
	}
	if i < 0 || i > len(b) {
		return 0, -1
	}
	v, n := binary.Varint(b[i:])
	if n <= 0 {
		return 0, -1
	}
	return v, i + n
}

// varintSize is how many bytes the zigzag varint of v has.
func varintSize(v int64) int {
	u := uint64(v<<1) ^ uint64(v>>63)
	n := 1
	for u >= 0x80 {
		u >>= 7
		n++
	}
	return n
}

// nextSequence is a partition's sequence number n records later; it wraps from MaxInt32 to 0.
func nextSequence(seq int32, n int) int32 { return int32((int64(seq) + int64(n)) & math.MaxInt32) }
