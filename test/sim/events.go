package sim

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
)

// what is a kind of fault of the world around: how often it is dealt, what else is drawn for it, and what it
// does.
type what struct {
	name  string
	share int
	draw  func(rng *rand.Rand, f *Fault) // nil: Target, N and Duration stay as every fault's
	do    func(w *world, f Fault)
}

// unheard is the name of the fault of global tables.
const unheard = "global table unheard"

// night is longer than tombstones are kept, and than IDs are remembered.
const night = 30 * time.Hour

// whats are the kinds of faults that concern no single request.
func whats() []what {
	return []what{
		{"kill", 3, nil, func(w *world, f Fault) { w.killFor(w.target(f.Target), f.Duration) }},
		{"kill all", 1, nil, func(w *world, f Fault) {
			for _, o := range w.owners {
				w.killFor(o, f.Duration)
			}
		}},
		{"pause", 3, func(rng *rand.Rand, f *Fault) { f.Duration = millis(rng, 1+rng.IntN(12_000)) }, func(w *world, f Fault) {
			o := w.target(f.Target)
			o.paused = w.now().Add(f.Duration)
			w.lastFault = o.paused
		}},
		// In the middle of some input: an open transaction is dropped, and what was fetched ahead with it.
		{"rebalance", 5, nil, func(w *world, _ Fault) {
			w.group.pending, w.load.next, w.load.flood = true, w.now(), 10
		}},
		{"scale out", 2, nil, func(w *world, f Fault) {
			if o := w.owners[f.Target%len(w.owners)]; !o.wanted {
				o.wanted, o.restart = true, w.now()
			}
		}},
		{"scale in", 1, nil, func(w *world, f Fault) { w.leave(w.owners[f.Target%len(w.owners)]) }},
		{"leader", 1, nil, func(w *world, f Fault) { w.b.ElectLeader(w.partitionAt(f.Target)) }},
		{"slow markers", 2, drawMarkers, func(w *world, f Fault) { w.slowMarker, w.slowWhere = f.N, f.Target%3 }},
		// Everything changes hands, with markers that are late for the new owner.
		{"hand-over", 8, drawMarkers, func(w *world, f Fault) { w.slowMarker, w.slowWhere, w.handOver = f.N, f.Target%3, true }},
		{"death", 0, nil, func(w *world, f Fault) {
			after := f.N
			if !strings.HasPrefix(f.Point, "commit.") && !strings.HasPrefix(f.Point, "disk.") {
				after = 0
			}
			w.traps = append(w.traps, &trap{f, after})
			switch f.Point {
			case "recover.start": // it takes a commit that fails
				w.faults.arm(Fault{What: "request", Request: RequestFault{
					API: simbroker.TxnOffsetCommit, Verdict: simbroker.Refuse, Code: simbroker.IllegalGeneration,
				}})
			case "revoke.start", "revoke.done":
				w.group.pending, w.group.moveAll = true, true
			case "seal.step": // it takes a generation of IDs that is old enough
				w.hour(Fault{Duration: window / 3})
			case "disk.reset", "restore.batch", "restore.done": // it takes a store that is not complete
				o := w.target(f.Target)
				w.killFor(o, f.Duration)
				o.disk.wipe()
			}
		}},
		{"zombie", 0, drawZombie, func(w *world, f Fault) {
			w.traps = append(w.traps, &trap{f, 0})
			for _, o := range w.owners { // there is somebody to take over
				if !o.wanted {
					o.wanted, o.restart = true, w.now()
				}
			}
		}},
		{"compaction", 1, nil, func(w *world, _ Fault) {
			w.compact()
			w.compactRates()
		}},
		{"retention", 1, nil, func(w *world, _ Fault) { // of the input: what is processed goes
			w.each(w.inputTopics(), func(tp record.TopicPartition) {
				w.b.MoveStart(tp, max(0, w.b.Position(group, tp).Next))
			})
		}},
		{"long night", 5, drawRollback, (*world).night},
		{"an hour", 3, func(rng *rand.Rand, f *Fault) { f.Duration = window - millis(rng, 600_000) }, (*world).hour},
		// A process hears nothing of the global table for a while, and gets tasks that have seen more of it.
		{unheard, 2, nil, func(w *world, f Fault) {
			o := w.target(f.Target)
			o.deaf = w.now().Add(f.Duration)
			w.lastFault = o.deaf
			w.group.pending, w.group.moveAll, w.load.next, w.load.flood = true, true, w.now(), 10
		}},
		{"disk full", 2, nil, func(w *world, f Fault) {
			d := w.owners[f.Target%len(w.owners)].disk
			d.full, d.low = 1+f.N, f.Target%3
		}},
		{"disk full at the start", 2, nil, func(w *world, f Fault) {
			o := w.target(f.Target)
			w.killFor(o, f.Duration)
			o.disk.full = 1 + f.N
		}},
		{"disk wiped", 2, nil, func(w *world, f Fault) {
			o := w.target(f.Target)
			w.killFor(o, f.Duration)
			o.disk.wipe()
		}},
		{"disk rolled back", 3, drawRollback, func(w *world, f Fault) {
			o := w.target(f.Target)
			w.killFor(o, f.Duration)
			o.disk.rollback(f.N)
		}},
		// A flipped bit: the local log finds it by its checksums, and the task's part comes back empty.
		{"disk damaged", 2, nil, func(w *world, f Fault) {
			o := w.target(f.Target)
			w.killFor(o, f.Duration)
			o.disk.damage(f.Target)
		}},
		// The snapshots of the filters are not trusted: they are checked, and built anew if they are bad. It takes
		// IDs that are sealed, and a process that starts afterwards.
		{"filters damaged", 2, nil, func(w *world, f Fault) {
			w.hour(Fault{Duration: window / 3})
			o := w.target(f.Target)
			o.disk.spoil = true
			w.traps = append(w.traps, &trap{Fault{What: "death", Point: "commit.prepared", Duration: time.Second}, 3})
		}},
		{"epochs run out", 1, nil, func(w *world, f Fault) {
			o := w.target(f.Target)
			w.killFor(o, f.Duration)
			w.b.ExhaustEpochs(o.transactionalID(), f.N)
		}},
		{"transactional ID expires", 1, nil, func(w *world, f Fault) {
			id := w.target(f.Target).transactionalID()
			if !slices.Contains(w.b.Undecided(), id) {
				w.b.ExpireTransactionalID(id)
			}
		}},
		{"clock skew", 1, func(rng *rand.Rand, f *Fault) { f.Duration = millis(rng, 100_000) - 50*time.Second }, func(w *world, f Fault) {
			o := w.target(f.Target)
			w.killFor(o, 0)
			o.skew = f.Duration
		}},
		{"request", 0, nil, func(w *world, f Fault) { w.faults.arm(f) }},
	}
}

func drawMarkers(rng *rand.Rand, f *Fault)  { f.N = 1 + rng.IntN(7) }
func drawRollback(rng *rand.Rand, f *Fault) { f.N = rng.IntN(1 + rng.IntN(40)) }

func drawZombie(rng *rand.Rand, f *Fault) {
	f.Duration = rebalanceTimeout + millis(rng, 2_000)
	if f.Point == "Fetch" { // away and back while it waits for input: nothing that it sends afterwards tells it
		f.N, f.Duration = 1, rebalanceTimeout+500*time.Millisecond+millis(rng, 1_200)
		return
	}
	if rng.IntN(2) == 0 {
		f.Duration += sessionTimeout
	}
}

func whatOf(name string) what {
	for _, w := range whats() {
		if w.name == name {
			return w
		}
	}
	return what{}
}

// target is the instance that a fault means: one that lives, if any does.
func (w *world) target(n int) *owner {
	var live []*owner
	for _, o := range w.owners {
		if o.resume != nil {
			live = append(live, o)
		}
	}
	if len(live) == 0 {
		return w.owners[n%len(w.owners)]
	}
	return live[n%len(live)]
}

// killFor kills a process for a while.
func (w *world) killFor(o *owner, d time.Duration) {
	w.down = d
	o.kill()
}

// jump lets much time go by at once. The schedule and the input go on afterwards as if it had not.
func (w *world) jump(d time.Duration) {
	w.b.Advance(d / 2)
	if r := w.load.rates; r != nil { // what is deleted now is compacted away before anybody has heard of it
		r.burst(w.load, w.now(), w.abort)
		w.compactRates() // by now: what it meets may go with the second one
	}
	w.b.Advance(d - d/2)
	w.compactRates()
	w.jumped += d
	w.load.next = w.load.next.Add(d)
	w.lastFault = w.now()
}

// jumps says whether a fault lets much time pass at once.
func (f Fault) jumps() bool {
	return f.What == "long night" || f.What == "an hour" || f.What == "filters damaged" || f.What == "death" && f.Point == "seal.step"
}

// hour lets nearly as much time pass as IDs are remembered, and repeats what was sent before: near the
// edge of the window.
func (w *world) hour(f Fault) {
	w.jump(f.Duration)
	w.load.resend = 10
	w.load.next = w.now()
}

// night kills everybody for longer than tombstones are kept, and compacts the changelogs: a disk that was
// behind must not keep what was deleted meanwhile (crash table, row 30). What was sent before and is
// processed after it is not late: only stream time counts (row 43).
func (w *world) night(f Fault) {
	for _, o := range w.owners {
		o.kill()
		o.restart = later(o.restart, w.now().Add(night))
	}
	for k, o := range w.owners {
		if (f.Target>>k)&1 == 0 { // put back to an older snapshot meanwhile
			o.disk.rollback(f.N)
		}
	}
	w.load.resend, w.load.next = 3, w.now()
	w.load.burst(w.now(), w.abort)
	w.compact() // by now: what it meets may go after the night
	w.jump(night)
	w.load.noLate = true // the tasks' stream time is that of yesterday until their first commit
	w.compact()
}

// compact runs the log cleaner on the changelogs.
func (w *world) compact() {
	for _, tp := range w.changelogs() {
		w.b.Compact(tp)
	}
}
