package topology

import (
	"fmt"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/sink"
)

// sinkSuffix ends the names of the topics in front of sinks outside of Kafka, and of the sources that read them.
const sinkSuffix = "-sink"

// External is a sink outside of Kafka: the end of a sub-topology of its own, which has one source and no chain.
// Its tasks write rows; package processor runs them beside the workers, so that no database keeps a
// transaction waiting.
type External struct {
	// Name is the sink's. With the application's name it is the key of its progress in the target, so that it
	// must not change while there is any.
	Name string
	// Source is the operator that reads the topic: what a record that cannot be written is counted under.
	Source string
	// Target is shared by all tasks, and belongs to whoever made it.
	Target sink.Target
	// NewRow makes what turns a record of the topic into a row, for one task: each has its own. An error is an
	// *OperatorError.
	NewRow func() func(in *broker.Record) (sink.Row, error)
}

// IntoOption is an option of Into: OnError, Partitions.
type IntoOption interface {
	option
	into()
}

func (PolicyOption) into()     {}
func (PartitionsOption) into() {}

// Into writes a stream to a target outside of Kafka, as a table of PostgreSQL: see package sink for the classes of
// targets and what each promises. The name is the sink's and must not change. Options: OnError, Partitions.
//
//	topology.Into(totals, "account-totals", serde.String(), serde.JSON[Total](), target,
//		func(r record.Record[string, Total]) (sink.Row, error) {
//			return sink.Row{Values: []any{r.Key, r.Value.Sum, r.Value.Bills}}, nil
//		})
//
// The records go through the topic <app>-<name>-sink, in the transaction that computes them; a task for each of
// its partitions turns them into rows and writes those, the progress of a ledger in the same
// transaction of the target. All rows of one key of the table must have the same key in the stream, so that they keep their
// order: the topic is partitioned by it.
//
// row gets the record as it was decoded from the topic, with its time, headers and identity. It returns the values of the
// columns in the target's order (sink.Row.Values), or Delete with those of the key; ID and Offset are filled in. It may be called
// again for the same record and must return the same row. Its error, and a row that the target refuses
// for what it holds, go by the policy: to the dead letter topic under the record's own ID, before the target moves on.
func Into[K, V any](s *Stream[K, V], name string, keys serde.Serde[K], values serde.Serde[V], target sink.Target, row func(record.Record[K, V]) (sink.Row, error), opts ...IntoOption) {
	b := s.b
	name = b.stateName(kindSink, name)
	o := collect(opts)
	n := &node{kind: kindSink, name: name, opts: o, sink: &Sink{Name: name, Topic: name, Internal: true, External: true}}
	b.add(n, s)
	b.require(keys != nil && values != nil, n, "serde", "a serde is nil")
	b.require(target != nil, n, "function", "the target is nil")
	b.require(row != nil, n, "function", "the function is nil")
	if p := o.partitions; p != nil {
		b.require(*p > 0, n, "option", "Partitions must be at least 1")
		n.sink.Partitions = *p
	}
	n.instantiate = func(c *instance, n *node) any {
		op := c.operator(n)
		w := newWriter(c, n, op, keys, values, internalIDHeader)
		return step[K, V](func(r *record.Record[K, V]) error {
			*op.in++
			return w.write(r, anyPartition)
		})
	}
	source := &node{
		kind: kindSource, name: name + sinkSuffix, opts: options{policy: n.opts.policy},
		source: &Source{Name: name + sinkSuffix, Topic: name, Internal: true, External: true, IDHeader: internalIDHeader},
	}
	source.external = &External{Name: name, Source: source.name, Target: target, NewRow: func() func(*broker.Record) (sink.Row, error) {
		return newRow(source, keys, values, row)
	}}
	if target != nil {
		source.ends = sinkClass(target.Class())
	}
	source.instantiate = func(c *instance, n *node) any {
		c.refuse(n, "ends in a sink outside of Kafka, whose tasks have no chain")
		return func(*broker.Record) error { return nil }
	}
	b.add(source)
}

// newRow is External.NewRow for the types of a stream.
func newRow[K, V any](n *node, keys serde.Serde[K], values serde.Serde[V], row func(record.Record[K, V]) (sink.Row, error)) func(*broker.Record) (sink.Row, error) {
	op := &operator{name: n.name, policy: n.opts.policy, stage: StageProcess}
	c := &instance{} // for rescue and the headers
	decode := op.during(StageDecode)
	return func(in *broker.Record) (out sink.Row, err error) {
		defer c.rescue(&err)
		r := record.Record[K, V]{Timestamp: in.Timestamp, Headers: in.Headers}
		id, ok := in.Headers.Get(internalIDHeader)
		if ok {
			r.Identity = record.RootIdentity(aliasID(id))
			r.Headers = c.withoutHeader(r.Headers, internalIDHeader)
		}
		c.user = decode
		if r.Key, err = keys.Decode(in.Key); err == nil {
			r.Value, err = values.Decode(in.Value)
		}
		if err != nil {
			c.user = nil
			return sink.Row{}, decode.fail(err)
		}
		c.user = op
		out, err = row(r)
		c.user = nil
		if err != nil {
			return sink.Row{}, op.fail(err)
		}
		out.ID, out.Offset = record.ID(id), in.Offset
		return out, nil
	}
}

// RowError is the error of a row that the target refuses, as one of the operator that reads the topic.
func (e *External) RowError(policy Policy, err error) *OperatorError {
	return &OperatorError{Operator: e.Source, Stage: StageProduce, Policy: policy, Err: fmt.Errorf("write the row: %w", err)}
}
