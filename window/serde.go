package window

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/streamd/streamd/serde"
)

// KeySerde writes the keys of windowed aggregates: the key's own bytes, then the end and the start of the window
// in milliseconds since 1970, 8 bytes each, big-endian. It is what Kafka Streams' SessionWindowedSerializer
// writes, here for all kinds of windows: who reads it need not know the size.
//
// A topic that is written with it is partitioned by the key alone, so that all windows of a key are in one
// partition (see PartitionBytes). Null keys are refused with serde.ErrNull. Errors of Decode: those of keys,
// [ErrKey].
func KeySerde[K any](keys serde.Serde[K]) serde.Serde[Key[K]] { return keySerde[K]{keys} }

// ErrKey: the bytes are no key with a window.
var ErrKey = errors.New("window: not a key with a window")

type keySerde[K any] struct{ keys serde.Serde[K] }

// spanBytes is what stands behind a key.
const spanBytes = 16

func (s keySerde[K]) Append(dst []byte, k Key[K]) ([]byte, error) {
	start, ok := Of(k.Start)
	end, okToo := Of(k.End)
	if !ok || !okToo || start > end {
		return nil, fmt.Errorf("%w: window %s", ErrKey, k.Window)
	}
	b, err := s.keys.Append(dst, k.Key)
	if err != nil {
		return nil, err
	}
	if b == nil {
		return nil, fmt.Errorf("window: key: %w", serde.ErrNull)
	}
	return AppendSpan(b, Span{start, end}), nil
}

// AppendSpan appends what stands behind a key: the end, then the start.
func AppendSpan(dst []byte, s Span) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.End))
	return binary.BigEndian.AppendUint64(dst, uint64(s.Start))
}

func (s keySerde[K]) Decode(b []byte) (k Key[K], err error) {
	n := len(b) - spanBytes
	if n < 0 {
		return k, fmt.Errorf("%w: %d bytes, at least %d", ErrKey, len(b), spanBytes)
	}
	end, start := Millis(binary.BigEndian.Uint64(b[n:])), Millis(binary.BigEndian.Uint64(b[n+8:]))
	if start < MinMillis || end > MaxMillis || start > end {
		return k, fmt.Errorf("%w: from %d to %d", ErrKey, start, end)
	}
	if k.Key, err = s.keys.Decode(b[:n:n]); err != nil {
		return Key[K]{}, err
	}
	k.Window = Span{start, end}.Window()
	return k, nil
}

func (s keySerde[K]) AliasesInput() bool { return serde.Aliases(s.keys) }

// PartitionBytes is the part of an encoded key that decides on the partition.
func (s keySerde[K]) PartitionBytes(key []byte) []byte { return key[:max(0, len(key)-spanBytes)] }
