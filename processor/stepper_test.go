package processor

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world is a simulated cluster with an application on it.
type world struct {
	t        *testing.T
	b        *simbroker.Broker
	topo     *topology.Topology
	disk     *memoryLog
	inc      uint64
	lives    int
	sent     int
	instance string
	opts     []Option
	maxFetch int // bytes that one fetch brings of a partition; 0: plenty
	point    func(name string)
	call     func(run func())  // gets the calls of effects; nil: they are made at once
	input    func(portion int) // sends a portion of run; nil: feed
	stepped  func()            // after each step of run; may be nil
}

// totals is the topology of these tests: dedup by header, then a count per key through a repartition. The options are of its last
// topic.
func totals(t *testing.T, out ...topology.SinkOption) *topology.Topology {
	t.Helper()
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"))
	u := topology.Dedup(in, "unique", topology.Retention(time.Hour))
	topology.To(u, "echo", serde.String(), serde.Int64())
	by := topology.KeyBy(u, "by-region", serde.String(), func(r record.Record[string, int64]) (string, error) { return r.Key[:1], nil })
	sum := topology.Aggregate(by, "totals", serde.Int64(), func(a int64, r record.Record[string, int64]) (int64, error) { return a + r.Value, nil })
	topology.To(sum, "out", serde.String(), serde.Int64(), out...)
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

func newWorld(t *testing.T, topo *topology.Topology) *world {
	w := &world{t: t, instance: "a", b: simbroker.New(start), topo: topo, disk: newMemoryLog()}
	w.b.MarkerDelay = func(record.TopicPartition, string) time.Duration { return 2 * time.Millisecond }
	c := w.b.Client("setup")
	for _, name := range []string{"in", "echo", "out", "dlq"} {
		if err := c.CreateTopic(context.Background(), broker.Topic{Name: name, Partitions: 2, Replicas: 1}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// live starts a process: it joins as instance "a" and owns everything.
func (w *world) live() *Stepper {
	w.t.Helper()
	w.lives++
	c := w.b.Client(fmt.Sprintf("life-%d", w.lives))
	c.MaxFetch = w.maxFetch
	s, err := NewStepper(context.Background(), w.topo, Env{
		Cluster: c, Local: w.disk, Instance: w.instance, Now: w.b.Now,
		Sleep:       func(ctx context.Context, d time.Duration) error { w.b.Advance(d); return ctx.Err() },
		Incarnation: func() uint64 { w.inc++; return w.inc },
		Point:       w.point,
		Call:        w.call,
	}, w.opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	g := w.b.Group("app")
	g.Add(w.instance, s.CoPartitioned(), s)
	if err := s.Start(context.Background(), 0); err != nil {
		w.t.Fatal(err)
	}
	g.Rebalance(context.Background(), g.Spread())
	return s
}

func (w *world) send(p record.Partition, key, id string, v int64) {
	w.b.Append(record.TopicPartition{Topic: "in", Partition: p}, broker.Record{
		Key: []byte(key), Value: binary.BigEndian.AppendUint64(nil, uint64(v)), Timestamp: w.b.Now(),
		Headers: record.Headers{{Key: "id", Value: []byte(id)}},
	})
}

// settle steps until nothing happens for a while.
func (w *world) settle(s *Stepper) {
	w.t.Helper()
	for range 400 {
		if err := s.Step(context.Background(), 0); err != nil {
			w.t.Fatalf("step: %v", err)
		}
		w.b.Advance(5 * time.Millisecond)
	}
}

// read returns what a read_committed reader sees of a topic, as "key=value" per partition.
func (w *world) read(topic string) (out []string) {
	r := w.b.Client("reader").NewReader(broker.ReaderConfig{})
	for p := range record.Partition(2) {
		r.Seek(record.TopicPartition{Topic: topic, Partition: p}, 0, 1)
	}
	for range 200 {
		for _, b := range r.Poll(context.Background(), time.Millisecond) {
			for _, x := range b.Records {
				out = append(out, fmt.Sprintf("%s=%d", x.Key, binary.BigEndian.Uint64(x.Value)))
			}
		}
	}
	return out
}

func TestDedupAndTotals(t *testing.T) {
	w := newWorld(t, totals(t))
	s := w.live()
	for i := range 10 {
		w.send(0, "ann", fmt.Sprint(i), 1)
		w.send(0, "ann", fmt.Sprint(i), 1) // in the same transaction
	}
	w.settle(s)
	for i := range 10 {
		w.send(0, "ann", fmt.Sprint(i), 1) // in a later one
	}
	w.settle(s)
	if got := w.read("echo"); len(got) != 10 {
		t.Errorf("echo has %d records, want 10: %v", len(got), got)
	}
	got := w.read("out")
	if len(got) != 10 || got[9] != "a=10" {
		t.Errorf("out: %v", got)
	}
	st := s.Status()
	var dup, open uint64
	for _, o := range st.Operators {
		if o.Name == "unique" {
			dup, open = o.Counters[string(topology.CounterDuplicateCommitted)], o.Counters[string(topology.CounterDuplicateOpen)]
		}
	}
	if dup != 10 || open != 10 {
		t.Errorf("duplicates: %d committed, %d open; want 10 and 10; status %+v", dup, open, st)
	}
	if st.State != Running {
		t.Errorf("state %s", st.State)
	}
}

func TestRestartContinues(t *testing.T) {
	for _, wipe := range []bool{false, true} {
		t.Run(fmt.Sprintf("wipe=%v", wipe), func(t *testing.T) {
			w := newWorld(t, totals(t))
			for life := range 4 {
				s := w.live()
				for i := range 5 {
					w.send(1, "bob", fmt.Sprint(life*5+i), 2)
					w.send(1, "bob", fmt.Sprint(i), 2)
				}
				w.settle(s)
				if wipe {
					w.disk = newMemoryLog()
				}
			}
			if got := w.read("echo"); len(got) != 20 {
				t.Errorf("echo has %d records, want 20", len(got))
			}
			if got := w.read("out"); len(got) != 20 || got[19] != "b=40" {
				t.Errorf("out: %v", got)
			}
		})
	}
}

// TestStreamTimeIsEventTime: with a Timestamp option the window moves by the records' own time, not by
// the broker's, so that old data can be processed again without being too late. (CRASH 41, 42)
func TestStreamTimeIsEventTime(t *testing.T) {
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"),
		topology.Timestamp(func(r record.Record[string, int64]) (time.Time, error) { return start.Add(time.Duration(r.Value)), nil }))
	u := topology.Dedup(in, "unique", topology.Retention(time.Hour), topology.OnTooLate(topology.Stop))
	topology.To(u, "echo", serde.String(), serde.Int64())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, topo)
	s := w.live()
	day := int64(24 * time.Hour)
	w.send(0, "k", "old", -365*day)
	w.send(0, "k", "older by half an hour", -365*day-int64(30*time.Minute))
	w.settle(s)
	if got := s.Status().Tasks[0].StreamTime; !got.Equal(start.Add(-365 * 24 * time.Hour)) {
		t.Errorf("stream time %v", got)
	}
	w.send(0, "k", "from the year 2126", 36500*day)
	w.settle(s)
	if got, most := s.Status().Tasks[0].StreamTime, w.b.Now().Add(maxSkew); got.After(most) {
		t.Errorf("stream time %v is beyond the clock %v", got, most)
	}
	if got := w.read("echo"); len(got) != 3 {
		t.Errorf("echo: %v", got)
	}
}

// TestTooLateDoesNotDependOnCommits: a record is too late by the stream time at its turn, wherever the
// transactions are cut.
func TestTooLateDoesNotDependOnCommits(t *testing.T) {
	for _, cut := range []bool{false, true} {
		b := topology.New("app")
		in := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"),
			topology.Timestamp(func(r record.Record[string, int64]) (time.Time, error) { return start.Add(time.Duration(r.Value)), nil }))
		topology.To(topology.Dedup(in, "unique", topology.Retention(time.Hour), topology.OnTooLate(topology.Drop)), "echo", serde.String(), serde.Int64())
		topo, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, topo)
		s := w.live()
		w.send(0, "k", "a", -int64(3*time.Hour))
		if cut {
			w.settle(s)
		}
		w.send(0, "k", "b", 0)
		w.send(0, "k", "c", -int64(2*time.Hour))
		w.settle(s)
		if got := w.read("echo"); len(got) != 2 {
			t.Errorf("cut %v: %d records passed, want 2: %v", cut, len(got), got)
		}
	}
}
