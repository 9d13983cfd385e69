//go:build kafka

package chaos

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ask runs a question to the brokers with a client of its own.
func (w *world) ask(f func(ctx context.Context, c *kgo.Client) error) error {
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers.Addresses()...), kgo.MetadataMinAge(50*time.Millisecond), kgo.RetryTimeout(5*time.Second))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(w.ctx, 15*time.Second)
	defer cancel()
	return f(ctx, c)
}

// transaction is one that a coordinator knows.
type transaction struct{ id, state string }

// transactions lists those of the application.
func (w *world) transactions() (out []transaction, err error) {
	err = w.ask(func(ctx context.Context, c *kgo.Client) error {
		out = nil
		for _, shard := range c.RequestSharded(ctx, kmsg.NewPtrListTransactionsRequest()) {
			if shard.Err != nil {
				return shard.Err
			}
			resp := shard.Resp.(*kmsg.ListTransactionsResponse)
			if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
				return err
			}
			for _, s := range resp.TransactionStates {
				if strings.HasPrefix(s.TransactionalID, w.app+"-") {
					out = append(out, transaction{s.TransactionalID, s.TransactionState})
				}
			}
		}
		return nil
	})
	return out, err
}

// quiet waits until no transaction of the application is open and all that is in its topics is stable: the last stable
// offset is the high watermark everywhere.
func (w *world) quiet(limit time.Duration) {
	w.Helper()
	w.until(limit, func() (bool, string) {
		txns, err := w.transactions()
		if err != nil {
			return false, err.Error()
		}
		for _, t := range txns {
			if t.state != "CompleteCommit" && t.state != "CompleteAbort" && t.state != "Empty" {
				return false, fmt.Sprintf("transaction %s is in state %s", t.id, t.state)
			}
		}
		high, err := w.ends(0)
		if err != nil {
			return false, err.Error()
		}
		stable, err := w.ends(1)
		if err != nil {
			return false, err.Error()
		}
		for p, n := range high {
			if stable[p] != n {
				return false, fmt.Sprintf("%s: stable up to %d of %d", p, stable[p], n)
			}
		}
		return len(high) > 0, "no topics"
	})
}

// ends returns the end of each partition of the application's topics, by "topic/partition".
func (w *world) ends(isolation int8) (map[string]int64, error) {
	out := map[string]int64{}
	err := w.ask(func(ctx context.Context, c *kgo.Client) error {
		meta := kmsg.NewPtrMetadataRequest() // nil: every topic
		m, err := meta.RequestWith(ctx, c)
		if err != nil {
			return err
		}
		req := kmsg.NewPtrListOffsetsRequest()
		req.ReplicaID, req.IsolationLevel = -1, isolation
		for _, t := range m.Topics {
			if t.Topic == nil || !strings.HasPrefix(*t.Topic, w.app+"-") && !strings.HasPrefix(*t.Topic, w.app+".") {
				continue
			}
			rt := kmsg.NewListOffsetsRequestTopic()
			rt.Topic = *t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewListOffsetsRequestTopicPartition()
				rp.Partition, rp.Timestamp = p.Partition, -1
				rt.Partitions = append(rt.Partitions, rp)
			}
			req.Topics = append(req.Topics, rt)
		}
		for _, shard := range c.RequestSharded(ctx, req) {
			if shard.Err != nil {
				return shard.Err
			}
			for _, t := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
				for _, p := range t.Partitions {
					if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
						return err
					}
					out[fmt.Sprintf("%s/%d", t.Topic, p.Partition)] = p.Offset
				}
			}
		}
		return nil
	})
	return out, err
}

// configure sets settings of a topic.
func (w *world) configure(topic string, settings map[string]string) {
	w.Helper()
	w.must(w.ask(func(ctx context.Context, c *kgo.Client) error {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		r := kmsg.NewIncrementalAlterConfigsRequestResource()
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, topic
		for k, v := range settings {
			x := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
			x.Name, x.Value = k, kmsg.StringPtr(v)
			r.Configs = append(r.Configs, x)
		}
		req.Resources = append(req.Resources, r)
		resp, err := req.RequestWith(ctx, c)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.Resources[0].ErrorCode)
	}))
}

// deleteTopic deletes a topic and waits until it is gone.
func (w *world) deleteTopic(topic string) {
	w.Helper()
	w.must(w.ask(func(ctx context.Context, c *kgo.Client) error {
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.TimeoutMillis, req.TopicNames = 10_000, []string{topic}
		t := kmsg.NewDeleteTopicsRequestTopic()
		t.Topic = &topic
		req.Topics = append(req.Topics, t)
		resp, err := req.RequestWith(ctx, c)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}))
}

// count returns how many records a topic holds, markers not counted, and how many offsets it has given out.
func (w *world) count(topic string) (records, offsets int64) {
	w.Helper()
	ends, err := w.ends(0)
	w.must(err)
	from := map[int32]kgo.Offset{}
	for p := range int32(partitions) {
		from[p] = kgo.NewOffset().AtStart()
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers.Addresses()...), kgo.KeepControlRecords(), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	w.must(err)
	defer c.Close()
	open := map[int32]int64{}
	for p := range int32(partitions) {
		if end := ends[fmt.Sprintf("%s/%d", topic, p)]; end > 0 {
			open[p] = end
			offsets += end
		}
	}
	for len(open) > 0 {
		w.must(w.ctx.Err())
		c.PollFetches(w.ctx).EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				records++
			}
			if r.Offset+1 >= open[r.Partition] { // the last one is never compacted away
				delete(open, r.Partition)
			}
		})
	}
	return records, offsets
}
