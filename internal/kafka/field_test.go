package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/kafka/faultnet"
	"github.com/streamd/streamd/record"
)

// The tests of this file are faults that other clients had; test/FIELD.md lists them by number.

// FIELD C8: a member that does not finish its work within the rebalance timeout holds up nobody for
// longer, and what it then tries to commit is refused.
func TestRevokeThatTakesTooLong(t *testing.T) {
	f := newFake(t, 1)
	in := makeTopic(t, f.c, 2)
	busy := make(chan struct{})
	g := broker.GroupConfig{Group: "g", Instance: "a", CoPartitioned: [][]string{{in}}, RebalanceTimeout: 3 * time.Second, HeartbeatInterval: 50 * time.Millisecond}
	a := joinWith(t, f.c, g, func(ctx context.Context, _ []record.TopicPartition) {
		<-ctx.Done() // it is in user code
		close(busy)
	})
	old := a.wait(t, 2)
	p := newProducer(t, f.c, "x")
	b := g
	b.Instance = "b"
	joinWith(t, f.open(t), b, nil).wait(t, 1)
	select {
	case <-busy:
	case <-time.After(20 * time.Second):
		t.Fatal("the handler was not told that its time is over")
	}
	a.until(t, "the new generation", func() bool { return a.meta.Generation > old.Generation && len(a.owned) == 1 })
	_, out, err := p.Commit(testContext(t), old, []broker.OffsetCommit{{TopicPartition: tpOf(in, 1), Next: 1}})
	if out != broker.NotCommitted || !errors.Is(err, broker.ErrIllegalGeneration) && !errors.Is(err, broker.ErrUnknownMember) {
		t.Errorf("work of the old generation: %v, %v", out, err)
	}
}

// FIELD C14: work that takes three session timeouts without a poll, as a restore may, keeps the member in
// the group: heartbeats depend on nothing that is processed. There are as many here as in three sessions of 45 s at one in 3 s.
func TestLongWorkKeepsTheMembership(t *testing.T) {
	f := newFake(t, 1)
	in := makeTopic(t, f.c, 2)
	m := joinWith(t, f.c, broker.GroupConfig{Group: "g", Instance: "a", CoPartitioned: [][]string{{in}}, HeartbeatInterval: 20 * time.Millisecond}, nil)
	meta := m.wait(t, 2)
	p := newProducer(t, f.c, "x")
	f.net.Seen()
	if n := beats(f, 45); n < 45 { // the work
		t.Errorf("%d heartbeats while it works", n)
	}
	m.mu.Lock()
	if m.meta != meta || m.lost != 0 {
		t.Errorf("the membership did not last: %v", m.history)
	}
	m.mu.Unlock()
	if _, out, err := p.Commit(testContext(t), meta, []broker.OffsetCommit{{TopicPartition: tpOf(in, 0), Next: 1}}); out != broker.Committed {
		t.Fatalf("%v, %v", out, err)
	}
}

// refuseTopic answers Produce requests that hold the topic with a code, as long as the result says so.
func refuseTopic(f *fake, topic string, code int16) (on *atomic.Bool) {
	on = &atomic.Bool{}
	on.Store(true)
	f.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		req := r.(*kmsg.ProduceRequest)
		if !on.Load() || !slices.ContainsFunc(req.Topics, func(x kmsg.ProduceRequestTopic) bool { return x.Topic == topic }) {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, x := range req.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic = x.Topic
			for _, p := range x.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	return on
}

// FIELD D10: one partition takes nothing until the retries are used up, while the others, and the offsets,
// went well. Nothing of the transaction is committed.
func TestOnePartitionFails(t *testing.T) {
	for _, code := range []sarama.KError{sarama.ErrNotEnoughReplicas, sarama.ErrUnknown, sarama.ErrInvalidRecord} {
		t.Run(fmt.Sprint(int16(code)), func(t *testing.T) { onePartitionFails(t, code) })
	}
}

func onePartitionFails(t *testing.T, code sarama.KError) {
	f := newFake(t, 2)
	good, bad := makeTopic(t, f.c, 1), makeTopic(t, f.c, 1)
	for i, topic := range []string{good, bad} {
		if err := f.MoveTopicPartition(topic, 0, int32(i)); err != nil {
			t.Fatal(err)
		}
	}
	meta := joinGroup(t, f.c, "g", "a", good).wait(t, 1)
	p := newProducer(t, f.c, "x", func(c *broker.ProducerConfig) { c.CommitDeadline = time.Second })
	on := refuseTopic(f, bad, int16(code))
	offsets := []broker.OffsetCommit{{TopicPartition: tpOf(good, 0), Next: 7}}
	addValues(p, tpOf(good, 0), "v")
	addValues(p, tpOf(bad, 0), "v")
	if _, out, err := p.Commit(testContext(t), meta, offsets); out != broker.NotCommitted || err == nil {
		t.Fatalf("%v, %v", out, err)
	}
	on.Store(false)
	if err := p.Init(testContext(t)); err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{good, bad} {
		if got := readValues(t, f.c, tpOf(topic, 0)); len(got) != 0 {
			t.Errorf("%s has %q", topic, got)
		}
	}
	got, err := f.c.CommittedOffsets(testContext(t), "g", []record.TopicPartition{tpOf(good, 0)})
	if err != nil || got[tpOf(good, 0)].Next != record.NoOffset {
		t.Errorf("offsets %v, %v", got, err)
	}
}

// FIELD D12: a topic is unknown to the brokers' metadata for a while. Sequence numbers go on where they
// were: were they to begin anew, the broker would take new records for repeated ones.
func TestTopicUnknownForAWhile(t *testing.T) {
	f := newFake(t, 2)
	topic := makeTopic(t, f.c, 1)
	p := newProducer(t, f.c, "x")
	var want []string
	send := func() {
		v := fmt.Sprint(len(want))
		want = append(want, v)
		addValues(p, tpOf(topic, 0), v)
		mustCommit(t, p)
	}
	for range 10 {
		send()
	}
	unknown := atomic.Bool{}
	asked := atomic.Int32{}
	f.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		req := r.(*kmsg.MetadataRequest)
		if !unknown.Load() || len(req.Topics) == 0 || req.Topics[0].Topic == nil {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		for i, addr := range f.ListenAddrs() {
			b := kmsg.NewMetadataResponseBroker()
			b.NodeID = int32(i)
			_, _ = fmt.Sscanf(addr, "127.0.0.1:%d", &b.Port)
			b.Host = "127.0.0.1"
			resp.Brokers = append(resp.Brokers, b)
		}
		for _, x := range req.Topics {
			rt := kmsg.NewMetadataResponseTopic()
			rt.Topic, rt.ErrorCode = x.Topic, int16(sarama.ErrUnknownTopicOrPartition)
			resp.Topics = append(resp.Topics, rt)
		}
		asked.Add(1)
		return resp, nil, true
	})
	for range 3 {
		unknown.Store(true)
		f.net.Refuse(faultnet.KeyOf("Produce"), int16(sarama.ErrNotLeaderForPartition), 1) // so that it looks
		time.AfterFunc(500*time.Millisecond, func() { unknown.Store(false) })
		for range 10 {
			send()
		}
	}
	if asked.Load() == 0 {
		t.Error("nobody asked while the topic was unknown")
	}
	if got := readValues(t, f.c, tpOf(topic, 0)); !slices.Equal(got, want) {
		t.Errorf("%d records, want %d", len(got), len(want))
	}
}

// FIELD F1: thousands of small transactions of one ID, some of which fail. Each failure is followed by a
// success, for ever.
func TestManySmallTransactions(t *testing.T) {
	f := newFake(t, 1)
	at := tpOf(makeTopic(t, f.c, 1), 0)
	p := newProducer(t, f.c, "x")
	r := rand.New(rand.NewPCG(1, 2859))
	var want []string
	failed := 0
	for i := range 2000 {
		v := fmt.Sprint(i)
		want = append(want, v)
		addValues(p, at, v)
		if r.IntN(50) == 0 {
			names := []string{"Produce", "AddPartitionsToTxn", "EndTxn"}
			codes := []sarama.KError{sarama.ErrOutOfOrderSequenceNumber, sarama.ErrInvalidTxnState, sarama.ErrInvalidProducerEpoch, codeTransactionAbort}
			f.net.Refuse(faultnet.KeyOf(names[r.IntN(len(names))]), int16(codes[r.IntN(len(codes))]), 1)
		}
		for tries := 0; ; tries++ {
			_, out, err := p.Commit(testContext(t), broker.GroupMeta{}, nil)
			if out == broker.Committed {
				break
			}
			failed++
			if tries == 3 {
				t.Fatalf("transaction %d fails again and again: %v", i, err)
			}
			if err := p.Init(testContext(t)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if failed < 20 {
		t.Errorf("only %d failures", failed)
	}
	if got := readValues(t, f.c, at); !slices.Equal(got, want) {
		t.Errorf("%d records, want %d", len(got), len(want))
	}
}

// FIELD F2, F3: leaders move and produce requests are answered with errors that heal, under load. Each
// partition has its records in the order in which they were added, so that the last value of a key is
// its last update.
func TestOrderUnderRetriableErrors(t *testing.T) {
	const partitions = 3
	f := newFake(t, 3)
	topic := makeTopic(t, f.c, partitions)
	p := newProducer(t, f.c, "x", func(c *broker.ProducerConfig) { c.MaxBatchBytes = 300 }) // several batches of each partition
	r := rand.New(rand.NewPCG(1, 3354))
	want := make([][]string, partitions)
	n := 0
	for range 150 {
		for range 60 {
			v := fmt.Sprint(n)
			want[n%partitions] = append(want[n%partitions], v)
			addValues(p, tpOf(topic, n%partitions), v)
			n++
		}
		switch r.IntN(4) {
		case 0:
			f.ShufflePartitionLeaders()
		case 1:
			codes := []sarama.KError{sarama.ErrNotLeaderForPartition, sarama.ErrLeaderNotAvailable, sarama.ErrNotEnoughReplicas, sarama.ErrNotEnoughReplicasAfterAppend, sarama.ErrRequestTimedOut}
			f.net.Refuse(faultnet.KeyOf("Produce"), int16(codes[r.IntN(len(codes))]), 1+r.IntN(3))
		}
		mustCommit(t, p)
	}
	for i := range partitions {
		if got := readValues(t, f.c, tpOf(topic, i)); !slices.Equal(got, want[i]) {
			t.Errorf("partition %d: %d records, want %d in their order", i, len(got), len(want[i]))
		}
	}
}

// FIELD F5: all brokers go away during a commit. It returns by its deadline, and the transaction goes
// through once they are back.
func TestCommitWithoutBrokers(t *testing.T) {
	for _, api := range []string{"AddPartitionsToTxn", "Produce", "EndTxn"} {
		t.Run(api, func(t *testing.T) {
			f := newFake(t, 2)
			at := tpOf(makeTopic(t, f.c, 1), 0)
			p := newProducer(t, f.c, "x", func(c *broker.ProducerConfig) { c.CommitDeadline = time.Second })
			addValues(p, at, "v")
			down := func(yes bool) {
				for _, addr := range f.ListenAddrs() {
					f.net.Down(addr, yes)
				}
			}
			held := f.net.Hold(faultnet.KeyOf(api))
			gone := make(chan struct{})
			go func() { <-held.Caught(); down(true); close(gone) }()
			for caught := false; !caught; {
				begin := time.Now()
				_, out, err := p.Commit(testContext(t), broker.GroupMeta{}, nil)
				if took := time.Since(begin); out == broker.Committed || err == nil || took > 20*time.Second {
					t.Fatalf("%v, %v after %v", out, err, took)
				}
				select {
				case <-held.Caught():
					caught = true
				default: // a busy machine may pass the deadline before the request is sent
					if err := p.Init(testContext(t)); err != nil {
						t.Fatal(err)
					}
				}
			}
			<-gone
			initialised := make(chan error, 1)
			go func() { initialised <- p.Init(testContext(t)) }()
			down(false)
			if err := <-initialised; err != nil {
				t.Fatal(err)
			}
			var err error
			for out := broker.NotCommitted; out != broker.Committed; { // connections that were cut are noticed one by one
				if _, out, err = p.Commit(testContext(t), broker.GroupMeta{}, nil); out == broker.Unknown {
					t.Fatal(err)
				} else if out == broker.NotCommitted {
					if err := p.Init(testContext(t)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if got := readValues(t, f.c, at); !slices.Equal(got, []string{"v"}) {
				t.Errorf("read %q", got)
			}
		})
	}
}

// FIELD L3: a record of 8 MB, and an aborted transaction of 8 MB, do not stall a reader that asks for 1 MB.
func TestLargeRecordAndLargeAbortedTransaction(t *testing.T) {
	f := newFake(t, 1)
	topic := makeTopic(t, f.c, 1, func(top *broker.Topic) { top.MaxMessageBytes = 10 << 20 })
	at := tpOf(topic, 0)
	p := newProducer(t, f.c, "x", func(c *broker.ProducerConfig) { c.MaxBatchBytes = 9 << 20 })
	large := func() {
		p.Add(broker.Output{TopicPartition: at, Timestamp: time.UnixMilli(1), Value: make([]byte, 8<<20)})
	}
	addValues(p, at, "first")
	mustCommit(t, p)
	large()
	if err := p.flush(testContext(t), broker.GroupMeta{}, false); err != nil { // and never committed
		t.Fatal(err)
	}
	p.Reset()
	if err := p.Init(testContext(t)); err != nil {
		t.Fatal(err)
	}
	large()
	mustCommit(t, p)
	addValues(p, at, "last")
	mustCommit(t, p)
	var sizes []int
	for _, r := range readRecords(t, f.c, at, func(c *broker.ReaderConfig) { c.MaxBytes = 1 << 20 }) {
		sizes = append(sizes, len(r.Value))
	}
	if !slices.Equal(sizes, []int{5, 8 << 20, 4}) {
		t.Errorf("values of %v bytes", sizes)
	}
}

// FIELD L8: an aborted transaction that has touched a partition and written nothing there hides nothing
// of what follows, of the same producer or of another one.
func TestAbortWithoutRecords(t *testing.T) {
	f := newFake(t, 1)
	at := tpOf(makeTopic(t, f.c, 1), 0)
	p, other := newProducer(t, f.c, "x"), newProducer(t, f.c, "y")
	var want []string
	for i := range 5 {
		addValues(p, at, "never sent")
		if err := p.addPartitions(testContext(t)); err != nil {
			t.Fatal(err)
		}
		p.Reset()
		if err := p.Init(testContext(t)); err != nil {
			t.Fatal(err)
		}
		for _, x := range []*producer{p, other} {
			v := fmt.Sprint(i, x.cfg.TransactionalID)
			want = append(want, v)
			addValues(x, at, v)
			mustCommit(t, x)
		}
	}
	if got := readValues(t, f.c, at); !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
	// The same, from a broker that does not list such a transaction as aborted.
	l := &logModel{state: map[int64]bool{}}
	r := rand.New(rand.NewPCG(1, 1))
	for range 3 {
		l.marker(t, 1, false)
		l.data(t, r, 1, 2, codecNone, true)
		l.data(t, r, 2, 1, codecNone, true)
		l.marker(t, 1, true)
		l.marker(t, 2, true)
	}
	if got := readModel(t, l, true, 1<<20); len(got) != 9 {
		t.Errorf("%d records, want 9", len(got))
	}
}
