package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
)

// requestFault hits the n-th request of one kind that an owner sends from now on.
type requestFault struct {
	api    simbroker.API
	skip   int
	times  int
	action simbroker.Action
}

func (f requestFault) String() string {
	return fmt.Sprintf("%s %s", f.api, verdictNames[f.action.Verdict])
}

var verdictNames = map[simbroker.Verdict]string{
	simbroker.Refuse: "refused", simbroker.HandleThenFail: "handled, then failed", simbroker.LoseRequest: "request lost",
	simbroker.LoseAnswer: "answer lost", simbroker.Hold: "held", simbroker.CrashBefore: "crash before", simbroker.CrashAfter: "crash after",
}

// verdicts are drawn from evenly.
var verdicts = []simbroker.Verdict{
	simbroker.Refuse, simbroker.Refuse, simbroker.HandleThenFail, simbroker.LoseRequest, simbroker.LoseAnswer,
	simbroker.Hold, simbroker.CrashBefore, simbroker.CrashAfter,
}

// faultAPIs are the requests that are hit, and what a broker may answer to each.
var faultAPIs = []struct {
	api   simbroker.API
	codes []simbroker.Code
	after []simbroker.Code // answered although it was handled
}{
	{simbroker.AddPartitionsToTxn, []simbroker.Code{51, 14, 15, 16, 48, 49, 3, -1}, nil},
	{simbroker.AddOffsetsToTxn, []simbroker.Code{51, 14, 15, 16, 48, -1}, nil},
	{simbroker.Produce, []simbroker.Code{5, 6, 7, 19, 20, 45, 47, 48, 56, 59, 74, -1}, []simbroker.Code{7, 20, 6}},
	{simbroker.TxnOffsetCommit, []simbroker.Code{14, 15, 16, 22, 25, 47, 82, -1}, []simbroker.Code{7, -1}},
	{simbroker.EndTxn, []simbroker.Code{51, 14, 15, 16, 47, 48, 90, -1}, []simbroker.Code{7, 15, -1}},
	{simbroker.InitProducerID, []simbroker.Code{51, 14, 15, 16}, []simbroker.Code{15}},
	{simbroker.OffsetFetch, []simbroker.Code{14, 15, 16, 88}, nil},
	{simbroker.ListOffsets, []simbroker.Code{5, 6, 74}, nil},
	{simbroker.Fetch, []simbroker.Code{6, -1}, nil},
	{simbroker.Metadata, []simbroker.Code{5}, nil},
}

// faults decides the fate of requests.
type faults struct {
	w       *world
	rng     *rand.Rand
	pending []*requestFault
}

// random makes a fault on a request soon to come.
func (f *faults) random() {
	k := f.rng.IntN(len(faultAPIs))
	if f.rng.IntN(3) > 0 {
		k = 2 + (1+f.rng.IntN(5))/2 // Produce once for TxnOffsetCommit twice and EndTxn twice: it is sent more often
	}
	x := faultAPIs[k]
	r := &requestFault{api: x.api, skip: f.rng.IntN(2), times: 1}
	if k >= 2 && k <= 4 {
		r.skip = f.rng.IntN(4)
	}
	a := &r.action
	switch a.Verdict = verdicts[f.rng.IntN(len(verdicts))]; {
	case a.Verdict == simbroker.Refuse:
		a.Code = x.codes[f.rng.IntN(len(x.codes))]
		if f.rng.IntN(2) == 0 {
			r.times = 3
		}
	case a.Verdict == simbroker.HandleThenFail && len(x.after) > 0:
		a.Code = x.after[f.rng.IntN(len(x.after))]
	case a.Verdict == simbroker.HandleThenFail:
		a.Verdict = simbroker.LoseAnswer
	case a.Verdict == simbroker.Hold:
		a.Requests = 1 + f.rng.IntN(60)
		f.w.heldInit = f.w.heldInit || x.api == simbroker.InitProducerID
	}
	if a.Verdict != simbroker.CrashBefore && f.rng.IntN(4) == 0 {
		a.Wait = time.Duration(f.rng.IntN(12_000)) * time.Millisecond // up to more than the transaction timeout
	}
	f.pending = append(f.pending, r)
}

// hook is the broker's Fault.
func (f *faults) hook(call simbroker.Call) simbroker.Action {
	if f.w.abortNext && call.Client == "loader" && call.API == simbroker.EndTxn {
		f.w.abortNext = false
		return simbroker.Action{Verdict: simbroker.LoseRequest}
	}
	if !f.w.isOwner(call.Client) {
		return simbroker.Action{}
	}
	for i, p := range f.pending {
		if p.api != call.API {
			continue
		}
		if p.skip--; p.skip >= 0 {
			continue
		}
		if p.times--; p.times <= 0 {
			f.pending = append(f.pending[:i], f.pending[i+1:]...)
		}
		f.w.hit(p.String())
		f.w.note("fault: %s of %s, code %d, held for %d", p, call.Client, p.action.Code, p.action.Requests)
		f.w.lastFault = f.w.now().Add(p.action.Wait)
		return p.action
	}
	return simbroker.Action{}
}

// event is one fault of the world around.
type event struct {
	name   string
	weight int
	do     func(w *world)
}

// events are the faults that do not concern one request.
func events() []event {
	return []event{
		{"request", 28, func(w *world) {
			for range 3 + w.rng.IntN(3) {
				w.faults.random()
			}
		}},
		{"kill", 4, func(w *world) {
			if o := w.anyLive(); o != nil {
				w.note("kill %s", o.instance)
				o.kill()
			}
		}},
		{"kill all", 1, func(w *world) {
			for _, o := range w.owners {
				o.kill()
			}
		}},
		{"pause", 3, func(w *world) {
			if o := w.anyLive(); o != nil {
				d := time.Duration(w.rng.IntN(1+w.rng.IntN(30_000))) * time.Millisecond
				o.paused = w.now().Add(d)
				w.lastFault = o.paused
				w.note("pause %s for %v", o.instance, d)
			}
		}},
		{"rebalance", 3, func(w *world) { w.group.pending = true }},
		{"scale out", 2, func(w *world) {
			o := w.owners[w.rng.IntN(len(w.owners))]
			if !o.wanted {
				o.wanted, o.restart = true, w.now()
			}
		}},
		{"scale in", 1, func(w *world) { w.leave(w.owners[w.rng.IntN(len(w.owners))]) }},
		{"leader", 1, func(w *world) { w.b.ElectLeader(w.anyPartition()) }},
		{"slow markers", 2, func(w *world) { w.slowMarker, w.slowWhere = 1+w.rng.IntN(3), w.rng.IntN(3) }},
		{"hand-over", 8, func(w *world) { // of everything, with markers that are late for the new owner
			w.slowMarker, w.slowWhere, w.handOver = 2+w.rng.IntN(6), w.rng.IntN(3), true
		}},
		{"zombie", 10, func(w *world) { w.pauseAt = zombiePoints[w.rng.IntN(len(zombiePoints))] }},
		{"death at a point", 17, func(w *world) {
			w.dieAt, w.dieAfter = deathPoints[w.rng.IntN(len(deathPoints))], w.rng.IntN(3)
			if w.dieAt == "recover.start" { // it takes a commit that fails
				w.dieAfter = 0
				w.faults.pending = append(w.faults.pending, &requestFault{
					api: simbroker.TxnOffsetCommit, times: 1,
					action: simbroker.Action{Verdict: simbroker.Refuse, Code: simbroker.IllegalGeneration},
				})
			}
		}},
		{"compaction", 1, func(w *world) {
			for _, tp := range w.changelogs() {
				w.b.Compact(tp)
			}
		}},
		{"long night", 6, func(w *world) { w.night() }},
		{"disk full", 3, func(w *world) {
			d := w.owners[w.rng.IntN(len(w.owners))].disk
			d.full, d.low = w.rng.IntN(4), w.rng.IntN(3)
		}},
	}
}

// deathPoints are the places within a process where it may be told to die: the engine's points, and the disk's.
var deathPoints = []string{
	"commit.prepared", "commit.acked", "commit.applied", "recover.start", "restore.batch", "restore.done",
	"disk.before", "disk.after", "disk.reset",
}

// zombiePoints are the places within a commit where a process is stopped while others take over (crash
// table, rows 18 to 20).
var zombiePoints = []string{"commit.prepared", "AddOffsetsToTxn", "Produce", "TxnOffsetCommit", "EndTxn", "commit.acked", "disk.before"}

// makeZombie stops a process in the middle of a commit and lets the group move on: half of the time for
// less than its session, so that it is still a member when it wakes up.
func (w *world) makeZombie(o *owner) {
	w.hit("zombie at " + w.pauseAt)
	w.note("%s is stopped at %s", o.instance, w.pauseAt)
	w.pauseAt = ""
	d := rebalanceTimeout + time.Duration(w.rng.IntN(4_000))*time.Millisecond
	if w.rng.IntN(2) == 0 {
		d += sessionTimeout
	}
	o.paused = w.now().Add(d)
	w.lastFault = later(w.lastFault, o.paused)
	w.group.pending, w.group.moveAll = true, true
}

// night kills everybody for longer than tombstones are kept, and compacts the changelogs: a disk that was
// behind must not keep what was deleted meanwhile (crash table, row 30).
func (w *world) night() {
	for _, o := range w.owners {
		o.kill()
		o.restart = later(o.restart, w.now().Add(30*time.Hour))
	}
	for _, o := range w.owners {
		if w.rng.IntN(2) == 0 { // put back to an older snapshot meanwhile
			o.disk.rollback(w.rng.IntN(40))
		}
	}
	w.b.Advance(30 * time.Hour)
	w.load.noLate = true // the tasks' stream time is that of yesterday until their first commit
	for _, tp := range w.changelogs() {
		w.b.Compact(tp)
	}
	for i := range w.plan {
		w.plan[i] = w.plan[i].Add(30 * time.Hour)
	}
	w.load.next = w.load.next.Add(30 * time.Hour)
	w.lastFault = w.now()
}

// diskFate is what becomes of a disk while its process is dead.
func (w *world) diskFate(o *owner) {
	o.disk.full, o.disk.low = 0, 0
	switch w.rng.IntN(8) {
	case 0, 1:
		w.hit("disk wiped")
		w.note("disk of %s is wiped", o.instance)
		o.disk.wipe()
	case 2:
		n := w.rng.IntN(1 + w.rng.IntN(20))
		w.hit("disk rolled back")
		w.note("disk of %s loses %d writes", o.instance, n)
		o.disk.rollback(n)
	}
	if w.rng.IntN(6) == 0 {
		w.hit("disk full at the start")
		o.disk.full = 1 + w.rng.IntN(4)
	}
}

// markerDelay is the broker's hook: how long a marker takes to a partition.
func (w *world) markerDelay(tp record.TopicPartition, _ string) time.Duration {
	slow := w.slowMarker > 0
	switch w.slowWhere {
	case 0:
		slow = slow && w.rng.IntN(3) == 0
	case 1: // the offsets hear of it late, all else is visible
		slow = slow && tp == simbroker.OffsetsPartition()
	default: // the changelogs hear of it late, and the offsets are visible
		slow = slow && strings.HasSuffix(tp.Topic, "-changelog") && w.rng.IntN(2) == 0
	}
	if slow {
		// One partition of one transaction learns of the decision much later than the others.
		w.slowMarker--
		w.hit("slow marker")
		if w.handOver {
			w.handOver = false
			w.group.pending, w.group.moveAll = true, true
		}
		return time.Duration(w.rng.IntN(9_000)) * time.Millisecond
	}
	return time.Duration(w.rng.IntN(4)) * time.Millisecond
}
