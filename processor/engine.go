package processor

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/streamd/streamd/changelog"
	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// LocalLog is what the runtime needs of the local transaction log of the process. txlog implements it
// through an adapter; simulations use a model of a disk.
type LocalLog interface {
	// Task opens a task's part; it has checked it: what is damaged comes back empty.
	Task(name string) (LocalStore, error)
	// DiskLow says whether writing is unsafe for lack of space.
	DiskLow() bool
	// Compact gives back the space of what was forgotten. It may take seconds; tasks go on meanwhile.
	Compact() error
}

// engine is what the workers of a process share. It holds the outside world as functions, so that a
// simulation can put its own in place.
type engine struct {
	cfg     config
	topo    *topology.Topology
	cluster broker.Cluster
	local   LocalLog
	plan    []*subPlan
	log     *slog.Logger
	metrics *metric.Set // nil: none
	stats   *stats
	globals *globals // nil: the topology has no global table

	now         func() time.Time
	sleep       func(ctx context.Context, d time.Duration) error
	incarnation func() uint64
	clusterID   string // for positions as record IDs
	// background runs a job elsewhere and hands its result over when done.
	background func(job func())
	// aside runs a job on another goroutine at once; Run waits for its end. nil: the caller does it.
	aside func(job func())
	// beside makes a group for the calls of a task. limit bounds one attempt: the context that it returns ends after the time, and giveUp is called if that
	// does not help; end is to be called when it is over.
	beside func() besides
	limit  func(ctx context.Context, timeout time.Duration, giveUp func()) (limited context.Context, end func())
	// point is called at each place where a process may die in the middle of something.
	point func(name string)
}

// group is the consumer group: the application's name.
func (e *engine) group() string { return e.topo.Name() }

// subPlan is a sub-topology with its topics as they are in the cluster.
type subPlan struct {
	sub        *topology.Subtopology
	tasks      int32 // one for each partition of its widest input
	inputs     []broker.Topic
	upstreams  []int32 // as in taskConfig
	forgetful  map[string]bool
	sinks      []sinkTarget
	idLog      broker.Topic
	stores     []broker.Topic // in the order of sub.Stores
	deadLetter sinkTarget
	resets     changelog.Resets // of stateful ones
}

// taskName is stable over restarts and instances: the local state is found by it.
func (p *subPlan) taskName(n record.Partition) string {
	return p.sub.Name + "/" + itoa(int64(n))
}

// taskInputs are the input partitions of a task by source; an empty topic where the source has fewer.
func (p *subPlan) taskInputs(n record.Partition) []record.TopicPartition {
	out := make([]record.TopicPartition, len(p.inputs))
	for i, t := range p.inputs {
		if int32(n) < t.Partitions {
			out[i] = record.TopicPartition{Topic: t.Name, Partition: n}
		}
	}
	return out
}

// changelogs are the changelog partitions of a task: the ID log first.
func (p *subPlan) changelogs(n record.Partition) []record.ChangelogPosition {
	if !p.sub.Stateful() {
		return nil
	}
	out := []record.ChangelogPosition{{TopicPartition: record.TopicPartition{Topic: p.idLog.Name, Partition: n}, TopicID: p.idLog.ID}}
	for _, t := range p.stores {
		out = append(out, record.ChangelogPosition{TopicPartition: record.TopicPartition{Topic: t.Name, Partition: n}, TopicID: t.ID})
	}
	return out
}

// taskConfig is the configuration of the task of partition n.
func (p *subPlan) taskConfig(e *engine, n record.Partition) taskConfig {
	c := taskConfig{sub: p.sub, partition: n, clusterID: e.clusterID, inputs: p.taskInputs(n), upstreams: p.upstreams, forgetful: p.forgetful, sinks: p.sinks, policy: e.cfg.policy, deadLetter: p.deadLetter, stores: map[string]storeTarget{}, meters: map[string]*idMeter{}, taps: e.cfg.taps, globals: e.globals}
	if e.cfg.traces != nil {
		c.traces = e.topo.Name()
	}
	for _, t := range p.inputs {
		c.inputIDs = append(c.inputIDs, t.ID)
	}
	for _, d := range p.sub.Dedups {
		c.meters[d.Name] = e.meter(d.Name)
	}
	if p.sub.Stateful() {
		c.idLog = p.idLog.Name
		c.idLogBytes = messageLimit(p.idLog)
		for i, s := range p.sub.Stores {
			c.stores[s.Name] = storeTarget{topic: p.stores[i].Name, maxBytes: messageLimit(p.stores[i])}
		}
	}
	return c
}

// taskRun is one task in the hands of a worker.
type taskRun struct {
	name       string
	plan       *subPlan
	partition  record.Partition
	inputs     []record.TopicPartition // without gaps
	changelogs []record.ChangelogPosition

	state   TaskState
	reason  string
	local   *lagging     // nil: no state
	task    *Task        // nil until the first restore is done
	restore *restoration // while restoring
	mode    string       // of the last restore
	tag     uint64       // of the current reading of the inputs
	turn    int          // records at its next turn, 1 to quantum: fewer where user code is slow
	seals   sync.WaitGroup
	calls   besides // of task
}

// endCalls ends the calls of the task, if there is one.
func (r *taskRun) endCalls() {
	if r.calls.end != nil {
		r.calls.end()
	}
}

func (r *taskRun) owns(tp record.TopicPartition) bool {
	for _, x := range r.inputs {
		if x == tp {
			return true
		}
	}
	return false
}

// commits says whether the task is one that takes part in commits.
func (r *taskRun) commits() bool {
	return r.task != nil && (r.state == TaskRunning || r.state == TaskPaused)
}

// sealed is the result of a seal that ran in the background.
type sealed struct {
	run    *taskRun
	log    *idLog
	result dedup.SealResult
}
