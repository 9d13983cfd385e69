package topology

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/window"
)

// The operators of this file keep one record of each group, as Flink's DEDUPLICATE does (ROW_NUMBER() ... = 1). Unlike Dedup, which
// goes by a record's ID, they go by its key; without windows they remember every key for ever.

// KeepFirst passes on the first record of each group to come, and drops all later ones (filtered, in the counters). With
// EmitOnClose it is the one with the lowest event time, handed on when the window closes. The stream must have a serde
// for its values.
func KeepFirst[K, V, G any](s Grouped[K, V, G], name string, opts ...AggregateOption) *Stream[G, V] {
	onClose := collect(opts).emit == emitClose
	return keepOne(s, name, timeRank[K, V], func(old, n int64) bool { return onClose && n < old }, opts)
}

// KeepLast passes on each record that is not older, by its event time, than the last one of its group, so that a reader
// who takes the last one has the newest; older ones are dropped. With EmitOnClose only the newest of each window is
// handed on. The stream must have a serde for its values.
func KeepLast[K, V, G any](s Grouped[K, V, G], name string, opts ...AggregateOption) *Stream[G, V] {
	return keepOne(s, name, timeRank[K, V], func(old, n int64) bool { return n >= old }, opts)
}

// KeepBySequence passes on each record whose sequence is higher than all before it of its group, and drops the
// others: versions that come twice or out of order. The stream must have a serde for its values.
func KeepBySequence[K, V, G any](s Grouped[K, V, G], name string, sequence func(record.Record[K, V]) (int64, error), opts ...AggregateOption) *Stream[G, V] {
	return keepOne(s, name, sequence, func(old, n int64) bool { return n > old }, opts)
}

// keepOne keeps the record whose rank replaces that of the others.
func keepOne[K, V, G any](s Grouped[K, V, G], name string, rank func(record.Record[K, V]) (int64, error), replaces func(old, n int64) bool, opts []AggregateOption) *Stream[G, V] {
	values := s.grouping().s.values
	a := aggregator[K, V, ranked[V], V]{
		add: func(old ranked[V], first bool, r *record.Record[K, V]) (ranked[V], bool, error) {
			n, err := rank(*r)
			if err != nil || !first && !replaces(old.rank, n) {
				return old, false, err
			}
			return ranked[V]{rank: n, value: r.Value}, true, nil
		},
		merge: func(a, b ranked[V]) (ranked[V], error) {
			if replaces(a.rank, b.rank) {
				return b, nil
			}
			return a, nil
		},
		result: valueOf[V],
	}
	return newAggregate(s, name, a, rankedSerdeOf(values), values, rank != nil, opts)
}

func timeRank[K, V any](r record.Record[K, V]) (int64, error) {
	at, err := momentOf(r.Timestamp)
	return int64(at), err
}

// momentOf is the time of a record, an error if no window can hold it.
func momentOf(t time.Time) (window.Millis, error) {
	at, ok := window.Of(t)
	if !ok {
		return 0, fmt.Errorf("its time, %d ms, is outside of the years 1 to 9999", t.UnixMilli())
	}
	return at, nil
}

// ranked is a value with what decides whether another one replaces it.
type ranked[T any] struct {
	rank  int64
	value T
}

func (r ranked[T]) at() window.Millis { return window.Millis(r.rank) }

func valueOf[T any](r ranked[T]) (T, error) { return r.value, nil }

// rankedSerde writes the rank, 8 bytes, a byte that says whether the value is null, and the value.
type rankedSerde[T any] struct{ values serde.Serde[T] }

// rankedSerdeOf is nil if the values have no serde: then Build says so.
func rankedSerdeOf[T any](values serde.Serde[T]) serde.Serde[ranked[T]] {
	if values == nil {
		return nil
	}
	return rankedSerde[T]{values}
}

// rankedHeader stands before the value.
const rankedHeader = 9

func (s rankedSerde[T]) Append(dst []byte, r ranked[T]) ([]byte, error) {
	at := len(dst)
	dst = append(binary.BigEndian.AppendUint64(dst, uint64(r.rank)), 0)
	b, err := s.values.Append(dst, r.value)
	switch {
	case err != nil:
		return nil, err
	case b == nil:
		dst[at+rankedHeader-1] = 1
		return dst, nil
	case len(b) < len(dst):
		return nil, errNotAppended
	}
	return b, nil
}

func (s rankedSerde[T]) Decode(b []byte) (r ranked[T], err error) {
	if len(b) < rankedHeader {
		return r, &serde.SizeError{Type: "a value with a rank", Got: len(b), Want: rankedHeader}
	}
	rest := slices.Clip(b[rankedHeader:])
	if b[rankedHeader-1] != 0 {
		rest = nil
	}
	v, err := s.values.Decode(rest)
	return ranked[T]{int64(binary.BigEndian.Uint64(b)), v}, err
}

func (s rankedSerde[T]) AliasesInput() bool { return serde.Aliases(s.values) }
