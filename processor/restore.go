package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/streamd/streamd/changelog"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// The ways in which a task got its local state.
const (
	modeNone = "none" // there is none, or nothing was missing
	modeTail = "tail" // the local store was kept, what it missed was replayed
	modeFull = "full" // from the start of the changelogs
)

// ErrOffsets: the committed offsets do not fit the input topics. Starting again does not help.
var ErrOffsets = errors.New("processor: committed offsets do not fit the input topics")

// ErrState: the local store belongs to another task.
var ErrState = errors.New("processor: the local store is not this task's")

// ErrDataLost: the cluster no longer has data that was committed.
var ErrDataLost = errors.New("processor: committed data was lost")

const (
	// generationWait is how long a task waits to hear of the generation for which its commit was
	// refused. After it the commit is simply tried again: a stale one is refused again.
	generationWait = 500 * time.Millisecond
	retryLeast     = 5 * time.Millisecond
	retryMost      = 200 * time.Millisecond
	// stallReport is how long a restore may make no progress before it is reported: an undecided
	// transaction in the changelog holds readers up.
	stallReport = 5 * time.Second
)

// restoration is the way of one task from an assignment, or from a failed commit, to running. It is
// stepped: ask the brokers for the truth (in an order that a model check found to be the only safe
// one), read the changelogs to their high watermarks, compare, run.
type restoration struct {
	started time.Time
	// after, if set, is a generation that the group has left: wait until this member knows a newer one.
	after broker.GroupMeta
	// misplaced, if set, is the error of a position that the log did not have. It stands if the group knows
	// no better one: neither the oldest record nor any other is the one to go on with.
	misplaced error

	attempts int
	retryAt  time.Time
	reason   string
	full     bool // forced by a tail that did not fit
	again    bool // what was asked had become old, see overtaken

	asked     bool
	askedAt   time.Time // before the question
	committed []changelog.GroupOffset
	starts    map[record.TopicPartition]record.Offset
	ends      map[record.TopicPartition]record.Offset
	stable    map[record.TopicPartition]record.Offset // of the inputs, if a join must know
	globals   map[record.TopicPartition]record.Offset // where the topics of global tables ended, if there are any
	logs      []changelog.Log
	found     record.LocalPosition // of the local store before anything was changed
	follower  *changelog.Follower
	mode      string
	tag       uint64
	moved     time.Time // of the last progress
	reported  bool
}

func (rs *restoration) remaining() int64 {
	if rs.follower == nil {
		return 0
	}
	return rs.follower.Remaining()
}

// later postpones the next attempt.
func (rs *restoration) later(now time.Time, reason string) {
	rs.retryAt = now.Add(min(retryMost, retryLeast<<min(rs.attempts, 10)))
	rs.attempts++
	rs.reason = reason
}

// stepRestores moves all restores on a bit. It returns how long fetching input may wait: restores are
// not to be held up by it. Negative: no restore is under way.
func (w *worker) stepRestores(ctx context.Context) (time.Duration, error) {
	wait := time.Duration(-1)
	reading := false
	for _, r := range w.runs {
		rs := r.restore
		if rs == nil {
			continue
		}
		if !rs.asked {
			if err := w.ask(ctx, r); err != nil {
				return 0, err
			}
		}
		if rs.asked && rs.follower != nil && !rs.follower.Done() {
			reading = true
		}
		wait = restorePause
	}
	if reading {
		arrived, err := w.readChangelogs(ctx)
		if err != nil {
			return 0, err
		}
		if arrived { // else the changelogs are held up: to ask on and on would be all that this processor does
			wait = 0
		}
	}
	for _, r := range w.runs {
		if rs := r.restore; rs != nil && rs.asked && (rs.follower == nil || rs.follower.Done()) && !w.awaitsGlobals(r) {
			if err := w.finishRestore(ctx, r); err != nil {
				return 0, err
			}
		}
	}
	return wait, nil
}

// awaitsGlobals says whether a global table that the task looks into is not read up to where its topic ended when the task asked.
func (w *worker) awaitsGlobals(r *taskRun) bool {
	names := r.plan.sub.Globals
	if len(names) == 0 {
		return false
	}
	why := w.globals.lacks(names, r.restore.globals)
	if why != "" && why != r.restore.reason {
		r.restore.reason = why
		w.publish(r)
	}
	return why != ""
}

// ask reads the truth in this order: committed offsets with RequireStable, then the high watermarks of
// the changelogs. A transaction whose offsets are visible has its changelog records below such a high
// watermark, even while their commit marker is still missing.
func (w *worker) ask(ctx context.Context, r *taskRun) error {
	rs := r.restore
	now := w.now()
	if now.Before(rs.retryAt) {
		return nil
	}
	if rs.after != (broker.GroupMeta{}) && rs.after == w.meta && now.Sub(rs.started) < generationWait {
		rs.later(now, "waiting for the group's new generation")
		return nil
	}
	err := w.askBrokers(ctx, r)
	switch {
	case err == nil:
		rs.asked, rs.askedAt, rs.reason, rs.attempts, rs.moved = true, now, "", 0, now
		return w.beginReading(r)
	case errors.Is(err, broker.ErrUnstableOffsets):
		if rs.attempts == 6 {
			w.log.Info("waiting for a transaction of the last owner to be decided", "task", r.name)
		}
		rs.later(now, "waiting for an undecided transaction")
	case react(err) == reactStop:
		return fmt.Errorf("processor: task %s: %w", r.name, err)
	default:
		if rs.attempts%16 == 0 {
			w.log.Warn("cannot read the committed state; trying again", "task", r.name, "err", err)
		}
		rs.later(now, err.Error())
	}
	w.publish(r)
	return nil
}

func (w *worker) askBrokers(ctx context.Context, r *taskRun) error {
	rs := r.restore
	committed, err := w.cluster.CommittedOffsets(ctx, w.group(), r.inputs)
	if err != nil {
		return err
	}
	tps := append([]record.TopicPartition(nil), r.inputs...)
	for _, c := range r.changelogs {
		tps = append(tps, c.TopicPartition)
	}
	if rs.ends, err = w.cluster.HighWatermarks(ctx, tps); err != nil {
		return err
	}
	if rs.starts, err = w.cluster.StartOffsets(ctx, tps); err != nil {
		return err
	}
	if len(r.plan.sub.Joins) > 0 {
		if rs.stable, err = w.cluster.StableOffsets(ctx, r.inputs); err != nil {
			return err
		}
	}
	if names := r.plan.sub.Globals; len(names) > 0 {
		// After the offsets: whoever had the task before has seen no more than this (docs/adr/0020).
		if rs.globals, err = w.cluster.StableOffsets(ctx, w.globals.wants(names)); err != nil {
			return err
		}
	}
	rs.committed, rs.logs = rs.committed[:0], r.plan.changelogLogs(r.partition, rs.starts, rs.ends)
	for _, tp := range r.inputs {
		rs.committed = append(rs.committed, changelog.GroupOffset{TopicPartition: tp, CommittedOffset: committed[tp]})
	}
	return nil
}

// changelogLogs describes the changelog partitions of a task: the ID log first.
func (p *subPlan) changelogLogs(n record.Partition, starts, ends map[record.TopicPartition]record.Offset) []changelog.Log {
	var out []changelog.Log
	for i, c := range p.changelogs(n) {
		l := changelog.Log{TopicPartition: c.TopicPartition, TopicID: c.TopicID, Start: starts[c.TopicPartition], End: ends[c.TopicPartition], Retention: p.idLog.Retention}
		if i > 0 {
			l.Store, l.DeleteRetention = p.sub.Stores[i-1].Name, p.stores[i-1].DeleteRetention
		}
		out = append(out, l)
	}
	return out
}

// unfinishedReset is the remedy for what looks like a loss while a reset is half done.
func (r *taskRun) unfinishedReset() string {
	if r.plan.resets.Begun() {
		return ". A streamd reset of this application was begun and not completed: streamd reset --execute completes it"
	}
	return ""
}

// beginReading decides whether the local store may be kept, and starts reading what it lacks.
func (w *worker) beginReading(r *taskRun) error {
	rs := r.restore
	rs.mode = modeNone
	if !r.plan.sub.Stateful() {
		return nil
	}
	local, found := r.local.Position()
	// What a reset has taken away may have had stores that the topology has no more.
	if e := (changelog.Evidence{IDLog: rs.logs[0], Local: local, Resets: r.plan.resets}); !e.LocalWasReset() {
		if err := w.checkStores(r, local); err != nil {
			return err
		}
	}
	keep, reason := changelog.KeepLocal(changelog.LocalEvidence{Local: local, Found: found, Logs: rs.logs, Group: rs.committed, Now: w.now()})
	switch {
	case keep == changelog.Lost:
		return fmt.Errorf("processor: task %s: %w: %s. Recover the topic, or start anew under another application name%s", r.name, ErrDataLost, reason, r.unfinishedReset())
	case keep == changelog.Refuse:
		return fmt.Errorf("processor: task %s: %w: %s", r.name, ErrState, reason)
	case rs.full:
		keep = changelog.RestoreFull
	case keep == changelog.RestoreFull && found:
		w.log.Warn("local store not kept; restoring in full", "task", r.name, "reason", reason)
	}
	if !rs.full {
		rs.found = local
	}
	return w.readFrom(r, keep == changelog.KeepTail)
}

// readFrom starts the reading of the changelogs: the tail, or everything after a reset of the store.
func (w *worker) readFrom(r *taskRun, tail bool) error {
	rs := r.restore
	local := rs.found
	if !tail {
		local = record.LocalPosition{}
		r.seals.Wait() // a seal under way would write what it knows into the new content
		if err := r.local.Reset(); err != nil {
			return fmt.Errorf("processor: task %s: reset the local store: %w", r.name, err)
		}
		r.task = nil // what it holds in memory is of the store that was reset
	}
	var err error
	if rs.follower, err = changelog.NewFollower(rs.logs, local); err != nil {
		return fmt.Errorf("processor: task %s: %w", r.name, err)
	}
	if rs.follower.Done() {
		return nil
	}
	if rs.mode = modeFull; tail {
		rs.mode = modeTail
	}
	if w.restorer == nil {
		w.restorer = w.cluster.NewReader(broker.ReaderConfig{Isolation: broker.ReadCommitted})
	}
	w.tags++
	rs.tag = w.tags
	for tp, next := range rs.follower.Positions() {
		w.restorer.Seek(tp, next, rs.tag)
	}
	w.log.Info("restoring", "task", r.name, "mode", rs.mode, "records", rs.follower.Remaining())
	return nil
}

// readChangelogs takes what has arrived of the changelogs and applies it. It says whether anything had.
func (w *worker) readChangelogs(ctx context.Context) (arrived bool, err error) {
	wait := restoreWait
	for _, r := range w.runs {
		if r.restore == nil {
			wait = 0 // others have work to do
		}
	}
	for _, b := range w.restorer.Poll(ctx, wait) {
		arrived = true
		for _, r := range w.runs {
			if rs := r.restore; rs != nil && rs.follower != nil && rs.tag == b.Tag {
				if err := w.follow(ctx, r, b); err != nil {
					return arrived, err
				}
			}
		}
	}
	now := w.now()
	for _, r := range w.runs {
		rs := r.restore
		if rs == nil || !rs.asked || rs.reported || rs.follower == nil || rs.follower.Done() || now.Sub(rs.moved) <= stallReport {
			continue
		}
		rs.reported, rs.reason = true, "waiting for an undecided transaction in the changelog"
		w.log.Warn("restore makes no progress: an undecided transaction holds up the changelog, or a broker is down", "task", r.name, "remaining", rs.remaining())
		w.publish(r)
	}
	return arrived, nil
}

// follow hands one batch of a changelog to the follower, and what comes of it to the local store.
func (w *worker) follow(ctx context.Context, r *taskRun, b broker.Batch) error {
	rs := r.restore
	err := b.Err
	if err == nil {
		rs.moved, rs.reported, rs.reason = w.now(), false, ""
		err = rs.follower.Add(b.TopicPartition, b.Records, b.Next)
	}
	if err != nil {
		// Retention may take what is being read of an ID log: its IDs were older than any window.
		expired := errors.Is(err, broker.ErrOffsetOutOfRange) && b.TopicPartition == rs.logs[0].TopicPartition
		if expired || rs.mode == modeTail && (errors.Is(err, changelog.ErrSequence) || errors.Is(err, broker.ErrOffsetOutOfRange)) {
			w.log.Warn("the changelog does not continue what was read of it; restoring in full", "task", r.name, "err", err)
			w.endRestoreReads(r)
			rs.full, rs.asked, rs.follower = true, false, nil
			return nil
		}
		if errors.Is(err, changelog.ErrSequence) || errors.Is(err, changelog.ErrTorn) {
			err = errors.Join(ErrDataLost, err)
		}
		return fmt.Errorf("processor: task %s: restore from %s: %w", r.name, b.TopicPartition, err)
	}
	w.stats.addRestored(r.plan.sub.Name, len(b.Records))
	if err := w.applySteps(ctx, r); err != nil {
		return err
	}
	w.publish(r)
	return nil
}

// applySteps applies what the follower has ready. The position of a step is never that of the target: a
// restore that is cut short goes on from what it has (crash table, row 13).
func (w *worker) applySteps(ctx context.Context, r *taskRun) error {
	for {
		step, ok := r.restore.follower.Take()
		if !ok {
			return nil
		}
		switch at, p := r.restore.askedAt, &step.Position; {
		case p.Complete && at.After(p.AppliedAt):
			p.AppliedAt = at // it has all that there was then, however long nothing was committed
		case !p.Complete && p.AppliedAt.After(at):
			p.AppliedAt = at // records of a state topic have the time of their events, which a clock may have set too late
		}
		r.changelogs = step.Position.Changelogs
		if len(step.Blocks)+len(step.State)+len(step.Drops) > 0 || r.task != nil && step.Position.Sequence != r.task.point.Sequence {
			r.task = nil // the local store moves on under it
		}
		w.point("restore.batch")
		if err := w.applyBatch(ctx, r, &step); err != nil {
			return err
		}
	}
}

func (w *worker) endRestoreReads(r *taskRun) {
	if w.restorer == nil {
		return
	}
	for _, c := range r.changelogs {
		w.restorer.Remove(c.TopicPartition)
	}
}

// finishRestore compares what offsets, changelog and local store say, and lets the task run.
func (w *worker) finishRestore(ctx context.Context, r *taskRun) error {
	rs := r.restore
	if rs.follower != nil {
		if err := w.applySteps(ctx, r); err != nil { // the last one says that the store is complete
			return err
		}
		w.endRestoreReads(r)
	}
	if rs.overtaken() {
		w.log.Info("another process has gone on with this task meanwhile; asking again", "task", r.name)
		r.restore = &restoration{started: rs.started, again: true}
		return nil
	}
	point, fresh, err := w.decide(r)
	if err != nil {
		return err
	}
	if err := w.checkInputs(r, &point); err != nil {
		return err
	}
	reused := r.task != nil && !fresh && r.task.point.Sequence == point.Sequence && r.task.point.Incarnation == point.Incarnation
	if reused {
		r.task.continueAt(point)
	} else {
		r.seals.Wait() // a seal of the old index would meet the new one's
		if r.local != nil {
			if err := w.whenRoom(ctx, r, r.local.settle); err != nil { // what is opened now reads the disk
				return err
			}
		}
		if err := w.checkEvolution(r, fresh); err != nil {
			return err
		}
		if r.task, err = newTask(r.plan.taskConfig(w.engine, r.partition), r.name, r.local, point); err != nil {
			return err
		}
		r.endCalls() // what they bring is of no interest to the new one
		r.calls = w.beside()
		r.task.giveUp(w.cfg.dropped, w.emptyLogs(r.plan.sub, point))
	}
	r.task.heardOf(rs.stable)
	r.task.changelogs = r.changelogs // the same positions: commits move them
	took := w.now().Sub(rs.started)
	r.mode = rs.mode
	if rs.mode != modeNone {
		w.metrics.Restored(r.plan.sub.Name, rs.mode, took)
		w.log.Info("restored", "task", r.name, "mode", rs.mode, "took", took)
	}
	r.state, r.reason, r.restore = TaskRunning, "", nil
	w.seek(r)
	w.publish(r)
	w.stats.settled(w.now(), w.metrics)
	w.point("restore.done")
	return nil
}

// overtaken says that the ID log names more than there was when the brokers were asked: a commit behind its end, inputs
// or changelogs beyond theirs. So it is when this process stood still for longer than its session lasts, and its
// successor has committed: nothing was truncated. (crash table, rows 18 and 20)
func (rs *restoration) overtaken() bool {
	if rs.follower == nil {
		return false
	}
	if rs.follower.Overrun() || rs.again { // what is so twice, without a commit in between, is so
		return rs.follower.Overrun()
	}
	point := rs.follower.Point()
	for _, p := range point.Inputs {
		if end, ok := rs.ends[p.TopicPartition]; ok && p.Next > end {
			return true
		}
	}
	for _, s := range point.Stores {
		for _, l := range rs.logs {
			if l.Store == s.Store && l.TopicID == s.TopicID && s.Next > l.End {
				return true
			}
		}
	}
	return false
}

// decide finds the point from which the task goes on.
func (w *worker) decide(r *taskRun) (point record.CommitPoint, fresh bool, err error) {
	rs := r.restore
	if rs.follower == nil {
		return w.decideStateless(r)
	}
	d, err := changelog.Compare(changelog.Evidence{Group: rs.committed, Point: rs.follower.Point(), IDLog: rs.logs[0], Stores: rs.logs[1:], Local: rs.found, Resets: r.plan.resets, Now: w.now()})
	if err != nil {
		return point, false, fmt.Errorf("processor: task %s: %w", r.name, err)
	}
	switch d.Verdict {
	case changelog.DataLost:
		if rs.logs[0].End == 0 { // it was made just now
			d.Remedy += fmt.Sprintf(". If the source was renamed, name it back: its ID log is called after it. If %q had no dedup operator and no state so far, nothing was lost: "+
				"set the group's offsets to where they are with kafka-consumer-groups.sh, and it begins empty there; or go back with --drop-state %s", r.plan.sub.Name, r.plan.sub.Name)
		}
		return point, false, fmt.Errorf("processor: task %s: %w: %s. Remedy: %s%s", r.name, ErrDataLost, d.Reason, d.Remedy, r.unfinishedReset())
	case changelog.Fresh:
		d.Point.Incarnation = w.incarnation()
		fresh = true
	case changelog.UseChangelog:
		w.log.Warn("going on from the changelog, not from the group's offsets", "task", r.name, "reason", d.Reason)
	}
	if d.Reason != "" && d.Verdict != changelog.UseChangelog {
		w.log.Info("start position", "task", r.name, "reason", d.Reason)
	}
	return d.Point, fresh, nil
}

// decideStateless takes the group's offsets as they are: nothing else has to agree with them. The
// counters are in memory only: a task that recovers keeps them, those of the transaction in doubt
// included if the group's offsets are its.
func (w *worker) decideStateless(r *taskRun) (point record.CommitPoint, fresh bool, err error) {
	point.Incarnation = w.incarnation()
	var last changelog.Metadata
	for _, o := range r.restore.committed {
		if o.Next == record.NoOffset {
			continue
		}
		point.Inputs = append(point.Inputs, record.InputPosition{TopicPartition: o.TopicPartition, Next: o.Next})
		if m, err := changelog.ParseMetadata(o.Metadata); err == nil && m.Sequence > last.Sequence {
			last = m
		} else if errors.Is(err, changelog.ErrNewerFormat) {
			return point, false, fmt.Errorf("processor: task %s: %w", r.name, err)
		}
	}
	point.Sequence = last.Sequence
	if t := r.task; t != nil {
		point.Counters = t.counters.committedValues()
		if p := &t.pending; p.Sequence == last.Sequence && p.Incarnation == last.Incarnation {
			point.Counters = p.Counters
		}
	}
	return point, false, nil
}

// checkInputs completes the positions: an input that was never read begins at its oldest record, and one
// that was must still have its next record.
func (w *worker) checkInputs(r *taskRun, point *record.CommitPoint) error {
	rs := r.restore
	wrong := func(err error) error {
		if rs.misplaced != nil {
			return fmt.Errorf("%w; %w", rs.misplaced, err)
		}
		return err
	}
	at := map[record.TopicPartition]record.InputPosition{}
	for _, p := range point.Inputs {
		at[p.TopicPartition] = p
	}
	point.Inputs = nil
	for _, tp := range r.inputs {
		start, end := rs.starts[tp], rs.ends[tp]
		next := start
		if p, known := at[tp]; known {
			next = p.Next
			if err := w.checkTopicID(r, p); err != nil {
				return err
			}
		}
		switch _, known := at[tp]; {
		case !known && rs.misplaced != nil:
			return rs.misplaced
		case next < start:
			remedy := "set the group's offsets with kafka-consumer-groups.sh"
			if r.plan.sub.Stateful() { // its changelog says where it is, whatever the offsets are set to
				remedy = "start under another application name: its state and its IDs begin empty"
			}
			return wrong(fmt.Errorf("processor: task %s: %w: %s is to be read from offset %d, but begins at %d: %d records were deleted before they were processed (retention is too short, or the application was down too long). "+
				"To accept the loss, %s", r.name, ErrOffsets, tp, next, start, start-next, remedy))
		case next > end:
			return wrong(fmt.Errorf("processor: task %s: %w: %s is to be read from offset %d, but ends at %d: the topic was truncated or made anew", r.name, ErrOffsets, tp, next, end))
		}
		point.Inputs = append(point.Inputs, record.InputPosition{TopicPartition: tp, Next: next})
	}
	slices.SortFunc(point.Inputs, compareInputs)
	return nil
}

// checkTopicID finds an input topic that was deleted and made again: the offset means another record. The
// commit record knows the topic's ID, and so does the metadata of a committed offset, which Kafka
// deletes with the topic.
func (w *worker) checkTopicID(r *taskRun, p record.InputPosition) error {
	was := p.TopicID
	for _, o := range r.restore.committed {
		if m, err := changelog.ParseMetadata(o.Metadata); o.TopicPartition == p.TopicPartition && err == nil && was == "" {
			was = m.TopicID
		}
	}
	for _, t := range r.plan.inputs {
		if t.Name == p.Topic && was != "" && t.ID != "" && was != t.ID {
			return fmt.Errorf("processor: task %s: %w: topic %q was deleted and made again (ID %s, was %s): offset %d, the next to process, belongs to the old one. "+
				"Start under another application name", r.name, ErrOffsets, p.Topic, t.ID, was, p.Next)
		}
	}
	return nil
}
