package processor

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
)

// TestStalledRestoreLeavesTheProcessorAlone: while one task waits for an undecided transaction in its
// changelog, another one of the same worker runs. The worker must wait for either, not ask without a pause.
func TestStalledRestoreLeavesTheProcessorAlone(t *testing.T) {
	w := newWorld(t, totals(t))
	s := w.live()
	for p := range record.Partition(2) {
		w.send(p, "k", fmt.Sprint(p), 1)
	}
	w.settle(s)
	// Another producer writes to the ID log of one task and is never heard of again.
	stray := w.b.Client("stray").NewProducer(broker.ProducerConfig{TransactionalID: "stray", TransactionTimeout: time.Minute})
	if err := stray.Init(context.Background()); err != nil {
		t.Fatal(err)
	}
	stray.Add(broker.Output{TopicPartition: record.TopicPartition{Topic: "app-in-ids-changelog", Partition: 1}, Key: []byte("stray"), Value: []byte("stray")})
	w.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if c.Client == "stray" && c.API == simbroker.EndTxn {
			return simbroker.Action{Verdict: simbroker.LoseRequest}
		}
		return simbroker.Action{}
	})
	if _, outcome, _ := stray.Commit(context.Background(), broker.GroupMeta{}, nil); outcome == broker.Committed {
		t.Fatal("the stray transaction is committed")
	}
	w.b.SetFault(nil)
	w.disk = newMemoryLog()
	s = w.live()
	states := map[TaskState]int{}
	for range 400 {
		if err := s.Step(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		clear(states)
		for _, task := range s.Status().Tasks {
			states[task.State]++
		}
		if states[TaskRunning] > 0 && states[TaskRestoring] == 1 && len(states) == 2 {
			break
		}
		w.b.Advance(5 * time.Millisecond)
	}
	if states[TaskRunning] == 0 || states[TaskRestoring] != 1 || len(states) != 2 {
		t.Fatalf("states %v: the test wants one task to wait", states)
	}
	begin := w.b.Now()
	for range 100 {
		if err := s.Step(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
	}
	if took := w.b.Now().Sub(begin); took < 100*time.Millisecond {
		t.Errorf("100 steps with nothing to do took %v", took)
	}
}

// TestPausedOwnerOfPurgedInput: an owner that was paused for longer than the session wakes up. Its task has
// moved, and the new owner has deleted what it has processed, as is done in repartition topics. Until the
// old one hears of that it finds its next record gone, and must neither stop nor do anything twice.
func TestPausedOwnerOfPurgedInput(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	a := w.member("a", newMemoryLog(), 1)
	w.send(0, "k", "0", 1)
	w.until("the first record", w.quiet(2, a), a)
	g := w.b.Group("app")
	g.Silence("a", true)
	g.Remove("a")
	b := w.member("b", newMemoryLog(), 0)
	for i := range 20 {
		w.send(0, "k", fmt.Sprint(i), 1)
	}
	w.until("the new owner", w.quiet(2, b), b)
	in := record.TopicPartition{Topic: "in"}
	w.b.Advance(20 * time.Millisecond) // the last markers
	w.b.MoveStart(in, w.b.Position("app", in).Next)
	w.send(0, "k", "20", 1)
	if err := w.stepUntil(a); err != nil {
		t.Fatalf("the old owner: %v", err)
	}
	w.until("the last record", w.quiet(2, b), b)
	w.dense(map[string]int64{"k": 21})
}
