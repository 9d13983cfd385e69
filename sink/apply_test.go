package sink_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
)

// scripted is an applier that notes what it gets, and answers as it is told.
type scripted struct {
	answers []error
	got     []string
}

func (s *scripted) Check(context.Context) error { return nil }
func (s *scripted) Close() error                { return nil }

func (s *scripted) Apply(_ context.Context, task string, rows []sink.Row) error {
	text := task
	for _, r := range rows {
		text += fmt.Sprintf(" %d", r.Offset)
	}
	s.got = append(s.got, text)
	err := s.answers[0]
	s.answers = s.answers[1:]
	return err
}

// What an Apply says decides on what comes again: to this writer, and to the next one of the same process.
func TestAppliedRowsDoNotComeAgain(t *testing.T) {
	away := errors.New("away")
	a := &scripted{answers: []error{
		&sink.PartialError{Applied: 2, Err: away},
		away,
		&sink.RowError{Index: 1, Err: errors.New("bad")},
		nil,
		nil,
		&sink.PartialError{Applied: 9, Err: away}, // more than there were says nothing
		nil,
	}}
	target, err := sink.NewTarget(a, sink.Idempotent, sink.Table{Name: "t", Columns: []sink.Column{{Name: "n", Kind: sink.Integer}}})
	if err != nil {
		t.Fatal(err)
	}
	claim := func(partition record.Partition) sink.Writer {
		t.Helper()
		w, err := target.Claim(t.Context(), sink.Partition{Sink: "app/out", TopicPartition: record.TopicPartition{Topic: "t", Partition: partition}, TopicID: "id"})
		if err != nil {
			t.Fatal(err)
		}
		if _, known := w.Next(); known {
			t.Error("a target without transactions keeps no offset")
		}
		return w
	}
	batch := func(offsets ...record.Offset) (b sink.Batch) {
		for _, o := range offsets {
			b.Rows = append(b.Rows, sink.Row{Offset: o, Values: []any{int64(o)}})
		}
		return b
	}
	w := claim(0)
	if err := w.Write(t.Context(), batch(0, 2, 4, 6, 8)); !errors.Is(err, away) {
		t.Error(err)
	}
	if err := w.Write(t.Context(), batch(0, 2, 4, 6, 8)); !errors.Is(err, away) {
		t.Error(err)
	}
	w = claim(0)
	var refused *sink.RowError
	if err := w.Write(t.Context(), batch(0, 2, 4, 6, 8)); !errors.As(err, &refused) || refused.Index != 3 {
		t.Errorf("%v, want row 3 of the batch", err)
	}
	for _, b := range []sink.Batch{batch(0, 2, 4, 8), batch(0, 2, 4, 8)} {
		if err := w.Write(t.Context(), b); err != nil {
			t.Error(err)
		}
	}
	other := claim(1)
	if err := other.Write(t.Context(), batch(0)); err != nil {
		t.Error(err)
	}
	for range 2 {
		err = w.Write(t.Context(), batch(10))
	}
	if err != nil {
		t.Error(err)
	}
	want := []string{
		"app/out/id/0 0 2 4 6 8", "app/out/id/0 4 6 8", "app/out/id/0 4 6 8", "app/out/id/0 8", "app/out/id/1 0", "app/out/id/0 10", "app/out/id/0 10",
	}
	if !slices.Equal(a.got, want) {
		t.Errorf("applied %q\nwant    %q", a.got, want)
	}
}

// Whoever sets the group's offset back wants rows again: what this process remembers does not keep them from him.
func TestRowsComeAgainWhenTheOffsetIsSetBack(t *testing.T) {
	a := &scripted{answers: make([]error, 4)}
	target, err := sink.NewTarget(a, sink.Plain, sink.Table{Name: "t", Columns: []sink.Column{{Name: "n", Kind: sink.Integer}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, first := range []record.Offset{0, 6, 2, 2} { // the last one is a claim after a failure: nothing was set back
		w, err := target.Claim(t.Context(), sink.Partition{Sink: "app/out", TopicID: "id"})
		if err != nil {
			t.Fatal(err)
		}
		b := sink.Batch{First: first, Next: first + 6}
		for o := first; o < b.Next; o += 2 {
			b.Rows = append(b.Rows, sink.Row{Offset: o, Values: []any{int64(o)}})
		}
		if err := w.Write(t.Context(), b); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"app/out/id/0 0 2 4", "app/out/id/0 6 8 10", "app/out/id/0 2 4 6"}; !slices.Equal(a.got, want) {
		t.Errorf("applied %q\nwant    %q", a.got, want)
	}
}

// A row that does not fit the table is told before the system sees any.
func TestApplierGetsRowsOfItsTable(t *testing.T) {
	a := &scripted{}
	target, err := sink.NewTarget(a, sink.Plain, sink.Table{Name: "t", Columns: []sink.Column{{Name: "n", Kind: sink.Integer}}})
	if err != nil {
		t.Fatal(err)
	}
	w, err := target.Claim(t.Context(), sink.Partition{Sink: "app/out"})
	if err != nil {
		t.Fatal(err)
	}
	var refused *sink.RowError
	if err := w.Write(t.Context(), sink.Batch{Rows: []sink.Row{{Values: []any{int64(1)}}, {Values: []any{"x"}}}}); !errors.As(err, &refused) || refused.Index != 1 || len(a.got) != 0 {
		t.Errorf("%v; applied %q", err, a.got)
	}
	if _, err := sink.NewTarget(a, sink.Ledger, sink.Table{Name: "t", Columns: []sink.Column{{Name: "n", Kind: sink.Integer}}}); err == nil {
		t.Error("a ledger without transactions")
	}
}
