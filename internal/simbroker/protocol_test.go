package simbroker

import (
	"testing"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// second is the world with a client of protocol V2.
func second(t *testing.T) (*Broker, *producer) {
	t.Helper()
	b, _, _ := world(t)
	c2 := b.Client("v2")
	c2.Protocol = V2
	p := c2.NewProducer(broker.ProducerConfig{TransactionalID: "y"}).(*producer)
	if err := p.Init(ctx); err != nil {
		t.Fatal(err)
	}
	return b, p
}

// KIP-890: "the epoch is bumped on every transaction": none of the requests of one acts on the next.
func TestV2RefusesLateRequestsWithoutInit(t *testing.T) {
	b, p := second(t)
	pid, epoch := p.pid, p.epoch
	p.Add(out("N"))
	if _, oc, err := p.Commit(ctx, b.Group("g").Meta("i"), []broker.OffsetCommit{{TopicPartition: inputs, Next: 30}}); oc != broker.Committed {
		t.Fatal(oc, err)
	}
	if p.pid != pid || p.epoch != epoch+1 {
		t.Fatalf("producer %d epoch %d, then %d epoch %d", pid, epoch, p.pid, p.epoch)
	}
	// N+1 is open.
	if _, code := b.produce(V2, "y", p.pid, p.epoch, 0, split([]broker.Output{out("N+1")}, 1000)[0]); code != None {
		t.Fatalf("answered %d", code)
	}
	_, produced := b.produce(V2, "y", pid, epoch, 1, split([]broker.Output{out("late")}, 1000)[0])
	_, _, ended := b.endTxnV2("y", pid, epoch, true)
	for api, code := range map[API]Code{
		Produce:         produced,
		EndTxn:          ended,
		TxnOffsetCommit: b.commitOffsets(V2, "y", pid, epoch, b.Group("g").Meta("i"), []broker.OffsetCommit{{TopicPartition: inputs, Next: 20}}),
	} {
		if code != ProducerFenced && code != InvalidProducerEpoch {
			t.Errorf("late %s answered %d", api, code)
		}
	}
	if _, _, code := b.endTxnV2("y", p.pid, p.epoch, true); code != None {
		t.Fatalf("answered %d", code)
	}
	b.settle()
	if got := committed(b, inputs); got != "N N+1 " {
		t.Fatalf("%q", got)
	}
}

// KIP-890: "an EndTxn that is sent again with the epoch from before is answered as the first one", and only so.
func TestV2EndTxnSentAgain(t *testing.T) {
	b, p := second(t)
	pid, epoch := p.pid, p.epoch
	b.MarkerDelay = nil
	if _, code := b.produce(V2, "y", pid, epoch, 0, split([]broker.Output{out("1")}, 1000)[0]); code != None {
		t.Fatalf("answered %d", code)
	}
	if _, e, code := b.endTxnV2("y", pid, epoch, true); code != None || e != epoch+1 {
		t.Fatalf("answered %d, epoch %d", code, e)
	}
	if _, _, code := b.endTxnV2("y", pid, epoch, true); code != ConcurrentTransactions {
		t.Fatalf("before its markers are written: answered %d", code)
	}
	b.settle()
	if _, e, code := b.endTxnV2("y", pid, epoch, true); code != None || e != epoch+1 {
		t.Fatalf("sent again: answered %d, epoch %d", code, e)
	}
	if _, _, code := b.endTxnV2("y", pid, epoch, false); code != InvalidTxnState {
		t.Fatalf("an abort of what is committed: answered %d", code)
	}
	if _, _, code := b.endTxnV2("y", pid, epoch+1, true); code != InvalidTxnState {
		t.Fatalf("a commit of nothing: answered %d", code)
	}
	if _, e, code := b.endTxnV2("y", pid, epoch+1, false); code != None || e != epoch+2 {
		t.Fatalf("an abort of nothing raises the epoch: answered %d, epoch %d", code, e)
	}
}

// A lost answer of EndTxn: Init with the epoch from before gets the raised one, and the commit stands.
func TestV2InitAfterALostAnswer(t *testing.T) {
	b, p := second(t)
	b.SetFault(func(call Call) Action {
		if call.API == EndTxn {
			return Action{Verdict: LoseAnswer}
		}
		return Action{}
	})
	epoch := p.epoch
	p.Add(out("1"))
	if _, oc, _ := p.Commit(ctx, outside, nil); oc != broker.Unknown {
		t.Fatal(oc)
	}
	b.SetFault(nil)
	p.Reset()
	if err := p.Init(ctx); err != nil || p.epoch != epoch+1 {
		t.Fatalf("%v, epoch %d", err, p.epoch)
	}
	p.Add(out("2"))
	if _, oc, err := p.Commit(ctx, outside, nil); oc != broker.Committed {
		t.Fatal(oc, err)
	}
	if got := committed(b, inputs); got != "1 2 " {
		t.Fatalf("%q", got)
	}
}

// At the last epoch EndTxn gives another producer ID.
func TestV2EpochsExhaust(t *testing.T) {
	b, p := second(t)
	first := p.pid
	b.ExhaustEpochs("y", 1)
	p.epoch = maxEpoch - 1
	for _, v := range []string{"1", "2", "3"} {
		p.Add(out(v))
		if _, oc, err := p.Commit(ctx, outside, nil); oc != broker.Committed {
			t.Fatalf("%s: %v, %v", v, oc, err)
		}
	}
	if p.pid == first || p.epoch != 1 {
		t.Fatalf("producer ID %d (was %d), epoch %d", p.pid, first, p.epoch)
	}
	if got := committed(b, inputs); got != "1 2 3 " {
		t.Fatalf("%q", got)
	}
}

// A copy of a request that arrives later: with V1 it acts on the next transaction, with V2 it is refused.
func TestRepeatedRequests(t *testing.T) {
	for _, c := range []struct {
		v    Protocol
		want record.Offset
	}{{V1, 20}, {V2, 30}} {
		b, _, _ := world(t)
		cl := b.Client("c2")
		cl.Protocol = c.v
		p := cl.NewProducer(broker.ProducerConfig{TransactionalID: "y"})
		if err := p.Init(ctx); err != nil {
			t.Fatal(err)
		}
		commits := 0
		b.SetFault(func(call Call) Action {
			if call.API == TxnOffsetCommit {
				if commits++; commits == 1 {
					return Action{Verdict: Repeat}
				}
			}
			if call.API == EndTxn && commits == 2 {
				b.DeliverHeld()
			}
			return Action{}
		})
		for _, next := range []record.Offset{20, 30} {
			p.Add(out("x"))
			if _, oc, err := p.Commit(ctx, b.Group("g").Meta("i"), []broker.OffsetCommit{{TopicPartition: inputs, Next: next}}); oc != broker.Committed {
				t.Fatal(oc, err)
			}
		}
		if got := b.Position("g", inputs).Next; got != c.want {
			t.Errorf("protocol V%d: the committed offset is %d, want %d", c.v+1, got, c.want)
		}
	}
}

// An open transaction is fenced with the last epoch: the next Init gets another producer ID, and the loop that an
// epoch beyond the last one would make does not begin.
func TestFenceAtTheLastEpoch(t *testing.T) {
	b, _, p := world(t)
	b.ExhaustEpochs("x", 0)
	p.epoch = maxEpoch
	b.addPartitions("x", p.pid, p.epoch, []record.TopicPartition{inputs})
	first := p.pid
	for i := range 3 {
		if err := p.Init(ctx); err != nil {
			t.Fatal(err)
		}
		if p.pid == first || int(p.epoch) != i {
			t.Fatalf("producer ID %d (was %d), epoch %d", p.pid, first, p.epoch)
		}
		b.addPartitions("x", p.pid, p.epoch, []record.TopicPartition{inputs})
	}
}
