package processor

import (
	"fmt"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/topology"
)

// TestCountersNeverLookReset: a process is killed and started again, and stopped. At no scrape does a counter that was shown fall: while it
// is not known it is not shown.
func TestCountersNeverLookReset(t *testing.T) {
	w := newWorld(t, policyTopology(t, topology.Stop))
	shown := uint64(0)
	scrape := func(s *Stepper) (x metric.Snapshot) {
		t.Helper()
		if x = s.engine.stats.snapshot(w.topo, nil); x.Unknown {
			return x
		}
		now := uint64(0)
		for _, topic := range x.Topics {
			if topic.Consumed != nil {
				now += topic.Consumed.Records
			}
		}
		if now < shown {
			t.Errorf("the records consumed fell from %d to %d", shown, now)
		}
		shown = now
		return x
	}
	first := w.live()
	for i := range 5 {
		w.put(fmt.Sprint(i), "v")
		w.settle(first)
		scrape(first)
	}
	if shown != 5 {
		t.Fatalf("%d records are shown, want 5", shown)
	}
	second := w.live()
	if x := scrape(second); !x.Unknown {
		t.Error("counters are shown though no task is restored")
	}
	w.until("all of them", func() bool { return !scrape(second).Unknown }, second)
	if shown != 5 {
		t.Errorf("%d records are shown after the restart, want 5", shown)
	}
	second.engine.stats.setState(Stopping, "")
	if x := scrape(second); !x.Unknown {
		t.Error("counters are shown while tasks go one by one")
	}
}

// TestCountersOfATaskThatComes: a task that comes later and is not restored yet takes nothing away from what is shown.
func TestCountersOfATaskThatComes(t *testing.T) {
	topo := policyTopology(t, topology.Stop)
	s := newStats(time.Unix(0, 0))
	known := func() bool { return !s.snapshot(topo, nil).Unknown }
	view := func(name string, known bool) taskView {
		return taskView{known: known, sub: topo.Subtopologies()[0], status: TaskStatus{Name: name, State: TaskRunning}}
	}
	steps := []struct {
		do   func()
		want bool
	}{
		{func() { s.assigned(time.Unix(0, 0), 2) }, false},
		{func() { s.put(view("in/0", true)) }, false},
		{func() { s.put(view("in/1", false)) }, false},
		{func() { s.put(view("in/1", true)) }, true},
		{func() { s.assigned(time.Unix(1, 0), 3); s.put(view("in/2", false)) }, true},
		{func() { s.remove("in/0"); s.remove("in/1") }, true},
		{func() { s.remove("in/2") }, false}, // none is left
	}
	for i, x := range steps {
		if x.do(); known() != x.want {
			t.Errorf("step %d: known is %v", i, known())
		}
	}
}
