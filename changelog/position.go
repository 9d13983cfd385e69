package changelog

import (
	"iter"

	"github.com/streamd/streamd/record"
)

// Positions yields, in the order of the logs, from where each partition is to be read that has not
// reached its end yet.
func (f *Follower) Positions() iter.Seq2[record.TopicPartition, record.Offset] {
	return func(yield func(record.TopicPartition, record.Offset) bool) {
		for i := range f.logs {
			if l := &f.logs[i]; l.next < l.End && !yield(l.TopicPartition, max(l.next, l.Start)) {
				return
			}
		}
	}
}
