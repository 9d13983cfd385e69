package processor

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// TestKeyTooLargeForState: whoever sends a key that no state store takes must not be able to stop an application for good:
// it is the operator's record, and its policy applies.
func TestKeyTooLargeForState(t *testing.T) {
	count := func(w window.Windows) func(in intS) textS {
		return func(in intS) textS {
			return spoiledText(topology.Count(topology.WindowedBy(in, w.Grace(time.Second)), "op"), new(int64))
		}
	}
	text := func(s *topology.Stream[string, int64]) textS {
		return topology.Map(s, func(r record.Record[string, int64]) (string, string, error) { return r.Key, fmt.Sprint(r.Value), nil })
	}
	timers, wall := topology.Timers("timers", serde.String()), topology.WallTimers("timers", serde.String())
	set := func(in intS, set func(ctx topology.Context, key string) error, fired topology.ProcessOption) textS {
		return topology.Process(in, "op", func(ctx topology.Context, r record.Record[string, int64], emit textEmit) error {
			emit(record.Record[string, string]{Key: r.Key})
			return set(ctx, r.Key)
		}, fired)
	}
	for name, build := range map[string]func(in intS) textS{
		"count": func(in intS) textS { return text(topology.Count(in, "op")) },
		"keep":  func(in intS) textS { return text(topology.KeepFirst(in, "op")) },
		"table": func(in intS) textS {
			return topology.Map(topology.ToStream(topology.ToTable(in, "op", serde.Int64())), func(r record.Record[string, *int64]) (string, string, error) { return r.Key, fmt.Sprint(*r.Value), nil })
		},
		"tumbling": count(window.Tumbling(time.Second)),
		"hopping":  count(window.Hopping(2*time.Second, time.Second)),
		"sliding":  count(window.Sliding(time.Second)),
		"session":  count(window.Session(time.Second)),
		"join": func(in intS) textS {
			l, r := sides(in)
			return topology.LeftJoin(l, r, "op", topology.JoinWithin(time.Second), func(_ string, l int64, _ *int64) (string, error) { return fmt.Sprint(l), nil })
		},
		"timer": func(in intS) textS {
			return set(in, func(ctx topology.Context, key string) error { return timers.Set(ctx, key, epoch.Add(time.Hour)) },
				topology.OnTimer(timers, func(topology.Context, textTimer, textEmit) error { return nil }))
		},
		"wall timer": func(in intS) textS {
			return set(in, func(ctx topology.Context, key string) error { return wall.Set(ctx, key, start.Add(time.Hour)) },
				topology.OnTimer(wall, func(topology.Context, textTimer, textEmit) error { return nil }))
		},
	} {
		for _, policy := range []topology.Policy{topology.PolicyStop, topology.PolicySkip, topology.PolicyDeadLetter} {
			t.Run(fmt.Sprint(name, " ", policy), func(t *testing.T) {
				w := newWorld(t, numbers(t, never, func(in intS) {
					topology.To(build(in), "out", serde.String(), serde.String(), topology.Partition(func(record.Record[string, string], int32) record.Partition { return 0 }))
				}))
				w.opts = []Option{WithErrorPolicy(policy, "dlq")}
				s := w.live()
				large := strings.Repeat("x", 70_000)
				w.sendAt(0, large, 1, 2)
				w.sendAt(0, "a", 1, 2)
				w.sendAt(0, "z", 10, 1)
				if policy == topology.PolicyStop {
					var op *RecordError
					if err := w.stepUntil(s); !errors.As(err, &op) || !errors.Is(err, topology.ErrTooLarge) || op.Operator != "op" || op.Stage != topology.StageProcess {
						t.Fatalf("it does not stop as it should: %v", err)
					}
					return
				}
				w.work(s, time.Second)
				if got := strings.Join(w.readLines("out", false), " "); !strings.HasPrefix(got, "a=") {
					t.Errorf("out: %.100q", got)
				}
				dead := w.deadKeys()
				if policy == topology.PolicyDeadLetter != (len(dead) == 1 && dead[0] == large) {
					t.Errorf("%d dead letters", len(dead))
				}
			})
		}
	}
}
