package topologytest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/streamd/streamd/internal/simbroker"
)

// CrashPoint is a point at which a process can die.
type CrashPoint string

// The points of one commit, in their order, those of a call (topology.Effect), and one of a start. A crash before AfterEndTxn undoes the transaction: its
// records are processed again. From AfterEndTxn on it is committed: they must not be.
const (
	BeforeCommit           CrashPoint = "before the commit"                        // all is processed, nothing was sent
	BeforeOffsets          CrashPoint = "before the offsets"                       // the outputs are sent, the transaction is open
	BeforeEndTxn           CrashPoint = "before the end of the transaction"        // all is sent; it was not asked to commit
	AfterEndTxn            CrashPoint = "after the end of the transaction"         // committed; the process does not know it
	AfterCommitBeforeApply CrashPoint = "after the commit, before the local store" // committed; the local store has nothing of it
	AfterApply             CrashPoint = "after the local store"                    // all is done
	BeforeCall             CrashPoint = "before a call is made"                    // of an effect, whose intent is committed
	AfterCall              CrashPoint = "after a call was made"                    // the other system has it; the outcome is lost
	DuringRestore          CrashPoint = "while its state is restored"              // of a process that starts and has something to read
)

// requests are the points that lie at a request.
var requests = map[CrashPoint]struct {
	api     simbroker.API
	verdict simbroker.Verdict
}{
	BeforeOffsets: {simbroker.TxnOffsetCommit, simbroker.CrashBefore},
	BeforeEndTxn:  {simbroker.EndTxn, simbroker.CrashBefore},
	AfterEndTxn:   {simbroker.EndTxn, simbroker.CrashAfter},
}

// inside are the points that lie between two requests, by the engine's name.
var inside = map[string]CrashPoint{
	"commit.prepared": BeforeCommit, "commit.acked": AfterCommitBeforeApply, "commit.applied": AfterApply, "restore.batch": DuringRestore,
	"effect.call": BeforeCall, "effect.called": AfterCall,
}

// faults are those that are to come, and those that have.
type faults struct {
	armed      []CrashPoint
	duplicates float64
	reorder    int
	fences     int // so far

	// Of a Fuzz: the moment is a running number over all places at which something can happen.
	moment  int
	strikes []strike // not struck yet, in order
	portion int      // records that are sent between two looks of the application; 0: all

	happened []string
}

// CrashAt kills the process that next comes to that point, which is asked for once. The process is started again, with its disk and
// without its memory. Several are met in their order. If it does not come to pass before the end of the test, the test
// fails.
func (d *Driver) CrashAt(p CrashPoint) {
	d.t.Helper()
	known := p == DuringRestore || requests[p].api != ""
	for _, x := range inside {
		known = known || x == p
	}
	if !known {
		d.t.Fatalf("CrashAt(%q): there is no such point", string(p))
	}
	d.armed = append(d.armed, p)
}

// Crash kills all processes where they stand: with nothing under way, once what was sent before is done. They are started again.
func (d *Driver) Crash() {
	d.t.Helper()
	d.Run()
	for _, in := range d.instances {
		in.stepper = nil
	}
	d.note("all processes die")
	d.Run()
}

// LoseDisks takes the local state of all instances away, with their processes: all is restored from the changelogs.
func (d *Driver) LoseDisks() {
	d.t.Helper()
	d.Run()
	for _, in := range d.instances {
		in.stepper, in.disk = nil, newDisk()
	}
	d.note("all processes die and lose their disks")
	d.Run()
}

// Duplicate makes each record that is sent from now on come again with that probability, 0 to 1, at some later place: as it is, with
// its ID and its time. It is for inputs whose records carry an ID, by their value or by the option ID: else the
// two are different records.
func (d *Driver) Duplicate(probability float64) { d.duplicates = probability }

// Reorder makes the records that are sent from now on, up to the next Run, come up to that many places later than others of their
// partition.
func (d *Driver) Reorder(places int) { d.reorder = places }

// Fence takes the transactional IDs of all processes, as another process of the same instance ID does: what they have
// under way is refused. Then they begin anew.
func (d *Driver) Fence() {
	d.t.Helper()
	d.deliver()
	d.fence()
}

func (d *Driver) fence() {
	d.fences++
	d.note("all processes are fenced")
	for _, in := range d.instances {
		if in.stepper != nil {
			_ = d.b.Client("other").NewProducer(producerConfig(d.topo.Name() + "-" + in.name + "-0")).Init(context.Background())
		}
	}
}

// LoseSessions makes the group take all processes for dead, as it does after a long pause: what they have under way is dropped. They join
// again.
func (d *Driver) LoseSessions() {
	d.t.Helper()
	d.deliver()
	d.expel()
}

func (d *Driver) expel() {
	d.note("all processes lose their sessions")
	for _, in := range d.instances {
		if in.stepper != nil {
			d.group.Remove(in.name)
			d.group.Add(in.name, in.stepper.CoPartitioned(), in.stepper)
		}
	}
	d.moved = true
}

// Rebalance moves all tasks to the next instance; a single one must give them back and gets them again.
func (d *Driver) Rebalance() {
	d.t.Helper()
	d.Run()
	d.rebalance()
	d.Run()
}

func (d *Driver) rebalance() {
	d.note("the tasks move")
	if len(d.instances) == 1 && d.instances[0].stepper != nil {
		_ = d.survive(func() error {
			d.group.Rebalance(context.Background(), nil)
			return nil
		})
	}
	d.shift++
	d.moved = true
}

// decide is the hook of each request.
func (d *Driver) decide(c simbroker.Call) simbroker.Action {
	i := slices.IndexFunc(d.instances, func(in *instance) bool { return in.clientName() == c.Client })
	if i < 0 {
		return simbroker.Action{}
	}
	in := d.instances[i]
	if in.dying {
		in.stepper, in.dying = nil, false
		return simbroker.Action{Verdict: simbroker.CrashBefore}
	}
	if len(d.armed) > 0 {
		if r := requests[d.armed[0]]; r.api != "" && r.api == c.API {
			d.note(fmt.Sprintf("process %s dies %s", in.name, d.armed[0]))
			d.armed = d.armed[1:]
			in.stepper = nil
			return simbroker.Action{Verdict: r.verdict}
		}
	}
	switch c.API {
	case simbroker.InitProducerID, simbroker.AddPartitionsToTxn, simbroker.Produce, simbroker.TxnOffsetCommit, simbroker.EndTxn, simbroker.OffsetFetch:
		return d.strikeAt(in, c)
	}
	return simbroker.Action{}
}

// point is the hook of each place between two requests.
func (d *Driver) point(in *instance, name string) {
	p := inside[name]
	if len(d.armed) > 0 && p != "" && d.armed[0] == p {
		d.armed = d.armed[1:]
		d.note(fmt.Sprintf("process %s dies %s", in.name, p))
		d.die(in)
	}
	d.moment++
	if s, ok := d.next(); ok && s.what.kills() {
		d.strikes = d.strikes[1:]
		d.note(fmt.Sprintf("process %s dies at %s", in.name, cmpPoint(p, name)))
		d.kill(in, s)
		d.die(in)
	}
}

func cmpPoint(p CrashPoint, name string) string {
	if p != "" {
		return string(p)
	}
	return name
}

// die ends the process by a request that never leaves it.
func (d *Driver) die(in *instance) {
	in.dying = true
	_, _ = in.client.ID(context.Background())
}

func (d *Driver) note(what string) {
	d.happened = append(d.happened, fmt.Sprintf("%s, after record #%d", what, len(d.sent)-len(d.waiting)))
}

// history says which faults came to pass.
func (d *Driver) history() string {
	if len(d.happened) == 0 {
		return "no fault came to pass"
	}
	return "faults that came to pass:\n\t" + strings.Join(d.happened, "\n\t")
}

// unused fails the test if a fault never came to pass.
func (d *Driver) unused() {
	d.t.Helper()
	for _, p := range d.armed {
		d.t.Errorf("CrashAt: no process came to the point %q: nothing was committed after it was asked for, or the test never looked", string(p))
	}
	if n := len(d.waiting); n > 0 {
		d.t.Errorf("%d records were sent and never processed: the test ends without Run, Advance or an Expect", n)
	}
}
