package topology

import (
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// Aggregate keeps one value for each group (each key, or each key and window), in the state store that has its name, and makes one
// record with the new value of each input, or of each window when it is closed (EmitOnClose). fn gets the value
// so far (the zero value of A for a new group) and the record; it must not change what the old value points to. The
// results are children of the input, with its key, time and headers.
//
// The input must be partitioned by its key: behind Map, FlatMap, Process and a Dedup with
// ScopeStream, Build asks for a KeyBy. A record with a null key belongs to no value and is dropped,
// counted as null_key. If values encodes the result as null, the group is deleted. Options: OnError; with windows
// EmitOnUpdate, EmitOnClose, OnLate, and MergeWith, which sessions and sliding windows need.
func Aggregate[K, V, G, A any](s Grouped[K, V, G], name string, values serde.Serde[A], fn func(A, record.Record[K, V]) (A, error), opts ...AggregateOption) *Stream[G, A] {
	a := aggregator[K, V, A, A]{
		add: func(old A, _ bool, r *record.Record[K, V]) (A, bool, error) {
			next, err := fn(old, *r)
			return next, true, err
		},
		result: same[A],
	}
	return newAggregate(s, name, a, values, values, fn != nil, opts)
}

// same is the result of an aggregate that hands on what it keeps.
func same[A any](a A) (A, error) { return a, nil }
