package processor

import (
	"context"
	"strconv"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// Env is the world of a Stepper.
type Env struct {
	Cluster  broker.Cluster
	Local    LocalLog
	Instance string
	Now      func() time.Time
	// Sleep moves the clock on. An error ends the step that wanted to wait.
	Sleep func(ctx context.Context, d time.Duration) error
	// Incarnation gives a new number, not 0, each time.
	Incarnation func() uint64
	// Point is called at every place where a process may die between two calls. May be nil.
	Point func(name string)
	// Call is given each call of an effect and runs it when it likes, on the goroutine that steps: it stands for what the other system takes. A call
	// that is never run never ends. There is no timeout. Nil: each is run at once.
	Call func(run func())
	// Metrics may be shared by many Steppers of topologies of one name; making them takes longer than a short
	// simulation. Nil: the Stepper makes its own.
	Metrics *metric.Set
}

// Stepper runs the same workers as an App, one step at a time, without a goroutine and without a clock
// of its own: for simulations and for test drivers. It implements broker.GroupHandler, through which
// the driver plays the consumer group. It writes to no sink outside of Kafka: what would be written stands in the sink's
// topic.
type Stepper struct {
	*assignment
	engine *engine
	failed []error // by worker: an error of a step that Revoked took
}

// NewStepper looks at the topics as an App does and makes the workers.
func NewStepper(ctx context.Context, topo *topology.Topology, env Env, opts ...Option) (*Stepper, error) {
	cfg := defaults(topo.Name())
	cfg.workers = 1
	for _, o := range opts {
		o.apply(&cfg)
	}
	cfg.cluster = env.Cluster
	if err := cfg.validate(topo); err != nil {
		return nil, err
	}
	metrics := env.Metrics
	if metrics == nil {
		var err error
		if metrics, err = metric.New(nil, topo.Name()); err != nil {
			return nil, err
		}
	}
	plan, err := buildPlan(ctx, env.Cluster, topo, &cfg)
	if err != nil {
		return nil, err
	}
	clusterID, err := env.Cluster.ID(ctx)
	if err != nil {
		return nil, err
	}
	e := &engine{
		clusterID: clusterID,
		cfg:       cfg, topo: topo, cluster: env.Cluster, local: env.Local, plan: plan, log: cfg.logger, metrics: metrics,
		stats: newStats(env.Now()), now: env.Now, sleep: env.Sleep, incarnation: env.Incarnation, point: env.Point,
		background: func(job func()) { job() },
		limit:      func(ctx context.Context, _ time.Duration, _ func()) (context.Context, func()) { return ctx, func() {} },
	}
	call := env.Call
	if call == nil {
		call = func(run func()) { run() }
	}
	e.beside = func() besides {
		// Their context does not end: a call that a process makes after it has lost the task is what a simulation must have.
		return besides{run: func(f func(context.Context)) { call(func() { f(context.Background()) }) }, end: func() {}}
	}
	if e.point == nil {
		e.point = func(string) {}
	}
	if err := openGlobals(ctx, e); err != nil {
		return nil, err
	}
	e.stats.instance = env.Instance
	e.stats.setState(Rebalancing, "")
	workers := make([]*worker, cfg.workers)
	for i := range workers {
		workers[i] = newWorker(e, i, topo.Name()+"-"+env.Instance+"-"+strconv.Itoa(i))
	}
	return &Stepper{assignment: newAssignment(e, workers), engine: e, failed: make([]error, len(workers))}, nil
}

// Revoked implements broker.GroupHandler. It steps the workers itself until the tasks are committed
// and closed; an error of a step comes again with the worker's next Step.
func (s *Stepper) Revoked(ctx context.Context, gone []record.TopicPartition) {
	s.stats.revoked(s.now())
	for _, done := range s.release(gone, false) {
		for open := true; open && ctx.Err() == nil; {
			select {
			case <-done:
				open = false
			default:
				for i, w := range s.workers {
					if err := w.step(ctx); err != nil {
						s.failed[i] = err
						return
					}
				}
			}
		}
	}
}

// Workers is the number of workers.
func (s *Stepper) Workers() int { return len(s.workers) }

// Start initialises a worker's transactional producer. It comes before the worker's first Step.
func (s *Stepper) Start(ctx context.Context, worker int) error {
	return s.workers[worker].initProducer(ctx)
}

// Step lets a worker do its next bounded piece of work. An error is one with which an App would end.
func (s *Stepper) Step(ctx context.Context, worker int) error {
	if err := s.failed[worker]; err != nil {
		return err
	}
	if worker == 0 {
		if err := s.engine.globals.step(ctx, 0); err != nil {
			return err
		}
	}
	return s.workers[worker].step(ctx)
}

// Stop asks the workers to commit and to close their tasks: it is done once Stopped says so.
func (s *Stepper) Stop() {
	s.finish()
	for _, w := range s.workers {
		w.send(command{stop: true})
	}
}

// Stopped says whether a worker has ended after Stop.
func (s *Stepper) Stopped(worker int) bool { return s.workers[worker].stopped }

// Tasks counts the tasks of all workers, and those of them that run.
func (s *Stepper) Tasks() (all, running int) {
	for _, w := range s.workers {
		all += len(w.runs)
		for _, r := range w.runs {
			if r.state == TaskRunning {
				running++
			}
		}
	}
	return all, running
}

// CoPartitioned lists the topics whose equal partitions belong to one task, as an App tells the group.
func (s *Stepper) CoPartitioned() [][]string { return coPartitioned(s.engine.plan) }

// Status is what an App would say of itself.
func (s *Stepper) Status() Status { return s.engine.stats.status(s.engine.topo) }
