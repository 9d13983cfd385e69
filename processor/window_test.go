package processor

import (
	"context"
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

// TestFarFuture: a record of the year 3000 closes nothing, in live processing and in that of old records, and a
// producer whose clock is wrong for good does not stop time.
func TestFarFuture(t *testing.T) {
	topo := numbers(t, never, func(in *topology.Stream[string, int64]) {
		toOut(topology.Count(topology.WindowedBy(in, window.Tumbling(10*time.Second)), "counts", topology.EmitOnClose()))
	})
	for _, old := range []float64{0, -365 * 86400} {
		w := newWorld(t, topo)
		s := w.live()
		w.sendAt(0, "a", old+1, 1)
		w.sendAt(0, "x", 1000*365*86400, 1)
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
