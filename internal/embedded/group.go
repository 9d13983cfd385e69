package embedded

import (
	"context"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// beat is how often a member that waits is said to live, below the least session timeout that somebody uses (1 s).
const beat = 300 * time.Millisecond

// KeepWaiting keeps the session of a member while it waits in SyncGroup for its leader, as Kafka does, until the returned
// function is called. dial reaches the cluster's brokers; nil: by TCP. It is to be called before clients connect.
//
// kfake would end the session, and take the member for one that waited in JoinGroup: one joiner too few is counted from then on, so
// that no rebalance is over before its timeout; and as each JoinGroup begins the timeout anew, two members that try again
// keep one another waiting for ever.
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
	c.ControlKey(int16(kmsg.SyncGroup), func(r kmsg.Request) (kmsg.Response, error, bool) { //nolint:staticcheck // kfake's signature
		c.KeepControl()
		go keep(ctx, client, *r.(*kmsg.SyncGroupRequest))
		return nil, nil, false
	})
	return func() {
		cancel()
		client.Close()
	}, nil
}

// keep sends the heartbeats of a member until its generation has its assignment, or is over.
func keep(ctx context.Context, client *kgo.Client, of kmsg.SyncGroupRequest) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(beat):
		}
		ask := kmsg.NewPtrDescribeGroupsRequest()
		ask.Groups = []string{of.Group}
		group, err := ask.RequestWith(ctx, client)
		if err != nil || len(group.Groups) == 0 || group.Groups[0].State != "CompletingRebalance" {
			return
		}
		req := kmsg.NewPtrHeartbeatRequest()
		req.Group, req.MemberID, req.Generation, req.InstanceID = of.Group, of.MemberID, of.Generation, of.InstanceID
		if resp, err := req.RequestWith(ctx, client); err != nil || resp.ErrorCode != 0 {
			return
		}
	}
}
