package processor

import (
	"testing"

	"github.com/streamd/streamd/topology"
)

// TestCountersBalance: what docs/metrics.md says of the counters of a dedup operator holds, also if records
// without an ID pass.
func TestCountersBalance(t *testing.T) {
	w := newWorld(t, policyTopology(t, topology.Forward))
	s := w.live()
	for _, id := range []string{"1", "2", "", "1", "", "", "3", "2", "1"} {
		w.put(id, "v")
		w.settle(s)
	}
	for _, o := range s.Status().Operators {
		if o.Name != "unique" {
			continue
		}
		n := func(k topology.CounterKind) uint64 { return o.Counters[string(k)] }
		duplicates := n(topology.CounterDuplicateCommitted) + n(topology.CounterDuplicateOpen)
		forwarded := n(topology.CounterMissingForward)
		if n(topology.CounterIn) != n(topology.CounterChecked)+forwarded || forwarded != 3 {
			t.Errorf("%d in, %d checked, %d without an ID", n(topology.CounterIn), n(topology.CounterChecked), forwarded)
		}
		if n(topology.CounterChecked)+forwarded != duplicates+n(topology.CounterOut) || duplicates != 3 {
			t.Errorf("%d checked and %d forwarded, %d duplicates, %d out", n(topology.CounterChecked), forwarded, duplicates, n(topology.CounterOut))
		}
		return
	}
	t.Error("no operator \"unique\"")
}
