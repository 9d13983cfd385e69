package processor

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// judgement is what has become of the feed.
type judgement struct {
	lost, repeated int // IDs of topic echo
	// lostTotals and repeatedTotals are steps of the totals in topic out, behind the repartition topic.
	lostTotals, repeatedTotals int
	problems                   []string // what no guarantee allows
}

func (v *judgement) bad(format string, args ...any) {
	v.problems = append(v.problems, fmt.Sprintf(format, args...))
}

// judge counts what was lost and repeated, and finds what must not be under any guarantee: state that is not the fold of its
// changelog, counters that do not add up, repeats with another ID or value, totals that jump.
func (w *world) judge(s *Stepper) (v judgement) {
	w.b.Advance(20 * time.Millisecond) // the last markers
	copies := map[string][]broker.Record{}
	read := func(topic string) (all []broker.Record) {
		for p := range record.Partition(2) {
			for _, r := range w.b.Committed(record.TopicPartition{Topic: topic, Partition: p}) {
				id, _ := r.Headers.Get(topology.DefaultIDHeader)
				if id == nil {
					v.bad("%s has a record without an ID", topic)
				}
				copies[topic+" "+string(id)] = append(copies[topic+" "+string(id)], r)
				all = append(all, r)
			}
		}
		return all
	}
	read("echo")
	for p := range 2 {
		for n := range feedDistinct / 2 {
			switch c := copies[fmt.Sprintf("echo %d-%d", p, n)]; len(c) {
			case 0:
				v.lost++
			default:
				v.repeated += len(c) - 1
			}
		}
	}
	total, steps := w.foldsOf(&v), map[int64]int{}
	highest := int64(0)
	for _, r := range read("out") {
		n := int64(binary.BigEndian.Uint64(r.Value))
		if steps[n]++; steps[n] > 1 {
			v.repeatedTotals++
		} else if n != highest+1 {
			v.bad("total %d behind %d", n, highest)
		}
		highest = max(highest, n)
	}
	v.lostTotals = feedDistinct - int(total)
	if highest != total {
		v.bad("the last total is %d, the state %d", highest, total)
	}
	for name, c := range copies {
		for _, r := range c[1:] {
			if !bytes.Equal(r.Value, c[0].Value) || !bytes.Equal(r.Key, c[0].Key) {
				v.bad("%s comes again as %q, was %q", name, r.Value, c[0].Value)
			}
		}
	}
	w.countersOf(s, &v)
	return v
}

// foldsOf compares the local stores with their changelogs and returns the sum of the totals.
func (w *world) foldsOf(v *judgement) (total int64) {
	stores := 0
	for name, task := range w.disk.tasks {
		var p record.Partition
		if _, err := fmt.Sscanf(name[strings.LastIndex(name, "/"):], "/%d", &p); err != nil {
			w.t.Fatal(err)
		}
		for store := range task.state {
			fold := map[string]int64{}
			for _, r := range w.b.Committed(record.TopicPartition{Topic: "app-" + store + "-changelog", Partition: p}) {
				fold[string(r.Key)] = int64(binary.BigEndian.Uint64(r.Value))
			}
			state := w.state(w.disk, name, store)
			if !maps.Equal(state, fold) {
				v.bad("%s: the state is %v, the fold of its changelog %v", name, state, fold)
			}
			for _, n := range state {
				total += n
				stores++
			}
		}
	}
	if stores > 1 {
		v.bad("%d totals, there is one key", stores)
	}
	return total
}

// countersOf checks that the metrics tell what was committed, and nothing of what was lost.
func (w *world) countersOf(s *Stepper, v *judgement) {
	for _, o := range s.Status().Operators {
		if o.Name != "unique" {
			continue
		}
		c := func(k topology.CounterKind) int { return int(o.Counters[string(k)]) }
		passed, dups := c(topology.CounterOut), c(topology.CounterDuplicateCommitted)+c(topology.CounterDuplicateOpen)
		if passed != feedDistinct-v.lost || c(topology.CounterChecked) != passed+dups {
			v.bad("counters: %d passed, %d duplicates, %d checked; %d IDs are lost", passed, dups, c(topology.CounterChecked), v.lost)
		}
	}
	if s.Status().State != Running {
		v.bad("state %s", s.Status().State)
	}
}

// forbids returns what a guarantee does not allow of a judgement.
func forbids(l topology.Level, v judgement) []string {
	if (l == topology.ExactlyOnce || l == topology.AtLeastOnce) && v.lost+v.lostTotals != 0 {
		v.bad("%d IDs and %d steps of the totals are lost", v.lost, v.lostTotals)
	}
	if (l == topology.ExactlyOnce || l == topology.AtMostOnce) && v.repeated+v.repeatedTotals != 0 {
		v.bad("%d IDs and %d steps of the totals are repeated", v.repeated, v.repeatedTotals)
	}
	return v.problems
}

// TestGuaranteesUnderKills kills the process at each hit of each point of a small job, with and without its disk. At most once
// loses and never repeats, at least once repeats and never loses, exactly once does neither; and the state is the fold of its
// changelog under all of them.
func TestGuaranteesUnderKills(t *testing.T) {
	for _, level := range topology.ProcessingLevels() {
		t.Run(string(level), func(t *testing.T) {
			base, hits := newWorld(t, totals(t)), 0
			base.opts = []Option{WithGuarantee(level)}
			names := map[string]int{}
			base.point = func(name string) { hits++; names[name]++ }
			s, _, err := base.run(false)
			if err != nil {
				t.Fatal(err)
			}
			if v := base.judge(s); len(forbids(topology.ExactlyOnce, v)) > 0 {
				t.Fatalf("without a kill: %+v", v)
			}
			var sum judgement
			for n := 1; n <= hits; n += 3 {
				for _, wipe := range []bool{false, true} {
					w, at, where := newWorld(t, totals(t)), 0, ""
					w.opts = base.opts
					w.point = func(name string) {
						if at++; at == n {
							where = name
							panic(simbroker.Crash{})
						}
					}
					s, lives, err := w.run(wipe)
					if err != nil || lives != 2 {
						t.Fatalf("killed at point %d (%s), wipe %v: %d lives, %v", n, where, wipe, lives, err)
					}
					v := w.judge(s)
					for _, p := range forbids(level, v) {
						t.Errorf("killed at point %d (%s), wipe %v: %s", n, where, wipe, p)
					}
					sum.lost, sum.repeated = sum.lost+v.lost, sum.repeated+v.repeated
					sum.lostTotals, sum.repeatedTotals = sum.lostTotals+v.lostTotals, sum.repeatedTotals+v.repeatedTotals
				}
			}
			t.Logf("killed at %d points of %v: %d IDs lost, %d repeated; %d steps of totals lost, %d repeated", hits, names, sum.lost, sum.repeated, sum.lostTotals, sum.repeatedTotals)
			if loses := level == topology.AtMostOnce; (sum.lost > 0) != loses || (sum.lostTotals > 0) != loses {
				t.Errorf("%s: %d IDs and %d steps lost: the run proves nothing", level, sum.lost, sum.lostTotals)
			}
			if repeats := level == topology.AtLeastOnce; (sum.repeated > 0) != repeats || (sum.repeatedTotals > 0) != repeats {
				t.Errorf("%s: %d IDs and %d steps repeated: the run proves nothing", level, sum.repeated, sum.repeatedTotals)
			}
			for _, name := range fault.GuaranteeNames() {
				want := strings.HasPrefix(name, "claim.") && level == topology.AtMostOnce || strings.HasPrefix(name, "ahead.") && level == topology.AtLeastOnce
				if (names[name] > 0) != want {
					t.Errorf("%s: %d hits of %s", level, names[name], name)
				}
			}
		})
	}
}

// TestEveryFaultBelowExactlyOnce is TestEveryFaultAtEveryRequest for the other guarantees: whatever becomes of a request, what the
// guarantee forbids does not happen.
func TestEveryFaultBelowExactlyOnce(t *testing.T) {
	for _, level := range []topology.Level{topology.AtLeastOnce, topology.AtMostOnce} {
		t.Run(string(level), func(t *testing.T) {
			var lost, repeated int
			hit := everyFault(t, 21, func() (*world, func(*Stepper) []string) {
				w := newWorld(t, totals(t))
				w.opts = []Option{WithGuarantee(level)}
				return w, func(s *Stepper) []string {
					v := w.judge(s)
					lost, repeated = lost+v.lost+v.lostTotals, repeated+v.repeated+v.repeatedTotals
					return forbids(level, v)
				}
			})
			t.Logf("%d lost, %d repeated; %v", lost, repeated, hit)
			if lost+repeated == 0 {
				t.Error("nothing was lost or repeated: the run proves nothing")
			}
		})
	}
}

// TestGuaranteeOfOneOutput: one topic of an application that is exactly once may be ahead, and the other way round.
func TestGuaranteeOfOneOutput(t *testing.T) {
	for application, own := range map[topology.Level]topology.Level{topology.ExactlyOnce: topology.AtLeastOnce, topology.AtLeastOnce: topology.ExactlyOnce} {
		w := newWorld(t, totals(t, topology.Guarantee(own)))
		w.opts = []Option{WithGuarantee(application)}
		killed := false
		w.point = func(name string) {
			if name == "ahead.acked" && !killed {
				killed = true
				panic(simbroker.Crash{})
			}
		}
		s, lives, err := w.run(false)
		if err != nil || lives != 2 {
			t.Fatalf("%d lives, %v", lives, err)
		}
		v := w.judge(s)
		echoes, sums := application == topology.AtLeastOnce, own == topology.AtLeastOnce
		if v.problems != nil || v.lost+v.lostTotals > 0 || v.repeated > 0 && !echoes || (v.repeated > 0) == (v.repeatedTotals > 0) || (v.repeatedTotals > 0) != sums {
			t.Errorf("application %s, topic out %s: %+v", application, own, v)
		}
	}
}

// TestAheadIsSeenAtOnce: what is sent ahead stands in its topic before there is a transaction, and outside of it.
func TestAheadIsSeenAtOnce(t *testing.T) {
	for _, level := range topology.ProcessingLevels() {
		w := newWorld(t, totals(t))
		w.opts = []Option{WithGuarantee(level)}
		var seen []int // just before the transaction is sent
		w.point = func(name string) {
			if name == "ahead.acked" || name == "commit.prepared" && level != topology.AtLeastOnce {
				seen = append(seen, len(w.b.Committed(record.TopicPartition{Topic: "echo"})))
			}
		}
		s := w.live()
		w.send(0, "k", "a", 1)
		w.settle(s)
		if len(seen) == 0 || (seen[0] == 1) != (level == topology.AtLeastOnce) {
			t.Errorf("%s: %v records seen before each transaction", level, seen)
		}
		controls := 0
		for _, e := range w.b.Log(record.TopicPartition{Topic: "echo"}) {
			if e.Control {
				controls++
			}
		}
		if (controls == 0) != (level == topology.AtLeastOnce) {
			t.Errorf("%s: %d markers", level, controls)
		}
	}
}

// TestGuaranteeIsChecked: an application does not start with a guarantee that it would not keep.
func TestGuaranteeIsChecked(t *testing.T) {
	for level, want := range map[topology.Level]string{topology.AtLeastOnce: "", topology.AtMostOnce: "a guarantee of its own", "": "want one of", topology.NoGuarantee: "want one of"} {
		_, err := New(totals(t, topology.Guarantee(topology.ExactlyOnce)), WithBrokers("127.0.0.1:1"), WithStateDir(t.TempDir()), WithGuarantee(level))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", level, err)
		}
	}
}
