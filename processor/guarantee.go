package processor

import (
	"context"
	"time"

	"github.com/streamd/streamd/changelog"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/invariant"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// This file is what a commit does besides for the guarantees below exactly once (docs/adr/0021). Both leave the transaction that
// carries IDs, state and positions as it is, so that restore and fencing know of no levels:
//
//	at least once   outputs to topics are sent and acknowledged, then the transaction
//	at most once    a transaction with the positions alone, the claim; then the transaction, which has them again

// sendsAhead says whether an output of the application is sent before its transaction.
func sendsAhead(plan []*subPlan) bool {
	for _, p := range plan {
		for i := range p.sinks {
			if p.sinks[i].ahead {
				return true
			}
		}
	}
	return false
}

// sendAhead writes what does not wait for the transaction. When it returns nil all of it is acknowledged. What it was sent
// for may come to nothing all the same, and then it is sent again from the records that are read again: at least once.
func (w *worker) sendAhead(ctx context.Context, parts []prepared) error {
	some := false
	for _, p := range parts {
		for i := range p.txn.Ahead {
			w.sender.Add(p.txn.Ahead[i])
			some = true
		}
	}
	if !some {
		return nil
	}
	start := w.now()
	w.point("ahead.prepared")
	for n := 0; ; n++ {
		err := w.sender.Send(ctx)
		if err == nil {
			break
		}
		w.noteFailure(broker.NotCommitted, err)
		if react(err) != reactReplay || n >= memoryReplays {
			w.sender.Reset()
			return err
		}
		w.log.Warn("outputs not acknowledged; sending again what is left of them", "worker", w.id, "err", err)
	}
	w.point("ahead.acked")
	took := w.now().Sub(start)
	w.extra += took
	w.metrics.CommitPhase(metric.PhaseAhead, took)
	return nil
}

// claim commits the positions of what was processed, and nothing of what follows from it: whatever happens from then on, the
// records are not read again. false: it was not committed, and the commit is over.
func (w *worker) claim(ctx context.Context) (bool, error) {
	var parts []prepared
	start := w.now()
	for _, r := range w.runs {
		if !r.commits() {
			continue
		}
		if txn := r.task.PrepareClaim(start); txn != nil {
			parts = append(parts, prepared{run: r, txn: txn})
		}
	}
	if len(parts) == 0 {
		return true, nil // there is no record: what follows from time alone comes again or is committed
	}
	offsets := w.buffer(parts)
	w.stats.openTxn(w.id, w.opened)
	w.point("claim.prepared")
	receipt, outcome, err := w.publishTxn(ctx, offsets)
	if outcome != broker.Committed {
		return false, w.commitFailed(ctx, outcome, err)
	}
	w.point("claim.acked")
	if err := w.applyParts(ctx, parts, receipt); err != nil {
		return false, err
	}
	for _, p := range parts {
		p.run.task.PostClaim()
	}
	w.point("claim.applied")
	end := w.now()
	w.stats.committed(w.id, end, 0, w.metrics)
	w.extra += end.Sub(start)
	w.metrics.CommitPhase(metric.PhaseClaim, end.Sub(start))
	return true, nil
}

// PrepareClaim returns the transaction that makes the task's positions those behind what it has processed, while state, IDs,
// time and counters stay what they are; nil if there was no record. PostClaim follows once it is committed and applied,
// and then PrepareCommit; or Abort.
func (t *Task) PrepareClaim(now time.Time) *Txn {
	invariant.Check(!t.prepared, "INV-6 task %s claims while a commit is prepared", t.name)
	if t.consumed == 0 {
		return nil
	}
	p := record.CommitPoint{
		Sequence: t.point.Sequence + 1, Incarnation: t.point.Incarnation, StreamTime: t.point.StreamTime,
		Inputs: t.positions(), Counters: t.counters.committedValues(),
	}
	txn := &Txn{Records: t.consumed, Offsets: t.offsets(p, now)}
	if t.cfg.sub.Stateful() {
		var told []record.Counter // none has changed
		if allCounters(p.Sequence) {
			told = p.Counters
		}
		k, v := changelog.EncodeCommit(t.commitRecord(p, told))
		txn.Changelog = []broker.Output{t.changelogRecord(t.cfg.idLog, k, v)}
		txn.Batch = &record.Batch{Position: record.LocalPosition{CommitPoint: p, Complete: true, AppliedAt: now}}
	}
	t.pending = p
	return txn
}

// PostClaim makes the claimed positions the committed ones: an Abort no longer goes back before them.
func (t *Task) PostClaim() {
	t.point = t.pending
	for _, in := range t.inputs {
		if in != nil {
			in.committed = in.next
		}
	}
}

// atMostOnce says whether a commit begins with a claim.
func (w *worker) atMostOnce() bool { return w.cfg.guarantee == topology.AtMostOnce }
