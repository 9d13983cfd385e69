package processor

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
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

// TestKilledBeforeItTold: a task whose inputs are never idle is killed when it has committed what moves its time far, and has told that to one
// partition only. Nothing comes any more: it tells the others after its start.
func TestKilledBeforeItTold(t *testing.T) {
	w := newWorld(t, numbers(t, []topology.SourceOption{topology.WithIdleness(-1)}, func(in *topology.Stream[string, int64]) {
		topology.Count(in, "all") // so that it has state, which remembers its time
		s := topology.KeyBy(in, "by", serde.String(), func(r record.Record[string, int64]) (string, error) { return r.Key, nil },
			topology.Partitions(100)) // so that marks are told twice a second at most
		toOut(topology.Count(topology.WindowedBy(s, window.Tumbling(10*time.Second).Grace(time.Second)), "counts", topology.EmitOnClose()))
	}))
	s := w.live()
	keys := 20 // in many partitions of the repartition topic
	for i := range keys {
		w.sendAt(record.Partition(i%2), fmt.Sprint("k", i), 1, 1)
	}
	w.work(s, 5*time.Second)
	kill := false
	w.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if kill && c.API == simbroker.EndTxn {
			kill = false
			return simbroker.Action{Verdict: simbroker.CrashAfter}
		}
		return simbroker.Action{}
	})
	for p := range record.Partition(2) {
		w.sendAt(p, "end", 2, 1) // marks for this one are told: those for the next one come too soon after
		w.work(s, 200*time.Millisecond)
		w.sendAt(p, "end", 3600, 1)
		kill = true
		func() {
			defer func() {
				if v := recover(); v != nil {
					if _, ok := v.(simbroker.Crash); !ok {
						panic(v)
					}
				}
			}()
			w.work(s, 200*time.Millisecond)
		}()
		if kill {
			t.Fatal("it was not killed")
		}
		s = w.live()
		w.work(s, 10*time.Second)
	}
	if got := w.read("out"); len(got) != keys+1 {
		t.Errorf("%d windows are closed, want %d: %v", len(got), keys+1, got)
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
