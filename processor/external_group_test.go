package processor

import (
	"testing"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// TestLostPartitionIsForgottenFirst: while anything is known of a partition that a new assignment does not have, nothing is
// committed under the new generation.
func TestLostPartitionIsForgottenFirst(t *testing.T) {
	tp := record.TopicPartition{Topic: "rows"}
	c := &confirmer{
		meta: broker.GroupMeta{Generation: 1}, leases: map[record.TopicPartition]*lease{tp: {meta: broker.GroupMeta{Generation: 1}, follows: true}},
		next: map[record.TopicPartition]record.Offset{tp: 7}, traces: map[record.TopicPartition][]trace{},
	}
	x := &externals{engine: &engine{}, confirm: c, tasks: map[record.TopicPartition]*external{}, last: map[record.TopicPartition]chan struct{}{}}
	var under int32
	x.tasks[tp] = &external{stop: func() { under = c.meta.Generation }}
	x.assigned(broker.GroupMeta{Generation: 2}, nil)
	if under != 1 {
		t.Errorf("the partition is let go under generation %d", under)
	}
	if len(c.next) != 0 || c.meta.Generation != 2 {
		t.Errorf("%v may be committed under generation %d", c.next, c.meta.Generation)
	}
}
