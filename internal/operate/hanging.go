package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/verify/rawlog"
)

// opened is a transaction as the leader of one of its partitions knows it.
type opened struct {
	rawlog.Partition
	producer int64
	from     int64
}

type activeProducer = kmsg.DescribeProducersResponseTopicPartitionActiveProducer

// hanging asks the leaders which producers have something open in the pipeline's topics and in its group's offsets, and looks for what no
// coordinator will end.
func (x *inspection) hanging(ctx context.Context) error {
	var names []string
	for n := range x.topics {
		names = append(names, n)
	}
	there, err := x.describe(ctx, names)
	if err != nil {
		return err
	}
	// The group's offsets too: what hangs there keeps every new owner of a partition from starting.
	switch offsets, err := x.describe(ctx, []string{broker.OffsetsTopic}); {
	case errors.Is(err, broker.ErrAuthorization):
		x.out.Notes = append(x.out.Notes, "what hangs in the group's offsets is not known: "+err.Error())
	case err != nil:
		return err
	default:
		maps.Copy(there, offsets)
	}
	names = names[:0]
	req := kmsg.NewPtrDescribeProducersRequest()
	for n, info := range there {
		t := kmsg.NewDescribeProducersRequestTopic()
		t.Topic = n
		own := broker.OffsetsPartition(x.out.Pipeline, int(info.partitions))
		for p := range info.partitions {
			if n != broker.OffsetsTopic || x.all || p == own {
				t.Partitions = append(t.Partitions, p)
			}
		}
		names = append(names, n)
		req.Topics = append(req.Topics, t)
	}
	if x.bounds, err = x.Bounds(ctx, names...); err != nil || len(names) == 0 {
		return err
	}
	hung, err := x.unended(ctx, req)
	if err != nil {
		return err
	}
	for o, a := range hung {
		x.out.Hanging = append(x.out.Hanging, Hanging{
			HeldPartition: HeldPartition{Topic: o.Topic, Partition: o.Number, From: o.from, Readers: []Reader{}},
			Producer:      o.producer, Epoch: a.ProducerEpoch, Last: time.UnixMilli(a.LastTimestamp).UTC(), sequence: a.LastSequence,
		})
	}
	slices.SortFunc(x.out.Hanging, func(a, b Hanging) int {
		return cmp.Or(a.Last.Compare(b.Last), strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return x.decisions(ctx)
}

// unended are the transactions in these partitions that no coordinator will end.
//
// The order is what tells a hanging one from one that begins or ends meanwhile: the leaders are asked, then the coordinators, then the
// leaders again. What is open in both looks of the leaders from the same offset was open while the coordinators were asked. These add a partition to
// a transaction before the first record is written there, and forget it after its marker is: so that one of them had to name the partition. That a
// coordinator knows the producer says nothing: one that has left out a marker (KAFKA-20734) goes on with the producer's next transactions.
func (x *inspection) unended(ctx context.Context, req *kmsg.DescribeProducersRequest) (map[opened]activeProducer, error) {
	first, err := x.producers(ctx, req, true)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	x.begun(first)
	coordinators, err := x.described(ctx)
	if err != nil {
		return nil, err
	}
	named := map[opened]bool{}
	for _, t := range coordinators {
		for _, topic := range t.Topics {
			for _, n := range topic.Partitions {
				named[opened{rawlog.Partition{Topic: topic.Topic, Number: n}, t.ProducerID, 0}] = true
			}
		}
	}
	second, err := x.producers(ctx, req, false)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(second, func(o opened, _ activeProducer) bool {
		_, before := first[o]
		return !before || named[opened{o.Partition, o.producer, 0}]
	})
	return second, nil
}

// begun notes where the open transactions begin in their partitions.
func (x *inspection) begun(active map[opened]activeProducer) {
	for i := range x.out.Open {
		t := &x.out.Open[i]
		for j := range t.Partitions {
			h := &t.Partitions[j]
			for o := range active {
				if o.producer == t.Producer && o.Topic == h.Topic && o.Number == h.Partition {
					h.From = o.from
				}
			}
		}
	}
}

// producers asks the leaders. With note, partitions that do not answer are noted.
func (x *inspection) producers(ctx context.Context, req *kmsg.DescribeProducersRequest, note bool) (map[opened]activeProducer, error) {
	out := map[opened]activeProducer{}
	for _, shard := range x.kgo.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return nil, failed("describe producers", shard.Err)
		}
		for _, t := range shard.Resp.(*kmsg.DescribeProducersResponse).Topics {
			for _, p := range t.Partitions {
				if err := failedCode(fmt.Sprintf("producers of %s/%d", t.Topic, p.Partition), p.ErrorCode); err != nil {
					if note {
						x.out.Notes = append(x.out.Notes, err.Error())
					}
					continue
				}
				for _, a := range p.ActiveProducers {
					if a.CurrentTxnStartOffset >= 0 {
						out[opened{rawlog.Partition{Topic: t.Topic, Number: p.Partition}, a.ProducerID, a.CurrentTxnStartOffset}] = a
					}
				}
			}
		}
	}
	return out, nil
}
