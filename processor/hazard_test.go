package processor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/txlog"
)

// TestTaskStaysWithTheWorkerThatStillHasIt: a worker waits for disk space to apply a committed
// transaction, and meanwhile its task is lost and assigned again. Were it given to another worker, that
// one would restore it and go on, and then the old batch would be applied over the newer state.
func TestTaskStaysWithTheWorkerThatStillHasIt(t *testing.T) {
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"))
	u := topology.Dedup(in, "unique", topology.Retention(time.Hour))
	sum := topology.Aggregate(u, "totals", serde.Int64(), func(a int64, r record.Record[string, int64]) (int64, error) { return a + r.Value, nil })
	topology.To(sum, "out", serde.String(), serde.Int64())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, topo)
	meanwhile := func() {}
	s, err := NewStepper(context.Background(), w.topo, Env{
		Cluster: w.b.Client("life"), Local: w.disk, Instance: "a", Now: w.b.Now,
		Sleep: func(ctx context.Context, d time.Duration) error {
			w.b.Advance(d)
			f := meanwhile
			meanwhile = func() {}
			f()
			return ctx.Err()
		},
		Incarnation: func() uint64 { w.inc++; return w.inc },
	}, WithWorkers(2), optionFunc(func(c *config) { c.lag = 0 }))
	if err != nil {
		t.Fatal(err)
	}
	step := func(workers ...int) {
		for range 200 {
			for _, i := range workers {
				if err := s.Step(context.Background(), i); err != nil {
					t.Fatalf("worker %d: %v", i, err)
				}
			}
			w.b.Advance(5 * time.Millisecond)
		}
	}
	g := w.b.Group("app")
	g.Add("a", s.CoPartitioned(), s)
	for i := range 2 {
		if err := s.Start(context.Background(), i); err != nil {
			t.Fatal(err)
		}
	}
	g.Rebalance(context.Background(), g.Spread())
	step(0, 1)
	const name = "in/1"
	owner := s.tasks[name].worker.id
	if owner == 0 {
		t.Fatal("the test wants the task on worker 1")
	}
	meanwhile = func() {
		g.Remove("a") // the session times out: all is lost, and only this task comes back
		g.Add("a", s.CoPartitioned(), s)
		g.Rebalance(context.Background(), map[string][]record.TopicPartition{"a": {{Topic: "in", Partition: 1}}})
		w.send(1, "k", "2", 1)
		step(1 - owner)
	}
	w.disk.tasks[name].fail = txlog.ErrDiskFull
	w.send(1, "k", "1", 1)
	step(0, 1)
	w.send(1, "another", "3", 1) // the next commit, with which the position looks right again
	step(0, 1)
	s = w.live()
	w.settle(s)
	w.send(1, "k", "4", 1)
	w.settle(s)
	if got, want := w.read("out"), []string{"k=1", "k=2", "another=1", "k=3"}; !slices.Equal(got, want) {
		t.Errorf("out: %v, want %v", got, want)
	}
}

// TestDiskFillsUpDuringASeal: like any other write of the local store it is done later.
func TestDiskFillsUpDuringASeal(t *testing.T) {
	w := newWorld(t, totals(t))
	s := w.live()
	full := true
	tries := 0
	for n := range 6 {
		w.send(0, "k", fmt.Sprint(n), 1)
		w.settle(s)
		for _, task := range w.disk.tasks {
			task.log("unique").SealStep = func() error {
				tries++
				if full {
					return fmt.Errorf("seal: %w", txlog.ErrDiskFull)
				}
				return nil
			}
		}
		full = n < 4
		w.b.Advance(20 * time.Minute)
	}
	if tries < 2 {
		t.Errorf("%d tries to seal", tries)
	}
	if got := w.read("echo"); len(got) != 6 {
		t.Errorf("echo: %v", got)
	}
}

// TestDropOfAPausedTask: what was read under an old generation is dropped, also while the disk is full. (CRASH 16)
func TestDropOfAPausedTask(t *testing.T) {
	w := newWorld(t, totals(t))
	s := w.live()
	w.settle(s)
	w.send(0, "k", "1", 1)
	wk := s.workers[0]
	for range 100 {
		if err := wk.step(context.Background()); err != nil {
			t.Fatal(err)
		}
		if wk.open && wk.records {
			break
		}
	}
	if !wk.records {
		t.Fatal("no open transaction")
	}
	w.disk.low = true
	if err := wk.step(context.Background()); err != nil {
		t.Fatal(err)
	}
	g := w.b.Group("app")
	g.Rebalance(context.Background(), g.Spread())
	if err := wk.step(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, r := range wk.runs {
		if r.task.dirty() && !wk.open {
			t.Errorf("task %s keeps effects of a transaction that was dropped", r.name)
		}
	}
	w.disk.low = false
	w.settle(s)
	if got := w.read("out"); len(got) != 1 {
		t.Errorf("out: %v", got)
	}
}

// TestStopOnAFullDisk: a stop does not wait for space, since nothing is lost without the last commit.
func TestStopOnAFullDisk(t *testing.T) {
	w := newWorld(t, totals(t))
	s := w.live()
	w.settle(s)
	w.send(0, "k", "1", 1)
	wk := s.workers[0]
	for range 100 {
		if err := wk.step(context.Background()); err != nil {
			t.Fatal(err)
		}
		if wk.records {
			break
		}
	}
	w.disk.low = true
	slept := 0
	wk.engine.sleep = func(context.Context, time.Duration) error { slept++; return nil }
	for _, task := range w.disk.tasks {
		task.fail = txlog.ErrDiskFull
	}
	s.Stop()
	for range 10 {
		if err := wk.step(context.Background()); err != nil {
			t.Fatal(err)
		}
		if s.Stopped(0) {
			break
		}
	}
	if slept > 0 || !s.Stopped(0) {
		t.Errorf("stopped %v after %d sleeps", s.Stopped(0), slept)
	}
}

// TestStrangeTimestamps: a producer can send any 64 bits.
func TestStrangeTimestamps(t *testing.T) {
	w := newWorld(t, totals(t))
	w.opts = []Option{WithErrorPolicy(topology.PolicySkip, "")}
	s := w.live()
	for i, ms := range []int64{-1, 0, -1 << 62, 1<<63 - 1, -1 << 63, 253402300800000, -62135596800001} {
		for range 2 {
			w.b.Append(record.TopicPartition{Topic: "in", Partition: 0}, broker.Record{
				Key: []byte("k"), Value: []byte{0, 0, 0, 0, 0, 0, 0, 1}, Timestamp: time.UnixMilli(ms),
				Headers: record.Headers{{Key: "id", Value: []byte(fmt.Sprint(i))}},
			})
		}
		w.settle(s)
	}
	late := 2 // the two from before the age of the window
	if got := w.read("echo"); len(got) < 7-late-1 {
		t.Errorf("echo: %v", got)
	}
	w.settle(w.live())
	w.disk = newMemoryLog()
	s = w.live()
	w.settle(s)
	w.send(0, "k", "last", 1)
	w.settle(s)
	out := w.read("out")
	if n := len(out); n < 7-late || out[n-1] != fmt.Sprintf("k=%d", n) {
		t.Errorf("out: %v", out)
	}
}

// TestOnlyMarkers: an input in which there is nothing to see still moves on, and is committed.
func TestOnlyMarkers(t *testing.T) {
	w := newWorld(t, totals(t))
	s := w.live()
	w.settle(s)
	p := w.b.Client("other").NewProducer(broker.ProducerConfig{TransactionalID: "other"})
	for range 3 {
		if err := p.Init(context.Background()); err != nil {
			t.Fatal(err)
		}
		p.Add(broker.Output{TopicPartition: record.TopicPartition{Topic: "in", Partition: 0}, Key: []byte("k"), Value: []byte("not a number"), Timestamp: w.b.Now()})
		// Refused by the group, after the record was produced: the next Init aborts it.
		offset := broker.OffsetCommit{TopicPartition: record.TopicPartition{Topic: "in", Partition: 0}, Next: 1}
		if _, outcome, err := p.Commit(context.Background(), broker.GroupMeta{Group: "nobody", Generation: 1}, []broker.OffsetCommit{offset}); err == nil {
			t.Fatalf("outcome %v", outcome)
		}
		p.Reset()
	}
	if err := p.Init(context.Background()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		w.settle(s)
	}
	for _, task := range s.Status().Tasks {
		for _, in := range task.Inputs {
			if in.Lag != 0 || in.Topic == "in" && in.Partition == 0 && in.Next < 3 {
				t.Errorf("%s: lag %d, next %d", task.Name, in.Lag, in.Next)
			}
		}
	}
	w.settle(w.live())
}

// TestOverlayIsAMap: whatever records do, fail and abort, the store is what a map would be.
func TestOverlayIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		local := &memoryTask{}
		_ = local.Reset()
		o := newOverlay("s", local, 1<<20)
		committed, txn := map[string]string{}, map[string]string{}
		copyOf := func(m map[string]string) map[string]string {
			out := map[string]string{}
			for k, v := range m {
				out[k] = v
			}
			return out
		}
		key := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", ""})
		for range rapid.IntRange(1, 30).Draw(t, "records") {
			before := copyOf(txn)
			for range rapid.IntRange(0, 6).Draw(t, "ops") {
				k := key.Draw(t, "key")
				switch rapid.IntRange(0, 3).Draw(t, "op") {
				case 0:
					v := rapid.SampledFrom([]string{"", "1", "22", "333"}).Draw(t, "value")
					if err := o.Put([]byte(k), []byte(v)); err != nil {
						t.Fatal(err)
					}
					txn[k] = v
				case 1:
					if err := o.Put([]byte(k), nil); err != nil {
						t.Fatal(err)
					}
					delete(txn, k)
				case 2:
					got, err := o.Get([]byte(k))
					want, ok := txn[k]
					if err != nil || (got != nil) != ok || string(got) != want {
						t.Fatalf("get %q: %q, want %q, %v", k, got, want, ok)
					}
				case 3:
					from, to := key.Draw(t, "from"), key.Draw(t, "to")
					limit := rapid.IntRange(1, 7).Draw(t, "limit")
					var got, want []string
					_ = o.Range([]byte(from), []byte(to), func(k, v []byte) bool {
						got = append(got, string(k)+"="+string(v))
						return len(got) < limit
					})
					for k, v := range txn {
						if k >= from && k < to {
							want = append(want, k+"="+v)
						}
					}
					slices.Sort(want)
					if len(want) > limit {
						want = want[:limit]
					}
					if !slices.Equal(got, want) {
						t.Fatalf("range %q..%q: %v, want %v", from, to, got, want)
					}
				}
			}
			switch rapid.IntRange(0, 5).Draw(t, "then") {
			case 0:
				o.undo()
				txn = before
			case 1, 2:
				o.keep()
			case 3:
				o.keep()
				b := record.Batch{State: o.appendChanges(nil, &arena{})}
				for i := range b.State {
					b.State[i].Value = bytes.Clone(b.State[i].Value)
				}
				_ = local.Apply(&b)
				if rapid.Bool().Draw(t, "rotate") {
					o.bytes = cacheBytes + 1
				}
				o.commit()
				committed = copyOf(txn)
			case 4, 5:
				if rapid.Bool().Draw(t, "failed") {
					o.undo()
				} else {
					o.keep()
				}
				o.abort()
				txn = copyOf(committed)
			}
		}
		changed := 0
		for _, e := range o.dirty {
			changed += len(e.key) + len(e.value)
		}
		if changed != o.changed {
			t.Fatalf("%d bytes changed, counted %d", changed, o.changed)
		}
		for k, e := range o.young {
			if e.key != k || e.dirty != slices.Contains(o.dirty, e) {
				t.Fatalf("key %q: dirty %v", k, e.dirty)
			}
		}
	})
}

// TestCountersOfStatelessTasks: they do not go back when a task recovers.
func TestCountersOfStatelessTasks(t *testing.T) {
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"))
	topology.To(in, "echo", serde.String(), serde.Int64())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, topo)
	s := w.live()
	for i := range 5 {
		w.send(0, "k", fmt.Sprint(i), 1)
	}
	w.settle(s)
	consumed := func() uint64 {
		for _, v := range s.stats.tasks {
			if n := counterValue(v.counters, counterConsumedRecords, "in"); n > 0 {
				return n
			}
		}
		return 0
	}
	if got := consumed(); got != 5 {
		t.Fatalf("consumed %d", got)
	}
	if err := s.workers[0].recover(context.Background(), broker.GroupMeta{}, broker.ErrAbortable); err != nil {
		t.Fatal(err)
	}
	w.settle(s)
	w.send(0, "k", "x", 1)
	w.settle(s)
	if got := consumed(); got != 6 {
		t.Errorf("consumed %d after a recovery, want 6", got)
	}
	for n, verdict := range []simbroker.Verdict{simbroker.LoseAnswer, simbroker.LoseRequest} {
		lost := false
		w.b.SetFault(func(c simbroker.Call) simbroker.Action {
			if c.API != simbroker.EndTxn || lost {
				return simbroker.Action{}
			}
			lost = true
			return simbroker.Action{Verdict: verdict}
		})
		w.send(0, "k", fmt.Sprint("y", n), 1)
		w.settle(s)
		if got := consumed(); got != uint64(7+n) || !lost {
			t.Errorf("consumed %d after a commit in doubt (verdict %v), want %d", got, verdict, 7+n)
		}
	}
}

// TestResetWaitsForASeal: a seal that is under way would write what it knows of the old content into the
// store that is being filled anew.
func TestResetWaitsForASeal(t *testing.T) {
	w := newWorld(t, totals(t))
	s := w.live()
	w.send(0, "k", "0", 1)
	w.settle(s)
	sealing, goOn := make(chan struct{}), make(chan struct{})
	var begun, ended atomic.Bool
	store := w.disk.tasks["in/0"]
	store.log("unique").SealStep = func() error {
		if !begun.Swap(true) {
			close(sealing)
			<-goOn
			ended.Store(true)
		}
		return nil
	}
	var jobs sync.WaitGroup
	s.engine.background = func(job func()) { jobs.Go(job) }
	w.b.Advance(20 * time.Minute)
	w.send(0, "k", "1", 1)
	w.settle(s)
	<-sealing
	store.beforeReset = func() {
		if !ended.Load() {
			t.Error("the store is reset during a seal")
		}
	}
	for _, r := range s.workers[0].runs {
		if r.name == "in/0" {
			r.task.Abort()
			r.state, r.restore = TaskRecovering, &restoration{started: w.b.Now(), full: true}
		}
	}
	time.AfterFunc(50*time.Millisecond, func() { close(goOn) })
	w.settle(s)
	jobs.Wait()
	w.send(0, "k", "1", 1)
	w.send(0, "k", "2", 1)
	w.settle(s)
	if got := w.read("out"); len(got) != 3 {
		t.Errorf("out: %v", got)
	}
}

// deadCluster is one whose brokers stop answering once a transaction is to be committed.
type deadCluster struct {
	broker.Cluster
	asked chan struct{}
}

func (c deadCluster) NewProducer(conf broker.ProducerConfig) broker.Producer {
	return &deadProducer{Producer: c.Cluster.NewProducer(conf), asked: c.asked}
}

type deadProducer struct {
	broker.Producer
	asked chan struct{}
}

func (p *deadProducer) Commit(ctx context.Context, _ broker.GroupMeta, _ []broker.OffsetCommit) (broker.Receipt, broker.Outcome, error) {
	select {
	case p.asked <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return broker.Receipt{}, broker.NotCommitted, ctx.Err()
}

// TestRunEndsWithoutBrokers: a program that embeds an App must be able to end when its brokers are gone.
func TestRunEndsWithoutBrokers(t *testing.T) {
	w := newWorld(t, totals(t))
	asked := make(chan struct{}, 1)
	app, err := New(w.topo, WithStateDir(t.TempDir()), WithInstanceID("a"), WithWorkers(1), WithShutdownTimeout(100*time.Millisecond),
		optionFunc(func(c *config) { c.cluster = deadCluster{w.b.Client("app"), asked} }))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- app.Run(ctx) }()
	g := w.b.Group("app")
	deadline := time.Now().Add(20 * time.Second)
	for len(g.Instances()) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("no member")
		}
		_ = app.Status() // at any time, from anywhere
		time.Sleep(time.Millisecond)
	}
	w.send(0, "k", "1", 1)
	g.Rebalance(ctx, g.Spread())
	select {
	case <-asked:
	case <-time.After(20 * time.Second):
		t.Fatalf("no commit: %+v", app.Status())
	}
	stop()
	select {
	case err := <-ended:
		if !errors.Is(err, ErrStopTimeout) {
			t.Errorf("error %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Run does not end")
	}
}

// TestCompleteStoreWithoutCommits: a store that was complete at its start knows how old it is, even if
// nothing was committed since, and is brought up to date by its tail.
func TestCompleteStoreWithoutCommits(t *testing.T) {
	w := newWorld(t, totals(t))
	w.settle(w.live())
	mine := w.disk
	g := w.b.Group("app")
	g.Remove("a")
	w.instance, w.disk = "b", newMemoryLog()
	s := w.live()
	w.send(0, "k", "1", 1)
	w.settle(s)
	g.Remove("b")
	w.instance, w.disk = "a", mine
	s = w.live()
	w.settle(s)
	for _, task := range s.Status().Tasks {
		if task.RestoreMode == modeFull {
			t.Errorf("task %s was restored in full", task.Name)
		}
	}
	w.send(0, "k", "1", 1)
	w.send(0, "k", "2", 1)
	w.settle(s)
	if got := w.read("out"); len(got) != 2 || got[1] != "k=2" {
		t.Errorf("out: %v", got)
	}
}

// TestPartitionsAddedWhileRunning: nothing is processed beside a partition that nobody has.
func TestPartitionsAddedWhileRunning(t *testing.T) {
	w := newWorld(t, totals(t))
	s := w.live()
	w.send(0, "k", "1", 1)
	w.settle(s)
	w.b.AddPartitions("in", 3)
	g := w.b.Group("app")
	g.Rebalance(context.Background(), g.Spread())
	wantError(t, w.stepUntil(s), ErrTopics, `input topic "in" has a partition 2`, "it had 2 partitions")
}

// TestLargeStateEndsATransaction: a transaction is bounded by what it changes too, not only by what comes in
// and goes out: it has to fit into memory, and be sent before its deadline.
func TestLargeStateEndsATransaction(t *testing.T) {
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"))
	topology.Aggregate(in, "large", serde.Bytes(), func([]byte, record.Record[string, int64]) ([]byte, error) { return make([]byte, 100<<10), nil })
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, topo)
	s := w.live()
	for i := range 400 {
		w.send(0, fmt.Sprint("k", i), fmt.Sprint(i), 1)
	}
	most := 0
	for range 300 {
		if err := s.Step(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		for _, r := range s.workers[0].runs {
			if r.task != nil {
				size := r.task.bytes + r.task.outBytes
				for _, s := range r.task.stores {
					for _, e := range s.dirty {
						size += len(e.key) + len(e.value)
					}
				}
				most = max(most, size)
			}
		}
	}
	w.settle(s)
	if limit := s.engine.cfg.maxBytes + 2<<20; most > limit {
		t.Errorf("a transaction of %d bytes, the limit is about %d", most, limit)
	}
	if n := w.disk.tasks["in/0"].store("large").Len(); n != 400 {
		t.Errorf("%d keys", n)
	}
}
