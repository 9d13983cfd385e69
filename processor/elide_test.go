package processor

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

type (
	numbersStream = *topology.Stream[string, int64]
	dedupOptions  = []topology.DedupOption
)

// elidable builds a topology whose operator "second" is in question. more are further options of it.
type elidable func(in numbersStream, more dedupOptions) numbersStream

const guarded = 8 * time.Second // the retention of "second"

// guardOf is a dedup operator "first".
func guardOf(in numbersStream, retention time.Duration, more ...topology.DedupOption) numbersStream {
	return topology.Dedup(in, "first", append(dedupOptions{topology.Retention(retention), topology.OnTooLate(topology.Drop)}, more...)...)
}

func secondOf(in numbersStream, more dedupOptions) numbersStream {
	return topology.Dedup(in, "second", append(dedupOptions{topology.Retention(guarded), topology.OnTooLate(topology.Drop)}, more...)...)
}

func odd(r record.Record[string, int64]) (bool, error)      { return r.Value%2 == 1, nil }
func third(r record.Record[string, int64]) (bool, error)    { return r.Value%3 != 0, nil }
func tenfold(r record.Record[string, int64]) (int64, error) { return r.Value * 10, nil }

func elisionTopology(t *testing.T, build elidable, more ...topology.DedupOption) *topology.Topology {
	t.Helper()
	b := topology.New("app")
	out := build(topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id")), more)
	topology.To(out, "out", serde.String(), serde.Int64())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// leftOutIn says whether the planner has left out the log of "second".
func leftOutIn(topo *topology.Topology) bool {
	return slices.ContainsFunc(topo.Explain().Dedups, func(e topology.Elision) bool { return e.Operator == "second" && e.LeftOut })
}

// load says how many records come, how many of them within a retention (about), and from how far back IDs are repeated.
type load struct{ records, within, back int }

var (
	sparse = load{220, 50, 50}   // a generation of IDs is a transaction or two
	dense  = load{700, 200, 260} // and here many
)

// repeats makes records of which many come again, at all distances around the retention, in either partition, some late.
func repeats(r *rand.Rand, l load) []broker.Record {
	var all []broker.Record
	var ids []string
	at := start.Add(-time.Hour)
	for i := range l.records {
		at = at.Add(time.Duration(r.IntN(int(guarded) * 2 / l.within)))
		id := fmt.Sprint(i)
		if back := r.IntN(l.back); len(ids) > back && r.IntN(2) == 0 {
			id = ids[len(ids)-1-back]
		} else {
			ids = append(ids, id)
		}
		when := at
		if r.IntN(10) == 0 {
			when = at.Add(-time.Duration(r.IntN(int(2 * guarded))))
		}
		all = append(all, broker.Record{
			Key: []byte{'a' + byte(r.IntN(3))}, Value: []byte{0, 0, 0, 0, 0, 0, 0, byte(r.IntN(30))}, Timestamp: when,
			Headers: record.Headers{{Key: "id", Value: []byte(id)}},
		})
	}
	return all
}

// churn runs the records through a topology in portions, with lost answers, crashes and lost disks, all as the seed says.
func churn(t *testing.T, topo *topology.Topology, l load, seed uint64) (*world, *Stepper) {
	t.Helper()
	all := repeats(rand.New(rand.NewPCG(seed, 1)), l)
	portions, faults := rand.New(rand.NewPCG(seed, 2)), rand.New(rand.NewPCG(seed, 3))
	w := newWorld(t, topo)
	sent := 0
	life := func() (crashed bool) {
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
		calls, last := 0, 40+faults.IntN(300)
		verdict := []simbroker.Verdict{simbroker.CrashBefore, simbroker.CrashAfter}[faults.IntN(2)]
		w.b.SetFault(func(c simbroker.Call) simbroker.Action {
			if calls++; calls == last {
				return simbroker.Action{Verdict: verdict}
			}
			if c.API == simbroker.EndTxn && faults.IntN(4) == 0 {
				return simbroker.Action{Verdict: []simbroker.Verdict{simbroker.LoseRequest, simbroker.LoseAnswer}[faults.IntN(2)], Wait: time.Millisecond}
			}
			return simbroker.Action{}
		})
		for sent < len(all) {
			for n := min(sent+1+portions.IntN(9), len(all)); sent < n; sent++ {
				w.b.Append(record.TopicPartition{Topic: "in", Partition: record.Partition(sent * 7 % 11 % 2)}, all[sent])
			}
			for range 30 {
				if err := s.Step(context.Background(), 0); err != nil {
					t.Fatal(err)
				}
				w.b.Advance(5 * time.Millisecond)
			}
		}
		return false
	}
	for life() {
		if faults.IntN(3) == 0 {
			w.disk = newMemoryLog()
		}
	}
	w.b.SetFault(func(simbroker.Call) simbroker.Action { return simbroker.Action{} })
	s := w.live()
	w.settle(s)
	return w, s
}

// foundBy is how many repeats an operator has dropped.
func foundBy(s *Stepper, operator string) uint64 {
	return counterOf(s, operator, topology.CounterDuplicateCommitted) + counterOf(s, operator, topology.CounterDuplicateOpen)
}

const elisionSeeds = 6

// TestLogsThatAreLeftOutFindNothing: where the planner leaves out a log, the same operator with a log finds nothing, whatever
// crashes, and what comes out is the same, IDs and times and all.
func TestLogsThatAreLeftOutFindNothing(t *testing.T) {
	token := topology.SameID("value")
	byValue := topology.ID(func(r record.Record[string, int64]) record.ID { return record.StringID(fmt.Sprint(r.Value)) })
	tests := map[string]elidable{
		"directly": func(in numbersStream, more dedupOptions) numbersStream {
			return secondOf(guardOf(in, guarded*9/8), more)
		},
		"equal": func(in numbersStream, more dedupOptions) numbersStream {
			return secondOf(topology.MapValues(guardOf(in, guarded), tenfold), more)
		},
		"filtered": func(in numbersStream, more dedupOptions) numbersStream {
			return secondOf(topology.Filter(guardOf(in, guarded*9/8), odd), more)
		},
		"one case": func(in numbersStream, more dedupOptions) numbersStream {
			return secondOf(topology.Branch(guardOf(in, guarded*9/8), "b", third)[0], more)
		},
		"longer": func(in numbersStream, more dedupOptions) numbersStream {
			return secondOf(topology.MapValues(guardOf(in, 3*guarded), tenfold), more)
		},
		"by a function": func(in numbersStream, more dedupOptions) numbersStream {
			return secondOf(topology.Filter(guardOf(in, guarded*9/8, byValue, token), third), append(dedupOptions{byValue, token}, more...))
		},
		"across all partitions": func(in numbersStream, more dedupOptions) numbersStream {
			return secondOf(guardOf(in, guarded*9/8, topology.ScopeStream()), more)
		},
	}
	for name, build := range tests {
		t.Run(name, func(t *testing.T) {
			without, with := elisionTopology(t, build), elisionTopology(t, build, topology.Always())
			if !leftOutIn(without) || leftOutIn(with) {
				t.Fatalf("left out: %v, with Always %v", leftOutIn(without), leftOutIn(with))
			}
			dropped := uint64(0)
			for seed := range uint64(elisionSeeds) {
				l := sparse
				if seed%3 == 2 {
					l = dense
				}
				a, sa := churn(t, without, l, seed)
				b, sb := churn(t, with, l, seed)
				if n := foundBy(sb, "second"); n != 0 {
					t.Fatalf("seed %d: the log that is left out finds %d repeats", seed, n)
				}
				dropped += foundBy(sb, "first")
				if l == dense {
					continue // when the first one forgets depends on where the commits fall, and both runs have their own
				}
				if diff := different(a.lines("out"), b.lines("out")); diff != "" {
					t.Fatalf("seed %d: without the log and with it: %s", seed, diff)
				}
				for _, k := range []topology.CounterKind{topology.CounterIn, topology.CounterOut, topology.CounterTooLate, topology.CounterChecked} {
					if x, y := counterOf(sa, "second", k), counterOf(sb, "second", k); x != y {
						t.Errorf("seed %d: counter %s is %d without the log, %d with it", seed, k, x, y)
					}
				}
			}
			if dropped == 0 {
				t.Error("there were no repeats: the test is blind")
			}
		})
	}
}

// TestLogsThatAreKeptFindSomething: for each condition of an elision there is a topology that fails it alone, in which the log does
// find repeats. To leave it out would be wrong, and the test above would see it.
func TestLogsThatAreKeptFindSomething(t *testing.T) {
	whole := guarded * 9 / 8
	tests := map[string]elidable{
		"shorter": func(in numbersStream, more dedupOptions) numbersStream {
			return secondOf(guardOf(in, guarded/2), more)
		},
		"equal, filtered": func(in numbersStream, more dedupOptions) numbersStream {
			return secondOf(topology.Filter(guardOf(in, guarded), odd), more)
		},
		"other IDs": func(in numbersStream, more dedupOptions) numbersStream {
			return secondOf(guardOf(in, whole), append(dedupOptions{topology.ID(func(r record.Record[string, int64]) record.ID { return record.StringID(r.Key) })}, more...))
		},
		"repeats pass": func(in numbersStream, more dedupOptions) numbersStream {
			return secondOf(guardOf(in, whole, topology.OnDuplicate(topology.Forward)), more)
		},
		"by two ways": func(in numbersStream, more dedupOptions) numbersStream {
			first := guardOf(in, whole)
			return secondOf(topology.Merge("m", topology.Filter(first, odd), topology.Filter(first, third)), more)
		},
		"repeats beside": func(in numbersStream, more dedupOptions) numbersStream {
			first := topology.DedupSplit(in, "first", topology.Retention(whole), topology.OnTooLate(topology.Drop))
			return secondOf(topology.Merge("m", first.Unique, first.Duplicate), more)
		},
		"from other partitions": func(in numbersStream, more dedupOptions) numbersStream {
			return secondOf(guardOf(in, whole), append(dedupOptions{topology.ScopeStream()}, more...))
		},
	}
	for name, build := range tests {
		t.Run(name, func(t *testing.T) {
			topo := elisionTopology(t, build)
			if leftOutIn(topo) {
				t.Fatal("the planner leaves the log out")
			}
			for seed := range uint64(4 * elisionSeeds) {
				l := []load{dense, sparse}[seed%2]
				if _, s := churn(t, topo, l, seed); foundBy(s, "second") > 0 {
					return
				}
			}
			t.Error("the log finds nothing: either it could be left out, or the test is blind")
		})
	}
}

// TestWrongElisionIsSeen plants one: two functions are said to be the same and are not. What comes out differs.
func TestWrongElisionIsSeen(t *testing.T) {
	build := func(in numbersStream, more dedupOptions) numbersStream {
		id := func(mod int64) topology.IDOption {
			return topology.ID(func(r record.Record[string, int64]) record.ID { return record.StringID(fmt.Sprint(r.Value % mod)) })
		}
		first := guardOf(in, guarded*9/8, id(100), topology.SameID("x"))
		return secondOf(first, append(dedupOptions{id(5), topology.SameID("x")}, more...))
	}
	without, with := elisionTopology(t, build), elisionTopology(t, build, topology.Always())
	if !leftOutIn(without) {
		t.Fatal("the promise was not believed")
	}
	a, _ := churn(t, without, sparse, 1)
	b, s := churn(t, with, sparse, 1)
	if different(a.lines("out"), b.lines("out")) == "" || foundBy(s, "second") == 0 {
		t.Error("a wrong elision is not seen")
	}
}

// different says where two lists differ, empty if they do not.
func different(a, b []string) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("%q, %q", a[i], b[i])
		}
	}
	if len(a) != len(b) {
		return fmt.Sprintf("%d records, %d records", len(a), len(b))
	}
	return ""
}

// lines are the records of both partitions of a topic, with their IDs and times, sorted: which task came first is no matter here.
func (w *world) lines(topic string) (out []string) {
	for _, x := range w.records(topic) {
		id, _ := x.Headers.Get(topology.DefaultIDHeader)
		out = append(out, fmt.Sprintf("%s=%d %s %d", x.Key, x.Value, id, x.Timestamp.UnixMilli()))
	}
	slices.Sort(out)
	return out
}
