package processor

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// TestClockJumps: what is a duplicate and what is too old is decided by the records' own time. A clock of the host that
// jumps by days, forward and back, changes nothing of it. (CRASH 43)
func TestClockJumps(t *testing.T) {
	w := newWorld(t, totals(t))
	var skew time.Duration
	s, err := NewStepper(context.Background(), w.topo, Env{
		Cluster: w.b.Client("life"), Local: w.disk, Instance: w.instance,
		Now:         func() time.Time { return w.b.Now().Add(skew) },
		Sleep:       func(ctx context.Context, d time.Duration) error { w.b.Advance(d); return ctx.Err() },
		Incarnation: func() uint64 { w.inc++; return w.inc },
	})
	if err != nil {
		t.Fatal(err)
	}
	g := w.b.Group("app")
	g.Add(w.instance, s.CoPartitioned(), s)
	if err := s.Start(context.Background(), 0); err != nil {
		t.Fatal(err)
	}
	g.Rebalance(context.Background(), g.Spread())
	var want []string
	for i, jump := range []time.Duration{0, 48 * time.Hour, -72 * time.Hour, 24 * time.Hour, -time.Hour, time.Hour} {
		skew += jump
		for j := range i + 1 { // all so far again, and a new one
			w.send(0, "k", fmt.Sprint(j), 1)
		}
		w.settle(s)
		w.b.Advance(5 * time.Minute) // all of it lies within the hour that IDs are kept
		want = append(want, "k=1")
	}
	if got := w.read("echo"); !slices.Equal(got, want) {
		t.Errorf("echo: %v, want %v", got, want)
	}
}

// TestSameIDInTwoPartitions: with the scope partition a copy in another partition passes, which is said of it; with the scope
// stream it is caught, whichever partitions the copies are in. (CRASH 44)
func TestSameIDInTwoPartitions(t *testing.T) {
	for _, c := range []struct {
		scope string
		opts  []topology.DedupOption
		want  int
	}{
		{"partition", nil, 2},
		{"stream", []topology.DedupOption{topology.ScopeStream()}, 1},
	} {
		b := topology.New("app")
		in := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"))
		u := topology.Dedup(in, "unique", append(c.opts, topology.Retention(time.Hour))...)
		topology.To(u, "out", serde.String(), serde.Int64())
		topo, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, topo)
		s := w.live()
		for range 3 {
			w.send(0, "k", "1", 1)
			w.send(1, "k", "1", 1)
			w.settle(s)
		}
		if got := w.read("out"); len(got) != c.want {
			t.Errorf("scope %s: %d records came out, want %d", c.scope, len(got), c.want)
		}
	}
}
