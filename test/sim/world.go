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
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// Config is one run.
type Config struct {
	Seed       uint64
	Partitions int // of the input; default: by the seed, 1 to 4
	Owners     int // instances; default: by the seed, 1 to 3
	Bills      int // default: by the seed, 20 to 200
	Faults     int // events; negative: by the seed, 0 to 12, a third of the runs has one
	// KillAt, if not 0, kills the process that takes the KillAt-th step of all, and nothing else.
	KillAt int
	Trace  bool
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
	rng   *rand.Rand
	b     *simbroker.Broker
	topo  *topology.Topology
	group *membership

	owners     []*owner
	load       *loader
	faults     *faults
	watch      *observer
	partitions int
	prefetch   bool
	maxFetch   int

	incarnations uint64
	plan         []time.Time // of the events to come
	events       []event
	slowMarker   int    // so many markers to come are late
	slowWhere    int    // which: 0 any, 1 of the offsets, 2 of the changelogs
	handOver     bool   // everything changes hands at the next slow marker
	dieAt        string // a place where the next process dies
	dieAfter     int    // after so many others have passed it
	pauseAt      string // a place where the next process is stopped for a while
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

// transactionTimeout is the engine's default.
const transactionTimeout = 10 * time.Second

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
	topo, err := billsTopology()
	if err != nil {
		return nil
	}
	w := &world{
		conf: conf, rng: rand.New(rand.NewPCG(conf.Seed, 0x5eed)), b: simbroker.New(epoch), topo: topo,
		hits: map[string]int{}, hash: 14695981039346656037,
	}
	pick := func(given, low, high int) int {
		n := low + w.rng.IntN(high-low+1)
		if given > 0 {
			return given
		}
		return n
	}
	w.partitions = pick(conf.Partitions, 1, 4)
	owners := pick(conf.Owners, 1, 3)
	bills := pick(conf.Bills, 20, 200)
	w.prefetch = w.rng.IntN(2) == 0
	w.maxFetch = 200 << w.rng.IntN(8)
	setup := w.b.Client("setup")
	for _, name := range []string{billsTopic, echoTopic, totalsTopic, sumsTopic, notesTopic, copyTopic} {
		if err := setup.CreateTopic(context.Background(), broker.Topic{Name: name, Partitions: int32(w.partitions), Retention: -1}); err != nil {
			w.fail("create topic %s: %v", name, err)
		}
	}
	w.b.MarkerDelay = w.markerDelay
	w.faults = &faults{w: w, rng: w.rng}
	w.b.SetFault(w.faults.hook)
	w.group = newMembership(w)
	for i := range owners {
		w.owners = append(w.owners, &owner{w: w, instance: string(rune('a' + i)), disk: newDisk(), wanted: i == 0 || w.rng.IntN(2) == 0, restart: epoch})
	}
	lc := w.b.Client("loader")
	w.load = &loader{
		rng: w.rng, b: w.b, partitions: w.partitions, accounts: 3 + w.rng.IntN(40), left: bills, next: epoch.Add(50 * time.Millisecond),
		producer: lc.NewProducer(broker.ProducerConfig{TransactionalID: "loader"}),
	}
	w.watch = newObserver(w)
	w.events = events()
	w.planFaults(conf.Faults)
	return w
}

// planFaults draws when something happens. A third of the runs has one fault only; half of the others
// come soon after the one before: a fault during the recovery from the last one.
func (w *world) planFaults(n int) {
	if n < 0 {
		n = max(w.rng.IntN(13), w.rng.IntN(13))
		if w.rng.IntN(3) == 0 {
			n = 1
		}
	}
	at := epoch
	for range n {
		if w.rng.IntN(2) == 0 {
			at = at.Add(time.Duration(w.rng.IntN(50)) * time.Millisecond)
		} else {
			at = at.Add(time.Duration(w.rng.IntN(1500)) * time.Millisecond)
		}
		w.plan = append(w.plan, at)
	}
	// The input lasts as long as the faults, so that they meet work.
	w.load.gap = max(250*time.Millisecond, 2*at.Sub(epoch)/time.Duration(1+w.load.left/10))
}

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
		if w.quiet && w.now().Sub(w.lastFault) > recoveryLimit {
			w.fail("C9: not caught up %v after the last fault: %s", recoveryLimit, w.behind())
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
		o.kill()
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

// happen does what the plan and the input have for this moment.
func (w *world) happen(now time.Time) {
	for len(w.plan) > 0 && !now.Before(w.plan[0]) {
		w.plan = w.plan[1:]
		w.lastFault = now
		sum := 0
		for _, e := range w.events {
			sum += e.weight
		}
		k := w.rng.IntN(sum)
		for _, e := range w.events {
			if k -= e.weight; k < 0 {
				w.hit(e.name)
				w.note("event: %s", e.name)
				e.do(w)
				break
			}
		}
	}
	if len(w.plan) == 0 && w.load.left <= 0 && !w.quiet {
		w.quiet = true
		w.faults.pending, w.slowMarker, w.handOver, w.dieAt, w.pauseAt = nil, 0, false, "", ""
		w.b.DeliverHeld()
		w.b.ReleaseMarkers(func(record.TopicPartition) bool { return true })
		w.lastFault = later(w.lastFault, now)
		for _, o := range w.owners { // what was stopped or dead comes back
			w.lastFault = later(later(w.lastFault, o.paused), o.restart)
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
	now := w.now()
	o.restart = now.Add(time.Duration(w.rng.IntN(1+w.rng.IntN(15_000))) * time.Millisecond)
	if w.quiet {
		o.restart = now
	}
	w.lastFault = later(w.lastFault, o.restart)
	if w.conf.KillAt == 0 {
		w.diskFate(o)
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
		at(w.plan[0])
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

func (w *world) anyLive() *owner {
	var live []*owner
	for _, o := range w.owners {
		if o.resume != nil {
			live = append(live, o)
		}
	}
	if len(live) == 0 {
		return nil
	}
	return live[w.rng.IntN(len(live))]
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

func (w *world) anyPartition() record.TopicPartition {
	all := w.changelogs()
	for _, name := range []string{billsTopic, echoTopic, totalsTopic, sumsTopic} {
		all = append(all, record.TopicPartition{Topic: name})
	}
	return all[w.rng.IntN(len(all))]
}

func (w *world) hit(what string) { w.hits[what]++ }

// point counts the engine's own places to die at.
func (w *world) point(name string) { w.hits["point "+name]++ }

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
