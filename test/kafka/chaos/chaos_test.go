//go:build kafka

package chaos

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/streamd/streamd/test/crash"
	"github.com/streamd/streamd/test/kafkaenv"
)

// victim is a broker to kill, by what it does.
type victim struct {
	what string
	find func() (broker int, err error)
}

// victims are the brokers that matter to an application: the coordinator of its group, that of one of its transactions,
// the leader of an input partition, of a repartition topic, and of the state changelog.
func (w *world) victims() []victim {
	leader := func(topic string) func() (int, error) {
		return func() (int, error) { return brokers.Leader(w.ctx, topic, int32(w.random.IntN(partitions))) }
	}
	return []victim{
		{"coordinator of the group", func() (int, error) { return brokers.Coordinator(w.ctx, kafkaenv.Group, w.app) }},
		{"coordinator of a transaction", func() (int, error) {
			txns, err := w.transactions()
			if err != nil || len(txns) == 0 {
				return 0, err
			}
			return brokers.Coordinator(w.ctx, kafkaenv.Transaction, txns[w.random.IntN(len(txns))].id)
		}},
		{"leader of the input", leader(w.topic("in"))},
		{"leader of the state changelog", leader(w.internal("totals-changelog"))},
		{"leader of the output", leader(w.topic("totals"))},
	}
}

// killer kills processes in turn, at random moments.
type killer struct {
	w     *world
	hosts []*crash.Daemon
	left  int
	done  int
}

// kill kills up to n of them, and starts each again at once.
func (k *killer) kill(n int) {
	k.w.Helper()
	for ; n > 0 && k.left > 0; n-- {
		k.left--
		k.done++
		k.w.wait(k.w.between(200*time.Millisecond, 2*time.Second), k.hosts...)
		h := k.hosts[k.w.random.IntN(len(k.hosts))]
		h.Kill()
		k.w.start(h)
	}
}

// killBroker kills a broker with kill -9, some processes while it is dead, and starts it again.
func (k *killer) killBroker(v victim, processes int) {
	w := k.w
	w.Helper()
	w.must(brokers.InSync(w.ctx))
	b, err := v.find()
	w.must(err)
	w.Logf("kill -9 of broker %d, the %s", b, v.what)
	brokers.Kill(b)
	// Half of the time it is back before the others have noticed its death.
	back := time.Now().Add(w.between(0, 12*time.Second))
	k.kill(processes)
	w.wait(time.Until(back), k.hosts...)
	w.must(brokers.Restart(w.ctx, b))
}

// TestClusterUnderKills is the whole of it on one stream of bills: each distinct bill comes out once and in order, the
// totals are the oracle's, the local state is the fold of the changelog, and no transaction stays open.
func TestClusterUnderKills(t *testing.T) {
	kills, brokerKills, rate, limit := 10, 3, 2000, 9*time.Minute
	if soak {
		kills, brokerKills, limit = 100, 20, 40*time.Minute
	}
	w := newWorld(t, "chaos", limit)
	a, b, c := w.daemon("a"), w.daemon("b"), w.daemon("c")
	w.start(a, b, c)
	w.running(90*time.Second, tasks, a, b, c)
	// From now on compaction is never far behind.
	w.configure(w.internal("totals-changelog"), map[string]string{"segment.ms": "2000", "min.cleanable.dirty.ratio": "0.01"})
	l := w.load(rate)
	l.progress(60*time.Second, 2000)

	w.Log("c sleeps until its partitions have moved")
	w.must(c.Pause())
	k := &killer{w: w, hosts: []*crash.Daemon{a, b}, left: kills}
	vs := w.victims()
	for i := range brokerKills {
		k.kill(max(1, kills/brokerKills/2))
		k.killBroker(vs[i%len(vs)], max(1, kills/brokerKills/2))
	}
	k.kill(kills)
	w.running(2*time.Minute, tasks, a, b)
	w.Log("c wakes up")
	w.must(c.Continue())
	w.running(90*time.Second, tasks, a, b, c)
	l.progress(60*time.Second, 2000)

	w.Log("a sleeps longer than its transaction may last")
	w.must(a.Pause())
	w.wait(12*time.Second, b, c)
	w.must(a.Continue())
	l.progress(60*time.Second, 2000)

	for i := range 3 {
		w.must(brokers.InSync(w.ctx))
		w.Logf("broker %d is restarted in order", i)
		brokers.Stop(i)
		w.must(brokers.Restart(w.ctx, i))
		w.wait(0, a, b, c)
	}
	for name, d := range map[string]*crash.Daemon{"a": a, "b": b} {
		if has, err := d.LogHas("group session has ended"); err != nil || has {
			t.Errorf("%s lost its membership though it was never away for the session timeout: %v", name, err)
		}
	}

	w.Log("all directories are lost")
	for _, d := range []*crash.Daemon{a, b, c} {
		d.Kill()
	}
	a, b, c = w.daemon("a"), w.daemon("b"), w.daemon("c")
	w.start(a, b, c)
	w.running(2*time.Minute, tasks, a, b, c)
	full := 0.0
	for _, d := range []*crash.Daemon{a, b, c} {
		m, err := scrape(w.ctx, d)
		w.must(err)
		n, _ := m.Sum("streamd_restore_duration_seconds", map[string]string{"mode": "full"})
		full += n
	}
	if int(full) < tasks {
		t.Errorf("%v full restores, want %d", full, tasks)
	}
	l.progress(60*time.Second, 2000)

	want := l.finish()
	w.quiet(time.Minute)
	w.stopAll(a, b, c)
	w.checkState(a, b, c)
	w.verify(a, b, c)
	records, offsets := w.count(w.internal("totals-changelog"))
	t.Logf("%d kills of processes, %d of brokers; %d bills, %d repeats; the state changelog holds %d records of %d offsets", k.done, brokerKills, want.Distinct, want.Repeats, records, offsets)
	if records*2 > want.Distinct {
		t.Errorf("the state changelog holds %d records after %d changes: it was not compacted while this ran", records, want.Distinct)
	}
}

// verify has streamd itself compare what is left, as a user would: once for each daemon's directory.
func (w *world) verify(ds ...*crash.Daemon) {
	w.Helper()
	w.must(ds[0].EmptyGroup(w.ctx, brokers.Addresses(), w.app))
	for _, d := range ds {
		// What was processed is deleted from the repartition topic, so that the totals cannot be computed from it again.
		summary, err := d.Verify(w.ctx, "changelogs")
		w.check(err)
		w.Logf("streamd verify: %s", summary)
	}
}

// checkState compares the stores of daemons that have ended with the changelog.
func (w *world) checkState(ds ...*crash.Daemon) {
	w.Helper()
	current := 0
	for _, d := range ds {
		s, err := crash.CheckLocalState(w.ctx, brokers.Addresses(), filepath.Join(d.Dir, w.app), w.app, "totals", w.internal("totals-changelog"))
		if err != nil {
			w.Error(err)
		}
		current += s.Current
	}
	if current != partitions {
		w.Errorf("%d tasks are at the end of their changelog, want %d", current, partitions)
	}
}
