package processor

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// TestRestartBetweenTwoTopics: a stateless task between two repartition topics begins anew, while one of those that write to it, in
// another process, is idle and has said so long ago. It hears of it again.
func TestRestartBetweenTwoTopics(t *testing.T) {
	for p := range record.Partition(2) {
		t.Run(fmt.Sprint(p), func(t *testing.T) {
			w := newWorld(t, behindKeyBy(t, 2))
			disks := map[string]*memoryLog{"a": newMemoryLog(), "b": newMemoryLog()}
			a, b := w.member("a", disks["a"], 200), w.member("b", disks["b"], 200)
			both := func(d time.Duration) {
				for end := w.b.Now().Add(d); w.b.Now().Before(end); {
					w.work(a, time.Millisecond)
					w.work(b, time.Millisecond)
				}
			}
			w.sendAt(0, "a", 1, 1)
			w.sendAt(1, "a", 1, 1)
			both(10 * time.Second)
			b = w.member("b", disks["b"], 200)
			for i := range 10 {
				w.sendAt(p, "a", float64(40+10*i), 1)
				both(3 * time.Second)
			}
			if got := w.read("out"); len(got) < 9 {
				t.Errorf("time stands still: %v", got)
			}
		})
	}
}

// TestIdleAgainInOneTransaction: the records of a transaction say that their task is not idle. If it is when that ends, as it was
// before, it says so again.
func TestIdleAgainInOneTransaction(t *testing.T) {
	w := newWorld(t, numbers(t, []topology.SourceOption{topology.WithIdleness(3 * time.Millisecond)}, func(in *topology.Stream[string, int64]) {
		s := topology.KeyBy(in, "by", serde.String(), func(r record.Record[string, int64]) (string, error) { return r.Key, nil })
		toOut(topology.Count(topology.WindowedBy(s, window.Tumbling(10*time.Second).Grace(time.Second)), "counts", topology.EmitOnClose()))
	}))
	s := w.live()
	w.work(s, 10*time.Second)
	w.sendAt(1, "a", 1, 1)
	w.work(s, 10*time.Second)
	for i := range 10 {
		w.sendAt(0, "a", float64(20+10*i), 1)
		w.work(s, 5*time.Second)
	}
	if got := w.read("out"); len(got) < 10 {
		t.Errorf("time stands still: %v", got)
	}
}

// TestFewerWriters: a wider source is taken out of a merge while marks of its tasks are not read yet. They hold nobody up.
func TestFewerWriters(t *testing.T) {
	build := func(wide bool) *topology.Topology {
		b := topology.New("app")
		from := func(name string) *topology.Stream[string, int64] {
			return topology.From(b, name, serde.String(), serde.Int64(), topology.IDHeader("id"), topology.WithIdleness(2*time.Second))
		}
		s := from("in")
		if wide {
			s = topology.Merge("both", s, from("wide"))
		}
		by := topology.KeyBy(s, "by", serde.String(), func(r record.Record[string, int64]) (string, error) { return r.Key, nil }, topology.Partitions(2))
		toOut(topology.Count(topology.WindowedBy(by, window.Tumbling(10*time.Second).Grace(time.Second)), "counts", topology.EmitOnClose()))
		topo, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		return topo
	}
	w := newWorld(t, build(true))
	if err := w.b.Client("setup").CreateTopic(context.Background(), broker.Topic{Name: "wide", Partitions: 4, Replicas: 1}); err != nil {
		t.Fatal(err)
	}
	s := w.live()
	w.sendAt(0, "a", 1, 1)
	foreign := func() bool {
		for _, r := range w.b.Committed(record.TopicPartition{Topic: "app-by-repartition"}) {
			if record.IsMark(r.Key, r.Value, r.Headers) {
				if m, _ := record.ParseMark(r.Headers[0].Value); m.Task > 1 {
					return true
				}
			}
		}
		return false
	}
	for !foreign() {
		if err := s.Step(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		w.b.Advance(time.Millisecond)
	}
	w.topo = build(false)
	s, err := w.start(w.topo, false)
	if err != nil {
		t.Fatal(err)
	}
	w.sendAt(0, "a", 30, 1)
	w.work(s, 10*time.Second)
	expectOut(t, w, "a@0-10=1")
}
