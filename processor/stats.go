package processor

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// stats is what the process knows of itself: written by the workers at commits and transitions, read
// by Status and by scrapes, which never wait for a worker.
type stats struct {
	served served   // for queries
	idKey  [32]byte // of idHash

	mu          sync.Mutex // guards all below
	state       State
	reason      string
	started     time.Time
	instance    string
	expected    int  // tasks given by the group
	known       bool // the counters of all of them were known at some time since the start: from then on a task only adds its own
	tasks       map[string]taskView
	open        map[int]time.Time // by worker
	done        uint64            // committed transactions
	aborts      map[string]uint64
	lastCommit  time.Time
	recent      []string          // outcomes of the last keptOutcomes transactions, see TransactionStatus
	restored    map[string]uint64 // by store
	rebalanceAt time.Time         // begin of the rebalance under way
	failed      map[int]string    // by worker: why its last transaction was not committed
	stuck       map[string]string // by task: what holds up its input
	unwritten   map[string]string // by task of a sink: why its rows are not written
	globals     *globals          // nil: there are none
	instances   *InstancesStatus  // nil: not known yet; never changed once it is here
}

// taskView is a copy of a task's committed figures.
type taskView struct {
	status   TaskStatus
	sub      *topology.Subtopology
	known    bool // it is restored, so that the counters are what they were
	counters []record.Counter
	dedup    map[string]dedup.Stats
	repeats  map[string][]repeat // by dedup operator
	effects  map[string]topology.EffectStats
	errors   []RecordErrorStatus
}

func newStats(now time.Time) *stats {
	s := &stats{state: Created, started: now, tasks: map[string]taskView{}, open: map[int]time.Time{}, aborts: map[string]uint64{}, restored: map[string]uint64{}, failed: map[int]string{}, unwritten: map[string]string{}}
	_, _ = rand.Read(s.idKey[:]) // never fails
	return s
}

func (s *stats) committed(worker int, now time.Time, records int, m *metric.Set) {
	s.mu.Lock()
	s.done++
	s.outcome("")
	if records > 0 {
		s.lastCommit = now
	}
	delete(s.open, worker)
	delete(s.failed, worker)
	s.mu.Unlock()
	m.Committed(records)
}

func (s *stats) aborted(reason string, m *metric.Set) {
	s.mu.Lock()
	s.aborts[reason]++
	s.outcome(reason)
	s.mu.Unlock()
	m.Aborted(metric.AbortReason(reason))
}

// keptOutcomes bounds what is remembered of single transactions.
const keptOutcomes = 50

// outcome remembers how a transaction ended: why it was aborted, or nothing. mu is held.
func (s *stats) outcome(aborted string) {
	if len(s.recent) == keptOutcomes {
		s.recent = append(s.recent[:0], s.recent[1:]...)
	}
	s.recent = append(s.recent, aborted)
}

// openTxn notes since when a worker has a transaction open at the broker; zero: none.
func (s *stats) openTxn(worker int, since time.Time) {
	s.mu.Lock()
	if since.IsZero() {
		delete(s.open, worker)
	} else {
		s.open[worker] = since
	}
	s.mu.Unlock()
}

func (s *stats) recordError(task string, errors []RecordErrorStatus) {
	s.mu.Lock()
	if v, ok := s.tasks[task]; ok {
		v.errors = slices.Clone(errors)
		s.tasks[task] = v
	}
	s.mu.Unlock()
}

func (s *stats) remove(task string) {
	s.served.remove(task)
	s.mu.Lock()
	delete(s.tasks, task)
	s.mu.Unlock()
}

func (s *stats) addRestored(store string, records int) {
	s.mu.Lock()
	s.restored[store] += uint64(records)
	s.mu.Unlock()
}

// activity returns how many IDs were forgotten and how many records consumed, to be compared with a
// later answer.
func (s *stats) activity() (forgotten, consumed uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.tasks {
		for _, d := range v.dedup {
			forgotten += d.Expired
		}
		for _, c := range v.counters {
			if strings.HasPrefix(c.Name, string(counterConsumedRecords)+separator) {
				consumed += c.Value
			}
		}
	}
	return forgotten, consumed
}

func (s *stats) put(v taskView) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks[v.status.Name] = v
	if s.known || s.expected == 0 {
		return
	}
	n := 0
	for _, x := range s.tasks {
		if x.known {
			n++
		}
	}
	s.known = n >= s.expected
}

func (s *stats) setState(st State, reason string) {
	s.mu.Lock()
	s.state, s.reason = st, reason
	s.mu.Unlock()
}

// publish copies a task's figures to where Status and scrapes find them.
func (w *worker) publish(r *taskRun) {
	w.stats.served.serve(w.engine, r)
	v := taskView{sub: r.plan.sub, status: TaskStatus{
		Name: r.name, Partition: int32(r.partition), State: r.state, Reason: r.reason, RestoreMode: r.mode,
	}}
	if r.restore != nil {
		v.status.Remaining = r.restore.remaining()
		if v.status.Reason == "" {
			v.status.Reason = r.restore.reason
		}
	}
	if t := r.task; t != nil {
		v.known = true
		v.status.StreamTime, v.status.Sequence = t.point.StreamTime, t.point.Sequence
		for _, in := range t.inputs {
			if in != nil {
				v.status.Inputs = append(v.status.Inputs, InputStatus{
					Topic: in.tp.Topic, Partition: int32(in.tp.Partition), Next: in.committed, Stable: in.stable, Lag: in.lag(),
				})
			}
		}
		v.counters = t.counters.committedValues()
		v.dedup, v.repeats = map[string]dedup.Stats{}, map[string][]repeat{}
		for _, l := range t.ids {
			v.dedup[l.name] = l.index.Stats()
			v.repeats[l.name] = l.repeats.last
		}
		v.effects = map[string]topology.EffectStats{}
		for _, x := range t.chain.Calls {
			v.effects[x.Spec().Name] = x.Stats()
		}
		v.errors = slices.Clone(t.errors)
	}
	w.stats.put(v)
}

// Status returns a copy of what the process knows of itself. Safe for concurrent use.
func (s *stats) status(topo *topology.Topology) Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := Status{
		Pipeline: topo.Name(), State: s.current(), Reason: s.reason, Instance: s.instance, Started: s.started,
		Transactions: TransactionStatus{Committed: s.done, Aborted: maps.Clone(s.aborts), LastCommit: s.lastCommit, OldestOpen: s.oldestOpen(), Recent: slices.Clone(s.recent)},
	}
	if out.State == Blocked {
		out.Reason = s.held()
	}
	if out.Reason == "" {
		out.Reason = s.paused()
	}
	out.Globals, out.Instances = s.globals.status(), s.instances
	ops, repeats := map[string]*OperatorStatus{}, map[string][]repeat{}
	for _, sub := range topo.Subtopologies() {
		for _, o := range sub.Operators {
			out.Operators = append(out.Operators, OperatorStatus{Name: o.Name, Kind: o.Kind, Counters: map[string]uint64{}})
		}
		for _, d := range sub.Dedups {
			for i := range out.Operators {
				if out.Operators[i].Name == d.Name {
					out.Operators[i].Dedup = &DedupStatus{Retention: d.Config.Retention, Rebuilds: map[string]uint64{}}
				}
			}
		}
	}
	for i := range out.Operators {
		if out.Operators[i].Kind == effectKind {
			out.Operators[i].Effect = &EffectStatus{}
		}
		ops[out.Operators[i].Name] = &out.Operators[i]
	}
	for _, name := range slices.Sorted(maps.Keys(s.tasks)) {
		v := s.tasks[name]
		if v.status.Reason == "" {
			v.status.Reason = s.stuck[name]
		}
		v.status.Inputs = slices.Clone(v.status.Inputs) // watched goes on writing into its own
		out.Tasks = append(out.Tasks, v.status)
		out.Errors = append(out.Errors, v.errors...)
		for _, c := range v.counters {
			kind, of, _ := strings.Cut(c.Name, separator)
			if o := ops[of]; o != nil {
				o.Counters[kind] += c.Value
			}
		}
		for n, x := range v.effects {
			if o := ops[n]; o != nil && o.Effect != nil {
				o.Effect.add(x)
			}
		}
		for n, d := range v.dedup {
			if o := ops[n]; o != nil && o.Dedup != nil {
				o.Dedup.add(d)
				repeats[n] = append(repeats[n], v.repeats[n]...)
			}
		}
	}
	for n, all := range repeats {
		ops[n].Dedup.Last = s.duplicates(all)
	}
	slices.SortStableFunc(out.Errors, func(a, b RecordErrorStatus) int { return a.Time.Compare(b.Time) })
	if n := len(out.Errors); n > keptErrors {
		out.Errors = out.Errors[n-keptErrors:]
	}
	return out
}

// duplicates shows the last ones of several tasks.
func (s *stats) duplicates(all []repeat) (out []DuplicateStatus) {
	slices.SortFunc(all, func(a, b repeat) int { // of one commit there may be several tasks
		return cmp.Or(a.time.Compare(b.time), strings.Compare(a.at.Topic, b.at.Topic), cmp.Compare(a.at.Partition, b.at.Partition), cmp.Compare(a.at.Offset, b.at.Offset))
	})
	for _, x := range all[max(0, len(all)-keptDuplicates):] {
		d := DuplicateStatus{Time: x.time, Timestamp: x.timestamp, FirstSeen: x.first, Seen: "committed", ID: s.idHash(x.id)}
		if y := x.timestamp.Year(); y < 1 || y > 9999 { // it comes with the record, and JSON has no such time
			d.Timestamp = time.Time{}
		}
		if x.at != (record.Position{}) {
			d.Position = x.at.String()
		}
		if x.open {
			d.Seen = "open_transaction"
		}
		out = append(out, d)
	}
	return out
}

// idHash is what is shown of an ID: see DuplicateStatus.
func (s *stats) idHash(id record.Hash) string {
	mac := hmac.New(sha256.New, s.idKey[:])
	_, _ = mac.Write(id[:])
	return hex.EncodeToString(mac.Sum(nil)[:4])
}

func (s *stats) oldestOpen() (oldest time.Time) {
	for _, t := range s.open {
		if oldest.IsZero() || t.Before(oldest) {
			oldest = t
		}
	}
	return oldest
}

// current is the state with regard to the tasks: running only once all of them do and nothing holds them up.
func (s *stats) current() State {
	if s.state != Running {
		return s.state
	}
	n := 0
	for _, v := range s.tasks {
		if st := v.status.State; st == TaskRunning || st == TaskPaused {
			n++
		}
	}
	switch {
	case len(s.failed)+len(s.unwritten) > 0: // also while the tasks recover from it
		return Blocked
	case n < s.expected:
		return Restoring
	case len(s.stuck) > 0:
		return Blocked
	}
	return Running
}

// paused says how many tasks stand still, and why; empty: none.
func (s *stats) paused() string {
	n, why := 0, ""
	for _, v := range s.tasks {
		if v.status.State == TaskPaused || v.status.Reason == diskFull {
			n, why = n+1, v.status.Reason
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d tasks are paused: %s; they go on when there is space", n, len(s.tasks), why)
}

// settled ends a rebalance, for the metric, once every task runs again.
func (s *stats) settled(now time.Time, m *metric.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current() == Running && !s.rebalanceAt.IsZero() {
		m.Rebalanced(now.Sub(s.rebalanceAt))
		s.rebalanceAt = time.Time{}
	}
}

// effectKind is the kind of an Effect as the topology names it.
const effectKind = "effect"

func (e *EffectStatus) add(x topology.EffectStats) {
	e.Waiting += x.Waiting
	e.Running += x.Running
	e.Uncertain += x.Uncertain
	e.Hanging += x.Hanging
}

// add lays another task's figures over the sum.
func (d *DedupStatus) add(x dedup.Stats) {
	d.IDs += x.IDs
	if !x.Oldest.IsZero() && (d.Oldest.IsZero() || x.Oldest.Before(d.Oldest)) {
		d.Oldest = x.Oldest
	}
	d.BloomBytes += uint64(x.BloomBytes)
	d.BloomFill = max(d.BloomFill, x.WorstFill)
	d.FalsePositiveRate = max(d.FalsePositiveRate, x.FalsePositives)
	d.Expired += x.Expired
	d.Rebuilds["start"] += x.Rebuilds.Missing + x.Rebuilds.Corrupt
}
