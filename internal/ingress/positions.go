package ingress

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// place is how far one file was read, as it stands in the topic of positions: in the transaction of the lines before it.
type place struct {
	// ID names the file as long as it only grows. Random: another file never gets the IDs of its lines.
	ID     string `json:"id"`
	Path   string `json:"path"` // where it was seen last, by placeName
	Dev    uint64 `json:"dev,omitempty"`
	Inode  uint64 `json:"inode,omitempty"`
	Offset int64  `json:"offset"` // of the next byte
	// Head and Tail are sums of the first bytes of the file and of those before Offset: a file that holds others there is another file.
	Head sum `json:"head"`
	Tail sum `json:"tail"`
	// Skipping says that Offset lies in a line that is too long and is passed over.
	Skipping bool `json:"skipping,omitempty"`
}

// placeName is a path as a place keeps it. JSON holds text only: a path of other bytes would come back as another one, and the place of a
// committed transaction would not be known again.
func placeName(path string) string { return strings.ToValidUTF8(path, "\uFFFD") }

// positions is the topic that holds the places of all owners, one partition, compacted.
type positions struct {
	cluster broker.Cluster
	topic   string
	owner   string
}

func (p *positions) tp() record.TopicPartition { return record.TopicPartition{Topic: p.topic} }

func (p *positions) key(id string) []byte { return []byte(p.owner + "\x00" + id) }

// output is the record that keeps a place.
func (p *positions) output(at place, now time.Time) (broker.Output, error) {
	b, err := json.Marshal(at)
	return broker.Output{TopicPartition: p.tp(), Timestamp: now, Key: p.key(at.ID), Value: b}, err
}

// forget is the record that deletes one.
func (p *positions) forget(id string, now time.Time) broker.Output {
	return broker.Output{TopicPartition: p.tp(), Timestamp: now, Key: p.key(id)}
}

// read returns the owner's places. Every older transaction of the owner must be decided.
func (p *positions) read(ctx context.Context) (map[string]place, error) {
	tps := []record.TopicPartition{p.tp()}
	ends, err := p.cluster.HighWatermarks(ctx, tps)
	if err != nil {
		return nil, fmt.Errorf("ingress: positions in %q: %w", p.topic, err)
	}
	starts, err := p.cluster.StartOffsets(ctx, tps)
	if err != nil {
		return nil, fmt.Errorf("ingress: positions in %q: %w", p.topic, err)
	}
	r := p.cluster.NewReader(broker.ReaderConfig{})
	defer r.Close()
	at, end := starts[p.tp()], ends[p.tp()]
	places := map[string]place{}
	r.Seek(p.tp(), at, 1)
	for at < end {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for _, b := range r.Poll(ctx, time.Second) {
			if b.Err != nil {
				return nil, fmt.Errorf("ingress: positions in %q: %w", p.topic, b.Err)
			}
			for i := range b.Records {
				if err := p.apply(places, &b.Records[i]); err != nil {
					return nil, err
				}
			}
			at = b.Next
		}
	}
	return places, nil
}

func (p *positions) apply(places map[string]place, r *broker.Record) error {
	id, mine := strings.CutPrefix(string(r.Key), p.owner+"\x00")
	if !mine {
		return nil
	}
	if r.Value == nil {
		delete(places, id)
		return nil
	}
	var at place
	if err := json.Unmarshal(r.Value, &at); err != nil || at.ID != id || at.Offset < 0 {
		return fmt.Errorf("ingress: the record at offset %d of %q is no position: %w", r.Offset, p.topic, broker.ErrCorrupt)
	}
	places[id] = at
	return nil
}
