package processor

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// TestRestoreAcrossAPause: a process is stopped in the middle of a restore for longer than its session lasts, others
// take its task over and go on. When it wakes up it still follows the changelog, which says more now than the input's
// end that it had asked for before: that is no truncated topic, and no reason to end. (CRASH 18, 20)
func TestRestoreAcrossAPause(t *testing.T) {
	t.Run("inputs", func(t *testing.T) { restoreAcrossAPause(t, totals(t)) })
	// The commit record of a task with state says how far the changelogs of its stores go.
	t.Run("stores", func(t *testing.T) {
		b := topology.New("app")
		in := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"))
		u := topology.Dedup(in, "unique", topology.Retention(time.Hour))
		topology.To(u, "echo", serde.String(), serde.Int64())
		sum := topology.Aggregate(u, "totals", serde.Int64(), func(a int64, r record.Record[string, int64]) (int64, error) { return a + r.Value, nil })
		topology.To(sum, "out", serde.String(), serde.Int64())
		topo, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		restoreAcrossAPause(t, topo)
	})
}

func restoreAcrossAPause(t *testing.T, topo *topology.Topology) {
	t.Helper()
	w := newWorld(t, topo)
	hold := false
	w.b.MarkerDelay = func(tp record.TopicPartition, _ string) time.Duration {
		if hold && strings.HasSuffix(tp.Topic, "-changelog") {
			return -1 // until released
		}
		return time.Millisecond
	}
	s := w.live()
	w.send(0, "k", "1", 1)
	w.settle(s)
	hold = true // what is committed now keeps a restore from its end
	w.send(0, "k", "2", 1)
	w.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if c.API == simbroker.EndTxn {
			return simbroker.Action{Verdict: simbroker.CrashAfter}
		}
		return simbroker.Action{}
	})
	func() {
		defer func() {
			if _, ok := recover().(simbroker.Crash); !ok {
				t.Fatal("no crash")
			}
		}()
		w.settle(s)
	}()
	w.b.SetFault(nil)
	g := w.b.Group("app")
	g.Remove("a")
	w.instance, w.disk = "zombie", newMemoryLog()
	zombie := w.live()
	for range 50 {
		if err := zombie.Step(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		w.b.Advance(5 * time.Millisecond)
	}
	if st := zombie.Status(); st.State == Running {
		t.Fatalf("it is restored already: %+v", st.Tasks)
	}

	// It stands still. It hears nothing of the rebalance either.
	g.Silence("zombie", true)
	g.Remove("zombie")
	hold = false
	w.b.ReleaseMarkers(func(record.TopicPartition) bool { return true })
	w.instance, w.disk = "b", newMemoryLog()
	s = w.live()
	for i := range 5 {
		w.send(0, "k", fmt.Sprint("later ", i), 1)
		w.settle(s)
	}
	for range 400 {
		if err := zombie.Step(context.Background(), 0); err != nil {
			t.Fatalf("the zombie ends: %v", err)
		}
		w.b.Advance(5 * time.Millisecond)
	}
	w.settle(s)
	if got := w.read("echo"); len(got) != 7 {
		t.Errorf("echo has %d records, want 7: %v", len(got), got)
	}
}
