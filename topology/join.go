package topology

import (
	"fmt"
	"slices"
	"strings"

	"github.com/streamd/streamd/record"
)

// JoinTable makes one record of each record of the stream and the row that the table has for its key at that moment. A record
// without a row is dropped, counted as no_match. A change of the table makes no record. The results are children of the
// stream's records, with their key, time and headers. (Kafka Streams: KStream.join with a KTable.)
//
// "At that moment" is by event time where both are there to be read: of all inputs of the task the record with the lowest
// time is next, and a join waits for an input of which more is known to be committed. So old data is joined as it would
// have been then.
//
// Stream and table must have their records of a key in the same partition: their topics must have the same number of
// partitions, which is looked at when the application starts, and be written with the same kind of partitioner and the
// same bytes for a key. KeyBy puts that right. Options: OnError.
func JoinTable[K, V, T, R any](s *Stream[K, V], t *KTable[K, T], name string, fn func(key K, value V, row T) (R, error), opts ...JoinOption) *Stream[K, R] {
	pair := func(k K, v V, row *T) (R, error) { return fn(k, v, *row) }
	return joinTable(s, t, name, false, pair, fn != nil, opts)
}

// LeftJoinTable is JoinTable that makes a record also where the table has no row for the key: then row is nil. So it is for a
// record with a null key. (Kafka Streams: KStream.leftJoin with a KTable.)
func LeftJoinTable[K, V, T, R any](s *Stream[K, V], t *KTable[K, T], name string, fn func(key K, value V, row *T) (R, error), opts ...JoinOption) *Stream[K, R] {
	return joinTable(s, t, name, true, fn, fn != nil, opts)
}

func joinTable[K, V, T, R any](s *Stream[K, V], t *KTable[K, T], name string, left bool, fn func(K, V, *T) (R, error), usable bool, opts []JoinOption) *Stream[K, R] {
	b := s.b
	n := &node{kind: kindJoin, name: b.stateName(kindJoin, name), opts: collect(opts)}
	b.add(n, s)
	b.require(usable, n, "function", "the function is nil")
	b.require(t.b == b, n, "builder", "its inputs belong to different builders")
	b.require(n.opts.onLate == ActionDefault, n, "option", "OnLate has a meaning for joins of two streams only")
	b.requireKeyed(n, s.rekeyed)
	n.sides = []*node{s.from, t.from}
	lookInto(n, t)
	n.instantiate = func(c *instance, n *node) any {
		get := t.look(c)
		return joinRow(c, n, c.operator(n), left, func(k K, _ V) (T, bool, error) { return get(k) }, fn)
	}
	return &Stream[K, R]{b: b, from: n, keys: s.keys, rekeyed: s.rekeyed}
}

// joinRow is the step that joins a record of a stream with the row that find has for it, if there is one.
func joinRow[K, V, T, R any](c *instance, n *node, op *operator, left bool, find func(K, V) (T, bool, error), fn func(K, V, *T) (R, error)) step[K, V] {
	noMatch, out, forward := c.counter(CounterNoMatch, n), new(record.Record[K, R]), downstream[K, R](c, n, 0)
	return func(r *record.Record[K, V]) error {
		*op.in++
		row, found, err := find(r.Key, r.Value)
		if err != nil {
			return err
		}
		if !found && !left {
			*noMatch++
			return nil
		}
		var at *T
		if found {
			at = &row
		}
		c.user = op
		out.Value, err = fn(r.Key, r.Value, at)
		c.user = nil
		if err != nil {
			return op.fail(err)
		}
		out.Key, out.Timestamp, out.Headers, out.Identity = r.Key, r.Timestamp, r.Headers, r.Identity.Child(op.hash, 0)
		*op.out++
		return forward(out)
	}
}

// lookInto puts an operator beside those that keep what it looks into.
func lookInto[K, V any](n *node, t *KTable[K, V]) {
	t.from.looked = true
	for _, o := range t.owners {
		n.with = append(n.with, o)
		n.stores = append(n.stores, o.stores...)
	}
}

// sourcesOf are the inputs whose records come to the operators, as indices of sources.
func sourcesOf(operators, sources []*node) (at []int) {
	seen := map[*node]bool{}
	var visit func(n *node)
	visit = func(n *node) {
		if seen[n] {
			return
		}
		seen[n] = true
		if i := slices.Index(sources, n); i >= 0 {
			at = append(at, i)
		}
		for _, in := range n.inputs {
			visit(in)
		}
	}
	for _, n := range operators {
		visit(n)
	}
	slices.Sort(at)
	return at
}

// checkCoPartitions finds joins whose repartition topics were given different numbers of partitions. All other numbers
// are the cluster's: they are compared when the application starts.
func checkCoPartitions(t *Topology) []*Problem {
	given := map[string]int32{}
	for _, s := range t.subs {
		for _, k := range s.Sinks {
			if k.Internal {
				given[k.Topic] = k.Partitions
			}
		}
	}
	var found []*Problem
	for _, s := range t.subs {
		for _, j := range s.Joins {
			var parts []string
			counts := map[int32]bool{}
			for _, i := range j.Sources {
				if src := s.Sources[i]; src.Internal && given[src.Topic] > 0 {
					counts[given[src.Topic]] = true
					parts = append(parts, fmt.Sprintf("%q has %d", src.Topic, given[src.Topic]))
				}
			}
			if len(counts) > 1 {
				found = append(found, &Problem{Operator: j.Operator, Rule: "co-partition", What: fmt.Sprintf(
					"its inputs have different numbers of partitions, so that records of one key would not meet: %s. Give each KeyBy the same Partitions", strings.Join(parts, ", "))})
			}
		}
	}
	return found
}
