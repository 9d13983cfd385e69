package demo

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/internal/worker"
)

//go:embed pipeline.yaml
var pipelineFile []byte

// ErrCheck: the totals were not what they must be. What differs has been printed.
var ErrCheck = errors.New("the check failed: the totals are not exact")

// Times of the tour. The first kill and the first check lie within the first ten seconds.
const (
	firstKill  = 4 * time.Second
	killAfter  = 30 * time.Second // from one kill to the next
	checkAfter = 3 * time.Second  // from a kill to the check
	denseRows  = 15 * time.Second // a row a second, later one in five
	startLimit = 30 * time.Second // for a worker to run
	checkLimit = 15 * time.Second // for the totals to become right
	stopLimit  = 5 * time.Second  // for the worker's last commit
)

// Config configures the tour.
type Config struct {
	Out  io.Writer
	Dir  string        // for the pipeline file and the state; empty: a temporary one, removed at the end
	For  time.Duration // 0: until ctx ends
	HTTP string        // of the worker's page; daemon.Off: none
	Rate int           // bills a second, copies included
	Port int           // of the broker; 0: any
	Seed uint64        // of the generator
	Rows bool          // print the table
	// Executable and Name are this program: path and argv[0].
	Executable, Name string
	Version          string
}

// tour is a running demo.
type tour struct {
	Config
	dir     string
	socket  string
	broker  *embedded.Broker
	gen     *generator
	read    *reader
	client  *daemon.Client
	worker  *worker.Process
	began   time.Time
	last    worker.View
	commits uint64 // of the workers that were killed
	checks  int
}

// Run runs the tour. It returns ErrCheck if the totals were wrong.
func Run(ctx context.Context, c Config) (err error) {
	t := &tour{Config: c, began: time.Now()}
	cleanup, err := t.prepare()
	defer cleanup()
	if err != nil {
		return err
	}
	t.banner()
	if err := t.startWorker(ctx); err != nil {
		return err
	}
	defer func() {
		// Also after an error: nothing of the demo outlives it.
		if serr := t.worker.Stop(context.WithoutCancel(ctx), stopLimit); err == nil {
			err = serr
		}
	}()
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	failed := make(chan error, 1)
	var running sync.WaitGroup
	running.Go(func() { t.read.run(background) })
	running.Go(func() {
		if err := t.gen.run(background); err != nil {
			failed <- err
		}
	})
	defer running.Wait()
	defer stop()
	if err := t.tour(ctx, failed); err != nil {
		return err
	}
	return t.check(true)
}

// prepare makes everything but the worker. cleanup is never nil.
func (t *tour) prepare() (cleanup func(), err error) {
	var undo []func()
	cleanup = func() {
		for i := len(undo) - 1; i >= 0; i-- {
			undo[i]()
		}
	}
	// The socket has a short path of its own: a Unix socket's path has a limit of about 100 bytes.
	short, err := os.MkdirTemp("", "streamd-demo-")
	if err != nil {
		return cleanup, fmt.Errorf("demo: %w", err)
	}
	undo = append(undo, func() { _ = os.RemoveAll(short) })
	t.socket = "unix:" + filepath.Join(short, "admin.sock")
	t.dir = t.Dir
	if t.dir == "" {
		t.dir = short
	}
	if err := t.files(); err != nil {
		return cleanup, err
	}
	t.broker, err = embedded.Start(embedded.Config{Port: t.Port, Scratch: short, Topics: []embedded.Topic{
		{Name: inputTopic, Partitions: partitions}, {Name: outputTopic, Partitions: partitions},
	}})
	if err != nil {
		return cleanup, err
	}
	undo = append(undo, t.broker.Close)
	if t.gen, err = newGenerator(t.broker.Address(), t.Rate, t.Seed); err != nil {
		return cleanup, err
	}
	undo = append(undo, t.gen.close)
	if t.read, err = newReader(t.broker.Address()); err != nil {
		return cleanup, err
	}
	undo = append(undo, t.read.close)
	t.HTTP = freeAddress(t.HTTP)
	t.client, err = daemon.NewClient(t.socket)
	return cleanup, err
}

// files writes the pipeline file, unless the user has changed it, and drops the state of the last
// tour: the broker that it belongs to is gone.
func (t *tour) files() error {
	if err := os.MkdirAll(t.dir, 0o755); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if err := os.RemoveAll(filepath.Join(t.dir, "data")); err != nil {
		return fmt.Errorf("demo: state of the last tour: %w", err)
	}
	f, err := os.OpenFile(t.file(), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	_, err = f.Write(pipelineFile)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("demo: writing %s: %w", t.file(), err)
	}
	return nil
}

func (t *tour) file() string { return filepath.Join(t.dir, "pipeline.yaml") }

// freeAddress keeps the page's address, or takes another port if it is in use: a demo must not fail
// for a page.
func freeAddress(address string) string {
	if address == daemon.Off {
		return address
	}
	for _, a := range []string{address, "127.0.0.1:0"} {
		if l, err := net.Listen("tcp", a); err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	return daemon.Off
}

func (t *tour) banner() {
	w := t.Out
	fmt.Fprintf(w, "streamd %s demo: bills, some of them sent twice, become totals per account.\n\n", t.Version)
	fmt.Fprintf(w, "  broker    on %s          kcat -b %[1]s -t %s\n", t.broker.Address(), inputTopic)
	if t.HTTP != daemon.Off {
		fmt.Fprintf(w, "  page      http://%s                metrics at /metrics\n", t.HTTP)
	}
	fmt.Fprintf(w, "  pipeline  %s\n\n", t.file())
	fmt.Fprintf(w, "  %s --> unique (dedup) --> totals (aggregate) --> %s\n\n", inputTopic, outputTopic)
}

// startWorker starts a worker and waits until it runs all its tasks.
func (t *tour) startWorker(ctx context.Context) error {
	w, err := worker.Start(t.Executable, t.Name, []string{
		"run", t.file(), "--brokers", t.broker.Address(), "--data-dir", filepath.Join(t.dir, "data"), "--instance-id", "demo",
		"--http", t.HTTP, "--admin", t.socket, "--stop-on-eof", "--log-format", "json", "--shutdown-timeout", "4s",
	}, filepath.Join(t.dir, "worker.log"))
	if err != nil {
		return err
	}
	t.worker = w
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		select {
		case <-poll.C:
			if v, err := t.look(ctx); err == nil && v.Ready {
				t.last = v
				return nil
			}
		case <-ctx.Done():
			return nil // the check that follows waits for what it needs
		case <-w.Done():
			return fmt.Errorf("demo: the worker ended: %w\n%s", errors.Join(w.Err()), w.Tail())
		case <-limit.C:
			return errors.Join(fmt.Errorf("demo: the worker does not run after %v\n%s", startLimit, w.Tail()), w.Kill())
		}
	}
}

// look asks the worker.
func (t *tour) look(ctx context.Context) (worker.View, error) {
	return worker.Look(ctx, t.client, "bills-demo", "unique", inputTopic)
}

// tour shows rows, kills and checks until its time is over.
func (t *tour) tour(ctx context.Context, failed <-chan error) error {
	var end <-chan time.Time
	kill := firstKill
	if t.For > 0 {
		end = time.After(time.Until(t.began.Add(t.For)))
		kill = min(kill, t.For/2)
	}
	killAt := time.After(time.Until(t.began.Add(kill)))
	var checkAt <-chan time.Time
	second := time.NewTicker(time.Second)
	defer second.Stop()
	if t.Rows {
		fmt.Fprintf(t.Out, "%8s%11s%13s%11s%14s%8s%10s%13s\n", "", "in", "duplicates", "unique", "total", "lag", "commits", "p99 commit")
	}
	for rows := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-end:
			return nil
		case err := <-failed:
			return err
		case <-t.worker.Done():
			return fmt.Errorf("demo: the worker ended by itself: %w\n%s", errors.Join(t.worker.Err()), t.worker.Tail())
		case <-second.C:
			rows++
			if v, err := t.look(ctx); err == nil {
				t.last = v
			}
			if t.Rows && (time.Since(t.began) < denseRows || rows%5 == 0) {
				t.row()
			}
		case <-killAt:
			if err := t.killAndRestart(ctx); err != nil {
				return err
			}
			killAt = time.After(killAfter)
			checkAt = time.After(checkAfter)
		case <-checkAt:
			checkAt = nil
			if err := t.check(false); err != nil {
				return err
			}
		}
	}
}

// clock is the time since the start as the table shows it.
func (t *tour) clock() string {
	d := time.Since(t.began).Truncate(time.Second)
	return fmt.Sprintf("%02d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}

func (t *tour) row() {
	have, _ := t.read.totals()
	p99 := "-"
	if !math.IsNaN(t.last.P99) {
		p99 = fmt.Sprintf("%.0f ms", t.last.P99*1000)
	}
	fmt.Fprintf(t.Out, "   %s%11s%13s%11s%14s%8s%10s%13s\n", t.clock(), groupN(t.last.In), groupN(t.last.Duplicates), groupN(t.last.Unique),
		group(amount(have.all().cents)), groupN(uint64(t.last.Lag)), groupN(t.commits+t.last.Commits), p99)
}

// killAndRestart kills the worker and starts it again, as a supervisor would.
func (t *tour) killAndRestart(ctx context.Context) error {
	// What it has counted so far, so that the column goes on.
	if v, err := t.look(ctx); err == nil {
		t.last = v
	}
	t.commits += t.last.Commits
	fmt.Fprintf(t.Out, "   %s  ✗ killing the worker (kill -9 %d), on purpose\n", t.clock(), t.worker.PID())
	if err := t.worker.Kill(); err != nil {
		return err
	}
	killed := time.Now()
	if err := t.startWorker(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	replayed := t.gen.replayOld()
	mode := "tail only"
	if t.last.Full > 0 {
		mode = "in full"
	}
	running := time.Since(killed)
	fmt.Fprintf(t.Out, "   %s    restored %s changelog records (%s), all tasks run again after %.1f s\n", t.clock(), groupN(t.last.Restored), mode, running.Seconds())
	fmt.Fprintf(t.Out, "   %s    sending %s bills from before the kill once more\n", t.clock(), groupN(uint64(replayed)))
	return nil
}

// check compares what a read_committed consumer finds with what was sent. Sending pauses for it.
func (t *tour) check(last bool) error {
	t.gen.pause(true)
	defer t.gen.pause(false)
	want, sent, copies := t.gen.expected()
	sum := want.all()
	begin := time.Now()
	err := t.read.waitFor(want, checkLimit)
	t.checks++
	if err != nil {
		fmt.Fprintf(t.Out, "\n  check: ✗ after %v: %v\n", time.Since(begin).Round(time.Millisecond), err)
		return ErrCheck
	}
	have, _ := t.read.totals()
	fmt.Fprintf(t.Out, "\n  check: generator sent %s different bills worth %s (and %s copies) — streamd says %s ✓ exactly once\n",
		groupN(sum.bills), group(amount(sum.cents)), groupN(copies), group(amount(have.all().cents)))
	if last {
		fmt.Fprintf(t.Out, "  done after %v: %s records sent, %d checks, %s\n", time.Since(t.began).Round(100*time.Millisecond), groupN(sent), t.checks, "all exact")
		return nil
	}
	hint := "Ctrl-C to stop."
	if t.For > 0 {
		hint = "Ends by itself."
	}
	fmt.Fprintln(t.Out, "  "+strings.Join([]string{hint, "Next: streamd validate FILE · streamd graph FILE · streamd status --addr " + t.statusAddress()}, " "))
	fmt.Fprintln(t.Out)
	return nil
}

func (t *tour) statusAddress() string {
	if t.HTTP != daemon.Off {
		return "http://" + t.HTTP
	}
	return t.socket
}
