package processor

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/topology"
)

// write makes a batch durable. A row that the target refuses is taken out, by the operator's policy, and the rest
// written as before: in one transaction if the target says which row it was, else in halves until it is alone.
func (x *external) write(w sink.Writer, b pending) error {
	for {
		err := x.once(w, b)
		var refused *sink.RowError
		if !errors.As(err, &refused) || len(b.Rows) == 0 {
			return err
		}
		at := refused.Index
		if len(b.Rows) == 1 {
			at = 0
		}
		if at < 0 || at >= len(b.Rows) {
			first, second := b.halves()
			if err := x.write(w, first); err != nil {
				return err
			}
			b = second
			continue
		}
		if err := x.reject(b.from[at], x.spec.RowError(x.policy(), refused.Err)); err != nil {
			return err
		}
		b.Rows, b.from = slices.Delete(b.Rows, at, at+1), slices.Delete(b.from, at, at+1)
	}
}

// halves cuts a batch before the row in its middle.
func (p *pending) halves() (first, second pending) {
	mid := len(p.Rows) / 2
	cut := p.Rows[mid].Offset
	first = pending{Batch: sink.Batch{Rows: slices.Clone(p.Rows[:mid]), First: p.First, Next: cut}, from: slices.Clone(p.from[:mid])}
	second = pending{Batch: sink.Batch{Rows: p.Rows[mid:], First: cut, Next: p.Next}, from: p.from[mid:]}
	return first, second
}

// once hands a batch to the target and, if it has it, moves on.
func (x *external) once(w sink.Writer, b pending) error {
	start := x.now()
	x.point("sink.write")
	rows := len(b.Rows)
	size := 0
	for _, r := range b.from {
		size += r.Size()
	}
	if err := x.replace(b.First); err != nil {
		return err
	}
	if err := w.Write(x.hard, b.Batch); err != nil {
		return fmt.Errorf("write offsets %d to %d: %w", b.First, b.Next, err)
	}
	x.point("sink.written")
	x.open = taken{next: b.Next, rows: x.open.rows + rows, size: x.open.size + size, took: x.open.took + x.now().Sub(start)}
	x.moved(w)
	return nil
}

// taken is what a target was given since its progress moved last: one batch, or as many as it makes durable together.
type taken struct {
	next       record.Offset
	rows, size int
	took       time.Duration
}

// moved takes over the target's progress. Figures move with it, so that what comes again after a failure is counted once.
func (x *external) moved(w sink.Writer) {
	if _, ok := w.(sink.Gatherer); ok {
		if next, known := w.Next(); !known || next != x.open.next {
			return
		}
	}
	if x.open.next <= x.next {
		return
	}
	now := x.now()
	x.metrics.SinkWrote(x.spec.Name, x.open.rows, x.open.took)
	x.next, x.written = x.open.next, true
	x.counters["out"] += uint64(x.open.rows)
	x.counters["records"] += uint64(x.open.rows)
	x.counters["bytes"] += uint64(x.open.size)
	x.open = taken{}
	x.confirm.note(x.in.TopicPartition, x.next, now, !x.decides())
	x.goesOn()
	x.publish(TaskRunning, "")
}

// policy is the operator's, or the application's.
func (x *external) policy() topology.Policy {
	for _, o := range x.plan.sub.Operators {
		if o.Name == x.spec.Source {
			return o.Policy
		}
	}
	return topology.PolicyDefault
}

// reject does with a record that cannot be written what the policy says. A dead letter is committed when it
// returns: only then may the target move on. After a crash in between it comes again, under the same ID.
func (x *external) reject(r *broker.Record, oe *topology.OperatorError) error {
	action := policyAction(oe.Policy, x.cfg.policy)
	at := record.Position{TopicPartition: x.in.TopicPartition, Offset: r.Offset}
	x.errors = noteError(x.errors, RecordErrorStatus{
		Time: x.now(), Operator: oe.Operator, Stage: string(oe.Stage), Action: action, Position: at.String(), Error: cut(oe.Err.Error()),
	})
	if action == actionStop {
		x.publish(TaskRecovering, oe.Error())
		return &RecordError{Task: x.name, Operator: oe.Operator, Stage: oe.Stage, Position: at, Err: oe.Err}
	}
	if action == actionDeadLetter {
		out := deadLetterOf(x.in.TopicPartition, r, oe)
		target := &x.plan.deadLetter
		out.TopicPartition = record.TopicPartition{Topic: target.topic, Partition: x.in.Partition % record.Partition(max(1, target.partitions))}
		if id, ok := r.Headers.Get(x.plan.sub.Sources[0].IDHeader); ok {
			out.Headers = append(out.Headers, record.Header{Key: topology.DefaultIDHeader, Value: id})
		}
		if size := outputSize(&out) + batchOverhead; size > target.maxBytes {
			return &RecordError{
				Task: x.name, Operator: oe.Operator, Stage: topology.StageProduce, Position: at,
				Err: fmt.Errorf("its dead letter of about %d bytes is larger than max.message.bytes (%d) of topic %q; it failed with: %w", size, target.maxBytes, target.topic, oe.Err),
			}
		}
		if err := x.confirm.send(x.hard, out); err != nil {
			return fmt.Errorf("send a dead letter: %w", err)
		}
		x.point("sink.dead_letter")
	}
	x.counters[metric.ErrorCounter(string(oe.Stage), action)]++
	return nil
}

// publish shows what the task does.
func (x *external) publish(state TaskState, reason string) {
	topic := x.in.Topic
	v := taskView{sub: x.plan.sub, known: true, errors: slices.Clone(x.errors), status: TaskStatus{
		Name: x.name, Partition: int32(x.in.TopicPartition.Partition), State: state, Reason: reason,
		Inputs: []InputStatus{{Topic: topic, Partition: int32(x.in.TopicPartition.Partition), Next: x.next, Stable: x.stable, Lag: max(0, int64(x.stable-x.next))}},
	}}
	if state == TaskRestoring {
		v.status.Inputs = nil // not known
	}
	for _, c := range slices.Sorted(maps.Keys(x.counters)) {
		name := c + separator + x.spec.Source
		switch c {
		case "records":
			name = string(counterConsumedRecords) + separator + topic
		case "bytes":
			name = string(counterConsumedBytes) + separator + topic
		}
		v.counters = append(v.counters, record.Counter{Name: name, Value: x.counters[c]})
	}
	x.stats.put(v)
	if state == TaskRunning {
		x.stats.settled(x.now(), x.metrics)
	}
}
