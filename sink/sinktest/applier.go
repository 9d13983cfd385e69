package sinktest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
)

// ApplierHarness is a system without transactions, as seen by the suite.
type ApplierHarness struct {
	// Open opens an applier of rows of one column, "n" of kind sink.Integer, with connections of its own as another process would have.
	Open func() (sink.Applier, error)
	// Effects says how often each number has had an effect.
	Effects func() (map[int64]int, error)
}

// RunApplier puts an Applier through what a log does to it: rows that come again, in other groups, late, from two owners at once.
func RunApplier(t *testing.T, h ApplierHarness) {
	open := func() sink.Applier {
		a, err := h.Open()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
		if err := a.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		return a
	}
	// A number says which task and which row of its log it is.
	rows := func(task, from, to int) (all []sink.Row) {
		for i := from; i < to; i++ {
			all = append(all, sink.Row{Offset: record.Offset(i), ID: record.StringID(fmt.Sprint(i)), Values: []any{int64(task*1000 + i)}})
		}
		return all
	}
	name := func(task int) string { return fmt.Sprintf("app/sink/topic/%d", task) }
	owner, other := open(), open()
	for _, step := range []struct {
		by             sink.Applier
		task, from, to int
	}{
		{owner, 1, 0, 10},
		{owner, 1, 0, 10},  // the whole again
		{owner, 1, 5, 25},  // grouped anew
		{other, 1, 3, 8},   // late, from who was shut out
		{other, 2, 0, 10},  // the same numbers in another log are other rows
		{owner, 2, 10, 11}, // alone
		{owner, 2, 0, 11},
	} {
		if err := step.by.Apply(t.Context(), name(step.task), rows(step.task, step.from, step.to)); err != nil {
			t.Fatalf("task %d, rows %d to %d: %v", step.task, step.from, step.to, err)
		}
	}
	var both sync.WaitGroup
	for _, a := range []sink.Applier{owner, other} {
		both.Go(func() {
			if err := a.Apply(t.Context(), name(3), rows(3, 0, 50)); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	effects, err := h.Effects()
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for task, count := range map[int]int{1: 25, 2: 11, 3: 50} {
		for i := range count {
			want++
			if n := effects[int64(task*1000+i)]; n != 1 {
				t.Errorf("task %d, row %d: %d effects", task, i, n)
			}
		}
	}
	if len(effects) != want {
		t.Errorf("%d rows with an effect, want %d", len(effects), want)
	}
}
