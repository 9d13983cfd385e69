package operators

import (
	"fmt"
	"strings"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// Line is a record of Folded, Kept, Chained, Rowed, Rated, Looked and Sifted. Its key has the operator's name behind the account's, so that the results
// of each are compared in their order.
type Line struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

func line(key, operator string, value any) Line {
	return Line{Key: key + " " + operator, Value: fmt.Sprint(value)}
}

// folds are the aggregations, the ways of keeping one record, the steps without state and the joins with tables. What each makes of a
// key depends on the purchases of the key alone, in their order: the rows of the table are there before the first of them.
func folds(b *topology.Builder) {
	id := func(r event) (string, error) { return r.Value.ID, nil }
	cents := func(r event) (int64, error) { return r.Value.After, nil }
	all := topology.From(b, Purchases, serde.String(), serde.JSON[Event](), topology.WithIdleness(-1))
	s := topology.Filter(all, func(r event) (bool, error) { return r.Value.ID != "end", nil })
	counts := topology.Count(s, "count")
	fold(counts, Folded, "count")
	fold(topology.Sum(s, "sum", cents), Folded, "sum")
	fold(topology.Min(s, "min", serde.Int64(), cents), Folded, "min")
	fold(topology.Max(s, "max", serde.Int64(), cents), Folded, "max")
	fold(topology.Avg(s, "avg", func(r event) (float64, error) { return float64(r.Value.After), nil }), Folded, "avg")
	fold(topology.First(s, "first", serde.String(), id), Folded, "first")
	fold(topology.Last(s, "last", serde.String(), id), Folded, "last")
	fold(topology.CountDistinct(s, "distinct", serde.Int64(), func(r event) (int64, error) { return r.Value.After % distinct, nil }), Folded, "distinct")
	longest := topology.Reduce(s, "longest", func(a, b Event) (Event, error) {
		if b.After > a.After {
			return b, nil
		}
		return a, nil
	})
	events(longest, Folded, "longest")

	events(topology.KeepFirst(s, "kept-first"), Kept, "first")
	events(topology.KeepLast(s, "kept-last"), Kept, "last")
	events(topology.KeepBySequence(s, "kept-higher", cents), Kept, "higher")

	parts := topology.Branch(s, "dear", func(r event) (bool, error) { return r.Value.After >= dear, nil }, func(event) (bool, error) { return true, nil })
	twice := topology.FlatMap(parts[0], func(r event, emit topology.Emit[string, Event]) error {
		for _, part := range []string{"a", "b"} {
			v := r.Value
			v.ID += part
			emit(record.Record[string, Event]{Key: r.Key, Value: v})
		}
		return nil
	}, topology.Name("in-two"))
	cheap := topology.MapValues(parts[1], func(r event) (Event, error) { return Event{ID: "cheap " + r.Value.ID}, nil }, topology.Name("cheap"))
	events(topology.Merge("all-again", twice, cheap), Chained, "")

	rows := topology.Table(b, Rows, serde.String(), serde.JSON[Event](), topology.WithIdleness(-1))
	pair := func(_ string, p, row Event) (string, error) { return p.ID + " " + row.ID, nil }
	fold(topology.JoinTable(s, rows, "with-row", pair), Rowed, "join")
	fold(topology.LeftJoinTable(s, rows, "row-or-not", func(_ string, p Event, row *Event) (string, error) {
		if row == nil {
			return p.ID + " alone", nil
		}
		return p.ID + " " + row.ID, nil
	}), Rowed, "left")
	counted := topology.ToTable(counts, "counts-table", serde.Int64())
	beside := func(n *int64, row *Event) (string, error) {
		words := [2]string{"none", "none"}
		if n != nil {
			words[0] = fmt.Sprint(*n)
		}
		if row != nil {
			words[1] = row.ID
		}
		return words[0] + " " + words[1], nil
	}
	table(topology.JoinTables(counted, rows, "counted-rows", func(_ string, n int64, row Event) (string, error) { return beside(&n, &row) }), "tables")
	table(topology.LeftJoinTables(counted, rows, "counted-or-rows", func(_ string, n int64, row *Event) (string, error) { return beside(&n, row) }), "left-tables")
	table(topology.OuterJoinTables(counted, rows, "all-rows", func(_ string, n *int64, row *Event) (string, error) { return beside(n, row) }), "outer-tables")
	table(topology.FilterTable(counted, func(_ string, n int64) (bool, error) { return n%2 == 1, nil }, topology.Name("odd")), "filtered")
	table(topology.MapTableValues(counted, func(_ string, n int64) (int64, error) { return 2 * n, nil }, topology.Name("doubled")), "mapped")
	rated(b, s)
}

const (
	distinct = 10     // values of what CountDistinct counts
	dear     = 10_000 // from here on a purchase is in two parts
)

// fold writes results as lines.
func fold[V any](s *topology.Stream[string, V], topic, operator string) {
	name := topic + "-" + operator + "-lines"
	lines := topology.MapValues(s, func(r record.Record[string, V]) (Line, error) { return line(r.Key, operator, r.Value), nil }, topology.Name(name))
	topology.To(lines, topic, serde.String(), serde.JSON[Line](), topology.Name(name+"-out"))
}

// table writes the changes of a table, but for the rows that end the input.
func table[V any](t *topology.KTable[string, V], operator string) {
	changes := topology.Filter(topology.ToStream(t, topology.Name(operator+"-changes")),
		func(r record.Record[string, *V]) (bool, error) { return !strings.HasPrefix(r.Key, "end-"), nil }, topology.Name(operator+"-of-keys"))
	fold(topology.MapValues(changes, func(r record.Record[string, *V]) (string, error) {
		if r.Value == nil {
			return "gone", nil
		}
		return fmt.Sprint(*r.Value), nil
	}, topology.Name(operator+"-values")), Rowed, operator)
}

// events writes the IDs of events.
func events(s *topology.Stream[string, Event], topic, operator string) {
	fold(topology.MapValues(s, func(r event) (string, error) { return r.Value.ID, nil }, topology.Name(topic+"-"+operator+"-ids")), topic, operator)
}

// Prelude are the rows of the tables, two versions of each: there before the application is, and committed by it before it gets anything
// else. One key in five has none.
func Prelude() (out []Input) {
	for version := range 2 {
		for rate := range rates {
			out = append(out, rateRow(rate, int64(version), Begin().Add(-time.Hour)))
		}
		for key := range keys {
			if key%5 == 0 {
				continue
			}
			out = append(out, Input{
				Topic: Rows, Partition: int32(key % Partitions), Key: fmt.Sprintf("key-%d", key), At: Begin().Add(-time.Hour),
				Value: Event{ID: fmt.Sprintf("row-%d-%d", key, version)},
			})
		}
	}
	return out
}

// folded adds what must come of the purchases.
func folded(out map[string]map[string][]string, purchases, rows map[string][]Input) {
	for key, all := range rows { // before all purchases
		for _, r := range all {
			l := line(key, "outer-tables", "none "+r.Value.ID)
			out[Rowed][l.Key] = append(out[Rowed][l.Key], lines([]Line{l})...)
		}
	}
	for key, all := range purchases {
		var f facts
		row := ""
		if r := rows[key]; len(r) > 0 {
			row = r[len(r)-1].Value.ID
		}
		add := func(topic, operator string, value any) {
			l := line(key, operator, value)
			out[topic][l.Key] = append(out[topic][l.Key], lines([]Line{l})...)
		}
		for _, p := range all {
			f.add(p)
			for operator, value := range map[string]any{
				"count": f.n, "sum": f.sum, "min": f.least, "max": f.most.Value.After, "avg": float64(f.sum) / float64(f.n), "first": f.first.Value.ID,
				"last": f.last.Value.ID, "distinct": len(f.distinct), "longest": f.most.Value.ID,
			} {
				add(Folded, operator, value)
			}
			if f.n == 1 {
				add(Kept, "first", p.Value.ID)
			}
			if f.last.Value.ID == p.Value.ID {
				add(Kept, "last", p.Value.ID)
			}
			if f.most.Value.ID == p.Value.ID {
				add(Kept, "higher", p.Value.ID)
			}
			if p.Value.After >= dear {
				add(Chained, "", p.Value.ID+"a")
				add(Chained, "", p.Value.ID+"b")
			} else {
				add(Chained, "", "cheap "+p.Value.ID)
			}
			add(Rated, "rate", p.Value.ID+" "+rateOf(p.Value))
			odd := "gone"
			if f.n%2 == 1 {
				odd = fmt.Sprint(f.n)
			}
			add(Rowed, "filtered", odd)
			add(Rowed, "mapped", 2*f.n)
			if row == "" {
				add(Rowed, "left", p.Value.ID+" alone")
				add(Rowed, "left-tables", fmt.Sprint(f.n, " none"))
				add(Rowed, "outer-tables", fmt.Sprint(f.n, " none"))
				continue
			}
			add(Rowed, "join", p.Value.ID+" "+row)
			add(Rowed, "left", p.Value.ID+" "+row)
			for _, operator := range []string{"tables", "left-tables", "outer-tables"} {
				add(Rowed, operator, fmt.Sprint(f.n, " ", row))
			}
		}
	}
}

// facts are what is known of a key.
type facts struct {
	n, sum, least int64
	most          Input // the first one with the most cents
	first, last   Input // by event time: the first one with the lowest, the last one with the highest
	distinct      map[int64]bool
}

func (f *facts) add(p Input) {
	cents := p.Value.After
	if f.n == 0 {
		f.least, f.most, f.first, f.distinct = cents, p, p, map[int64]bool{}
	}
	f.n, f.sum, f.least = f.n+1, f.sum+cents, min(f.least, cents)
	if cents > f.most.Value.After {
		f.most = p
	}
	if p.At.Before(f.first.At) {
		f.first = p
	}
	if !p.At.Before(f.last.At) {
		f.last = p
	}
	f.distinct[cents%distinct] = true
}
