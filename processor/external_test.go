package processor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/topology"
)

// memory is a target in memory: a ledger unless class says otherwise. before is asked for each write and may fail it.
type memory struct {
	class  sink.Class
	check  error
	before func(n int, b sink.Batch) (lost bool, err error) // lost: it is written, and the answer is err

	mu     sync.Mutex // guards all below
	fence  map[record.TopicPartition]int
	next   map[record.TopicPartition]record.Offset
	rows   []string
	writes int
	failed int
	claims int
}

func newMemory(class sink.Class) *memory {
	return &memory{class: class, fence: map[record.TopicPartition]int{}, next: map[record.TopicPartition]record.Offset{}}
}

func (m *memory) Class() sink.Class           { return m.class }
func (m *memory) Check(context.Context) error { return m.check }
func (m *memory) Close() error                { return nil }

func (m *memory) Claim(_ context.Context, p sink.Partition) (sink.Writer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.claims++
	m.fence[p.TopicPartition]++
	return &memoryWriter{m: m, tp: p.TopicPartition, fence: m.fence[p.TopicPartition]}, nil
}

func (m *memory) count() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := map[string]int{}
	for _, r := range m.rows {
		n[r]++
	}
	return n
}

type memoryWriter struct {
	m     *memory
	tp    record.TopicPartition
	fence int
}

func (w *memoryWriter) Next() (record.Offset, bool) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	next, ok := w.m.next[w.tp]
	return next, ok && w.m.class == sink.Ledger
}

func (w *memoryWriter) Write(_ context.Context, b sink.Batch) error {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if w.m.fence[w.tp] != w.fence {
		return sink.ErrFenced
	}
	var lost bool
	var err error
	w.m.writes++
	if w.m.before != nil {
		if lost, err = w.m.before(w.m.writes, b); err != nil {
			w.m.failed++
		}
		if err != nil && !lost {
			return err
		}
	}
	if at, ok := w.m.next[w.tp]; ok && b.First < at && w.m.class == sink.Ledger {
		return fmt.Errorf("a batch from %d, the target is at %d", b.First, at)
	}
	for _, r := range b.Rows {
		w.m.rows = append(w.m.rows, fmt.Sprintf("%s%s/%s", r.Values[0], r.Values[1], r.ID))
	}
	w.m.next[w.tp] = b.Next
	return err
}

func (w *memoryWriter) Close() error { return nil }

// sinkWorld is a broker with an input of n records, and a target.
type sinkWorld struct {
	t      *testing.T
	broker *embedded.Broker
	client *kgo.Client
	target *memory
	dir    string
	status func() processor.Status // of the application that runs
	dial   func(ctx context.Context, network, addr string) (net.Conn, error)
}

func newSinkWorld(t *testing.T, target *memory, n int) *sinkWorld {
	t.Helper()
	b, err := embedded.Start(embedded.Config{Topics: []embedded.Topic{{Name: "in", Partitions: 2}, {Name: "dead", Partitions: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	c, err := kgo.NewClient(kgo.SeedBrokers(b.Address()), kgo.ConsumeTopics("dead"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	w := &sinkWorld{t: t, broker: b, client: c, target: target, dir: t.TempDir()}
	w.send(0, n)
	return w
}

func (w *sinkWorld) send(from, to int) {
	w.t.Helper()
	for i := from; i < to; i++ {
		r := &kgo.Record{Topic: "in", Key: fmt.Appendf(nil, "k%d", i%7), Value: fmt.Appendf(nil, "v%d", i), Headers: []kgo.RecordHeader{{Key: "record-id", Value: fmt.Appendf(nil, "id%d", i)}}}
		if err := w.client.ProduceSync(w.t.Context(), r).FirstErr(); err != nil {
			w.t.Fatal(err)
		}
	}
}

// app runs in -> target until done says so or it ends, and returns its error.
func (w *sinkWorld) app(policy topology.Policy, done func() bool) error {
	w.t.Helper()
	return w.appInto(w.target, policy, done)
}

func (w *sinkWorld) appInto(target sink.Target, policy topology.Policy, done func() bool) error {
	w.t.Helper()
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.String())
	topology.Into(in, "table", serde.String(), serde.String(), target, func(r record.Record[string, string]) (sink.Row, error) {
		if r.Value == "v-bad" {
			return sink.Row{}, errors.New("a bad value")
		}
		return sink.Row{Values: []any{r.Key, r.Value}}, nil
	})
	topo, err := b.Build()
	if err != nil {
		w.t.Fatal(err)
	}
	app, err := processor.New(topo, processor.WithBrokers(w.broker.Address()), processor.WithKafka(processor.KafkaConfig{ClientID: "streamd", Dial: w.dial}), processor.WithStateDir(w.dir), processor.WithInstanceID("i"),
		processor.WithErrorPolicy(policy, "dead"), processor.WithLogger(slog.New(slog.NewTextHandler(w.t.Output(), nil))), processor.WithStartupTimeout(10*time.Second))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(w.t.Context(), 90*time.Second)
	defer stop()
	w.status = app.Status
	ended := make(chan error, 1)
	go func() { ended <- app.Run(ctx) }()
	for {
		select {
		case err := <-ended:
			if ctx.Err() != nil {
				w.t.Fatalf("not done in time; %d rows", len(w.target.rows))
			}
			return err
		case <-time.After(20 * time.Millisecond):
			if done() {
				stop()
				return <-ended
			}
		}
	}
}

// groupOffsets are the committed offsets of the application's group.
func (w *sinkWorld) groupOffsets(topic string, partitions int32) map[record.Partition]record.Offset {
	w.t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = "app"
	ask := kmsg.NewOffsetFetchRequestTopic()
	ask.Topic = topic
	for n := range partitions {
		ask.Partitions = append(ask.Partitions, n)
	}
	req.Topics = append(req.Topics, ask)
	resp, err := req.RequestWith(w.t.Context(), w.client)
	if err != nil {
		w.t.Fatal(err)
	}
	offsets := map[record.Partition]record.Offset{}
	for _, p := range resp.Topics[0].Partitions {
		offsets[record.Partition(p.Partition)] = record.Offset(p.Offset)
	}
	return offsets
}

// complete says whether each of n records has its row.
func (w *sinkWorld) complete(n int) func() bool {
	return func() bool { return len(w.target.count()) >= n }
}

// exactly fails unless each of n records has one row.
func (w *sinkWorld) exactly(n int) {
	w.t.Helper()
	rows := w.target.count()
	for i := range n {
		if got := rows[fmt.Sprintf("k%dv%d/id%d", i%7, i, i)]; got != 1 {
			w.t.Errorf("record %d: %d rows", i, got)
		}
	}
	if len(rows) != n {
		w.t.Errorf("%d different rows, want %d", len(rows), n)
	}
}

func TestSinkWritesEachRecordOnce(t *testing.T) {
	for name, before := range map[string]func(n int, b sink.Batch) (bool, error){
		"without faults": nil,
		"batches fail": func(n int, _ sink.Batch) (bool, error) {
			if n%3 == 1 {
				return false, errors.New("the server went away")
			}
			return false, nil
		},
		// FIELD K1
		"answers are lost": func(n int, _ sink.Batch) (bool, error) {
			if n%3 == 1 {
				return true, errors.New("no answer to COMMIT")
			}
			return false, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := newMemory(sink.Ledger)
			target.before = before
			w := newSinkWorld(t, target, 50)
			if err := w.app(topology.PolicyStop, w.complete(50)); err != nil {
				t.Fatal(err)
			}
			w.send(50, 100)
			if err := w.app(topology.PolicyStop, w.complete(100)); err != nil { // a second process
				t.Fatal(err)
			}
			w.exactly(100)
			if before != nil && target.failed == 0 {
				t.Error("no write has failed")
			}
		})
	}
}

// A target that is found and fails only when it is written to, as an HTTP address does: the reason stays in the status while it is tried again, until
// rows are there.
func TestSinkReasonStaysUntilRowsAreWritten(t *testing.T) {
	t.Parallel()
	target := newMemory(sink.Plain)
	w := newSinkWorld(t, target, 1)
	var again, after processor.Status
	target.before = func(n int, _ sink.Batch) (bool, error) {
		if n > 1 {
			again = w.status()
		}
		if n < 3 {
			return false, errors.New("nobody answers")
		}
		return false, nil
	}
	if err := w.app(topology.PolicyStop, func() bool {
		if !w.complete(1)() {
			return false
		}
		after = w.status()
		return after.State == processor.Running
	}); err != nil {
		t.Fatal(err)
	}
	if again.State != processor.Blocked || !strings.Contains(again.Reason, "nobody answers") {
		t.Errorf("while it is tried again: %s, %q", again.State, again.Reason)
	}
	for _, task := range again.Tasks {
		if strings.HasPrefix(task.Name, "table-sink/") && task.State == processor.TaskRunning && task.Inputs[0].Lag > 0 && !strings.Contains(task.Reason, "nobody answers") {
			t.Errorf("%s: %q", task.Name, task.Reason)
		}
	}
	if after.Reason != "" {
		t.Errorf("when the rows are there: %q", after.Reason)
	}
}

// A target that keeps no offsets goes on at the group's: nothing is lost.
func TestSinkWithoutOffsetsOfItsOwn(t *testing.T) {
	t.Parallel()
	target := newMemory(sink.Plain)
	w := newSinkWorld(t, target, 30)
	if err := w.app(topology.PolicyStop, w.complete(30)); err != nil {
		t.Fatal(err)
	}
	w.send(30, 60)
	if err := w.app(topology.PolicyStop, w.complete(60)); err != nil {
		t.Fatal(err)
	}
	w.exactly(60) // an orderly end leaves the group's offset at the end
}

// FIELD K5
func TestSinkRowsThatAreRefused(t *testing.T) {
	for _, index := range []int{0, -1} {
		t.Run(fmt.Sprintf("index %d", index), func(t *testing.T) {
			t.Parallel()
			target := newMemory(sink.Ledger)
			target.before = func(_ int, b sink.Batch) (bool, error) {
				for i, r := range b.Rows {
					if r.ID == "id7" || r.ID == "id8" {
						if index < 0 {
							i = -1
						}
						return false, &sink.RowError{Index: i, Err: errors.New("out of range")}
					}
				}
				return false, nil
			}
			w := newSinkWorld(t, target, 40)
			if err := w.app(topology.PolicyDeadLetter, w.complete(38)); err != nil {
				t.Fatal(err)
			}
			if rows := target.count(); len(rows) != 38 {
				t.Errorf("%d rows, want 38", len(rows))
			}
			dead := map[string]bool{}
			for len(dead) < 2 {
				f := w.client.PollFetches(t.Context())
				if err := f.Err(); err != nil {
					t.Fatal(err)
				}
				f.EachRecord(func(r *kgo.Record) {
					for _, h := range r.Headers {
						if h.Key == "record-id" {
							dead[string(h.Value)] = true
						}
					}
				})
			}
			if !dead["id7"] || !dead["id8"] {
				t.Errorf("dead letters %v", dead)
			}

			// The same rows with the policy stop: the pipeline ends with the position.
			other := newMemory(sink.Ledger)
			other.before = target.before
			v := newSinkWorld(t, other, 10)
			err := v.app(topology.PolicyStop, func() bool { return false })
			var stopped *processor.RecordError
			if !errors.As(err, &stopped) || !strings.Contains(err.Error(), "out of range") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestSinkTargetIsCheckedBeforeARecordIsRead(t *testing.T) {
	t.Parallel()
	target := newMemory(sink.Ledger)
	target.check = &sink.SetupError{Err: errors.New("no table"), Remedy: "create it"}
	w := newSinkWorld(t, target, 1)
	err := w.app(topology.PolicyStop, func() bool { return false })
	var setup *sink.SetupError
	if !errors.As(err, &setup) || !strings.Contains(err.Error(), "create it") || target.claims != 0 {
		t.Errorf("%v, %d claims", err, target.claims)
	}
	target.check = errors.New("connection refused")
	if err := w.app(topology.PolicyStop, func() bool { return false }); !errors.Is(err, processor.ErrTarget) {
		t.Errorf("%v", err)
	}
}

// A ledger whose table of progress was emptied must not be written anew behind what it has.
func TestSinkLedgerThatLostItsProgress(t *testing.T) {
	t.Parallel()
	target := newMemory(sink.Ledger)
	w := newSinkWorld(t, target, 20)
	if err := w.app(topology.PolicyStop, w.complete(20)); err != nil {
		t.Fatal(err)
	}
	clear(target.next)
	err := w.app(topology.PolicyStop, func() bool { return false })
	var setup *sink.SetupError
	if !errors.As(err, &setup) || !strings.Contains(err.Error(), "set next_offset to") {
		t.Errorf("%v", err)
	}
}

// Neither side has any progress, and the topic does not begin at 0: what came before was written once and deleted then. To
// begin where the topic does would leave it out without a word.
func TestSinkWithoutProgressBehindADeletedBeginning(t *testing.T) {
	t.Parallel()
	target := newMemory(sink.Ledger)
	w := newSinkWorld(t, target, 20)
	if err := w.app(topology.PolicyStop, w.complete(20)); err != nil {
		t.Fatal(err)
	}
	clear(target.next)
	purge := kmsg.NewPtrDeleteRecordsRequest()
	topic := kmsg.NewDeleteRecordsRequestTopic()
	topic.Topic = "app-table-sink"
	for n := range int32(2) {
		part := kmsg.NewDeleteRecordsRequestTopicPartition()
		part.Partition, part.Offset = n, -1
		topic.Partitions = append(topic.Partitions, part)
	}
	purge.Topics = append(purge.Topics, topic)
	for _, shard := range w.client.RequestSharded(t.Context(), purge) {
		if shard.Err != nil {
			t.Fatal(shard.Err)
		}
	}
	w.forgetGroup()
	err := w.app(topology.PolicyStop, func() bool { return false })
	if !errors.Is(err, processor.ErrOffsets) || !strings.Contains(err.Error(), "neither the target nor the consumer group") {
		t.Errorf("%v", err)
	}
}

// forgetGroup deletes the application's group.
func (w *sinkWorld) forgetGroup() {
	w.t.Helper()
	// The static member is still in the group: a group that has members is not deleted.
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group = "app"
	member := kmsg.NewLeaveGroupRequestMember()
	member.InstanceID = kmsg.StringPtr("i")
	leave.Members = append(leave.Members, member)
	if _, err := leave.RequestWith(w.t.Context(), w.client); err != nil {
		w.t.Fatal(err)
	}
	forget := kmsg.NewPtrDeleteGroupsRequest()
	forget.Groups = []string{"app"}
	resp, err := forget.RequestWith(w.t.Context(), w.client)
	if err != nil || resp.Groups[0].ErrorCode != 0 {
		w.t.Fatal(resp, err)
	}
}
