package processor

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/streamd/streamd/changelog"
	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/internal/invariant"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// LocalStore is a task's part of the local transaction log. txlog implements it on disk; simulations
// use a model of a disk.
type LocalStore interface {
	// Position is what the store last applied; false: nothing yet.
	Position() (record.LocalPosition, bool)
	// Apply makes one batch durable, atomically: all of it with the position, or nothing of the position. The
	// batch's memory is the caller's again after the return.
	Apply(*record.Batch) error
	// Get returns nil for an absent key.
	Get(store string, key []byte) ([]byte, error)
	// Range calls fn in key order for from <= key < to (nil: no bound) until it returns false.
	Range(store string, from, to []byte, fn func(key, value []byte) bool) error
	// IDs is the ID log of one dedup operator.
	IDs(operator string) dedup.Log
	// Reset forgets everything, before a full restore.
	Reset() error
}

// turnBytes is what one call of Process may add to a transaction, but for its last record.
const turnBytes = 1 << 20

// fullCountersEvery is how often a commit record carries all counters instead of those that changed.
const fullCountersEvery = 64

// taskConfig is what a task needs to know of the world. It is shared by the tasks of a sub-topology,
// except for what says otherwise.
type taskConfig struct {
	sub        *topology.Subtopology
	partition  record.Partition        // this task's
	inputs     []record.TopicPartition // this task's, by source; empty topic: no such partition
	inputIDs   []string                // topic UUIDs, by source
	upstreams  []int32                 // how many tasks write it, by source; 0: not known, or they tell no time
	forgetful  map[string]bool         // Sink.Topic of those whose readers have no state
	clusterID  string                  // of the Kafka cluster
	sinks      []sinkTarget            // by sink
	idLog      string                  // topic of ID blocks and commit records
	idLogBytes int                     // what one of its records may hold
	stores     map[string]storeTarget  // by store
	policy     topology.Policy         // of operators that have none of their own
	deadLetter sinkTarget
	meters     map[string]*idMeter // by dedup operator; none in simulations
	taps       *tapPoint           // nil in simulations
	traces     string              // name of the application, if it is traced
	globals    *globals            // nil: the topology has none
}

// storeTarget is a state store's changelog topic.
type storeTarget struct {
	topic    string
	maxBytes int // of key and value together
}

// sinkTarget is an output topic as it is.
type sinkTarget struct {
	operator   string
	topic      string
	partitions int32
	maxBytes   int  // max.message.bytes
	ahead      bool // its records are sent before the transaction
}

// Task runs one sub-topology on one partition. It is pure: every effect of a record stays in memory
// until PrepareCommit returns it, and no method blocks. The life of a transaction:
//
//	AddRecords, Process ...   records, and what is due by time, run through the chain; effects pile up over the
//	                          committed state
//	PrepareCommit             what is to be published, with the position that it stands for
//	   (the runner commits it in Kafka and applies Txn.Batch to the local store)
//	PostCommit                the effects are the committed state
//	Abort                     instead, at any time before: all effects are gone, the positions go back
//
// A record whose chain fails leaves nothing behind but what its error policy says. Not safe for
// concurrent use.
type Task struct {
	cfg   taskConfig
	name  string
	local LocalStore
	chain *topology.Chain

	inputs []*input // by source; nil: the source has no such partition
	ids    []*idLog
	stores []*overlay

	// changelogs are the positions of the changelogs as of the last commit, kept by the runner: the ID
	// log first, then the stores.
	changelogs []record.ChangelogPosition
	// point is the last committed one: what the local store's position says (INV-2). pending is the
	// prepared one.
	point, pending record.CommitPoint
	counters       counters

	taskTime
	current  record.Position
	prepared bool
	// preparedAt is when, by the host's clock.
	preparedAt time.Time

	out      []broker.Output
	ahead    []broker.Output // outputs that do not wait for the transaction
	outBytes int             // of both
	// Of the prepared transaction; empty before.
	changes   []record.StateChange
	changelog []broker.Output
	arena     arena
	tooLarge  error // set by Emit for the record in hand
	undoOut   savepoint
	// waiting is why the next record, or what is due, cannot be done now though nothing is wrong with it (serde.ErrUnavailable).
	waiting  error
	records  int // of this transaction, and pieces that were due
	consumed int // records alone
	bytes    int
	skipped  bool      // a position moved without a record (markers)
	oldest   time.Time // lowest timestamp of this transaction, for the latency metric
	errors   []RecordErrorStatus
	tapViews []tapView // by tap
	traces   taskTraces
}

// Txn is what a task wants to be committed.
type Txn struct {
	// The slices, and Batch.State, are the task's own: they are valid until PostCommit or Abort.
	Outputs   []broker.Output
	Ahead     []broker.Output // to be acknowledged before the transaction begins
	Changelog []broker.Output // ID blocks, state changes, and the commit record last
	Offsets   []broker.OffsetCommit
	// Batch is to be applied to the local store after the commit, with the changelog positions filled
	// in from the receipt. Nil if the task has no state.
	Batch   *record.Batch
	Records int // of the inputs
}

// newTask makes a task that continues at the point. The local store is complete up to it.
func newTask(cfg taskConfig, name string, local LocalStore, point record.CommitPoint) (*Task, error) {
	t := &Task{cfg: cfg, name: name, local: local, point: point}
	t.streamTime, t.traces.app = point.StreamTime, cfg.traces
	t.counters.load(point.Counters)
	for _, d := range cfg.sub.Dedups {
		x, err := dedup.Open(d.Config, local.IDs(d.Name))
		if err != nil {
			return nil, fmt.Errorf("processor: task %s: open the ID log of %q: %w", name, d.Name, err)
		}
		t.ids = append(t.ids, &idLog{name: d.Name, index: x, meter: cfg.meters[d.Name], current: &t.current})
	}
	for _, s := range cfg.sub.Stores {
		t.stores = append(t.stores, newOverlay(s.Name, local, cfg.stores[s.Name].maxBytes))
	}
	for i, tp := range cfg.inputs {
		if tp.Topic == "" {
			t.inputs = append(t.inputs, nil)
			continue
		}
		in := &input{
			tp: tp, source: i, eventTime: cfg.sub.Sources[i].Timestamp,
			records: t.counters.cell(topology.CounterID{Kind: counterConsumedRecords, Of: tp.Topic}),
			bytes:   t.counters.cell(topology.CounterID{Kind: counterConsumedBytes, Of: tp.Topic}),
		}
		t.inputs = append(t.inputs, in)
	}
	t.restorePositions()
	t.advanceIDs()
	var err error
	if t.chain, err = cfg.sub.NewChain(t); err != nil {
		return nil, fmt.Errorf("processor: task %s: %w", name, err)
	}
	t.startTime()
	if err := t.openCalls(); err != nil {
		return nil, fmt.Errorf("processor: task %s: %w", name, err)
	}
	return t, nil
}

// advanceIDs tells the ID logs the stream time, by which they judge what is too late.
func (t *Task) advanceIDs() {
	if t.streamTime.IsZero() {
		return
	}
	for _, l := range t.ids {
		l.index.Advance(t.streamTime)
	}
}

// restorePositions puts the inputs to the committed positions and empties their queues.
func (t *Task) restorePositions() {
	for _, in := range t.inputs {
		if in == nil {
			continue
		}
		in.clear()
		for _, p := range t.point.Inputs {
			if p.TopicPartition == in.tp {
				in.next = p.Next
			}
		}
		in.committed = in.next
	}
}

// AddRecords queues one fetched batch of an input partition. The batch must begin where the last one
// ended: the caller drops batches of another assignment or position.
func (t *Task) AddRecords(b broker.Batch) {
	for _, in := range t.inputs {
		if in != nil && in.tp == b.TopicPartition {
			in.add(b)
			return
		}
	}
	invariant.Check(false, "INV-7 task %s got a batch of %s", t.name, b.TopicPartition)
}

// Queued is the number of records that wait in a partition's queue.
func (t *Task) queued() (records int) {
	for _, in := range t.inputs {
		if in != nil {
			records += in.queued
		}
	}
	return records
}

// size is the bytes of the open transaction: input, outputs and changed state.
func (t *Task) size() int {
	n := t.bytes + t.outBytes
	for _, s := range t.stores {
		n += s.changed
	}
	return n
}

// Process runs up to limit queued records through the chain, lowest timestamp first, and what is due by time between them;
// fewer if they are large. now is the host's clock, the only one that the task hears of. It returns how much it
// did. An error means that the operator's policy is to stop; it names operator and record.
func (t *Task) Process(now time.Time, limit int) (int, error) {
	n, err := t.run(now, limit)
	t.waiting = nil
	if errors.Is(err, serde.ErrUnavailable) {
		// The record, or the piece, is undone and still the next one: the next call does it again.
		t.waiting, err = err, nil
	}
	return n, err
}

func (t *Task) run(now time.Time, limit int) (int, error) {
	invariant.Check(!t.prepared, "INV-6 task %s processes while a commit is prepared", t.name)
	most := t.size() + turnBytes
	t.tick(now)
	n, did, err := 0, 0, error(nil)
	for err == nil && n < limit && t.size() < most {
		// A record may set a timer that is due at once: that is done before the next record moves the clocks, wherever the
		// calls of Process and the commits fall.
		if did, err = t.fire(now, limit-n); did > 0 || err != nil {
			n += did
			continue
		}
		in, pickErr := t.pick()
		if err = pickErr; err != nil {
			continue
		}
		if in == nil || t.held() {
			break
		}
		took, markErr := t.takeMark(in)
		if err = markErr; took || err != nil {
			continue
		}
		r := in.head()
		t.observe(in, now)
		if t.keeps && t.fired.time() < t.watermark {
			if did, err = t.fire(now, limit-n); did > 0 || err != nil {
				n += did
				continue // the record comes after all that was due before it
			}
		}
		if err := t.process(in, r, now); err != nil {
			return n, err
		}
		in.advance()
		*in.records++
		size := r.Size()
		*in.bytes += uint64(size)
		t.bytes += size
		if t.consumed == 0 || r.Timestamp.Before(t.oldest) {
			t.oldest = r.Timestamp
		}
		t.records++
		t.consumed++
		n++
	}
	if err != nil {
		return n, err
	}
	for _, in := range t.inputs {
		if in != nil && in.skip() {
			t.skipped = true
		}
	}
	return n, nil
}

// pick returns the input whose head has the lowest timestamp (the first one of equals), or nil: none has a record, or it is
// not known yet which one is next. The error is serde.ErrUnavailable.
func (t *Task) pick() (*input, error) {
	if _, waits := t.awaits(); waits {
		return nil, nil
	}
	var best *input
	for _, in := range t.inputs {
		if in == nil || in.empty() {
			continue
		}
		if err := in.findTime(); err != nil {
			return nil, fmt.Errorf("processor: task %s: time of the next record of %s: %w", t.name, in.tp, err)
		}
		if best == nil || in.time().Before(best.time()) {
			best = in
		}
	}
	return best, nil
}

// process runs one record. What it did is undone if it fails.
func (t *Task) process(in *input, r *broker.Record, now time.Time) error {
	t.current = record.Position{TopicPartition: in.tp, Offset: r.Offset}
	t.begin()
	taps := t.cfg.taps.current()
	if taps != nil {
		t.tapBegin(taps)
	}
	if t.traces.app != "" {
		t.traceBegin(r, now)
	}
	err := t.chain.Sources[in.source](r)
	if err == nil {
		err = t.tooLarge
	}
	if taps != nil {
		t.tapEnd(taps, r, err, now)
	}
	t.traceEnd(err)
	if err == nil {
		t.keep()
		fault.Point("user.done")
		return nil
	}
	t.undo()
	return t.failed(in, r, err, now)
}

// savepoint is what the outputs were before the record or the piece in hand.
type savepoint struct{ outputs, ahead, bytes int }

// begin starts a unit: all of it remains, by keep, or nothing, by undo.
func (t *Task) begin() {
	t.undoOut = savepoint{len(t.out), len(t.ahead), t.outBytes}
	for _, l := range t.ids {
		l.mark = l.index.Mark()
		l.repeats.begin()
	}
}

func (t *Task) keep() {
	for _, s := range t.stores {
		s.keep()
	}
}

func (t *Task) undo() {
	t.out, t.outBytes, t.tooLarge = t.out[:t.undoOut.outputs], t.undoOut.bytes, nil
	t.ahead = t.ahead[:t.undoOut.ahead]
	for _, l := range t.ids {
		l.index.Rollback(l.mark)
		l.repeats.undo()
	}
	for _, s := range t.stores {
		s.undo()
	}
}

// PrepareCommit returns everything since the last commit, or nil if nothing happened. Until PostCommit
// or Abort the task takes no further step.
func (t *Task) PrepareCommit(now time.Time) *Txn {
	if !t.dirty() {
		return nil
	}
	p := record.CommitPoint{Sequence: t.point.Sequence + 1, Incarnation: t.point.Incarnation, StreamTime: t.streamTime, Inputs: t.positions()}
	t.countProduced(t.out)
	t.countProduced(t.ahead)
	t.tell(now)
	txn := &Txn{Records: t.consumed, Outputs: t.out, Ahead: t.ahead, Offsets: t.offsets(p, now)}
	if t.cfg.sub.Stateful() {
		t.prepareState(txn, &p, now)
	} else {
		p.Counters = t.counters.snapshot(true)
	}
	t.pending, t.prepared, t.preparedAt = p, true, now
	return txn
}

// positions are the inputs' next ones.
func (t *Task) positions() (all []record.InputPosition) {
	for _, in := range t.inputs {
		if in != nil {
			all = append(all, record.InputPosition{TopicPartition: in.tp, TopicID: t.cfg.inputIDs[in.source], Next: in.next})
		}
	}
	slices.SortFunc(all, compareInputs)
	return all
}

// offsets are the same for the group, with what tells them from those of another commit.
func (t *Task) offsets(p record.CommitPoint, now time.Time) (all []broker.OffsetCommit) {
	for _, in := range t.inputs {
		if in == nil {
			continue
		}
		m := changelog.Metadata{Sequence: p.Sequence, Incarnation: p.Incarnation, CommitTime: now, TopicID: t.cfg.inputIDs[in.source]}
		all = append(all, broker.OffsetCommit{TopicPartition: in.tp, Next: in.next, Metadata: m.String()})
	}
	return all
}

// countProduced counts outputs by their topics.
func (t *Task) countProduced(out []broker.Output) {
	var records, bytes *uint64 // of the topic of the output before: mostly there is one only
	for i := range out {
		topic := out[i].Topic
		if i == 0 || topic != out[i-1].Topic {
			records = t.counters.cell(topology.CounterID{Kind: counterProducedRecords, Of: topic})
			bytes = t.counters.cell(topology.CounterID{Kind: counterProducedBytes, Of: topic})
		}
		*records++
		*bytes += uint64(outputSize(&out[i]))
	}
}

// storeOf is the state store whose changelog a topic is.
func (t *Task) storeOf(topic string) string {
	for _, s := range t.stores {
		if t.cfg.stores[s.name].topic == topic {
			return s.name
		}
	}
	return ""
}

// dirty says whether there is anything to commit: a record, positions that moved over markers and marks, or a mark to be
// told.
func (t *Task) dirty() bool { return t.records > 0 || t.skipped || t.tells.due }

// prepareState adds the ID blocks, the state changes and the commit record.
func (t *Task) prepareState(txn *Txn, p *record.CommitPoint, now time.Time) {
	b := &record.Batch{State: t.changes}
	txn.Changelog = t.changelog
	to := func(topic string, key, value []byte) {
		txn.Changelog = append(txn.Changelog, t.changelogRecord(topic, key, value))
	}
	for _, s := range t.stores {
		topic := t.cfg.stores[s.name].topic
		from := len(b.State)
		b.State = s.appendChanges(b.State, &t.arena)
		for _, c := range b.State[from:] {
			to(topic, c.Key, c.Value)
		}
	}
	for _, l := range t.ids {
		blocks, drops := l.index.Prepare(t.streamTime)
		for _, blk := range splitBlocks(blocks, t.cfg.idLogBytes) {
			ob := record.OperatorBlock{Operator: l.name, IDBlock: blk}
			b.Blocks = append(b.Blocks, ob)
			k, v := changelog.EncodeBlock(ob)
			to(t.cfg.idLog, k, v)
		}
		for _, g := range drops {
			b.Drops = append(b.Drops, record.GenerationDrop{Operator: l.name, Generation: g})
		}
	}
	written := 0
	for i := range txn.Changelog {
		written += outputSize(&txn.Changelog[i])
	}
	t.counters.add(topology.CounterID{Kind: counterChangelogRecords, Of: t.cfg.sub.Name}, uint64(len(txn.Changelog)))
	t.counters.add(topology.CounterID{Kind: counterChangelogBytes, Of: t.cfg.sub.Name}, uint64(written))
	t.noteUnlogged()
	k, v := changelog.EncodeCommit(t.commitRecord(*p, t.counters.snapshot(allCounters(p.Sequence))))
	to(t.cfg.idLog, k, v) // the last record of the task's transaction
	p.Counters = t.counters.snapshot(true)
	b.Position = record.LocalPosition{CommitPoint: *p, Complete: true, AppliedAt: now}
	txn.Batch = b
	t.changes, t.changelog = b.State, txn.Changelog
}

// changelogRecord is a record of one of the task's changelogs.
func (t *Task) changelogRecord(topic string, key, value []byte) broker.Output {
	return broker.Output{
		TopicPartition: record.TopicPartition{Topic: topic, Partition: t.cfg.partition},
		Timestamp:      t.streamTime, Key: key, Value: value,
	}
}

// commitRecord is a commit point as it is written: with the counters that it tells, and how far the stores' changelogs went before.
func (t *Task) commitRecord(p record.CommitPoint, told []record.Counter) record.CommitPoint {
	for _, c := range t.changelogs[1:] {
		p.Stores = append(p.Stores, record.StorePosition{Store: t.storeOf(c.Topic), TopicID: c.TopicID, Next: c.Next})
	}
	p.Counters = told
	return p
}

// allCounters says whether a commit record tells all counters.
func allCounters(sequence uint64) bool { return sequence%fullCountersEvery == 0 }

// PostCommit makes the prepared effects the committed state. The local store has applied them. An error means that it cannot be read.
func (t *Task) PostCommit() error {
	invariant.Check(t.prepared, "INV-1 task %s: commit without a prepared transaction", t.name)
	t.point = t.pending
	for _, in := range t.inputs {
		if in != nil {
			in.committed = in.next
		}
	}
	for _, l := range t.ids {
		l.commit(t.preparedAt)
	}
	for _, s := range t.stores {
		s.commit()
	}
	t.counters.commit()
	if t.tells.saying.known {
		t.tells.said = t.tells.saying
	}
	t.tells.due = false
	t.clearTxn()
	return t.committedCalls()
}

// Abort drops everything since the last commit, the queues included: the caller reads again from the
// positions of Point.
func (t *Task) Abort() {
	for _, l := range t.ids {
		l.abort()
	}
	for _, s := range t.stores {
		s.abort()
	}
	t.counters.abort()
	t.resetTime()
	t.advanceIDs()
	t.clearTxn()
	t.restorePositions()
}

func (t *Task) clearTxn() {
	clear(t.out)
	clear(t.ahead)
	clear(t.changes)
	clear(t.changelog)
	t.out, t.changes, t.changelog, t.outBytes = t.out[:0], t.changes[:0], t.changelog[:0], 0
	t.ahead = t.ahead[:0]
	t.arena.reset()
	t.forgetHeaders()
	t.traces.forget()
	t.records, t.consumed, t.bytes, t.skipped, t.prepared = 0, 0, 0, false, false
	t.tooLarge = nil
}

// continueAt goes on at the last committed point after an Abort; its input positions may have been
// corrected from the changelog.
func (t *Task) continueAt(p record.CommitPoint) {
	t.point.Inputs = p.Inputs
	t.restorePositions()
}

// Point is the task's last committed point.
func (t *Task) Point() record.CommitPoint { return t.point }

// splitBlocks cuts blocks that would not fit into one record of the changelog.
func splitBlocks(blocks []record.IDBlock, limit int) []record.IDBlock {
	var out []record.IDBlock
	for _, b := range blocks {
		size := max(1, limit/b.EntryBytes) * b.EntryBytes
		for len(b.Entries) > size {
			part := b
			part.Entries, b.Entries = b.Entries[:size:size], b.Entries[size:]
			out = append(out, part)
		}
		out = append(out, b)
	}
	return out
}

func compareInputs(a, b record.InputPosition) int {
	if a.Topic != b.Topic {
		if a.Topic < b.Topic {
			return -1
		}
		return 1
	}
	return int(a.Partition) - int(b.Partition)
}

func outputSize(o *broker.Output) int {
	n := len(o.Key) + len(o.Value)
	for i := range o.Headers {
		n += len(o.Headers[i].Key) + len(o.Headers[i].Value)
	}
	return n
}
