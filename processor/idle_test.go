package processor

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// TestNoAnswerIsNotIdle: while a broker does not answer, nobody knows whether an input has records. What was committed
// in time is not late on that account, however long it lasts, and once there are answers time goes on.
func TestNoAnswerIsNotIdle(t *testing.T) {
	topo := numbers(t, []topology.SourceOption{topology.WithIdleness(2 * time.Second)}, func(in *topology.Stream[string, int64]) {
		toOut(topology.Count(topology.WindowedBy(in, window.Tumbling(10*time.Second)), "counts", topology.EmitOnClose()))
	})
	for name, away := range map[string]simbroker.Action{
		"outage":    {Verdict: simbroker.LoseRequest, Wait: 30 * time.Millisecond},
		"slow":      {Verdict: simbroker.LoseAnswer, Wait: 5 * time.Second},
		"no leader": {Verdict: simbroker.Refuse, Code: simbroker.NotLeaderOrFollower},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart=%v", name, restart), func(t *testing.T) {
				w := newWorld(t, topo)
				s := w.live()
				w.sendAt(0, "a", 4, 1)
				w.work(s, time.Second)
				w.b.SetFault(func(c simbroker.Call) simbroker.Action {
					if c.API == simbroker.Fetch {
						return away
					}
					return simbroker.Action{}
				})
				w.sendAt(0, "a", 5, 1)
				if restart {
					s = w.live()
				}
				w.work(s, 30*time.Second)
				w.b.SetFault(nil)
				w.work(s, time.Second)
				expectOut(t, w, "")
				w.work(s, 12*time.Second)
				expectOut(t, w, "a@0-10=2")
				if late := counterOf(s, "counts", topology.CounterLate); late != 0 {
					t.Errorf("%d records are late", late)
				}
			})
		}
	}
}

// TestLagOfAQuietTask: the store of a task that has nothing to do catches up with its commits, also if its worker is
// busy with another one.
func TestLagOfAQuietTask(t *testing.T) {
	w := newWorld(t, totals(t))
	s := w.live()
	w.send(0, "ann", "first", 1)
	w.settle(s)
	w.send(0, "ann", "second", 1)
	committed := func(task string) uint64 {
		for _, r := range s.workers[0].runs {
			if r.name == task {
				return r.task.point.Sequence
			}
		}
		return 0
	}
	quiet := "in/0"
	was, n := committed(quiet), 0
	for end := w.b.Now().Add(3 * time.Second); w.b.Now().Before(end); n++ {
		w.send(1, "bob", fmt.Sprint(n), 1)
		if err := s.Step(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		w.b.Advance(time.Millisecond)
	}
	if got, want := w.disk.tasks[quiet].position.Sequence, committed(quiet); got != want || want == was {
		t.Errorf("after %d records of another task the store is at commit %d of %d (it was at %d before)", n, got, want, was)
	}
}
