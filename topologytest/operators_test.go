package topologytest_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/topologytest"
	"github.com/streamd/streamd/window"
)

type (
	numbers = *topology.Stream[string, int64]
	results = *topology.Stream[string, string]
)

// fed is a record of the input of operatorRows.
type fed struct {
	key  string
	n    int64
	at   time.Time
	late bool // for any window
}

const (
	fedRecords = 24
	fedPace    = 5 * time.Second
	fedWindow  = 20 * time.Second
	fedGrace   = 10 * time.Second
	fedLate    = 3 * time.Minute // what is late is so by that much
)

// feedable is what the operators get: four keys, times that go back by less than the grace, and some that are too late for any window.
func feedable(base time.Time) (all []fed) {
	for i := range fedRecords {
		f := fed{key: string(rune('a' + i%4)), n: int64(i*7%11 - 3), at: base.Add(time.Duration(i)*fedPace - time.Duration(i%3)*2*time.Second)}
		if i%10 == 9 {
			f.at, f.late = f.at.Add(-fedLate), true
		}
		all = append(all, f)
	}
	return all
}

func fedBase(d *topologytest.Driver) time.Time {
	return d.Now().Add(-10 * time.Minute).Truncate(time.Minute)
}

// feed sends the input, and the rows that some of the operators read before it. Then time goes on, until all that is due was done.
func (c operatorRow) feed(d *topologytest.Driver) {
	base := fedBase(d)
	if c.readsRows() {
		rows := topologytest.Input(d, "rows", serde.String(), serde.Int64())
		for i, key := range []string{"a", "b"} { // the others have no row, and no match
			rows.Send(key, rowFor(key), topologytest.At(base.Add(-time.Second)), topologytest.ID(fmt.Sprint("row", i)))
		}
	}
	in := topologytest.Input(d, "in", serde.String(), serde.Int64())
	for i, f := range feedable(base) {
		in.Send(f.key, f.n, topologytest.At(f.at), topologytest.ID(fmt.Sprint(i)))
	}
	d.Run()
	d.Advance(2 * time.Minute)
}

// rowReaders are the operators that read the second topic.
var rowReaders = []string{"JoinTable", "LeftJoinTable", "JoinTables", "LeftJoinTables", "OuterJoinTables", "Join", "LeftJoin", "OuterJoin"}

// operatorRow is an operator, with what comes out of it at last for each key, by its definition.
type operatorRow struct {
	name  string
	build func(b *topology.Builder, in numbers) results
	want  func(all []fed) map[string]string
}

// said makes the results of any stream.
func said[K, V any](s *topology.Stream[K, V]) results {
	return topology.Map(s, func(r record.Record[K, V]) (string, string, error) {
		return fmt.Sprint(r.Key), fmt.Sprint(r.Value), nil
	}, topology.Name("said"))
}

// saidTable makes results of the changes of a table.
func saidTable(t *topology.KTable[string, int64]) results {
	return topology.Map(topology.ToStream(t), func(r record.Record[string, *int64]) (string, string, error) {
		if r.Value == nil {
			return r.Key, "deleted", nil
		}
		return r.Key, fmt.Sprint(*r.Value), nil
	}, topology.Name("said"))
}

// byKey folds the records of each key.
func byKey(fold func(of []fed) string) func([]fed) map[string]string {
	return func(all []fed) map[string]string {
		groups := map[string][]fed{}
		for _, f := range all {
			groups[f.key] = append(groups[f.key], f)
		}
		return folded(groups, fold)
	}
}

func folded(groups map[string][]fed, fold func(of []fed) string) map[string]string {
	out := map[string]string{}
	for k, of := range groups {
		if v := fold(of); v != "" {
			out[k] = v
		}
	}
	return out
}

// each is one result for each record: the last one of a key.
func each(of func(f fed) string) func([]fed) map[string]string {
	return byKey(func(all []fed) (last string) {
		for _, f := range all {
			if s := of(f); s != "" {
				last = s
			}
		}
		return last
	})
}

func number(n int64) string { return fmt.Sprint(n) }

func ns(of []fed) (all []int64) {
	for _, f := range of {
		all = append(all, f.n)
	}
	return all
}

func sum(of []fed) (n int64) {
	for _, f := range of {
		n += f.n
	}
	return n
}

// windowed folds the records of each key and window. Late ones are not counted.
func windowed(of func(f fed) (start time.Time)) func([]fed) map[string]string {
	return func(all []fed) map[string]string {
		groups := map[string][]fed{}
		for _, f := range all {
			if !f.late {
				k := windowName(f.key, of(f))
				groups[k] = append(groups[k], f)
			}
		}
		return folded(groups, func(of []fed) string { return number(int64(len(of))) })
	}
}

func windowName(key string, start time.Time) string { return fmt.Sprintf("%s@%d", key, start.Unix()) }

func counted(s numbers, w window.Windows) results {
	n := topology.Count(topology.WindowedBy(s, w), "n", topology.EmitOnClose())
	return topology.Map(n, func(r record.Record[window.Key[string], int64]) (string, string, error) {
		return windowName(r.Key.Key, r.Key.Start), number(r.Value), nil
	}, topology.Name("said"))
}

// rowFor is the row that feed writes.
func rowFor(key string) int64 { return map[string]int64{"a": 100, "b": 200}[key] }

func statelessRows() []operatorRow {
	even := func(r pair) (bool, error) { return r.Value%2 == 0, nil }
	ifEven := func(f fed) string {
		if f.n%2 != 0 {
			return ""
		}
		return number(f.n)
	}
	return []operatorRow{
		{"Map", func(_ *topology.Builder, in numbers) results {
			return topology.Map(in, func(r pair) (string, string, error) { return r.Key, number(r.Value + 1), nil })
		}, each(func(f fed) string { return number(f.n + 1) })},
		{"MapValues", func(_ *topology.Builder, in numbers) results {
			return topology.MapValues(in, func(r pair) (string, error) { return number(2 * r.Value), nil })
		}, each(func(f fed) string { return number(2 * f.n) })},
		{"Filter", func(_ *topology.Builder, in numbers) results { return said(topology.Filter(in, even)) }, each(ifEven)},
		{"FlatMap", func(_ *topology.Builder, in numbers) results {
			return said(topology.FlatMap(in, func(r pair, emit topology.Emit[string, int64]) error {
				for i := range int64(2) {
					emit(record.Record[string, int64]{Key: r.Key, Value: r.Value + i})
				}
				return nil
			}))
		}, each(func(f fed) string { return number(f.n + 1) })},
		{"Branch", func(_ *topology.Builder, in numbers) results { return said(topology.Branch(in, "branch", even)[0]) }, each(ifEven)},
		{"Merge", func(_ *topology.Builder, in numbers) results {
			return said(topology.Merge("merged", topology.Filter(in, even), topology.Filter(in, func(r pair) (bool, error) { return r.Value%2 != 0, nil }, topology.Name("odd"))))
		}, each(func(f fed) string { return number(f.n) })},
		{"KeyBy", func(_ *topology.Builder, in numbers) results {
			by := topology.KeyBy(in, "by", serde.String(), func(r pair) (string, error) { return r.Key + "!", nil })
			return said(topology.Count(by, "n"))
		}, func(all []fed) map[string]string {
			return map[string]string{"a!": "6", "b!": "6", "c!": "6", "d!": "6"}
		}},
		{"DedupSplit", func(_ *topology.Builder, in numbers) results {
			again := topology.KeyBy(in, "by", serde.String(), func(r pair) (string, error) { return r.Key, nil })
			return said(topology.DedupSplit(again, "first", topology.Retention(time.Hour), topology.ID(func(r pair) record.ID { return record.StringID(r.Key) })).Unique)
		}, byKey(func(of []fed) string { return number(of[0].n) })},
	}
}

func aggregateRows() []operatorRow {
	n := func(r pair) (int64, error) { return r.Value, nil }
	ints := serde.Int64()
	row := func(name string, of func(in numbers) results, fold func(of []fed) string) operatorRow {
		return operatorRow{name, func(_ *topology.Builder, in numbers) results { return of(in) }, byKey(fold)}
	}
	last := func(of []fed) string {
		return number(slices.MaxFunc(slices.Clone(of), func(a, b fed) int { return a.at.Compare(b.at) }).n)
	}
	first := func(of []fed) string {
		return number(slices.MinFunc(slices.Clone(of), func(a, b fed) int { return a.at.Compare(b.at) }).n)
	}
	total := func(of []fed) string { return number(sum(of)) }
	return []operatorRow{
		row("Aggregate", func(in numbers) results {
			return said(topology.Aggregate(in, "n", ints, func(a int64, r pair) (int64, error) { return a + r.Value, nil }))
		}, total),
		row("Reduce", func(in numbers) results {
			return said(topology.Reduce(in, "n", func(a, b int64) (int64, error) { return a + b, nil }))
		}, total),
		row("Count", func(in numbers) results { return said(topology.Count(in, "n")) }, func(of []fed) string { return number(int64(len(of))) }),
		row("Sum", func(in numbers) results { return said(topology.Sum(in, "n", n)) }, total),
		row("Min", func(in numbers) results { return said(topology.Min(in, "n", ints, n)) }, func(of []fed) string { return number(slices.Min(ns(of))) }),
		row("Max", func(in numbers) results { return said(topology.Max(in, "n", ints, n)) }, func(of []fed) string { return number(slices.Max(ns(of))) }),
		row("Avg", func(in numbers) results {
			return said(topology.Avg(in, "n", func(r pair) (float64, error) { return float64(r.Value), nil }))
		}, func(of []fed) string { return fmt.Sprint(float64(sum(of)) / float64(len(of))) }),
		row("First", func(in numbers) results { return said(topology.First(in, "n", ints, n)) }, first),
		row("Last", func(in numbers) results { return said(topology.Last(in, "n", ints, n)) }, last),
		row("CountDistinct", func(in numbers) results { return said(topology.CountDistinct(in, "n", ints, n)) }, func(of []fed) string {
			return number(int64(len(slices.Compact(slices.Sorted(slices.Values(ns(of)))))))
		}),
		row("KeepFirst", func(in numbers) results { return said(topology.KeepFirst(in, "n")) }, func(of []fed) string { return number(of[0].n) }),
		row("KeepLast", func(in numbers) results { return said(topology.KeepLast(in, "n")) }, last),
		row("KeepBySequence", func(in numbers) results { return said(topology.KeepBySequence(in, "n", n)) }, func(of []fed) string { return number(slices.Max(ns(of))) }),
		{
			"WindowedBy", func(_ *topology.Builder, in numbers) results {
				return counted(in, window.Tumbling(fedWindow).Grace(fedGrace))
			},
			windowed(func(f fed) time.Time { return f.at.Truncate(fedWindow) }),
		},
	}
}

func stateRows() []operatorRow {
	seen := topology.KeyValue("seen", serde.String(), serde.Int64())
	timers := topology.Timers("timers", serde.String())
	plus := func(_ string, a, b int64) (int64, error) { return a + b, nil }
	plusOf := func(_ string, a int64, b *int64) (int64, error) {
		if b == nil {
			return -a, nil
		}
		return a + *b, nil
	}
	of := func(a *int64) int64 {
		if a == nil {
			return 0
		}
		return *a
	}
	plusBoth := func(_ string, a, b *int64) (int64, error) { return of(a) + of(b), nil }
	lastOf := func(with func(key string, n int64) string) func([]fed) map[string]string {
		return each(func(f fed) string { return with(f.key, f.n) })
	}
	inner := lastOf(func(key string, n int64) string {
		if rowFor(key) == 0 {
			return ""
		}
		return number(n + rowFor(key))
	})
	left := lastOf(func(key string, n int64) string {
		if rowFor(key) == 0 {
			return number(-n)
		}
		return number(n + rowFor(key))
	})
	outer := lastOf(func(key string, n int64) string { return number(n + rowFor(key)) })
	others := func(b *topology.Builder) numbers {
		return topology.Dedup(topology.From(b, "rows", serde.String(), serde.Int64()), "unique-rows", topology.Retention(time.Hour))
	}
	rows := func(b *topology.Builder) *topology.KTable[string, int64] {
		return topology.ToTable(others(b), "row-table", serde.Int64())
	}
	near := topology.JoinWithin(time.Minute).Grace(5 * time.Minute)
	return []operatorRow{
		{"Process", func(_ *topology.Builder, in numbers) results {
			return topology.Process(in, "step", func(ctx topology.Context, r pair, emit topology.Emit[string, string]) error {
				n, _, err := seen.Get(ctx, r.Key)
				if err != nil {
					return err
				}
				emit(say(r.Key, n+r.Value))
				return seen.Put(ctx, r.Key, n+r.Value)
			}, topology.WithStore(seen))
		}, byKey(func(of []fed) string { return number(sum(of)) })},
		{"Timers", func(_ *topology.Builder, in numbers) results {
			return topology.Process(in, "step", func(ctx topology.Context, r pair, _ topology.Emit[string, string]) error {
				return timers.Set(ctx, r.Key, r.Timestamp.Add(time.Minute))
			}, topology.OnTimer(timers, func(_ topology.Context, x topology.Timer[string], emit topology.Emit[string, string]) error {
				emit(say(x.Key, x.At.Unix()))
				return nil
			}))
		}, nil},
		{"Punctuate", func(_ *topology.Builder, in numbers) results {
			return topology.Process(in, "step", func(ctx topology.Context, r pair, _ topology.Emit[string, string]) error {
				return seen.Put(ctx, "last", r.Value)
			}, topology.WithStore(seen), topology.Punctuate(time.Minute, func(ctx topology.Context, _ time.Time, emit topology.Emit[string, string]) error {
				n, _, err := seen.Get(ctx, "last")
				emit(say("last", n))
				return err
			}))
		}, nil},
		{"Effect", func(_ *topology.Builder, in numbers) results {
			return topology.Effect(in, "call", serde.Int64(), serde.String(), func(_ context.Context, c topology.Call[string, int64]) (string, error) {
				return number(c.Request * 2), nil
			})
		}, lastOf(func(_ string, n int64) string { return number(2 * n) })},
		{
			"ToTable", func(_ *topology.Builder, in numbers) results {
				return saidTable(topology.ToTable(in, "table", serde.Int64()))
			},
			lastOf(func(_ string, n int64) string { return number(n) }),
		},
		{"FilterTable", func(_ *topology.Builder, in numbers) results {
			return saidTable(topology.FilterTable(topology.ToTable(in, "table", serde.Int64()), func(_ string, n int64) (bool, error) { return n > 0, nil }))
		}, nil},
		{"MapTableValues", func(_ *topology.Builder, in numbers) results {
			return saidTable(topology.MapTableValues(topology.ToTable(in, "table", serde.Int64()), func(_ string, n int64) (int64, error) { return n + 1, nil }))
		}, lastOf(func(_ string, n int64) string { return number(n + 1) })},
		{"JoinTable", func(b *topology.Builder, in numbers) results {
			return said(topology.JoinTable(in, rows(b), "joined", plus))
		}, nil},
		{"LeftJoinTable", func(b *topology.Builder, in numbers) results {
			return said(topology.LeftJoinTable(in, rows(b), "joined", plusOf))
		}, nil},
		{"JoinTables", func(b *topology.Builder, in numbers) results {
			return saidTable(topology.JoinTables(topology.ToTable(in, "table", serde.Int64()), rows(b), "joined", plus))
		}, inner},
		{"LeftJoinTables", func(b *topology.Builder, in numbers) results {
			return saidTable(topology.LeftJoinTables(topology.ToTable(in, "table", serde.Int64()), rows(b), "joined", plusOf))
		}, left},
		{"OuterJoinTables", func(b *topology.Builder, in numbers) results {
			return saidTable(topology.OuterJoinTables(topology.ToTable(in, "table", serde.Int64()), rows(b), "joined", plusBoth))
		}, outer},
		{"Join", func(b *topology.Builder, in numbers) results {
			return said(topology.Join(in, others(b), "joined", near, plus))
		}, nil},
		{"LeftJoin", func(b *topology.Builder, in numbers) results {
			return said(topology.LeftJoin(in, others(b), "joined", near, plusOf))
		}, nil},
		{"OuterJoin", func(b *topology.Builder, in numbers) results {
			return said(topology.OuterJoin(in, others(b), "joined", near, plusBoth))
		}, nil},
	}
}

// TestEveryOperatorUnderFaults runs each operator under drawn batch sizes, commit points, copies, crashes, lost disks, lost answers and
// moving tasks: what is committed does not depend on them. And what a run comes to is what the operator says of itself.
func TestEveryOperatorUnderFaults(t *testing.T) {
	for _, c := range slices.Concat(statelessRows(), aggregateRows(), stateRows()) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			build := func() (*topology.Topology, error) {
				b := topology.New("app")
				in := topology.Dedup(topology.From(b, "in", serde.String(), serde.Int64()), "unique", topology.Retention(time.Hour), topology.OnTooLate(topology.Forward))
				topology.To(c.build(b, in), "out", serde.String(), serde.String(), topology.Name("end"))
				return b.Build()
			}
			topologytest.Fuzz(t, build, c.feed, topologytest.Duplicates(0.3), topologytest.Runs(2))
			if c.want == nil {
				return
			}
			topo, err := build()
			d := topologytest.New(t, must(t, topo, err), topologytest.Rebuild(build), topologytest.Duplicates(0.3))
			all := feedable(fedBase(d))
			c.feed(d)
			got := topologytest.Table(topologytest.Output(d, "out", serde.String(), serde.String()))
			if want := c.want(all); !maps.Equal(got, want) {
				for _, k := range slices.Sorted(maps.Keys(want)) {
					if got[k] != want[k] {
						t.Errorf("%s ends with %s, want %s", k, cmp.Or(got[k], "nothing"), want[k])
					}
				}
				t.Errorf("%d keys, want %d", len(got), len(want))
			}
		})
	}
}

// readsRows says whether the operator reads the second topic.
func (c operatorRow) readsRows() bool { return slices.Contains(rowReaders, c.name) }
