package verify

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// Keyed is a record as a dedup step gets it, and what its key says about where it is.
type Keyed struct {
	Place string // TOPIC/PARTITION@OFFSET
	Key   []byte // its beginning: as much as is shown, of a record that is not kept
	// IsID says that the key is the ID by which the step knows it.
	IsID bool
	// Hashed says that the record is in the partition of its key, as the default partitioner of Kafka's clients places it.
	Hashed bool
}

// sampled is how many offsets at the end of each input partition are looked at.
const sampled = 200

// shownKey is how much of a key is kept.
const shownKey = 64

// SampleKeys looks at the newest records of a dedup step's inputs. Those that do not come as far as the step are not among them; there
// are none if the inputs are empty, not there yet, or cannot be run through the steps before.
func SampleKeys(ctx context.Context, p *pipeline.Pipeline, topo *topology.Topology, sub *topology.Subtopology, step string) ([]Keyed, error) {
	reach, err := Reach(p.Kafka)
	if err != nil {
		return nil, err
	}
	c, err := rawlog.Open(reach)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	cluster, err := c.ID(ctx)
	if err != nil {
		return nil, err
	}
	var out []Keyed
	spy := newSpy(cluster, sub, step)
	for i, x := range sub.Sources {
		bounds, err := c.Bounds(ctx, topo.SourceTopic(x))
		if errors.Is(err, broker.ErrUnknownTopic) {
			continue
		}
		if err != nil {
			return nil, err
		}
		spy.topicID = topo.SourceTopic(x) // an ID by position is no key, whatever it is made of
		chain, err := spy.chain(sub)
		if errors.Is(err, errNotReplayable) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		spans := rawlog.Spans(bounds)
		for tp, s := range spans {
			spans[tp] = rawlog.Span{From: max(s.From, s.To-sampled), To: s.To}
		}
		err = c.Read(ctx, spans, func(r rawlog.Record) error {
			spy.asked = func(h record.Hash, _ time.Time) {
				out = append(out, Keyed{
					Place: r.Where(), Key: bytes.Clone(r.Key[:min(len(r.Key), shownKey)]), IsID: h == record.BytesID(r.Key).Hash(),
					Hashed: r.Key != nil && record.PartitionForKey(r.Key, int32(len(bounds))) == record.Partition(r.Number),
				})
			}
			return spy.show(&r, chain.Sources[i])
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
