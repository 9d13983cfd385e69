package topology

import (
	"fmt"
	"time"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/record"
)

// A dedup operator costs a log: bytes on disk and in its changelog topic, memory for filters, a look-up for each record. Where
// the records that reach it have passed another one in the same task that remembers the same IDs for longer, that
// log can never find anything, and is left out. The operator stays: what has no ID, and what is too old to be
// judged, goes by its options as before. (MillWheel, section 6.1.2, leaves out logs of IDs in the same way.)
//
// What must hold is decided by elisionOf, for each dedup operator D and a guard G before it:
//
//   - Same task: a chain of operators leads from G to D, without a topic in between. A topic is read by other tasks, with
//     other stream times and with IDs of other partitions.
//   - One way: each of them has one input, so that no record comes twice by two ways.
//   - Same ID: both take the ID from the same place, and what lies between keeps it or makes one child of each record.
//   - Same time: nothing in between changes timestamps or makes records when time passes.
//   - G lets nothing pass that it does not remember: no duplicates, nothing too late, nothing without an ID.
//   - G remembers for longer. An ID lives between once and 9/8 times its retention (docs/format.md), so that 9/8 of D's is long
//     enough. An equal one is, if nothing is dropped in between: then both logs hold the same IDs in the same generations.
//   - D has never had a log. processor sees to that at the start: a log that is there is not left out in silence.
//
// The way back is guarded, too: a log that was left out would begin empty. processor notes which operators ran without one, on
// account of whom and until when, and refuses a start at which G no longer keeps all repeats from D (see Topology.BeginsEmpty).

// Always keeps the log of a dedup operator also where it cannot find a duplicate (see Topology.Explain). It costs what any
// log costs and changes no output. It is for those who want to see the operator's own counts, or who are about to take
// away the operator before it.
func Always() DedupSetting {
	return DedupSetting{func(o *options) { o.always = true }}
}

// SameID promises that all dedup operators of a topology with this token find, by their ID functions, the same ID in the
// same record. Without it two functions are taken for different ones. It is given together with ID and is used to find
// logs that can be left out; a false promise lets duplicates pass.
func SameID(token string) DedupSetting {
	return DedupSetting{func(o *options) { o.sameID = token }}
}

// Elision is a decision about the log of a dedup operator.
type Elision struct {
	Operator string `json:"operator"`
	// LeftOut says that there is no log.
	LeftOut bool `json:"left_out"`
	// By is the operator that makes it superfluous, if LeftOut.
	By string `json:"by,omitempty"`
	// Reason says why it was left out, or why not.
	Reason string `json:"reason"`
}

// elide decides about all dedup operators. Nodes come after their inputs, so that a guard has been decided
// about before those that it guards.
func elide(nodes []*node) {
	for _, n := range nodes {
		if n.dedup != nil {
			n.elision = elisionOf(n)
			n.dedup.By = n.elision.By
		}
	}
}

// leftOut says whether a dedup operator works without a log.
func (n *node) leftOut() bool { return n.elision != nil && n.elision.LeftOut }

// idSource is where a dedup operator takes IDs from, comparable.
type idSource struct {
	kind  string // own, header, function
	token string
}

// idSourceOf is false if nothing is known of the ID.
func idSourceOf(n *node) (idSource, bool) {
	switch {
	case n.opts.idHeader != nil:
		return idSource{"header", *n.opts.idHeader}, true
	case n.opts.id == nil:
		return idSource{kind: "own"}, true
	case n.opts.sameID != "":
		return idSource{"function", n.opts.sameID}, true
	}
	return idSource{}, false
}

// elisionOf looks for a guard of a dedup operator.
func elisionOf(d *node) *Elision {
	e := &Elision{Operator: d.name}
	id, known := idSourceOf(d)
	if !known {
		e.Reason = "kept: what its ID function computes is not known before it runs"
	} else {
		d.walkGuards(e, id)
	}
	switch {
	case d.opts.always:
		e.LeftOut, e.By = false, ""
		e.Reason = "kept, as it was asked for (dedup: always)"
	case d.uses(duplicatePort) || d.uses(conflictPort) || d.uses(tooLatePort):
		e.LeftOut, e.By = false, ""
		e.Reason = "kept: its side outputs are used"
	}
	return e
}

// walkGuards follows the records of a dedup operator up, collects its guards, and decides by the nearest one that makes its log
// superfluous.
func (d *node) walkGuards(e *Elision, id idSource) {
	var nearest string // why the nearest dedup operator before it is no guard
	whole := true      // all records that left the guard come here
	for n, port := d.before(); n != nil; n, port = n.before() {
		if n.dedup != nil {
			reason := n.passes(d, port, id)
			if reason == "" {
				d.dedup.Guards = append(d.dedup.Guards, n.name)
				reason = n.forgets(d, whole)
			}
			if reason == "" && !e.LeftOut {
				e.LeftOut, e.By = true, n.name
				e.Reason = fmt.Sprintf("%q comes before it in the same task, finds the same IDs, and remembers them for %s, this one for %s: no repeat can get here",
					n.name, short(n.opts.retention), short(d.opts.retention))
			}
			if nearest == "" {
				nearest = reason
			}
		}
		if obstacle := n.obstacle(port, id); obstacle != "" {
			if nearest == "" {
				nearest = obstacle
			}
			break
		}
		whole = whole && (n.kind == kindMap || n.kind == kindMapValues)
	}
	if !e.LeftOut {
		e.Reason = "kept: " + nearest
	}
}

// before is the only input of a node and the port through which it gets there. nil: there is none, or there are several.
func (n *node) before() (from *node, port int) {
	if len(n.inputs) != 1 {
		return nil, 0
	}
	from = n.inputs[0]
	for _, e := range from.outputs {
		if e.to == n {
			return from, e.port
		}
	}
	return nil, 0
}

// obstacle says why what comes out of a port cannot be followed further up; empty: it can.
func (n *node) obstacle(port int, id idSource) string {
	switch n.kind {
	case kindSource:
		if n.source.Internal {
			return fmt.Sprintf("its records come through the topic of %q, from several tasks with stream times of their own", n.name)
		}
		return "no dedup operator comes before it in its task"
	case kindFilter, kindBranch:
		return ""
	case kindMap, kindMapValues:
		if id.kind != "function" { // the child's ID follows from the parent's, and headers stay
			return ""
		}
		return fmt.Sprintf("%q makes other records, of which its ID function may find other IDs", n.name)
	case kindDedup:
		if port == uniquePort && n.opts.onDuplicate != Forward {
			return "" // to what lies before it, it is a filter
		}
	case kindMerge:
		return fmt.Sprintf("%q may bring one record by two ways", n.name)
	}
	return fmt.Sprintf("%q (%s) may give its records other IDs or times", n.name, n.kind)
}

// passes says why a dedup operator may let repeats pass to d within d's retention; empty: it does not.
func (g *node) passes(d *node, port int, id idSource) string {
	own, known := idSourceOf(g)
	switch {
	case port != uniquePort:
		return fmt.Sprintf("its records come from a side output of %q", g.name)
	case !known || own != id:
		return fmt.Sprintf("%q goes by other IDs", g.name)
	case g.opts.onDuplicate == Forward, g.opts.onTooLate == Forward, g.opts.onMissing == Forward:
		return fmt.Sprintf("%q forwards what it has not found to be new", g.name)
	case g.leftOut():
		return fmt.Sprintf("%q has no log itself", g.name)
	case g.opts.retention < d.opts.retention:
		return fmt.Sprintf("%q remembers for %s only, this one for %s", g.name, short(g.opts.retention), short(d.opts.retention))
	}
	return ""
}

// forgets says why a log of d could still know IDs that a guard has forgotten; empty: it could not.
func (g *node) forgets(d *node, whole bool) string {
	switch {
	case g.opts.retention >= d.opts.retention+(d.opts.retention+7)/8:
		return ""
	case g.opts.retention != d.opts.retention || !whole:
		// Then the logs' generations end at different times, and this one's may end later.
		return fmt.Sprintf("%q may forget an ID a little earlier: IDs live between once and 9/8 of the retention, and not all of its records come here", g.name)
	case g.opts.expectedIDs != d.opts.expectedIDs:
		return fmt.Sprintf("%q has other generations of IDs (ExpectedIDs)", g.name)
	}
	return ""
}

// short prints a duration without the units that are zero.
func short(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d > 0 && d%day == 0:
		return fmt.Sprintf("%dd", d/day)
	case d > 0 && d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d > 0 && d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}

// noLog stands in a dedup operator whose log is left out. Nothing that reaches it was seen before; that a record is
// too old is judged as by a log, since the operator before it may remember for longer.
type noLog struct {
	rt        Runtime
	retention int64 // milliseconds, as in dedup.Index
}

func newNoLog(rt Runtime, retention time.Duration) noLog {
	return noLog{rt: rt, retention: retention.Milliseconds()}
}

// Check implements IDLog.
func (l noLog) Check(_ record.Hash, _ uint64, at time.Time) (dedup.Answer, error) {
	if now := l.rt.StreamTime(); !now.IsZero() && at.UnixMilli() < now.UnixMilli()-l.retention {
		return dedup.Answer{Verdict: dedup.TooLate}, nil
	}
	return dedup.Answer{Verdict: dedup.New}, nil
}
