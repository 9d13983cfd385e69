package processor

import (
	"context"
	"errors"
	"fmt"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
)

// claim makes the task the writer of its partition.
func (x *external) claim() (sink.Writer, error) {
	if !x.decides() {
		return x.spec.Target.Claim(x.soft, x.in)
	}
	target, ok := x.spec.Target.(sink.Decided)
	if !ok {
		return nil, &sink.SetupError{Err: fmt.Errorf("a target of class %s that does not let decisions be made elsewhere", sink.TwoPhase), Remedy: "make it with sink.NewTwoPhase"}
	}
	return target.ClaimDecided(x.soft, x.in, decisions{x})
}

// decides says that the group's offset decides about what the target has prepared, and does not just follow it.
func (x *external) decides() bool { return x.spec.Target.Class() == sink.TwoPhase }

// decisions is the committed offset of the sink's topic, with its metadata, as the place of decisions (docs/adr/0027).
type decisions struct{ x *external }

// Last implements sink.Decisions.
func (d decisions) Last(ctx context.Context) (sink.Decision, bool, error) {
	x := d.x
	// An older decision of this process that is open is ended here, and not by its timeout.
	if err := x.confirm.renew(ctx); err != nil {
		return sink.Decision{}, false, err
	}
	tp := x.in.TopicPartition
	c, err := x.committed([]record.TopicPartition{tp})
	if err != nil {
		return sink.Decision{}, false, err
	}
	if c.Next != record.NoOffset {
		last, ours := sink.ParseDecision(c.Next, c.Metadata)
		if ours {
			return last, true, nil
		}
		return sink.Decision{}, false, &sink.SetupError{
			Err: fmt.Errorf("the committed offset %d of %s in the consumer group is no decision of this sink: it was set by hand, or the sink was of another class. "+
				"Which rows the target has is not known", c.Next, tp),
			Remedy: "give the sink another name, and empty its table if everything is to be written anew",
		}
	}
	first, err := x.begins(ctx)
	if err != nil {
		return sink.Decision{}, false, err
	}
	if first > 0 {
		return sink.Decision{}, false, x.noProgress(first)
	}
	return sink.Decision{Next: first}, false, nil
}

// Decide implements sink.Decisions.
func (d decisions) Decide(ctx context.Context, decision sink.Decision) error {
	x := d.x
	x.point("sink.prepared")
	if err := x.confirm.decide(ctx, broker.OffsetCommit{TopicPartition: x.in.TopicPartition, Next: decision.Next, Metadata: decision.Metadata()}); err != nil {
		return err
	}
	x.point("sink.decided")
	return x.begun(ctx, decision.Next)
}

// begun takes the first record off a topic that was written from before anything of that is seen: if the group's offset is lost later, the
// topic does not look as if nothing had been written yet.
func (x *external) begun(ctx context.Context, next record.Offset) error {
	if x.marked || next <= 0 {
		return nil
	}
	tp := x.in.TopicPartition
	first, err := x.begins(ctx)
	if err == nil && first == 0 {
		err = x.cluster.DeleteRecords(ctx, map[record.TopicPartition]record.Offset{tp: 1})
	}
	if err != nil {
		return fmt.Errorf("delete the first record of %s, which the target has: %w", tp, err)
	}
	x.marked = true
	return nil
}

// replace takes back that the group's offset is a decision, before another class writes behind it: if the sink is of class two_phase again later, that
// one must not go on there.
func (x *external) replace(next record.Offset) error {
	if !x.replaces {
		return nil
	}
	if err := x.confirm.decide(x.hard, broker.OffsetCommit{TopicPartition: x.in.TopicPartition, Next: next}); err != nil {
		return fmt.Errorf("take back the decision of class %s: %w", sink.TwoPhase, err)
	}
	x.replaces = false
	return nil
}

// begins is the first offset of the sink's topic.
func (x *external) begins(ctx context.Context) (record.Offset, error) {
	tp := x.in.TopicPartition
	first, err := x.cluster.StartOffsets(ctx, []record.TopicPartition{tp})
	if err != nil {
		return 0, fmt.Errorf("ask for the topic's start: %w", err)
	}
	return first[tp], nil
}

// noProgress: only what a target has is deleted from the topic of a sink, so that this one was written to before.
func (x *external) noProgress(first record.Offset) error {
	tp := x.in.TopicPartition
	return fmt.Errorf("%w: neither the target nor the consumer group has progress of sink %q, partition %d, though %s begins at %d: what came before was written and then deleted from the topic. "+
		"Restore the target's progress; or, to write everything anew, give the sink another name and process the inputs again",
		ErrOffsets, x.in.Sink, tp.Partition, tp, first)
}

// lease is a claim on a partition in the consumer group. The decisions of its task are committed under its generation, and so refused once somebody else can
// have got the partition.
type lease struct {
	meta broker.GroupMeta
	// follows says that the partition is kept from generation to generation. It is not any more when its task was told to stop: it may
	// have been somebody else's when it comes back.
	follows bool
}

// renew makes the producer's last transaction over and done with.
func (c *confirmer) renew(ctx context.Context) error {
	c.txn.Lock()
	defer c.txn.Unlock()
	return c.init(ctx)
}

// decide commits one offset, under the generation of the partition's lease.
func (c *confirmer) decide(ctx context.Context, o broker.OffsetCommit) error {
	c.txn.Lock()
	defer c.txn.Unlock()
	meta := broker.GroupMeta{Generation: -1}
	c.mu.Lock()
	if l := c.leases[o.TopicPartition]; l != nil {
		meta = l.meta
	}
	c.mu.Unlock()
	if meta.Generation < 0 {
		return &sink.UndecidedError{Err: sink.ErrFenced}
	}
	outcome, err := c.commit(ctx, meta, []broker.OffsetCommit{o})
	switch {
	case outcome == broker.Committed:
		return nil
	case errors.Is(err, broker.ErrFenced): // not for good: the next transaction begins with a new epoch
		err = fmt.Errorf("commit offset %d: %v", o.Next, err)
	default:
		err = fmt.Errorf("commit offset %d: %w", o.Next, err)
	}
	if outcome == broker.NotCommitted {
		return &sink.UndecidedError{Err: err}
	}
	return err
}
