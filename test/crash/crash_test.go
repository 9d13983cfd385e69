//go:build kafka

package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/test/kafkaenv"
)

const partitions = 4

const totalsFile = `version: 1
name: bills-totals

kafka:
  brokers: ["BROKERS"]

types:
  Bill:
    bill_id: string
    account: string
    cents: int

sources:
  bills:
    topic: bills.raw
    format: json
    type: Bill

steps:
  - name: unique
    dedup:
      id: value.bill_id
      scope: partition
      retention: 7d

  - name: totals
    aggregate:
      by: value.account
      fields:
        bills: {count: true}
        cents: {sum: value.cents}

  - name: publish
    to:
      topic: bill.totals
      key: key
      value:
        account: key
        bills: value.bills
        cents: value.cents
`

// fixture is a cluster, the program and the random choices of a run.
type fixture struct {
	*testing.T
	ctx     context.Context
	kafka   *kafkaenv.Cluster
	program string
	file    string
	random  *rand.Rand
}

func newFixture(t *testing.T, limit time.Duration, file string) *fixture {
	return newProgramFixture(t, limit, "./cmd/streamd", file)
}

// newProgramFixture is newFixture for another program than streamd.
func newProgramFixture(t *testing.T, limit time.Duration, folder, file string) *fixture {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	seed := uint64(number("STREAMD_SEED", int(time.Now().UnixNano()&0xffffff)))
	t.Logf("STREAMD_SEED=%d", seed)
	f := &fixture{T: t, ctx: ctx, kafka: kafkaenv.Start(t), random: rand.New(rand.NewPCG(seed, 1))}
	program, err := BuildProgram(ctx, "../..", folder, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f.program, f.file = program, filepath.Join(t.TempDir(), "pipeline.yaml")
	text := strings.ReplaceAll(file, "BROKERS", strings.Join(f.kafka.Addresses(), `","`))
	if err := os.WriteFile(f.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

// daemon makes a daemon with a fresh data directory; it is killed when the test ends.
func (f *fixture) daemon(name string, args ...string) *Daemon {
	dir := f.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	defer l.Close()
	d := &Daemon{
		Program: f.program, File: f.file, Dir: filepath.Join(dir, "data"), HTTP: l.Addr().String(),
		Log: filepath.Join(dir, name+".log"), Args: args,
	}
	f.Cleanup(func() {
		d.Kill()
		if f.Failed() {
			f.Logf("the end of the log of %s:\n%s", name, d.Tail())
		}
	})
	return d
}

func (f *fixture) start(d *Daemon) {
	f.Helper()
	if err := d.Start(); err != nil {
		f.Fatal(err)
	}
}

// follow starts a reader of the topic that ends with the test.
func (f *fixture) follow(topic string, add func(where string, value []byte)) *Reader {
	r, err := NewReader(f.kafka.Addresses(), topic, partitions, add)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(r.Start(f.ctx))
	return r
}

type loaded struct {
	want Expectation
	err  error
}

// load sends the workload in the background.
func (f *fixture) load(w Workload, rate int, key func(Bill) string) <-chan loaded {
	out := make(chan loaded, 1)
	go func() {
		want, err := Loader{Brokers: f.kafka.Addresses(), Topic: "bills.raw", Rate: rate, Key: key}.Run(f.ctx, w)
		out <- loaded{want, err}
	}()
	return out
}

// pause waits between the bounds while the daemon must stay alive.
func (f *fixture) pause(d *Daemon, atLeast, atMost time.Duration) {
	f.Helper()
	timer := time.NewTimer(atLeast + time.Duration(f.random.Int64N(int64(atMost-atLeast))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.Done():
		f.Fatalf("streamd ended by itself: %v", d.err)
	case <-f.ctx.Done():
		f.Fatal(f.ctx.Err())
	}
}

// fullRestores returns how many tasks have been restored in full in this life, -1 if nobody answers yet.
func (f *fixture) fullRestores(d *Daemon) float64 {
	ctx, cancel := context.WithTimeout(f.ctx, 500*time.Millisecond)
	defer cancel()
	m, err := Scrape(ctx, d.HTTP)
	if err != nil {
		return -1
	}
	n, _ := m.Sum("streamd_restore_duration_seconds", map[string]string{"mode": "full"})
	return n
}

// awaitIdle waits until the daemons together run so many tasks and none has lag. A task that is still being restored
// shows neither lag nor counters.
func (f *fixture) awaitIdle(tasks int, daemons ...*Daemon) {
	f.Helper()
	err := poll(f.ctx, func() (string, error) {
		running, lag := 0.0, 0.0
		for _, d := range daemons {
			m, err := Scrape(f.ctx, d.HTTP)
			if err != nil {
				return err.Error(), nil
			}
			n, _ := m.Sum("streamd_tasks", map[string]string{"state": "running"})
			l, _ := m.Sum("streamd_consumer_lag_max_records", nil)
			running, lag = running+n, lag+l
		}
		if int(running) != tasks || lag > 0 {
			return fmt.Sprintf("%v of %d tasks run, lag %v", running, tasks, lag), nil
		}
		return "", nil
	})
	if err != nil {
		f.Fatal(err)
	}
}

// TestDedupUnderKills: a dedup of a million records, killed with kill -9 at random and started again at once. Every
// distinct ID comes out exactly once and in order, the local state survives each kill, and the metrics know the repeats.
func TestDedupUnderKills(t *testing.T) {
	kills := number("STREAMD_KILLS", 20)
	f := newFixture(t, 3*time.Minute+time.Duration(kills)*5*time.Second, DedupFile)
	if err := CreateTopics(f.ctx, f.kafka.Addresses(), partitions, "bills.raw", "bills.unique"); err != nil {
		t.Fatal(err)
	}
	w := Workload{Seed: f.random.Uint64(), Records: number("STREAMD_RECORDS", 1_000_000), Accounts: 5000, RepeatPercent: 5}
	check := NewOrder(w.Accounts)
	reader := f.follow("bills.unique", check.Add)
	d := f.daemon("streamd")
	f.start(d)
	// The input lasts as long as the kills, one in 1.05 s on average.
	rate := w.Records * 20 / (21 * max(kills, 1))
	input := f.load(w, rate, func(b Bill) string { return b.Account })
	scrapes := 0
	for range kills {
		f.pause(d, 100*time.Millisecond, 2*time.Second)
		switch n := f.fullRestores(d); {
		case n > 0:
			t.Fatalf("%v tasks were restored in full", n)
		case n == 0:
			scrapes++
		}
		d.Kill()
		f.start(d)
	}
	in := <-input
	if in.err != nil {
		t.Fatal(in.err)
	}
	if err := AwaitCommitted(f.ctx, f.kafka.Addresses(), "bills-dedup", "bills.raw"); err != nil {
		t.Fatal(err)
	}
	if err := reader.AwaitEnd(f.ctx); err != nil {
		t.Fatal(err)
	}
	reader.Locked(func() {
		if err := check.Verify(in.want); err != nil {
			t.Error(err)
		}
		t.Logf("%d kills, %d scrapes before them; %d records in, %d out, %d repeats", kills, scrapes, w.Records, check.Seen(), in.want.Repeats)
	})
	f.checkDedupMetrics(d, w, in.want)
	if aside, err := d.LogHas("set aside"); err != nil || aside {
		t.Errorf("local state was set aside: %v, %v", aside, err)
	}
	f.stop(d)
	f.verify("bills-dedup", []*Daemon{d}, "changelogs")
}

// stop ends daemons with SIGTERM.
func (f *fixture) stop(daemons ...*Daemon) {
	f.Helper()
	for _, d := range daemons {
		if code, err := d.Stop(20 * time.Second); err != nil || code != 0 {
			f.Errorf("after SIGTERM: exit code %d, %v", code, err)
		}
	}
}

// verify has streamd itself compare what daemons that have ended left behind, as a user would: once for each directory.
// Checks that the topology has nothing for are spared.
func (f *fixture) verify(group string, daemons []*Daemon, spared ...string) {
	f.Helper()
	if err := daemons[0].EmptyGroup(f.ctx, f.kafka.Addresses(), group); err != nil {
		f.Fatal(err)
	}
	for _, d := range daemons {
		summary, err := d.Verify(f.ctx, spared...)
		if err != nil {
			f.Error(err)
		}
		f.Logf("streamd verify: %s", summary)
	}
}

// checkDedupMetrics: the counters are part of the committed state, so they are exact after any number of kills.
func (f *fixture) checkDedupMetrics(d *Daemon, w Workload, want Expectation) {
	f.Helper()
	f.awaitIdle(partitions, d)
	m, err := Scrape(f.ctx, d.HTTP)
	if err != nil {
		f.Fatal(err)
	}
	for _, c := range []struct {
		name string
		want int64
	}{
		{"streamd_dedup_duplicates_total", want.Repeats},
		{"streamd_dedup_checked_records_total", int64(w.Records)},
		{"streamd_consumed_records_total", int64(w.Records)},
		{"streamd_produced_records_total", want.Distinct},
	} {
		if got, _ := m.Sum(c.name, nil); int64(got) != c.want {
			f.Errorf("%s is %v, want %d", c.name, got, c.want)
		}
	}
	if n, _ := m.Sum("streamd_restore_duration_seconds", map[string]string{"mode": "full"}); n != 0 {
		f.Errorf("%v full restores", n)
	}
}

// TestTotalsAcrossInstances: dedup, then totals per account behind a repartition topic, on two instances. One is killed and
// starts elsewhere with nothing but its name, then the other one elsewhere under a new name. The totals are the oracle's.
func TestTotalsAcrossInstances(t *testing.T) {
	f := newFixture(t, 3*time.Minute, totalsFile)
	if err := CreateTopics(f.ctx, f.kafka.Addresses(), partitions, "bills.raw", "bill.totals"); err != nil {
		t.Fatal(err)
	}
	w := Workload{Seed: f.random.Uint64(), Records: 400_000, Accounts: 2000, RepeatPercent: 10}
	check := NewTotals(w.Accounts)
	reader := f.follow("bill.totals", check.Add)
	a, b := f.daemon("a", "--instance-id", "a"), f.daemon("b", "--instance-id", "b")
	f.start(a)
	f.start(b)
	input := f.load(w, 20_000, func(b Bill) string { return b.ID }) // an account's bills are in every partition
	f.pause(a, 3*time.Second, 5*time.Second)
	a.Kill()
	again := f.daemon("a-elsewhere", "--instance-id", "a")
	f.start(again)
	f.pause(again, 4*time.Second, 6*time.Second)
	b.Kill()
	other := f.daemon("c", "--instance-id", "c")
	f.start(other)
	in := <-input
	if in.err != nil {
		t.Fatal(in.err)
	}
	if err := AwaitCommitted(f.ctx, f.kafka.Addresses(), "bills-totals", "bills.raw"); err != nil {
		t.Fatal(err)
	}
	// What the totals still have to read is known only by what comes out: a loss ends here, at the limit of the test.
	limit, cancel := context.WithTimeout(f.ctx, time.Minute)
	defer cancel()
	if err := reader.AwaitCount(limit, check.Seen, in.want.Distinct); err != nil {
		t.Error(err)
	}
	f.awaitIdle(2*partitions, again, other) // of both sub-topologies
	if err := reader.AwaitEnd(f.ctx); err != nil {
		t.Fatal(err)
	}
	reader.Locked(func() {
		if err := check.Verify(in.want); err != nil {
			t.Error(err)
		}
		t.Logf("%d records in, %d out, %d repeats", w.Records, check.Seen(), in.want.Repeats)
	})
	f.stop(again, other)
	f.checkLocalState(a, again, b, other)
	f.verify("bills-totals", []*Daemon{again, other}, "changelogs") // its input is deleted once it is processed
}

// checkLocalState: what any of the daemons has on disk is the fold of the changelog to its position, and together the
// last owners hold all partitions at their ends.
func (f *fixture) checkLocalState(daemons ...*Daemon) {
	f.Helper()
	current := 0
	for _, d := range daemons {
		got, err := CheckLocalState(f.ctx, f.kafka.Addresses(), filepath.Join(d.Dir, "bills-totals"), "bills-totals", "totals", "bills-totals-totals-changelog")
		if err != nil {
			f.Errorf("%s: %v", filepath.Base(d.Log), err)
			continue
		}
		f.Logf("%s: %+v", filepath.Base(d.Log), got)
		current += got.Current
	}
	if current < partitions {
		f.Errorf("the stores of %d tasks are at the end of their changelogs, want %d", current, partitions)
	}
}
