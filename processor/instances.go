package processor

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// InstanceStatus is one instance of the application, as the group has it.
type InstanceStatus struct {
	// Instance is its instance ID; "": another program without one is in the group.
	Instance string `json:"instance"`
	// Address is what its WithAddress says, "" if it has none. It is text that whoever is in the group may have written.
	Address string   `json:"address,omitempty"`
	Here    bool     `json:"here,omitempty"` // it is this process
	Tasks   []string `json:"tasks"`          // as of the last assignment
}

// InstancesStatus are all instances of the application, this one with them.
type InstancesStatus struct {
	// AsOf is when the group answered last, by the host's clock. In the middle of a rebalance it does not.
	AsOf time.Time        `json:"as_of"`
	List []InstanceStatus `json:"list"`
}

// instances asks the group who is in it. Where it does not answer, or cannot while it rebalances, what it said last stays.
func (w *watch) instances(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, watchInterval)
	defer cancel()
	asked := w.now()
	members, err := w.stats.served.members(ctx, 0)
	if err != nil {
		w.log.Debug("cannot ask who is in the group", "err", err)
		return
	}
	list := w.instancesOf(members)
	w.stats.mu.Lock()
	w.stats.instances = &InstancesStatus{AsOf: asked, List: list}
	w.stats.mu.Unlock()
}

// instancesOf says what members have, as tasks.
func (e *engine) instancesOf(members []broker.Member) []InstanceStatus {
	parts := map[string]*subPlan{} // by input topic
	for _, p := range e.plan {
		for _, t := range p.inputs {
			parts[t.Name] = p
		}
	}
	type task struct {
		*subPlan
		n record.Partition
	}
	out := make([]InstanceStatus, 0, len(members))
	for _, m := range members {
		// All inputs of a task go to one member, so that several of them name it. What it owns is bytes that another program may have written.
		owned := map[task]bool{}
		for _, tp := range m.Owned {
			if p := parts[tp.Topic]; p != nil && tp.Partition >= 0 && int32(tp.Partition) < p.tasks {
				owned[task{p, tp.Partition}] = true
			}
		}
		x := InstanceStatus{Instance: m.Instance, Address: addressOf(m), Here: m.Instance == e.stats.instance, Tasks: make([]string, 0, len(owned))}
		for _, t := range slices.SortedFunc(maps.Keys(owned), func(a, b task) int {
			if a.subPlan != b.subPlan {
				return slices.Index(e.plan, a.subPlan) - slices.Index(e.plan, b.subPlan)
			}
			return int(a.n - b.n)
		}) {
			x.Tasks = append(x.Tasks, t.taskName(t.n))
		}
		out = append(out, x)
	}
	return out
}

// maxAddress is longer than any host name with a port. What a member says of itself is bytes that another program may have written.
const maxAddress = 300

func addressOf(m broker.Member) string {
	if len(m.UserData) > maxAddress {
		return ""
	}
	return string(m.UserData)
}
