package processor

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/internal/kafka"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/txlog"
)

// ErrRunning: Run was called twice.
var ErrRunning = errors.New("processor: the App runs already, or has run: make a new one")

// ErrStopTimeout: the last commit did not end within the shutdown timeout.
var ErrStopTimeout = errors.New("processor: the last commit did not end within the shutdown timeout; what was not committed is processed again by the next start")

// purgeInterval is how often what has been processed is deleted from repartition topics.
const purgeInterval = 30 * time.Second

// App runs a topology in this process: it joins the consumer group, restores the tasks that it is
// given, and steps them. Make one with New, run it once with Run.
type App struct {
	cfg     config
	topo    *topology.Topology
	stats   *stats
	started atomic.Bool
}

// New makes an App. It connects to nothing. All mistakes in the options come back at once.
func New(topo *topology.Topology, opts ...Option) (*App, error) {
	cfg := defaults(topo.Name())
	for _, o := range opts {
		o.apply(&cfg)
	}
	if err := cfg.validate(topo); err != nil {
		return nil, err
	}
	cfg.taps = &tapPoint{}
	return &App{cfg: cfg, topo: topo, stats: newStats(time.Now())}, nil
}

// Status says what the App does right now. Safe for concurrent use; it never waits for the pipeline.
func (a *App) Status() Status { return a.stats.status(a.topo) }

// Run processes until ctx ends, then commits what it has and returns nil, also if it was still starting. It returns an
// error if it cannot start or cannot go on; errors.Is tells the kind:
//
//   - a broker kind (see internal/broker: unreachable, not authorized, fenced, ...)
//   - ErrTopics, ErrOffsets: topics or offsets do not fit; starting again does not help
//   - ErrDataLost: the cluster has lost data that was committed
//   - txlog.ErrLocked, ErrOtherApp, ErrOtherCluster, ErrNewerFormat, ErrKey: the state directory is not ours
//   - *sink.SetupError: the target of a sink is not as it must be; its Remedy says what to do
//   - ErrTarget: the target of a sink does not answer
//   - *RecordError: a record cannot be handled and the policy is to stop
//   - *TimerError: the same of what was due, or of a call
//   - ErrStopTimeout: the brokers, or the state disk, did not let the last commit end
//
// Nothing is lost by any of them: what was not committed is processed again by the next start.
func (a *App) Run(ctx context.Context) (err error) {
	if a.started.Swap(true) {
		return ErrRunning
	}
	begun := false
	var metrics *metric.Set
	alone := func() metric.Snapshot { return a.stats.snapshot(a.topo, nil) } // also before there is a local log
	defer func() {
		if !begun && ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, broker.ErrUnreachable)) {
			err = nil // told to stop while it waited for an answer of its start: there is nothing to commit
			a.cfg.logger.Info("stopped while starting")
		}
		if err != nil {
			a.stats.setState(Failed, err.Error())
		}
		switch {
		case metrics == nil:
		case err != nil:
			metrics.Fail()
			metrics.Source(alone)
		default:
			metrics.Close()
		}
	}()
	if metrics, err = metric.New(a.cfg.registerer, a.topo.Name()); err != nil {
		return fmt.Errorf("processor: %w", err)
	}
	metrics.Source(alone)
	cluster, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer cluster.Close()
	defer a.stats.served.ended()
	clusterID, err := cluster.ID(ctx)
	if err != nil {
		return fmt.Errorf("processor: ask for the cluster's ID: %w", err)
	}
	// Before the state directory is made this cluster's: a wrong address is often noticed by the topics that
	// are not there.
	if _, err := userTopics(ctx, cluster, a.topo, &a.cfg); err != nil {
		return err
	}
	log, err := a.openLog(clusterID)
	if err != nil {
		return err
	}
	defer func() {
		switch cerr := log.Close(); {
		case cerr != nil && err == nil:
			err = fmt.Errorf("processor: close the local log: %w", cerr)
		case cerr != nil:
			a.cfg.logger.Error("closing the local log failed: the next start restores from the changelog what it lacks", "dir", a.cfg.stateDir, "err", cerr)
		}
	}()
	plan, err := buildPlan(ctx, cluster, a.topo, &a.cfg)
	if err != nil {
		return err
	}
	if err := a.checkTargets(ctx); err != nil {
		return err
	}
	e := a.newEngine(cluster, log, plan, metrics)
	e.clusterID = clusterID
	if err := openGlobals(ctx, e); err != nil {
		return err
	}
	defer e.globals.close()
	e.log.Info("starting", "application", a.topo.Name(), "guarantee", a.cfg.guarantee, "instance", a.stats.instance, "cluster", clusterID, "workers", a.cfg.workers)
	begun = true
	return a.runWorkers(ctx, e)
}

// connect finds the cluster, trying until the startup timeout.
func (a *App) connect(ctx context.Context) (broker.Cluster, error) {
	if a.cfg.cluster != nil {
		return a.cfg.cluster, nil
	}
	c := kafka.Config{Brokers: a.cfg.brokers, ClientID: a.cfg.kafka.ClientID, Rack: a.cfg.kafka.Rack, Dial: a.cfg.kafka.Dial, Logger: a.cfg.logger}
	if t := a.cfg.kafka.TLS; t != nil {
		c.TLS = &kafka.TLS{CAFile: t.CAFile, CertFile: t.CertFile, KeyFile: t.KeyFile, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify}
	}
	if s := a.cfg.kafka.SASL; s != nil {
		c.SASL = &kafka.SASL{Mechanism: s.Mechanism, User: s.User, Password: s.Password, PasswordFile: s.PasswordFile, TokenFile: s.TokenFile, Token: s.Token, Extensions: s.Extensions}
	}
	sctx, cancel := context.WithTimeout(ctx, a.cfg.startup)
	defer cancel()
	for n := 0; ; n++ {
		cluster, err := kafka.Open(sctx, c)
		if err == nil {
			return cluster, nil
		}
		if !errors.Is(err, broker.ErrUnreachable) || sctx.Err() != nil {
			return nil, fmt.Errorf("processor: connect to %v: %w", a.cfg.brokers, err)
		}
		if n == 0 {
			a.cfg.logger.Warn("no broker reachable; trying again until the startup timeout", "brokers", a.cfg.brokers, "timeout", a.cfg.startup.String(), "err", err)
			a.stats.setState(Created, "no broker reachable: "+err.Error())
		}
		if sleep(sctx, min(time.Second, 100*time.Millisecond<<min(n, 4))) != nil {
			return nil, fmt.Errorf("processor: connect to %v: no answer within the startup timeout of %v: %w", a.cfg.brokers, a.cfg.startup, err)
		}
	}
}

// openLog opens the state directory.
func (a *App) openLog(clusterID string) (*txlog.Log, error) {
	log, err := txlog.Open(txlog.Options{
		Dir: a.cfg.stateDir, App: a.topo.Name(), Cluster: clusterID, Power: a.cfg.power, MinFreeBytes: a.cfg.minFree, Logger: a.cfg.logger,
		Key: a.cfg.stateKey, OldKey: a.cfg.oldKey,
	})
	if err != nil {
		return nil, fmt.Errorf("processor: open the state directory %q: %w", a.cfg.stateDir, err)
	}
	if reason, ok := log.SetAside(); ok {
		a.cfg.logger.Warn("local store set aside; its tasks are restored in full from their changelogs", "dir", a.cfg.stateDir, "reason", reason)
	}
	if a.cfg.instance != "" {
		if err := log.SetInstanceID(a.cfg.instance); err != nil {
			_ = log.Close()
			return nil, fmt.Errorf("processor: keep the instance ID: %w", err)
		}
	}
	a.stats.mu.Lock() // a page may ask already
	a.stats.instance = log.InstanceID()
	a.stats.mu.Unlock()
	return log, nil
}

func (a *App) newEngine(c broker.Cluster, log *txlog.Log, plan []*subPlan, m *metric.Set) *engine {
	var stores, dedups, effects []string
	for _, p := range plan {
		if p.sub.Stateful() {
			stores = append(stores, p.sub.Name)
		}
		for _, d := range p.sub.Dedups {
			dedups = append(dedups, d.Name)
		}
		for _, x := range p.sub.Effects {
			effects = append(effects, x.Name)
		}
	}
	m.Expect(stores, dedups)
	m.ExpectEffects(effects)
	m.Source(func() metric.Snapshot { return a.stats.snapshot(a.topo, sizeOf(log)) })
	return &engine{
		cfg: a.cfg, topo: a.topo, cluster: c, local: logAdapter{log}, plan: plan, log: a.cfg.logger, metrics: m, stats: a.stats,
		now: time.Now, sleep: sleep, incarnation: randomIncarnation, point: fault.Point, limit: limitCall,
	}
}

// runWorkers runs the workers and the membership until ctx ends or one of them fails. Order of the
// end: the workers commit and close their tasks, then the membership ends, so that the last commit has
// a valid generation.
func (a *App) runWorkers(ctx context.Context, e *engine) error {
	workCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	seals := newBackground(min(2, runtime.GOMAXPROCS(0)))
	defer seals.wait()
	e.background = seals.run
	var applies sync.WaitGroup
	defer applies.Wait()
	e.aside = applies.Go
	callCtx, endCalls := context.WithCancel(context.WithoutCancel(ctx))
	calls := &callers{}
	e.beside = func() besides { return calls.group(callCtx) }
	defer func() {
		endCalls()
		if !calls.wait() {
			e.log.Warn("a call has not returned although its context has ended; it is left behind")
		}
	}()
	workers := make([]*worker, a.cfg.workers)
	for i := range workers {
		workers[i] = newWorker(e, i, e.topo.Name()+"-"+a.stats.instance+"-"+strconv.Itoa(i))
	}
	group := newAssignment(e, workers)
	a.stats.setState(Rebalancing, "")

	failed := make(chan error, 1)
	fail := func(err error) { // never waits: whoever fails has to end, for the others to be waited for
		select {
		case failed <- err:
		default: // the first error counts
		}
	}
	group.sinks = newExternals(workCtx, e, e.topo.Name()+"-"+a.stats.instance+"-sink", fail)
	var running sync.WaitGroup
	for _, w := range workers {
		running.Go(func() {
			defer w.close()
			if err := w.run(workCtx); err != nil {
				fail(err)
			}
		})
	}
	memberCtx, leave := context.WithCancel(context.WithoutCancel(ctx))
	member := make(chan error, 1)
	var rest sync.WaitGroup
	rest.Go(func() { member <- e.cluster.Join(memberCtx, a.groupConfig(e), group) })
	rest.Go(func() { e.purgeLoop(memberCtx) })
	rest.Go(func() { e.compactLoop(memberCtx) })
	rest.Go(func() { e.watchLoop(memberCtx) })
	rest.Go(func() { group.sinks.loop(memberCtx) })
	rest.Go(func() {
		if err := e.globals.run(memberCtx); err != nil {
			fail(err)
		}
	})
	rest.Go(func() {
		if err := e.identityLoop(memberCtx); err != nil {
			fail(err)
		}
	})

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	case err = <-member:
		if err == nil {
			err = errors.New("processor: the group membership ended by itself")
		}
	}
	a.stats.setState(Stopping, "")
	group.finish()
	for _, w := range workers {
		w.send(command{stop: true})
	}
	late := time.AfterFunc(a.cfg.shutdown, func() { cancel(ErrStopTimeout) })
	running.Wait()
	group.sinks.finish()
	late.Stop()
	leave()
	rest.Wait()
	group.sinks.close()
	if err == nil && errors.Is(context.Cause(workCtx), ErrStopTimeout) {
		return fmt.Errorf("%w (%v)", ErrStopTimeout, a.cfg.shutdown)
	}
	if err == nil {
		select {
		case err = <-failed: // the last commit failed
		default:
		}
	}
	if err == nil {
		e.log.Info("stopped", "committed", a.stats.done)
	}
	return err
}

func (a *App) groupConfig(e *engine) broker.GroupConfig {
	return broker.GroupConfig{
		Group: e.group(), Instance: a.stats.instance, CoPartitioned: coPartitioned(e.plan),
		UserData: func() []byte { return []byte(a.cfg.address) },
	}
}

// coPartitioned lists the input topics of each sub-topology.
func coPartitioned(plan []*subPlan) [][]string {
	var out [][]string
	for _, p := range plan {
		var set []string
		for _, t := range p.inputs {
			set = append(set, t.Name)
		}
		slices.Sort(set)
		out = append(out, set)
	}
	return out
}

// run steps the worker until it is stopped or fails.
func (w *worker) run(ctx context.Context) error {
	// At once, before any restore: it aborts what the last run of this instance left open, for which
	// the committed offsets of its partitions would wait until the transaction timeout.
	if err := w.initProducer(ctx); err != nil {
		return fmt.Errorf("processor: initialise the transactional producer: %w", err)
	}
	for !w.stopped {
		if err := w.step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// purgeLoop deletes from repartition topics what their readers have committed.
func (e *engine) purgeLoop(ctx context.Context) {
	for sleep(ctx, purgeInterval) == nil {
		before := map[record.TopicPartition]record.Offset{}
		for _, t := range e.stats.status(e.topo).Tasks {
			for _, in := range t.Inputs {
				if e.internalInput(in.Topic) && in.Next > 0 {
					before[record.TopicPartition{Topic: in.Topic, Partition: record.Partition(in.Partition)}] = in.Next
				}
			}
		}
		if len(before) == 0 {
			continue
		}
		if err := e.cluster.DeleteRecords(ctx, before); err != nil && ctx.Err() == nil {
			e.log.Warn("cannot delete processed records from repartition topics; they keep growing until it works", "err", err)
		}
	}
}

// compactLoop gives disk space back: when IDs were forgotten and the application is idle, the local log
// is compacted. While records come, the log's own compaction has to do.
func (e *engine) compactLoop(ctx context.Context) {
	var forgotten, consumed uint64
	for sleep(ctx, purgeInterval) == nil {
		f, c := e.stats.activity()
		idle := c == consumed
		consumed = c
		if !idle || f == forgotten {
			continue
		}
		forgotten = f
		if err := e.local.Compact(); err != nil {
			e.log.Warn("cannot compact the local log; it takes more disk space than it needs", "err", err)
		}
	}
}

func (e *engine) internalInput(topic string) bool {
	for _, p := range e.plan {
		for _, s := range p.sub.Sources {
			if s.Internal && !s.External && e.topo.SourceTopic(s) == topic { // what a sink has written is kept for a while
				return true
			}
		}
	}
	return false
}

// background runs a few jobs at a time outside the workers.
type background struct {
	slots chan struct{}
	jobs  sync.WaitGroup
}

func newBackground(n int) *background { return &background{slots: make(chan struct{}, n)} }

func (b *background) run(job func()) {
	b.jobs.Go(func() {
		b.slots <- struct{}{}
		defer func() { <-b.slots }()
		job()
	})
}

func (b *background) wait() { b.jobs.Wait() }

// sleep waits for d, or less if ctx ends; then it returns ctx's error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func randomIncarnation() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return binary.BigEndian.Uint64(b[:]) | 1
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
