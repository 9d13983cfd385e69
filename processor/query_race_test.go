package processor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/txlog"
)

// openLocal opens a local log on disk.
func openLocal(t *testing.T) LocalLog {
	t.Helper()
	log, err := txlog.Open(txlog.Options{Dir: t.TempDir(), App: "app", MinFreeBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	return logAdapter{log}
}

// TestAnswersAreOfOneCommit: while batches are applied, on the real local log, whatever is read beside them is what its commit
// sequence says: of a key and of a page.
func TestAnswersAreOfOneCommit(t *testing.T) {
	store, err := openLocal(t).Task("in/0")
	if err != nil {
		t.Fatal(err)
	}
	const keys = 20
	var jobs sync.WaitGroup
	defer jobs.Wait()
	l := newLagging(store, 2000, jobs.Go) // each few batches are written to disk
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			var last uint64
			for range 200_000 {
				select {
				case <-done:
					return
				default:
				}
				v, at, ok, err := l.getAt("s", []byte("k07"))
				if err != nil || ok && binary.BigEndian.Uint64(v) != at.Sequence || at.Sequence < last {
					t.Errorf("key: %v at commit %d after %d, %v", v, at.Sequence, last, err)
					return
				}
				page, _, at, ok, err := l.pageAt("s", nil, nil, 100)
				if err != nil || ok && len(page) != keys {
					t.Errorf("a page of %d keys at commit %d, %v", len(page), at.Sequence, err)
					return
				}
				for _, e := range page {
					if n := binary.BigEndian.Uint64(e.value); n != at.Sequence {
						t.Errorf("page of commit %d: %s is of commit %d", at.Sequence, e.key, n)
						return
					}
				}
				last = at.Sequence
			}
		})
	}
	now := time.Unix(1e9, 0)
	for seq := range uint64(300) {
		b := &record.Batch{Position: record.LocalPosition{CommitPoint: record.CommitPoint{Sequence: seq + 1, Incarnation: 1}, Complete: true, AppliedAt: now}}
		for _, k := range rand.Perm(keys) {
			b.State = append(b.State, record.StateChange{Store: "s", Key: fmt.Appendf(nil, "k%02d", k), Value: binary.BigEndian.AppendUint64(nil, seq+1)})
		}
		if err := l.Apply(b); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	readers.Wait()
}

// TestQueriesBesideAWorker: queries from other goroutines while a worker commits, fails to commit and restores.
func TestQueriesBesideAWorker(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, sums(t))
	s, err := NewStepper(ctx, w.topo, Env{
		Cluster: w.b.Client("a"), Local: openLocal(t), Instance: "a", Now: w.b.Now, Incarnation: func() uint64 { return 7 },
		Sleep: func(ctx context.Context, d time.Duration) error { w.b.Advance(d); return ctx.Err() },
	})
	if err != nil {
		t.Fatal(err)
	}
	w.b.Group("app").Add("a", s.CoPartitioned(), s)
	if err := s.Start(ctx, 0); err != nil {
		t.Fatal(err)
	}
	w.b.Group("app").Rebalance(ctx, w.b.Group("app").Spread())
	q := querySums(s, MaxStaleness(time.Hour))
	p := record.PartitionForKey([]byte("ann"), 2)
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			last := map[uint64]int64{}
			var high uint64
			for {
				select {
				case <-done:
					return
				default:
				}
				a, err := q.Get(ctx, "ann")
				if err != nil {
					if !errors.Is(err, ErrNotReady) && !errors.Is(err, ErrStale) && !errors.Is(err, ErrNotHere) {
						t.Error(err)
						return
					}
					continue
				}
				if v, ok := last[a.Sequence]; ok && v != a.Value || a.Sequence < high {
					t.Errorf("commit %d says %d and %d; before it %d", a.Sequence, v, a.Value, high)
					return
				}
				last[a.Sequence], high = a.Value, a.Sequence
			}
		})
	}
	for i := range 200 {
		w.send(p, "ann", fmt.Sprint(i), 1)
		for range 8 {
			if err := s.Step(ctx, 0); err != nil {
				t.Error(err)
			}
			w.b.Advance(5 * time.Millisecond)
		}
		if i%50 == 49 {
			w.b.Group("app").Rebalance(ctx, nil)
			w.b.Group("app").Rebalance(ctx, w.b.Group("app").Spread())
		}
	}
	close(done)
	readers.Wait()
	w.settle(s)
	if a, err := q.Get(ctx, "ann"); err != nil || a.Value != 200 {
		t.Errorf("%+v, %v", a, err)
	}
}
