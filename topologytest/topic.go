package topologytest

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// InputTopic is a topic that the test writes to.
type InputTopic[K, V any] struct {
	d      *Driver
	topic  string
	keys   serde.Serde[K]
	values serde.Serde[V]
	sent   []V
}

// Input is a topic to send to. The serdes are those of whoever writes the topic in reality.
func Input[K, V any](d *Driver, topic string, keys serde.Serde[K], values serde.Serde[V]) *InputTopic[K, V] {
	d.t.Helper()
	d.mustHave(topic)
	return &InputTopic[K, V]{d: d, topic: topic, keys: keys, values: values}
}

func (d *Driver) mustHave(topic string) {
	d.t.Helper()
	if d.outputs[topic] == nil {
		d.t.Fatalf("topologytest: the topology has no input or output topic %q; other topics are made by Partitions", topic)
	}
}

// SendOption says something about a record that is sent.
type SendOption func(*sent)

// ID gives the record the header record-id, which is its ID unless the topology says otherwise.
func ID(id string) SendOption { return Header(topology.DefaultIDHeader, []byte(id)) }

// At sets the record's time. Default: Driver.Now.
func At(t time.Time) SendOption { return func(s *sent) { s.rec.Timestamp = t } }

// Header adds a header.
func Header(key string, value []byte) SendOption {
	return func(s *sent) { s.rec.Headers = append(s.rec.Headers, record.Header{Key: key, Value: value}) }
}

// ToPartition chooses the partition. Default: the hash of the key, as Kafka's own producers do; the first one for a record without a
// key.
func ToPartition(p record.Partition) SendOption { return func(s *sent) { s.tp.Partition = p } }

// Send writes a record. It is processed by the next Run, Advance or Expect.
func (in *InputTopic[K, V]) Send(key K, value V, opts ...SendOption) {
	d := in.d
	d.t.Helper()
	s := sent{number: len(d.sent) + 1, tp: record.TopicPartition{Topic: in.topic, Partition: -1}, rec: broker.Record{Timestamp: d.now}}
	var err error
	if s.rec.Key, err = in.keys.Append(nil, key); err != nil {
		d.t.Fatalf("Send to %q: key: %v", in.topic, err)
	}
	if s.rec.Value, err = in.values.Append(nil, value); err != nil {
		d.t.Fatalf("Send to %q: value: %v", in.topic, err)
	}
	for _, o := range opts {
		o(&s)
	}
	n := len(d.outputs[in.topic].next)
	switch {
	case s.tp.Partition < 0 && s.rec.Key == nil:
		s.tp.Partition = 0
	case s.tp.Partition < 0:
		s.tp.Partition = record.PartitionForKey(s.rec.Key, int32(n))
	case int(s.tp.Partition) >= n:
		d.t.Fatalf("Send to %s: the topic has %d partitions", s.tp, n)
	}
	in.sent = append(in.sent, value)
	d.sent = append(d.sent, s)
	d.waiting = append(d.waiting, s)
	if d.portion > 0 && len(d.waiting) >= d.portion {
		d.deliver()
		for range d.rng.IntN(6) {
			d.round()
		}
	}
}

// IDs are the distinct IDs of all that was sent, by a function that finds them in the value.
func (in *InputTopic[K, V]) IDs(id func(V) string) (out []string) {
	known := map[string]bool{}
	for _, v := range in.sent {
		if x := id(v); !known[x] {
			known[x] = true
			out = append(out, x)
		}
	}
	return out
}

// deliver puts what waits into its topics, spoilt as it was asked for.
func (d *Driver) deliver() {
	type placed struct {
		at float64
		sent
	}
	var all []placed
	for i, s := range d.waiting {
		at := float64(i)
		if d.reorder > 0 {
			at += float64(d.rng.IntN(d.reorder + 1))
		}
		all = append(all, placed{at, s})
		if d.duplicates > 0 && d.rng.Float64() < d.duplicates {
			all = append(all, placed{at + 0.5 + float64(d.rng.IntN(10)), s})
		}
	}
	if first := len(d.sent) - len(d.waiting); d.portion > 0 && first > 0 && d.rng.Float64() < d.duplicates {
		all = append(all, placed{0, d.sent[d.rng.IntN(first)]}) // from long ago
	}
	slices.SortStableFunc(all, func(a, b placed) int { return cmp.Compare(a.at, b.at) })
	for _, x := range all {
		d.b.Append(x.tp, x.rec)
	}
	d.waiting = nil
}

// Record is a record of an output topic.
type Record[K, V any] struct {
	record.Record[K, V]
	Position record.Position
}

// OutputTopic is a topic that the test reads, as a reader with read_committed does.
type OutputTopic[K, V any] struct {
	d      *Driver
	topic  string
	keys   serde.Serde[K]
	values serde.Serde[V]
	seen   int // records that an Expect has looked at
}

// Output is a topic to read from. The serdes are those of whoever reads the topic in reality.
func Output[K, V any](d *Driver, topic string, keys serde.Serde[K], values serde.Serde[V]) *OutputTopic[K, V] {
	d.t.Helper()
	d.mustHave(topic)
	return &OutputTopic[K, V]{d: d, topic: topic, keys: keys, values: values}
}

// Records lets the application work and returns all that was committed so far: in order within a partition, and between partitions in
// the order of the commits.
func (o *OutputTopic[K, V]) Records() []Record[K, V] {
	o.d.t.Helper()
	o.d.Run()
	var out []Record[K, V]
	for _, m := range o.d.outputs[o.topic].all {
		r := Record[K, V]{Position: m.Position}
		r.Timestamp, r.Headers = m.rec.Timestamp, m.rec.Headers
		var err error
		if r.Key, err = o.keys.Decode(m.rec.Key); err != nil {
			o.d.t.Fatalf("record %s: key: %v", m.Position, err)
		}
		if r.Value, err = o.values.Decode(m.rec.Value); err != nil {
			o.d.t.Fatalf("record %s: value: %v", m.Position, err)
		}
		if id, ok := r.Headers.Get(topology.DefaultIDHeader); ok {
			r.Identity = record.RootIdentity(record.BytesID(id))
		}
		out = append(out, r)
	}
	return out
}

// Values are the values of Records.
func (o *OutputTopic[K, V]) Values() (out []V) {
	o.d.t.Helper()
	for _, r := range o.Records() {
		out = append(out, r.Value)
	}
	return out
}

// fresh are the records since the last Expect.
func (o *OutputTopic[K, V]) fresh() []Record[K, V] {
	o.d.t.Helper()
	all := o.Records()
	from := o.seen
	o.seen = len(all)
	return all[from:]
}

// ExpectValues expects that these values, and no others, have come since the last Expect of this OutputTopic, in this order. They are compared by
// reflect.DeepEqual.
func (o *OutputTopic[K, V]) ExpectValues(want ...V) {
	o.d.t.Helper()
	got := o.fresh()
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			o.d.t.Errorf("topic %q: %d of %d records came; the next one was to be %+v\n%s", o.topic, len(got), len(want), want[i], o.d.story())
		case i >= len(want):
			o.d.t.Errorf("topic %q: %d records came, want %d; the first one too many is %s with %+v\n%s", o.topic, len(got), len(want), got[i].Position, got[i].Value, o.d.story())
		case !reflect.DeepEqual(got[i].Value, want[i]):
			o.d.t.Errorf("topic %q: record %d of %d, %s, is\n\t%+v, want\n\t%+v\n%s", o.topic, i+1, len(got), got[i].Position, got[i].Value, want[i], o.d.story())
		default:
			continue
		}
		return
	}
}

// ExpectNone expects that nothing has come since the last Expect of this OutputTopic.
func (o *OutputTopic[K, V]) ExpectNone() {
	o.d.t.Helper()
	o.ExpectValues()
}

// AssertExactlyOnce expects that each of the IDs, see InputTopic.IDs, stands in exactly one record of the topic, and no other does.
func (o *OutputTopic[K, V]) AssertExactlyOnce(ids []string, id func(Record[K, V]) string) {
	o.d.t.Helper()
	first := map[string]record.Position{}
	wanted := map[string]bool{}
	for _, x := range ids {
		wanted[x] = true
	}
	var wrong []string
	for _, r := range o.Records() {
		x := id(r)
		if at, ok := first[x]; ok {
			wrong = append(wrong, fmt.Sprintf("%q is in %s and again in %s", x, at, r.Position))
			continue
		}
		first[x] = r.Position
		if !wanted[x] {
			wrong = append(wrong, fmt.Sprintf("%q in %s was never sent", x, r.Position))
		}
	}
	for i, x := range ids {
		if _, ok := first[x]; !ok {
			wrong = append(wrong, fmt.Sprintf("%q, ID %d of what was sent, is missing", x, i+1))
		}
	}
	if len(wrong) > 0 {
		o.d.t.Errorf("topic %q does not have each ID exactly once:\n\t%s\n%s", o.topic, strings.Join(shorten(wrong), "\n\t"), o.d.story())
	}
}

// Table is the newest value of each key of an output topic: what a table in a database would show.
func Table[K comparable, V any](o *OutputTopic[K, V]) map[K]V {
	o.d.t.Helper()
	out := map[K]V{}
	for _, r := range o.Records() {
		out[r.Key] = r.Value
	}
	return out
}

// mostLines is how many lines of one kind a message has.
const mostLines = 12

func shorten(lines []string) []string {
	if len(lines) > mostLines {
		return append(slices.Clone(lines[:mostLines]), fmt.Sprintf("and %d more", len(lines)-mostLines))
	}
	return lines
}

// story is what came in and what happened meanwhile, for a message.
func (d *Driver) story() string {
	var lines []string
	for _, s := range d.sent {
		lines = append(lines, fmt.Sprintf("#%d to %s: %q = %q", s.number, s.tp, s.rec.Key, s.rec.Value))
	}
	return "input:\n\t" + strings.Join(shorten(lines), "\n\t") + "\n" + d.history()
}
