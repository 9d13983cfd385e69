package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

type (
	intS  = *topology.Stream[string, int64]
	intPS = *topology.Stream[string, *int64]
	textS = *topology.Stream[string, string]
)

// number is a pointer's value as text, "-" for nil.
func number(v *int64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(*v)
}

// named puts the name of the operator before the key.
func named[V any](s *topology.Stream[string, V], name string, text func(V) string) textS {
	return topology.Map(s, func(r record.Record[string, V]) (string, string, error) {
		return name + " " + r.Key, text(r.Value), nil
	})
}

func plain(v string) string { return v }

// toOutText writes streams of texts into partition 0 of "out".
func toOutText(first textS, more ...textS) {
	topology.To(topology.Merge("all", first, more...), "out", serde.String(), serde.String(), topology.Partition(func(record.Record[string, string], int32) record.Partition { return 0 }))
}

// sides is the input without repeats, the even numbers on the left and the odd ones on the right: one partition, so that
// what comes of it has one right order.
func sides(in intS) (left, right intS) {
	once := topology.Dedup(in, "unique", topology.Retention(24*time.Hour))
	s := topology.Branch(once, "sides", func(r rec) (bool, error) { return r.Value%2 == 0, nil })
	return s[0], s[1]
}

// joinSamples are random samples, each with a number of its own.
func joinSamples(r *rand.Rand, n int) []sample {
	all := randomSamples(r, n)
	for i := range all {
		all[i].v = int64(i)
		if r.IntN(3) > 0 {
			all[i].v = int64(i) ^ int64(r.IntN(2)) // sides do not just take turns
		}
	}
	used := map[int64]bool{}
	for i := range all {
		for used[all[i].v] {
			all[i].v = (all[i].v + 2) % 256
		}
		used[all[i].v] = true
	}
	return all
}

var joinKinds = []topology.JoinWindows{
	topology.JoinWithin(2 * time.Second).Grace(3 * time.Second),
	topology.JoinWithin(time.Second).Before(4 * time.Second).Grace(0),
	topology.JoinWithin(3 * time.Second).Before(0),
	topology.JoinWithin(0).After(5 * time.Second).Grace(9 * time.Second),
}

// wide makes so much of each number that what waits of a key is more than one value of the store.
func wide(s intS, name string) textS {
	return topology.MapValues(s, func(r rec) (string, error) { return fmt.Sprintf("%0150d", r.Value), nil }, topology.Name(name)).WithValues(serde.String())
}

// short is the number of a wide text.
func short(wide *string) string {
	if wide == nil {
		return "-"
	}
	return cmp.Or(strings.TrimLeft(*wide, "0"), "0")
}

func streamJoins(t *testing.T, w topology.JoinWindows) *topology.Topology {
	return numbers(t, never, func(in intS) {
		l, r := sides(in)
		left, right := wide(l, "wide-left"), wide(r, "wide-right")
		toOutText(
			named(topology.Join(left, right, "inner", w, func(_, l, r string) (string, error) { return short(&l) + " " + short(&r), nil }), "inner", plain),
			named(topology.LeftJoin(left, right, "left", w, func(_, l string, r *string) (string, error) { return short(&l) + " " + short(r), nil }), "left", plain),
			named(topology.OuterJoin(left, right, "outer", w, func(_ string, l, r *string) (string, error) { return short(l) + " " + short(r), nil }), "outer", plain),
		)
	})
}

// oracleJoin is what the three joins must make of the samples, by definition, without order.
func oracleJoin(w topology.JoinWindows, before, after time.Duration, all []sample) (lines []string) {
	grace, end := w.GracePeriod().Milliseconds(), all[len(all)-1].mark
	var kept []sample
	for _, s := range all {
		if s.at+grace >= s.mark {
			kept = append(kept, s)
		}
	}
	for _, s := range kept {
		left := s.v%2 == 0
		matched := false
		for _, o := range kept {
			if o.key != s.key || (o.v%2 == 0) == left {
				continue
			}
			l, r := s, o
			if !left {
				l, r = o, s
			}
			if d := r.at - l.at; d < -before.Milliseconds() || d > after.Milliseconds() {
				continue
			}
			matched = true
			if left {
				for _, name := range []string{"inner", "left", "outer"} {
					lines = append(lines, fmt.Sprintf("%s %s=%d %d", name, s.key, l.v, r.v))
				}
			}
		}
		switch {
		case matched:
		case left && s.at+after.Milliseconds()+grace+1 <= end:
			lines = append(lines, fmt.Sprintf("left %s=%d -", s.key, s.v), fmt.Sprintf("outer %s=%d -", s.key, s.v))
		case !left && s.at+before.Milliseconds()+grace+1 <= end:
			lines = append(lines, fmt.Sprintf("outer %s=- %d", s.key, s.v))
		}
	}
	return lines
}

// TestStreamJoinsAgainstAnOracle: joins of streams give the pairs of the definition, each once, and for each record
// without a match one result that says so, and never both; and what is committed does not depend on portions,
// duplicates, commits, crashes and lost disks: not in order, not in IDs.
func TestStreamJoinsAgainstAnOracle(t *testing.T) {
	reach := [][2]time.Duration{{2 * time.Second, 2 * time.Second}, {4 * time.Second, time.Second}, {0, 3 * time.Second}, {0, 5 * time.Second}}
	for i, kind := range joinKinds {
		t.Run(fmt.Sprint(reach[i]), func(t *testing.T) {
			topo := streamJoins(t, kind)
			unmatched := 0
			for seed := range uint64(6) {
				all := joinSamples(rand.New(rand.NewPCG(seed, 3)), 120)
				w, _ := play(t, topo, all, nil)
				got, want := w.readLines("out", false), oracleJoin(kind, reach[i][0], reach[i][1], all)
				unmatched += strings.Count(strings.Join(want, ";"), "-")
				slices.Sort(got)
				slices.Sort(want)
				sameLines(t, got, want)
				first := w.readLines("out", true)
				w, _ = play(t, topo, all, rand.New(rand.NewPCG(seed, 4)))
				sameLines(t, w.readLines("out", true), first)
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
			if unmatched < 20 {
				t.Errorf("only %d records without a match", unmatched)
			}
		})
	}
}

// nullable makes a delete of every fourth number of a side.
func nullable(s intS, name string) intPS {
	return topology.MapValues(s, func(r rec) (*int64, error) {
		if r.Value/2%4 == 0 {
			return nil, nil
		}
		return &r.Value, nil
	}, topology.Name(name))
}

func tableJoins(t *testing.T) *topology.Topology {
	return numbers(t, never, func(in intS) {
		l, r := sides(in)
		left := topology.ToTable(nullable(l, "l"), "left", serde.Optional(serde.Int64()))
		right := topology.ToTable(nullable(r, "r"), "right", serde.Optional(serde.Int64()))
		some := topology.FilterTable(left, func(_ string, v *int64) (bool, error) { return *v%3 > 0, nil }, topology.Name("some"))
		double := topology.MapTableValues(right, func(_ string, v *int64) (int64, error) { return 2 * *v, nil }, topology.Name("double"))
		pair := func(_ string, l, r *int64) (string, error) { return number(l) + " " + number(r), nil }
		inner := topology.JoinTables(some, double, "inner", func(k string, l *int64, r int64) (string, error) { return pair(k, l, &r) })
		outer := topology.OuterJoinTables(some, double, "outer", func(k string, l **int64, r *int64) (string, error) {
			if l == nil {
				return pair(k, nil, r)
			}
			return pair(k, *l, r)
		})
		leftOnly := topology.LeftJoinTables(some, double, "leftjoin", func(k string, l, r *int64) (string, error) { return pair(k, l, r) })
		// A join of joins reads both sides through what they are made of.
		short := topology.FilterTable(inner, func(_ string, v string) (bool, error) { return len(v) < 6, nil }, topology.Name("short"))
		stream := topology.LeftJoinTable(l, short, "lookup", func(_ string, v int64, row *string) (string, error) {
			if row == nil {
				return fmt.Sprint(v, " of nothing"), nil
			}
			return fmt.Sprint(v, " of ", *row), nil
		})
		text := func(v *string) string {
			if v == nil {
				return "deleted"
			}
			return *v
		}
		toOutText(
			named(topology.ToStream(inner, topology.Name("i")), "inner", text), named(topology.ToStream(leftOnly, topology.Name("lo")), "left", text),
			named(topology.ToStream(outer, topology.Name("o")), "outer", text), named(topology.ToStream(short, topology.Name("s")), "short", text),
			named(stream, "lookup", plain))
	})
}

// oracleTables computes each table anew from all rows after each record; what changes is what must come out.
func oracleTables(all []sample) map[string][]string {
	left, right := map[string]int64{}, map[string]int64{}
	out := map[string][]string{}
	tables := func(k string) map[string]string {
		l, hasLeft := left[k]
		hasLeft = hasLeft && l%3 > 0
		r, hasRight := right[k]
		r *= 2
		lt, rt := "-", "-"
		if hasLeft {
			lt = fmt.Sprint(l)
		}
		if hasRight {
			rt = fmt.Sprint(r)
		}
		now := map[string]string{}
		both := lt + " " + rt
		if hasLeft && hasRight {
			now["inner"] = both
			if len(both) < 6 {
				now["short"] = both
			}
		}
		if hasLeft {
			now["left"] = both
		}
		if hasLeft || hasRight {
			now["outer"] = both
		}
		return now
	}
	for _, s := range all {
		before := tables(s.key)
		rows := right
		if s.v%2 == 0 {
			rows = left
		}
		_, had := rows[s.key]
		if s.v/2%4 == 0 {
			delete(rows, s.key)
		} else {
			rows[s.key] = s.v
		}
		_, has := rows[s.key]
		after := tables(s.key)
		if had || has {
			for _, name := range []string{"inner", "left", "outer", "short"} {
				now, ok := after[name]
				_, was := before[name]
				// A change of a row that makes no row of the filter, or leaves out the join, is none of the table.
				switch {
				case ok:
					out[name] = append(out[name], s.key+"="+now)
				case was:
					out[name] = append(out[name], s.key+"=deleted")
				}
			}
		}
		if s.v%2 == 0 {
			row, ok := after["short"]
			if !ok {
				row = "nothing"
			}
			out["lookup"] = append(out["lookup"], fmt.Sprintf("%s=%d of %s", s.key, s.v, row))
		}
	}
	return out
}

// TestTablesAgainstAnOracle: tables, their filters and joins are what the rows make of them, with a deletion wherever a row
// goes; and what is committed does not depend on portions, duplicates, commits, crashes and lost disks.
func TestTablesAgainstAnOracle(t *testing.T) {
	topo := tableJoins(t)
	for seed := range uint64(8) {
		all := joinSamples(rand.New(rand.NewPCG(seed, 5)), 120)
		w, _ := play(t, topo, all, nil)
		got := map[string][]string{}
		for _, line := range w.readLines("out", false) {
			name, rest, _ := strings.Cut(line, " ")
			got[name] = append(got[name], rest)
		}
		for name, want := range oracleTables(all) {
			if want = withoutRepeats(name, want); len(want) < 15 {
				t.Errorf("%s: only %d changes", name, len(want))
			}
			t.Log(name)
			sameLines(t, withoutRepeats(name, got[name]), want)
		}
		first := w.readLines("out", true)
		w, _ = play(t, topo, all, rand.New(rand.NewPCG(seed, 6)))
		sameLines(t, w.readLines("out", true), first)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// withoutRepeats leaves out updates of a table that change nothing, which it may or may not tell; deletions always count.
func withoutRepeats(name string, lines []string) (out []string) {
	if name == "lookup" {
		return lines
	}
	last := map[string]string{}
	for _, line := range lines {
		k, v, _ := strings.Cut(line, "=")
		if last[k] != v || v == "deleted" {
			out = append(out, line)
		}
		last[k] = v
	}
	return out
}

// twoTopics joins the records of "in" with the rows that "echo" has, and both with each other as streams.
func twoTopics(t *testing.T) *topology.Topology {
	t.Helper()
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"), topology.WithIdleness(-1))
	rows := topology.Table(b, "echo", serde.String(), serde.Int64(), topology.Name("rows"), topology.IDHeader("id"), topology.WithIdleness(-1))
	joined := topology.LeftJoinTable(in, rows, "joined", func(_ string, v int64, row *int64) (string, error) { return fmt.Sprint(v, " ", number(row)), nil })
	count := topology.Count(joined, "counted")
	changes := topology.MapValues(topology.ToStream(rows, topology.Name("changes")), func(r record.Record[string, *int64]) (int64, error) {
		if r.Value == nil {
			return -1, nil
		}
		return *r.Value, nil
	}).WithValues(serde.Int64())
	near := topology.OuterJoin(in, changes, "near", topology.JoinWithin(2*time.Second), func(_ string, l, r *int64) (string, error) { return number(l) + " " + number(r), nil })
	toOutText(named(joined, "joined", plain), named(count, "count", func(n int64) string { return fmt.Sprint(n) }), named(near, "near", plain))
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// TestTwoInputsOneCut: a join reads two topics. Wherever the process dies, and however the fetches bring the records, what
// comes out is what the order of time makes of both: never one input further than the other, or a row from after the cut.
func TestTwoInputsOneCut(t *testing.T) {
	topo := twoTopics(t)
	for seed := range uint64(10) {
		random := rand.New(rand.NewPCG(seed, 7))
		var all []sample
		for i := range 150 {
			all = append(all, sample{key: string(rune('a' + random.IntN(3))), at: int64(i) * 400, v: int64(random.IntN(200))})
		}
		topics := make([]string, len(all))
		var want []string
		rows, counts := map[string]string{}, map[string]int{}
		for i, s := range all {
			if topics[i] = "in"; random.IntN(3) == 0 {
				topics[i] = "echo"
				rows[s.key] = fmt.Sprint(s.v)
				continue
			}
			row := rows[s.key]
			if row == "" {
				row = "-"
			}
			counts[s.key]++
			want = append(want, fmt.Sprintf("count %s=%d", s.key, counts[s.key]), fmt.Sprintf("joined %s=%d %s", s.key, s.v, row))
		}
		var first []string
		for run := range 4 {
			w := newWorld(t, topo)
			var r *rand.Rand
			if run > 0 {
				r = rand.New(rand.NewPCG(seed, uint64(10+run)))
				w.maxFetch = []int{1, 200, 2000}[run-1]
				w.opts = []Option{WithTransactionLimits(1+r.IntN(40), 0, 0)}
				w.point = func(name string) { // the first fetch brings nothing of the rows
					if name == "restore.done" {
						w.b.ElectLeader(record.TopicPartition{Topic: "echo"})
					}
				}
			}
			for i, s := range all { // all are there before anybody reads
				w.sendSample(topics[i], s, i)
			}
			w.play(len(all), func(i int) { // between the steps an input goes to another broker: the other one is fetched without it
				if topic := []string{"echo", "in", "", "echo", ""}[i%5]; topic != "" && r != nil {
					w.b.ElectLeader(record.TopicPartition{Topic: topic})
				}
			}, r)
			got := w.readLines("out", true)
			if run == 0 {
				first = got
				plainLines := slices.DeleteFunc(w.readLines("out", false), func(s string) bool { return strings.HasPrefix(s, "near") })
				sameLines(t, plainLines, want)
			}
			sameLines(t, got, first)
			if t.Failed() {
				t.Fatalf("seed %d run %d", seed, run)
			}
		}
	}
}

// TestAJoinWaitsForTheOtherInput: the queue of one input is full, so that nothing more is read, and the record that is next by
// time is one of the other input, which is not read yet. The task reads it and goes on.
func TestAJoinWaitsForTheOtherInput(t *testing.T) {
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64())
	rows := topology.Table(b, "echo", serde.String(), serde.Int64())
	topology.To(topology.JoinTable(in, rows, "joined", func(_ string, v, row int64) (int64, error) { return row, nil }), "out", serde.String(), serde.Int64())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, topo)
	const n = queueHigh + 500
	for i := range n {
		w.sendSample("in", sample{key: "a", at: int64(1000 + i)}, i)
	}
	echo := record.TopicPartition{Topic: "echo"}
	long := record.Headers{{Key: "long", Value: make([]byte, 1<<20)}} // no other record of this input comes with it
	for i := range 6 {
		w.b.Append(echo, broker.Record{Key: []byte("a"), Value: []byte{7: byte(3 + i)}, Timestamp: epoch.Add(time.Duration(i) * time.Millisecond), Headers: long})
	}
	s := w.live()
	var got []string
	for i := 0; len(got) < n; i++ {
		if err := s.Step(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		w.b.Advance(time.Millisecond)
		if i%200 == 199 {
			got = w.read("out")
		}
		if i > 4000 {
			t.Fatalf("%d of %d records were joined", len(got), n)
		}
	}
	for _, line := range got {
		if line != "a=8" {
			t.Fatalf("%q: joined with a row that had been replaced by then", line)
		}
	}
}

// TestUnmatchedWhenTheInputStops: no record comes any more, and what has no match is said all the same, once, also across
// a restart.
func TestUnmatchedWhenTheInputStops(t *testing.T) {
	topo := numbers(t, []topology.SourceOption{topology.WithIdleness(2 * time.Second)}, func(in intS) {
		l, r := sides(in)
		w := topology.JoinWithin(5 * time.Second).Grace(time.Second)
		toOutText(named(topology.OuterJoin(l, r, "outer", w, func(_ string, l, r *int64) (string, error) { return number(l) + " " + number(r), nil }), "outer", plain))
	})
	w := newWorld(t, topo)
	s := w.live()
	w.sendAt(0, "a", 4, 2)
	w.sendAt(0, "b", 4, 4)
	w.sendAt(0, "b", 5, 5)
	w.work(s, 3*time.Second)
	sameLines(t, w.readLines("out", false), []string{"outer b=4 5"})
	s = w.live() // the new process has to see for itself that nothing comes
	w.work(s, 12*time.Second)
	sameLines(t, w.readLines("out", false), []string{"outer b=4 5", "outer a=2 -"})
	s = w.live()
	w.sendAt(0, "a", 4.5, 7) // its match is closed: late, not a second result of the left record
	w.work(s, 20*time.Second)
	sameLines(t, w.readLines("out", false), []string{"outer b=4 5", "outer a=2 -"})
	if late := counterOf(s, "outer", topology.CounterLate); late != 1 {
		t.Errorf("%d late records, want 1", late)
	}
}

// joinOf joins "wide", with its own number of partitions, and "in".
func joinOf(t *testing.T, repartition ...topology.KeyByOption) *topology.Topology {
	t.Helper()
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64())
	wide := topology.From(b, "wide", serde.String(), serde.Int64())
	if repartition != nil {
		wide = topology.KeyBy(wide, "by-key", serde.String(), func(r rec) (string, error) { return r.Key, nil }, repartition...)
	}
	table := topology.ToTable(wide, "rows", serde.Int64())
	topology.To(topology.JoinTable(in, table, "joined", func(_ string, a, b int64) (int64, error) { return a + b, nil }), "out", serde.String(), serde.Int64())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// TestCoPartitioning: inputs of a join with different numbers of partitions are refused at the start, with the numbers and the
// remedy; and the remedy works.
func TestCoPartitioning(t *testing.T) {
	begin := func(topo *topology.Topology) (*world, error) {
		w := newWorld(t, topo)
		if err := w.b.Client("setup").CreateTopic(context.Background(), broker.Topic{Name: "wide", Partitions: 6, Replicas: 1}); err != nil {
			t.Fatal(err)
		}
		_, err := NewStepper(context.Background(), topo, Env{Cluster: w.b.Client("x"), Local: w.disk, Instance: "x", Now: w.b.Now})
		return w, err
	}
	_, err := begin(joinOf(t))
	if !errors.Is(err, ErrTopics) || !strings.Contains(err.Error(), `join "joined"`) || !strings.Contains(err.Error(), `"in" has 2`) || !strings.Contains(err.Error(), `"wide" has 6`) || !strings.Contains(err.Error(), "KeyBy") {
		t.Errorf("without repartition: %v", err)
	}
	if _, err = begin(joinOf(t, topology.Partitions(3))); !errors.Is(err, ErrTopics) || !strings.Contains(err.Error(), `"app-by-key-repartition" has 3`) {
		t.Errorf("with another number given: %v", err)
	}
	w, err := begin(joinOf(t, topology.OutOfOrderness(0)))
	if err != nil {
		t.Fatal(err)
	}
	topics, err := w.b.Client("look").Topics(context.Background(), "app-by-key-repartition", "app-rows-changelog")
	if err != nil || topics["app-by-key-repartition"].Partitions != 2 || topics["app-rows-changelog"].Partitions != 2 {
		t.Errorf("the repartition topic follows the other input: %+v, %v", topics, err)
	}
}
