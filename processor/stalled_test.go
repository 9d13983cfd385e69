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
