package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/streamd/streamd/internal/simbroker"
)

// Fault is one entry of a schedule. A schedule is data: drawn from the seed before the run, printed when
// the run is red, and made shorter by leaving entries out.
type Fault struct {
	At         time.Duration // after the start; nights in between not counted
	Recovering bool          // from At on, when something recovers from an earlier fault
	What       string        // one of whats(), or "request"
	Target     int           // which instance, partition or task: modulo how many there are
	Duration   time.Duration // of a pause, of being dead, of a delay
	N          int           // how many writes, markers, passes of a point
	Point      string        // of "death" and "zombie"
	Request    RequestFault  // of "request"
}

// RequestFault hits some request of one kind that an instance sends from then on.
type RequestFault struct {
	API     simbroker.API
	Verdict simbroker.Verdict
	Code    simbroker.Code // that is answered
	Skip    int            // so many pass before
	Times   int            // so many are hit; 0 means 1
	After   int            // of a held or repeated one: arrives after so many other requests
}

// name is what the coverage counts.
func (f Fault) name() string {
	switch f.What {
	case "request":
		return string(f.Request.API) + " " + verdictNames[f.Request.Verdict]
	case "death", "zombie":
		return f.What + " at " + f.Point
	}
	return f.What
}

// String is the entry as a reader wants it.
func (f Fault) String() string {
	parts := []string{fmt.Sprintf("at: %v", f.At), "what: " + f.name()}
	add := func(ok bool, format string, args ...any) {
		if ok {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	r := f.Request
	add(f.Recovering, "when: recovering")
	add(f.What != "request" && f.What != "death" && f.What != "zombie", "target: %d", f.Target)
	add(r.Code != 0, "code: %d", r.Code)
	add(r.Skip > 0, "after: %d requests", r.Skip)
	add(r.Times > 1, "times: %d", r.Times)
	add(r.After > 0, "arrives after: %d requests", r.After)
	add(f.N > 0, "n: %d", f.N)
	add(f.Duration > 0, "duration: %v", f.Duration)
	return "{" + strings.Join(parts, ", ") + "}"
}

var verdictNames = map[simbroker.Verdict]string{
	simbroker.Refuse: "refused", simbroker.HandleThenFail: "handled, then failed", simbroker.LoseRequest: "request lost",
	simbroker.LoseAnswer: "answer lost", simbroker.Hold: "held", simbroker.Repeat: "repeated",
	simbroker.CrashBefore: "crash before", simbroker.CrashAfter: "crash after",
}

// faultAPIs are the requests that are hit, what a broker may answer to each, and their share.
func faultAPIs() []faultAPI {
	return []faultAPI{
		{api: simbroker.AddPartitionsToTxn, codes: []simbroker.Code{51, 14, 15, 16, 48, 49, 3, -1}, v1: true, share: 2},
		{api: simbroker.AddOffsetsToTxn, codes: []simbroker.Code{51, 14, 15, 16, 48, -1}, v1: true, share: 2},
		{api: simbroker.Produce, codes: []simbroker.Code{5, 6, 7, 19, 20, 45, 47, 48, 56, 59, 74, -1}, after: []simbroker.Code{7, 20, 6}, share: 1, skip: 4, repeat: true},
		{api: simbroker.TxnOffsetCommit, codes: []simbroker.Code{14, 15, 16, 22, 25, 47, 82, -1}, after: []simbroker.Code{7, -1}, share: 1, skip: 3, repeat: true},
		{api: simbroker.EndTxn, codes: []simbroker.Code{51, 14, 15, 16, 47, 48, 90, -1}, after: []simbroker.Code{7, 15, -1}, share: 1, skip: 3, repeat: true},
		{api: simbroker.InitProducerID, codes: []simbroker.Code{51, 14, 15, 16}, after: []simbroker.Code{15}, start: true},
		{api: simbroker.OffsetFetch, codes: []simbroker.Code{14, 15, 16, 88}, start: true},
		{api: simbroker.ListOffsets, codes: []simbroker.Code{5, 6, 74}, start: true},
		{api: simbroker.Fetch, codes: []simbroker.Code{6, -1}, skip: 3},
		{api: simbroker.Metadata, codes: []simbroker.Code{5}, start: true},
	}
}

type faultAPI struct {
	api    simbroker.API
	codes  []simbroker.Code
	after  []simbroker.Code // answered although it was handled
	share  int              // extra
	skip   int              // so many may pass before
	start  bool             // sent when a process starts: so one is killed for it
	repeat bool
	v1     bool // sent with protocol V1 only
}

func (a faultAPI) verdicts() []simbroker.Verdict {
	all := []simbroker.Verdict{simbroker.Refuse, simbroker.LoseRequest, simbroker.LoseAnswer, simbroker.Hold, simbroker.CrashBefore, simbroker.CrashAfter}
	if len(a.after) > 0 {
		all = append(all, simbroker.HandleThenFail)
	}
	if a.repeat {
		all = append(all, simbroker.Repeat)
	}
	return all
}

// deathPoints are the places within a process where it may be told to die: the engine's points, and the
// disk's.
func deathPoints() []string {
	return []string{
		"commit.prepared", "commit.acked", "commit.applied", "recover.start", "restore.batch", "restore.done",
		"disk.before", "disk.mid", "disk.after", "disk.reset", "revoke.start", "revoke.done", "seal.step",
	}
}

// zombiePoints are the places before, in and after a commit where a process is stopped while others take over (crash
// table, rows 18 to 20).
func zombiePoints() []string {
	return []string{"Fetch", "commit.prepared", "Produce", "TxnOffsetCommit", "EndTxn", "commit.acked", "disk.before", "restore.batch"}
}

// slots are the faults to choose from, each as often as its share says. The deck of a run of seeds is made of
// them, so that each comes equally often.
var slots = sync.OnceValue(func() (all []Fault) {
	add := func(n int, f Fault) {
		for range n {
			all = append(all, f)
		}
	}
	for _, a := range faultAPIs() {
		for _, v := range a.verdicts() {
			n := 1 + a.share
			if v == simbroker.Repeat { // half of the runs speak V1, where most of them are left out
				n += 2
			}
			add(n, Fault{What: "request", Request: RequestFault{API: a.api, Verdict: v}})
		}
	}
	for _, p := range deathPoints() {
		n := 2
		if strings.HasPrefix(p, "revoke.") { // it takes two instances
			n = 4
		}
		add(n, Fault{What: "death", Point: p})
	}
	for _, p := range zombiePoints() {
		n := 2
		if p == "Fetch" {
			n = 4
		}
		add(n, Fault{What: "zombie", Point: p})
	}
	for _, w := range whats() {
		add(w.share, Fault{What: w.name})
	}
	return all
})

// plainSlots are those without the fault of global tables.
var plainSlots = sync.OnceValue(func() []Fault {
	return slices.DeleteFunc(slices.Clone(slots()), func(f Fault) bool { return f.What == unheard })
})

// counts is how many faults the seeds have, in turn: a third of them has one.
var counts = [...]int{
	1, 8, 12, 1, 0, 9, 1, 11, 10, 1, 12, 4, 1, 9, 10, 1, 12, 10, 1, 7, 11, 1, 11, 9, 1, 9, 12, 1, 10, 11, 1, 8, 12, 1, 12, 10,
}

// share returns the place of a seed's first fault in the sequence of all seeds' faults, and how many it has.
func share(seed uint64) (first, n int) {
	round, at := int(seed/uint64(len(counts))), int(seed%uint64(len(counts)))
	for i, c := range counts {
		if i < at {
			first += c
		}
		n += c
	}
	return round*n + first, counts[at]
}

// dealt is the k-th card of the sequence: the slots in a random order, then in another one, and so on.
func dealt(k int, plain bool) Fault {
	all := slots()
	if plain {
		all = plainSlots()
	}
	order := rand.New(rand.NewPCG(uint64(k/len(all)), 0xdec)).Perm(len(all))
	return all[order[k%len(all)]]
}

// draw makes the schedule of a seed. Half of the faults come when something recovers from an earlier one.
func draw(rng *rand.Rand, seed uint64, v simbroker.Protocol, plain bool) (schedule []Fault) {
	first, n := share(seed)
	var at time.Duration
	for k := range n {
		f := dealt(first+k, plain)
		f.Recovering = k > 0 && rng.IntN(2) == 0
		if f.Recovering {
			at += millis(rng, 50)
		} else {
			at += millis(rng, 1500)
		}
		f.At = at
		f.Target, f.N = rng.IntN(1000), rng.IntN(4)
		f.Duration = millis(rng, 1+rng.IntN(6_000))
		if f.What == "request" {
			if !drawRequest(rng, &f, v) {
				continue
			}
		} else if w := whatOf(f.What); w.draw != nil {
			w.draw(rng, &f)
		}
		schedule = append(schedule, f)
	}
	return schedule
}

func millis(rng *rand.Rand, n int) time.Duration {
	return time.Duration(rng.IntN(n)) * time.Millisecond
}

// drawRequest fills in the rest of a fault of a request. False: with this protocol it cannot happen.
func drawRequest(rng *rand.Rand, f *Fault, v simbroker.Protocol) bool {
	var a faultAPI
	for _, x := range faultAPIs() {
		if x.api == f.Request.API {
			a = x
		}
	}
	r := &f.Request
	r.Times, r.Skip = 1, rng.IntN(2+a.skip)
	f.N = 0
	switch r.Verdict {
	case simbroker.Refuse:
		r.Code = a.codes[rng.IntN(len(a.codes))]
		if rng.IntN(2) == 0 {
			r.Times = 3
		}
	case simbroker.HandleThenFail:
		r.Code = a.after[rng.IntN(len(a.after))]
	case simbroker.Hold, simbroker.Repeat:
		r.After = 1 + rng.IntN(60)
	}
	// How long the client waits for an answer that does not come: a few times up to more than the
	// transaction timeout.
	if f.Duration = 0; rng.IntN(4) == 0 {
		f.Duration = millis(rng, 5_000)
	}
	if r.Verdict == simbroker.CrashBefore || r.Verdict == simbroker.CrashAfter {
		f.Duration = millis(rng, 1+rng.IntN(6_000))
	}
	if a.start {
		r.Skip = rng.IntN(2)
	}
	// With V1 a copy of these does act on the next transaction. On one connection, and a request that is
	// never sent twice, it does not happen: that it must not is for internal/kafka to prove.
	repeats := v == simbroker.V2 || a.api == simbroker.Produce
	return (v == simbroker.V1 || !a.v1) && (r.Verdict != simbroker.Repeat || repeats)
}
