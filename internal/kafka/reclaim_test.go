package kafka

import (
	"errors"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/kafka/faultnet"
)

// TestLostEpochIsReclaimed: PRODUCER_FENCED is not always another owner. The group, which has one member under the
// instance ID, decides; without one, and when it happens again at once, it is another owner.
func TestLostEpochIsReclaimed(t *testing.T) {
	f := newFake(t, 1)
	in := makeTopic(t, f.c, 2)
	// fence raises the epoch as somebody who is not in the group does. Kafka refuses the old one then, kfake takes it.
	fence := func() {
		newProducer(t, f.open(t), "x")
		f.net.Refuse(faultnet.KeyOf("InitProducerId"), 90, 1)
	}
	commit := func(p broker.Producer, meta broker.GroupMeta) broker.Outcome {
		addValues(p, tpOf(in, 0), "v")
		_, out, _ := p.Commit(testContext(t), meta, []broker.OffsetCommit{{TopicPartition: tpOf(in, 1), Next: 1}})
		return out
	}
	t.Run("ours", func(t *testing.T) {
		meta := joinGroup(t, f.c, "g1", "a", in).wait(t, 2)
		p := newProducer(t, f.c, "x")
		if out := commit(p, meta); out != broker.Committed {
			t.Fatal(out)
		}
		fence()
		if out := commit(p, meta); out != broker.NotCommitted {
			t.Fatal(out)
		}
		if err := p.Init(testContext(t)); err != nil {
			t.Fatalf("the member is in the group: %v", err)
		}
		if out := commit(p, meta); out != broker.Committed {
			t.Fatal(out)
		}
		fence()
		if out := commit(p, meta); out != broker.NotCommitted {
			t.Fatal(out)
		}
		if err := p.Init(testContext(t)); !errors.Is(err, broker.ErrFenced) {
			t.Fatalf("fenced again at once: %v, want ErrFenced", err)
		}
	})
	t.Run("another's", func(t *testing.T) {
		first := joinGroup(t, f.c, "g2", "a", in)
		meta := first.wait(t, 2)
		p := newProducer(t, f.c, "x")
		if out := commit(p, meta); out != broker.Committed {
			t.Fatal(out)
		}
		joinGroup(t, f.open(t), "g2", "a", in).wait(t, 2)
		fence()
		if out := commit(p, meta); out != broker.NotCommitted {
			t.Fatal(out)
		}
		if err := p.Init(testContext(t)); !errors.Is(err, broker.ErrFenced) {
			t.Fatalf("another member has the instance ID: %v, want ErrFenced", err)
		}
	})
	t.Run("of a session that is over", func(t *testing.T) {
		m := joinGroup(t, f.c, "g3", "a", in)
		meta := m.wait(t, 2)
		p := newProducer(t, f.c, "x")
		if out := commit(p, meta); out != broker.Committed {
			t.Fatal(out)
		}
		m.stop()
		<-m.done
		if err := f.c.LeaveGroup(testContext(t), "g3", "a"); err != nil {
			t.Fatal(err)
		}
		fence()
		if err := p.Init(testContext(t)); err != nil {
			t.Fatalf("nobody has the instance ID: %v", err)
		}
		if out := commit(p, meta); out != broker.NotCommitted {
			t.Fatalf("%v under a generation that is over", out)
		}
	})
	t.Run("of a new session of ours", func(t *testing.T) {
		g := broker.GroupConfig{Group: "g4", Instance: "a", CoPartitioned: [][]string{{in}}, HeartbeatInterval: 20 * time.Millisecond}
		m := joinWith(t, f.c, g, nil)
		meta := m.wait(t, 2)
		p := newProducer(t, f.c, "x")
		if out := commit(p, meta); out != broker.Committed {
			t.Fatal(out)
		}
		other := f.open(t)
		if err := other.LeaveGroup(testContext(t), "g4", "a"); err != nil {
			t.Fatal(err)
		}
		m.until(t, "a new member ID", func() bool { return len(m.owned) == 2 && m.meta.Member != meta.Member })
		fence()
		if err := p.Init(testContext(t)); err != nil {
			t.Fatalf("the new member is ours, too: %v", err)
		}
		if out := commit(p, meta); out != broker.NotCommitted {
			t.Fatalf("%v as a member that is no more", out)
		}
	})
	t.Run("while we join", func(t *testing.T) {
		slow := joinWith(t, f.open(t), broker.GroupConfig{Group: "g5", Instance: "b", CoPartitioned: [][]string{{in}}, HeartbeatInterval: 3 * time.Second}, nil)
		slow.wait(t, 2)
		g := broker.GroupConfig{Group: "g5", Instance: "a", CoPartitioned: [][]string{{in}}, HeartbeatInterval: 20 * time.Millisecond}
		m := joinWith(t, f.c, g, nil)
		meta := m.wait(t, 1)
		p := newProducer(t, f.c, "x")
		if out := commit(p, meta); out != broker.Committed {
			t.Fatal(out)
		}
		if err := f.open(t).LeaveGroup(testContext(t), "g5", "a"); err != nil {
			t.Fatal(err)
		}
		// The new member waits for the slow one, which hears of the rebalance with its next heartbeat.
		for code := sarama.ErrNoError; code != sarama.ErrFencedInstancedId; {
			var err error
			if code, err = f.c.heartbeat(testContext(t), meta); err != nil {
				t.Fatal(err)
			}
		}
		if now := m.current(); now.Member != meta.Member {
			t.Fatalf("joined already: nothing is tried here")
		}
		fence()
		if err := p.Init(testContext(t)); err != nil {
			t.Fatalf("the member that joins is ours: %v", err)
		}
		m.until(t, "a new member ID", func() bool { return len(m.owned) == 1 && m.meta.Member != meta.Member })
	})
	t.Run("another's, which has come while we join", func(t *testing.T) {
		g := broker.GroupConfig{Group: "g6", Instance: "a", CoPartitioned: [][]string{{in}}, HeartbeatInterval: 20 * time.Millisecond}
		m := joinWith(t, f.c, g, nil)
		meta := m.wait(t, 2)
		p := newProducer(t, f.c, "x")
		if out := commit(p, meta); out != broker.Committed {
			t.Fatal(out)
		}
		f.c.takeSeat(seat{"g6", "a"}, "") // as from the request on until it is answered
		joinGroup(t, f.open(t), "g6", "a", in).wait(t, 2)
		fence()
		if err := p.Init(testContext(t)); !errors.Is(err, broker.ErrFenced) {
			t.Fatalf("another member has the instance ID: %v, want ErrFenced", err)
		}
	})
}
