package processor

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/txlog"
)

// stepUntil steps until a step fails, or not.
func (w *world) stepUntil(s *Stepper) error {
	for range 300 {
		if err := s.Step(context.Background(), 0); err != nil {
			return err
		}
		w.b.Advance(5 * time.Millisecond)
	}
	return nil
}

func wantError(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error %v, want %v", err, kind)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not say %q", err, word)
		}
	}
}

func (w *world) newStepper() (*Stepper, error) {
	return NewStepper(context.Background(), w.topo, Env{
		Cluster: w.b.Client("another"), Local: w.disk, Instance: "a", Now: w.b.Now,
		Sleep:       func(ctx context.Context, d time.Duration) error { w.b.Advance(d); return ctx.Err() },
		Incarnation: func() uint64 { return 99 },
	}, w.opts...)
}

func TestMissingTopicsAreNamedAtOnce(t *testing.T) {
	w := newWorld(t, totals(t))
	w.b.DeleteTopic("in")
	w.b.DeleteTopic("out")
	_, err := w.newStepper()
	wantError(t, err, ErrTopics, `input topic "in" does not exist`, `output topic "out" does not exist`, "kafka-topics.sh --create")
}

func TestChangedPartitionsAreRefused(t *testing.T) {
	w := newWorld(t, totals(t))
	w.settle(w.live())
	w.b.AddPartitions("in", 3)
	_, err := w.newStepper()
	wantError(t, err, ErrTopics, `"app-in-ids-changelog" has 2 partitions`, "3 tasks")
}

func TestRecreatedInputIsRefused(t *testing.T) {
	w := newWorld(t, totals(t))
	s := w.live()
	w.send(0, "k", "1", 1)
	w.settle(s)
	w.b.DeleteTopic("in")
	if err := w.b.Client("setup").CreateTopic(context.Background(), broker.Topic{Name: "in", Partitions: 2, Replicas: 1}); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		w.send(0, "k", "2", 1)
	}
	wantError(t, w.stepUntil(w.live()), ErrOffsets, `topic "in" was deleted and made again`)
}

func TestRecreatedChangelogIsRefused(t *testing.T) {
	w := newWorld(t, totals(t))
	s := w.live()
	w.send(0, "k", "1", 1)
	w.settle(s)
	w.b.DeleteTopic("app-in-ids-changelog") // the next start makes it anew
	wantError(t, w.stepUntil(w.live()), ErrDataLost, "the topic was made anew or truncated", "Remedy")
}

func TestOffsetsOutOfRangeAreRefused(t *testing.T) {
	w := newWorld(t, totals(t))
	s := w.live()
	w.send(0, "k", "1", 1)
	w.settle(s)
	for range 9 {
		w.send(0, "k", "2", 1)
	}
	w.b.MoveStart(record.TopicPartition{Topic: "in", Partition: 0}, 5)
	wantError(t, w.stepUntil(w.live()), ErrOffsets, "in/0 is to be read from offset 1, but begins at 5", "4 records were deleted", "another application name")
}

func TestTruncatedChangelogIsRefused(t *testing.T) {
	w := newWorld(t, totals(t))
	s := w.live()
	for i := range 4 {
		w.send(0, "k", string(rune('a'+i)), 1)
		w.settle(s)
	}
	w.b.Truncate(record.TopicPartition{Topic: "app-in-ids-changelog", Partition: 0}, 6)
	wantError(t, w.stepUntil(w.live()), ErrDataLost, "the group has committed")
}

// policyTopology decodes JSON-less bytes: the value "poison" fails, under the application's policy.
func policyTopology(t *testing.T, missing topology.Action) *topology.Topology {
	t.Helper()
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Bytes(), topology.ID(func(r record.Record[string, []byte]) record.ID {
		v, _ := r.Headers.Get("id")
		return record.BytesID(v)
	}), topology.OnMissingID(missing))
	u := topology.Dedup(in, "unique", topology.Retention(time.Hour), topology.OnMissingID(missing))
	m := topology.MapValues(u, func(r record.Record[string, []byte]) ([]byte, error) {
		switch string(r.Value) {
		case "poison":
			return nil, errors.New("cannot be handled")
		case "panic":
			panic("user code")
		case "huge":
			return bytes.Repeat([]byte("x"), 2<<20), nil
		}
		return r.Value, nil
	}, topology.Name("careful"))
	topology.To(m, "out", serde.String(), serde.Bytes())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

func (w *world) put(id, value string) {
	r := broker.Record{Key: []byte("k"), Value: []byte(value), Timestamp: w.b.Now()}
	if id != "" {
		r.Headers = record.Headers{{Key: "id", Value: []byte(id)}}
	}
	w.b.Append(record.TopicPartition{Topic: "in", Partition: 0}, r)
}

// records returns what a read_committed reader sees of partition 0.
func (w *world) records(topic string) (out []broker.Record) {
	r := w.b.Client("reader").NewReader(broker.ReaderConfig{})
	r.Seek(record.TopicPartition{Topic: topic, Partition: 0}, 0, 1)
	r.Seek(record.TopicPartition{Topic: topic, Partition: 1}, 0, 1)
	for range 100 {
		for _, b := range r.Poll(context.Background(), time.Millisecond) {
			out = append(out, b.Records...)
		}
	}
	return out
}

// CRASH 14, 51
func TestPolicies(t *testing.T) {
	for _, c := range []struct {
		bad    string // the value of the bad record
		policy topology.Policy
		words  string // of the error, with PolicyStop
	}{
		{"poison", topology.PolicyStop, "cannot be handled"},
		{"panic", topology.PolicyStop, "user code"},
		{"huge", topology.PolicyStop, "max.message.bytes"},
		{"poison", topology.PolicyDeadLetter, ""},
		{"panic", topology.PolicyDeadLetter, ""},
		{"huge", topology.PolicyDeadLetter, ""},
		{"poison", topology.PolicySkip, ""},
		{"panic", topology.PolicySkip, ""},
		{"huge", topology.PolicySkip, ""},
	} {
		w := newWorld(t, policyTopology(t, topology.Stop))
		w.opts = []Option{WithErrorPolicy(c.policy, "dlq")}
		s := w.live()
		w.put("1", "good")
		w.put("2", c.bad)
		w.put("3", "good")
		err := w.stepUntil(s)
		if c.policy == topology.PolicyStop {
			var re *RecordError
			if !errors.As(err, &re) || !strings.Contains(err.Error(), c.words) || re.Position.Offset != 1 {
				t.Errorf("%s: error %v, want a RecordError at offset 1 that says %q", c.bad, err, c.words)
			}
			if got := w.records("out"); len(got) != 0 { // one transaction: nothing of it, nothing lost
				t.Errorf("%s: %d records in out", c.bad, len(got))
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.bad, err)
			continue
		}
		if got := w.records("out"); len(got) != 2 {
			t.Errorf("%s, policy %d: %d records in out, want 2", c.bad, c.policy, len(got))
		}
		dead := w.records("dlq")
		if c.policy == topology.PolicySkip {
			if len(dead) != 0 {
				t.Errorf("%s: %d dead letters with skip", c.bad, len(dead))
			}
			continue
		}
		if len(dead) != 1 || string(dead[0].Value) != c.bad {
			t.Fatalf("%s: dead letters %v", c.bad, dead)
		}
		for k, want := range map[string]string{
			"id": "2", "__streams.errors.topic": "in", "__streams.errors.offset": "1", "__streamd.errors.attempt": "1",
		} {
			if v, _ := dead[0].Headers.Get(k); string(v) != want {
				t.Errorf("%s: header %s is %q, want %q", c.bad, k, v, want)
			}
		}
		// Its ID was not kept, so that it can be sent again, and its headers do not grow.
		again := broker.Record{Key: dead[0].Key, Value: []byte("mended"), Headers: dead[0].Headers, Timestamp: w.b.Now()}
		w.b.Append(record.TopicPartition{Topic: "in", Partition: 0}, again)
		w.settle(s)
		if got := w.records("out"); len(got) != 3 || string(got[2].Value) != "mended" {
			t.Errorf("%s: the mended record did not pass: %v", c.bad, got)
		}
		again.Value = []byte("poison")
		again.Headers = again.Headers.With("id", []byte("4"))
		w.b.Append(record.TopicPartition{Topic: "in", Partition: 0}, again)
		w.settle(s)
		dead = w.records("dlq")
		if v, _ := dead[1].Headers.Get("__streamd.errors.attempt"); len(dead) != 2 || string(v) != "2" || len(dead[1].Headers) != len(dead[0].Headers) {
			t.Errorf("%s: second dead letter: %v", c.bad, dead[1].Headers)
		}
	}
}

func TestMissingIDs(t *testing.T) {
	for _, c := range []struct {
		action    topology.Action
		out, dead int
		stops     bool
	}{{topology.Stop, 0, 0, true}, {topology.DeadLetter, 2, 2, false}, {topology.Forward, 4, 0, false}} {
		w := newWorld(t, policyTopology(t, c.action))
		w.opts = []Option{WithErrorPolicy(topology.PolicyStop, "dlq")}
		s := w.live()
		w.put("1", "a")
		w.put("", "no ID")
		w.put("", "no ID either: never equal to another") // FIELD: no default that can lose data
		w.put("2", "b")
		err := w.stepUntil(s)
		if (err != nil) != c.stops {
			t.Errorf("action %v: error %v", c.action, err)
		}
		if out, dead := w.records("out"), w.records("dlq"); len(out) != c.out || len(dead) != c.dead {
			t.Errorf("action %v: %d out, %d dead letters; want %d, %d", c.action, len(out), len(dead), c.out, c.dead)
		}
	}
}

func TestStateDiskFull(t *testing.T) {
	w := newWorld(t, totals(t))
	s := w.live()
	w.send(0, "k", "1", 1)
	w.settle(s)
	w.disk.low = true
	w.send(0, "k", "2", 1)
	w.settle(s)
	if got := w.read("echo"); len(got) != 1 {
		t.Errorf("%d records while the disk is full", len(got))
	}
	if st := s.Status().Tasks[0]; st.State != TaskPaused || st.Reason != "state disk full" {
		t.Errorf("task %s is %s: %s", st.Name, st.State, st.Reason)
	}
	if why := s.Status().Reason; !strings.Contains(why, "4 of 4 tasks are paused: state disk full") {
		t.Errorf("the status says %q", why)
	}
	w.disk.low = false
	// The disk fills up between the Kafka commit and the local apply: the batch is kept. (CRASH 37)
	for _, task := range w.disk.tasks {
		task.fail = txlog.ErrDiskFull
	}
	w.settle(s)
	if got := w.read("echo"); len(got) != 2 {
		t.Errorf("%d records after there is space", len(got))
	}
	if st := s.Status(); st.State != Running || st.Reason != "" {
		t.Errorf("state %s: %s", st.State, st.Reason)
	}
	w.settle(w.live())
}

// TestDiskFullDuringARestore: it stands still and says why, as a running task does.
func TestDiskFullDuringARestore(t *testing.T) {
	w := newWorld(t, totals(t))
	s := w.live()
	w.send(0, "k", "1", 1)
	w.settle(s)
	var logged strings.Builder
	w.opts = append(w.opts, WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
	w.disk.low = true
	s = w.live()
	w.send(0, "k", "2", 1)
	w.settle(s)
	st := s.Status()
	if task := st.Tasks[0]; task.State != TaskRestoring || task.Reason != diskFull {
		t.Errorf("task %s is %s: %s", task.Name, task.State, task.Reason)
	}
	if !strings.Contains(st.Reason, "4 of 4 tasks are paused: state disk full") {
		t.Errorf("the status says %q", st.Reason)
	}
	if n := strings.Count(logged.String(), "restore paused: the state disk is full"); n != 4 {
		t.Errorf("said %d times:\n%s", n, logged.String())
	}
	w.disk.low = false
	w.settle(s)
	if st := s.Status(); st.State != Running || st.Reason != "" {
		t.Errorf("state %s: %s", st.State, st.Reason)
	}
	if got := w.read("echo"); len(got) != 2 {
		t.Errorf("%d records after there is space", len(got))
	}
}

// TestMarkerOfTheChangelogLags: the successor waits for the changelog's high watermark, not for its last
// stable offset, and loses nothing. (CRASH 28)
func TestMarkerOfTheChangelogLags(t *testing.T) {
	w := newWorld(t, totals(t))
	hold := false
	w.b.MarkerDelay = func(tp record.TopicPartition, _ string) time.Duration {
		if hold && strings.HasSuffix(tp.Topic, "-changelog") {
			return -1 // until released
		}
		return time.Millisecond
	}
	s := w.live()
	w.send(0, "k", "1", 1)
	w.settle(s)
	hold = true
	w.send(0, "k", "2", 1)
	w.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if c.API == simbroker.EndTxn {
			return simbroker.Action{Verdict: simbroker.CrashAfter}
		}
		return simbroker.Action{}
	})
	func() {
		defer func() {
			if _, ok := recover().(simbroker.Crash); !ok {
				t.Fatal("no crash")
			}
		}()
		w.settle(s)
	}()
	w.b.SetFault(nil)
	w.b.Group("app").Remove("a")
	w.instance, w.disk = "b", newMemoryLog() // the successor is elsewhere and has nothing
	s = w.live()
	for range 300 {
		if err := s.Step(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		w.b.Advance(5 * time.Millisecond)
	}
	if st := s.Status(); st.State == Running {
		t.Errorf("it runs before the changelog is decided: %+v", st.Tasks)
	}
	hold = false
	w.b.ReleaseMarkers(func(record.TopicPartition) bool { return true })
	w.settle(s)
	w.send(0, "k", "1", 1)
	w.send(0, "k", "2", 1)
	w.settle(s)
	if got := w.read("echo"); len(got) != 2 {
		t.Errorf("echo has %d records, want 2", len(got))
	}
}

// TestFencedByAnother: another live process took the transactional ID. It is told once, and not disturbed.
func TestFencedByAnother(t *testing.T) {
	w := newWorld(t, totals(t))
	s := w.live()
	w.send(0, "k", "1", 1)
	w.settle(s)
	inits := 0
	w.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if c.Client == "life-1" && c.API == simbroker.InitProducerID {
			inits++
		}
		return simbroker.Action{}
	})
	other := w.live()
	w.send(0, "k", "2", 1)
	err := w.stepUntil(s)
	wantError(t, err, broker.ErrFenced)
	if inits > 1 {
		t.Errorf("the fenced process took the ID %d times: each time it aborts its owner's transaction", inits)
	}
	if err := w.stepUntil(other); err != nil && !errors.Is(err, broker.ErrFenced) {
		t.Fatal(err)
	}
}
