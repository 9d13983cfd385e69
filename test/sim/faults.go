package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
)

// armed is a fault of a request that waits for it.
type armed struct {
	Fault
	skip, times int
}

// faults decides the fate of requests.
type faults struct {
	w       *world
	pending []*armed
	doubts  map[string]bool // transactional IDs whose EndTxn had no clear answer
}

// arm makes a fault of a request wait for its request. One that is sent at a start only needs a start.
func (f *faults) arm(x Fault) {
	f.pending = append(f.pending, &armed{Fault: x, skip: x.Request.Skip, times: max(1, x.Request.Times)})
	f.w.heldInit = f.w.heldInit || x.Request.API == simbroker.InitProducerID && x.Request.Verdict == simbroker.Hold
	for _, a := range faultAPIs() {
		if a.api == x.Request.API && a.start {
			f.w.target(x.Target).kill()
		}
	}
}

// hook is the broker's Fault.
func (f *faults) hook(call simbroker.Call) simbroker.Action {
	w := f.w
	if w.abortNext && call.Client == "loader" && call.API == simbroker.EndTxn {
		w.abortNext = false
		return simbroker.Action{Verdict: simbroker.LoseRequest}
	}
	if !w.isOwner(call.Client) {
		return simbroker.Action{}
	}
	a := f.next(call)
	if call.API == simbroker.EndTxn {
		f.doubts[call.Where] = a.Verdict != simbroker.Handle && a.Verdict != simbroker.Repeat
	}
	return a
}

// next is what becomes of a request of an instance.
func (f *faults) next(call simbroker.Call) simbroker.Action {
	w := f.w
	for i, p := range f.pending {
		r := p.Request
		if r.API != call.API {
			continue
		}
		if p.skip--; p.skip >= 0 {
			continue
		}
		if p.times--; p.times <= 0 {
			f.pending = append(f.pending[:i], f.pending[i+1:]...)
		}
		w.hit(p.name())
		w.note("fault: %s of %s, code %d, arrives after %d", p.name(), call.Client, r.Code, r.After)
		a := simbroker.Action{Verdict: r.Verdict, Code: r.Code, Requests: r.After, Wait: p.Duration}
		if r.Verdict == simbroker.CrashBefore || r.Verdict == simbroker.CrashAfter {
			w.down, a.Wait = p.Duration, 0
		}
		w.lastFault = w.now().Add(a.Wait)
		return a
	}
	return simbroker.Action{}
}

// decided is told of each transaction's decision: an unknown outcome must be seen to end both ways (C12).
func (f *faults) decided(id string, commit bool) {
	if !f.doubts[id] {
		return
	}
	f.doubts[id] = false
	if commit {
		f.w.hit("unknown outcome: committed")
	} else {
		f.w.hit("unknown outcome: aborted")
	}
}

// trap is a place where the next process that comes by dies, or is stopped for a while.
type trap struct {
	Fault
	after int // so many pass before
}

// trapped says whether something is armed at a place.
func (w *world) trapped(where string) bool {
	return slices.ContainsFunc(w.traps, func(t *trap) bool { return t.Point == where })
}

// spring does what is armed at the place that a process has come to.
func (w *world) spring(o *owner, where string) {
	for i, t := range w.traps {
		if !strings.HasSuffix(where, t.Point) {
			continue
		}
		if t.after--; t.after >= 0 {
			continue
		}
		w.traps = slices.Delete(w.traps, i, i+1)
		w.hit(t.name())
		w.note("%s: %s", o.instance, t.name())
		if t.What == "death" {
			o.dying, w.down = true, t.Duration
			return
		}
		// The process stands still in the middle of a commit, and the group moves on: half of the time for less
		// than its session, so that it is still a member when it wakes up.
		o.paused = w.now().Add(t.Duration)
		w.lastFault = later(w.lastFault, o.paused)
		w.group.pending, w.group.moveAll, w.group.back = true, true, t.N%2 == 1
		return
	}
}

// markerDelay is the broker's hook: how long a marker takes to a partition.
func (w *world) markerDelay(tp record.TopicPartition, _ string) time.Duration {
	slow := w.slowMarker > 0
	switch w.slowWhere {
	case 0:
		slow = slow && w.delays.IntN(3) == 0
	case 1: // the offsets hear of it late, all else is visible
		slow = slow && tp == simbroker.OffsetsPartition()
	default: // the changelogs hear of it late, and the offsets are visible
		slow = slow && strings.HasSuffix(tp.Topic, "-changelog") && w.delays.IntN(2) == 0
	}
	if !slow {
		return time.Duration(w.delays.IntN(4)) * time.Millisecond
	}
	// One partition of one transaction learns of the decision much later than the others.
	w.slowMarker--
	w.hit("slow marker")
	if w.handOver {
		w.handOver = false
		w.group.pending, w.group.moveAll = true, true
	}
	return time.Duration(w.delays.IntN(4_000)) * time.Millisecond
}
