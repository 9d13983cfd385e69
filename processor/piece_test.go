package processor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// failing is a topology that has three results of key "a" due at once, of the records 2, 4 and 6, of which that of spoiled
// fails for as long as it is not 0.
type failing struct {
	name string
	// operator and stage are where it fails.
	operator string
	stage    topology.Stage
	at       [3]float64 // of the records
	build    func(in intS, spoiled *int64) textS
}

// spoil is the text of a result. It fails for that of spoiled.
func spoil(v int64, spoiled *int64) (string, error) {
	if v == *spoiled {
		return "", errors.New("spoiled")
	}
	return fmt.Sprint(v), nil
}

// large makes the result of spoiled too large for any topic.
func large(s textS, spoiled *int64) textS {
	return topology.Map(s, func(r record.Record[string, string]) (string, string, error) {
		if r.Value == fmt.Sprint(*spoiled) {
			return r.Key, strings.Repeat("x", 2<<20), nil
		}
		return r.Key, r.Value, nil
	})
}

// closing has a window of its own for each record.
func closing(in intS, w window.Windows, merge func(a, b int64) (int64, error)) *topology.Stream[inWin, int64] {
	return topology.Reduce(topology.WindowedBy(in, w.Grace(50*time.Second)), "sums", merge, topology.EmitOnClose())
}

func add(a, b int64) (int64, error) { return a + b, nil }

// spoiledText gives the results of windows away.
func spoiledText(s *topology.Stream[inWin, int64], spoiled *int64) textS {
	return topology.Map(s, func(r record.Record[inWin, int64]) (string, string, error) {
		v, err := spoil(r.Value, spoiled)
		return r.Key.Key, v, err
	}, topology.Name("text"))
}

func joinsOf(in intS, join func(l, r intS, w topology.JoinWindows) textS) textS {
	l, r := sides(in)
	return join(l, r, topology.JoinWithin(time.Second).Grace(50*time.Second))
}

var failures = []failing{
	{name: "left join", operator: "joined", stage: topology.StageProcess, at: [3]float64{1, 1, 2}, build: func(in intS, spoiled *int64) textS {
		return joinsOf(in, func(l, r intS, w topology.JoinWindows) textS {
			return topology.LeftJoin(l, r, "joined", w, func(_ string, l int64, _ *int64) (string, error) { return spoil(l, spoiled) })
		})
	}},
	{name: "outer join, the right ones", operator: "joined", stage: topology.StageProcess, at: [3]float64{1, 1, 2}, build: func(in intS, spoiled *int64) textS {
		return joinsOf(in, func(l, r intS, w topology.JoinWindows) textS {
			return topology.OuterJoin(r, l, "joined", w, func(_ string, _, r *int64) (string, error) { return spoil(*r, spoiled) })
		})
	}},
	{name: "left join, refused", operator: "to-out", stage: topology.StageProduce, at: [3]float64{1, 1, 2}, build: func(in intS, spoiled *int64) textS {
		return large(joinsOf(in, func(l, r intS, w topology.JoinWindows) textS {
			return topology.LeftJoin(l, r, "joined", w, func(_ string, l int64, _ *int64) (string, error) { return fmt.Sprint(l), nil })
		}), spoiled)
	}},
	{name: "sessions", operator: "text", stage: topology.StageProcess, at: [3]float64{1, 4, 7}, build: func(in intS, spoiled *int64) textS {
		return spoiledText(closing(in, window.Session(time.Second), add), spoiled)
	}},
	{name: "sessions, refused", operator: "to-out", stage: topology.StageProduce, at: [3]float64{1, 4, 7}, build: func(in intS, spoiled *int64) textS {
		return large(spoiledText(closing(in, window.Session(time.Second), add), new(int64)), spoiled)
	}},
	{name: "sliding", operator: "text", stage: topology.StageProcess, at: [3]float64{1, 4, 7}, build: func(in intS, spoiled *int64) textS {
		return spoiledText(closing(in, window.Sliding(time.Second), add), spoiled)
	}},
	// Each window has the records before it, too, and is made when it closes: the larger of them counts.
	{name: "sliding, the merge", operator: "sums", stage: topology.StageProcess, at: [3]float64{1, 2, 3}, build: func(in intS, spoiled *int64) textS {
		return spoiledText(closing(in, window.Sliding(time.Second), func(a, b int64) (int64, error) {
			_, err := spoil(max(a, b), spoiled)
			return max(a, b), err
		}), new(int64))
	}},
}

// TestOneOfSeveralFails: results of one key that are due at once fail one by one. Those that can be made come out, in their
// order; that which cannot is an error, with its key and its value, and counted.
func TestOneOfSeveralFails(t *testing.T) {
	for _, f := range failures {
		for _, policy := range []topology.Policy{topology.PolicyStop, topology.PolicySkip, topology.PolicyDeadLetter} {
			for _, bad := range []int64{2, 4, 6} {
				if bad == 2 && strings.HasSuffix(f.name, "merge") {
					continue // the first window has nothing to be merged
				}
				t.Run(fmt.Sprintf("%s/%v/%d", f.name, policy, bad), func(t *testing.T) { f.run(t, policy, bad) })
			}
		}
	}
}

func (f *failing) run(t *testing.T, policy topology.Policy, bad int64) {
	spoiled := bad
	w := newWorld(t, numbers(t, never, func(in intS) {
		topology.To(f.build(in, &spoiled), "out", serde.String(), serde.String(), topology.Partition(func(record.Record[string, string], int32) record.Partition { return 0 }))
	}))
	w.opts = []Option{WithErrorPolicy(policy, "dlq")}
	s := w.live()
	var all, good []string
	for i, at := range f.at {
		v := int64(2 * (i + 1))
		w.sendAt(0, "a", at, v)
		all = append(all, fmt.Sprintf("a=%d", v))
		if v != bad {
			good = append(good, all[i])
		}
	}
	w.work(s, time.Second)
	w.sendAt(0, "z", 100, 8)
	if policy == topology.PolicyStop {
		var te *TimerError
		if err := w.stepUntil(s); !errors.As(err, &te) || te.Operator != f.operator || te.Stage != f.stage || string(te.Key) != "a" {
			t.Fatalf("it does not stop as it should: %v", err)
		}
		spoiled = 0 // the operator is mended
		w.work(w.live(), time.Second)
		sameLines(t, w.readLines("out", false), all)
		return
	}
	w.work(s, time.Second)
	w.work(w.live(), time.Second)
	sameLines(t, w.readLines("out", false), good)
	var dead []string
	action := actionSkip
	if policy == topology.PolicyDeadLetter {
		action, dead = actionDeadLetter, []string{fmt.Sprintf("a=%s", []byte{7: byte(bad)})}
	}
	if got := w.readLines("dlq", false); !slices.Equal(got, dead) {
		t.Errorf("dead letters %q, want %q", got, dead)
	}
	if n := counterOf(s, f.operator, topology.CounterKind(metric.ErrorCounter(string(f.stage), action))); n != 1 {
		t.Errorf("%d errors were counted, want 1", n)
	}
}
