package simbroker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

var (
	begin   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	inputs  = record.TopicPartition{Topic: "t"}
	ctx     = context.Background()
	outside = broker.GroupMeta{Generation: -1}
)

// world is a cluster with one topic, one client, one producer and a group with one member.
func world(t *testing.T) (*Broker, *Client, *producer) {
	t.Helper()
	b := New(begin)
	c := b.Client("c")
	if err := c.CreateTopic(ctx, broker.Topic{Name: "t", Partitions: 2}); err != nil {
		t.Fatal(err)
	}
	g := b.Group("g")
	g.Add("i", nil, nil)
	g.Rebalance(ctx, nil)
	p := c.NewProducer(broker.ProducerConfig{TransactionalID: "x"}).(*producer)
	if err := p.Init(ctx); err != nil {
		t.Fatal(err)
	}
	return b, c, p
}

func out(v string) broker.Output { return broker.Output{TopicPartition: inputs, Value: []byte(v)} }

func committed(b *Broker, tp record.TopicPartition) (s string) {
	for _, r := range b.Committed(tp) {
		s += string(r.Value) + " "
	}
	return s
}

// The hazards of KAFKA.md section 3: without a new epoch after a doubtful request, a late one acts on
// the next transaction. They were seen on Kafka 4.4.0, so the model must show them too: a client that
// does not re-initialise is to lose data here.
func TestLateRequestsActWithoutNewEpoch(t *testing.T) {
	t.Run("EndTxn of an older transaction commits the open one", func(t *testing.T) {
		b, _, p := world(t)
		late := func() Code { return b.endTxn("x", p.pid, p.epoch, true) } // of N, on its way
		b.addPartitions("x", p.pid, p.epoch, []record.TopicPartition{inputs})
		b.endTxn("x", p.pid, p.epoch, false) // N was aborted, with the same epoch
		b.settle()
		b.addPartitions("x", p.pid, p.epoch, []record.TopicPartition{inputs})
		b.produce(V1, "x", p.pid, p.epoch, 0, split([]broker.Output{out("N+1")}, 1000)[0])
		if code := late(); code != None {
			t.Fatalf("answered %d", code)
		}
		b.settle()
		if got := committed(b, inputs); got != "N+1 " {
			t.Fatalf("%q", got)
		}
	})
	t.Run("TxnOffsetCommit of an older transaction moves the offset back", func(t *testing.T) {
		b, _, p := world(t)
		meta := b.Group("g").Meta("i")
		commit := func(next record.Offset) {
			if code := b.commitOffsets(V1, "x", p.pid, p.epoch, meta, []broker.OffsetCommit{{TopicPartition: inputs, Next: next}}); code != None {
				t.Fatalf("offset %d answered %d", next, code)
			}
		}
		b.addPartitions("x", p.pid, p.epoch, []record.TopicPartition{offsetsPartition})
		commit(30)
		commit(20) // late
		b.endTxn("x", p.pid, p.epoch, true)
		b.settle()
		if got := b.Position("g", inputs).Next; got != 20 {
			t.Fatalf("%d", got)
		}
	})
	t.Run("Produce of an aborted transaction takes a newer batch's place", func(t *testing.T) {
		b, _, p := world(t)
		batch := func(v string) outBatch { return split([]broker.Output{out(v)}, 1000)[0] }
		b.addPartitions("x", p.pid, p.epoch, []record.TopicPartition{inputs})
		if _, code := b.produce(V1, "x", p.pid, p.epoch, 0, batch("late")); code != None {
			t.Fatalf("answered %d", code)
		}
		base, code := b.produce(V1, "x", p.pid, p.epoch, 0, batch("newer"))
		if base != 0 || code != None {
			t.Fatalf("answered %d at %d: the broker takes it for a repetition", code, base)
		}
		b.endTxn("x", p.pid, p.epoch, true)
		b.settle()
		if got := committed(b, inputs); got != "late " {
			t.Fatalf("%q", got)
		}
	})
}

// With the new epoch of Init all of them are refused.
func TestLateRequestsAreRefusedAfterInit(t *testing.T) {
	b, _, p := world(t)
	pid, epoch := p.pid, p.epoch
	if err := p.Init(ctx); err != nil {
		t.Fatal(err)
	}
	b.addPartitions("x", p.pid, p.epoch, []record.TopicPartition{inputs, offsetsPartition})
	meta := b.Group("g").Meta("i")
	_, produced := b.produce(V1, "x", pid, epoch, 0, split([]broker.Output{out("late")}, 1000)[0])
	for api, code := range map[API]Code{
		EndTxn:             b.endTxn("x", pid, epoch, true),
		AddPartitionsToTxn: b.addPartitions("x", pid, epoch, []record.TopicPartition{inputs}),
		TxnOffsetCommit:    b.commitOffsets(V1, "x", pid, epoch, meta, []broker.OffsetCommit{{TopicPartition: inputs, Next: 9}}),
		Produce:            produced,
	} {
		if code != ProducerFenced && code != InvalidProducerEpoch {
			t.Errorf("%s answered %d", api, code)
		}
	}
}

// Crash table 22: a zombie's InitProducerId is refused and still ends the new owner's transaction.
func TestZombieInitAbortsTheOwnersTransaction(t *testing.T) {
	b, c, old := world(t)
	owner := c.NewProducer(broker.ProducerConfig{TransactionalID: "x"}).(*producer)
	if err := owner.Init(ctx); err != nil {
		t.Fatal(err)
	}
	b.addPartitions("x", owner.pid, owner.epoch, []record.TopicPartition{inputs})
	if err := old.Init(ctx); !errors.Is(err, broker.ErrFenced) {
		t.Fatalf("%v", err)
	}
	if got := b.Undecided(); len(got) != 0 {
		t.Fatalf("still open: %v", got)
	}
	owner.Add(out("1"))
	if _, oc, err := owner.Commit(ctx, outside, nil); oc != broker.NotCommitted {
		t.Fatalf("%v, %v", oc, err)
	}
	if err := owner.Init(ctx); err != nil {
		t.Fatalf("the owner heals by one Init: %v", err)
	}
	if _, oc, err := owner.Commit(ctx, outside, nil); oc != broker.Committed {
		t.Fatalf("%v, %v", oc, err)
	}
}

func TestEpochsExhaust(t *testing.T) {
	b, _, p := world(t)
	first := p.pid
	b.ExhaustEpochs("x", 1)
	p.epoch = maxEpoch - 1
	for i := range 3 {
		if err := p.Init(ctx); err != nil {
			t.Fatal(err)
		}
		p.Add(out(fmt.Sprint(i)))
		if _, oc, err := p.Commit(ctx, outside, nil); oc != broker.Committed {
			t.Fatalf("round %d: %v, %v", i, oc, err)
		}
	}
	if p.pid == first || p.epoch != 1 {
		t.Fatalf("producer ID %d (was %d), epoch %d", p.pid, first, p.epoch)
	}
	if got := committed(b, inputs); got != "0 1 2 " {
		t.Fatalf("%q", got)
	}
}

func TestExpiredTransactionalID(t *testing.T) {
	b, _, p := world(t)
	b.ExpireTransactionalID("x")
	p.Add(out("1"))
	if _, oc, err := p.Commit(ctx, outside, nil); oc != broker.NotCommitted || !errors.Is(err, broker.ErrAbortable) {
		t.Fatalf("%v, %v", oc, err)
	}
	if err := p.Init(ctx); err != nil {
		t.Fatal(err)
	}
	if _, oc, err := p.Commit(ctx, outside, nil); oc != broker.Committed {
		t.Fatalf("%v, %v", oc, err)
	}
}

func TestSequenceWraps(t *testing.T) {
	b, _, p := world(t)
	b.addPartitions("x", p.pid, p.epoch, []record.TopicPartition{inputs})
	p.seqs[inputs] = 1<<31 - 2
	for i := range 4 {
		p.Add(out(fmt.Sprint(i)))
		p.Add(out(fmt.Sprint(i)))
		if _, oc, err := p.Commit(ctx, outside, nil); oc != broker.Committed {
			t.Fatalf("%v, %v", oc, err)
		}
	}
	if got := committed(b, inputs); got != "0 0 1 1 2 2 3 3 " {
		t.Fatalf("%q", got)
	}
}

// An error that is answered after the batch was appended: the repetition has the same sequence number.
func TestProduceAnsweredWithAnErrorAfterAppending(t *testing.T) {
	for _, code := range []Code{RequestTimedOut, NotEnoughReplicasAfter, NotLeaderOrFollower} {
		b, _, p := world(t)
		left := 2
		b.SetFault(func(call Call) Action {
			if call.API == Produce && left > 0 {
				left--
				return Action{Verdict: HandleThenFail, Code: code}
			}
			return Action{}
		})
		p.Add(out("1"))
		if _, oc, err := p.Commit(ctx, outside, nil); oc != broker.Committed {
			t.Fatalf("%d: %v, %v", code, oc, err)
		}
		if got := committed(b, inputs); got != "1 " {
			t.Fatalf("%d: %q", code, got)
		}
	}
}

func TestCommitGivesUpAtItsDeadline(t *testing.T) {
	for api, want := range map[API]broker.Outcome{Produce: broker.NotCommitted, EndTxn: broker.Unknown} {
		b, _, p := world(t)
		b.SetFault(func(call Call) Action {
			if call.API == api {
				return Action{Verdict: Refuse, Code: map[API]Code{Produce: NotEnoughReplicas, EndTxn: CoordinatorLoadInProgress}[api]}
			}
			return Action{}
		})
		p.Add(out("1"))
		_, oc, _ := p.Commit(ctx, outside, nil)
		if took := b.Now().Sub(begin); oc != want || took > 8*time.Second || took < 7*time.Second {
			t.Fatalf("%s: %v after %v", api, oc, took)
		}
	}
}

func TestCrashUnwindsBeforeOrAfterTheRequest(t *testing.T) {
	for verdict, want := range map[Verdict]string{CrashBefore: "", CrashAfter: "1 "} {
		b, _, p := world(t)
		p.Add(out("1"))
		b.SetFault(func(call Call) Action {
			if call.API == EndTxn {
				return Action{Verdict: verdict}
			}
			return Action{}
		})
		func() {
			defer func() {
				if crash, ok := recover().(Crash); !ok || crash.Call.API != EndTxn {
					t.Fatalf("%v", crash)
				}
			}()
			_, oc, _ := p.Commit(ctx, outside, nil)
			t.Fatalf("it went on: %v", oc)
		}()
		b.SetFault(nil)
		b.Advance(time.Minute) // the transaction timeout ends what was left open
		if got := committed(b, inputs); got != want || len(b.Undecided()) != 0 {
			t.Fatalf("verdict %d: %q, undecided %v", verdict, got, b.Undecided())
		}
	}
}

func TestTruncationLosesAndHangs(t *testing.T) {
	b, _, p := world(t)
	for i := range 3 {
		p.Add(out(fmt.Sprint(i)))
		if _, oc, err := p.Commit(ctx, outside, nil); oc != broker.Committed {
			t.Fatal(oc, err)
		}
	}
	b.Truncate(inputs, 4) // two transactions with their markers
	if got := committed(b, inputs); got != "0 1 " {
		t.Fatalf("%q", got)
	}
	b.Truncate(inputs, 3) // the second one's marker is gone: nobody will end it
	if start, stable, end := b.Offsets(inputs); start != 0 || stable != 2 || end != 3 {
		t.Fatalf("%d, %d, %d", start, stable, end)
	}
	if got := committed(b, inputs); got != "0 " {
		t.Fatalf("%q", got)
	}
}

func TestCompactionKeepsOffsetsAndTheNewest(t *testing.T) {
	b, c, p := world(t)
	put := func(k, v string) {
		o := broker.Output{TopicPartition: inputs, Timestamp: begin, Key: []byte(k)}
		if v != "" {
			o.Value = []byte(v)
		}
		p.Add(o)
		if _, oc, err := p.Commit(ctx, outside, nil); oc != broker.Committed {
			t.Fatal(oc, err)
		}
	}
	put("a", "1")
	put("b", "2")
	put("a", "3")
	put("b", "")
	b.Compact(inputs)
	if got := committed(b, inputs); got != "3  " {
		t.Fatalf("%q: the tombstone stays for delete.retention.ms", got)
	}
	b.Advance(25 * time.Hour)
	b.Compact(inputs)
	if got := b.Committed(inputs); len(got) != 1 || got[0].Offset != 4 {
		t.Fatalf("%+v", got)
	}
	r := c.NewReader(broker.ReaderConfig{})
	r.Seek(inputs, 0, 1)
	if got := r.Poll(ctx, 0); len(got) != 1 || got[0].Next != 8 || len(got[0].Records) != 1 {
		t.Fatalf("%+v", got)
	}
}

func TestHeldRequestComesAfterOthers(t *testing.T) {
	b, c, _ := world(t)
	b.SetFault(func(call Call) Action {
		if call.API == CreateTopics {
			return Action{Verdict: Hold, Requests: 2}
		}
		return Action{}
	})
	hold, cancel := context.WithCancel(ctx)
	c.Yield = func(call Call) { // the client gives up instead of asking again
		if call.API == Sleep {
			cancel()
		}
	}
	if err := c.CreateTopic(hold, broker.Topic{Name: "late", Partitions: 1}); err == nil {
		t.Fatal("a held request has no answer")
	}
	for i, want := range []int{0, 1} {
		if got, _ := c.Topics(ctx, "late"); len(got) != want {
			t.Fatalf("after %d requests: %v", i+1, got)
		}
	}
}

func TestTopicMadeAgainForgetsOffsets(t *testing.T) {
	b, c, _ := world(t)
	b.Group("g").SetOffsets(broker.OffsetCommit{TopicPartition: inputs, Next: 5})
	b.DeleteTopic("t")
	if err := c.CreateTopic(ctx, broker.Topic{Name: "t", Partitions: 2}); err != nil {
		t.Fatal(err)
	}
	if got := b.Position("g", inputs).Next; got != record.NoOffset {
		t.Fatalf("%d", got)
	}
}

// Yield lets another client act between any two requests: here a rebalance between TxnOffsetCommit and EndTxn.
func TestYieldInterleaves(t *testing.T) {
	b, c, p := world(t)
	meta := b.Group("g").Meta("i")
	var seen []API
	c.Yield = func(call Call) {
		seen = append(seen, call.API)
		if call.API == TxnOffsetCommit {
			b.Group("g").Rebalance(ctx, nil)
		}
	}
	p.Add(out("1"))
	_, oc, err := p.Commit(ctx, meta, []broker.OffsetCommit{{TopicPartition: inputs, Next: 1}})
	if oc != broker.NotCommitted || !errors.Is(err, broker.ErrIllegalGeneration) {
		t.Fatalf("%v, %v", oc, err)
	}
	want := fmt.Sprint([]API{AddPartitionsToTxn, AddOffsetsToTxn, Produce, TxnOffsetCommit})
	if fmt.Sprint(seen) != want {
		t.Fatalf("%v, want %s", seen, want)
	}
}
