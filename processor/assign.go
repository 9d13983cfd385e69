package processor

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// assignment turns the partitions that the group gives this process into tasks of its workers. It
// implements broker.GroupHandler.
type assignment struct {
	*engine
	workers []*worker

	mu    sync.Mutex // guards all below; never held while waiting for a worker
	tasks map[string]*placed
	heard broker.GroupMeta // by the last Assigned
	// leaving are the tasks that a worker was told to let go of. Until it has, a task that comes back goes
	// to that worker: its commit may be under way, and must not meet another worker's on the same store.
	leaving map[string]leaving
	sinks   *externals // nil: none
	done    bool       // the App is stopping: the workers have closed everything
}

// placed is a task with its worker.
type placed struct {
	run    *taskRun
	worker *worker
}

// leaving is a task on its way out. gone is closed once its worker has closed it.
type leaving struct {
	worker *worker
	gone   <-chan struct{}
}

func newAssignment(e *engine, workers []*worker) *assignment {
	e.stats.served.know(e)
	return &assignment{engine: e, workers: workers, tasks: map[string]*placed{}, leaving: map[string]leaving{}}
}

// Assigned implements broker.GroupHandler: every worker learns of the new generation, and new tasks
// go to the worker that has the fewest.
func (a *assignment) Assigned(meta broker.GroupMeta, owned []record.TopicPartition) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done {
		return
	}
	has := make(map[record.TopicPartition]bool, len(owned))
	for _, tp := range owned {
		has[tp] = true
		if err := a.checkPartition(tp); err != nil {
			a.workers[0].send(command{fail: err})
			return
		}
	}
	if len(a.tasks) > 0 && a.missed(meta) {
		a.log.Warn("a generation of the group was missed: all tasks start again from the committed state", "generation", meta.Generation, "last", a.heard.Generation)
		a.letGo(func(*taskRun) bool { return true }, true)
	}
	if a.missed(meta) {
		a.sinks.letGo(func(record.TopicPartition) bool { return true }, true)
	}
	a.heard = meta
	add := map[*worker][]*taskRun{}
	now := map[string]bool{}
	names := append([]string{}, a.sinks.assigned(meta, has)...) // none is [] in the log
	for _, p := range a.plan {
		if p.sub.External != nil {
			continue
		}
		for n := range record.Partition(p.tasks) {
			run := a.taskOf(p, n, has)
			if run == nil {
				continue
			}
			now[run.name] = true
			names = append(names, run.name)
			if a.tasks[run.name] != nil {
				continue
			}
			w := a.place(run.name)
			a.tasks[run.name] = &placed{run: run, worker: w}
			add[w] = append(add[w], run)
		}
	}
	for name, t := range a.tasks {
		if !now[name] { // gone without a revoke: its records can no longer be committed
			a.log.Warn("task is gone without a revoke", "task", name)
			done := make(chan struct{})
			a.leave(name, t.worker, done)
			t.worker.send(command{remove: t.run.inputs, lost: true, done: done})
		}
	}
	a.stats.served.given(a.tasks)
	a.log.Info("partitions assigned", "tasks", names, "generation", meta.Generation)
	a.stats.assigned(a.now(), len(names))
	a.stats.settled(a.now(), a.metrics) // a rebalance that brings no task ends here
	for _, w := range a.workers {
		w.send(command{assign: true, meta: meta, add: add[w]})
	}
}

// missed says whether the group has had a generation that this member was not told of, or knows it as another
// member. Another one may have owned its tasks then, and committed: that they are ours again does not mean that
// the state in memory is still the newest (crash table, rows 16 and 49).
func (a *assignment) missed(meta broker.GroupMeta) bool {
	last := a.heard
	return meta.Member != last.Member || meta.Generation != last.Generation && meta.Generation != last.Generation+1
}

// checkPartition finds partitions that were added to an input since the start: nobody would process them,
// and keys go to other partitions from then on, where the IDs of their records are not known.
func (a *assignment) checkPartition(tp record.TopicPartition) error {
	for _, p := range a.plan {
		for _, in := range p.inputs {
			if in.Name == tp.Topic && int32(tp.Partition) >= in.Partitions {
				return fmt.Errorf("%w: input topic %q has a partition %d, at the start it had %d partitions: state cannot be split. "+
					"Start anew under another application name", ErrTopics, tp.Topic, tp.Partition, in.Partitions)
			}
		}
	}
	return nil
}

// taskOf returns the task of a partition if all its inputs are owned.
func (a *assignment) taskOf(p *subPlan, n record.Partition, has map[record.TopicPartition]bool) *taskRun {
	run := &taskRun{name: p.taskName(n), plan: p, partition: n, state: TaskCreated, changelogs: p.changelogs(n)}
	for _, tp := range p.taskInputs(n) {
		if tp.Topic == "" {
			continue
		}
		if !has[tp] {
			return nil
		}
		run.inputs = append(run.inputs, tp)
	}
	return run
}

// place is the worker of a new task: the one that still has it from before, or else the idlest.
func (a *assignment) place(name string) *worker {
	l, ok := a.leaving[name]
	delete(a.leaving, name)
	if ok {
		select {
		case <-l.gone:
		default:
			return l.worker
		}
	}
	return a.idlest()
}

func (a *assignment) leave(name string, w *worker, gone <-chan struct{}) {
	delete(a.tasks, name)
	a.leaving[name] = leaving{worker: w, gone: gone}
}

// idlest is the worker for one more task. Workers are filled one after the other up to the packing, then
// evenly.
func (a *assignment) idlest() *worker {
	load := map[*worker]int{}
	for _, t := range a.tasks {
		load[t.worker]++
	}
	for _, w := range a.workers {
		if load[w] < a.cfg.packing {
			return w
		}
	}
	best := a.workers[0]
	for _, w := range a.workers {
		if load[w] < load[best] {
			best = w
		}
	}
	return best
}

// Revoked implements broker.GroupHandler: it waits until the tasks of these partitions have committed
// what they have and are closed, or ctx ends.
func (a *assignment) Revoked(ctx context.Context, gone []record.TopicPartition) {
	a.stats.revoked(a.now())
	for _, done := range a.release(gone, false) {
		select {
		case <-done:
		case <-ctx.Done():
			a.log.Warn("tasks did not commit before the rebalance timeout; their work will be done again by the next owner")
			return
		}
	}
}

// Lost implements broker.GroupHandler.
func (a *assignment) Lost(gone []record.TopicPartition) {
	a.log.Warn("membership lost: what was not committed is dropped", "partitions", len(gone))
	a.release(gone, true)
}

// release tells the workers to let go of the tasks of these partitions.
func (a *assignment) release(gone []record.TopicPartition, lost bool) []chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done {
		return nil
	}
	waits := a.letGo(func(run *taskRun) bool { return slices.ContainsFunc(gone, run.owns) }, lost)
	return append(waits, a.sinks.letGo(func(tp record.TopicPartition) bool { return slices.Contains(gone, tp) }, lost)...)
}

// letGo tells the workers to let go of tasks. mu is held.
func (a *assignment) letGo(which func(*taskRun) bool, lost bool) []chan struct{} {
	var waits []chan struct{}
	for _, w := range a.workers {
		var tps []record.TopicPartition
		done := make(chan struct{})
		for name, t := range a.tasks {
			if t.worker == w && which(t.run) {
				tps = append(tps, t.run.inputs...)
				a.leave(name, w, done)
			}
		}
		if tps != nil {
			waits = append(waits, done)
			w.send(command{remove: tps, lost: lost, done: done})
		}
	}
	a.stats.served.given(a.tasks)
	return waits
}

// finish makes later calls of the group no-ops: the workers are about to end.
func (a *assignment) finish() {
	a.mu.Lock()
	a.done = true
	a.stats.served.given(nil)
	a.mu.Unlock()
}

// assigned and revoked bracket the time that a rebalance keeps tasks from running.
func (s *stats) assigned(now time.Time, tasks int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expected = tasks
	if s.rebalanceAt.IsZero() {
		s.rebalanceAt = now
	}
	if s.state == Created || s.state == Rebalancing {
		s.state, s.reason = Running, ""
	}
}

func (s *stats) revoked(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rebalanceAt.IsZero() {
		s.rebalanceAt = now
	}
}
