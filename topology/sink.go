package topology

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// WithoutID leaves the ID header out of the topic's records.
func WithoutID() SinkSetting { return SinkSetting{func(o *options) { o.withoutID = true }} }

// Feedback says that the topic is meant to be one that the topology reads, too: what is written comes back as
// input. Without it Build refuses such an output, since a record that always comes back runs for ever.
func Feedback() SinkSetting { return SinkSetting{func(o *options) { o.feedback = true }} }

// Partition chooses the partition of each record, from 0 to n-1. Default: the hash of the key, as
// Kafka's own partitioner does; without a key, the number of the source record's partition, modulo n.
func Partition[K, V any](fn func(r record.Record[K, V], n int32) record.Partition) SinkSetting {
	return SinkSetting{func(o *options) { o.partition = fn }}
}

// To writes a stream into a topic. Options: Name, OnError, IDHeader, WithoutID, Partition, Feedback, Guarantee.
//
// The record keeps its time and its headers, and carries its ID in the header "record-id", so that
// whoever reads the topic can drop duplicates. The header is the record's own ID or absent: one
// that came in with another value is replaced.
func To[K, V any](s *Stream[K, V], topic string, keys serde.Serde[K], values serde.Serde[V], opts ...SinkOption) {
	n := &node{kind: kindSink, opts: collect(opts), sink: &Sink{Topic: topic}}
	if n.name = n.opts.name; n.name == "" {
		n.name = "to-" + topic
	}
	n.sink.Name = n.name
	b := s.b
	b.add(n, s)
	b.require(keys != nil && values != nil, n, "serde", "a serde is nil")
	if what := topicNameProblem(topic); what != "" {
		b.problem(n, "topic", fmt.Sprintf("the name of topic %q %s", topic, what))
	}
	if l := n.opts.guarantee; l != "" {
		b.require(l == ExactlyOnce || l == AtLeastOnce, n, ruleGuarantee, fmt.Sprintf("Guarantee(%q) is not one topic's to choose: want %q or %q", l, ExactlyOnce, AtLeastOnce))
		n.sink.Guarantee = l
	}
	header := DefaultIDHeader
	if h := n.opts.idHeader; h != nil {
		header = *h
		b.require(header != "", n, "option", "IDHeader is empty")
	}
	if n.opts.withoutID {
		header = ""
	}
	var partition func(record.Record[K, V], int32) record.Partition
	if n.opts.partition != nil {
		var ok bool
		if partition, ok = n.opts.partition.(func(record.Record[K, V], int32) record.Partition); !ok || partition == nil {
			b.problem(n, "option", fmt.Sprintf("Partition's function is a %T, the records are %T", n.opts.partition, record.Record[K, V]{}))
		}
	}
	n.instantiate = func(c *instance, n *node) any {
		op := c.operator(n)
		w := newWriter(c, n, op, keys, values, header)
		if partition == nil {
			return step[K, V](func(r *record.Record[K, V]) error {
				*op.in++
				return w.write(r, anyPartition)
			})
		}
		if c.env == nil {
			c.refuse(n, "has a Partition function, and the runtime is no topology.Environment")
		}
		sink := c.sinks[n]
		return step[K, V](func(r *record.Record[K, V]) error {
			*op.in++
			count := c.env.Partitions(sink)
			c.user = op
			p := partition(*r, count)
			c.user = nil
			if p < 0 || int32(p) >= count {
				return op.fail(fmt.Errorf("partition: %d is not one of the %d partitions of topic %q", p, count, topic))
			}
			return w.write(r, p)
		})
	}
}

// anyPartition lets the runtime choose.
const anyPartition record.Partition = -1

// writer encodes records for one sink.
type writer[K, V any] struct {
	c      *instance
	op     *operator
	encode *operator
	sink   int
	keys   serde.Serde[K]
	values serde.Serde[V]
	header string // for the ID; empty: none
	mem    memory
	// part is the part of an encoded key that decides on the partition; nil: all of it.
	part func(key []byte) []byte
}

// partitioner is a Serde of keys that are partitioned by a part of them, as the windows of one key belong together.
type partitioner interface{ PartitionBytes(key []byte) []byte }

func newWriter[K, V any](c *instance, n *node, op *operator, keys serde.Serde[K], values serde.Serde[V], header string) *writer[K, V] {
	w := &writer[K, V]{c: c, op: op, encode: op.during(StageEncode), sink: c.sinks[n], keys: keys, values: values, header: header, mem: memory{rt: c.rt, room: leastRoom}}
	if p, ok := keys.(partitioner); ok && c.env != nil {
		w.part = p.PartitionBytes
	}
	return w
}

// errNotAppended is the answer to a Serde that lost what stood in its dst.
var errNotAppended = errors.New("the serde did not append to what it was given")

// write encodes key, value and ID behind each other into one piece of the runtime's memory.
func (w *writer[K, V]) write(r *record.Record[K, V], p record.Partition) error {
	room := w.mem.alloc()
	b := room
	w.c.user = w.encode
	key, err := w.keys.Append(b, r.Key)
	if err != nil {
		w.c.user = nil
		return w.encode.fail(fmt.Errorf("key: %w", err))
	}
	if key != nil {
		b = key
	}
	keyEnd := len(b)
	value, err := w.values.Append(b, r.Value)
	w.c.user = nil
	if err != nil {
		return w.encode.fail(fmt.Errorf("value: %w", err))
	}
	if value != nil {
		if len(value) < keyEnd {
			return w.encode.fail(fmt.Errorf("value: %w", errNotAppended))
		}
		b = value
	}
	valueEnd := len(b)
	if w.part != nil && p == anyPartition && key != nil {
		p = record.PartitionForKey(w.part(key), w.c.env.Partitions(w.sink))
	}
	out := SinkRecord{Timestamp: r.Timestamp, Headers: r.Headers, Partition: p}
	if w.header != "" {
		b = r.Identity.AppendID(b)
		out.Headers = w.withID(r.Headers, b[valueEnd:len(b):len(b)])
	}
	if w.header == internalIDHeader && key == nil && value == nil {
		out.Headers = w.c.withoutHeader(out.Headers, record.MarkHeader) // not to be taken for a mark
	}
	// Only now: an append may have moved the bytes.
	if key != nil {
		out.Key = b[:keyEnd:keyEnd]
	}
	if value != nil {
		out.Value = b[keyEnd:valueEnd:valueEnd]
	}
	w.mem.keep(room, b)
	*w.op.out++
	w.c.rt.Emit(w.sink, out)
	return nil
}

// withID returns headers that carry the ID and no other one. Headers that do so already pass as
// they are.
func (w *writer[K, V]) withID(h record.Headers, id []byte) record.Headers {
	if len(id) == 0 {
		return w.c.withoutHeader(h, w.header)
	}
	right, wrong := 0, 0
	for i := range h {
		switch {
		case h[i].Key != w.header:
		case string(h[i].Value) == string(id):
			right++
		default:
			wrong++
		}
	}
	if right == 1 && wrong == 0 {
		return h
	}
	return w.c.withHeader(h, w.header, id)
}

// memory takes the runtime's memory for what one operator encodes.
type memory struct {
	rt   Runtime
	room int // what to ask for: a little more than was needed lately
}

const (
	leastRoom = 128
	mostRoom  = 64 << 10 // beyond it, one allocation for a record does not matter
)

// alloc returns an empty slice to append to.
func (m *memory) alloc() []byte { return m.rt.Alloc(m.room) }

// keep tells the runtime what was used of it: nothing if an append had to go elsewhere.
func (m *memory) keep(room, b []byte) {
	n := len(b)
	if unsafe.SliceData(b) == unsafe.SliceData(room) {
		m.rt.Keep(n)
	} else {
		m.rt.Keep(0)
	}
	if n > m.room {
		m.room = min(n+n/4, mostRoom)
	} else {
		m.room = max(leastRoom, m.room-(m.room-n)/64)
	}
}
