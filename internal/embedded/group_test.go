package embedded_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/embedded"
)

// inGroup runs f in virtual time with what makes members of a group.
func inGroup(t *testing.T, f func(t *testing.T, ctx context.Context, member func(session time.Duration) *groupMember)) {
	synctest.Test(t, func(t *testing.T) {
		var net kfake.VirtualNetwork
		k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(9092), kfake.ListenFn(net.Listen))
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		stop, err := embedded.KeepWaiting(k, net.DialContext)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		f(t, ctx, func(session time.Duration) *groupMember {
			c, err := kgo.NewClient(kgo.SeedBrokers(k.ListenAddrs()...), kgo.Dialer(net.DialContext))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Close)
			return &groupMember{t: t, c: c, session: session}
		})
	})
}

// TestLeaderDiesBeforeItSyncs: its follower leads soon after the dead one's session is over, and not a rebalance's timeout later.
func TestLeaderDiesBeforeItSyncs(t *testing.T) {
	inGroup(t, func(t *testing.T, ctx context.Context, member func(time.Duration) *groupMember) {
		leader, follower := member(30*time.Second), member(20*time.Second)
		leader.join(ctx)
		joined := make(chan struct{})
		go func() { defer close(joined); follower.join(ctx) }()
		synctest.Wait()  // it waits for the leader to join again
		leader.join(ctx) // and is dead from here on
		<-joined
		if !leader.leads || follower.leads {
			t.Fatal("the wrong one leads")
		}
		start := time.Now()
		for !follower.leads {
			wait, cancel := context.WithTimeout(ctx, 25*time.Second)
			if err := follower.sync(wait); err == nil {
				t.Fatal("there is an assignment that nobody has made")
			}
			cancel()
			follower.join(ctx)
		}
		if err := follower.sync(ctx, follower.id); err != nil {
			t.Fatal("the only member cannot sync:", err)
		}
		if took := time.Since(start); took > leader.session+10*time.Second {
			t.Errorf("the group was without an assignment for %v", took)
		}
	})
}

// TestFollowerIsStartedAgainBeforeItsLeaderSyncs: who waits for an assignment and dies comes back under the same instance ID, and
// the group goes on without the dead leader once its session is over.
func TestFollowerIsStartedAgainBeforeItsLeaderSyncs(t *testing.T) {
	inGroup(t, func(t *testing.T, ctx context.Context, member func(time.Duration) *groupMember) {
		leader, follower := member(30*time.Second), member(20*time.Second)
		leader.static, follower.static = "leader", "follower"
		leader.join(ctx)
		joined := make(chan struct{})
		go func() { defer close(joined); follower.join(ctx) }()
		synctest.Wait()
		leader.join(ctx) // and is dead from here on
		<-joined
		start := time.Now()
		dead, kill := context.WithTimeout(ctx, 5*time.Second)
		if err := follower.sync(dead); err == nil {
			t.Fatal("there is an assignment that nobody has made")
		}
		kill()
		again := member(20 * time.Second)
		again.static = follower.static
		again.join(ctx)
		if !again.leads {
			t.Error("a dead member leads")
		}
		if err := again.sync(ctx, again.id); err != nil {
			t.Fatal("the only member cannot sync:", err)
		}
		if took := time.Since(start); took > leader.session+10*time.Second {
			t.Errorf("the group was without an assignment for %v", took)
		}
	})
}

// groupMember is a member by hand.
type groupMember struct {
	t       *testing.T
	c       *kgo.Client
	session time.Duration
	static  string // its instance ID, if it has one
	id      string
	at      int32
	leads   bool
}

// join returns when the member has joined.
func (m *groupMember) join(ctx context.Context) {
	for ctx.Err() == nil {
		req := kmsg.NewPtrJoinGroupRequest()
		req.Group, req.MemberID, req.ProtocolType = "g", m.id, "consumer"
		if m.static != "" {
			req.InstanceID = &m.static
		}
		req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = int32(m.session/time.Millisecond), 60_000
		p := kmsg.NewJoinGroupRequestProtocol()
		p.Name = "range"
		req.Protocols = append(req.Protocols, p)
		resp, err := req.RequestWith(ctx, m.c)
		if err != nil {
			m.t.Error(err)
			return
		}
		switch err := kerr.ErrorForCode(resp.ErrorCode); err {
		case nil:
			m.id, m.at, m.leads = resp.MemberID, resp.Generation, resp.LeaderID == resp.MemberID
			return
		case kerr.MemberIDRequired:
			m.id = resp.MemberID
		case kerr.UnknownMemberID:
			m.id = ""
		default:
			m.t.Error(err)
			return
		}
	}
}

// sync asks for the assignment, as the leader for these members.
func (m *groupMember) sync(ctx context.Context, members ...string) error {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Group, req.MemberID, req.Generation = "g", m.id, m.at
	if m.static != "" {
		req.InstanceID = &m.static
	}
	for _, id := range members {
		a := kmsg.NewSyncGroupRequestGroupAssignment()
		a.MemberID, a.MemberAssignment = id, []byte("x")
		req.GroupAssignment = append(req.GroupAssignment, a)
	}
	resp, err := req.RequestWith(ctx, m.c)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.ErrorCode)
}
