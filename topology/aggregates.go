package topology

import (
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// Count counts the records of each group. Options as Aggregate's.
func Count[K, V, G any](s Grouped[K, V, G], name string, opts ...AggregateOption) *Stream[G, int64] {
	a := aggregator[K, V, int64, int64]{
		add:    func(n int64, _ bool, _ *record.Record[K, V]) (int64, bool, error) { return n + 1, true, nil },
		merge:  func(a, b int64) (int64, error) { return a + b, nil },
		result: same[int64],
	}
	return newAggregate(s, name, a, serde.Int64(), serde.Int64(), true, opts)
}
