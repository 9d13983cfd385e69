package simbroker

import (
	"context"
	"errors"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

var errNoAnswer = errors.New("no answer")

// Client is one process's view of the cluster.
type Client struct {
	// Yield is called before each request is handled, and for each wait (API Sleep). A harness that
	// runs several clients in coroutines lets others run here. Set before use; may be nil.
	Yield func(Call)
	// Prefetch makes readers fetch ahead, as real ones do: what Poll returns was fetched at the Poll
	// before, and may carry the tag of a position that is gone. Set before use.
	Prefetch bool
	// MaxFetch, if not 0, is what a fetch brings of one partition at most, in bytes, if that is less than
	// the reader's own limit: a broker may always answer with less. A whole batch comes all the same.
	// Set before use.
	MaxFetch int

	// Protocol is the transaction protocol of this client's producers. Set before use.
	Protocol Protocol

	b       *Broker
	name    string
	leaders map[record.TopicPartition]int32 // leader epochs as known here
}

var _ broker.Cluster = (*Client)(nil)

// Client makes a client. name is seen in Call.Client.
func (b *Broker) Client(name string) *Client {
	return &Client{b: b, name: name, leaders: map[record.TopicPartition]int32{}}
}

// readAttempts bounds how often a question that changes nothing is asked again.
const readAttempts = 10

// ask sends a request that may be repeated without harm.
func (c *Client) ask(ctx context.Context, api API, where string, handle func() Code) error {
	var code Code
	for n := range readAttempts {
		if err := ctx.Err(); err != nil {
			return err
		}
		code = c.request(ctx, api, where, handle)
		switch code {
		case None:
			return nil
		case noAnswer, CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator, LeaderNotAvailable,
			NotLeaderOrFollower, RequestTimedOut, KafkaStorageError, FencedLeaderEpoch:
			c.sleep(backoff(n))
			continue
		}
		return newError(api, where, code, code.kind())
	}
	return newError(api, where, code, broker.ErrUnreachable)
}

// ID is the cluster's ID.
func (c *Client) ID(ctx context.Context) (string, error) {
	var id string
	err := c.ask(ctx, Metadata, "", func() Code { id = c.b.id; return None })
	return id, err
}

// Topics describes topics by name.
func (c *Client) Topics(ctx context.Context, names ...string) (map[string]broker.Topic, error) {
	var out map[string]broker.Topic
	err := c.ask(ctx, Metadata, "", func() Code {
		out = map[string]broker.Topic{}
		for _, name := range names {
			if t := c.b.topics[name]; t != nil {
				out[name] = t.Topic
			}
		}
		return None
	})
	return out, err
}

// CreateTopic makes a topic. If the answer is lost, the repeated request finds it there: ErrTopicExists.
func (c *Client) CreateTopic(ctx context.Context, t broker.Topic) error {
	return c.ask(ctx, CreateTopics, t.Name, func() Code { return c.b.createTopic(t) })
}

// DeleteRecords moves the start of logs.
func (c *Client) DeleteRecords(ctx context.Context, before map[record.TopicPartition]record.Offset) error {
	for _, tp := range sortedPartitions(before) {
		o := before[tp]
		err := c.ask(ctx, DeleteRecords, tp.String(), func() Code {
			l := c.b.log(tp)
			switch {
			case l == nil:
				return UnknownTopicOrPartition
			case o > l.end:
				return OffsetOutOfRange
			}
			l.moveStart(o)
			return None
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// StartOffsets returns the log starts.
func (c *Client) StartOffsets(ctx context.Context, tps []record.TopicPartition) (map[record.TopicPartition]record.Offset, error) {
	return c.listOffsets(ctx, tps, func(l *partitionLog) record.Offset { return l.start })
}

// HighWatermarks returns the logs' ends.
func (c *Client) HighWatermarks(ctx context.Context, tps []record.TopicPartition) (map[record.TopicPartition]record.Offset, error) {
	return c.listOffsets(ctx, tps, func(l *partitionLog) record.Offset { return l.end })
}

// StableOffsets returns the last stable offsets.
func (c *Client) StableOffsets(ctx context.Context, tps []record.TopicPartition) (map[record.TopicPartition]record.Offset, error) {
	return c.listOffsets(ctx, tps, (*partitionLog).stable)
}

func (c *Client) listOffsets(ctx context.Context, tps []record.TopicPartition, of func(*partitionLog) record.Offset) (map[record.TopicPartition]record.Offset, error) {
	var out map[record.TopicPartition]record.Offset
	err := c.ask(ctx, ListOffsets, "", func() Code {
		out = map[record.TopicPartition]record.Offset{}
		for _, tp := range tps {
			l := c.b.log(tp)
			if l == nil {
				return UnknownTopicOrPartition
			}
			out[tp] = of(l)
		}
		return None
	})
	return out, err
}

// CommittedOffsets asks with RequireStable.
func (c *Client) CommittedOffsets(ctx context.Context, group string, tps []record.TopicPartition) (map[record.TopicPartition]broker.CommittedOffset, error) {
	var out map[record.TopicPartition]broker.CommittedOffset
	err := c.ask(ctx, OffsetFetch, group, func() Code {
		out = map[record.TopicPartition]broker.CommittedOffset{}
		for _, tp := range tps {
			k := offsetKey{group, tp}
			if c.b.offsets.unstable(k) {
				return UnstableOffsetCommit
			}
			out[tp] = broker.CommittedOffset{Next: record.NoOffset, LeaderEpoch: -1}
			if o, ok := c.b.offsets.committed[k]; ok {
				out[tp] = o.CommittedOffset
			}
		}
		return None
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Join adds the member, spreads the partitions anew and waits until ctx ends; then the member gives
// back what it has and stays in the group, as a static member does. A simulation that drives the
// membership itself uses Group.Add and Group.Rebalance instead.
func (c *Client) Join(ctx context.Context, gc broker.GroupConfig, h broker.GroupHandler) error {
	if gc.Instance == "" {
		return newError("JoinGroup", gc.Group, None, broker.ErrConfig)
	}
	g := c.b.Group(gc.Group)
	g.Add(gc.Instance, gc.CoPartitioned, h)
	if gc.UserData != nil {
		g.Describe(gc.Instance, gc.UserData())
	}
	g.Rebalance(ctx, g.Spread())
	<-ctx.Done()
	g.balancing.Lock()
	defer g.balancing.Unlock()
	if owned := g.Owned(gc.Instance); len(owned) > 0 {
		// The rebalance timeout still runs after the end of the membership.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		h.Revoked(last, owned)
	}
	g.Silence(gc.Instance, true)
	return nil
}

// Members asks the coordinator who is in a group.
func (c *Client) Members(ctx context.Context, group string) ([]broker.Member, error) {
	var out []broker.Member
	rebalancing := false
	err := c.ask(ctx, DescribeGroups, group, func() Code {
		out, rebalancing = nil, false
		g := c.b.groups[group]
		if g == nil {
			return None
		}
		rebalancing = g.moving
		for _, in := range sortedKeys(g.members) {
			m := g.members[in]
			out = append(out, broker.Member{Instance: in, UserData: m.userData, Owned: append([]record.TopicPartition(nil), m.owned...)})
		}
		return None
	})
	switch {
	case err != nil:
		return nil, err
	case rebalancing:
		return nil, newError(DescribeGroups, group, None, broker.ErrRebalancing)
	}
	return out, nil
}

// LeaveGroup removes a static member; the others share its partitions at once.
func (c *Client) LeaveGroup(ctx context.Context, group, instance string) error {
	g := c.b.Group(group)
	g.Silence(instance, true)
	g.Remove(instance)
	g.Rebalance(ctx, g.Spread())
	return nil
}

// Close does nothing: there is no connection.
func (c *Client) Close() error { return nil }

// checkLeader is how a broker answers who is not the leader any more.
func (c *Client) checkLeader(tp record.TopicPartition) Code {
	l := c.b.log(tp)
	if l == nil {
		return UnknownTopicOrPartition
	}
	known, ok := c.leaders[tp]
	if !ok {
		c.leaders[tp] = l.leaderEpoch
	} else if known != l.leaderEpoch {
		return NotLeaderOrFollower
	}
	return None
}

// refresh asks for a partition's leader.
func (c *Client) refresh(ctx context.Context, tp record.TopicPartition) {
	c.request(ctx, Metadata, tp.String(), func() Code {
		delete(c.leaders, tp)
		return None
	})
}
