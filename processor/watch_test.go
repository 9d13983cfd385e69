package processor

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
)

// stateOf is the state as status and metric tell it, which must be the same.
func stateOf(t *testing.T, s *Stepper) (State, string) {
	t.Helper()
	st := s.Status()
	if m := s.engine.stats.snapshot(s.engine.topo, nil); m.State != string(st.State) {
		t.Errorf("status says %s, the metric %s", st.State, m.State)
	}
	if st.Ready() != (st.State == Running) {
		t.Errorf("ready %v while %s", st.Ready(), st.State)
	}
	return st.State, st.Reason
}

// TestMissingOutputTopicIsSaid: while an output topic is missing the state is not "running", and the reason
// says why. It goes on by itself once the topic is there.
func TestMissingOutputTopicIsSaid(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	s := w.live()
	w.send(0, "k", "1", 1)
	w.until("one record", w.quiet(2, s), s)
	w.b.DeleteTopic("out")
	w.send(0, "k", "2", 1)
	w.until("the state", func() bool { st, _ := stateOf(t, s); return st == Blocked }, s)
	if _, reason := stateOf(t, s); !strings.Contains(reason, "not committed") || !strings.Contains(reason, "unknown topic") {
		t.Errorf("reason %q", reason)
	}
	for range 300 { // also while the task recovers and tries again
		if err := s.Step(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		if st, _ := stateOf(t, s); st != Blocked {
			t.Fatalf("state %s while the topic is missing", st)
		}
	}
	if err := w.b.Client("setup").CreateTopic(context.Background(), broker.Topic{Name: "out", Partitions: 2, Replicas: 1}); err != nil {
		t.Fatal(err)
	}
	w.until("the rest", w.quiet(2, s), s)
	if st, reason := stateOf(t, s); st != Running || reason != "" {
		t.Errorf("state %s: %s", st, reason)
	}
}

// hang leaves a transaction of another program open on in/0, with a record in it.
func (w *world) hang() broker.Producer {
	w.t.Helper()
	p := w.b.Client("another").NewProducer(broker.ProducerConfig{TransactionalID: "another", TransactionTimeout: 10 * time.Minute})
	if err := p.Init(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	p.Add(broker.Output{TopicPartition: record.TopicPartition{Topic: "in"}, Key: []byte("k"), Value: make([]byte, 8)})
	w.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if c.Client == "another" && c.API == simbroker.EndTxn {
			return simbroker.Action{Verdict: simbroker.LoseRequest}
		}
		return simbroker.Action{}
	})
	_, _, _ = p.Commit(context.Background(), broker.GroupMeta{}, nil)
	w.b.SetFault(nil)
	return p
}

// FIELD E9: a transaction on the input that nobody ends is told with its place and its age, not shown as
// "no lag"; and is over when it is.
func TestHangingTransactionOnTheInput(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	s := w.live()
	w.send(0, "k", "1", 1)
	w.until("one record", w.quiet(2, s), s)
	look := watch{engine: s.engine}
	check := func(after time.Duration) (State, string) {
		w.b.Advance(after)
		look.look(context.Background())
		return stateOf(t, s)
	}
	p := w.hang()
	w.send(0, "k", "2", 1) // stands behind it
	w.settle(s)
	if st, _ := check(watchInterval); st != Running {
		t.Errorf("%s after %v: every transaction takes its time", st, watchInterval)
	}
	var st State
	var reason string
	for range 4 {
		st, reason = check(watchInterval)
	}
	if st != Blocked || !strings.Contains(reason, "in/0 that nobody has ended") || !strings.Contains(reason, "for 40s") {
		t.Errorf("state %s: %s", st, reason)
	}
	if err := p.Init(context.Background()); err != nil { // its producer is back
		t.Fatal(err)
	}
	w.until("the rest", w.quiet(2, s), s)
	if st, reason := check(watchInterval); st != Running {
		t.Errorf("state %s: %s", st, reason)
	}
}

// TestWhatHasJustComeHoldsNothingUp: after a long silence there is a record, or an open transaction, at the moment of a look: nothing
// stands still for as long as the silence took.
func TestWhatHasJustComeHoldsNothingUp(t *testing.T) {
	for name, come := range map[string]func(w *world){
		"record":      func(w *world) { w.send(0, "k", "2", 1) },
		"transaction": func(w *world) { w.hang() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, counting(t, func(counted) {}))
			s := w.live()
			w.send(0, "k", "1", 1)
			w.until("one record", w.quiet(2, s), s)
			look := watch{engine: s.engine}
			for range 6 {
				w.b.Advance(watchInterval)
				look.look(context.Background())
			}
			come(w)
			look.look(context.Background())
			if st, reason := stateOf(t, s); st != Running {
				t.Errorf("state %s: %s", st, reason)
			}
		})
	}
}

// deafReader has died without a word: it brings nothing any more.
type deafReader struct{ broker.Reader }

func (deafReader) Poll(context.Context, time.Duration) []broker.Batch { return nil }

// FIELD C9: a task that makes no progress while there is something to read is told, and its lag is the
// true one although its reader is silent.
func TestSilentReaderIsNoticed(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	s := w.live()
	w.send(0, "k", "0", 1)
	w.until("one record", w.quiet(2, s), s)
	wk := s.workers[0]
	good := wk.reader
	wk.reader = deafReader{good}
	for i := 1; i < 8; i++ {
		w.send(0, "k", fmt.Sprint(i), 1)
	}
	look := watch{engine: s.engine}
	for range 5 {
		w.settle(s)
		w.b.Advance(watchInterval)
		look.look(context.Background())
	}
	st, reason := stateOf(t, s)
	if st != Blocked || !strings.Contains(reason, "no progress in in/0 at offset 1, before 7 others") {
		t.Errorf("state %s: %s", st, reason)
	}
	for _, task := range s.Status().Tasks {
		if in := task.Inputs[0]; in.Partition == 0 && (in.Lag != 7 || task.Reason == "") {
			t.Errorf("lag %d, reason %q", in.Lag, task.Reason)
		}
	}
	wk.reader = good
	w.until("the rest", w.quiet(2, s), s)
	w.b.Advance(watchInterval)
	look.look(context.Background())
	if st, reason := stateOf(t, s); st != Running {
		t.Errorf("state %s: %s", st, reason)
	}
}

// TestStatusIsACopy: what a caller of Status has does not change when the watch goes on.
func TestStatusIsACopy(t *testing.T) {
	w := newWorld(t, counting(t, func(counted) {}))
	s := w.live()
	w.send(0, "k", "1", 1)
	w.until("one record", w.quiet(2, s), s)
	for _, task := range s.Status().Tasks {
		for _, in := range task.Inputs {
			before := in.Stable
			tp := record.TopicPartition{Topic: in.Topic, Partition: record.Partition(in.Partition)}
			s.engine.stats.watched(map[record.TopicPartition]record.Offset{tp: before + 7}, nil)
			if now := task.Inputs[0].Stable; now != before && tp.Topic == task.Inputs[0].Topic {
				t.Errorf("%s %s: the stable offset went from %d to %d in a copy", task.Name, tp, before, now)
			}
		}
	}
}
