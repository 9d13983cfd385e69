package processor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// The tests of this file have a backlog in two partitions, of the same span of event time, and windows behind a
// repartition topic. Whoever reads one partition first must not make the records of the other one late.

const (
	backlogRecords = 120 // of each partition, five seconds apart
	backlogKeys    = 5
)

// behindKeyBy counts in windows what comes through one repartition topic, or through two.
func behindKeyBy(t *testing.T, hops int) *topology.Topology {
	return numbers(t, []topology.SourceOption{topology.WithIdleness(2 * time.Second)}, func(in *topology.Stream[string, int64]) {
		s := in
		for i := range hops {
			s = topology.KeyBy(s, fmt.Sprintf("by%d", i), serde.String(), func(r record.Record[string, int64]) (string, error) { return r.Key, nil })
		}
		toOut(topology.Count(topology.WindowedBy(s, window.Tumbling(10*time.Second).Grace(time.Second)), "counts", topology.EmitOnClose()))
	})
}

// backlog sends a partition's share and returns what must come out of both, together.
func (w *world) backlog(p record.Partition) {
	for i := range backlogRecords {
		w.sendAt(p, fmt.Sprintf("k%d", i%backlogKeys), float64(5*i), 1)
	}
}

func backlogCounts() []string {
	sums := map[string]int{}
	for i := range backlogRecords {
		at := 5 * i / 10 * 10
		sums[fmt.Sprintf("k%d@%d-%d", i%backlogKeys, at, at+10)] += 2
	}
	var out []string
	for k, n := range sums {
		out = append(out, fmt.Sprintf("%s=%d", k, n))
	}
	slices.Sort(out)
	return out
}

// bothCounted says whether each window is there, once.
func (w *world) bothCounted() error {
	got := w.read("out")
	slices.Sort(got)
	if want := backlogCounts(); !slices.Equal(got, want) {
		return fmt.Errorf("%d results, want %d:\n%s", len(got), len(want), firstOther(got, want))
	}
	return nil
}

func firstOther(got, want []string) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("result %d is %s, want %s", i, got[i], want[i])
		}
	}
	return "the one is the beginning of the other"
}

func lateOf(all ...*Stepper) (n uint64) {
	for _, s := range all {
		n += counterOf(s, "counts", topology.CounterLate)
	}
	return n
}

// TestBacklogBehindARepartition: a process works off its partition while the other one stands still, for long. Its
// windows behind the repartition topic wait, and nothing is late.
func TestBacklogBehindARepartition(t *testing.T) {
	for hops := 1; hops <= 2; hops++ {
		t.Run(fmt.Sprint(hops), func(t *testing.T) {
			w := newWorld(t, behindKeyBy(t, hops))
			w.backlog(0)
			w.backlog(1)
			w.instance = "a"
			disks := map[string]*memoryLog{"a": newMemoryLog(), "b": newMemoryLog()}
			a, b := w.member("a", disks["a"], 200), w.member("b", disks["b"], 200)
			w.work(a, 20*time.Second)
			if got := w.read("out"); len(got) > 0 {
				t.Errorf("closed before the other partition was read: %v", got)
			}
			for end := w.b.Now().Add(40 * time.Second); w.b.Now().Before(end); {
				w.work(a, 20*time.Millisecond)
				w.work(b, 20*time.Millisecond)
			}
			if err := w.bothCounted(); err != nil {
				t.Error(err)
			}
			if n := lateOf(a, b); n > 0 {
				t.Errorf("%d records are late", n)
			}
		})
	}
}

// TestBacklogUnderFaults: the same, with lost answers and requests, refused commits, kill -9 of either process at any request
// and lost disks.
func TestBacklogUnderFaults(t *testing.T) {
	kills := 0
	for seed := range uint64(4) {
		w := newWorld(t, behindKeyBy(t, 1+int(seed%2)))
		w.backlog(0)
		w.backlog(1)
		r := rand.New(rand.NewPCG(seed, 7))
		fleet := &faulty{w: w, r: r, disks: map[string]*memoryLog{}, live: map[string]*Stepper{}}
		for _, name := range []string{"a", "b"} {
			fleet.disks[name] = newMemoryLog()
			fleet.start(name)
		}
		w.b.SetFault(fleet.fault)
		for range 150 { // turns of different length, so that one runs far ahead of the other
			name := []string{"a", "b"}[r.IntN(2)]
			for range r.IntN(120) {
				fleet.step(name)
			}
		}
		w.b.SetFault(nil)
		for range 20_000 {
			if err := w.bothCounted(); err == nil && lateOf(fleet.live["a"], fleet.live["b"]) == 0 {
				break
			}
			for range 1000 {
				fleet.step("a")
				fleet.step("b")
			}
			if w.b.Now().Sub(start) > 20*time.Minute {
				t.Fatalf("seed %d: %d records are late: %v", seed, lateOf(fleet.live["a"], fleet.live["b"]), w.bothCounted())
			}
		}
		kills += fleet.kills
	}
	if kills < 20 {
		t.Errorf("only %d kills", kills)
	}
}

// faulty are processes whose requests fail, or are their last.
type faulty struct {
	w     *world
	r     *rand.Rand
	disks map[string]*memoryLog
	live  map[string]*Stepper
	kills int
}

func (f *faulty) start(name string) {
	w := f.w
	w.b.SetFault(nil)
	f.live[name] = w.member(name, f.disks[name], 200)
	w.b.SetFault(f.fault)
}

func (f *faulty) fault(c simbroker.Call) simbroker.Action {
	if f.r.IntN(150) > 0 {
		return simbroker.Action{}
	}
	return simbroker.Action{
		Verdict: []simbroker.Verdict{simbroker.LoseAnswer, simbroker.LoseRequest, simbroker.CrashBefore, simbroker.CrashAfter}[f.r.IntN(4)],
		Wait:    50 * time.Millisecond,
	}
}

// step lets a process do a step. If it ends, the next one is started, sometimes with an empty disk.
func (f *faulty) step(name string) {
	ended := func() (ended bool) {
		defer func() {
			if v := recover(); v != nil {
				if _, ok := v.(simbroker.Crash); !ok {
					panic(v)
				}
				ended = true
			}
		}()
		err := f.live[name].Step(context.Background(), 0)
		if err != nil && !errors.Is(err, broker.ErrFenced) {
			f.w.t.Fatalf("%s: %v", name, err)
		}
		return err != nil
	}()
	f.w.b.Advance(time.Millisecond)
	if !ended {
		return
	}
	f.kills++
	if f.r.IntN(3) == 0 {
		f.disks[name] = newMemoryLog()
	}
	f.start(name)
}

// TestEmptyPartitionHoldsNobodyUp: a task without records says that it is idle, before and after a restart, and the windows of
// the others close.
func TestEmptyPartitionHoldsNobodyUp(t *testing.T) {
	for hops := 1; hops <= 2; hops++ {
		w := newWorld(t, behindKeyBy(t, hops))
		s := w.live()
		w.sendAt(0, "a", 1, 1)
		w.sendAt(0, "a", 12, 1)
		w.work(s, 10*time.Second)
		expectOut(t, w, "a@0-10=1")
		s = w.live()
		w.sendAt(0, "a", 40, 1)
		w.work(s, 10*time.Second)
		expectOut(t, w, "a@0-10=1 a@10-20=1")
		w.work(s, 30*time.Second) // nothing comes any more
		expectOut(t, w, "a@0-10=1 a@10-20=1 a@40-50=1")
	}
}

// TestUserRecordIsNoMark: a record without key and value that has the header of a mark goes its way, without that header.
func TestUserRecordIsNoMark(t *testing.T) {
	b := topology.New("app")
	in := topology.From(b, "in", serde.Bytes(), serde.Bytes(), topology.IDHeader("id"), topology.OnMissingID(topology.Forward))
	by := topology.KeyBy(in, "by", serde.Bytes(), func(record.Record[[]byte, []byte]) ([]byte, error) { return nil, nil })
	topology.To(by, "echo", serde.Bytes(), serde.Bytes())
	n := topology.Count(topology.WindowedBy(topology.Map(by, func(record.Record[[]byte, []byte]) (string, []byte, error) { return "k", nil, nil }, topology.PreserveKey()).WithKeys(serde.String()), window.Tumbling(10*time.Second)), "counts")
	toOut(n)
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, topo)
	s := w.live()
	forged := record.Mark{Watermark: 1 << 40, Idle: true}.Headers()
	for i := range 2 {
		w.b.Append(record.TopicPartition{Topic: "in", Partition: record.Partition(i)}, broker.Record{Timestamp: epoch, Headers: forged})
	}
	w.work(s, time.Second)
	if got := w.read("out"); len(got) != 2 {
		t.Errorf("%d results, want 2: %v", len(got), got)
	}
	got := w.records("echo")
	if len(got) != 2 {
		t.Errorf("%d records, want 2", len(got))
	}
	for _, r := range got {
		if len(r.Headers) > 0 {
			t.Errorf("it has headers: %v", r.Headers)
		}
	}
}

// TestMarksAreFew: progress costs no more than a mark in each partition of the topic every tenth of a second, and silence none.
func TestMarksAreFew(t *testing.T) {
	w := newWorld(t, behindKeyBy(t, 1))
	s := w.live()
	marks := func() (n int) {
		for p := range record.Partition(2) {
			for _, r := range w.b.Committed(record.TopicPartition{Topic: "app-by0-repartition", Partition: p}) {
				if record.IsMark(r.Key, r.Value, r.Headers) {
					n++
				}
			}
		}
		return n
	}
	const seconds = 5
	for i := range 100 * seconds {
		w.sendAt(record.Partition(i%2), "a", float64(i)/100, 1)
		w.work(s, 10*time.Millisecond)
	}
	busy := marks()
	if most := 2 * 2 * (10*seconds + 1); busy > most || busy < most/4 {
		t.Errorf("%d marks in %d seconds, want some, and at most %d", busy, seconds, most)
	}
	w.work(s, 5*time.Second) // both become idle
	idle := marks()
	w.work(s, 20*time.Second)
	if idle > busy+2*2*2 || marks() != idle {
		t.Errorf("%d marks, %d after both tasks had become idle, then %d", busy, idle, marks())
	}
}
