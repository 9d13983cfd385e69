package kafka

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// TestKilledBetweenTwoRounds: a partition moves in two rounds: its owner lets it go, then the new one gets it. An owner that dies
// between them and comes back under its instance ID is given its part of the first round, as if nothing had happened:
// without a second round the partition would be nobody's for ever.
func TestKilledBetweenTwoRounds(t *testing.T) {
	f := newFake(t, 1)
	in, other := makeTopic(t, f.c, 2), makeTopic(t, f.c, 1)
	group := func(instance, topic string) broker.GroupConfig {
		return broker.GroupConfig{Group: "g", Instance: instance, CoPartitioned: [][]string{{topic}}, HeartbeatInterval: 50 * time.Millisecond}
	}
	// The leader has nothing to do with it: it would not be asked for a plan again.
	leader := joinWith(t, f.c, group("leader", other), nil)
	leader.wait(t, 1)
	// Kafka looks at no more than the protocol's name when a static member comes back; the model compares what it says, too.
	var said []kmsg.JoinGroupRequestProtocol
	f.ControlKey(keyJoinGroup, func(req kmsg.Request) (kmsg.Response, error, bool) { //nolint:staticcheck // kfake's signature
		f.KeepControl()
		if r := req.(*kmsg.JoinGroupRequest); r.InstanceID != nil && *r.InstanceID == "a" {
			if r.MemberID == "" && said != nil {
				r.Protocols = said
			}
			said = r.Protocols
		}
		return nil, nil, false
	})

	revoking, dead := make(chan struct{}), make(chan struct{})
	a := joinWith(t, f.open(t), group("a", in), func(context.Context, []record.TopicPartition) {
		close(revoking)
		<-dead
	})
	a.wait(t, 2)
	b := joinWith(t, f.open(t), group("b", in), nil)
	<-revoking
	a.stop()
	close(dead)
	if err := <-a.done; err != nil {
		t.Fatal(err)
	}
	again := joinWith(t, f.open(t), group("a", in), nil)
	again.wait(t, 1)
	b.wait(t, 1)
	leader.mu.Lock()
	defer leader.mu.Unlock()
	if leader.lost != 0 || len(leader.revoked) != 0 {
		t.Errorf("the third member was disturbed: %v", leader.history)
	}
}

// TestSlowRevokeDisturbsNobody: an owner that takes long to let a partition go costs the others nothing: they keep what they have.
func TestSlowRevokeDisturbsNobody(t *testing.T) {
	f := newFake(t, 1)
	in, other := makeTopic(t, f.c, 2), makeTopic(t, f.c, 1)
	group := func(instance, topic string) broker.GroupConfig {
		return broker.GroupConfig{Group: "g", Instance: instance, CoPartitioned: [][]string{{topic}}, HeartbeatInterval: 50 * time.Millisecond}
	}
	third := joinWith(t, f.c, group("third", other), nil)
	third.wait(t, 1)
	a := joinWith(t, f.open(t), group("a", in), func(context.Context, []record.TopicPartition) { time.Sleep(time.Second) })
	a.wait(t, 2)
	b := joinWith(t, f.open(t), group("b", in), nil)
	a.wait(t, 1)
	b.wait(t, 1)
	third.mu.Lock()
	defer third.mu.Unlock()
	if third.lost != 0 || len(third.revoked) != 0 {
		t.Errorf("the third member was disturbed: %v", third.history)
	}
}
