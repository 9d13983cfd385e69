package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// epoch is where the event times of these tests begin: in the past, since the future is not believed.
var epoch = start.Add(-time.Hour)

// work lets the process work for a while.
func (w *world) work(s *Stepper, d time.Duration) {
	w.t.Helper()
	for end := w.b.Now().Add(d); w.b.Now().Before(end); {
		if err := s.Step(context.Background(), 0); err != nil {
			w.t.Fatalf("step: %v", err)
		}
		w.b.Advance(time.Millisecond)
	}
}

// never is the option of an input that waits for ever.
var never = []topology.SourceOption{topology.WithIdleness(-1)}

type inWin = window.Key[string]

// numbers is a topology of one source of int64 by key, whose event time is the records' own.
func numbers(t *testing.T, opts []topology.SourceOption, build func(in *topology.Stream[string, int64])) *topology.Topology {
	t.Helper()
	b := topology.New("app")
	build(topology.From(b, "in", serde.String(), serde.Int64(), append(opts, topology.IDHeader("id"))...))
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// toOut writes a windowed result as "key@start" = value, the start in seconds after epoch.
func toOut(s *topology.Stream[inWin, int64]) {
	flat := topology.Map(s, func(r record.Record[inWin, int64]) (string, int64, error) {
		return fmt.Sprintf("%s@%g-%g", r.Key.Key, r.Key.Start.Sub(epoch).Seconds(), r.Key.End.Sub(epoch).Seconds()), r.Value, nil
	})
	topology.To(flat, "out", serde.String(), serde.Int64(), topology.Partition(func(record.Record[string, int64], int32) record.Partition { return 0 }))
}

// sendAt appends a record of a time, in seconds after epoch.
func (w *world) sendAt(p record.Partition, key string, seconds float64, v int64) {
	w.sent++
	w.b.Append(record.TopicPartition{Topic: "in", Partition: p}, broker.Record{
		Key: []byte(key), Value: []byte{0, 0, 0, 0, 0, 0, 0, byte(v)}, Timestamp: epoch.Add(time.Duration(seconds * float64(time.Second))),
		Headers: record.Headers{{Key: "id", Value: fmt.Append(nil, w.sent)}},
	})
}

func expectOut(t *testing.T, w *world, want string) {
	t.Helper()
	if got := strings.Join(w.read("out"), " "); got != want {
		t.Errorf("out:\n %s, want\n %s", got, want)
	}
}

// TestWindowClosesOnce: results come when the watermark passes end and grace, records that are late but within the
// grace count, later ones do not, and a restart changes nothing.
func TestWindowClosesOnce(t *testing.T) {
	topo := numbers(t, never, func(in *topology.Stream[string, int64]) {
		w := topology.WindowedBy(in, window.Tumbling(10*time.Second).Grace(5*time.Second))
		toOut(topology.Count(w, "counts", topology.EmitOnClose()))
	})
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			w := newWorld(t, topo)
			s := w.live()
			next := func() {
				w.settle(s)
				if restart {
					s = w.live()
				}
			}
			w.sendAt(0, "a", 1, 1)
			w.sendAt(0, "b", 9, 1)
			next()
			w.sendAt(0, "a", 14, 1)
			w.sendAt(0, "a", 3, 1) // late, within the grace
			next()
			expectOut(t, w, "")
			w.sendAt(0, "a", 15, 1) // closes [0, 10)
			w.sendAt(0, "b", 9, 1)  // too late
			next()
			expectOut(t, w, "a@0-10=2 b@0-10=1")
			w.sendAt(0, "c", 100, 1)
			next()
			expectOut(t, w, "a@0-10=2 b@0-10=1 a@10-20=2")
			w.settle(s)
			if late := counterOf(s, "counts", topology.CounterLate); late != 1 {
				t.Errorf("%d late records, want 1", late)
			}
		})
	}
}

func counterOf(s *Stepper, operator string, k topology.CounterKind) uint64 {
	for _, o := range s.Status().Operators {
		if o.Name == operator {
			return o.Counters[string(k)]
		}
	}
	return 0
}

// TestWindowClosesWhenTheInputStops: no record comes any more, and the results come all the same, once time has gone
// on for as long as the window was open, and not before.
func TestWindowClosesWhenTheInputStops(t *testing.T) {
	topo := numbers(t, []topology.SourceOption{topology.WithIdleness(2 * time.Second)}, func(in *topology.Stream[string, int64]) {
		toOut(topology.Count(topology.WindowedBy(in, window.Tumbling(10*time.Second)), "counts", topology.EmitOnClose()))
	})
	w := newWorld(t, topo)
	s := w.live()
	w.sendAt(0, "a", 4, 1)
	w.work(s, 2*time.Second)
	w.b.Advance(time.Hour) // a clock that jumps, or a process that was stopped: nobody saw that nothing came
	w.work(s, 4*time.Second)
	expectOut(t, w, "")
	w.work(s, 4*time.Second)
	expectOut(t, w, "a@0-10=1")
	s = w.live()
	w.sendAt(0, "a", 5, 1) // late, also for a process that has not seen how time went by
	w.work(s, time.Minute)
	expectOut(t, w, "a@0-10=1")
}

// TestFarFuture: a record from far ahead closes nothing, in live processing and in that of old records, and a
// producer whose clock is wrong for good does not stop time.
func TestFarFuture(t *testing.T) {
	topo := numbers(t, never, func(in *topology.Stream[string, int64]) {
		toOut(topology.Count(topology.WindowedBy(in, window.Tumbling(10*time.Second)), "counts", topology.EmitOnClose()))
	})
	for _, old := range []float64{0, -365 * 86400} {
		w := newWorld(t, topo)
		s := w.live()
		w.sendAt(0, "a", old+1, 1)
		w.sendAt(0, "x", 250*365*86400, 1) // as far as a time.Duration goes
		w.sendAt(0, "a", old+2, 1)
		w.settle(s)
		expectOut(t, w, "")
		w.sendAt(0, "b", old+10, 1)
		w.settle(s)
		expectOut(t, w, fmt.Sprintf("a@%g-%g=2", old, old+10))
	}
	w := newWorld(t, topo)
	s := w.live()
	for i := range 200 {
		w.sendAt(0, "a", w.b.Now().Sub(epoch).Seconds()+600, int64(i))
		w.settle(s)
	}
	ahead := s.Status().Tasks[0].StreamTime.Sub(w.b.Now())
	if ahead < -time.Minute || ahead > maxSkew { // a record comes every 40 s or so
		t.Errorf("stream time is %v off the clock", ahead)
	}
}

// TestEventTimeDoesNotDependOnCommits: whatever the batches, the commits and the restarts are, what comes out is the
// same, in the same order, with the same IDs.
func TestEventTimeDoesNotDependOnCommits(t *testing.T) {
	topo := numbers(t, never, func(in *topology.Stream[string, int64]) {
		w := topology.WindowedBy(in, window.Hopping(20*time.Second, 5*time.Second).Grace(3*time.Second))
		toOut(topology.Count(w, "counts", topology.EmitOnClose()))
	})
	var want []string
	for every := range 4 {
		w := newWorld(t, topo)
		s := w.live()
		for i := range 120 {
			at := float64(i*7%400)/4 + float64(i)/3
			w.sendAt(0, string(rune('a'+i%3)), at, 1)
			if every > 0 && i%(7*every) == 0 {
				w.settle(s)
				if every > 1 {
					if every == 3 {
						w.disk = newMemoryLog()
					}
					s = w.live()
				}
			}
		}
		w.settle(s)
		got := w.readWithIDs("out")
		if every == 0 {
			want = got
		}
		if !slices.Equal(got, want) {
			t.Errorf("run %d: %d results, want the %d of run 0", every, len(got), len(want))
			for i := range min(len(got), len(want)) {
				if got[i] != want[i] {
					t.Fatalf("the first difference is in result %d: %s, want %s", i, got[i], want[i])
				}
			}
		}
	}
	if len(want) < 30 {
		t.Errorf("only %d results", len(want))
	}
}

// readWithIDs is read with each record's ID.
func (w *world) readWithIDs(topic string) (out []string) {
	r := w.b.Client("reader").NewReader(broker.ReaderConfig{})
	for p := range record.Partition(2) {
		r.Seek(record.TopicPartition{Topic: topic, Partition: p}, 0, 1)
	}
	for range 200 {
		for _, b := range r.Poll(context.Background(), time.Millisecond) {
			for _, x := range b.Records {
				id, _ := x.Headers.Get(topology.DefaultIDHeader)
				out = append(out, fmt.Sprintf("%s=%x %s %s", x.Key, x.Value, id, x.Timestamp.UTC().Format(time.TimeOnly)))
			}
		}
	}
	return out
}

// twoInputs counts the records of two topics in one task.
func twoInputs(t *testing.T) *topology.Topology {
	t.Helper()
	b := topology.New("app")
	from := func(topic string) *topology.Stream[string, int64] {
		return topology.From(b, topic, serde.String(), serde.Int64(), topology.WithIdleness(4*time.Second))
	}
	both := topology.Merge("both", from("in"), from("echo"))
	toOut(topology.Count(topology.WindowedBy(both, window.Tumbling(10*time.Second)), "counts", topology.EmitOnClose()))
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// TestInputsAndTime: the slower of two inputs says what time it is, until it is idle; what it says later does not move
// time back; and a restart, which has not heard of the other input, knows what both had said.
func TestInputsAndTime(t *testing.T) {
	w := newWorld(t, twoInputs(t))
	other := func(seconds float64) {
		w.b.Append(record.TopicPartition{Topic: "echo"}, broker.Record{Key: []byte("b"), Value: make([]byte, 8), Timestamp: epoch.Add(time.Duration(seconds * float64(time.Second)))})
	}
	s := w.live()
	w.sendAt(0, "a", 1, 1)
	other(2)
	w.work(s, time.Second)
	w.sendAt(0, "a", 25, 1)
	w.work(s, time.Second)
	expectOut(t, w, "") // the other one is at 2
	other(12)
	w.work(s, time.Second)
	expectOut(t, w, "a@0-10=1 b@0-10=1")
	s = w.live()
	w.sendAt(0, "a", 5, 1) // late: both had passed 10
	w.sendAt(0, "a", 26, 1)
	w.work(s, time.Second)
	expectOut(t, w, "a@0-10=1 b@0-10=1")
	for n := range 6 { // the other one has nothing any more
		w.sendAt(0, "a", float64(27+n), 1)
		w.work(s, time.Second)
	}
	expectOut(t, w, "a@0-10=1 b@0-10=1 b@10-20=1 a@20-30=5")
	other(28)
	w.work(s, time.Second)
	if late := counterOf(s, "counts", topology.CounterLate); late != 2 {
		t.Errorf("%d late records, want 2", late)
	}
	other(60)
	w.work(s, time.Second)
	s = w.live()
	w.sendAt(0, "a", 45, 1) // what the other one had said still counts
	w.work(s, time.Second)
	expectOut(t, w, "a@0-10=1 b@0-10=1 b@10-20=1 a@20-30=5 a@30-40=3")
	if late := counterOf(s, "counts", topology.CounterLate); late != 2 {
		t.Errorf("%d late records, want the 2 of before", late)
	}
}

// TestPieceThatFails: what is due goes by the policy of the operator that fails, once, and what else is due is done.
func TestPieceThatFails(t *testing.T) {
	for _, policy := range []topology.Policy{topology.PolicyStop, topology.PolicySkip, topology.PolicyDeadLetter} {
		topo := numbers(t, never, func(in *topology.Stream[string, int64]) {
			n := topology.Count(topology.WindowedBy(in, window.Tumbling(10*time.Second)), "counts", topology.EmitOnClose())
			toOut(topology.Filter(n, func(r record.Record[inWin, int64]) (bool, error) {
				if r.Key.Key == "bad" {
					return false, errors.New("bad key")
				}
				return true, nil
			}, topology.Name("check"), topology.OnError(policy)))
		})
		w := newWorld(t, topo)
		w.opts = []Option{WithErrorPolicy(topology.PolicyStop, "dlq")}
		s := w.live()
		w.sendAt(0, "a", 1, 1)
		w.sendAt(0, "bad", 2, 1)
		w.sendAt(0, "c", 3, 1)
		w.work(s, time.Second)
		w.sendAt(0, "z", 10, 1)
		if policy == topology.PolicyStop {
			var err error
			for n := 0; n < 100 && err == nil; n++ {
				err = s.Step(context.Background(), 0)
				w.b.Advance(time.Millisecond)
			}
			var te *TimerError
			if !errors.As(err, &te) || te.Operator != "check" || !strings.HasSuffix(string(te.Key), "bad") {
				t.Errorf("stop: %v", err)
			}
			expectOut(t, w, "")
			continue
		}
		w.work(s, time.Second)
		s = w.live()
		w.work(s, time.Second)
		expectOut(t, w, "a@0-10=1 c@0-10=1")
		dead := w.readLines("dlq", false)
		if want := int(policy) - int(topology.PolicyStop); policy == topology.PolicyDeadLetter && len(dead) != want || policy == topology.PolicySkip && len(dead) != 0 {
			t.Errorf("policy %d: %d dead letters", policy, len(dead))
		}
	}
}

// TestManyWindowsOverManyTransactions: a thousand windows that close at once do not make one large transaction, and
// the record that closed them comes after them, also across a crash.
func TestManyWindowsOverManyTransactions(t *testing.T) {
	topo := numbers(t, never, func(in *topology.Stream[string, int64]) {
		toOut(topology.Count(topology.WindowedBy(in, window.Tumbling(10*time.Second)), "counts", topology.EmitOnClose()))
	})
	w := newWorld(t, topo)
	w.opts = []Option{WithTransactionLimits(100, 0, 0)}
	s := w.live()
	const keys = 1000
	for i := range keys {
		w.sendAt(0, fmt.Sprintf("k%03d", i), 1, 1)
	}
	w.work(s, 5*time.Second)
	before := s.Status().Tasks[0].Sequence
	w.sendAt(0, "z", 11, 1)
	for n := 0; s.Status().Tasks[0].Sequence < before+2; n++ {
		if err := s.Step(context.Background(), 0); err != nil || n > 1000 {
			t.Fatal(n, err)
		}
		w.b.Advance(time.Millisecond)
	}
	if got := len(w.read("out")); got == 0 || got == keys {
		t.Errorf("%d results after two transactions", got)
	}
	s = w.live()
	w.work(s, 5*time.Second)
	got := w.read("out")
	if len(got) != keys || !slices.IsSorted(got) {
		t.Errorf("%d results, sorted %v", len(got), slices.IsSorted(got))
	}
	if n := len(slices.Compact(got)); n != keys {
		t.Errorf("%d distinct results", n)
	}
}
