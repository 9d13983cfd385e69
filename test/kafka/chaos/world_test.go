//go:build kafka

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/test/crash"
	"github.com/streamd/streamd/test/kafkaenv"
)

// partitions of each topic, and so tasks of each sub-topology.
const partitions = 4

// tasks that a world's pipeline has: dedup, and totals behind a repartition topic.
const tasks = 2 * partitions

const pipelineFile = `version: 1
name: APP

kafka:
  brokers: ["BROKERS"]

types:
  Bill:
    bill_id: string
    account: string
    n: int
    cents: int

sources:
  bills:
    topic: APP.in
    format: json
    type: Bill

steps:
  - name: unique
    dedup:
      id: value.bill_id
      scope: partition
      retention: 7d

  - name: echo
    from: unique
    to:
      topic: APP.unique

  - name: totals
    from: unique
    aggregate:
      by: value.account
      fields:
        bills: {count: true}
        cents: {sum: value.cents}

  - name: publish
    to:
      topic: APP.totals
      key: key
      value:
        account: key
        bills: value.bills
        cents: value.cents
`

// brokers is the cluster of all tests here, program the daemon: both are made once, by TestMain.
var (
	brokers *kafkaenv.Cluster
	program string
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "streamd-chaos-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if program, err = crash.BuildDaemon(ctx, "../../..", dir); err != nil {
		return 1, err
	}
	if brokers, err = kafkaenv.New(ctx, dir, kafkaenv.Brokers(3), kafkaenv.Property("log.cleaner.backoff.ms", "500")); err != nil {
		return 1, err
	}
	defer brokers.Close()
	return m.Run(), nil
}

// soak says whether there is time.
var soak = os.Getenv("STREAMD_SOAK") == "1"

// world is one application on the cluster.
type world struct {
	*testing.T
	ctx    context.Context
	app    string
	file   string
	random *rand.Rand
	want   crash.Expectation // of the first send
}

func newWorld(t *testing.T, app string, limit time.Duration) *world {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	seed := uint64(time.Now().UnixNano() & 0xffffff)
	if n, err := strconv.ParseUint(os.Getenv("STREAMD_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("STREAMD_SEED=%d", seed)
	w := &world{T: t, ctx: ctx, app: app, file: filepath.Join(t.TempDir(), "pipeline.yaml"), random: rand.New(rand.NewPCG(seed, 4))}
	text := strings.NewReplacer("BROKERS", strings.Join(brokers.Addresses(), `","`), "APP", app).Replace(pipelineFile)
	if err := os.WriteFile(w.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.must(crash.CreateTopics(ctx, brokers.Addresses(), partitions, w.topic("in"), w.topic("unique"), w.topic("totals")))
	return w
}

// accounts of the workloads.
const accounts = 2000

// send sends a small workload as a whole.
func (w *world) send(seed uint64, records int) {
	w.Helper()
	want, err := crash.Loader{
		Brokers: brokers.Addresses(), Topic: w.topic("in"), Key: func(b crash.Bill) string { return b.Account },
	}.Run(w.ctx, crash.Workload{Seed: seed, Records: records, Accounts: accounts, RepeatPercent: 10})
	w.must(err)
	if w.want.Bills == nil {
		w.want = want
	}
}

// retry does something again until it succeeds.
func retry(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (w *world) check(err error) {
	w.Helper()
	if err != nil {
		w.Error(err)
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// topic is one that the user makes, internal one that streamd makes.
func (w *world) topic(name string) string    { return w.app + "." + name }
func (w *world) internal(name string) string { return w.app + "-" + name }

// daemon makes an instance with an empty directory; it is killed when the test ends.
func (w *world) daemon(instance string) *crash.Daemon {
	dir := w.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	defer l.Close()
	d := &crash.Daemon{
		Program: program, File: w.file, Dir: filepath.Join(dir, "data"), HTTP: l.Addr().String(), Log: filepath.Join(dir, "log"),
		Args: []string{"--instance-id", instance},
	}
	w.Cleanup(func() {
		d.Kill()
		if w.Failed() {
			w.Logf("the end of the log of %s:\n%s", instance, d.Tail())
		}
	})
	return d
}

func (w *world) start(ds ...*crash.Daemon) {
	w.Helper()
	for _, d := range ds {
		w.must(d.Start())
	}
}

// wait lets time pass while the daemons must stay alive.
func (w *world) wait(d time.Duration, alive ...*crash.Daemon) {
	w.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.ctx.Done():
		w.Fatal(w.ctx.Err())
	}
	for _, d := range alive {
		if !d.Running() {
			code, signal, _ := d.Ended()
			w.Fatalf("%s ended by itself: exit code %d, signal %v", d.Args[len(d.Args)-1], code, signal)
		}
	}
}

// between draws a time.
func (w *world) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.random.Int64N(int64(most-least)))
}

// until waits for a condition; what names it, and says how it stands if it does not come.
func (w *world) until(limit time.Duration, ok func() (done bool, how string)) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, limit)
	defer cancel()
	for {
		done, how := ok()
		if done {
			return
		}
		select {
		case <-ctx.Done():
			w.Fatalf("not within %v: %s", limit, how)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// running waits until the daemons together run so many tasks.
func (w *world) running(limit time.Duration, want int, ds ...*crash.Daemon) {
	w.Helper()
	w.until(limit, func() (bool, string) {
		n := 0.0
		for _, d := range ds {
			m, err := scrape(w.ctx, d)
			if err != nil {
				return false, err.Error()
			}
			x, _ := m.Sum("streamd_tasks", map[string]string{"state": "running"})
			n += x
		}
		return int(n) == want, fmt.Sprintf("%v of %d tasks run", n, want)
	})
}

func scrape(ctx context.Context, d *crash.Daemon) (crash.Metrics, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return crash.Scrape(ctx, d.HTTP)
}

// load is a workload under way, and its judges.
type load struct {
	w      *world
	stop   chan struct{}
	done   chan struct{}
	want   crash.Expectation
	err    error
	order  *crash.Order
	totals *crash.Totals
	unique *crash.Reader
	sums   *crash.Reader
}

// load sends bills until finish. The judges follow the output while the faults happen.
func (w *world) load(rate int) *load {
	w.Helper()
	wl := crash.Workload{Seed: w.random.Uint64(), Records: 100_000_000, Accounts: accounts, RepeatPercent: 10}
	l := &load{w: w, stop: make(chan struct{}), done: make(chan struct{}), order: crash.NewOrder(accounts), totals: crash.NewTotals(accounts)}
	l.unique = w.follow(w.topic("unique"), l.order.Add)
	l.sums = w.follow(w.topic("totals"), l.totals.Add)
	go func() {
		defer close(l.done)
		l.want, l.err = crash.Loader{
			Brokers: brokers.Addresses(), Topic: w.topic("in"), Rate: rate, Key: func(b crash.Bill) string { return b.Account }, Stop: l.stop,
		}.Run(w.ctx, wl)
	}()
	return l
}

func (w *world) follow(topic string, add func(where string, value []byte)) *crash.Reader {
	w.Helper()
	r, err := crash.NewReader(brokers.Addresses(), topic, partitions, add)
	w.must(err)
	w.Cleanup(r.Start(w.ctx))
	return r
}

// progress waits until more totals have come out.
func (l *load) progress(limit time.Duration, more int64) {
	l.w.Helper()
	seen := func() (n int64) {
		l.sums.Locked(func() { n = l.totals.Seen() })
		return n
	}
	from := seen()
	l.w.until(limit, func() (bool, string) {
		n := seen()
		return n >= from+more, fmt.Sprintf("%d of %d more totals", n-from, more)
	})
}

// healLimit is C9: the session timeout, the transaction timeout, both the defaults, and 10 s.
const healLimit = 45*time.Second + 10*time.Second + 10*time.Second

// finish ends the sending, waits until all is processed, and judges it.
func (l *load) finish() crash.Expectation {
	w := l.w
	w.Helper()
	close(l.stop)
	<-l.done
	w.must(l.err)
	took, err := crash.Within(w.ctx, healLimit, 5*time.Minute, func(ctx context.Context) error {
		return errors.Join(crash.AwaitCommitted(ctx, brokers.Addresses(), w.app, w.topic("in")),
			l.sums.AwaitCount(ctx, l.totals.Seen, l.want.Distinct), l.unique.AwaitEnd(ctx), l.sums.AwaitEnd(ctx))
	})
	w.must(err)
	w.Logf("all through %v after the last one was sent, the bound is %v", took.Round(time.Millisecond), healLimit)
	l.unique.Locked(func() { w.check(l.order.Verify(l.want)) })
	l.sums.Locked(func() { w.check(l.totals.Verify(l.want)) })
	return l.want
}

// stopAll ends the daemons with SIGTERM.
func (w *world) stopAll(ds ...*crash.Daemon) {
	w.Helper()
	for _, d := range ds {
		if code, err := d.Stop(30 * time.Second); err != nil || code != 0 {
			w.Errorf("after SIGTERM: exit code %d, %v", code, err)
		}
	}
}
