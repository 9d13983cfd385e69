package processor

import (
	"errors"
	"testing"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
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

// TestLeaseOfATaskThatWasToldToStop: what it decides goes under the generation that it had. Under a later one it would not be refused, though somebody
// else may have had the partition in between.
func TestLeaseOfATaskThatWasToldToStop(t *testing.T) {
	stopped, kept := record.TopicPartition{Topic: "rows"}, record.TopicPartition{Topic: "rows", Partition: 1}
	c := newConfirmerOf(1)
	c.own(stopped)
	c.own(kept)
	x := &externals{engine: &engine{}, confirm: c, tasks: map[record.TopicPartition]*external{}, last: map[record.TopicPartition]chan struct{}{}}
	running := false
	x.tasks[stopped] = &external{stop: func() { running = c.leases[stopped].follows }}
	x.letGo(func(tp record.TopicPartition) bool { return tp == stopped }, false)
	c.setMeta(broker.GroupMeta{Generation: 2})
	if !running {
		t.Error("the lease was frozen before the task was told to stop: one that it gets in between would follow")
	}
	if g := c.leases[stopped].meta.Generation; g != 1 {
		t.Errorf("a stopped task decides under generation %d", g)
	}
	if g := c.leases[kept].meta.Generation; g != 2 {
		t.Errorf("the task of a partition that was kept decides under generation %d", g)
	}
	c.forget(stopped)
	var never *sink.UndecidedError
	if err := c.decide(t.Context(), broker.OffsetCommit{TopicPartition: stopped, Next: 1}); !errors.Is(err, sink.ErrFenced) || !errors.As(err, &never) {
		t.Errorf("without a lease: %v", err)
	}
}

func newConfirmerOf(generation int32) *confirmer {
	return &confirmer{
		meta: broker.GroupMeta{Generation: generation}, leases: map[record.TopicPartition]*lease{},
		next: map[record.TopicPartition]record.Offset{}, traces: map[record.TopicPartition][]trace{},
	}
}
