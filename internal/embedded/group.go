package embedded

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// beat is how often a member that waits is said to live, below the least session timeout that somebody uses (1 s).
const beat = 300 * time.Millisecond

// KeepWaiting has members that wait in SyncGroup for their leader treated as by Kafka, until the returned function is called. dial reaches the
// cluster's brokers; nil: by TCP. It is to be called before clients connect.
//
// kfake takes one that goes for one that waited in JoinGroup: one joiner too few is counted from then on, so that no rebalance
// is over before its timeout; and as each JoinGroup begins the timeout anew, two members that try again keep one another waiting for ever. So
// none goes: its session is kept, and before it comes back under its instance ID its waiting is ended.
func KeepWaiting(c *kfake.Cluster, dial func(ctx context.Context, network, host string) (net.Conn, error)) (stop func(), err error) {
	opts := []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...)}
	if dial != nil {
		opts = append(opts, kgo.Dialer(dial))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &waiters{client: client, of: map[instance]int{}}
	c.ControlKey(int16(kmsg.SyncGroup), func(r kmsg.Request) (kmsg.Response, error, bool) { //nolint:staticcheck // kfake's signature
		c.KeepControl()
		req := *r.(*kmsg.SyncGroupRequest)
		w.begin(req.Group, req.InstanceID)
		go func() {
			defer w.end(req.Group, req.InstanceID)
			w.keep(ctx, req)
		}()
		return nil, nil, false
	})
	c.ControlKey(int16(kmsg.JoinGroup), func(r kmsg.Request) (kmsg.Response, error, bool) { //nolint:staticcheck // kfake's signature
		c.KeepControl()
		if req := *r.(*kmsg.JoinGroupRequest); req.MemberID == "" && w.has(req.Group, req.InstanceID) {
			c.SleepControl(func() { w.nudge(ctx, req) })
		}
		return nil, nil, false
	})
	return func() {
		cancel()
		client.Close()
	}, nil
}

// instance is a static member.
type instance struct{ group, id string }

// waiters are the static members that wait in SyncGroup.
type waiters struct {
	client *kgo.Client

	mu sync.Mutex
	of map[instance]int // requests that wait
}

func (w *waiters) begin(group string, id *string) { w.add(group, id, 1) }
func (w *waiters) end(group string, id *string)   { w.add(group, id, -1) }

func (w *waiters) add(group string, id *string, n int) {
	if id == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	at := instance{group, *id}
	if w.of[at] += n; w.of[at] == 0 {
		delete(w.of, at)
	}
}

func (w *waiters) has(group string, id *string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return id != nil && w.of[instance{group, *id}] > 0
}

// completing is whether members of the group wait for its leader's assignment.
func (w *waiters) completing(ctx context.Context, group string) bool {
	ask := kmsg.NewPtrDescribeGroupsRequest()
	ask.Groups = []string{group}
	resp, err := ask.RequestWith(ctx, w.client)
	return err == nil && len(resp.Groups) > 0 && resp.Groups[0].State == "CompletingRebalance"
}

// keep sends the heartbeats of a member until its generation has its assignment, or is over.
func (w *waiters) keep(ctx context.Context, of kmsg.SyncGroupRequest) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(beat):
		}
		if !w.completing(ctx, of.Group) {
			return
		}
		req := kmsg.NewPtrHeartbeatRequest()
		req.Group, req.MemberID, req.Generation, req.InstanceID = of.Group, of.MemberID, of.Generation, of.InstanceID
		if resp, err := req.RequestWith(ctx, w.client); err != nil || resp.ErrorCode != 0 {
			return
		}
	}
}

// nudge has a group whose members wait for an assignment begin its rebalance anew, so that none of them waits any more: a member joins, and leaves.
func (w *waiters) nudge(ctx context.Context, like kmsg.JoinGroupRequest) {
	if !w.completing(ctx, like.Group) {
		return
	}
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.ProtocolType, req.Protocols = like.Group, like.ProtocolType, like.Protocols
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = like.SessionTimeoutMillis, like.RebalanceTimeoutMillis
	resp, err := req.RequestWith(ctx, w.client)
	if err != nil || resp.ErrorCode != kerr.MemberIDRequired.Code {
		return // the group is at its size, or gone
	}
	req.MemberID = resp.MemberID
	joining, gone := context.WithCancel(ctx)
	defer gone()
	go func() { _, _ = req.RequestWith(joining, w.client) }() // it leaves before it is answered
	for w.completing(ctx, like.Group) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Millisecond):
		}
	}
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group = like.Group
	m := kmsg.NewLeaveGroupRequestMember()
	m.MemberID = req.MemberID
	leave.Members = append(leave.Members, m)
	_, _ = leave.RequestWith(ctx, w.client) // a group that is gone has no member
}
