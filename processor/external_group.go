package processor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
)

// ErrTarget: the target of a sink did not answer within the startup timeout. Starting again helps once it does.
var ErrTarget = errors.New("processor: the target of a sink does not answer")

const (
	// confirmInterval is how often the group's offsets follow what the targets have.
	confirmInterval = time.Second
	// sinkKeep is how long a sink's topic keeps what the target has, in case it loses its last commits by a fail-over;
	// sinkSample is how often it is noted how far that was.
	sinkKeep   = time.Hour
	sinkSample = 5 * time.Minute
)

// checkTargets lets each target look, before a record is consumed, whether it can be written to.
func (a *App) checkTargets(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.startup)
	defer cancel()
	for _, s := range a.topo.Subtopologies() {
		if s.External == nil {
			continue
		}
		for n := 0; ; n++ {
			err := s.External.Target.Check(ctx)
			if err == nil {
				break
			}
			var setup *sink.SetupError
			if errors.As(err, &setup) {
				return fmt.Errorf("processor: sink %q: %w", s.External.Name, err)
			}
			if n == 0 {
				a.cfg.logger.Warn("the target of a sink does not answer; trying again until the startup timeout", "sink", s.External.Name, "timeout", a.cfg.startup.String(), "err", err)
				a.stats.setState(Created, fmt.Sprintf("the target of sink %q does not answer: %v", s.External.Name, err))
			}
			if sleep(ctx, min(time.Second, sinkBackoff<<min(n, 4))) != nil {
				return fmt.Errorf("%w: sink %q, within the startup timeout of %v: %w", ErrTarget, s.External.Name, a.cfg.startup, err)
			}
		}
	}
	return nil
}

// externals are the tasks of this process's sinks outside of Kafka. The assignment starts and ends them with the
// partitions of their topics.
type externals struct {
	*engine
	confirm *confirmer
	// end ends the application with an error.
	end func(error)
	// ctx ends when nobody can wait any longer for what is under way.
	ctx context.Context

	mu    sync.Mutex // guards tasks
	tasks map[record.TopicPartition]*external
	// last has the end of each partition's last task, for which the next one waits.
	last map[record.TopicPartition]chan struct{}
}

// newExternals returns nil if the topology has no such sink.
func newExternals(ctx context.Context, e *engine, transactionalID string, end func(error)) *externals {
	var names []string
	for _, p := range e.plan {
		if p.sub.External != nil {
			names = append(names, p.sub.External.Name)
		}
	}
	if names == nil {
		return nil
	}
	e.metrics.ExpectSinks(names)
	return &externals{
		engine: e, end: end, ctx: ctx, tasks: map[record.TopicPartition]*external{}, last: map[record.TopicPartition]chan struct{}{},
		confirm: newConfirmer(e, transactionalID),
	}
}

// assigned starts the tasks of new partitions and stops those of partitions that went away without a revoke. It
// returns the names of all.
func (x *externals) assigned(meta broker.GroupMeta, has map[record.TopicPartition]bool) []string {
	if x == nil {
		return nil
	}
	// In this order: the offset of a partition that was lost must not be committed under the new generation, which would
	// not be refused and take its new owner's back.
	x.letGo(func(tp record.TopicPartition) bool { return !has[tp] }, true)
	x.confirm.setMeta(meta)
	x.mu.Lock()
	defer x.mu.Unlock()
	var names []string
	for _, p := range x.plan {
		if p.sub.External == nil {
			continue
		}
		for n := range record.Partition(p.tasks) {
			tp := record.TopicPartition{Topic: p.inputs[0].Name, Partition: n}
			if !has[tp] {
				continue
			}
			names = append(names, p.taskName(n))
			if x.tasks[tp] == nil {
				x.start(p, tp)
			}
		}
	}
	return names
}

// start starts the task of a partition. x.mu is held.
func (x *externals) start(p *subPlan, tp record.TopicPartition) {
	t := &external{
		externals: x, plan: p, spec: p.sub.External, name: p.taskName(tp.Partition), row: p.sub.External.NewRow(),
		in:   sink.Partition{Sink: x.topo.Name() + "/" + p.sub.External.Name, TopicPartition: tp, TopicID: p.inputs[0].ID},
		done: make(chan struct{}), counters: map[string]uint64{},
	}
	t.hard, t.kill = context.WithCancel(x.ctx)
	t.soft, t.stop = context.WithCancel(t.hard)
	x.tasks[tp] = t
	before := x.last[tp]
	x.last[tp] = t.done
	go t.run(before)
}

// letGo tells the tasks of these partitions to stop and returns what is closed when each has: a batch that is being
// written is finished, and the group's offset committed unless the partition is lost.
func (x *externals) letGo(which func(record.TopicPartition) bool, lost bool) []chan struct{} {
	if x == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	var waits []chan struct{}
	for tp, t := range x.tasks {
		if !which(tp) {
			continue
		}
		t.stop() // before: a task that has no lease yet must not begin to write with one that it gets now
		if lost {
			x.confirm.forget(tp)
		} else {
			x.confirm.freeze(tp)
		}
		delete(x.tasks, tp)
		waits = append(waits, t.done)
	}
	return waits
}

// finish stops all tasks and waits for them.
func (x *externals) finish() {
	if x == nil {
		return
	}
	x.letGo(func(record.TopicPartition) bool { return true }, false)
	x.mu.Lock()
	rest := slices.Collect(maps.Values(x.last))
	x.mu.Unlock()
	for _, done := range rest {
		<-done
	}
}

// loop lets the group's offsets follow, and the topics lose what the targets have had for a while.
func (x *externals) loop(ctx context.Context) {
	if x == nil {
		return
	}
	purged := x.now()
	for sleep(ctx, confirmInterval) == nil {
		if err := x.confirm.offsets(ctx); err != nil && ctx.Err() == nil {
			x.log.Debug("sink: the group's offsets do not follow the targets", "err", err)
		}
		if now := x.now(); now.Sub(purged) >= sinkSample {
			purged = now
			if before := x.confirm.outdated(now); len(before) > 0 {
				if err := x.cluster.DeleteRecords(ctx, before); err != nil && ctx.Err() == nil {
					x.log.Warn("cannot delete written records from the topics of sinks; they keep growing until it works", "err", err)
				}
			}
		}
	}
}

// close ends the connections. The tasks have ended before.
func (x *externals) close() {
	if x != nil {
		x.confirm.producer.Close()
	}
}

// confirmer commits, for all sinks of the process, what is for Kafka: the group's offsets and dead letters.
type confirmer struct {
	*engine
	txn      sync.Mutex // guards producer and ready: one transaction at a time; taken before mu
	producer broker.Producer
	ready    bool

	mu     sync.Mutex // guards the rest
	meta   broker.GroupMeta
	leases map[record.TopicPartition]*lease
	next   map[record.TopicPartition]record.Offset // written, and not committed in the group
	traces map[record.TopicPartition][]trace       // oldest first
}

// trace is how far a target was at a time.
type trace struct {
	at   time.Time
	next record.Offset
}

func newConfirmer(e *engine, transactionalID string) *confirmer {
	return &confirmer{
		engine:   e,
		producer: e.cluster.NewProducer(broker.ProducerConfig{TransactionalID: transactionalID, TransactionTimeout: e.cfg.txnTimeout}),
		meta:     broker.GroupMeta{Generation: -1}, leases: map[record.TopicPartition]*lease{},
		next: map[record.TopicPartition]record.Offset{}, traces: map[record.TopicPartition][]trace{},
	}
}

func (c *confirmer) setMeta(m broker.GroupMeta) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.meta = m
	for _, l := range c.leases {
		if l.follows {
			l.meta = m
		}
	}
}

// freeze ends that a lease follows the group's generations.
func (c *confirmer) freeze(tp record.TopicPartition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.leases[tp]; l != nil {
		l.follows = false
	}
}

// note takes over that a target has all up to next. follow says that the group's offset is to follow.
func (c *confirmer) note(tp record.TopicPartition, next record.Offset, now time.Time, follow bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leases[tp] == nil {
		return
	}
	if follow {
		c.next[tp] = next
	}
	t := c.traces[tp]
	if len(t) == 0 || now.Sub(t[len(t)-1].at) >= sinkSample {
		c.traces[tp] = append(t, trace{now, next})
	}
}

// outdated is up to where the topics' records have been in the targets for sinkKeep.
func (c *confirmer) outdated(now time.Time) map[record.TopicPartition]record.Offset {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := map[record.TopicPartition]record.Offset{}
	for tp, t := range c.traces {
		for len(t) > 0 && now.Sub(t[0].at) >= sinkKeep {
			before[tp] = t[0].next
			t = t[1:]
		}
		c.traces[tp] = t
	}
	return before
}

// offsets commits the group's offsets, once: what fails is tried again with the next ones.
func (c *confirmer) offsets(ctx context.Context) error {
	c.txn.Lock()
	defer c.txn.Unlock()
	c.mu.Lock()
	meta := c.meta
	var commits []broker.OffsetCommit
	for tp, next := range c.next {
		commits = append(commits, broker.OffsetCommit{TopicPartition: tp, Next: next})
	}
	c.mu.Unlock()
	if len(commits) == 0 || meta.Generation < 0 {
		return nil
	}
	if _, err := c.commit(ctx, meta, commits); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range commits {
		if c.next[o.TopicPartition] == o.Next {
			delete(c.next, o.TopicPartition)
		}
	}
	return nil
}

// own lets the offsets of a partition be committed; forget ends that.
func (c *confirmer) own(tp record.TopicPartition) {
	c.mu.Lock()
	c.leases[tp] = &lease{meta: c.meta, follows: true}
	c.mu.Unlock()
}

// forget drops what is known of a partition: it is another owner's.
func (c *confirmer) forget(tp record.TopicPartition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.leases, tp)
	delete(c.next, tp)
	delete(c.traces, tp)
}

// send commits one record, trying until it is, ctx ends, or trying cannot help.
func (c *confirmer) send(ctx context.Context, out broker.Output) error {
	for n := 0; ; n++ {
		c.txn.Lock()
		c.producer.Reset()
		c.producer.Add(out)
		_, err := c.commit(ctx, broker.GroupMeta{Generation: -1}, nil)
		c.txn.Unlock()
		if err == nil {
			return nil
		}
		if react(err) == reactStop || ctx.Err() != nil {
			return err
		}
		c.log.Warn("sink: a dead letter is not committed; trying again", "err", err)
		if c.sleep(ctx, min(sinkPatience, sinkBackoff<<min(n, 10))) != nil {
			return err
		}
	}
}

// init readies the producer: whatever its last transaction was, it is decided then. c.txn is held.
func (c *confirmer) init(ctx context.Context) error {
	if c.ready {
		return nil
	}
	if err := c.producer.Init(ctx); err != nil {
		return initError{err}
	}
	c.ready = true
	return nil
}

// commit runs one transaction. c.txn is held.
func (c *confirmer) commit(ctx context.Context, meta broker.GroupMeta, offsets []broker.OffsetCommit) (broker.Outcome, error) {
	if err := c.init(ctx); err != nil {
		return broker.NotCommitted, err
	}
	_, outcome, err := c.producer.Commit(ctx, meta, offsets)
	if outcome == broker.Committed {
		return outcome, nil
	}
	c.ready = false
	c.producer.Reset()
	c.stats.aborted(string(abortReason(outcome, err)), c.metrics)
	return outcome, err
}
