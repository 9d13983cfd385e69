package serde

import (
	"encoding/binary"
	"math"
	"unsafe"
)

// String is the Serde of text: its bytes, as Kafka's StringSerializer writes them (UTF-8 is not
// checked). A decoded string shares the memory of its input. Null is refused with [ErrNull].
func String() Serde[string] { return stringSerde{} }

type stringSerde struct{}

func (stringSerde) Append(dst []byte, v string) ([]byte, error) {
	return append(extend(dst), v...), nil
}

func (stringSerde) Decode(b []byte) (string, error) {
	if b == nil {
		return "", null("string")
	}
	// No copy: b is a part of a fetched batch or a private copy of stored bytes, which nobody changes.
	return unsafe.String(unsafe.SliceData(b), len(b)), nil
}

func (stringSerde) AliasesInput() bool { return true }

// Bytes is the Serde of raw bytes. A nil slice is null, both ways; an empty one is not. Decoded bytes
// are those of the record and must not be changed.
func Bytes() Serde[[]byte] { return bytesSerde{} }

type bytesSerde struct{}

func (bytesSerde) Append(dst, v []byte) ([]byte, error) {
	if v == nil {
		return nil, nil
	}
	return append(extend(dst), v...), nil
}

func (bytesSerde) Decode(b []byte) ([]byte, error) {
	// The capacity is cut, so that an append to the value cannot reach the record behind it.
	return b[:len(b):len(b)], nil
}

func (bytesSerde) AliasesInput() bool { return true }

// numberBytes is the length of the two number formats.
const numberBytes = 8

// Int64 is the Serde of whole numbers: 8 bytes, big-endian, two's complement, as Kafka's
// LongSerializer writes them. Errors of Decode: [SizeError], [ErrNull].
func Int64() Serde[int64] { return int64Serde{} }

type int64Serde struct{}

func (int64Serde) Append(dst []byte, v int64) ([]byte, error) {
	return binary.BigEndian.AppendUint64(dst, uint64(v)), nil
}

func (int64Serde) Decode(b []byte) (int64, error) {
	u, err := decodeNumber("int64", b)
	return int64(u), err
}

func (int64Serde) AliasesInput() bool { return false }

// Float64 is the Serde of floating-point numbers: 8 bytes, big-endian, IEEE 754, as Kafka's
// DoubleSerializer writes them. Money is not a float. Errors of Decode: [SizeError], [ErrNull].
func Float64() Serde[float64] { return float64Serde{} }

type float64Serde struct{}

func (float64Serde) Append(dst []byte, v float64) ([]byte, error) {
	return binary.BigEndian.AppendUint64(dst, math.Float64bits(v)), nil
}

func (float64Serde) Decode(b []byte) (float64, error) {
	u, err := decodeNumber("float64", b)
	return math.Float64frombits(u), err
}

func (float64Serde) AliasesInput() bool { return false }

func decodeNumber(name string, b []byte) (uint64, error) {
	switch {
	case b == nil:
		return 0, null(name)
	case len(b) != numberBytes:
		return 0, &SizeError{Type: name, Got: len(b), Want: numberBytes}
	}
	return binary.BigEndian.Uint64(b), nil
}
