package topology_test

import (
	"fmt"
	"strconv"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// In these examples the record "a=5@12" has the time of 12 seconds after 1970.

func ExampleWindowedBy() {
	b := topology.New("app")
	w := topology.WindowedBy(source(b), window.Tumbling(10*time.Second).Grace(2*time.Second))
	counts := topology.Count(w, "counts", topology.EmitOnClose())
	topology.To(perWindow(counts), "counts", serde.String(), serde.String())
	topology.To(w.Late(), "late", serde.String(), serde.String())
	topology.RunExample(b, "a=x@1", "a=x@11", "a=x@9", "a=x@12", "a=y@3")
	// Output:
	// counts: a [0s, 10s)=2
	// late: a=y
}

func ExampleWindowedBy_hopping() {
	b := topology.New("app")
	w := topology.WindowedBy(source(b), window.Hopping(10*time.Second, 5*time.Second))
	topology.To(perWindow(topology.Count(w, "counts", topology.EmitOnClose())), "counts", serde.String(), serde.String())
	topology.RunExample(b, "a=x@6", "a=x@11", "a=x@15")
	// Output:
	// counts: a [0s, 10s)=1
	// counts: a [5s, 15s)=2
}

func ExampleWindowedBy_session() {
	b := topology.New("app")
	w := topology.WindowedBy(source(b), window.Session(5*time.Second))
	topology.To(perWindow(topology.Count(w, "visits", topology.EmitOnClose())), "visits", serde.String(), serde.String())
	topology.RunExample(b, "ann=x@1", "ann=x@4", "ann=x@20", "bob=x@30")
	// Output:
	// visits: ann [1s, 9s)=2
	// visits: ann [20s, 25s)=1
}

func ExampleWindowedBy_sliding() {
	b := topology.New("app")
	// Three failed logins within ten seconds.
	w := topology.WindowedBy(source(b), window.Sliding(10*time.Second))
	many := topology.Filter(topology.Count(w, "failures"), func(r record.Record[window.Key[string], int64]) (bool, error) { return r.Value >= 3, nil })
	topology.To(perWindow(many), "alarms", serde.String(), serde.String())
	topology.RunExample(b, "ann=x@1", "ann=x@4", "bob=x@8", "ann=x@9", "ann=x@30")
	// Output: alarms: ann [-1s, 9.001s)=3
}

func ExampleCount() {
	b := topology.New("app")
	topology.To(topology.Count(source(b), "counts"), "counts", serde.String(), serde.JSON[int64]())
	topology.RunExample(b, "a=x", "b=x", "a=y")
	// Output:
	// counts: a=1
	// counts: b=1
	// counts: a=2
}

func ExampleSum() {
	b := topology.New("app")
	totals := topology.Sum(source(b), "totals", func(r pair) (int64, error) { return strconv.ParseInt(r.Value, 10, 64) })
	topology.To(totals, "totals", serde.String(), serde.JSON[int64]())
	topology.RunExample(b, "a=5", "a=7")
	// Output:
	// totals: a=5
	// totals: a=12
}

func ExampleMin() {
	b := topology.New("app")
	lowest := topology.Min(source(b), "lowest", serde.JSON[int](), number)
	topology.To(lowest, "lowest", serde.String(), serde.JSON[int]())
	topology.RunExample(b, "a=5", "a=7", "a=3")
	// Output:
	// lowest: a=5
	// lowest: a=5
	// lowest: a=3
}

func ExampleMax() {
	b := topology.New("app")
	highest := topology.Max(source(b), "highest", serde.JSON[int](), number)
	topology.To(highest, "highest", serde.String(), serde.JSON[int]())
	topology.RunExample(b, "a=5", "a=3", "a=7")
	// Output:
	// highest: a=5
	// highest: a=5
	// highest: a=7
}

func ExampleAvg() {
	b := topology.New("app")
	mean := topology.Avg(source(b), "mean", func(r pair) (float64, error) { return strconv.ParseFloat(r.Value, 64) })
	topology.To(mean, "mean", serde.String(), serde.JSON[float64]())
	topology.RunExample(b, "a=1", "a=2")
	// Output:
	// mean: a=1
	// mean: a=1.5
}

func ExampleFirst() {
	b := topology.New("app")
	first := topology.First(source(b), "first", serde.String(), func(r pair) (string, error) { return r.Value, nil })
	topology.To(first, "first", serde.String(), serde.String())
	topology.RunExample(b, "a=x@5", "a=y@7", "a=z@2")
	// Output:
	// first: a=x
	// first: a=x
	// first: a=z
}

func ExampleLast() {
	b := topology.New("app")
	last := topology.Last(source(b), "last", serde.String(), func(r pair) (string, error) { return r.Value, nil })
	topology.To(last, "last", serde.String(), serde.String())
	topology.RunExample(b, "a=x@5", "a=y@7", "a=z@2")
	// Output:
	// last: a=x
	// last: a=y
	// last: a=y
}

func ExampleCountDistinct() {
	b := topology.New("app")
	users := topology.CountDistinct(source(b), "users", serde.String(), func(r pair) (string, error) { return r.Value, nil })
	topology.To(users, "users", serde.String(), serde.JSON[int64]())
	topology.RunExample(b, "page=ann", "page=bob", "page=ann")
	// Output:
	// users: page=1
	// users: page=2
	// users: page=2
}

func ExampleReduce() {
	b := topology.New("app")
	longest := topology.Reduce(source(b), "longest", func(x, y string) (string, error) {
		if len(y) > len(x) {
			return y, nil
		}
		return x, nil
	})
	topology.To(longest, "longest", serde.String(), serde.String())
	topology.RunExample(b, "a=x", "a=xyz", "a=xy")
	// Output:
	// longest: a=x
	// longest: a=xyz
	// longest: a=xyz
}

func ExampleKeepFirst() {
	b := topology.New("app")
	topology.To(topology.KeepFirst(source(b), "first"), "first", serde.String(), serde.String())
	topology.RunExample(b, "a=x", "a=y", "b=z")
	// Output:
	// first: a=x
	// first: b=z
}

func ExampleKeepLast() {
	b := topology.New("app")
	topology.To(topology.KeepLast(source(b), "newest"), "newest", serde.String(), serde.String())
	topology.RunExample(b, "a=x@5", "a=old@2", "a=y@7")
	// Output:
	// newest: a=x
	// newest: a=y
}

func ExampleKeepBySequence() {
	b := topology.New("app")
	newer := topology.KeepBySequence(source(b), "newer", func(r pair) (int64, error) { return strconv.ParseInt(r.Value, 10, 64) })
	topology.To(newer, "newer", serde.String(), serde.String())
	topology.RunExample(b, "a=1", "a=3", "a=2", "a=3", "a=4")
	// Output:
	// newer: a=1
	// newer: a=3
	// newer: a=4
}

func ExampleDedupSplit() {
	b := topology.New("app")
	out := topology.DedupSplit(source(b), "once", topology.Retention(time.Hour))
	topology.To(out.Unique, "once", serde.String(), serde.String())
	topology.To(out.Duplicate, "again", serde.String(), serde.String())
	topology.RunExample(b, "a=1#x", "a=1#x", "b=2#y")
	// Output:
	// once: a=1
	// again: a=1
	// once: b=2
}

func ExampleMergeWith() {
	b := topology.New("app")
	pages := topology.Aggregate(topology.WindowedBy(source(b), window.Session(5*time.Second).Grace(5*time.Second)), "pages", serde.String(),
		func(way string, r pair) (string, error) { return way + r.Value, nil },
		topology.MergeWith(func(earlier, later string) (string, error) { return earlier + later, nil }), topology.EmitOnClose())
	topology.To(perWindow(pages), "pages", serde.String(), serde.String())
	topology.RunExample(b, "ann=A@1", "ann=C@8", "ann=B@4", "bob=x@30")
	// Output: pages: ann [1s, 13s)=ACB
}

func number(r pair) (int, error) { return strconv.Atoi(r.Value) }

// perWindow shows keys and windows as text.
func perWindow[A any](s *topology.Stream[window.Key[string], A]) *topology.Stream[string, string] {
	return topology.Map(s, func(r record.Record[window.Key[string], A]) (string, string, error) {
		from, to := r.Key.Start.Sub(time.Unix(0, 0)), r.Key.End.Sub(time.Unix(0, 0))
		return fmt.Sprintf("%s [%v, %v)", r.Key.Key, from, to), fmt.Sprint(r.Value), nil
	})
}
