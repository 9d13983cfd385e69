package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// ErrOrphaned: the topology has no operator any more for state that is there, or finds state that is not its own.
// Starting again does not help; the error names operators, topics and the remedy.
var ErrOrphaned = errors.New("processor: the topology has changed, and state would be given up")

// WithDroppedState accepts that the state of operators is given up that the topology no longer has: names of
// dedup operators, of state stores, or of a sub-topology that keeps no state any more. Without it an App does not
// start with such a topology, since a renamed operator begins empty: its IDs would be new again, its
// totals begin at zero. Names that nothing is known of are ignored, so that the option may stay. Default: none.
//
// The topics of what was given up stay; delete them when nobody wants to go back.
func WithDroppedState(names ...string) Option {
	return optionFunc(func(c *config) { c.dropped = names })
}

// orphans collects what would be given up, for one error.
type orphans struct {
	dropped []string // what is accepted
	found   []string // what is not, as sentences
	accept  []string // the names that would accept it
}

func (o *orphans) add(name, format string, args ...any) {
	if slices.Contains(o.dropped, name) || slices.Contains(o.accept, name) {
		return
	}
	o.accept = append(o.accept, name)
	o.found = append(o.found, fmt.Sprintf(format, args...))
}

func (o *orphans) err(where string) error {
	if len(o.found) == 0 {
		return nil
	}
	return fmt.Errorf("processor: %s%w: %s. If an operator was renamed, name it back; to accept the loss, use WithDroppedState, or streamd run --drop-state %s",
		where, ErrOrphaned, strings.Join(o.found, "; "), strings.Join(o.accept, " --drop-state "))
}

// checkIDLogs finds sub-topologies that once had state and now have none: nothing of theirs is restored, so that nothing
// else would find it.
func checkIDLogs(ctx context.Context, c broker.Cluster, topo *topology.Topology, cfg *config) error {
	byTopic := map[string]*topology.Subtopology{}
	var names []string
	for _, s := range topo.Subtopologies() {
		if !s.Stateful() {
			byTopic[topo.IDLogTopic(s)] = s
			names = append(names, topo.IDLogTopic(s))
		}
	}
	if len(names) == 0 {
		return nil
	}
	have, err := c.Topics(ctx, names...)
	if err != nil {
		return fmt.Errorf("processor: describe internal topics: %w", err)
	}
	o := orphans{dropped: cfg.dropped}
	for _, n := range names {
		if _, ok := have[n]; ok {
			s := byTopic[n]
			o.add(s.Name, "sub-topology %q has no state any more, but IDs or state were kept for it (topic %s)", s.Name, n)
		}
	}
	return o.err("")
}

// checkStores finds stores that the local store has and the topology has not, before anything is changed.
func (w *worker) checkStores(r *taskRun, local record.LocalPosition) error {
	o := orphans{dropped: w.cfg.dropped}
	prefix, suffix, _ := strings.Cut(w.topo.StoreTopic("\x00"), "\x00")
	for _, c := range local.Changelogs {
		name, ok := strings.CutPrefix(c.Topic, prefix)
		if name, ok = cutSuffix(name, suffix, ok); !ok || c.Topic == w.topo.IDLogTopic(r.plan.sub) {
			continue
		}
		w.orphanedStore(&o, r, name)
	}
	return o.err("task " + r.name + ": ")
}

func cutSuffix(s, suffix string, ok bool) (string, bool) {
	before, found := strings.CutSuffix(s, suffix)
	return before, ok && found
}

func (w *worker) orphanedStore(o *orphans, r *taskRun, name string) {
	if !slices.ContainsFunc(r.plan.sub.Stores, func(s topology.StoreSpec) bool { return s.Name == name }) {
		o.add(name, "state store %q (topic %s) has no operator any more", name, w.topo.StoreTopic(name))
	}
}

// checkEvolution compares what the commit record and the restored logs name with what the topology has. The local store
// is complete.
func (w *worker) checkEvolution(r *taskRun, fresh bool) error {
	if r.restore.follower == nil {
		return nil
	}
	last := r.restore.follower.Point()
	o := orphans{dropped: w.cfg.dropped}
	known := map[string]bool{}
	for _, s := range last.Stores {
		known[s.Store] = true
		w.orphanedStore(&o, r, s.Store)
	}
	if err := w.orphanedIDs(&o, r, last); err != nil {
		return err
	}
	if err := o.err("task " + r.name + ": "); err != nil {
		return err
	}
	if !fresh && (last.Sequence == 0 || r.restore.mode != modeFull) {
		return nil // no commit record that could name the stores
	}
	return w.checkForeign(r, known)
}

// orphanedIDs finds logs of dedup operators that are gone, or whose log the planner leaves out now: the operator that makes it
// superfluous may not have run for as long. And those that had none, and need one now.
func (w *worker) orphanedIDs(o *orphans, r *taskRun, last record.CommitPoint) error {
	sub := r.plan.sub
	topic := w.topo.IDLogTopic(sub)
	is := func(name string) func(topology.DedupSpec) bool {
		return func(d topology.DedupSpec) bool { return d.Name == name }
	}
	newest := func(name string) (time.Time, error) {
		generations, err := r.local.IDs(name).Generations()
		if err != nil {
			return time.Time{}, fmt.Errorf("processor: task %s: look for IDs of %q: %w", r.name, name, err)
		}
		var at time.Time
		for _, g := range generations {
			if g.To.After(at) {
				at = g.To
			}
		}
		return at, nil
	}
	for _, d := range sub.LeftOut {
		at, err := newest(d.Name)
		if err != nil {
			return err
		}
		if !at.IsZero() && !at.Add(d.Config.Retention).Before(last.StreamTime) {
			o.add(d.Name, "the log of dedup operator %q (topic %s) is left out now, but holds IDs that the operator before it may not know: keep it, with topology.Always or dedup: always, until that one has run for %s",
				d.Name, topic, d.Config.Retention)
		}
	}
	for _, l := range w.emptyLogs(r.plan.sub, last) {
		o.add(l.operator, "dedup operator %q has run without a log, and %q no longer keeps all repeats from it: what it has processed would be new again (%s)",
			l.operator, l.by, topology.EmptyLogRemedy(l.by, l.retention))
	}
	for _, name := range dedupsOf(last.Counters) {
		if slices.ContainsFunc(sub.Dedups, is(name)) || slices.ContainsFunc(sub.LeftOut, is(name)) {
			continue
		}
		at, err := newest(name)
		if err != nil {
			return err
		}
		if !at.IsZero() {
			o.add(name, "dedup operator %q is no longer there, and its log holds IDs (topic %s)", name, topic)
		}
	}
	return nil
}

// emptyLog is a dedup operator that had no log when it processed IDs that it promises to know.
type emptyLog struct {
	operator, by string
	retention    time.Duration
	counter      string // the note, as stored
}

// emptyLogs reads, from the clocks in a commit record, which operators ran without a log less than their retention ago, and are no
// longer kept from repeats by the operator that did it then.
func (w *worker) emptyLogs(sub *topology.Subtopology, last record.CommitPoint) []emptyLog {
	retention := map[string]time.Duration{}
	for _, s := range w.topo.Subtopologies() {
		for _, d := range slices.Concat(s.Dedups, s.LeftOut) {
			retention[d.Name] = d.Config.Retention
		}
	}
	var all []emptyLog
	for _, c := range last.Counters {
		of, ok := strings.CutPrefix(c.Name, string(counterUnlogged)+separator+clockOf)
		operator, by, _ := strings.Cut(of, clockOf)
		if !ok || c.Value == 0 || !w.topo.BeginsEmpty(sub, operator, by) {
			continue
		}
		if at := (clock{&c.Value}).time(); last.StreamTime.UnixMilli() <= int64(at)+retention[operator].Milliseconds() {
			all = append(all, emptyLog{operator, by, retention[operator], c.Name})
		}
	}
	return all
}

// noteUnlogged notes the stream time of this transaction for operators whose log is left out and that have judged IDs in it. It is all
// that is left of them in a commit record when their log comes back.
func (t *Task) noteUnlogged() {
	for _, d := range t.cfg.sub.LeftOut {
		if x := t.counters.cells[t.counters.at(topology.CounterID{Kind: topology.CounterChecked, Of: d.Name})]; x.now != x.committed {
			t.clock(counterUnlogged, d.Name+clockOf+d.By).set(window.Millis(t.streamTime.UnixMilli()))
		}
	}
}

// checkForeign finds stores whose topic holds what another operator, or an earlier version of this one, has kept: nothing of
// what was processed since is in it, and the commit record does not know it.
func (w *worker) checkForeign(r *taskRun, known map[string]bool) error {
	for _, s := range r.plan.sub.Stores {
		if known[s.Name] {
			continue
		}
		content := false
		err := r.local.Range(s.Name, nil, nil, func([]byte, []byte) bool { content = true; return false })
		if err != nil {
			return fmt.Errorf("processor: task %s: look into store %q: %w", r.name, s.Name, err)
		}
		if content {
			// What was just restored is no evidence of anything: were it kept, the topic that is to be deleted would be missed.
			if err := r.local.Reset(); err != nil {
				return fmt.Errorf("processor: task %s: reset the local store: %w", r.name, err)
			}
			return fmt.Errorf("processor: task %s: %w: topic %s of the new state store %q holds what an earlier version of the topology has kept, without what was processed since. "+
				"If a KeyBy or a source before it was renamed, name it back; to begin empty, delete the topic", r.name, ErrOrphaned, w.topo.StoreTopic(s.Name), s.Name)
		}
	}
	return nil
}

// dedupsOf are the dedup operators that a task's counters name.
func dedupsOf(counters []record.Counter) []string {
	var names []string
	for _, c := range counters {
		if kind, of, _ := strings.Cut(c.Name, separator); kind == string(topology.CounterChecked) && c.Value > 0 {
			names = append(names, of)
		}
	}
	return names
}

// giveUp forgets the counters of operators whose loss was accepted: they are the note that there were any, and a zero in
// the next commit record says that it is settled. What is not lost stays noted.
func (t *Task) giveUp(names []string, empty []emptyLog) {
	for i, name := range t.counters.names {
		kind, of, _ := strings.Cut(name, separator)
		gone := !slices.ContainsFunc(t.cfg.sub.Operators, func(o topology.OperatorSpec) bool { return o.Name == of })
		if gone && kind == string(topology.CounterChecked) && slices.Contains(names, of) {
			t.counters.cells[i].now = 0
		}
		if slices.ContainsFunc(empty, func(l emptyLog) bool { return l.counter == name && slices.Contains(names, l.operator) }) {
			t.counters.cells[i].now = 0
		}
	}
}
