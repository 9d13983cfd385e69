package kafka

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// versionDescribeGroups is the first with group.instance.id (KIP-345).
const versionDescribeGroups = 4

// The states of a group in which everybody may see what its members have: in the others the coordinator leaves that out.
const (
	groupStable = "Stable"
	groupEmpty  = "Empty"
	groupDead   = "Dead" // also: there is none
)

// Members implements broker.Cluster.
func (c *Cluster) Members(ctx context.Context, group string) ([]broker.Member, error) {
	var out []broker.Member
	var unknown error // an answer that asking again at once does not better: whoever waits for it is told
	err := c.retrying(ctx, reqMembers, group, adminLimit, func(ctx context.Context) error {
		addr, err := c.coordinator(ctx, group, sarama.CoordinatorGroup)
		if err != nil {
			return err
		}
		var resp *sarama.DescribeGroupsResponse
		err = c.ask(ctx, addr, func(b *sarama.Broker) (err error) {
			resp, err = b.DescribeGroups(&sarama.DescribeGroupsRequest{Version: versionDescribeGroups, Groups: []string{group}})
			return err
		})
		if err != nil {
			return err
		}
		if len(resp.Groups) != 1 || resp.Groups[0].GroupId != group {
			return fmt.Errorf("the answer lacks group %s", group)
		}
		g := resp.Groups[0]
		if code := sarama.KError(g.ErrorCode); code != sarama.ErrNoError {
			return codeError(reqMembers, group, code)
		}
		switch g.State {
		case groupStable:
			out, unknown = members(g)
			return nil
		case groupEmpty, groupDead:
			out = nil
			return nil
		}
		unknown = &broker.Error{Op: string(reqMembers), Where: group, Kind: broker.ErrRebalancing, Cause: fmt.Errorf("it is in state %s", g.State)}
		return nil
	})
	if err == nil {
		err = unknown
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// members reads what the members have said and got. A member of another program in the group may have said anything.
func members(g *sarama.GroupDescription) ([]broker.Member, error) {
	out := make([]broker.Member, 0, len(g.Members))
	for id, m := range g.Members {
		said, err := m.GetMemberMetadata()
		if err == nil {
			var got *sarama.ConsumerGroupMemberAssignment
			if got, err = m.GetMemberAssignment(); err == nil {
				out = append(out, memberOf(m, said, got))
				continue
			}
		}
		return nil, &broker.Error{Op: string(reqMembers), Where: g.GroupId, Kind: broker.ErrCorrupt, Cause: fmt.Errorf("member %s: %w", id, err)}
	}
	slices.SortFunc(out, func(a, b broker.Member) int { return cmp.Compare(a.Instance, b.Instance) })
	return out, nil
}

func memberOf(m *sarama.GroupMemberDescription, said *sarama.ConsumerGroupMemberMetadata, got *sarama.ConsumerGroupMemberAssignment) broker.Member {
	var x broker.Member
	if m.GroupInstanceId != nil {
		x.Instance = *m.GroupInstanceId
	}
	if said != nil {
		x.UserData = said.UserData
	}
	if got != nil {
		for topic, ps := range got.Topics {
			for _, p := range ps {
				x.Owned = append(x.Owned, record.TopicPartition{Topic: topic, Partition: record.Partition(p)})
			}
		}
	}
	slices.SortFunc(x.Owned, func(a, b record.TopicPartition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return x
}
