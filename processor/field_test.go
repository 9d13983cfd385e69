package processor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// The tests of this file are faults that other systems had; test/FIELD.md lists them by number.

type counted = record.Record[string, int64]

// counting is dedup, then user code that sees every record, then the count of each key.
func counting(t *testing.T, saw func(counted)) *topology.Topology {
	t.Helper()
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"))
	seen := topology.MapValues(topology.Dedup(in, "unique", topology.Retention(time.Hour)), func(r counted) (int64, error) {
		saw(r)
		return r.Value, nil
	})
	n := topology.Aggregate(seen, "numbers", serde.Int64(), func(n int64, r counted) (int64, error) { return n + 1, nil })
	topology.To(n, "out", serde.String(), serde.Int64())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// member starts a process with a disk of its own and gives it its share. A fetch brings at most so many
// bytes of a partition (0: as usual), so that a restore takes several steps.
func (w *world) member(instance string, disk LocalLog, maxFetch int) *Stepper {
	w.t.Helper()
	w.lives++
	c := w.b.Client(fmt.Sprintf("life-%d", w.lives))
	c.MaxFetch = maxFetch
	s, err := NewStepper(context.Background(), w.topo, Env{
		Cluster: c, Local: disk, Instance: instance, Now: w.b.Now,
		Sleep:       func(ctx context.Context, d time.Duration) error { w.b.Advance(d); return ctx.Err() },
		Incarnation: func() uint64 { w.inc++; return w.inc },
		Call:        w.call,
	}, w.opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	g := w.b.Group("app")
	g.Add(instance, s.CoPartitioned(), s)
	if err := s.Start(context.Background(), 0); err != nil {
		w.t.Fatal(err)
	}
	g.Rebalance(context.Background(), g.Spread())
	return s
}

// until steps the processes in turn until done says so.
func (w *world) until(what string, done func() bool, all ...*Stepper) {
	w.t.Helper()
	for range 20_000 {
		if done() {
			return
		}
		for _, s := range all {
			if err := s.Step(context.Background(), 0); err != nil {
				w.t.Fatalf("%s: %v", what, err)
			}
		}
		w.b.Advance(time.Millisecond)
	}
	w.t.Fatalf("%s: not within 20,000 steps", what)
}

// quiet says whether the processes run all their tasks and have nothing left to do.
func (w *world) quiet(tasks int, all ...*Stepper) func() bool {
	return func() bool {
		running := 0
		for _, s := range all {
			for _, task := range s.Status().Tasks {
				if task.State != TaskRunning {
					return false
				}
				running++
				for _, in := range task.Inputs {
					tp := record.TopicPartition{Topic: in.Topic, Partition: record.Partition(in.Partition)}
					if _, _, end := w.b.Offsets(tp); in.Next != end {
						return false
					}
				}
			}
		}
		return running == tasks
	}
}

// dense checks that the i-th output of each key is i, whatever partition it stands in.
func (w *world) dense(want map[string]int64) {
	w.t.Helper()
	w.b.Advance(20 * time.Millisecond) // the last markers
	got := map[string]int64{}
	for p := range record.Partition(12) {
		for _, r := range w.b.Committed(record.TopicPartition{Topic: "out", Partition: p}) {
			n := int64(binary.BigEndian.Uint64(r.Value))
			if n != got[string(r.Key)]+1 {
				w.t.Fatalf("%s: number %d after %d", r.Key, n, got[string(r.Key)])
			}
			got[string(r.Key)] = n
		}
	}
	if !maps.Equal(got, want) {
		w.t.Fatalf("counted %v, want %v", got, want)
	}
}

func (w *world) state(disk *memoryLog, task, store string) map[string]int64 {
	out := map[string]int64{}
	for k, v := range disk.tasks[task].store(store).All() {
		out[k] = int64(binary.BigEndian.Uint64(v))
	}
	return out
}

// copyOf is a disk as it is now.
func copyOf(l *memoryLog) *memoryLog {
	out := newMemoryLog()
	for name, task := range l.tasks {
		c := &memoryTask{}
		_ = c.Reset()
		c.position, c.found = task.position, task.found
		c.position.Changelogs = slices.Clone(task.position.Changelogs)
		for store, m := range task.state {
			for k, v := range m.All() {
				c.store(store).Put(k, v)
			}
		}
		for op, ids := range task.ids {
			c.ids[op] = ids.Clone()
		}
		out.tasks[name] = c
	}
	return out
}

// FIELD A5, A9, B10: a changelog whose first offset that is left is above 0, with holes and with two
// markers at its end, is restored to the last key, from nothing and from a position that lies in a hole.
func TestRestoreOfACompactedChangelog(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	s := w.live()
	want := map[string]int64{}
	send := func(from, to int) {
		for i := from; i < to; i++ {
			key := string(rune('a' + i%7))
			w.send(0, key, fmt.Sprint(i), 1)
			want[key]++
			if i%5 == 4 {
				w.settle(s)
			}
		}
	}
	send(0, 35)
	old := copyOf(w.disk)
	send(35, 100)
	log := record.TopicPartition{Topic: "app-numbers-changelog"}
	w.b.Compact(log)
	entries := w.b.Log(log)
	if entries[0].Offset == 0 || len(entries) > 60 {
		t.Fatalf("not compacted: %d entries from %d", len(entries), entries[0].Offset)
	}
	at := old.tasks["in/0"].position.Changelogs[1].Next
	if i := slices.IndexFunc(entries, func(e simbroker.Entry) bool { return !e.Control && e.Offset == at }); i >= 0 {
		t.Fatalf("offset %d was not compacted", at)
	}
	for name, disk := range map[string]*memoryLog{"nothing": newMemoryLog(), "an old copy": old} {
		w.disk = disk
		s := w.live()
		w.settle(s)
		if got := w.state(disk, "in/0", "numbers"); !maps.Equal(got, want) {
			t.Errorf("from %s: %v, want %v", name, got, want)
		}
		for _, task := range s.Status().Tasks {
			if task.Remaining != 0 || task.State != TaskRunning {
				t.Errorf("from %s: %s is %s, %d records remain", name, task.Name, task.State, task.Remaining)
			}
		}
		for _, store := range s.engine.stats.snapshot(w.topo, nil).Stores {
			if store.RestoreRemaining != 0 {
				t.Errorf("from %s: the metric says that %d records remain", name, store.RestoreRemaining)
			}
		}
	}
}

// FIELD A9: a changelog that is empty but ends far from 0 leaves nothing to wait for.
func TestRestoreOfAnEmptyChangelog(t *testing.T) {
	w := newWorld(t, policyTopology(t, topology.Stop))
	s := w.live()
	for i := range 5 {
		w.put(fmt.Sprint(i), "v")
		w.settle(s)
	}
	w.b.Advance(9 * 24 * time.Hour)
	log := record.TopicPartition{Topic: "app-in-ids-changelog"}
	_, _, end := w.b.Offsets(log)
	w.b.MoveStart(log, end)
	w.disk = newMemoryLog()
	s = w.live()
	w.settle(s)
	w.put("new", "v")
	w.settle(s)
	if got := w.records("out"); len(got) != 6 {
		t.Errorf("out has %d records, want 6", len(got))
	}
	for _, task := range s.Status().Tasks {
		if task.State != TaskRunning || task.Remaining != 0 {
			t.Errorf("%s is %s, %d records remain", task.Name, task.State, task.Remaining)
		}
	}
}

// FIELD A6: retention deletes the first half of an ID log while it is read. The restore begins again at
// the log's start; it never jumps to the end.
func TestRetentionDuringARestore(t *testing.T) {
	w := newWorld(t, policyTopology(t, topology.Stop))
	s := w.live()
	for i := range 40 {
		w.put(fmt.Sprint(i), "v")
		w.settle(s)
	}
	log := record.TopicPartition{Topic: "app-in-ids-changelog"}
	s = w.member("a", newMemoryLog(), 1)
	w.until("part of the restore", func() bool {
		for _, task := range s.Status().Tasks {
			if task.Name == "in/0" && task.State == TaskRestoring && task.Remaining > 20 && task.Remaining < 100 {
				return true
			}
		}
		return false
	}, s)
	var kept record.Offset // of the first transaction that stays
	for _, e := range w.b.Log(log) {
		if e.Control && e.Offset > 70 {
			kept = e.Offset + 1
			break
		}
	}
	w.b.MoveStart(log, kept)
	w.until("the restore", func() bool { return s.Status().State == Running }, s)
	for i := range 40 { // the IDs that retention took are as forgotten as any
		w.put(fmt.Sprint(i), "v")
	}
	w.until("the rest", w.quiet(2, s), s)
	if n := len(w.records("out")); n <= 40 || n >= 80 {
		t.Errorf("%d records in out: of the 40 sent again, those whose IDs are left must be dropped", n)
	}
}

// FIELD A7, B6: a second process joins, or leaves, in the middle of the first one's restore, twenty times.
// Each task is restored by its last owner, and the numbers given to the records of a key stay dense.
func TestRebalancesDuringARestore(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	s := w.member("a", w.disk, 0)
	want := map[string]int64{}
	n := 0
	send := func(count int) {
		for range count {
			p := n % 2
			key := fmt.Sprintf("k%d-%d", p, n%5)
			w.send(record.Partition(p), key, fmt.Sprint(n), 1)
			want[key]++
			n++
		}
	}
	send(200)
	w.until("the input", w.quiet(2, s), s)
	restoring := 0
	for round := range 20 {
		a := w.member("a", newMemoryLog(), 1) // what it had is gone
		for range 3 + round {
			if err := a.Step(context.Background(), 0); err != nil {
				t.Fatal(err)
			}
		}
		if a.Status().State != Running {
			restoring++
		}
		b := w.member("b", newMemoryLog(), 1)
		send(7)
		w.until("two processes", w.quiet(2, a, b), a, b)
		g := w.b.Group("app")
		g.Remove("b")
		g.Rebalance(context.Background(), g.Spread())
		send(7)
		w.until("one process", w.quiet(2, a), a)
	}
	if restoring < 15 {
		t.Errorf("only %d of 20 rebalances came during a restore", restoring)
	}
	w.dense(want)
}

// FIELD B3: a stop in the middle of a restore keeps how far it had come, and not how far it was to go.
func TestStopDuringARestore(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	s := w.live()
	want := map[string]int64{}
	for i := range 60 {
		key := fmt.Sprint("k", i%9)
		w.send(0, key, fmt.Sprint(i), 1)
		want[key]++
		w.settle(s)
	}
	disk := newMemoryLog()
	s = w.member("a", disk, 1)
	first := s.Status
	remaining := func() int64 {
		for _, task := range first().Tasks {
			if task.Name == "in/0" && task.State == TaskRestoring {
				return task.Remaining
			}
		}
		return 0
	}
	w.until("the restore begins", func() bool { return remaining() > 0 }, s)
	whole := remaining()
	w.until("a third of the restore", func() bool { return remaining() < whole*2/3 }, s)
	s.Stop()
	w.until("the stop", func() bool { return s.Stopped(0) }, s)
	if p := disk.tasks["in/0"].position; p.Complete {
		t.Fatal("half a restore says that it is complete")
	}
	s = w.member("a", disk, 1)
	w.until("the second start", w.quiet(2, s), s)
	if got := w.state(disk, "in/0", "numbers"); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for _, task := range s.Status().Tasks {
		if task.Name == "in/0" && task.RestoreMode != modeTail {
			t.Errorf("the restore went on by mode %s", task.RestoreMode)
		}
	}
	w.send(0, "k0", "last", 1)
	want["k0"]++
	w.until("one more", w.quiet(2, s), s)
	w.dense(want)
}

// A crash in the middle of a restore keeps how far it had come, wherever it strikes, also before the first commit record is read.
func TestCrashDuringARestore(t *testing.T) {
	for cut := range 6 {
		w := newWorld(t, counting(t, func(counted) {}))
		s := w.live()
		for i := range 30 {
			w.send(0, fmt.Sprint("k", i%9), fmt.Sprint(i), 1)
			w.settle(s)
		}
		disk := newMemoryLog()
		s = w.member("a", disk, 1)
		seen, last := 0, record.LocalPosition{}
		w.until("part of the restore", func() bool {
			if task := disk.tasks["in/0"]; task != nil && task.found && len(task.position.Changelogs) > 0 && !slices.Equal(task.position.Changelogs, last.Changelogs) {
				last, seen = task.position.Clone(), seen+1
			}
			return seen > cut
		}, s)
		if last.Complete {
			t.Fatalf("after %d parts: the restore is complete", cut)
		}
		s = w.member("a", disk, 1)
		w.until("the second start", w.quiet(2, s), s)
		for _, task := range s.Status().Tasks {
			if task.Name == "in/0" && task.RestoreMode != modeTail {
				t.Errorf("after %d parts, commit %d: the restore went on by mode %s", cut, last.Sequence, task.RestoreMode)
			}
		}
	}
}

// FIELD B4, M4: a clean stop leaves nothing to do for the next start: no record of the changelog is
// applied again and no user code runs, with state and without.
func TestRestartsWithoutInput(t *testing.T) {
	calls := 0
	saw := func(counted) { calls++ }
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"))
	topology.To(topology.MapValues(in, func(r counted) (int64, error) { saw(r); return r.Value, nil }), "out", serde.String(), serde.Int64())
	stateless, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	for name, topo := range map[string]*topology.Topology{"with state": counting(t, saw), "stateless": stateless} {
		t.Run(name, func(t *testing.T) {
			calls = 0
			w := newWorld(t, topo)
			s := w.live()
			for i := range 20 {
				w.send(0, "k", fmt.Sprint(i), 1)
			}
			w.until("the input", w.quiet(2, s), s)
			for range 5 {
				s.Stop()
				w.until("the stop", func() bool { return s.Stopped(0) }, s)
				s = w.live()
				w.until("the start", w.quiet(2, s), s)
				w.settle(s)
				for _, task := range s.Status().Tasks {
					if task.RestoreMode == modeFull {
						t.Errorf("%s was restored in full", task.Name)
					}
				}
				for store, n := range s.engine.stats.restored {
					if n != 0 {
						t.Errorf("%d records of %s were read again", n, store)
					}
				}
			}
			if calls != 20 {
				t.Errorf("user code ran %d times for 20 records", calls)
			}
		})
	}
}

// brokenLog is a disk that cannot be read while broken is set.
type brokenLog struct {
	*memoryLog
	broken bool
}

type brokenStore struct {
	LocalStore
	log *brokenLog
}

var errDisk = errors.New("input/output error")

func (l *brokenLog) Task(name string) (LocalStore, error) {
	s, err := l.memoryLog.Task(name)
	return brokenStore{s, l}, err
}

func (s brokenStore) Get(store string, key []byte) ([]byte, error) {
	if s.log.broken {
		return nil, errDisk
	}
	return s.LocalStore.Get(store, key)
}

// FIELD B11: a store that cannot be read ends the process, whatever the error policy says. The record in
// hand is neither skipped nor a dead letter, and the next start goes on where the last commit ended.
func TestUnreadableStoreEndsTheProcess(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	w.opts = []Option{WithErrorPolicy(topology.PolicySkip, "dlq")}
	disk := &brokenLog{memoryLog: newMemoryLog()}
	s := w.member("a", disk, 0)
	w.send(0, "k", "1", 1)
	w.until("one record", w.quiet(2, s), s)
	disk.broken = true
	for i := 2; i < 6; i++ {
		w.send(0, "another", fmt.Sprint(i), 1)
	}
	wantError(t, w.stepUntil(s), errDisk)
	if got := w.records("dlq"); len(got) != 0 {
		t.Errorf("dead letters: %v", got)
	}
	s = w.member("a", newMemoryLog(), 0)
	w.until("the rest", w.quiet(2, s), s)
	w.dense(map[string]int64{"k": 1, "another": 4})
}

// FIELD B12: positions are offsets. Transactions that end between two records of one timestamp lose none.
func TestEqualTimestampsAcrossCommits(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	w.opts = []Option{WithTransactionLimits(1, 0, 0)}
	for i := range 20 {
		w.send(0, "k", fmt.Sprint(i), 1) // the clock stands still
	}
	for range 20 {
		s := w.live()
		for range 12 {
			if err := s.Step(context.Background(), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := w.live()
	w.until("the input", w.quiet(2, s), s)
	w.dense(map[string]int64{"k": 20})
}

// FIELD C4, C6: instances come and go under load: 12 partitions on 1, 3, 2, 3, 2 and 1 processes, some of which
// come back to where they were. All lag goes to 0, and user code runs again only for records of transactions that the metric counts as aborted.
func TestInstancesComeAndGo(t *testing.T) {
	calls := map[string]int{}
	w := newWorld(t, counting(t, func(r counted) { calls[string(r.ID())]++ }))
	for _, topic := range []string{"in", "out"} {
		w.b.AddPartitions(topic, 12)
	}
	want := map[string]int64{}
	n := 0
	send := func() {
		for p := range record.Partition(12) {
			key := fmt.Sprint("k", p)
			w.send(p, key, fmt.Sprint("id", n), 1)
			want[key]++
			n++
		}
	}
	disks := map[string]*memoryLog{}
	live := map[string]*Stepper{}
	var gone []*Stepper
	steppers := func() (all []*Stepper) {
		for _, name := range slices.Sorted(maps.Keys(live)) {
			all = append(all, live[name])
		}
		return all
	}
	g := w.b.Group("app")
	for _, names := range []string{"a", "abc", "ab", "abc", "bc", "b"} {
		for name := range live {
			if !strings.Contains(names, name) {
				g.Remove(name)
				gone = append(gone, live[name])
				delete(live, name)
			}
		}
		for _, c := range names {
			name := string(c)
			if disks[name] == nil {
				disks[name] = newMemoryLog()
			}
			if live[name] == nil {
				live[name] = w.member(name, disks[name], 0)
			}
		}
		g.Rebalance(context.Background(), g.Spread())
		for range 30 { // records keep coming while everything moves
			send()
			for _, s := range steppers() {
				if err := s.Step(context.Background(), 0); err != nil {
					t.Fatal(err)
				}
			}
			w.b.Advance(2 * time.Millisecond)
		}
	}
	w.until("all lag", w.quiet(12, steppers()...), steppers()...)
	w.dense(want)
	again, aborts := 0, uint64(0)
	for _, c := range calls {
		again = max(again, c-1)
	}
	for _, s := range append(gone, steppers()...) {
		for _, a := range s.Status().Transactions.Aborted {
			aborts += a
		}
	}
	if uint64(again) > aborts {
		t.Errorf("a record ran %d times more than once, with %d aborted transactions", again, aborts)
	}
	if len(calls) != n {
		t.Errorf("user code saw %d of %d records", len(calls), n)
	}
}

// FIELD C5: what arrives while the state is being restored waits for it.
func TestInputDuringARestore(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	s := w.live()
	for i := range 50 {
		w.send(0, "k", fmt.Sprint(i), 1)
		w.settle(s)
	}
	s = w.member("a", newMemoryLog(), 1)
	sent := int64(50)
	w.until("the restore", func() bool {
		running := s.Status().State == Running
		if !running && sent < 90 {
			w.send(0, "k", fmt.Sprint(sent), 1)
			sent++
		}
		return running
	}, s)
	if sent < 60 {
		t.Fatalf("only %d records came during the restore", sent-50)
	}
	w.until("the input", w.quiet(2, s), s)
	w.dense(map[string]int64{"k": sent})
}

// FIELD C7, C13: a partition is revoked while its queue is full. What is committed is a prefix of what
// came; the next owner does the rest once, and the partition that stays goes on.
func TestRevokeWithAFullQueue(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	w.opts = []Option{WithTransactionLimits(16, 0, 0)}
	a := w.member("a", newMemoryLog(), 0)
	w.until("the start", w.quiet(2, a), a)
	const n = 3000
	for i := range n {
		w.send(0, "k0", fmt.Sprint(i), 1)
		w.send(1, "k1", fmt.Sprint(i), 1)
	}
	in := record.TopicPartition{Topic: "in", Partition: 1}
	w.until("a part", func() bool { return w.b.Position("app", in).Next > 20 }, a)
	b := w.member("b", newMemoryLog(), 0) // takes partition 1
	w.b.Advance(20 * time.Millisecond)
	at := w.b.Position("app", in).Next
	done := 0
	for p := range record.Partition(2) {
		for _, r := range w.b.Committed(record.TopicPartition{Topic: "out", Partition: p}) {
			if string(r.Key) == "k1" {
				done++
			}
		}
	}
	if int(at) != done || done >= n {
		t.Errorf("committed up to %d, %d are done", at, done)
	}
	before := w.b.Position("app", record.TopicPartition{Topic: "in"}).Next
	w.until("the partition that stays", func() bool {
		return w.b.Position("app", record.TopicPartition{Topic: "in"}).Next > before || before >= n
	}, a)
	w.until("the rest", w.quiet(2, a, b), a, b)
	w.dense(map[string]int64{"k0": n, "k1": n})
}

// FIELD C11: an epoch raised from outside ends the process once; its next life runs without another one.
func TestOneFencingOneRestart(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	s := w.live()
	w.send(0, "k", "1", 1)
	w.until("one record", w.quiet(2, s), s)
	p := w.b.Client("a stranger").NewProducer(broker.ProducerConfig{TransactionalID: "app-a-0"})
	if err := p.Init(context.Background()); err != nil {
		t.Fatal(err)
	}
	w.send(0, "k", "2", 1)
	wantError(t, w.stepUntil(s), broker.ErrFenced)
	s = w.live()
	for i := 3; i < 30; i++ {
		w.send(0, "k", fmt.Sprint(i), 1)
		w.settle(s)
	}
	if n := s.Status().Transactions.Aborted; len(n) != 0 {
		t.Errorf("aborted after the restart: %v", n)
	}
	w.dense(map[string]int64{"k": 29})
}
