package changelog

import "github.com/streamd/streamd/record"

// Positions returns from where each partition is to be read that has not reached its end yet.
func (f *Follower) Positions() map[record.TopicPartition]record.Offset {
	out := map[record.TopicPartition]record.Offset{}
	for i := range f.logs {
		if l := &f.logs[i]; l.next < l.End {
			out[l.TopicPartition] = max(l.next, l.Start)
		}
	}
	return out
}
