package topology

import (
	"fmt"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// Aggregate keeps one value for each key, in the state store that has its name, and makes one
// record with the new value of each input. fn gets the value so far (the zero value of A for a new
// key) and the record; it must not change what the old value points to. The results are children of
// the input, with its key, time and headers.
//
// The input must be partitioned by its key: behind Map, FlatMap, Process and a Dedup with
// ScopeStream, Build asks for a KeyBy. A record with a null key belongs to no value and is dropped,
// counted as null_key. If values encodes the result as null, the key is deleted. Options: OnError.
func Aggregate[K, V, A any](s *Stream[K, V], name string, values serde.Serde[A], fn func(A, record.Record[K, V]) (A, error), opts ...AggregateOption) *Stream[K, A] {
	b := s.b
	n := &node{kind: kindAggregate, name: b.stateName(kindAggregate, name), opts: collect(opts)}
	store := KeyValue(n.name, s.keys, values)
	n.stores = []StateStore{store}
	b.add(n, s)
	b.require(fn != nil, n, "function", "the function is nil")
	b.require(values != nil, n, "serde", "the value's serde is nil")
	b.require(s.keys != nil, n, "serde", "has no serde for the keys, which are the store's: give it with WithKeys")
	if by := s.rekeyed; by != nil {
		b.problem(n, "unkeyed", fmt.Sprintf("%q may have changed the keys, so that records of one key are in several partitions and none would see them all: put KeyBy in between, or give %q PreserveKey if it is one that keeps them", by.name, by.name))
	}
	n.instantiate = func(c *instance, n *node) any {
		op, nullKey, out := c.operator(n), c.counter(CounterNullKey, n), new(record.Record[K, A])
		forward, cells := downstream[K, A](c, n, 0), store.in(c, op)
		return step[K, V](func(r *record.Record[K, V]) error {
			*op.in++
			key, err := cells.key(r.Key)
			if err != nil {
				return err
			}
			if key == nil {
				*nullKey++
				return nil
			}
			old, _, err := cells.get(key)
			if err != nil {
				return err
			}
			c.user = op
			out.Value, err = fn(old, *r)
			c.user = nil
			if err != nil {
				return op.fail(err)
			}
			if err := cells.put(key, out.Value); err != nil {
				return err
			}
			out.Key, out.Timestamp, out.Headers, out.Identity = r.Key, r.Timestamp, r.Headers, r.Identity.Child(op.hash, 0)
			*op.out++
			return forward(out)
		})
	}
	return &Stream[K, A]{b: b, from: n, keys: s.keys, values: values, rekeyed: s.rekeyed}
}
