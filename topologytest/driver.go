package topologytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// TB is what a Driver needs of a test: a *testing.T, *testing.B or *testing.F is one. Fatalf must not return.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

const (
	tick     = 2 * time.Millisecond // from one round to the next
	calmFor  = 3                    // rounds without anything to do after which nothing more is expected
	patience = 50_000               // rounds after which an application that still works makes no progress
	// longestTick is how far the clock moves at once in an Advance: more would be taken for a host that slept.
	longestTick = 500 * time.Millisecond
	markerDelay = 2 * time.Millisecond // a commit is seen by readers a little after it was made
)

// Driver runs an application in a test. Make one with New. It is used from one goroutine.
type Driver struct {
	t     TB
	topo  *topology.Topology
	conf  config
	b     *simbroker.Broker
	group *simbroker.Group
	rng   *rand.Rand

	instances []*instance
	moved     bool // a process came or went: the partitions are to be dealt anew
	shift     int  // by which instances they are dealt, see Rebalance
	stopped   error
	mayStop   bool

	now     time.Time // the script's clock: start and all that was advanced, what a record's time is by default
	sent    []sent
	waiting []sent // sent, and not in their topics yet
	outputs map[string]*log

	callsHeld bool

	faults
}

// instance is a process, or the place of one.
type instance struct {
	name    string
	disk    *disk
	lives   int
	client  *simbroker.Client
	stepper *processor.Stepper // nil: dead
	dying   bool

	calls   []func() // of effects: the process makes them, and the other system has not answered
	calling bool     // one of them is being answered
}

// sent is a record that the test sent.
type sent struct {
	number int // from 1, over all topics
	tp     record.TopicPartition
	rec    broker.Record
}

// log is what a reader has read of a topic: in the order in which it was committed.
type log struct {
	next []record.Offset // by partition
	all  []message
}

type message struct {
	record.Position
	rec broker.Record
}

// New makes the topics and starts the application. A mistake ends the test.
func New(t TB, topo *topology.Topology, opts ...Option) *Driver {
	t.Helper()
	d := newDriver(t, topo, configOf(opts))
	t.Cleanup(func() {
		t.Helper()
		d.unused()
	})
	return d
}

func newDriver(t TB, topo *topology.Topology, conf config) *Driver {
	t.Helper()
	d := &Driver{
		t: t, topo: topo, conf: conf, b: simbroker.New(conf.start), now: conf.start, moved: true,
		rng: rand.New(rand.NewPCG(conf.seed, 0xd1)), outputs: map[string]*log{},
	}
	d.duplicates, d.reorder = conf.duplicates, conf.reorder
	d.b.MarkerDelay = func(record.TopicPartition, string) time.Duration { return markerDelay }
	d.group = d.b.Group(topo.Name())
	if conf.instances < 1 || conf.instances > 26 {
		t.Fatalf("topologytest: %d instances, want 1 to 26", conf.instances)
	}
	if d.conf.metrics == nil {
		m, err := metric.New(nil, topo.Name())
		if err != nil {
			t.Fatalf("topologytest: %v", err)
		}
		d.conf.metrics = m
	}
	d.makeTopics()
	for i := range conf.instances {
		d.instances = append(d.instances, &instance{name: string(rune('a' + i)), disk: newDisk()})
	}
	d.b.SetFault(d.decide)
	return d
}

// makeTopics makes the topics that are not the application's own.
func (d *Driver) makeTopics() {
	d.t.Helper()
	names := slices.Clone(d.conf.topics)
	for _, s := range d.topo.Subtopologies() {
		for _, x := range s.Sources {
			if !x.Internal {
				names = append(names, x.Topic)
			}
		}
		for _, x := range s.Sinks {
			if !x.Internal {
				names = append(names, x.Topic)
			}
		}
	}
	for _, g := range d.topo.Globals() {
		names = append(names, g.Topic)
	}
	c := d.b.Client("setup")
	for _, name := range names {
		if d.outputs[name] != nil {
			continue
		}
		n := d.conf.partitions[name]
		if n == 0 {
			n = 1
		}
		if err := c.CreateTopic(context.Background(), broker.Topic{Name: name, Partitions: n, Replicas: 1, Retention: -1}); err != nil {
			d.t.Fatalf("topologytest: topic %q with %d partitions: %v", name, n, err)
		}
		d.outputs[name] = &log{next: make([]record.Offset, n)}
	}
}

// start makes a process of an instance, as processor.New and Run do.
func (d *Driver) start(in *instance) error {
	in.lives++
	in.dying, in.calls, in.calling = false, nil, false
	in.client = d.b.Client(fmt.Sprintf("%s.%d", in.name, in.lives))
	topo := d.topo
	if d.conf.build != nil {
		var err error
		if topo, err = d.conf.build(); err != nil {
			return fmt.Errorf("rebuild the topology: %w", err)
		}
	}
	s, err := processor.NewStepper(context.Background(), topo, processor.Env{
		Cluster: in.client, Local: in.disk, Instance: in.name, Now: d.b.Now, Metrics: d.conf.metrics,
		Sleep: func(ctx context.Context, w time.Duration) error {
			d.b.Advance(w)
			d.answer(in)
			return ctx.Err()
		},
		Call:        func(run func()) { in.calls = append(in.calls, run) },
		Incarnation: func() uint64 { return d.rng.Uint64() | 1 },
		Point:       func(name string) { d.point(in, name) },
	}, d.conf.options...)
	if err != nil {
		return err
	}
	if err := s.Start(context.Background(), 0); err != nil {
		return err
	}
	d.group.Add(in.name, s.CoPartitioned(), s)
	in.stepper, d.moved = s, true
	return nil
}

// survive runs a piece of a process's work, in which it may die. Its Crash, and nothing else, is caught.
func (d *Driver) survive(f func() error) (err error) {
	defer func() {
		v := recover()
		c, ok := v.(simbroker.Crash)
		if v != nil && !ok {
			panic(v)
		}
		for _, in := range d.instances {
			if ok && in.client != nil && in.stepper != nil && in.clientName() == c.Call.Client {
				in.stepper = nil
			}
		}
	}()
	return f()
}

func (in *instance) clientName() string { return fmt.Sprintf("%s.%d", in.name, in.lives) }

// round lets each process do its next piece of work, and the group what is due.
func (d *Driver) round() {
	ctx := context.Background()
	for _, in := range d.instances {
		err := d.survive(func() error {
			if in.stepper == nil {
				return d.start(in)
			}
			d.answer(in)
			return in.stepper.Step(ctx, 0)
		})
		switch {
		case err == nil:
		case d.fences > 0 && errors.Is(err, broker.ErrFenced):
			in.stepper = nil // whoever runs it starts it again
		default:
			d.stopped = err
			return
		}
	}
	d.disturb()
	if d.moved && !slices.ContainsFunc(d.instances, func(in *instance) bool { return in.stepper == nil }) {
		_ = d.survive(func() error {
			d.group.Rebalance(ctx, d.plan())
			d.moved = false
			return nil
		})
	}
	d.b.Advance(tick)
	d.collect()
}

// plan deals the partitions to the instances.
func (d *Driver) plan() map[string][]record.TopicPartition {
	spread := d.group.Spread()
	plan := map[string][]record.TopicPartition{}
	for i, in := range d.instances {
		plan[d.instances[(i+d.shift)%len(d.instances)].name] = spread[in.name]
	}
	return plan
}

// collect reads what has been committed since.
func (d *Driver) collect() {
	for name, l := range d.outputs {
		for p, next := range l.next {
			tp := record.TopicPartition{Topic: name, Partition: record.Partition(p)}
			_, stable, _ := d.b.Offsets(tp)
			if stable <= next {
				continue
			}
			for _, r := range d.b.Committed(tp) {
				if r.Offset >= next && r.Offset < stable {
					l.all = append(l.all, message{record.Position{TopicPartition: tp, Offset: r.Offset}, r})
				}
			}
			l.next[p] = stable
		}
	}
}

// busy says whether anything is left to do.
func (d *Driver) busy() bool {
	if d.moved || len(d.b.Undecided()) > 0 {
		return true
	}
	stable := func(tp record.TopicPartition) record.Offset {
		_, end, _ := d.b.Offsets(tp)
		return end
	}
	for _, in := range d.instances {
		if in.stepper == nil || in.stepper.Busy() || in.stepper.GlobalsBehind(stable) || len(in.calls) > 0 && !d.callsHeld {
			return true
		}
	}
	for _, set := range d.topo.CoPartitioned() {
		for _, name := range set {
			for p := record.Partition(0); ; p++ {
				tp := record.TopicPartition{Topic: name, Partition: p}
				if _, stable, _ := d.b.Offsets(tp); stable < 0 {
					break
				}
				if d.behind(tp) {
					return true
				}
			}
		}
	}
	return false
}

// behind says whether an input has records that are not processed.
func (d *Driver) behind(tp record.TopicPartition) bool {
	next := d.b.Position(d.topo.Name(), tp).Next
	start, _, end := d.b.Offsets(tp)
	if next = max(next, start); next >= end {
		return false
	}
	return slices.ContainsFunc(d.b.Committed(tp), func(r broker.Record) bool { return r.Offset >= next })
}

// answer lets the other systems answer some of a process's calls, in any order.
func (d *Driver) answer(in *instance) {
	if d.callsHeld || in.calling || len(in.calls) == 0 {
		return
	}
	in.calling = true
	defer func() { in.calling = false }()
	waiting := in.calls
	in.calls = nil
	d.rng.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
	for _, run := range waiting {
		if d.rng.IntN(2) == 0 {
			in.calls = append(in.calls, run) // it takes longer
		} else {
			run()
		}
	}
}

// HoldCalls keeps the calls of effects from being made, until it is called with false: it stands for another system that is slow. What else there
// is to do is done meanwhile; Run does not wait for them.
func (d *Driver) HoldCalls(on bool) { d.callsHeld = on }

// Run lets the application work until nothing is left to do. The clock moves by what that takes, less than a second.
func (d *Driver) Run() {
	d.t.Helper()
	d.run()
	if d.stopped != nil && !d.mayStop {
		d.t.Fatalf("the application stopped: %v\n%s", d.stopped, d.history())
	}
}

func (d *Driver) run() {
	d.t.Helper()
	d.deliver()
	for n, calm := 0, 0; calm < calmFor && d.stopped == nil; n++ {
		if n == patience {
			d.t.Fatalf("the application makes no progress: %s\n%s", d.states(), d.history())
		}
		d.round()
		if calm++; d.busy() {
			calm = 0
		}
	}
}

// Advance lets time pass, while the application works: windows close, inputs become idle, timers fire. The records that are
// sent from then on have a later time. A day takes about a second.
func (d *Driver) Advance(by time.Duration) {
	d.t.Helper()
	d.Run()
	d.now = d.now.Add(by)
	for end := d.b.Now().Add(by); d.stopped == nil && d.b.Now().Before(end); {
		d.b.Advance(min(longestTick, end.Sub(d.b.Now())))
		d.round()
	}
	d.Run()
}

// Now is the clock of the test: the start and all that was advanced.
func (d *Driver) Now() time.Time { return d.now }

// ExpectStop lets the application work and expects that it stops with an error, which it returns: a record that cannot be handled
// and the policy stop, for example. Nothing runs any more after that.
func (d *Driver) ExpectStop() error {
	d.t.Helper()
	d.mayStop = true
	d.run()
	if d.stopped == nil {
		d.t.Fatalf("the application did not stop")
	}
	return d.stopped
}

// Status is what each process says of itself, by the order of the instances: its tasks, its counters.
func (d *Driver) Status() []processor.Status {
	d.t.Helper()
	d.Run()
	var out []processor.Status
	for _, in := range d.instances {
		if in.stepper != nil {
			out = append(out, in.stepper.Status())
		}
	}
	return out
}

// states says what holds the processes up.
func (d *Driver) states() (s string) {
	for _, in := range d.instances {
		if in.stepper == nil {
			s += in.name + " is dead; "
			continue
		}
		st := in.stepper.Status()
		s += fmt.Sprintf("%s is %s %s; ", in.name, st.State, st.Reason)
		for _, t := range st.Tasks {
			if t.State != processor.TaskRunning {
				s += fmt.Sprintf("task %s is %s %s; ", t.Name, t.State, t.Reason)
			}
		}
	}
	return s
}
