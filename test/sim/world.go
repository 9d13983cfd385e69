package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// Config is one run, all of it: FromSeed makes one of a seed, a red one is made smaller by Shrink.
type Config struct {
	Seed       uint64             // of every choice that is left
	Partitions int                // of the input
	Owners     int                // instances
	Bills      int                // how many are made
	Protocol   simbroker.Protocol // of transactions
	Prefetch   bool               // readers fetch ahead
	MaxFetch   int                // bytes that a fetch brings of one partition; 0: no limit
	Wide       bool               // the wide topology
	Twins      bool               // some IDs come in two partitions
	Linked     bool               // a join and timers, too
	Hops       int                // repartition topics in front of windows; 0: there are no windows
	Rated      bool               // a join with a global table, too
	Schedule   []Fault
	Options    []processor.Option // of the application

	// KillAt, if not 0, kills the process that takes the KillAt-th step of all.
	KillAt int
	Trace  bool
}

// FromSeed is the run of a seed.
func FromSeed(seed uint64) Config { return fromSeed(seed, false) }

// PlainFromSeed is the run of a seed without marks and global tables, and without the fault that is theirs: more time for the others.
func PlainFromSeed(seed uint64) Config { return fromSeed(seed, true) }

func fromSeed(seed uint64, plain bool) Config {
	rng := rand.New(rand.NewPCG(seed, 0x5eed))
	c := Config{
		Seed: seed, Partitions: 1 + rng.IntN(4), Owners: 1 + rng.IntN(3), Bills: 20 + rng.IntN(181),
		Protocol: simbroker.Protocol(rng.IntN(2)), Prefetch: rng.IntN(4) > 0, MaxFetch: 200 << rng.IntN(8),
	}
	c.Schedule = draw(rng, seed, c.Protocol, plain)
	// Where much time passes at once, an ID of another partition may be forgotten before its twin is read.
	steady := !slices.ContainsFunc(c.Schedule, Fault.jumps)
	c.Twins = steady && rng.IntN(2) == 0
	c.Wide = steady && rng.IntN(6) == 0
	c.Linked = steady && !c.Wide && rng.IntN(5) == 0
	if plain {
		return c
	}
	if steady && !c.Wide && !c.Linked && rng.IntN(3) == 0 {
		c.Hops = 1 + rng.IntN(2)
	}
	c.Rated = !c.Twins && c.Hops == 0 && rng.IntN(2) == 0
	return c
}

// String is what a run is, without its schedule.
func (c Config) String() string {
	return fmt.Sprintf("seed %d, protocol V%d, %d partitions, %d instances, %d bills, fetches of %d bytes (prefetch %v), wide %v, twins %v, linked %v, hops %d, rated %v",
		c.Seed, c.Protocol+1, c.Partitions, c.Owners, c.Bills, c.MaxFetch, c.Prefetch, c.Wide, c.Twins, c.Linked, c.Hops, c.Rated)
}

// Result is what a run has shown.
type Result struct {
	Errors   []string
	Trace    []string
	Hash     uint64         // of everything that happened: two runs of one seed are equal
	Hits     map[string]int // fault points
	Steps    int
	Requests int
}

// world is one run: the cluster, the instances with their disks, the input, the faults.
type world struct {
	conf  Config
	rng   *rand.Rand // of the scheduler; whatever else is left to choice has its own
	b     *simbroker.Broker
	topo  *topology.Topology
	group *membership

	owners     []*owner
	load       *loader
	faults     *faults
	watch      *observer
	partitions int
	delays     *rand.Rand

	incarnations uint64
	plan         []Fault       // to come
	jumped       time.Duration // that the plan does not know of
	recovering   bool          // since the last start or failed commit nothing was restored
	down         time.Duration // how long the next process to die stays dead
	slowMarker   int           // so many markers to come are late
	slowWhere    int           // which: 0 any, 1 of the offsets, 2 of the changelogs
	until        func() bool   // of a script: whether what it waits for has happened
	handOver     bool          // everything changes hands at the next slow marker
	traps        []*trap       // places where the next process dies, or is stopped
	heldInit     bool
	abortNext    bool
	lastFault    time.Time
	quiet        bool      // no more faults
	calm         time.Time // since when nothing is left to do

	steps  int
	hash   uint64
	hits   map[string]int
	trace  []string
	errors []string
}

// calmFor is how long nothing must be left to do: commands that a worker has not looked at show within it.
const calmFor = 400 * time.Millisecond

// patience is how long a fault that is to come during a recovery waits for one.
const patience = 2 * time.Second

// transactionTimeout is shorter than the engine's default, as all times here are: what passes idly is not
// worth its steps.
const transactionTimeout = 4 * time.Second

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Run does one run and returns what it has shown. It never panics for what the engine does.
func Run(conf Config) Result {
	w := newWorld(conf)
	if w == nil {
		return Result{Errors: []string{"the workload's topology is wrong"}}
	}
	w.run()
	w.close()
	return Result{Errors: w.errors, Trace: w.trace, Hash: w.hash, Hits: w.hits, Steps: w.steps, Requests: w.b.Calls()}
}

func newWorld(conf Config) *world {
	topo, err := billsTopology(conf)
	if err != nil {
		return nil
	}
	w := &world{
		conf: conf, b: simbroker.New(epoch), topo: topo, partitions: conf.Partitions, plan: conf.Schedule,
		hits: map[string]int{}, hash: 14695981039346656037,
	}
	w.rng, w.delays = w.rngs(0x5c4ed), w.rngs(0xde1a)
	setup := w.b.Client("setup")
	inputs := []string{billsTopic, notesTopic}
	if conf.Linked {
		inputs = append(inputs, offersTopic, takesTopic)
	}
	if conf.Hops > 0 {
		inputs = append(inputs, visitsTopic)
	}
	for _, name := range append(inputs, w.outputTopics()...) {
		if err := setup.CreateTopic(context.Background(), broker.Topic{Name: name, Partitions: int32(w.partitions), Retention: -1}); err != nil {
			w.fail("create topic %s: %v", name, err)
		}
	}
	if conf.Rated {
		if err := setup.CreateTopic(context.Background(), ratesTopicOf(w.partitions)); err != nil {
			w.fail("create topic %s: %v", ratesTopic, err)
		}
	}
	w.b.MarkerDelay = w.markerDelay
	w.faults = &faults{w: w, doubts: map[string]bool{}}
	w.b.SetFault(w.faults.hook)
	w.b.Decided = w.faults.decided
	w.group = newMembership(w)
	for i := range conf.Owners {
		w.owners = append(w.owners, &owner{w: w, instance: string(rune('a' + i)), disk: newDisk(), wanted: i == 0 || w.rng.IntN(2) == 0, restart: epoch})
	}
	lr := w.rngs(0x10ad)
	w.load = &loader{
		rng: lr, b: w.b, partitions: w.partitions, accounts: 3 + lr.IntN(40), left: conf.Bills, next: epoch.Add(50 * time.Millisecond),
		log: make([][]bill, w.partitions), notes: make([][]string, w.partitions), twins: conf.Twins, extra: extraBursts,
		producer: w.b.Client("loader").NewProducer(broker.ProducerConfig{TransactionalID: "loader"}),
	}
	if conf.Linked {
		w.load.linked = newLinked(w.rngs(0x117), w.partitions)
	}
	if w.load.hops = conf.Hops; conf.Hops > 0 {
		w.load.visits = newVisits(w.rngs(0x715), w.partitions)
	}
	if conf.Rated {
		w.load.rates = newRates(w.rngs(0x4a7e))
	}
	w.watch = newObserver(w)
	// The input lasts as long as the faults, so that they meet work.
	var last time.Duration
	if n := len(w.plan); n > 0 {
		last = w.plan[n-1].At
	}
	w.load.gap = max(250*time.Millisecond, 2*last/time.Duration(1+w.load.left/10))
	return w
}

// extraBursts is how much input comes at most only because something is armed.
const extraBursts = 8

// rngs is a generator of its own for one kind of choices: a fault that is left out does not shift the others.
func (w *world) rngs(what uint64) *rand.Rand { return rand.New(rand.NewPCG(w.conf.Seed, what)) }

// run is the scheduler. Every choice is the generator's.
func (w *world) run() {
	const enough = 400_000 // steps: a run that takes more makes no progress
	for w.steps < enough && len(w.errors) == 0 {
		now := w.now()
		w.happen(now)
		w.group.step(now)
		if !w.finished() {
			w.calm = time.Time{}
		} else if w.calm.IsZero() {
			w.calm = now
			for _, o := range w.owners {
				o.stepped = false
			}
		} else if now.Sub(w.calm) > calmFor && w.between() {
			break
		}
		var ready []*owner
		for _, o := range w.owners {
			o.deliver(now)
			if o.runnable(now) {
				ready = append(ready, o)
			}
		}
		if w.rng.IntN(20) == 0 {
			w.watch.poll()
		}
		if len(ready) == 0 {
			w.b.Advance(w.nextChange(now).Sub(now))
			continue
		}
		w.step(ready[w.rng.IntN(len(ready))])
		if w.rng.IntN(4) == 0 {
			w.b.Advance(time.Duration(w.rng.IntN(1500)) * time.Microsecond)
		}
		if limit := w.recoveryLimit(); w.quiet && w.now().Sub(w.lastFault) > limit {
			w.fail("C9: not caught up %v after the last fault: %s", limit, w.behind())
		}
	}
	if w.steps >= enough {
		w.fail("no end after %d steps: %s", w.steps, w.behind())
	}
	if len(w.errors) == 0 {
		w.check()
	}
}

// close ends all processes.
func (w *world) close() {
	for _, o := range w.owners {
		o.wanted = false
		o.kill()
	}
}

// step lets one process go on to its next stop.
func (w *world) step(o *owner) {
	w.steps++
	if w.conf.KillAt == w.steps {
		w.note("kill %s at step %d", o.instance, w.steps)
		w.lastFault = w.now()
		w.killFor(o, time.Duration(w.conf.KillAt*7919%15_000)*time.Millisecond)
		return
	}
	where, alive := o.resume()
	o.where = where
	o.stepped = o.stepped || where == "step"
	w.event(o.instance, where)
	if alive && w.conf.Trace {
		w.trace = append(w.trace, fmt.Sprintf("%8.3f %6d %s %s", w.now().Sub(epoch).Seconds(), w.steps, o.instance, where))
	}
}

// due says whether it is time for a fault. One that is to come during a recovery waits for it, but not for ever.
func (w *world) due(f Fault, now time.Time) bool {
	at := epoch.Add(w.jumped + f.At)
	return !now.Before(at) && (!f.Recovering || w.recovering || now.Sub(at) > patience)
}

// happen does what the plan and the input have for this moment.
func (w *world) happen(now time.Time) {
	for len(w.plan) > 0 && w.due(w.plan[0], now) {
		f := w.plan[0]
		w.plan = w.plan[1:]
		w.lastFault = now
		if w.recovering {
			w.hit("fault during a recovery")
		}
		w.note("event: %s", f)
		if f.What != "request" && f.What != "death" && f.What != "zombie" { // these are hit later, if at all
			w.hit(f.What)
		}
		whatOf(f.What).do(w, f)
		now = w.now()
	}
	// What is armed gets some more input to act upon.
	if len(w.plan) == 0 && w.load.left <= 0 && w.load.extra > 0 && len(w.faults.pending)+len(w.traps) > 0 {
		w.load.left, w.load.gap = 3, 200*time.Millisecond
		w.load.extra--
	}
	if len(w.plan) == 0 && w.load.left <= 0 && !w.quiet && (w.until == nil || w.until()) {
		w.quiet = true
		w.faults.pending, w.traps, w.slowMarker, w.handOver = nil, nil, 0, false
		w.b.DeliverHeld()
		w.b.ReleaseMarkers(func(record.TopicPartition) bool { return true })
		w.lastFault = later(w.lastFault, now)
		for _, o := range w.owners { // what was stopped, deaf or dead comes back
			w.lastFault = later(later(later(w.lastFault, o.paused), o.deaf), o.restart)
		}
	}
	w.load.burst(now, w.abort)
	for _, o := range w.owners {
		if o.resume == nil && o.wanted && !now.Before(o.restart) {
			o.start()
		}
	}
}

// abort runs the loader's transaction so that it is aborted: EndTxn is lost, Init ends it.
func (w *world) abort(p broker.Producer) {
	ctx := context.Background()
	if err := p.Init(ctx); err != nil {
		w.fail("loader: %v", err)
		return
	}
	w.abortNext = true
	if _, out, _ := p.Commit(ctx, broker.GroupMeta{Generation: -1}, nil); out == broker.Committed {
		w.fail("loader: the transaction was to be aborted")
	}
	p.Reset()
	if err := p.Init(ctx); err != nil {
		w.fail("loader: %v", err)
	}
}

// died is told of a process's end. It comes back after a while, with whatever disk it then has.
func (w *world) died(o *owner) {
	if !o.wanted {
		return
	}
	o.restart = w.now().Add(max(w.down, time.Millisecond))
	w.down = 0
	if w.quiet {
		o.restart = w.now()
	}
	w.lastFault = later(w.lastFault, o.restart)
	o.disk.full, o.disk.low = 0, 0
	clear(o.disk.refused) // what it held is gone with it
	if o.disk.spoil {
		o.disk.spoil = false
		o.disk.spoilFilters()
	}
}

// exited is told that a process ended with an error.
func (w *world) exited(o *owner, err error) {
	w.note("%s ends: %v", o.instance, err)
	w.hit("exit")
	if !w.mayExit(o, err) {
		w.fail("%s ended with: %v", o.instance, err)
	}
}

// leave takes an instance out for good, if others stay.
func (w *world) leave(o *owner) {
	others := 0
	for _, x := range w.owners {
		if x != o && x.wanted {
			others++
		}
	}
	if others == 0 || !o.wanted {
		return
	}
	o.wanted = false
	o.kill()
	if w.group.member(o.instance) {
		w.group.g.Remove(o.instance)
		w.group.pending = true
	}
}

// nextChange is the next moment at which something can happen.
func (w *world) nextChange(now time.Time) time.Time {
	next := now.Add(time.Second)
	at := func(t time.Time) {
		if t.After(now) && t.Before(next) {
			next = t
		}
	}
	for _, o := range w.owners {
		at(o.restart)
		at(o.paused)
		if o.resume != nil && !now.Before(o.paused) {
			at(o.wake)
		}
		if len(o.news) > 0 {
			at(o.news[0].at)
		}
	}
	if len(w.plan) > 0 {
		due := epoch.Add(w.jumped + w.plan[0].At)
		at(due)
		at(due.Add(patience + time.Millisecond))
	}
	if w.load.left > 0 {
		at(w.load.next)
	}
	return next
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (w *world) now() time.Time { return w.b.Now() }

func (w *world) isOwner(client string) bool {
	name, _, ok := strings.Cut(client, ".")
	return ok && len(name) == 1
}

// changelogs are the partitions of the compacted topics.
func (w *world) changelogs() []record.TopicPartition {
	var out []record.TopicPartition
	for _, s := range w.topo.Subtopologies() {
		for _, st := range s.Stores {
			for p := range record.Partition(w.partitions) {
				out = append(out, record.TopicPartition{Topic: w.topo.StoreTopic(st.Name), Partition: p})
			}
		}
	}
	return out
}

func (w *world) partitionAt(n int) record.TopicPartition {
	all := w.changelogs()
	for _, name := range []string{billsTopic, echoTopic, totalsTopic, sumsTopic} {
		all = append(all, record.TopicPartition{Topic: name})
	}
	if w.load.rates != nil {
		w.each([]string{ratesTopic}, func(tp record.TopicPartition) { all = append(all, tp) })
	}
	return all[n%len(all)]
}

func (w *world) hit(what string) { w.hits[what]++ }

// point counts the engine's own places to die at.
func (w *world) point(name string) {
	switch name {
	case "recover.start":
		w.recovering = true
	case "restore.done":
		w.recovering = false
	}
	w.hits["point "+name]++
}

// event folds what happened into the run's hash.
func (w *world) event(parts ...string) {
	h := fnv.New64a()
	for _, p := range parts {
		_, _ = h.Write([]byte(p))
	}
	w.hash = (w.hash ^ h.Sum64() ^ uint64(w.now().UnixNano())) * 1099511628211
}

func (w *world) note(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	w.event(s)
	if w.conf.Trace {
		w.trace = append(w.trace, fmt.Sprintf("%8.3f %6d ** %s", w.now().Sub(epoch).Seconds(), w.steps, s))
	}
}

func (w *world) fail(format string, args ...any) {
	w.errors = append(w.errors, fmt.Sprintf(format, args...))
	w.note("FAIL "+format, args...)
}

// sortedHits is for reports.
func sortedHits(hits map[string]int) (out []string) {
	for k, n := range hits {
		out = append(out, fmt.Sprintf("%7d %s", n, k))
	}
	slices.SortFunc(out, func(a, b string) int { return strings.Compare(a[8:], b[8:]) })
	return out
}
