package topologytest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/topology"
)

// strikeKind is what a Fuzz does to an application.
type strikeKind uint8

const (
	strikeCrash       strikeKind = iota // before the request leaves the process
	strikeCrashAfter                    // the request is carried out, the process does not see the answer
	strikeWipe                          // a crash, and the local state is gone
	strikeLoseRequest                   // EndTxn is never carried out, no answer
	strikeLoseAnswer                    // EndTxn is carried out, no answer
	strikeFence
	strikeExpel // the group takes a process for dead
	strikeRebalance
	strikeKinds
)

func (k strikeKind) kills() bool { return k <= strikeWipe }

// String is what the report of a Fuzz says.
func (k strikeKind) String() string {
	return [...]string{
		"a process dies", "a process dies before it has the answer", "a process dies and loses its disk", "the request to commit is lost", "the answer to the commit is lost",
		"all processes are fenced", "all processes lose their sessions", "the tasks move",
	}[k]
}

// strike is a fault at a moment of a run, or at the first one after it at which it can be.
type strike struct {
	moment int
	what   strikeKind
}

// schedule is all that differs from one run of a Fuzz to the next.
type schedule struct {
	spoilt  bool // of a run that is compared with the one without faults
	seed    uint64
	records int // most records of a transaction; 0: the default
	portion int // records that are sent between two looks of the application; 0: all at once
	strikes []strike
}

// String is a line for each part.
func (s schedule) String() string {
	lines := []string{"all input is there at once"}
	if s.portion > 0 {
		lines[0] = fmt.Sprintf("the input comes in portions of %d records", s.portion)
	}
	if s.records > 0 {
		lines = append(lines, fmt.Sprintf("transactions of at most %d records", s.records))
	}
	for _, x := range s.strikes {
		lines = append(lines, fmt.Sprintf("moment %d: %s", x.moment, x.what))
	}
	return strings.Join(lines, "\n\t")
}

// next is the strike that is due.
func (d *Driver) next() (strike, bool) {
	if len(d.strikes) == 0 || d.strikes[0].moment > d.moment {
		return strike{}, false
	}
	return d.strikes[0], true
}

// strikeAt is what becomes of a request.
func (d *Driver) strikeAt(in *instance, c simbroker.Call) simbroker.Action {
	d.moment++
	s, ok := d.next()
	if !ok || s.what >= strikeFence || !s.what.kills() && c.API != simbroker.EndTxn {
		return simbroker.Action{}
	}
	d.strikes = d.strikes[1:]
	d.note(fmt.Sprintf("process %s: %s (%s)", in.name, s.what, c.API))
	switch s.what {
	case strikeLoseRequest:
		return simbroker.Action{Verdict: simbroker.LoseRequest, Wait: tick}
	case strikeLoseAnswer:
		return simbroker.Action{Verdict: simbroker.LoseAnswer, Wait: tick}
	}
	d.kill(in, s)
	if s.what == strikeCrashAfter {
		return simbroker.Action{Verdict: simbroker.CrashAfter}
	}
	return simbroker.Action{Verdict: simbroker.CrashBefore}
}

func (d *Driver) kill(in *instance, s strike) {
	in.stepper = nil
	if s.what == strikeWipe {
		in.disk = newDisk()
	}
}

// disturb does what is due between two steps.
func (d *Driver) disturb() {
	s, ok := d.next()
	if !ok || s.what < strikeFence || d.moved {
		return
	}
	d.strikes = d.strikes[1:]
	switch s.what {
	case strikeFence:
		d.fence()
	case strikeExpel:
		d.expel()
	default:
		d.rebalance()
	}
}

func producerConfig(id string) broker.ProducerConfig {
	return broker.ProducerConfig{TransactionalID: id}
}

// Fuzz sends the same input through an application again and again and compares what is committed:
//
//   - several times without any fault: if that differs, something else than the records decides
//   - under Runs schedules, drawn from Seed: batch sizes, commit points, crashes at any request, lost disks, lost
//     answers, fencing, lost sessions, tasks that move; and Duplicates and Reordered, if they are given
//
// build makes the topology, for each process anew. feed sends the input; it may use Advance, but should not ask for outputs: what has
// been committed by then depends on the schedule. If the outputs differ, the test fails, with the seed, and with the shortest schedule
// that still shows it.
//
// It finds what is not deterministic, and what is kept outside of the stores. It cannot know whether the output is right: expect that
// in a test without faults.
func Fuzz(t TB, build func() (*topology.Topology, error), feed func(d *Driver), opts ...Option) {
	t.Helper()
	conf := configOf(opts)
	conf.build = build
	topo, err := build()
	if err != nil {
		t.Fatalf("Fuzz: build: %v", err)
	}
	if conf.metrics, err = metric.New(nil, topo.Name()); err != nil {
		t.Fatalf("Fuzz: %v", err)
	}
	f := &fuzz{conf: conf, topo: topo, feed: feed, how: comparisons(topo, conf)}
	f.want = f.run(schedule{})
	if f.want.failed != "" {
		t.Fatalf("Fuzz: the run without any fault fails: %s", f.want.failed)
	}
	if f.want.records() == 0 {
		t.Fatalf("Fuzz: nothing is committed to any output topic: there is nothing to compare")
	}
	for range referenceRuns {
		if what := diff(f.want, f.run(schedule{}), func(string) Comparison { return InOrder }); what != "" {
			t.Errorf("Fuzz: two runs of the same input, both without any fault, differ: %s\n%s", what, undeterministic)
			return
		}
	}
	for i := range uint64(conf.runs) {
		s := f.draw(conf.seed + i)
		what := f.differs(s)
		if what == "" {
			continue
		}
		s, what = f.shrink(s, what)
		t.Errorf("Fuzz: what is committed depends on faults or batches: %s\n%s\nschedule, the shortest one found, of seed %d (Seed(%d), Runs(1) runs the whole one):\n\t%s\n%s",
			what, keptOutside, s.seed, s.seed, s, f.last)
		return
	}
}

const (
	referenceRuns = 4 // that the order of a small map stays the same in all of them is unlikely
	shrinkRuns    = 200

	undeterministic = "Something else than the records decides: a clock (time.Now), random numbers, the order of a map, or what variables outside of the stores hold."
	keptOutside     = "A processor that does so keeps something outside of its stores (a variable, a cache, a batch), does something that cannot be undone, or depends on when it runs."
)

// fuzz is one Fuzz.
type fuzz struct {
	conf config
	topo *topology.Topology
	feed func(d *Driver)
	how  func(topic string) Comparison
	want result
	last string // which faults came to pass in the last run
}

// draw makes the schedule of a seed.
func (f *fuzz) draw(seed uint64) schedule {
	rng := rand.New(rand.NewPCG(seed, 0xfa))
	s := schedule{spoilt: true, seed: seed}
	if rng.IntN(3) > 0 {
		s.portion = 1 + rng.IntN(10)
	}
	if rng.IntN(3) > 0 {
		s.records = 1 + rng.IntN(8)
	}
	// A run in portions has more moments than the one that was counted.
	for range rng.IntN(6) {
		s.strikes = append(s.strikes, strike{1 + rng.IntN(f.want.moments+f.want.moments/4+1), strikeKind(rng.IntN(int(strikeKinds)))})
	}
	slices.SortStableFunc(s.strikes, func(a, b strike) int { return cmp.Compare(a.moment, b.moment) })
	return s
}

// differs runs a schedule and says what is other than without faults; empty: nothing.
func (f *fuzz) differs(s schedule) string {
	got := f.run(s)
	f.last = got.history
	if got.failed != "" {
		return got.failed
	}
	return diff(f.want, got, f.how)
}

// shrink leaves parts of a schedule out as long as it still shows something.
func (f *fuzz) shrink(s schedule, what string) (schedule, string) {
	last := f.last
	for runs, again := 0, true; again && runs < shrinkRuns; {
		again = false
		var smaller []schedule
		for i := range s.strikes {
			x := s
			x.strikes = slices.Delete(slices.Clone(s.strikes), i, i+1)
			smaller = append(smaller, x)
		}
		if s.portion > 0 {
			x := s
			x.portion = 0
			smaller = append(smaller, x)
		}
		if s.records > 0 {
			x := s
			x.records = 0
			smaller = append(smaller, x)
		}
		for _, x := range smaller {
			runs++
			if w := f.differs(x); w != "" {
				s, what, last, again = x, w, f.last, true
				break
			}
		}
	}
	f.last = last
	return s, what
}

// result is what a run has committed.
type result struct {
	topics  []string
	logs    map[string][]line
	moments int
	history string
	failed  string // the application or a check failed
}

func (r result) records() (n int) {
	for _, l := range r.logs {
		n += len(l)
	}
	return n
}

// run runs the application under a schedule.
func (f *fuzz) run(s schedule) (out result) {
	conf := f.conf
	conf.seed = s.seed
	if !s.spoilt {
		conf.duplicates, conf.reorder = 0, 0
	}
	if s.records > 0 {
		conf.options = append(slices.Clone(conf.options), processor.WithTransactionLimits(s.records, 0, 0))
	}
	t := &probe{}
	defer t.finish(&out)
	topo, err := conf.build()
	if err != nil {
		t.Fatalf("build: %v", err)
	}
	d := newDriver(t, topo, conf)
	d.portion, d.strikes = s.portion, slices.Clone(s.strikes)
	f.feed(d)
	d.Run()
	out.moments, out.history = d.moment, d.history()
	out.topics, out.logs = d.lines()
	return out
}

// probe is the test of a run of a Fuzz: its failures are an outcome.
type probe struct {
	failed   string
	cleanups []func()
}

// abandoned is what ends a run.
type abandoned struct{}

// Helper implements TB.
func (p *probe) Helper() {}

// Cleanup implements TB.
func (p *probe) Cleanup(f func()) { p.cleanups = append(p.cleanups, f) }

// Errorf implements TB.
func (p *probe) Errorf(format string, args ...any) {
	if p.failed == "" {
		p.failed = fmt.Sprintf(format, args...)
	}
}

// Fatalf implements TB.
func (p *probe) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	panic(abandoned{})
}

// finish ends a run, in whatever way.
func (p *probe) finish(out *result) {
	v := recover()
	if _, ok := v.(abandoned); v != nil && !ok {
		panic(v)
	}
	for _, f := range slices.Backward(p.cleanups) {
		f()
	}
	out.failed = p.failed
}

// lines are all output topics, sorted by name.
func (d *Driver) lines() (topics []string, logs map[string][]line) {
	logs = map[string][]line{}
	plan := &planner{topo: d.topo, conf: d.conf}
	for _, s := range d.topo.Subtopologies() {
		timed := !plan.calls(s, 0)
		for _, k := range s.Sinks {
			if l := d.outputs[k.Topic]; !k.Internal && logs[k.Topic] == nil {
				topics = append(topics, k.Topic)
				logs[k.Topic] = []line{}
				for _, m := range l.all {
					logs[k.Topic] = append(logs[k.Topic], lineOf(m, timed))
				}
			}
		}
	}
	slices.Sort(topics)
	return topics, logs
}
