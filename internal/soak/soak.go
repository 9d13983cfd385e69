package soak

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/verify"
	"github.com/streamd/streamd/internal/verify/proof"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/internal/worker"
)

//go:embed pipeline.yaml
var pipelineFile string

// ErrCheck: what came out is not what must come out. The report says what differs.
var ErrCheck = errors.New("the check failed: see the differences above")

// Times of a run.
const (
	startLimit = 90 * time.Second
	stopLimit  = 30 * time.Second
	// recoverLimit is C9: the transaction timeout of pipeline.yaml, the session timeout, and 10 s.
	recoverLimit = 10*time.Second + 45*time.Second + 10*time.Second
	checkEvery   = 30 * time.Second
	rowEvery     = 5 * time.Second
	wipeOneIn    = 4 // kills after which the worker starts with an empty state directory
)

// Config configures a run.
type Config struct {
	// Brokers and File say how the cluster is reached; File is a pipeline file whose kafka section is
	// taken, "" for none. Load says how it is read.
	Brokers []string
	File    string
	Load    daemon.LoadConfig

	Prefix     string // of all topics, and the name of the consumer group
	Partitions int32
	Accounts   int
	Rate       int           // records a second, copies included
	Workers    int           // processes
	For        time.Duration // 0: until ctx ends
	KillEvery  time.Duration // on average; 0: never
	Seed       uint64

	Yes  bool // remove what an earlier run has left behind
	Keep bool // leave topics, group and files behind

	Out  io.Writer // of the rows and the table
	Rows bool
	// Executable and Name are this program: path and argv[0].
	Executable, Name string
}

func (c Config) topic(name string) string { return c.Prefix + "-" + name }

// run is a soak under way.
type run struct {
	Config
	began   time.Time
	dir     string
	random  *rand.Rand
	cluster *rawlog.Cluster
	admin   *admin
	load    *load
	checks  *checks
	watch   *proof.Watch
	workers []*instance
	inputs  []string      // of all sub-topologies, in the order of the records' way
	lag     *proof.Result // C9, over all checkpoints
	report  Report
}

// Run runs the load. It returns a report also with ErrCheck; any other error means that the run could not
// be finished.
func Run(ctx context.Context, c Config) (report *Report, err error) {
	r := &run{Config: c, began: time.Now(), random: rand.New(rand.NewPCG(c.Seed, 2)), lag: proof.NewResult("C9", "lag reaches zero within the bound")}
	var undo []func() error
	defer func() {
		for i := len(undo) - 1; i >= 0; i-- {
			if uerr := undo[i](); uerr != nil {
				err = errors.Join(err, uerr)
			}
		}
	}()
	if undo, err = r.prepare(ctx); err != nil {
		return nil, err
	}
	r.banner()
	if err := r.soak(ctx); err != nil {
		return nil, err
	}
	if err := r.finish(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	if !r.report.OK {
		return &r.report, ErrCheck
	}
	return &r.report, nil
}

// prepare makes everything but the workers. What is to be undone comes back also with an error.
func (r *run) prepare(ctx context.Context) (undo []func() error, err error) {
	if r.dir, err = os.MkdirTemp("", "streamd-soak-"); err != nil {
		return nil, fmt.Errorf("soak: %w", err)
	}
	undo = append(undo, func() error {
		if r.Keep {
			return nil
		}
		return os.RemoveAll(r.dir)
	})
	own, reach, err := r.writeFile()
	if err != nil {
		return undo, err
	}
	if r.cluster, err = rawlog.Open(reach); err != nil {
		return undo, err
	}
	undo = append(undo, func() error { r.cluster.Close(); return nil })
	client, err := kgo.NewClient(reach.Options()...)
	if err != nil {
		return undo, fmt.Errorf("soak: %w", err)
	}
	undo = append(undo, func() error { client.Close(); return nil })
	r.admin = &admin{client: client, prefix: r.Prefix, own: own}
	found, err := r.cluster.Topics(ctx, r.Prefix+"-")
	if err != nil {
		return undo, err
	}
	if err := r.admin.clear(ctx, found, r.Yes); err != nil {
		return undo, err
	}
	undo = append(undo, func() error {
		if r.Keep {
			return nil
		}
		return r.admin.remove(ctx)
	})
	if err := r.admin.create(ctx, r.Partitions, r.topics()); err != nil {
		return undo, err
	}
	if err := await(ctx, r.cluster, r.topics()); err != nil {
		return undo, err
	}
	r.checks = newChecks(r.Config)
	if r.watch, err = proof.NewWatch(ctx, r.cluster, r.checks.add, r.topic("unique"), r.topic("totals"), r.topic("regions")); err != nil {
		return undo, err
	}
	undo = append(undo, func() error { r.watch.Stop(); return nil })
	if r.load, err = newLoad(r.Config, reach.Options()); err != nil {
		return undo, err
	}
	return append(undo, func() error { r.load.close(); return nil }), nil
}

func (r *run) banner() {
	w := r.Out
	if !r.Rows {
		return
	}
	fmt.Fprintf(w, "soak: %d records a second on %d partitions, %d workers, a kill -9 every %v, seed %d\n", r.Rate, r.Partitions, r.Workers, r.KillEvery, r.Seed)
	fmt.Fprintf(w, "topics %s-*, group %s, files in %s\n\n", r.Prefix, r.Prefix, r.dir)
	fmt.Fprintf(w, "%8s%12s%12s%12s%8s%12s%12s\n", "", "sent", "copies", "out", "kills", "p50", "p99")
}

// soak sends, kills and checks until the time is over. Nothing of it is left running.
func (r *run) soak(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, r.stopWorkers(context.WithoutCancel(ctx)))
		}
	}()
	for i := range r.Workers {
		w := &instance{run: r, number: i}
		r.workers = append(r.workers, w)
		if err := w.start(); err != nil {
			return err
		}
	}
	for _, w := range r.workers {
		if err := w.awaitReady(ctx); err != nil {
			return err
		}
	}
	sendCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	failed := make(chan error, 1)
	var sending sync.WaitGroup
	sending.Go(func() {
		if err := r.load.run(sendCtx); err != nil {
			failed <- err
		}
	})
	defer sending.Wait()
	defer stop()
	return r.loop(ctx, failed)
}

func (r *run) loop(ctx context.Context, failed <-chan error) error {
	var end <-chan time.Time
	if r.For > 0 {
		end = time.After(r.For)
	}
	kill := r.nextKill()
	row, check, look := time.NewTicker(rowEvery), time.NewTicker(checkEvery), time.NewTicker(200*time.Millisecond)
	defer row.Stop()
	defer check.Stop()
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil // what was sent is still checked
		case <-end:
			return nil
		case err := <-failed:
			return err
		case <-look.C:
			for _, w := range r.workers {
				if err := w.died(); err != nil {
					return err
				}
			}
		case <-kill:
			if err := r.killOne(); err != nil {
				return err
			}
			kill = r.nextKill()
		case <-row.C:
			r.row()
		case <-check.C:
			ok, err := r.checkpoint(context.WithoutCancel(ctx))
			if err != nil || !ok {
				return err // a difference does not go away
			}
		}
	}
}

// nextKill is between half and one and a half of KillEvery away.
func (r *run) nextKill() <-chan time.Time {
	if r.KillEvery <= 0 {
		return nil
	}
	return time.After(r.KillEvery/2 + time.Duration(r.random.Int64N(int64(r.KillEvery))))
}

// killOne kills a worker in the midst of whatever it does, and starts it again at once.
func (r *run) killOne() error {
	w := r.workers[r.random.IntN(len(r.workers))]
	if err := w.process.Kill(); err != nil {
		return err
	}
	r.report.Kills++
	if r.random.IntN(wipeOneIn) == 0 {
		if err := os.RemoveAll(w.data()); err != nil {
			return fmt.Errorf("soak: %w", err)
		}
		r.report.Wiped++
	}
	return w.start()
}

// checkpoint lets everything come to rest and compares. ok is false if something differs.
func (r *run) checkpoint(ctx context.Context) (ok bool, err error) {
	r.load.pause(true)
	defer r.load.pause(false)
	begin := time.Now()
	// One part after the other: what the first one commits is the input of the second.
	for _, topic := range r.inputs {
		result, err := proof.AwaitCaughtUp(ctx, r.cluster, r.Prefix, recoverLimit, topic)
		if err != nil {
			return false, err
		}
		r.lag.Compared += result.Compared
		for _, d := range result.First {
			r.lag.Differ(d.Where, "%s", d.What)
		}
	}
	endCtx, cancel := context.WithTimeout(ctx, recoverLimit)
	defer cancel()
	if err := r.watch.AwaitEnd(endCtx); err != nil && endCtx.Err() == nil {
		return false, err
	}
	sent, counts := r.load.expected()
	r.watch.Locked(func() {
		r.checks.complete(sent)
		ok = r.checks.ok() && r.lag.OK()
	})
	r.report.Checks++
	if r.Rows {
		verdict := "✓ each once, in order, totals exact"
		if !ok {
			verdict = "✗ there are differences"
		}
		fmt.Fprintf(r.Out, "   %s  check after %v: %d different bills, %d copies %s\n", r.clock(), time.Since(begin).Round(10*time.Millisecond), counts.Distinct, counts.Copies, verdict)
	}
	return ok, nil
}

// finish stops everything and makes the checks that want it at rest.
func (r *run) finish(ctx context.Context) error {
	r.report.Seconds = time.Since(r.began).Seconds()
	if _, err := r.checkpoint(ctx); err != nil {
		return errors.Join(err, r.stopWorkers(ctx))
	}
	if err := r.stopWorkers(ctx); err != nil {
		return err
	}
	// They have ended, so nobody needs to wait for their sessions to do so.
	if err := r.admin.leave(ctx); err != nil {
		return err
	}
	r.watch.Stop()
	results := append(r.checks.results(), r.lag)
	tasks, err := proof.CheckTasks(ctx, r.cluster, proof.App{Name: r.Prefix, Dirs: r.stateDirs(), Retention: map[string]time.Duration{"unique": window, "unique-by-region": window}})
	if err != nil {
		return err
	}
	seen, err := r.watch.Check(ctx)
	if err != nil {
		return err
	}
	quiet, err := proof.CheckQuiet(ctx, r.cluster, r.admin.own...)
	if err != nil {
		return err
	}
	bounds, err := r.cluster.Bounds(ctx, r.topic("bills"))
	if err != nil {
		return err
	}
	in := &arrivals{accounts: r.Accounts, next: make([]int32, r.Accounts)}
	if err := r.cluster.Read(ctx, rawlog.Spans(bounds), in.add); err != nil {
		return err
	}
	results = append(results, tasks.State, tasks.Offsets, seen, quiet, in.duplicates(tasks))
	r.finishReport(results)
	if !r.Rows {
		return nil
	}
	return r.report.write(r.Out)
}

// stateDirs are the directories that have a store.
func (r *run) stateDirs() []string {
	var out []string
	for _, w := range r.workers {
		dir := filepath.Join(w.data(), r.Prefix)
		if _, err := os.Stat(filepath.Join(dir, "STATE")); err == nil {
			out = append(out, dir)
		}
	}
	return out
}

func (r *run) stopWorkers(ctx context.Context) error {
	var errs []error
	for _, w := range r.workers {
		if w.process != nil {
			errs = append(errs, w.process.Stop(ctx, stopLimit))
			w.process = nil
		}
	}
	return errors.Join(errs...)
}

// instance is one worker, which lives, is killed, and lives again.
type instance struct {
	*run
	number  int
	process *worker.Process
	client  *daemon.Client
}

func (w *instance) name() string { return fmt.Sprintf("worker-%d", w.number) }

func (w *instance) data() string { return filepath.Join(w.dir, w.name()) }

func (w *instance) start() (err error) {
	// A socket's path has a limit of about 100 bytes, and the state directory may be removed.
	socket := "unix:" + filepath.Join(w.dir, w.name()+".sock")
	if w.client == nil {
		if w.client, err = daemon.NewClient(socket); err != nil {
			return err
		}
	}
	args := []string{
		"run", w.file(), "--data-dir", w.data(), "--instance-id", w.name(), "--http", daemon.Off, "--admin", socket,
		"--stop-on-eof", "--log-format", "json", "--shutdown-timeout", (stopLimit - 5*time.Second).String(),
	}
	for _, v := range w.Load.Variables {
		args = append(args, "--var", v)
	}
	for _, f := range w.Load.EnvFiles {
		args = append(args, "--env-file", f)
	}
	w.process, err = worker.Start(w.Executable, w.Name, args, filepath.Join(w.dir, w.name()+".log"))
	return err
}

// died is an error if the worker has ended although nobody has killed it.
func (w *instance) died() error {
	select {
	case <-w.process.Done():
		return fmt.Errorf("soak: %s ended by itself: %w\n%s", w.name(), errors.Join(w.process.Err()), w.process.Tail())
	default:
		return nil
	}
}

func (w *instance) awaitReady(ctx context.Context) error {
	limit := time.Now().Add(startLimit)
	for {
		if v, err := worker.Look(ctx, w.client, w.Prefix, "unique", w.topic("bills")); err == nil && v.Ready {
			return nil
		}
		if err := w.died(); err != nil {
			return err
		}
		if time.Now().After(limit) {
			return fmt.Errorf("soak: %s does not run after %v\n%s", w.name(), startLimit, w.process.Tail())
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// reach loads the pipeline file as the workers do, and says which topics it has and how the cluster is reached.
func (r *run) reach(load daemon.LoadConfig) ([]string, rawlog.Config, error) {
	pipelines, err := daemon.Load([]string{r.file()}, load)
	if err != nil {
		return nil, rawlog.Config{}, err
	}
	topo, err := pipelines[0].Topology()
	if err != nil {
		return nil, rawlog.Config{}, fmt.Errorf("soak: %w", err)
	}
	own := r.topics()
	for _, s := range topo.Subtopologies() {
		for _, x := range s.Sources {
			r.inputs = append(r.inputs, topo.SourceTopic(x))
			if x.Internal {
				own = append(own, topo.SourceTopic(x))
			}
		}
		if s.Stateful() {
			own = append(own, topo.IDLogTopic(s))
		}
		for _, st := range s.Stores {
			own = append(own, topo.StoreTopic(st.Name))
		}
	}
	reach, err := verify.Reach(pipelines[0].Kafka)
	return own, reach, err
}

func (r *run) file() string { return filepath.Join(r.dir, "pipeline.yaml") }
