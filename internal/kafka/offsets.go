package kafka

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// StartOffsets implements broker.Cluster.
func (c *Cluster) StartOffsets(ctx context.Context, tps []record.TopicPartition) (map[record.TopicPartition]record.Offset, error) {
	return c.listOffsets(ctx, tps, sarama.OffsetOldest, sarama.ReadUncommitted)
}

// HighWatermarks implements broker.Cluster.
func (c *Cluster) HighWatermarks(ctx context.Context, tps []record.TopicPartition) (map[record.TopicPartition]record.Offset, error) {
	return c.listOffsets(ctx, tps, sarama.OffsetNewest, sarama.ReadUncommitted)
}

// StableOffsets implements broker.Cluster: the same request as HighWatermarks, but with read_committed,
// which makes the leader answer with the last stable offset.
func (c *Cluster) StableOffsets(ctx context.Context, tps []record.TopicPartition) (map[record.TopicPartition]record.Offset, error) {
	return c.listOffsets(ctx, tps, sarama.OffsetNewest, sarama.ReadCommitted)
}

// listOffsets asks each leader once for all of its partitions, and again for those whose leader moved.
func (c *Cluster) listOffsets(ctx context.Context, tps []record.TopicPartition, at int64, level sarama.IsolationLevel) (map[record.TopicPartition]record.Offset, error) {
	out := make(map[record.TopicPartition]record.Offset, len(tps))
	first := true
	where := fmt.Sprintf("of %d partitions", len(tps))
	err := c.retrying(ctx, reqListOffsets, where, adminLimit, func(ctx context.Context) error {
		byLeader, err := c.byLeader(ctx, tps, func(tp record.TopicPartition) bool { _, ok := out[tp]; return ok }, !first)
		first = false
		if err != nil {
			return err
		}
		for addr, mine := range byLeader {
			if lerr := c.listFrom(ctx, addr, mine, at, level, out); lerr != nil {
				err = lerr
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// byLeader groups the partitions that are not done by the address of their leader.
func (c *Cluster) byLeader(ctx context.Context, tps []record.TopicPartition, done func(record.TopicPartition) bool, anew bool) (map[string][]record.TopicPartition, error) {
	out := make(map[string][]record.TopicPartition)
	if anew {
		topics := map[string]bool{}
		var names []string
		for _, tp := range tps {
			if !done(tp) && !topics[tp.Topic] {
				topics[tp.Topic] = true
				names = append(names, tp.Topic)
			}
		}
		c.refresh(ctx, names)
	}
	for _, tp := range tps {
		if done(tp) {
			continue
		}
		_, addr, err := c.leader(ctx, tp)
		if err != nil {
			return nil, err
		}
		out[addr] = append(out[addr], tp)
	}
	return out, nil
}

func (c *Cluster) listFrom(ctx context.Context, addr string, tps []record.TopicPartition, at int64, level sarama.IsolationLevel, out map[record.TopicPartition]record.Offset) error {
	req := sarama.NewOffsetRequest(protocolVersion())
	req.IsolationLevel = level
	for _, tp := range tps {
		req.AddBlock(tp.Topic, int32(tp.Partition), at, 1)
	}
	var resp *sarama.OffsetResponse
	err := c.ask(ctx, addr, func(b *sarama.Broker) (err error) {
		resp, err = b.GetAvailableOffsets(req)
		return err
	})
	if err != nil {
		return err
	}
	for _, tp := range tps {
		block := resp.GetBlock(tp.Topic, int32(tp.Partition))
		switch {
		case block == nil:
			err = fmt.Errorf("the answer lacks %s", tp)
		case block.Err != sarama.ErrNoError:
			where := tp.String()
			if block.Err == sarama.ErrTopicAuthorizationFailed {
				where = tp.Topic
			}
			err = codeError(reqListOffsets, where, block.Err)
		default:
			out[tp] = record.Offset(block.Offset)
		}
	}
	return err
}

// CommittedOffsets implements broker.Cluster. It does not wait for an undecided transaction but says
// ErrUnstableOffsets: how long to wait, and what to tell meanwhile, is the caller's to decide.
func (c *Cluster) CommittedOffsets(ctx context.Context, group string, tps []record.TopicPartition) (map[record.TopicPartition]broker.CommittedOffset, error) {
	var out map[record.TopicPartition]broker.CommittedOffset
	begin := time.Now()
	err := c.retrying(ctx, reqOffsetFetch, group, adminLimit, func(ctx context.Context) error {
		addr, err := c.coordinator(ctx, group, sarama.CoordinatorGroup)
		if err != nil {
			return cmp.Or(c.explainWait(ctx, sarama.CoordinatorGroup, err, time.Since(begin)), err)
		}
		out, err = c.committedFrom(ctx, addr, group, tps)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (c *Cluster) committedFrom(ctx context.Context, addr, group string, tps []record.TopicPartition) (map[record.TopicPartition]broker.CommittedOffset, error) {
	partitions := make(map[string][]int32)
	for _, tp := range tps {
		partitions[tp.Topic] = append(partitions[tp.Topic], int32(tp.Partition))
	}
	// Version 7: the first with RequireStable, and the last before the multi-group form.
	req := sarama.NewOffsetFetchRequest(sarama.V2_8_0_0, group, partitions)
	req.RequireStable = true
	var resp *sarama.OffsetFetchResponse
	err := c.ask(ctx, addr, func(b *sarama.Broker) (err error) {
		resp, err = b.FetchOffset(req)
		return err
	})
	if err != nil {
		return nil, err
	}
	if resp.Err != sarama.ErrNoError {
		return nil, codeError(reqOffsetFetch, group, resp.Err)
	}
	out := make(map[record.TopicPartition]broker.CommittedOffset, len(tps))
	for _, tp := range tps {
		block := resp.GetBlock(tp.Topic, int32(tp.Partition))
		if block == nil {
			return nil, fmt.Errorf("the answer lacks %s", tp)
		}
		if block.Err != sarama.ErrNoError {
			where := fmt.Sprintf("%s of %s", tp, group)
			if block.Err == sarama.ErrTopicAuthorizationFailed {
				where = tp.Topic
			}
			return nil, codeError(reqOffsetFetch, where, block.Err)
		}
		o := broker.CommittedOffset{Next: record.Offset(block.Offset), LeaderEpoch: block.LeaderEpoch, Metadata: block.Metadata}
		if o.Next < 0 {
			o = broker.CommittedOffset{Next: record.NoOffset, LeaderEpoch: -1}
		}
		out[tp] = o
	}
	return out, nil
}

// DeleteRecords implements broker.Cluster. A leader that moves is asked again; a partition whose log
// starts later already answers no error.
func (c *Cluster) DeleteRecords(ctx context.Context, before map[record.TopicPartition]record.Offset) error {
	tps := make([]record.TopicPartition, 0, len(before))
	for tp := range before {
		tps = append(tps, tp)
	}
	done := map[record.TopicPartition]bool{}
	first := true
	where := fmt.Sprintf("of %d partitions", len(tps))
	return c.retrying(ctx, reqDeleteRecords, where, adminLimit, func(ctx context.Context) error {
		byLeader, err := c.byLeader(ctx, tps, func(tp record.TopicPartition) bool { return done[tp] }, !first)
		first = false
		if err != nil {
			return err
		}
		for addr, mine := range byLeader {
			if derr := c.deleteFrom(ctx, addr, mine, before, done); derr != nil {
				err = derr
			}
		}
		return err
	})
}

func (c *Cluster) deleteFrom(ctx context.Context, addr string, tps []record.TopicPartition, before map[record.TopicPartition]record.Offset, done map[record.TopicPartition]bool) error {
	req := &sarama.DeleteRecordsRequest{Version: 1, Topics: map[string]*sarama.DeleteRecordsRequestTopic{}, Timeout: produceTimeout}
	for _, tp := range tps {
		t := req.Topics[tp.Topic]
		if t == nil {
			t = &sarama.DeleteRecordsRequestTopic{PartitionOffsets: map[int32]int64{}}
			req.Topics[tp.Topic] = t
		}
		t.PartitionOffsets[int32(tp.Partition)] = int64(before[tp])
	}
	var resp *sarama.DeleteRecordsResponse
	err := c.ask(ctx, addr, func(b *sarama.Broker) (err error) {
		resp, err = b.DeleteRecords(req)
		return err
	})
	if err != nil {
		return err
	}
	for _, tp := range tps {
		t := resp.Topics[tp.Topic]
		if t == nil || t.Partitions[int32(tp.Partition)] == nil {
			err = fmt.Errorf("the answer lacks %s", tp)
			continue
		}
		if code := t.Partitions[int32(tp.Partition)].Err; code != sarama.ErrNoError {
			err = codeError(reqDeleteRecords, tp.Topic, code)
			continue
		}
		done[tp] = true
	}
	return err
}

// LeaveGroup implements broker.Cluster. A member that the group does not know has left already.
func (c *Cluster) LeaveGroup(ctx context.Context, group, instance string) error {
	return c.retrying(ctx, reqLeave, group, adminLimit, func(ctx context.Context) error {
		addr, err := c.coordinator(ctx, group, sarama.CoordinatorGroup)
		if err != nil {
			return err
		}
		var resp *sarama.LeaveGroupResponse
		err = c.ask(ctx, addr, func(b *sarama.Broker) (err error) {
			resp, err = b.LeaveGroup(&sarama.LeaveGroupRequest{
				Version: 4, GroupId: group, Members: []sarama.MemberIdentity{{GroupInstanceId: &instance}},
			})
			return err
		})
		if err != nil {
			return err
		}
		code := resp.Err
		for _, m := range resp.Members {
			if code == sarama.ErrNoError {
				code = m.Err
			}
		}
		if code == sarama.ErrNoError || code == sarama.ErrUnknownMemberId {
			return nil
		}
		return codeError(reqLeave, group, code)
	})
}
