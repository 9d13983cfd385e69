package sinktest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
)

// values writes every kind, and nulls, one by one and as a batch that is large enough to be copied.
func values(t *testing.T, s *suite) {
	columns := []sink.Column{
		{Name: "n", Kind: sink.Integer},
		{Name: "txt", Kind: sink.Text},
		{Name: "f", Kind: sink.Float},
		{Name: "d", Kind: sink.Decimal},
		{Name: "b", Kind: sink.Bool},
		{Name: "ts", Kind: sink.Timestamp},
		{Name: "raw", Kind: sink.Bytes},
		{Name: "j", Kind: sink.JSON},
	}
	const zone = "+05:30"
	at, err := time.Parse(time.RFC3339Nano, "2026-03-29T02:30:00.123456789"+zone)
	if err != nil {
		t.Fatal(err)
	}
	rows := []sink.Row{
		{Values: []any{int64(0), "grüße 𝄞 \U0001F980 'quoted' \"x\" \\ \n", 0.1, "12345678901234567890.12", true, at, []byte{0, 255, '\''}, `{"a":1}`}},
		{Values: []any{int64(1), nil, nil, nil, nil, nil, nil, nil}},
		{Values: []any{int64(2), "", -1.5e300, "-0.01", false, time.Unix(0, 0), []byte{}, `null`}},
		{Values: []any{int64(1 << 62), strings.Repeat("é", 60), 0.0, "0.00", true, at.AddDate(100, 0, 0), []byte("x"), `[]`}},
	}
	want := [][]string{
		{"0", "grüße 𝄞 \U0001F980 'quoted' \"x\" \\ \n", "0.1", "12345678901234567890.12", "true", "2026-03-28T21:00:00.123456Z", "00ff27", `{"a":1}`},
		{"1", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL"},
		{"2", "", "-1.5e+300", "-0.01", "false", "1970-01-01T00:00:00.000000Z", "", `null`},
		{"4611686018427387904", strings.Repeat("é", 60), "0", "0.00", "true", "2126-03-28T21:00:00.123456Z", "78", `[]`},
	}
	table := s.table(t, columns, nil)
	w := s.claim(t, s.open(t, Spec{Table: table}), partition())
	for i, r := range rows {
		write(t, w, sink.Batch{Rows: []sink.Row{r}, First: record.Offset(i), Next: record.Offset(i + 1)})
	}
	s.same(t, table, want)

	// Once more, many times in one batch.
	copied := s.table(t, columns, nil)
	w = s.claim(t, s.open(t, Spec{Table: copied}), partition())
	var b sink.Batch
	var all [][]string
	for i := range rows {
		for range 10 {
			b.Rows = append(b.Rows, rows[i])
			all = append(all, want[i])
		}
	}
	b.Next = record.Offset(len(b.Rows))
	write(t, w, b)
	s.same(t, copied, all)
}

func (s *suite) same(t *testing.T, table sink.Table, want [][]string) {
	t.Helper()
	got, err := s.look(t.Context(), table)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Fatalf("%d rows, want %d", len(got), len(want))
	}
	for i := range want {
		for c := range want[i] {
			g := got[i][c]
			if table.Columns[c].Kind == sink.JSON {
				g = strings.ReplaceAll(g, " ", "") // databases print JSON in their own way
			}
			if g != want[i][c] {
				t.Errorf("row %d, column %s: %q, want %q", i, table.Columns[c].Name, g, want[i][c])
			}
		}
	}
}

// largeBatch writes 20,000 rows at once while somebody reads: he sees all of a batch or nothing.
func largeBatch(t *testing.T, s *suite) {
	const rows, batches = 20_000, 3
	table := s.table(t, counted(), nil)
	w := s.claim(t, s.open(t, Spec{Table: table}), partition())
	done := make(chan error, 1)
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			seen, err := s.look(t.Context(), table)
			if err != nil || len(seen)%rows != 0 {
				done <- fmt.Errorf("a reader saw %d rows, %w", len(seen), err)
				return
			}
		}
	}()
	for i := range record.Offset(batches) {
		write(t, w, batch(i*rows, (i+1)*rows, "x"))
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	s.holds(t, table, batches*rows, always("x"))
}

// upsert: rows with a key replace each other, also within a batch, and are deleted.
func upsert(t *testing.T, s *suite) {
	table := s.table(t, counted(), []string{"n"})
	w := s.claim(t, s.open(t, Spec{Table: table}), partition())
	put := func(n int64, v any) sink.Row { return sink.Row{Values: []any{n, v}} }
	del := func(n int64) sink.Row { return sink.Row{Values: []any{n, nil}, Delete: true} }
	write(t, w, sink.Batch{Rows: []sink.Row{put(0, "a"), put(1, "b"), put(0, "c"), put(2, "d"), del(2), del(9)}, Next: 6})
	s.same(t, table, [][]string{{"0", "c"}, {"1", "b"}})
	write(t, w, sink.Batch{Rows: []sink.Row{del(0), put(1, nil), del(3), put(3, "e")}, First: 6, Next: 10})
	s.same(t, table, [][]string{{"1", "NULL"}, {"3", "e"}})
	write(t, w, sink.Batch{Rows: []sink.Row{del(1), put(1, "f"), del(3)}, First: 10, Next: 13})
	s.same(t, table, [][]string{{"1", "f"}})

	all := s.table(t, []sink.Column{{Name: "a", Kind: sink.Text}, {Name: "b", Kind: sink.Integer}}, []string{"a", "b"})
	w = s.claim(t, s.open(t, Spec{Table: all}), partition())
	row := func(a string, b int64) sink.Row { return sink.Row{Values: []any{a, b}} }
	write(t, w, sink.Batch{Rows: []sink.Row{row("x", 1), row("x", 1), row("x", 11), row("x1", 1)}, Next: 4})
	write(t, w, sink.Batch{Rows: []sink.Row{row("x", 1), {Values: []any{"x1", int64(1)}, Delete: true}}, First: 4, Next: 6})
	rows, err := s.look(t.Context(), all)
	if err != nil || len(rows) != 2 {
		t.Errorf("a table that is all key: %v, %v", rows, err)
	}
}

// progress: the target has the offset, also for positions without rows, and each partition its own.
func progress(t *testing.T, s *suite) {
	table := s.table(t, counted(), nil)
	target, p := s.open(t, Spec{Table: table}), partition()
	w := s.claim(t, target, p)
	if at, ok := w.Next(); ok {
		t.Errorf("a new partition stands at %d", at)
	}
	write(t, w, batch(0, 5, "x"))
	next(t, w, 5)
	write(t, w, sink.Batch{First: 5, Next: 9}) // markers
	next(t, w, 9)
	next(t, s.claim(t, s.open(t, Spec{Table: table}), p), 9)
	other := p
	other.Partition++
	if at, ok := s.claim(t, target, other).Next(); ok {
		t.Errorf("another partition stands at %d", at)
	}
	s.holds(t, table, 5, always("x"))
	if err := s.claim(t, target, p).Write(t.Context(), batch(3, 9, "again")); err == nil {
		t.Error("a batch that the target has was written again")
	}
	s.holds(t, table, 5, always("x"))
}

func topicMadeAnew(t *testing.T, s *suite) {
	target, p := s.open(t, Spec{Table: s.table(t, counted(), nil)}), partition()
	write(t, s.claim(t, target, p), batch(0, 5, "x"))
	p.TopicID = "another"
	_, err := target.Claim(t.Context(), p)
	var setup *sink.SetupError
	if !errors.As(err, &setup) || !strings.Contains(err.Error(), "made anew") || setup.Remedy == "" {
		t.Errorf("the progress of another topic: %v", err)
	}
}

// rowRefused: what a row holds is the row's fault, nothing of the batch remains, and the writer goes on.
func rowRefused(t *testing.T, s *suite) {
	columns := counted()
	table := s.table(t, columns, nil, "CHECK (v <> 'bad')")
	w := s.claim(t, s.open(t, Spec{Table: table}), partition())
	write(t, w, batch(0, 3, "x"))
	for _, bad := range []sink.Batch{
		batch(3, 4, "bad"),
		batch(3, 60, "bad"),
		{Rows: []sink.Row{{Values: []any{int64(3), 7}}}, First: 3, Next: 4},
		{Rows: []sink.Row{{Values: []any{int64(3)}}}, First: 3, Next: 4},
		{Rows: []sink.Row{{Values: []any{int64(3), "not \xff utf-8"}}}, First: 3, Next: 4},
		{Rows: []sink.Row{{Values: []any{int64(3), "x"}, Delete: true}}, First: 3, Next: 4},
	} {
		var row *sink.RowError
		if err := w.Write(t.Context(), bad); !errors.As(err, &row) {
			t.Errorf("%v: %v, want a RowError", bad.Rows[0], err)
		}
		next(t, w, 3)
	}
	write(t, w, batch(3, 6, "x"))
	s.holds(t, table, 6, always("x"))
}

// idempotent: a batch may come again, and an older one changes nothing that is newer.
func idempotent(t *testing.T, s *suite) {
	table := s.table(t, counted(), []string{"n"}, "streamd_version "+s.Type(sink.Integer))
	target, p := s.open(t, Spec{Table: table, Class: sink.Idempotent}), partition()
	w := s.claim(t, target, p)
	if _, ok := w.Next(); ok {
		t.Error("an idempotent target has an offset")
	}
	at := func(o record.Offset, v string) sink.Batch {
		return sink.Batch{Rows: []sink.Row{{Offset: o, Values: []any{int64(0), v}}}, First: o, Next: o + 1}
	}
	gone := at(12, "")
	gone.Rows[0].Delete = true
	for _, b := range []sink.Batch{at(10, "old"), at(11, "new"), at(10, "old"), at(11, "new")} {
		write(t, w, b)
	}
	s.same(t, table, [][]string{{"0", "new"}})
	write(t, w, gone)
	s.same(t, table, nil)
	write(t, w, at(13, "newest"))
	write(t, s.claim(t, target, p), gone) // an older delete
	s.same(t, table, [][]string{{"0", "newest"}})
	if _, err := s.Open(Spec{Table: s.table(t, counted(), nil), Class: sink.Idempotent}); err == nil {
		t.Error("an idempotent sink without a key was accepted")
	}
}

// narrow: a value that is too large for its column, or too exact, is the row's fault. It is neither cut nor tried again
// for ever; one or many, since many may be copied.
func narrow(t *testing.T, s *suite) {
	columns := []sink.Column{{Name: "n", Kind: sink.Integer}, {Name: "d", Kind: sink.Decimal}}
	table := s.table(t, columns[:1], nil, "d "+s.Type(sink.Decimal))
	if s.Narrow() != "" {
		s.n++
		table.Name = fmt.Sprintf("narrow%d", s.n)
		s.exec(t, "CREATE TABLE "+table.Name+" (n "+s.Narrow()+", d "+s.Type(sink.Decimal)+")")
	}
	table.Columns = columns
	w := s.claim(t, s.open(t, Spec{Table: table}), partition())
	many := func(count int, n int64, d string) sink.Batch {
		b := sink.Batch{Next: record.Offset(count)}
		for i := range count {
			b.Rows = append(b.Rows, sink.Row{Offset: record.Offset(i), Values: []any{n, d}})
		}
		return b
	}
	var row *sink.RowError
	if s.Narrow() != "" {
		for _, count := range []int{1, 60} {
			if err := w.Write(t.Context(), many(count, 1<<40, "1")); !errors.As(err, &row) {
				t.Errorf("%d numbers of 41 bits in a column of 16: %v, want a RowError", count, err)
			}
		}
	}
	if strings.Contains(s.Type(sink.Decimal), "2)") {
		if err := w.Write(t.Context(), many(1, 1, "12.345")); !errors.As(err, &row) {
			t.Errorf("12.345 in a column with two digits: %v, want a RowError", err)
		}
	}
	write(t, w, many(1, 7, "12.3400"))
	rows, err := s.look(t.Context(), table)
	if err != nil || len(rows) != 1 || rows[0][0] != "7" || !strings.HasPrefix(rows[0][1], "12.34") {
		t.Errorf("rows %v, %v", rows, err)
	}
}

// decimalKeys: 1.0 and 1.00 are one key for the database, and their changes keep their order.
func decimalKeys(t *testing.T, s *suite) {
	table := s.table(t, []sink.Column{{Name: "d", Kind: sink.Decimal}, {Name: "v", Kind: sink.Text}}, []string{"d"})
	w := s.claim(t, s.open(t, Spec{Table: table}), partition())
	put := func(d, v string) sink.Row { return sink.Row{Values: []any{d, v}} }
	gone := sink.Row{Values: []any{"1.00", nil}, Delete: true}
	write(t, w, sink.Batch{Rows: []sink.Row{put("1.0", "a"), gone}, Next: 2})
	s.same(t, table, nil)
	var row *sink.RowError
	err := w.Write(t.Context(), sink.Batch{Rows: []sink.Row{put("1.0", "a"), put("1.00", "b")}, First: 2, Next: 4})
	switch {
	case errors.As(err, &row) && row.Index < 0: // halved by whoever writes
		write(t, w, sink.Batch{Rows: []sink.Row{put("1.0", "a")}, First: 2, Next: 3})
		write(t, w, sink.Batch{Rows: []sink.Row{put("1.00", "b")}, First: 3, Next: 4})
	case err != nil:
		t.Fatalf("two spellings of one key: %v, want none or a RowError that leaves the row open", err)
	}
	rows, err := s.look(t.Context(), table)
	if err != nil || len(rows) != 1 || rows[0][1] != "b" {
		t.Errorf("rows %v, %v", rows, err)
	}
}
