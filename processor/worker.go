package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/txlog"
)

// Limits of one step of a worker.
const (
	fetchBytes  = 512 << 10              // of one fetch and partition
	fetchBuffer = 4                      // fetched batches that wait while a commit is under way
	fetchPace   = 4 * time.Millisecond   // from one small fetch to the next: a transaction waits longer anyway
	quantum     = 512                    // most records of one task before the next one's turn
	queueHigh   = 8_192                  // queued records of a task at which its partitions are paused
	queueLow    = queueHigh / 2          // and at which they are read again
	idleWait    = 100 * time.Millisecond // longest wait for input
	skipAge     = time.Second            // a position that moved over markers only is committed after this
	restoreWait = 20 * time.Millisecond  // longest wait for changelog records while nothing else is to do
	// commitShare bounds the share of the time that a worker spends committing at low rates to one in so many: a
	// broker that takes long for a commit, or is busy, gets fewer.
	commitShare   = 2
	restorePause  = 2 * time.Millisecond // longest wait for input while a restore waits for its next attempt
	memoryReplays = 3                    // how often a failed transaction is run again from memory
)

// worker steps its tasks, one record at a time, and commits them together with one transactional
// producer: an abort touches the tasks of one worker only. step does a bounded amount of work; run
// calls it for ever. All fields but the command queue belong to the stepping goroutine.
type worker struct {
	*engine
	id       int
	reader   broker.Reader // inputs
	restorer broker.Reader // changelogs; nil until needed
	producer broker.Producer
	ready    bool          // the producer has an epoch and no transaction in doubt
	sender   broker.Sender // nil: no output is sent ahead of its transaction

	runs []*taskRun // by name
	meta broker.GroupMeta
	tags uint64

	// The open transaction. meta is captured with its first record: never that of a newer session (KIP-447).
	open    bool
	records bool // it has records, not only positions moved over markers
	opened  time.Time
	txnMeta broker.GroupMeta

	commitTime time.Duration // of one commit, smoothed
	extra      time.Duration // of the commit under way: what its guarantee takes beside the transaction

	stopped bool

	mu       sync.Mutex // guards the two below
	commands []command
	outcomes []called // of calls; as many as there are calls under way at most
}

// command is something that the group membership or the App asks of a worker.
type command struct {
	assign bool
	meta   broker.GroupMeta
	add    []*taskRun // with assign

	remove []record.TopicPartition // commit, then close the tasks of these partitions
	lost   bool                    // with remove: nothing can be committed any more
	stop   bool                    // commit, close everything
	sealed *sealed
	fail   error // end the application with it
	done   chan<- struct{}
}

func newWorker(e *engine, id int, transactionalID string) *worker {
	w := &worker{
		engine: e, id: id,
		reader: e.cluster.NewReader(broker.ReaderConfig{Isolation: broker.ReadCommitted, MaxBytes: fetchBytes, Buffer: fetchBuffer, Pace: fetchPace, Answers: true}),
		producer: e.cluster.NewProducer(broker.ProducerConfig{
			TransactionalID: transactionalID, TransactionTimeout: e.cfg.txnTimeout,
		}),
	}
	if sendsAhead(e.plan) {
		w.sender = e.cluster.NewSender(broker.SenderConfig{Deadline: e.cfg.txnTimeout * 8 / 10}) // as long as a commit
	}
	return w
}

// send queues a command and wakes the worker.
func (w *worker) send(c command) {
	w.mu.Lock()
	w.commands = append(w.commands, c)
	w.mu.Unlock()
	w.reader.Wake()
}

func (w *worker) take() (command, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.commands) == 0 {
		return command{}, false
	}
	c := w.commands[0]
	w.commands = w.commands[1:]
	return c, true
}

func (w *worker) pendingCommand() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.commands) > 0
}

func (w *worker) pendingOutcome() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.outcomes) > 0
}

// step does the next bounded piece of work. An error ends the application.
func (w *worker) step(ctx context.Context) error {
	for {
		c, ok := w.take()
		if !ok {
			break
		}
		err := w.handle(ctx, c)
		if c.done != nil {
			close(c.done)
		}
		if err != nil || w.stopped {
			return err
		}
	}
	w.takeOutcomes()
	if w.diskLow() {
		return w.sleep(ctx, idleWait)
	}
	restoring, err := w.stepRestores(ctx)
	if err != nil {
		return err
	}
	if err := w.fetch(ctx, restoring); err != nil {
		return err
	}
	if err := w.process(); err != nil {
		return err
	}
	if w.due() {
		if err := w.commit(ctx); err != nil {
			return err
		}
	}
	if err := w.beginCalls(); err != nil {
		return err
	}
	return w.settleLags(false)
}

// diskFull is why a task is paused, or is not restored further.
const diskFull = "state disk full"

// diskLow pauses and resumes the tasks with the space on the state disk (the store dies of a full one), restores included.
func (w *worker) diskLow() bool {
	low := w.local != nil && w.local.DiskLow()
	for _, r := range w.runs {
		switch {
		case low && r.state == TaskRunning:
			r.state, r.reason = TaskPaused, diskFull
			w.log.Warn("task paused: the state disk is full; it goes on when there is space", "task", r.name)
		case low && r.restore != nil && r.restore.reason != diskFull:
			r.restore.reason = diskFull
			w.log.Warn("restore paused: the state disk is full; it goes on when there is space", "task", r.name)
		case !low && r.restore != nil && r.restore.reason == diskFull:
			r.restore.reason = ""
			w.log.Info("restore goes on: there is space on the state disk again", "task", r.name)
		case !low && r.state == TaskPaused:
			r.state, r.reason = TaskRunning, ""
			w.log.Info("task goes on: there is space on the state disk again", "task", r.name)
		default:
			continue
		}
		w.publish(r)
	}
	return low
}

// fetch takes what has arrived and queues it, waiting only if there is nothing else to do.
func (w *worker) fetch(ctx context.Context, restoring time.Duration) error {
	batches := w.reader.Poll(ctx, w.waitFor(restoring))
	if !w.open && !slices.ContainsFunc(batches, func(b broker.Batch) bool { return !b.Nothing }) {
		if err := w.settleLags(true); err != nil { // there is nothing else to do
			return err
		}
	}
	for _, b := range batches {
		r := w.runOf(b.TopicPartition)
		if r == nil || r.tag != b.Tag || r.state != TaskRunning {
			continue // of an assignment or a position that is gone
		}
		if errors.Is(b.Err, broker.ErrOffsetOutOfRange) {
			w.misplaced(r, b)
			continue
		}
		if b.Err != nil {
			return w.inputError(r, b)
		}
		r.task.AddRecords(b)
		if !b.Nothing {
			fault.Point("read.batch")
		}
		if r.task.queued() >= queueHigh {
			w.pause(r, true)
		}
	}
	return nil
}

func (w *worker) inputError(r *taskRun, b broker.Batch) error {
	remedy := ""
	for _, p := range r.task.Point().Inputs {
		if p.TopicPartition == b.TopicPartition {
			remedy = fmt.Sprintf(" (next offset to process: %d)", p.Next)
		}
	}
	return fmt.Errorf("processor: task %s: read %s%s: %w", r.name, b.TopicPartition, remedy, b.Err)
}

// misplaced handles a position that the log does not have. Either the records are gone, which the committed
// offsets will show, or the task is not ours any more and its new owner has gone on and deleted what it
// had processed: of that this member, paused or cut off, may not have heard yet.
func (w *worker) misplaced(r *taskRun, b broker.Batch) {
	w.log.Warn("the next record is not there; reading the committed state again", "task", r.name, "err", b.Err)
	w.dropTxn()
	w.restartTask(r)
	r.restore.misplaced = w.inputError(r, b)
}

func (w *worker) pause(r *taskRun, on bool) {
	for _, tp := range r.inputs {
		w.reader.Pause(tp, on)
	}
}

// waitFor is how long there is nothing to do unless input arrives.
// restoring is how long restores allow, negative if there are none.
func (w *worker) waitFor(restoring time.Duration) time.Duration {
	for _, r := range w.runs {
		if r.state == TaskRunning && r.task.ready() {
			return 0
		}
	}
	wait := idleWait
	if restoring >= 0 {
		wait = restoring
	}
	if !w.open {
		return wait
	}
	age := w.floor()
	if !w.records {
		age = skipAge
	}
	return max(0, min(wait, w.opened.Add(age).Sub(w.now())))
}

// process gives each running task its turn until the queues are empty or the transaction is full.
func (w *worker) process() error {
	for {
		worked := false
		left := w.left()
		for _, r := range w.runs {
			if r.state != TaskRunning || left <= 0 {
				continue
			}
			now := w.now()
			before := r.task.queued()
			n, err := r.task.Process(now, min(r.turn, left))
			if err != nil {
				w.stats.recordError(r.name, r.task.errors)
				return err
			}
			w.tellWaiting(r)
			if n > 0 {
				worked = true
				left -= n
				r.turn = w.nextTurn(r.turn, n, w.now().Sub(now))
			}
			if before >= queueLow && r.task.queued() < queueLow {
				w.pause(r, false)
			} else if tp, waits := r.task.awaits(); waits {
				w.reader.Pause(tp, false) // the others' queues may be full, and stay so until this one has something
			}
			w.note(r, n, now)
		}
		if !worked || w.full() || w.pendingCommand() {
			return nil
		}
	}
}

// tellWaiting shows in the status why a task waits with its next record, and logs when that begins and when it is over.
func (w *worker) tellWaiting(r *taskRun) {
	reason := ""
	if r.task.waiting != nil {
		reason = r.task.waiting.Error()
	}
	if reason == r.reason {
		return
	}
	switch {
	case reason == "":
		w.log.Info("task goes on", "task", r.name)
	case r.reason == "":
		w.log.Warn("task waits; no record is lost, and it goes on by itself", "task", r.name, "err", r.task.waiting)
	}
	r.reason = reason
	w.publish(r)
}

// note takes note of what a task has done, which may begin the transaction.
func (w *worker) note(r *taskRun, n int, now time.Time) {
	if r.task.dirty() && !w.open {
		w.open, w.opened, w.txnMeta = true, now, w.meta
	}
	if n > 0 && !w.records {
		w.records, w.opened = true, now
	}
}

// nextTurn is how many records a task may do at its next turn, after n took so long: a turn ends nothing
// but itself, so that slow user code must not keep the worker from a commit or a revoke for minutes.
func (w *worker) nextTurn(turn, n int, took time.Duration) int {
	most := max(w.cfg.interval/2, time.Millisecond)
	switch {
	case took > most:
		return max(1, int(int64(n)*int64(most)/int64(took)))
	case n == turn && took < most/2:
		return min(2*turn, quantum)
	}
	return turn
}

// left is how many records still fit into the transaction.
func (w *worker) left() int {
	n := w.cfg.maxRecords
	for _, r := range w.runs {
		if r.task != nil {
			n -= r.task.records
		}
	}
	return n
}

// full says whether the transaction has reached its limits.
func (w *worker) full() bool {
	bytes := 0
	for _, r := range w.runs {
		if r.task != nil {
			bytes += r.task.size()
		}
	}
	return w.left() <= 0 || bytes >= w.cfg.maxBytes || w.open && w.records && w.now().Sub(w.opened) >= w.cfg.interval
}

// due says whether to commit now. The transaction is adaptive: closed when the input stalls, so that a
// low rate has a low latency, and at its limits, so that a high rate has large batches.
func (w *worker) due() bool {
	if !w.open {
		return false
	}
	age := w.now().Sub(w.opened)
	if !w.records {
		return age >= skipAge
	}
	if w.full() {
		return true
	}
	for _, r := range w.runs {
		if r.state == TaskRunning && r.task.ready() {
			return false
		}
	}
	return age >= w.floor()
}

// floor is the least age of a transaction that is closed because the input stalls.
func (w *worker) floor() time.Duration {
	return min(w.cfg.interval, max(w.cfg.floor, (commitShare-1)*w.commitTime))
}

func (w *worker) runOf(tp record.TopicPartition) *taskRun {
	for _, r := range w.runs {
		if r.owns(tp) {
			return r
		}
	}
	return nil
}

// handle carries out one command.
func (w *worker) handle(ctx context.Context, c command) error {
	switch {
	case c.fail != nil:
		return c.fail
	case c.sealed != nil:
		return w.finishSeal(c.sealed)
	case c.assign:
		return w.assign(c)
	case c.stop:
		all := func(*taskRun) bool { return true }
		// Half of the time: the last commit must have its share.
		err := w.lastCommit(ctx, all, w.cfg.shutdown/2)
		w.closeRuns(all)
		w.stopped = true
		return err
	case c.lost:
		w.dropTxn()
		w.closeRuns(func(r *taskRun) bool { return slices.ContainsFunc(c.remove, r.owns) })
		return nil
	default:
		fault.Point("revoke.start")
		gone := func(r *taskRun) bool { return slices.ContainsFunc(c.remove, r.owns) }
		err := w.lastCommit(ctx, gone, drainRevoked)
		w.closeRuns(gone)
		fault.Point("revoke.done")
		return err
	}
}

// lastCommit is the one before tasks are closed, which waits at most so long for their calls. On a full disk it would wait for
// space, for which nobody has the time: the work is dropped and done again by the next owner.
func (w *worker) lastCommit(ctx context.Context, closed func(*taskRun) bool, most time.Duration) error {
	if w.local != nil && w.local.DiskLow() {
		w.dropTxn()
		return nil
	}
	err := w.drain(ctx, closed, most)
	return errors.Join(w.commit(ctx), err) // an outcome that cannot be handed on leaves nothing that could not be committed
}

// assign takes over a new session and new tasks. What was read under the old session and is not
// committed is dropped and read again: nothing of it was sent (crash table, rows 15 and 16).
func (w *worker) assign(c command) error {
	if w.open && w.txnMeta != c.meta {
		w.dropTxn()
	}
	w.meta = c.meta
	for _, r := range c.add {
		if r.plan.sub.Stateful() {
			store, err := w.local.Task(r.name)
			if err != nil {
				return fmt.Errorf("processor: task %s: open the local store: %w", r.name, err)
			}
			r.local = newLagging(store, w.cfg.lag, w.aside)
		}
		r.state, r.turn = TaskRestoring, 1
		r.restore = &restoration{started: w.now()}
		w.runs = append(w.runs, r)
		w.publish(r)
	}
	slices.SortFunc(w.runs, func(a, b *taskRun) int { return strings.Compare(a.name, b.name) })
	return nil
}

// dropTxn forgets the open transaction, of which nothing was sent, and reads its records again.
func (w *worker) dropTxn() {
	if !w.open {
		return
	}
	w.stats.aborted("rebalance", w.metrics)
	w.trace("rebalance")
	w.producer.Reset()
	w.endTxn()
	for _, r := range w.runs {
		if r.task != nil && r.restore == nil { // it runs, or is paused
			r.task.Abort()
			w.seek(r)
		}
	}
}

func (w *worker) endTxn() {
	w.open, w.records, w.opened, w.txnMeta = false, false, time.Time{}, broker.GroupMeta{}
	w.stats.openTxn(w.id, time.Time{})
}

// seek starts reading a task's inputs at its committed positions. Whatever is under way has an old tag.
func (w *worker) seek(r *taskRun) {
	w.tags++
	r.tag = w.tags
	for _, p := range r.task.Point().Inputs {
		w.reader.Seek(p.TopicPartition, p.Next, r.tag)
		w.reader.Pause(p.TopicPartition, false)
	}
}

// closeRuns ends tasks. Their committed state stays in the local store.
func (w *worker) closeRuns(which func(*taskRun) bool) {
	kept := w.runs[:0]
	for _, r := range w.runs {
		if !which(r) {
			kept = append(kept, r)
			continue
		}
		for _, tp := range r.inputs {
			w.reader.Remove(tp)
		}
		if r.restore != nil {
			w.endRestoreReads(r)
		}
		r.seals.Wait()
		if r.local != nil {
			// If it fails, the next owner of the store replays a longer tail.
			if err := r.local.settle(); err != nil {
				w.log.Warn("the local store stays behind the changelog", "task", r.name, "err", err)
			}
		}
		r.state = TaskClosed
		r.endCalls()
		w.stats.remove(r.name)
	}
	if len(kept) < len(w.runs) { // what could not be committed may have been theirs
		w.stats.failing(w.id, nil)
	}
	clear(w.runs[len(kept):])
	w.runs = kept
}

func (w *worker) close() {
	w.producer.Close()
	if w.sender != nil {
		w.sender.Close()
	}
	w.reader.Close()
	if w.restorer != nil {
		w.restorer.Close()
	}
}

func (w *worker) finishSeal(s *sealed) error {
	if s.run.task == nil || s.run.state == TaskClosed || !slices.Contains(s.run.task.ids, s.log) {
		return nil // the task was opened anew since
	}
	s.log.sealing = false
	if err := s.log.index.Sealed(s.result); errors.Is(err, txlog.ErrDiskFull) {
		w.log.Warn("cannot seal IDs: the state disk is full; it is tried again after a later commit", "task", s.run.name, "step", s.log.name)
	} else if err != nil {
		return fmt.Errorf("processor: task %s: seal the IDs of %q: %w", s.run.name, s.log.name, err)
	}
	return nil
}

// seal starts what there is to seal, in the background.
func (w *worker) seal(r *taskRun) {
	for _, l := range r.task.ids {
		if l.sealing {
			continue
		}
		job := l.index.SealJob()
		if job == nil {
			continue
		}
		l.sealing = true
		r.seals.Add(1)
		w.background(func() {
			defer r.seals.Done()
			w.send(command{sealed: &sealed{run: r, log: l, result: job()}})
		})
	}
}
