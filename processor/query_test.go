package processor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// sums is a topology of one store, which has the key of the input.
func sums(t *testing.T) *topology.Topology {
	return numbers(t, nil, func(in *topology.Stream[string, int64]) {
		sum := topology.Sum(in, "sums", value)
		topology.To(sum, "out", serde.String(), serde.Int64())
	})
}

func querySums(from Queryable, opts ...QueryOption) *StoreQuery[string, int64] {
	return Query(from, "sums", serde.String(), serde.Int64(), opts...)
}

func TestQuery(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, sums(t))
	s := w.live()
	q := querySums(s)
	if _, err := q.Get(ctx, "ann"); !errors.Is(err, ErrNotReady) {
		t.Errorf("before anything is known: %v", err)
	}
	p := record.PartitionForKey([]byte("ann"), 2)
	w.settle(s)
	if a, err := q.Get(ctx, "ann"); err != nil || a.Found {
		t.Errorf("of an empty store: %+v, %v", a, err)
	}
	w.send(p, "ann", "1", 5)
	w.settle(s)
	a, err := q.Get(ctx, "ann")
	if err != nil || a.Value != 5 || !a.Found || a.Sequence == 0 || a.Partition != p || w.b.Now().Sub(a.AsOf) > time.Second {
		t.Errorf("%+v, %v at %v", a, err, w.b.Now())
	}
	if a, err := q.Get(ctx, "bob"); err != nil || a.Found {
		t.Errorf("of a key that is not there: %+v, %v", a, err)
	}
	if got, of, err := q.Partition("ann"); got != p || of != 2 || err != nil {
		t.Errorf("partition %d of %d, %v", got, of, err)
	}
	if h := q.Here(); fmt.Sprint(h) != "[0 1]" {
		t.Errorf("here: %v", h)
	}
	if _, err := Query(s, "sum", serde.String(), serde.Int64()).Get(ctx, "ann"); !errors.Is(err, ErrNoStore) {
		t.Errorf("of another store: %v", err)
	}
	if _, err := Query(s, "sums", serde.String(), serde.JSON[int]()).Get(ctx, "ann"); err == nil || !strings.Contains(err.Error(), "value") {
		t.Errorf("with another serde: %v", err)
	}
	if _, err := q.GetFrom(ctx, 7, "ann"); !errors.Is(err, ErrNotHere) {
		t.Errorf("of a partition that is not there: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := q.Get(ended, "ann"); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// TestQueryOfAnOpenTransaction: what a transaction has done is not seen before it is committed, nor if it is aborted.
func TestQueryOfAnOpenTransaction(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, sums(t))
	s := w.live()
	p := record.PartitionForKey([]byte("ann"), 2)
	w.send(p, "ann", "1", 5)
	w.settle(s)
	seen := 0
	w.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if c.API == simbroker.EndTxn && seen < 3 {
			seen++
			if a, err := querySums(s, AllowStale()).Get(ctx, "ann"); err != nil || a.Value != 5 {
				t.Errorf("in the middle of a commit: %+v, %v", a, err)
			}
			return simbroker.Action{Verdict: simbroker.LoseRequest, Wait: time.Millisecond}
		}
		return simbroker.Action{}
	})
	w.send(p, "ann", "2", 7)
	w.settle(s)
	if seen != 3 {
		t.Fatalf("the transaction was aborted %d times", seen)
	}
	if a, err := querySums(s).Get(ctx, "ann"); err != nil || a.Value != 12 {
		t.Errorf("after it: %+v, %v", a, err)
	}
}

func TestQueryPages(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, sums(t))
	s := w.live()
	for i := range 30 {
		w.send(1, fmt.Sprintf("k%02d", i), fmt.Sprint(i), int64(i))
	}
	w.settle(s)
	q := querySums(s)
	to := "k08"
	page, err := q.Range(ctx, 1, "k03", &to, 100)
	if err != nil || len(page.Entries) != 5 || page.More || page.Entries[0] != (Entry[string, int64]{"k03", 3}) {
		t.Errorf("%+v, %v", page, err)
	}
	if page, err = q.All(ctx, 1, 10); err != nil || len(page.Entries) != 10 || !page.More {
		t.Errorf("%+v, %v", page, err)
	}
	if page, err = q.Range(ctx, 1, "k20", nil, 10); err != nil || len(page.Entries) != 10 || page.More || page.Entries[9].Key != "k29" {
		t.Errorf("%+v, %v", page, err)
	}
	for _, limit := range []int{0, -1, MaxPage + 1} {
		if _, err := q.All(ctx, 1, limit); err == nil {
			t.Errorf("a limit of %d is taken", limit)
		}
	}
}

// TestQueryAfterTheSessionWasLost: a process that stands still loses its session, and another one goes on with its tasks.
// When it wakes up it does not know that yet, and what it has is old: it must not answer. (CRASH 21)
func TestQueryAfterTheSessionWasLost(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, sums(t))
	old := w.live()
	p := record.PartitionForKey([]byte("ann"), 2)
	w.send(p, "ann", "1", 5)
	w.settle(old)
	if a, err := querySums(old).Get(ctx, "ann"); err != nil || a.Value != 5 {
		t.Fatalf("%+v, %v", a, err)
	}
	g := w.b.Group("app")
	g.Silence("a", true) // it stands still from here on
	g.Remove("a")
	w.disk, w.instance = newMemoryLog(), "b"
	successor := w.live()
	w.send(p, "ann", "2", 7)
	w.settle(successor)
	if a, err := querySums(successor).Get(ctx, "ann"); err != nil || a.Value != 12 {
		t.Fatalf("of the successor: %+v, %v", a, err)
	}
	if a, err := querySums(old).Get(ctx, "ann"); !errors.Is(err, ErrStale) {
		t.Errorf("of the one that had stood still: %+v, %v", a, err)
	}
	a, err := querySums(old, AllowStale()).Get(ctx, "ann")
	if b, berr := querySums(successor).Get(ctx, "ann"); err != nil || berr != nil || a.Value != 5 || a.Sequence >= b.Sequence || !a.AsOf.Before(b.AsOf) {
		t.Errorf("asked for whatever is there: %+v, %v; the newest is %+v, %v", a, err, b, berr)
	}
	old.Lost([]record.TopicPartition{{Topic: "in", Partition: p}}) // it hears of it
	if err := old.Step(ctx, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := querySums(old, AllowStale()).Get(ctx, "ann"); !errors.Is(err, ErrNotHere) {
		t.Errorf("once it knows: %v", err)
	}
}

// TestQueryWithoutKafka: while the proof that is there is new enough, no broker is asked; then it is no answer.
func TestQueryWithoutKafka(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, sums(t))
	s := w.live()
	p := record.PartitionForKey([]byte("ann"), 2)
	w.send(p, "ann", "1", 5)
	for range 20 { // until just after the commit
		if err := s.Step(ctx, 0); err != nil {
			t.Fatal(err)
		}
	}
	w.b.SetFault(func(c simbroker.Call) simbroker.Action {
		return simbroker.Action{Verdict: simbroker.Refuse, Code: simbroker.NotCoordinator}
	})
	if a, err := querySums(s, MaxStaleness(time.Hour)).Get(ctx, "ann"); err != nil || a.Value != 5 || a.AsOf.IsZero() {
		t.Errorf("%+v, %v", a, err)
	}
	w.b.Advance(time.Hour)
	if _, err := querySums(s).Get(ctx, "ann"); !errors.Is(err, ErrStale) || !strings.Contains(err.Error(), broker.ErrUnreachable.Error()) {
		t.Errorf("%v", err)
	}
}

// TestQueryWhileRestoring: a store that is being filled is not shown.
func TestQueryWhileRestoring(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, sums(t))
	s := w.live()
	p := record.PartitionForKey([]byte("ann"), 2)
	w.send(p, "ann", "1", 5)
	w.settle(s)
	w.disk = newMemoryLog()
	hold := true
	w.b.MarkerDelay = func(tp record.TopicPartition, _ string) time.Duration {
		if hold && strings.HasSuffix(tp.Topic, "-changelog") {
			return -1
		}
		return time.Millisecond
	}
	w.send(p, "ann", "2", 7)
	for range 20 {
		if err := s.Step(ctx, 0); err != nil {
			t.Fatal(err)
		}
	}
	g := w.b.Group("app")
	g.Silence("a", true)
	g.Remove("a")
	w.instance = "b" // the old one's transactional ID would wait for its markers
	again := w.live()
	for range 50 {
		if err := again.Step(ctx, 0); err != nil {
			t.Fatal(err)
		}
		w.b.Advance(time.Millisecond)
	}
	if a, err := querySums(again, AllowStale()).Get(ctx, "ann"); !errors.Is(err, ErrNotReady) {
		t.Errorf("%+v, %v", a, err)
	}
	hold = false
	w.b.ReleaseMarkers(func(record.TopicPartition) bool { return true })
	w.settle(again)
	if a, err := querySums(again).Get(ctx, "ann"); err != nil || a.Value != 12 {
		t.Errorf("%+v, %v", a, err)
	}
}
