package pipeline

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// harness runs a topology in one task for each sub-topology, with maps for stores: what a processor does
// without Kafka and without disk.
type harness struct {
	t      testing.TB
	topo   *topology.Topology
	chains []*topology.Chain
	tasks  []*fakeTask
	// Out has the records of each output topic.
	out    map[string][]topology.SinkRecord
	offset record.Offset
}

func newHarness(t testing.TB, topo *topology.Topology) *harness {
	t.Helper()
	h := &harness{t: t, topo: topo, out: map[string][]topology.SinkRecord{}}
	for _, s := range topo.Subtopologies() {
		task := &fakeTask{h: h, sub: s, stores: map[string]*fakeStore{}, ids: map[string]*fakeIDs{}, counters: map[topology.CounterID]*uint64{}}
		chain, err := s.NewChain(task)
		if err != nil {
			t.Fatal(err)
		}
		h.tasks, h.chains = append(h.tasks, task), append(h.chains, chain)
	}
	return h
}

// send puts a record into a topic and runs whatever follows.
func (h *harness) send(topic string, key, value []byte, headers ...record.Header) error {
	return h.sendAt(topic, key, value, time.UnixMilli(1_700_000_000_000), headers...)
}

func (h *harness) sendAt(topic string, key, value []byte, at time.Time, headers ...record.Header) error {
	for i, s := range h.topo.Subtopologies() {
		for j, src := range s.Sources {
			if h.topo.SourceTopic(src) != topic {
				continue
			}
			h.offset++
			task := h.tasks[i]
			task.position = record.Position{TopicPartition: record.TopicPartition{Topic: topic}, Offset: h.offset}
			rec := &broker.Record{Offset: h.offset, Key: key, Value: value, Headers: headers, Timestamp: at}
			if src.Timestamp != nil {
				t, err := src.Timestamp(rec)
				if err != nil {
					return err
				}
				task.streamTime = t
			}
			task.pending = nil
			if err := h.chains[i].Sources[j](rec); err != nil {
				return err
			}
			for _, e := range task.pending {
				sink := s.Sinks[e.sink]
				name := h.topo.SinkTopic(sink)
				if !sink.Internal {
					h.out[name] = append(h.out[name], e.rec)
					continue
				}
				if err := h.sendAt(name, e.rec.Key, e.rec.Value, e.rec.Timestamp, e.rec.Headers...); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// values returns the values written to a topic, as texts.
func (h *harness) values(topic string) []string {
	var out []string
	for _, r := range h.out[topic] {
		if r.Value == nil {
			out = append(out, "<null>")
			continue
		}
		out = append(out, string(r.Value))
	}
	return out
}

type fakeEmit struct {
	sink int
	rec  topology.SinkRecord
}

type fakeTask struct {
	h          *harness
	sub        *topology.Subtopology
	stores     map[string]*fakeStore
	ids        map[string]*fakeIDs
	counters   map[topology.CounterID]*uint64
	pending    []fakeEmit
	position   record.Position
	streamTime time.Time
}

func (f *fakeTask) Store(name string) topology.Store {
	if f.stores[name] == nil {
		f.stores[name] = &fakeStore{m: map[string][]byte{}}
	}
	return f.stores[name]
}

func (f *fakeTask) Dedup(name string) topology.IDLog {
	if f.ids[name] == nil {
		f.ids[name] = &fakeIDs{seen: map[record.Hash]uint64{}}
	}
	return f.ids[name]
}

func (f *fakeTask) Emit(sink int, out topology.SinkRecord) {
	f.pending = append(f.pending, fakeEmit{sink, out})
}
func (f *fakeTask) Alloc(n int) []byte        { return make([]byte, 0, n) }
func (f *fakeTask) Keep(int)                  {}
func (f *fakeTask) StreamTime() time.Time     { return f.streamTime }
func (f *fakeTask) Position() record.Position { return f.position }
func (f *fakeTask) Counter(c topology.CounterID) *uint64 {
	if f.counters[c] == nil {
		f.counters[c] = new(uint64)
	}
	return f.counters[c]
}
func (f *fakeTask) ClusterID() string     { return "cluster" }
func (f *fakeTask) TopicID(string) string { return "11111111-2222-3333-4444-555555555555" }
func (f *fakeTask) Partitions(int) int32  { return 1 }

type fakeStore struct{ m map[string][]byte }

func (s *fakeStore) Get(key []byte) ([]byte, error) { return s.m[string(key)], nil }
func (s *fakeStore) Put(key, value []byte) error {
	if value == nil {
		delete(s.m, string(key))
		return nil
	}
	s.m[string(key)] = bytes.Clone(value)
	return nil
}

func (s *fakeStore) Range(from, to []byte, fn func(k, v []byte) bool) error {
	var keys []string
	for k := range s.m {
		if (from == nil || k >= string(from)) && (to == nil || k < string(to)) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if !fn([]byte(k), s.m[k]) {
			break
		}
	}
	return nil
}

type fakeIDs struct{ seen map[record.Hash]uint64 }

func (f *fakeIDs) Check(h record.Hash, payload uint64, _ time.Time) (dedup.Answer, error) {
	old, seen := f.seen[h]
	switch {
	case !seen:
		f.seen[h] = payload
		return dedup.Answer{Verdict: dedup.New}, nil
	case old != payload:
		return dedup.Answer{Verdict: dedup.Conflict}, nil
	}
	return dedup.Answer{Verdict: dedup.Duplicate}, nil
}

// mustLoad loads a pipeline that has no mistakes.
func mustLoad(t testing.TB, text string, o Options) *Pipeline {
	t.Helper()
	p, err := Load([]byte(text), o)
	if err != nil {
		t.Fatalf("load:\n%v", err)
	}
	return p
}

// run loads a pipeline and makes its topology.
func run(t testing.TB, text string) *harness {
	t.Helper()
	topo, err := mustLoad(t, text, Options{}).Topology()
	if err != nil {
		t.Fatal(err)
	}
	return newHarness(t, topo)
}

// head is the start of most pipelines of the tests.
func head(format string, args ...any) string {
	return "version: 1\nname: test\nkafka: {brokers: [\"localhost:9092\"]}\n" + fmt.Sprintf(format, args...)
}
