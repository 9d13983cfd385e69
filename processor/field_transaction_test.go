package processor

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// FIELD C2: what was fetched before an abort, and what was fetched for an owner that is gone, is not
// processed: the first record after it is the committed one.
func TestOldFetchesAreDropped(t *testing.T) {
	var seen []string
	w := newWorld(t, counting(t, func(r counted) { seen = append(seen, string(r.ID())) }))
	s := w.live()
	w.until("the start", w.quiet(2, s), s)
	wk := s.workers[0]
	r := wk.runs[0]
	old := broker.Batch{
		TopicPartition: r.inputs[0], Tag: r.tag, Next: 1,
		Records: []broker.Record{{Offset: 0, Key: []byte("old"), Value: make([]byte, 8), Timestamp: w.b.Now(), Headers: record.Headers{{Key: "id", Value: []byte("old")}}}},
	}
	if err := wk.recover(context.Background(), broker.GroupMeta{}, broker.ErrAbortable); err != nil {
		t.Fatal(err)
	}
	w.until("the recovery", w.quiet(2, s), s)
	wk.reader = aheadReader{wk.reader, &[]broker.Batch{old}}
	w.send(0, "k", "new", 1)
	w.settle(s)
	if len(seen) != 1 || seen[0] != "new" {
		t.Errorf("processed %v, want only what was fetched after the abort", seen)
	}
}

// aheadReader hands out batches that were on their way.
type aheadReader struct {
	broker.Reader
	late *[]broker.Batch
}

func (r aheadReader) Poll(ctx context.Context, wait time.Duration) []broker.Batch {
	late := *r.late
	*r.late = nil
	return append(late, r.Reader.Poll(ctx, wait)...)
}

// FIELD C12: once partitions are given back, nothing of theirs is committed any more, whatever is open.
func TestNothingIsCommittedAfterARevoke(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	a := w.member("a", newMemoryLog(), 0)
	w.until("the start", w.quiet(2, a), a)
	for i := range 50 {
		w.send(0, "k0", fmt.Sprint(i), 1)
		w.send(1, "k1", fmt.Sprint(i), 1)
	}
	wk := a.workers[0]
	w.until("an open transaction", func() bool { return wk.records }, a)
	b := w.member("b", newMemoryLog(), 0)
	lost := record.TopicPartition{Topic: "in", Partition: 1}
	w.b.Advance(20 * time.Millisecond) // the markers of what it committed in time
	at := w.b.Position("app", lost)
	for range 500 { // only the old owner goes on
		if err := a.Step(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		w.b.Advance(time.Millisecond)
	}
	if now := w.b.Position("app", lost); now != at {
		t.Errorf("the old owner moved %s from %d to %d", lost, at.Next, now.Next)
	}
	w.until("the rest", w.quiet(2, a, b), a, b)
	w.dense(map[string]int64{"k0": 50, "k1": 50})
}

// slowly is a topology whose user code takes so long for each record, by the simulated clock.
func slowly(t *testing.T, w *world, perRecord *time.Duration, during func()) *topology.Topology {
	return counting(t, func(counted) {
		w.b.Advance(*perRecord)
		during()
	})
}

// FIELD D7, C8: records that take long and a queue that is full do not make transactions that last longer
// than their timeout, nor a revoke that waits for minutes: a turn adapts to the time that records take.
func TestSlowRecordsEndATransaction(t *testing.T) {
	w := newWorld(t, totals(t))
	longest := time.Duration(0)
	perRecord := time.Duration(0)
	w.topo = slowly(t, w, &perRecord, func() {})
	s := w.live()
	const n = 4000
	for i := range n - 700 { // quick ones, so that a turn has its full length
		w.send(0, "k", fmt.Sprint(i), 1)
	}
	w.until("the quick ones", w.quiet(2, s), s)
	perRecord = 20 * time.Millisecond // a turn of full length takes 10 s
	for i := n - 700; i < n; i++ {
		w.send(0, "k", fmt.Sprint(i), 1)
	}
	if err := s.Step(context.Background(), 0); err != nil { // the first turn of slow ones was not foreseen
		t.Fatal(err)
	}
	perRecord = 200 * time.Millisecond
	w.until("the input", func() bool {
		begin := w.b.Now()
		if err := s.Step(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		longest = max(longest, w.b.Now().Sub(begin))
		return w.b.Position("app", record.TopicPartition{Topic: "in"}).Next == n
	})
	if limit := 3 * time.Second; longest > limit {
		t.Errorf("a step took %v of slow records, want at most %v", longest, limit)
	}
	if a := s.Status().Transactions.Aborted; len(a) != 0 {
		t.Errorf("aborted: %v", a)
	}
	w.dense(map[string]int64{"k": n})
}

// FIELD D7: the limits of a transaction hold for its records too, whatever a task's turn is. (CRASH 51)
func TestTransactionLimitIsKept(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	w.opts = []Option{WithTransactionLimits(10, 0, 0)}
	s := w.live()
	for i := range 300 {
		w.send(record.Partition(i%2), fmt.Sprint("k", i%2), fmt.Sprint(i), 1)
	}
	w.until("the input", w.quiet(2, s), s)
	if n := s.Status().Transactions.Committed; n < 30 {
		t.Errorf("%d transactions for 300 records, the limit is 10 each", n)
	}
	w.dense(map[string]int64{"k0": 150, "k1": 150})
}

// FIELD E6, E8: no transaction is open at the broker while user code runs or input is waited for: the
// requests of a transaction are sent when it is committed. A slow task keeps nobody's reader waiting.
func TestNoTransactionIsOpenWhileUserCodeRuns(t *testing.T) {
	w := newWorld(t, totals(t))
	open := 0
	perRecord := 3 * time.Second
	w.topo = slowly(t, w, &perRecord, func() {
		if len(w.b.Undecided()) > 0 {
			open++
		}
	})
	s := w.live()
	for i := range 10 {
		w.send(0, "k", fmt.Sprint(i), 1)
	}
	w.until("the input", w.quiet(2, s), s)
	if open > 0 {
		t.Errorf("a transaction was open at the broker during %d records", open)
	}
	w.b.Advance(20 * time.Millisecond)
	for range 200 { // and none stays open without input
		if err := s.Step(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		if u := w.b.Undecided(); len(u) > 0 {
			t.Fatalf("undecided without input: %v", u)
		}
	}
}

// FIELD E5: the broker has forgotten the transactional ID during a quiet week. The next record is
// processed, after one new producer ID. (CRASH 27)
func TestForgottenTransactionalID(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	s := w.live()
	w.send(0, "k", "1", 1)
	w.until("one record", w.quiet(2, s), s)
	w.b.Advance(20 * time.Millisecond)
	w.b.ExpireTransactionalID("app-a-0")
	inits := w.b.Counts()[simbroker.InitProducerID]
	for i := 2; i < 10; i++ {
		w.send(0, "k", fmt.Sprint(i), 1)
		w.until("the input", w.quiet(2, s), s)
	}
	if n := w.b.Counts()[simbroker.InitProducerID] - inits; n != 1 {
		t.Errorf("%d new producer IDs, want 1", n)
	}
	w.dense(map[string]int64{"k": 9})
}

// FIELD E7: the epochs of a producer ID are used up by restarts. The next one gets another producer ID.
func TestEpochsRunOut(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	s := w.live()
	w.send(0, "k", "0", 1)
	w.until("one record", w.quiet(2, s), s)
	s.Stop()
	w.until("the stop", func() bool { return s.Stopped(0) }, s)
	w.b.Advance(20 * time.Millisecond)
	w.b.ExhaustEpochs("app-a-0", 3)
	for i := 1; i < 10; i++ {
		s = w.live()
		w.send(0, "k", fmt.Sprint(i), 1)
		w.until("the input", w.quiet(2, s), s)
		// An answer that is lost costs an epoch, too.
		lost := false
		w.b.SetFault(func(c simbroker.Call) simbroker.Action {
			if c.API != simbroker.EndTxn || lost {
				return simbroker.Action{}
			}
			lost = true
			return simbroker.Action{Verdict: simbroker.LoseAnswer}
		})
		w.send(0, "another", fmt.Sprint("x", i), 1)
		w.until("the input after a lost answer", w.quiet(2, s), s)
		w.b.SetFault(nil)
	}
	w.dense(map[string]int64{"k": 10, "another": 9})
}

// FIELD F7: transactions without records: no input, and input that is duplicates only. The first asks
// nothing of the broker, the second still moves the offsets.
func TestOnlyDuplicatesMoveOffsets(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	s := w.live()
	w.send(0, "k", "1", 1)
	w.until("one record", w.quiet(2, s), s)
	w.b.Advance(time.Minute)
	commits := w.b.Counts()[simbroker.EndTxn]
	w.settle(s)
	if n := w.b.Counts()[simbroker.EndTxn]; n != commits {
		t.Errorf("%d transactions without input", n-commits)
	}
	for range 20 {
		w.send(0, "k", "1", 1)
	}
	w.until("the duplicates", w.quiet(2, s), s)
	w.b.Advance(20 * time.Millisecond)
	if at := w.b.Position("app", record.TopicPartition{Topic: "in"}).Next; at != 21 {
		t.Errorf("offset %d, want 21", at)
	}
	if a := s.Status().Transactions.Aborted; len(a) != 0 {
		t.Errorf("aborted: %v", a)
	}
	w.dense(map[string]int64{"k": 1})
}

// FIELD G8, G9: retention overtakes a process that runs, but is behind. It ends at once with the numbers;
// it does not go on at another offset.
func TestRetentionOvertakesALiveProcess(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	s := w.member("a", newMemoryLog(), 1) // one batch at a time
	w.send(0, "k", "0", 1)
	w.until("one record", w.quiet(2, s), s)
	for i := 1; i < 50; i++ {
		w.send(0, "k", fmt.Sprint(i), 1)
	}
	in := record.TopicPartition{Topic: "in"}
	w.b.MoveStart(in, 40)
	begin := w.b.Now()
	err := w.stepUntil(s)
	wantError(t, err, broker.ErrOffsetOutOfRange, "in/0", "next offset to process: ")
	if took := w.b.Now().Sub(begin); took > time.Second {
		t.Errorf("told after %v", took)
	}
	if s.Status().Tasks[0].Inputs[0].Next >= 40 {
		t.Error("it jumped over what was deleted")
	}
	_, err = s.Status(), w.stepUntil(w.member("a", newMemoryLog(), 0))
	wantError(t, err, ErrOffsets, "begins at 40", "records were deleted")
}

// FIELD I6: a record that passes two dedup operators does not see itself. (CRASH 46)
func TestTwoDedupsInARow(t *testing.T) {
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"))
	one := topology.Dedup(in, "one", topology.Retention(time.Hour), topology.FalsePositiveRate(0.5))
	two := topology.Dedup(one, "two", topology.Retention(time.Hour), topology.FalsePositiveRate(0.5), topology.Always())
	topology.To(two, "out", serde.String(), serde.Int64())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, topo)
	s := w.live()
	for i := range 200 {
		w.send(0, "k", fmt.Sprint(i), 1)
		w.send(0, "k", fmt.Sprint(i), 1)
	}
	w.until("the input", w.quiet(2, s), s)
	if got := w.read("out"); len(got) != 200 {
		t.Errorf("%d records, want 200", len(got))
	}
}

// FIELD M10: an operator that is put in front of the others renames nothing: what was processed before
// is still known.
func TestOperatorInFrontKeepsTheIDs(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	s := w.live()
	for i := range 20 {
		w.send(0, "k", fmt.Sprint(i), 1)
	}
	w.until("version 1", w.quiet(2, s), s)
	s.Stop()
	w.until("the stop", func() bool { return s.Stopped(0) }, s)

	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"))
	some := topology.Filter(in, func(r counted) (bool, error) { return r.Value > 0, nil })
	n := topology.Aggregate(topology.Dedup(some, "unique", topology.Retention(time.Hour)), "numbers", serde.Int64(), func(n int64, r counted) (int64, error) { return n + 1, nil })
	topology.To(n, "out", serde.String(), serde.Int64())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	w.topo = topo
	s = w.live()
	for i := range 21 {
		w.send(0, "k", fmt.Sprint(i), 1)
	}
	w.until("version 2", w.quiet(2, s), s)
	w.dense(map[string]int64{"k": 21})
	for _, task := range s.Status().Tasks {
		if task.RestoreMode == modeFull {
			t.Errorf("%s was restored in full", task.Name)
		}
	}
}

// FIELD M10: what has state has a name of its own, or is not built.
func TestNamelessStateIsRefused(t *testing.T) {
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"))
	u := topology.Dedup(in, "", topology.Retention(time.Hour))
	topology.Aggregate(u, "", serde.Int64(), func(n int64, r counted) (int64, error) { return n, nil })
	_, err := b.Build()
	if err == nil {
		t.Fatal("built without names")
	}
	var all interface{ Unwrap() []error }
	if !errors.As(err, &all) || len(all.Unwrap()) < 2 {
		t.Errorf("want both named at once: %v", err)
	}
}
