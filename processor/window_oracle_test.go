package processor

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// sample is a record of the oracle's.
type sample struct {
	key  string
	at   int64 // ms after epoch
	v    int64
	mark int64 // the watermark when it came, itself included
}

// aggregateCase is an aggregate, and what it must make of the records of one group, in the order in which they came.
type aggregateCase struct {
	name   string
	build  func(w *topology.WindowedStream[string, int64], name string, opts ...topology.AggregateOption) *topology.Stream[string, string]
	oracle func([]sample) any
}

type rec = record.Record[string, int64]

func value(r rec) (int64, error)        { return r.Value, nil }
func parity(r rec) (string, error)      { return strconv.Itoa(int(r.Value % 7)), nil }
func floatValue(r rec) (float64, error) { return float64(r.Value), nil }

// shown turns a windowed result into "operator key@start-end" = value, in milliseconds after epoch.
func shown[A any](s *topology.Stream[inWin, A], name string) *topology.Stream[string, string] {
	return topology.Map(s, func(r record.Record[inWin, A]) (string, string, error) {
		return groupName(name, r.Key.Key, r.Key.Start.Sub(epoch).Milliseconds(), r.Key.End.Sub(epoch).Milliseconds()), fmt.Sprint(r.Value), nil
	})
}

func groupName(op, key string, from, to int64) string {
	return fmt.Sprintf("%s %s@%d-%d", op, key, from, to)
}

// best is the value of the sample that less puts first.
func best(group []sample, less func(a, b sample) int) any { return slices.MinFunc(group, less).v }

func byAt(a, b sample) int    { return int(a.at - b.at) }
func byValue(a, b sample) int { return int(a.v - b.v) }

func flip(f func(a, b sample) int) func(a, b sample) int {
	return func(a, b sample) int { return f(b, a) }
}

func sum(group []sample) (n int64) {
	for _, s := range group {
		n += s.v
	}
	return n
}

type (
	ws   = *topology.WindowedStream[string, int64]
	opts = []topology.AggregateOption
	outS = *topology.Stream[string, string]
)

var aggregateCases = []aggregateCase{
	{"count", func(w ws, n string, o ...topology.AggregateOption) outS { return shown(topology.Count(w, n, o...), n) }, func(g []sample) any { return len(g) }},
	{"sum", func(w ws, n string, o ...topology.AggregateOption) outS {
		return shown(topology.Sum(w, n, value, o...), n)
	}, func(g []sample) any { return sum(g) }},
	{"min", func(w ws, n string, o ...topology.AggregateOption) outS {
		return shown(topology.Min(w, n, serde.Int64(), value, o...), n)
	}, func(g []sample) any { return best(g, byValue) }},
	{"max", func(w ws, n string, o ...topology.AggregateOption) outS {
		return shown(topology.Max(w, n, serde.Int64(), value, o...), n)
	}, func(g []sample) any { return best(g, flip(byValue)) }},
	{"avg", func(w ws, n string, o ...topology.AggregateOption) outS {
		return shown(topology.Avg(w, n, floatValue, o...), n)
	}, func(g []sample) any { return float64(sum(g)) / float64(len(g)) }},
	{"first", func(w ws, n string, o ...topology.AggregateOption) outS {
		return shown(topology.First(w, n, serde.Int64(), value, o...), n)
	}, func(g []sample) any { return best(g, byAt) }},
	{"last", func(w ws, n string, o ...topology.AggregateOption) outS {
		return shown(topology.Last(w, n, serde.Int64(), value, o...), n)
	}, func(g []sample) any { return best(g, flip(byAt)) }},
	{"distinct", func(w ws, n string, o ...topology.AggregateOption) outS {
		return shown(topology.CountDistinct(w, n, serde.String(), parity, o...), n)
	}, func(g []sample) any {
		set := map[int64]bool{}
		for _, s := range g {
			set[s.v%7] = true
		}
		return len(set)
	}},
	{"reduce", func(w ws, n string, o ...topology.AggregateOption) outS {
		return shown(topology.Reduce(w, n, func(a, b int64) (int64, error) { return a ^ b, nil }, o...), n)
	}, func(g []sample) any {
		x := int64(0)
		for _, s := range g {
			x ^= s.v
		}
		return x
	}},
	{"function", func(w ws, n string, o ...topology.AggregateOption) outS {
		o = append(o, topology.MergeWith(func(a, b string) (string, error) { return a + b, nil }))
		return shown(topology.Aggregate(w, n, serde.String(), func(a string, r rec) (string, error) { return a + "x", nil }, o...), n)
	}, func(g []sample) any { return strings.Repeat("x", len(g)) }},
	{"keep-first", func(w ws, n string, o ...topology.AggregateOption) outS {
		return shown(topology.KeepFirst(w, n, o...), n)
	}, func(g []sample) any { return best(g, byAt) }},
	{"keep-last", func(w ws, n string, o ...topology.AggregateOption) outS {
		return shown(topology.KeepLast(w, n, o...), n)
	}, func(g []sample) any { return best(g, flip(byAt)) }},
	{"keep-by-sequence", func(w ws, n string, o ...topology.AggregateOption) outS {
		return shown(topology.KeepBySequence(w, n, value, o...), n)
	}, func(g []sample) any { return best(g, flip(byValue)) }},
}

// windowTopology is dedup and every aggregate on windows of one kind.
func windowTopology(t *testing.T, w window.Windows, onClose bool) *topology.Topology {
	return numbers(t, never, func(in *topology.Stream[string, int64]) {
		once := topology.Dedup(in, "unique", topology.Retention(24*time.Hour))
		var all []outS
		for _, c := range aggregateCases {
			var o opts
			if onClose {
				o = append(o, topology.EmitOnClose())
			}
			all = append(all, c.build(topology.WindowedBy(once, w), c.name, o...))
		}
		topology.To(topology.Merge("all", all[0], all[1:]...), "out", serde.String(), serde.String(), topology.Partition(func(record.Record[string, string], int32) record.Partition { return 0 }))
	})
}

// randomSamples are records out of order, each with a time of its own, and some of them far too late.
func randomSamples(r *rand.Rand, n int) []sample {
	var all []sample
	newest := int64(-1 << 60)
	used := map[int64]bool{}
	for i := range n {
		at := int64(i)*700 + r.Int64N(8000)
		if r.IntN(12) == 0 {
			at -= 30_000
		}
		if r.IntN(40) == 0 {
			at += 20_000
		}
		for used[at] {
			at++
		}
		used[at] = true
		newest = max(newest, at)
		all = append(all, sample{key: string(rune('a' + r.IntN(3))), at: at, v: r.Int64N(100), mark: newest})
	}
	return append(all, sample{key: "z", at: 1_000_000, v: 1, mark: 1_000_000})
}

// oracleGroups are the closed windows by definition, each with its records in the order in which they came.
func oracleGroups(w window.Windows, all []sample) map[string][]sample {
	size, grace := w.Size().Milliseconds(), w.GracePeriod().Milliseconds()
	end := all[len(all)-1].mark
	groups := map[string][]sample{}
	add := func(key string, from, to int64, s sample) {
		if to+grace > s.mark && to+grace <= end {
			g := groupName("", key, from, to)
			groups[g] = append(groups[g], s)
		}
	}
	switch w.Kind() {
	case window.KindTumbling, window.KindHopping:
		every := w.Every().Milliseconds()
		for _, s := range all {
			// epoch is a full hour: multiples of every after it are multiples of every after 1970.
			for from := -100 * every; from <= s.at; from += every {
				if from <= s.at && s.at < from+size {
					add(s.key, from, from+size, s)
				}
			}
		}
	case window.KindSliding:
		for _, p := range all {
			if p.at+1+grace <= p.mark {
				continue // its window was closed before it came
			}
			for _, s := range all {
				if s.key == p.key && p.at-size <= s.at && s.at <= p.at {
					add(s.key, p.at-size, p.at+1, s)
				}
			}
		}
	case window.KindSession:
		for key, sessions := range oracleSessions(size, grace, all) {
			for _, session := range sessions {
				from, to := slices.MinFunc(session, byAt).at, slices.MaxFunc(session, byAt).at+size
				if to+grace <= end {
					groups[groupName("", key, from, to)] = session
				}
			}
		}
	}
	return groups
}

// oracleSessions puts records into sessions, as sets of records.
func oracleSessions(gap, grace int64, all []sample) map[string][][]sample {
	byKey := map[string][][]sample{}
	for i, s := range all {
		var rest [][]sample
		merged := []sample{s}
		for _, session := range byKey[s.key] {
			from, to := slices.MinFunc(session, byAt).at, slices.MaxFunc(session, byAt).at
			if open := to+gap+grace > s.mark; open && s.at >= from-gap && s.at <= to+gap {
				merged = append(slices.Clone(session), merged...)
			} else {
				rest = append(rest, session)
			}
		}
		if slices.MaxFunc(merged, byAt).at+gap+grace <= s.mark {
			continue // late
		}
		slices.SortFunc(merged, func(a, b sample) int { return slices.Index(all[:i+1], a) - slices.Index(all[:i+1], b) })
		byKey[s.key] = append(rest, merged)
	}
	return byKey
}

// play runs the records through a topology. With r it is in portions, with duplicates, and with crashes at places
// that r chooses; without it is all at once.
func play(t *testing.T, topo *topology.Topology, all []sample, r *rand.Rand) (*world, *Stepper) {
	w := newWorld(t, topo)
	s := w.play(len(all), func(i int) { w.sendSample("in", all[i], i) }, r)
	return w, s
}

// sendSample appends a sample; its ID is id.
func (w *world) sendSample(topic string, s sample, id int) {
	w.b.Append(record.TopicPartition{Topic: topic, Partition: 0}, broker.Record{
		Key: []byte(s.key), Value: []byte{0, 0, 0, 0, 0, 0, 0, byte(s.v)}, Timestamp: epoch.Add(time.Duration(s.at) * time.Millisecond),
		Headers: record.Headers{{Key: "id", Value: fmt.Append(nil, id)}},
	})
}

// play is as the function, for n records that send appends.
func (w *world) play(n int, send func(i int), r *rand.Rand) *Stepper {
	t := w.t
	sent := 0
	for sent < n {
		crashed := func() (crashed bool) {
			defer func() {
				if v := recover(); v != nil {
					if _, ok := v.(simbroker.Crash); !ok {
						panic(v)
					}
					crashed = true
				}
			}()
			w.b.SetFault(func(simbroker.Call) simbroker.Action { return simbroker.Action{} })
			s := w.live()
			if r != nil {
				calls, last := 0, 40+r.IntN(250)
				verdict := []simbroker.Verdict{simbroker.CrashBefore, simbroker.CrashAfter}[r.IntN(2)]
				w.b.SetFault(func(c simbroker.Call) simbroker.Action {
					if calls++; calls == last {
						return simbroker.Action{Verdict: verdict}
					}
					if c.API == simbroker.EndTxn && r.IntN(3) == 0 { // then the task goes back, in the same process
						lost := []simbroker.Verdict{simbroker.LoseRequest, simbroker.LoseAnswer}[r.IntN(2)]
						return simbroker.Action{Verdict: lost, Wait: time.Millisecond}
					}
					return simbroker.Action{}
				})
			}
			for sent < n {
				until := n
				if r != nil {
					until = min(sent+1+r.IntN(12), n)
				}
				for ; sent < until; sent++ {
					send(sent)
					if r != nil && sent > 0 && r.IntN(4) == 0 {
						send(r.IntN(sent)) // again
					}
				}
				for range 30 {
					if err := s.Step(context.Background(), 0); err != nil {
						t.Fatal(err)
					}
					w.b.Advance(5 * time.Millisecond)
				}
			}
			return false
		}()
		if crashed && r.IntN(3) == 0 {
			w.disk = newMemoryLog()
		}
	}
	w.b.SetFault(func(simbroker.Call) simbroker.Action { return simbroker.Action{} })
	s := w.live()
	w.settle(s)
	return s
}

// readLines is what a read_committed reader sees of partition 0 of a topic, each record with its value, its ID and its time.
func (w *world) readLines(topic string, withID bool) (out []string) {
	r := w.b.Client("reader").NewReader(broker.ReaderConfig{})
	r.Seek(record.TopicPartition{Topic: topic}, 0, 1)
	for range 300 {
		for _, b := range r.Poll(context.Background(), time.Millisecond) {
			for _, x := range b.Records {
				line := fmt.Sprintf("%s=%s", x.Key, x.Value)
				if withID {
					id, _ := x.Headers.Get(topology.DefaultIDHeader)
					line += fmt.Sprintf(" %s %d", id, x.Timestamp.Sub(epoch).Milliseconds())
				}
				out = append(out, line)
			}
		}
	}
	return out
}

var windowKinds = []window.Windows{
	window.Tumbling(5 * time.Second).Grace(4 * time.Second),
	window.Hopping(10*time.Second, 4*time.Second).Grace(3 * time.Second),
	window.Session(900 * time.Millisecond).Grace(3 * time.Second),
	window.Sliding(3 * time.Second).Grace(2 * time.Second),
}

// TestWindowsAgainstAnOracle: for each aggregate and each kind of windows the results are those of the definition, and
// what is committed does not depend on portions, duplicates, commits, crashes and lost disks: not in order, not in IDs.
func TestWindowsAgainstAnOracle(t *testing.T) {
	for _, kind := range windowKinds {
		for _, onClose := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s close=%v", kind, onClose), func(t *testing.T) {
				topo := windowTopology(t, kind, onClose)
				for seed := range uint64(6) {
					all := randomSamples(rand.New(rand.NewPCG(seed, 1)), 120)
					w, _ := play(t, topo, all, nil)
					got := w.readLines("out", false)
					compareWithOracle(t, kind, onClose, all, got)
					first := w.readLines("out", true)
					w, _ = play(t, topo, all, rand.New(rand.NewPCG(seed, 2)))
					sameLines(t, w.readLines("out", true), first)
					if t.Failed() {
						t.Fatalf("seed %d", seed)
					}
				}
			})
		}
	}
}

// compareWithOracle compares final results: with onClose there is just one of each group.
func compareWithOracle(t *testing.T, kind window.Windows, onClose bool, all []sample, got []string) {
	t.Helper()
	final, times := map[string]string{}, map[string]int{}
	for _, line := range got {
		k, v, _ := strings.Cut(line, "=")
		final[k] = v
		times[k]++
	}
	groups := oracleGroups(kind, all)
	if len(groups) < 10 {
		t.Fatalf("only %d groups", len(groups))
	}
	wanted := map[string]bool{}
	for _, c := range aggregateCases {
		for g, records := range groups {
			wanted[c.name+g] = true
			want := fmt.Sprint(c.oracle(records))
			if c.name == "keep-first" && !onClose {
				continue // the first to come, and a session that is merged says nothing more
			}
			if final[c.name+g] != want {
				t.Errorf("%s is %q, want %q (records %v)", c.name+g, final[c.name+g], want, records)
			}
			if onClose && times[c.name+g] != 1 {
				t.Errorf("%s came %d times", c.name+g, times[c.name+g])
			}
		}
	}
	for k := range final {
		if onClose && !wanted[k] {
			t.Errorf("%s is no window", k)
		}
	}
}

func sameLines(t *testing.T, got, want []string) {
	t.Helper()
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Errorf("result %d is %q, want %q", i, got[i], want[i])
			return
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d results, want %d", len(got), len(want))
	}
}
