package topology

import (
	"fmt"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// repartitionSuffix ends the names of repartition topics and of the sources that read them.
const repartitionSuffix = "-repartition"

// KeyBy gives each record the key that fn makes of it, and moves it to that key's partition:
// through the topic <app>-<name>-repartition, which ends the sub-topology. The records behind it
// are children of the input: their time and headers stay, their ID is a new root. Options:
// Partitions, OnError, OutOfOrderness, WithIdleness.
//
// The values' serde must be known (see Stream.WithValues). A null key goes to the partition of the
// source record, modulo.
func KeyBy[K, V, K2 any](s *Stream[K, V], name string, keys serde.Serde[K2], fn func(record.Record[K, V]) (K2, error), opts ...KeyByOption) *Stream[K2, V] {
	b := s.b
	name = b.stateName(kindKeyBy, name)
	o := collect(opts)
	n := newRepartition(s, name, name, o)
	b.require(keys != nil, n, "serde", "the key's serde is nil")
	b.require(fn != nil, n, "function", "the function is nil")
	values := s.values
	n.instantiate = func(c *instance, n *node) any {
		op, out := c.operator(n), new(record.Record[K2, V])
		w := newWriter(c, n, op, keys, values, internalIDHeader)
		return step[K, V](func(r *record.Record[K, V]) (err error) {
			*op.in++
			c.user = op
			out.Key, err = fn(*r)
			c.user = nil
			if err != nil {
				return op.fail(err)
			}
			out.Value, out.Timestamp, out.Headers, out.Identity = r.Value, r.Timestamp, r.Headers, r.Identity.Child(op.hash, 0)
			return w.write(out, anyPartition)
		})
	}
	source := internalSource(b, name+repartitionSuffix, name, keys, values, false, o)
	return &Stream[K2, V]{b: b, from: source, keys: keys, values: values, unchanged: true}
}

// requireKeyed notes a problem if by, an operator before n, may have changed the keys since records were put into
// partitions by them.
func (b *Builder) requireKeyed(n, by *node) {
	if by != nil {
		b.problem(n, "unkeyed", fmt.Sprintf("%q may have changed the keys, so that records of one key are in several partitions and none would see them all: put KeyBy in between, or give %q PreserveKey if it is one that keeps them", by.name, by.name))
	}
}

// newRepartition adds the sink of a repartition topic: operator is the sink's name, topic the one
// before its prefix and suffix.
func newRepartition[K, V any](s *Stream[K, V], operator, topic string, o options) *node {
	n := &node{kind: kindKeyBy, name: operator, opts: o, sink: &Sink{Name: operator, Topic: topic, Internal: true}}
	b := s.b
	b.add(n, s)
	b.require(s.values != nil, n, "serde", "has no serde for the values, which go through a topic: give it with WithValues")
	if p := o.partitions; p != nil {
		b.require(*p > 0, n, "option", "Partitions must be at least 1")
		n.sink.Partitions = *p
	}
	return n
}

// byID repartitions a stream so that records with the same ID meet: the topic's key is the ID, the
// record's own key travels in a header. Records keep their identity. A record without a usable ID
// goes by its source's partition; what becomes of it is decided by the operator behind the topic.
func byID[K, V any](s *Stream[K, V], name string, o options, id finder[K, V]) *Stream[K, V] {
	n := newRepartition(s, name+"-by-id", name, o)
	b := s.b
	b.require(s.keys != nil, n, "serde", "has no serde for the keys, which go through a topic: give it with WithKeys")
	keys, values := s.keys, s.values
	n.instantiate = func(c *instance, n *node) any {
		op, out := c.operator(n), new(record.Record[[]byte, V])
		find, encode, mem := id.in(c, op), op.during(StageEncode), memory{rt: c.rt, room: leastRoom}
		w := newWriter(c, n, op, serde.Bytes(), values, internalIDHeader)
		return step[K, V](func(r *record.Record[K, V]) error {
			*op.in++
			out.Key = nil
			if i := find(r); i.Check() == nil {
				c.scratch = append(c.scratch[:0], i...)
				out.Key = c.scratch
			}
			room := mem.alloc()
			c.user = encode
			key, err := keys.Append(room, r.Key)
			c.user = nil
			if err != nil {
				return encode.fail(fmt.Errorf("key: %w", err))
			}
			out.Headers = r.Headers
			if key != nil { // a null key has no header
				mem.keep(room, key)
				out.Headers = c.withHeader(r.Headers, internalKeyHeader, key[:len(key):len(key)])
			}
			out.Value, out.Timestamp, out.Identity = r.Value, r.Timestamp, r.Identity
			return w.write(out, anyPartition)
		})
	}
	source := internalSource(b, name+repartitionSuffix, name, keys, values, true, o)
	return &Stream[K, V]{b: b, from: source, keys: keys, values: values, unchanged: true, rekeyed: n}
}
