package processor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/streamd/streamd/changelog"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// served is what queries know of the tasks of this process. Workers write it, queries read it.
type served struct {
	mu    sync.Mutex // guards all below; never held while anything is read or asked
	tasks map[servedKey]servedTask
	lives uint64
	mine  map[servedKey]bool // that the group gives this process, begun or not
	group servedGroup
}

// servedKey is a task. The sub-topology is a part of its topology, of which a process has one.
type servedKey struct {
	sub *topology.Subtopology
	p   record.Partition
}

// servedTask is a copy of what a query needs of a task.
type servedTask struct {
	key    servedKey
	state  TaskState
	local  *lagging
	inputs []record.TopicPartition
	group  string
	// life differs each time when the task begins to run: between two lives its store may have been reset.
	life    uint64
	proven  time.Time // when its state was last known to be the newest; zero: never in this life
	cluster broker.Cluster
	now     func() time.Time
	sleep   func(context.Context, time.Duration) error
}

// serve tells queries of a task's state.
func (s *served) serve(e *engine, r *taskRun) {
	if r.local == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tasks == nil {
		s.tasks = map[servedKey]servedTask{}
	}
	k := servedKey{r.plan.sub, r.partition}
	t := s.tasks[k]
	if r.state == TaskRunning && t.state != TaskRunning && t.state != TaskPaused {
		s.lives++
		t.life, t.proven = s.lives, time.Time{}
	}
	t.key, t.state, t.local, t.inputs, t.group = k, r.state, r.local, r.inputs, e.group()
	t.cluster, t.now, t.sleep = e.cluster, e.now, e.sleep
	s.tasks[k] = t
}

// given is told what the group gives this process.
func (s *served) given(tasks map[string]*placed) {
	mine := make(map[servedKey]bool, len(tasks))
	for _, t := range tasks {
		mine[servedKey{t.run.plan.sub, t.run.partition}] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mine = mine
}

// isGiven says whether a partition is this process's, so that a task that is not there will be.
func (s *served) isGiven(sub *topology.Subtopology, p record.Partition) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mine[servedKey{sub, p}]
}

// committed is told that a commit of the task succeeded: at from, or later, the coordinator took this process for its owner.
func (s *served) committed(r *taskRun, from time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := servedKey{r.plan.sub, r.partition}
	if t, ok := s.tasks[k]; ok && from.After(t.proven) {
		t.proven = from
		s.tasks[k] = t
	}
}

// remove takes a task away that is closed.
func (s *served) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.tasks {
		if k.sub.Name+"/"+itoa(int64(k.p)) == name {
			delete(s.tasks, k)
		}
	}
}

// prove notes a proof.
func (s *served) prove(t servedTask, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x, ok := s.tasks[t.key]; ok && x.life == t.life && at.After(x.proven) {
		x.proven = at
		s.tasks[t.key] = x
	}
}

func (s *served) task(sub *topology.Subtopology, p record.Partition) (servedTask, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tasks[servedKey{sub, p}]
	return t, ok
}

func (s *served) here(sub *topology.Subtopology) (out []record.Partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, t := range s.tasks {
		if k.sub == sub && t.state == TaskRunning {
			out = append(out, k.p)
		}
	}
	slices.Sort(out)
	return out
}

// isNewest asks Kafka for the last commit of the task. With an error, or if why says so, it is not known.
func (t *servedTask) isNewest(ctx context.Context, at record.CommitPoint) (ok bool, why string, err error) {
	committed, err := t.cluster.CommittedOffsets(ctx, t.group, t.inputs)
	if errors.Is(err, broker.ErrUnstableOffsets) {
		return false, ": a transaction is not decided yet", nil
	}
	if err != nil {
		return false, ": " + err.Error(), err
	}
	for _, tp := range t.inputs {
		c := committed[tp]
		if c.Next == record.NoOffset {
			continue // nobody has committed
		}
		m, err := changelog.ParseMetadata(c.Metadata)
		if err != nil {
			continue // set by a tool
		}
		if m.Incarnation != at.Incarnation || m.Sequence > at.Sequence {
			return false, fmt.Sprintf(": commit %d is in Kafka, commit %d is here: another instance has gone on, or a commit takes long", m.Sequence, at.Sequence), nil
		}
	}
	return true, "", nil
}

// rawEntry is a key with its value, copied.
type rawEntry struct{ key, value []byte }

// getAt reads a key and the position that it belongs to. The value is the caller's.
func (l *lagging) getAt(store string, key []byte) (value []byte, at record.LocalPosition, ok bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok = l.positionLocked()
	value, err = l.getLocked(store, key)
	return bytes.Clone(value), at, ok, err
}

// pageAt reads a part of a range and the position that all of it belongs to.
func (l *lagging) pageAt(store string, from, to []byte, limit int) (out []rawEntry, more bool, at record.LocalPosition, ok bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok = l.positionLocked()
	size := 0
	waits := func(dst []change, from, to []byte, n int) []change { return l.changesLocked(dst, store, from, to, n) }
	err = rangeOver(l.under(store), from, to, waits, func(k, v []byte) bool {
		if more = len(out) == limit || size >= pageBytes; more {
			return false
		}
		out = append(out, rawEntry{bytes.Clone(k), bytes.Clone(v)})
		size += len(k) + len(v)
		return true
	})
	return out, more, at, ok, err
}
