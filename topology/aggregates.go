package topology

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sort"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/window"
)

// The aggregates of this file are Aggregate with the function given. Their options are Aggregate's, but for
// MergeWith: they know how values are put together.

// Count counts the records of each group.
func Count[K, V, G any](s Grouped[K, V, G], name string, opts ...AggregateOption) *Stream[G, int64] {
	a := aggregator[K, V, int64, int64]{
		add:    func(n int64, _ bool, _ *record.Record[K, V]) (int64, bool, error) { return n + 1, true, nil },
		merge:  func(a, b int64) (int64, error) { return a + b, nil },
		result: same[int64],
	}
	return newAggregate(s, name, a, serde.Int64(), serde.Int64(), true, opts)
}

// Number is what can be summed. Money is an int64 of its smallest unit, or a decimal of your own with Aggregate: floats
// are not exact, and their sum depends on the order of the records.
type Number interface{ int64 | float64 }

// ErrOverflow: a sum does not fit into 64 bits. An error of the stage process that a policy handles.
var ErrOverflow = errors.New("the sum is beyond 64 bits")

// Sum sums what of takes from the records of each group. A sum that would overflow is an error, ErrOverflow.
func Sum[K, V, G any, N Number](s Grouped[K, V, G], name string, of func(record.Record[K, V]) (N, error), opts ...AggregateOption) *Stream[G, N] {
	a := aggregator[K, V, N, N]{
		add: func(old N, _ bool, r *record.Record[K, V]) (N, bool, error) {
			n, err := of(*r)
			if err != nil {
				return old, false, err
			}
			sum, err := plus(old, n)
			return sum, true, err
		},
		merge: plus[N], result: same[N],
	}
	return newAggregate(s, name, a, numberSerde[N](), numberSerde[N](), of != nil, opts)
}

// plus adds, and checks that whole numbers do not wrap around.
func plus[N Number](a, b N) (N, error) {
	sum := a + b
	if b > 0 && sum < a || b < 0 && sum > a {
		return a, fmt.Errorf("%w: %v and %v", ErrOverflow, a, b)
	}
	return sum, nil
}

func numberSerde[N Number]() serde.Serde[N] {
	if s, ok := any(serde.Int64()).(serde.Serde[N]); ok {
		return s
	}
	return any(serde.Float64()).(serde.Serde[N])
}

// Min keeps the least of what of takes from the records of each group.
func Min[K, V, G any, T cmp.Ordered](s Grouped[K, V, G], name string, values serde.Serde[T], of func(record.Record[K, V]) (T, error), opts ...AggregateOption) *Stream[G, T] {
	return choose(s, name, values, of, func(a, b T) T { return min(a, b) }, opts)
}

// Max keeps the greatest of what of takes from the records of each group.
func Max[K, V, G any, T cmp.Ordered](s Grouped[K, V, G], name string, values serde.Serde[T], of func(record.Record[K, V]) (T, error), opts ...AggregateOption) *Stream[G, T] {
	return choose(s, name, values, of, func(a, b T) T { return max(a, b) }, opts)
}

// choose keeps one of all values.
func choose[K, V, G, T any](s Grouped[K, V, G], name string, values serde.Serde[T], of func(record.Record[K, V]) (T, error), pick func(a, b T) T, opts []AggregateOption) *Stream[G, T] {
	a := aggregator[K, V, T, T]{
		add: func(old T, first bool, r *record.Record[K, V]) (T, bool, error) {
			v, err := of(*r)
			if err != nil || first {
				return v, true, err
			}
			return pick(old, v), true, nil
		},
		merge:  func(a, b T) (T, error) { return pick(a, b), nil },
		result: same[T],
	}
	return newAggregate(s, name, a, values, values, of != nil, opts)
}

// Avg keeps the mean of what of takes from the records of each group.
func Avg[K, V, G any](s Grouped[K, V, G], name string, of func(record.Record[K, V]) (float64, error), opts ...AggregateOption) *Stream[G, float64] {
	a := aggregator[K, V, mean, float64]{
		add: func(old mean, _ bool, r *record.Record[K, V]) (mean, bool, error) {
			v, err := of(*r)
			return mean{old.sum + v, old.n + 1}, true, err
		},
		merge:  func(a, b mean) (mean, error) { return mean{a.sum + b.sum, a.n + b.n}, nil },
		result: func(m mean) (float64, error) { return m.sum / float64(m.n), nil },
	}
	return newAggregate(s, name, a, meanSerde{}, serde.Float64(), of != nil, opts)
}

// mean is what Avg keeps.
type mean struct {
	sum float64
	n   int64
}

// meanSerde writes the sum and the number, 8 bytes each.
type meanSerde struct{}

func (meanSerde) Append(dst []byte, m mean) ([]byte, error) {
	dst = binary.BigEndian.AppendUint64(dst, math.Float64bits(m.sum))
	return binary.BigEndian.AppendUint64(dst, uint64(m.n)), nil
}

func (meanSerde) Decode(b []byte) (mean, error) {
	if len(b) != 16 {
		return mean{}, &serde.SizeError{Type: "mean", Got: len(b), Want: 16}
	}
	return mean{math.Float64frombits(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:]))}, nil
}

func (meanSerde) AliasesInput() bool { return false }

// First keeps what of takes from the record with the lowest event time of each group; of records of one time from
// the one that came first.
func First[K, V, G, T any](s Grouped[K, V, G], name string, values serde.Serde[T], of func(record.Record[K, V]) (T, error), opts ...AggregateOption) *Stream[G, T] {
	return byTime(s, name, values, of, func(old, n window.Millis) bool { return n < old }, opts)
}

// Last keeps what of takes from the record with the highest event time of each group; of records of one time from the
// one that came last.
func Last[K, V, G, T any](s Grouped[K, V, G], name string, values serde.Serde[T], of func(record.Record[K, V]) (T, error), opts ...AggregateOption) *Stream[G, T] {
	return byTime(s, name, values, of, func(old, n window.Millis) bool { return n >= old }, opts)
}

func byTime[K, V, G, T any](s Grouped[K, V, G], name string, values serde.Serde[T], of func(record.Record[K, V]) (T, error), replaces func(old, n window.Millis) bool, opts []AggregateOption) *Stream[G, T] {
	a := aggregator[K, V, ranked[T], T]{
		add: func(old ranked[T], first bool, r *record.Record[K, V]) (ranked[T], bool, error) {
			v, err := of(*r)
			if err != nil {
				return old, false, err
			}
			at, err := momentOf(r.Timestamp)
			if first || replaces(old.at(), at) {
				return ranked[T]{rank: int64(at), value: v}, true, err
			}
			return old, true, err
		},
		merge: func(a, b ranked[T]) (ranked[T], error) {
			if replaces(a.at(), b.at()) {
				return b, nil
			}
			return a, nil
		},
		result: valueOf[T],
	}
	return newAggregate(s, name, a, rankedSerdeOf(values), values, of != nil, opts)
}

// maxDistinct bounds the elements that CountDistinct remembers of one group: half a megabyte of state.
const maxDistinct = 32_768

var errTooManyDistinct = fmt.Errorf("more than %d distinct elements in one group", maxDistinct)

// CountDistinct counts the distinct elements that of takes from the records of each group. It is exact: 16 bytes of the
// SHA-256 of each element are kept, at most 32,768 of a group; one more is an error that a policy handles. The cost of a record
// grows with the number of elements, so that windows, which begin anew, suit it best.
func CountDistinct[K, V, G, E any](s Grouped[K, V, G], name string, elements serde.Serde[E], of func(record.Record[K, V]) (E, error), opts ...AggregateOption) *Stream[G, int64] {
	a := aggregator[K, V, []byte, int64]{
		add: func(old []byte, _ bool, r *record.Record[K, V]) ([]byte, bool, error) {
			e, err := of(*r)
			if err != nil {
				return old, false, err
			}
			b, err := elements.Append(make([]byte, 0, 64), e)
			if err != nil {
				return old, false, err
			}
			h := aliasID(b).Hash()
			next, err := insertHash(old, h[:])
			return next, true, err
		},
		merge: func(a, b []byte) (next []byte, err error) {
			next = a
			for ; len(b) > 0 && err == nil; b = b[record.HashBytes:] {
				next, err = insertHash(next, b[:record.HashBytes])
			}
			return next, err
		},
		result: func(set []byte) (int64, error) { return int64(len(set) / record.HashBytes), nil },
	}
	return newAggregate(s, name, a, serde.Bytes(), serde.Int64(), of != nil && elements != nil, opts)
}

// insertHash returns the sorted set with the hash in it. The set is not changed.
func insertHash(set, h []byte) ([]byte, error) {
	const size = record.HashBytes
	n := len(set) / size
	i := sort.Search(n, func(i int) bool { return bytes.Compare(set[i*size:(i+1)*size], h) >= 0 })
	switch {
	case i < n && bytes.Equal(set[i*size:(i+1)*size], h):
		return set, nil
	case n >= maxDistinct:
		return set, errTooManyDistinct
	}
	out := append(make([]byte, 0, len(set)+size), set[:i*size]...)
	return append(append(out, h...), set[i*size:]...), nil
}

// Reduce puts the values of each group together: the first one stands as it is, fn makes one of the value so far and each
// further one. fn must not change what its arguments point to; for sessions and sliding windows it must be associative, since there it also
// puts together what it made. The stream must have a serde for its values.
func Reduce[K, V, G any](s Grouped[K, V, G], name string, fn func(a, b V) (V, error), opts ...AggregateOption) *Stream[G, V] {
	values := s.grouping().s.values
	a := aggregator[K, V, V, V]{
		add: func(old V, first bool, r *record.Record[K, V]) (V, bool, error) {
			if first {
				return r.Value, true, nil
			}
			v, err := fn(old, r.Value)
			return v, true, err
		},
		merge: fn, result: same[V],
	}
	return newAggregate(s, name, a, values, values, fn != nil, opts)
}
