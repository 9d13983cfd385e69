package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/internal/invariant"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/txlog"
)

// prepared is a task's part of the transaction that is being committed.
type prepared struct {
	run *taskRun
	txn *Txn
}

// commit ends the open transaction: Kafka first, then the local stores, then memory. Every point at
// which the process may die lies between two of its calls; ARCHITECTURE.md lists them.
func (w *worker) commit(ctx context.Context) error {
	if !w.open {
		return nil
	}
	w.extra = 0
	if w.atMostOnce() {
		if claimed, err := w.claim(ctx); !claimed {
			return err
		}
	}
	parts := w.prepare()
	if len(parts) == 0 {
		w.endTxn()
		return nil
	}
	offsets := w.buffer(parts)
	w.stats.openTxn(w.id, w.opened)
	w.point("commit.prepared")
	if err := w.sendAhead(ctx, parts); err != nil {
		return w.commitFailed(ctx, broker.NotCommitted, err)
	}
	receipt, outcome, err := w.publishTxn(ctx, offsets)
	if outcome != broker.Committed {
		return w.commitFailed(ctx, outcome, err)
	}
	w.point("commit.acked")
	return w.applyTxn(ctx, parts, receipt)
}

// buffer hands the tasks' parts to the producer and returns their offsets.
func (w *worker) buffer(parts []prepared) (offsets []broker.OffsetCommit) {
	for _, p := range parts {
		for i := range p.txn.Outputs {
			w.producer.Add(p.txn.Outputs[i])
		}
		for i := range p.txn.Changelog {
			w.producer.Add(p.txn.Changelog[i])
		}
		offsets = append(offsets, p.txn.Offsets...)
	}
	return offsets
}

func (w *worker) prepare() []prepared {
	var parts []prepared
	now := w.now()
	for _, r := range w.runs {
		if !r.commits() {
			continue
		}
		if txn := r.task.PrepareCommit(now); txn != nil {
			parts = append(parts, prepared{run: r, txn: txn})
		}
	}
	return parts
}

// publishTxn commits in Kafka. A transaction that failed before it was asked to commit is run again
// from memory, under a new epoch; never after an unknown outcome.
func (w *worker) publishTxn(ctx context.Context, offsets []broker.OffsetCommit) (broker.Receipt, broker.Outcome, error) {
	for n := 0; ; n++ {
		if !w.ready {
			if err := w.initProducer(ctx); err != nil {
				return broker.Receipt{}, broker.NotCommitted, err
			}
		}
		receipt, outcome, err := w.producer.Commit(ctx, w.txnMeta, offsets)
		if outcome == broker.Committed {
			return receipt, outcome, nil
		}
		w.ready = false
		w.noteFailure(outcome, err)
		if outcome == broker.Unknown || react(err) != reactReplay || n >= memoryReplays {
			return receipt, outcome, err
		}
		w.log.Warn("transaction failed before its commit; running it again from memory", "worker", w.id, "err", err)
	}
}

// initError is the failure of an Init: there is nothing left to try.
type initError struct{ error }

func (e initError) Unwrap() error { return e.error }

// initProducer gets a new epoch: whatever is late of an older transaction is refused from then on.
// A commit that was answered "fenced" may be one whose transaction had timed out; if Init is fenced
// too, another process owns the transactional ID, and trying again would only disturb it.
func (w *worker) initProducer(ctx context.Context) error {
	if err := w.producer.Init(ctx); err != nil {
		return initError{err}
	}
	w.ready = true
	return nil
}

// noteFailure makes the state say why transactions fail, until one is committed. What a rebalance or a stop
// does is not a failure, nor is a doubt: what it was is found out, and that may have been a commit.
func (w *worker) noteFailure(outcome broker.Outcome, err error) {
	if outcome == broker.Unknown {
		return
	}
	for _, kind := range []error{broker.ErrIllegalGeneration, broker.ErrUnknownMember, context.Canceled} {
		if errors.Is(err, kind) {
			return
		}
	}
	w.stats.failing(w.id, err)
}

// commitFailed is the one way back from a commit that did not clearly succeed: overlays dropped, a new
// epoch, then the truth is read from the broker as at a start.
func (w *worker) commitFailed(ctx context.Context, outcome broker.Outcome, err error) error {
	reason := abortReason(outcome, err)
	w.trace(string(reason))
	w.stats.aborted(string(reason), w.metrics)
	w.log.Warn("transaction not committed", "worker", w.id, "outcome", outcome.String(), "reason", reason, "err", err)
	w.producer.Reset()
	stale := w.txnMeta
	w.endTxn()
	if outcome == broker.NotCommitted && react(err) == reactStop {
		for _, r := range w.runs {
			if r.task != nil {
				r.task.Abort()
			}
		}
		return fmt.Errorf("processor: commit: %w", err)
	}
	return w.recover(ctx, stale, err)
}

// recover restarts the worker's running tasks from the committed state.
func (w *worker) recover(ctx context.Context, stale broker.GroupMeta, cause error) error {
	w.point("recover.start")
	if !w.ready {
		if err := w.initProducer(ctx); err != nil {
			return fmt.Errorf("processor: a new producer epoch after a failed transaction: %w", err)
		}
	}
	for _, r := range w.runs {
		if !r.commits() {
			continue
		}
		w.restartTask(r)
		if errors.Is(cause, broker.ErrIllegalGeneration) || errors.Is(cause, broker.ErrUnknownMember) {
			// The group has moved on. Until this member has heard of the new generation, a commit
			// would be refused again.
			r.restore.after = stale
		}
	}
	return nil
}

// restartTask puts a task on its way back to running: what is not committed is dropped.
func (w *worker) restartTask(r *taskRun) {
	r.task.Abort()
	for _, tp := range r.inputs {
		w.reader.Remove(tp)
	}
	w.tags++
	r.tag = w.tags
	r.state, r.reason = TaskRecovering, ""
	r.restore = &restoration{started: w.now()}
	w.publish(r)
}

// applyTxn brings a committed transaction into the local stores and makes it the tasks' state.
func (w *worker) applyTxn(ctx context.Context, parts []prepared, receipt broker.Receipt) error {
	start := w.now()
	if err := w.applyParts(ctx, parts, receipt); err != nil {
		return err
	}
	end := w.now()
	w.trace("")
	records := 0
	for _, p := range parts {
		records += p.txn.Records
		if p.txn.Records > 0 {
			w.metrics.Latency(end.Sub(p.run.task.oldest))
		}
		if err := p.run.task.PostCommit(); err != nil {
			return fmt.Errorf("processor: task %s: %w", p.run.name, err)
		}
		fault.Point("filter.added")
		w.stats.served.committed(p.run, w.opened)
		w.seal(p.run)
		w.publish(p.run)
	}
	w.stats.committed(w.id, end, records, w.metrics)
	w.commitTime += (w.extra + receipt.Flush + receipt.Offsets + receipt.EndTxn + end.Sub(start) - w.commitTime) / 8
	w.metrics.CommitPhase(metric.PhaseFlush, receipt.Flush)
	w.metrics.CommitPhase(metric.PhaseOffsets, receipt.Offsets)
	w.metrics.CommitPhase(metric.PhaseEndTxn, receipt.EndTxn)
	w.metrics.CommitPhase(metric.PhaseApply, end.Sub(start))
	w.endTxn()
	return nil
}

// applyParts brings a committed transaction into the local stores.
func (w *worker) applyParts(ctx context.Context, parts []prepared, receipt broker.Receipt) error {
	for _, p := range parts {
		if p.txn.Batch != nil {
			advanceChangelogs(p.run.changelogs, receipt)
			p.txn.Batch.Position.Changelogs = p.run.changelogs
			if err := w.applyBatch(ctx, p.run, p.txn.Batch); err != nil {
				return err
			}
		}
		w.point("commit.applied")
	}
	return nil
}

// applyBatch applies one batch; the transaction is committed, so that it waits for space on a full
// disk instead of giving up (crash table, row 37). A crash while it waits is harmless: the changelog
// has the batch.
func (w *worker) applyBatch(ctx context.Context, r *taskRun, b *record.Batch) error {
	return w.whenRoom(ctx, r, func() error { return r.local.Apply(b) })
}

// whenRoom writes to a task's local store once there is space on the disk.
func (w *worker) whenRoom(ctx context.Context, r *taskRun, write func() error) error {
	was, why := r.state, r.reason
	for {
		err := write()
		if err == nil {
			if r.state != was { // a restore goes on as one: its task does not run yet
				r.state, r.reason = was, why
				w.publish(r)
			}
			return nil
		}
		if !errors.Is(err, txlog.ErrDiskFull) {
			return applyError(r, err)
		}
		if r.state != TaskPaused {
			r.state, r.reason = TaskPaused, diskFull
			w.log.Warn("task paused: the state disk is full; it goes on when there is space", "task", r.name)
			w.publish(r)
		}
		if err := w.sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

func applyError(r *taskRun, err error) error {
	return fmt.Errorf("processor: task %s: apply a committed transaction to the local store: %w", r.name, err)
}

// advanceChangelogs moves the positions over what the transaction wrote.
func advanceChangelogs(positions []record.ChangelogPosition, receipt broker.Receipt) {
	for i := range positions {
		if next, ok := receipt.Next[positions[i].TopicPartition]; ok {
			invariant.Check(next >= positions[i].Next, "INV-5 %s went back from %d to %d", positions[i].TopicPartition, positions[i].Next, next)
			positions[i].Next = next
		}
	}
}
