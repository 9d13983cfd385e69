package rawlog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Record is one committed record. Its bytes belong to whoever gets it.
type Record struct {
	Partition
	Offset     int64
	Time       time.Time
	Key, Value []byte // nil is null
	Headers    []Header
	Producer   int64 // the producer's ID; -1: not idempotent
}

// Header is one header of a record.
type Header struct {
	Key   string
	Value []byte
}

// Header returns the value of the last header with that key.
func (r *Record) Header(key string) (value []byte, ok bool) {
	for i := len(r.Headers) - 1; i >= 0; i-- {
		if r.Headers[i].Key == key {
			return r.Headers[i].Value, true
		}
	}
	return nil, false
}

// IsMark says whether a record of a repartition topic is a mark of event time (docs/format.md) and not one that an operator
// wrote: it has neither key nor value, no other header, and says that it is alone.
func (r *Record) IsMark() bool {
	if r.Key != nil || r.Value != nil || len(r.Headers) != 1 || r.Headers[0].Key != MarkHeader {
		return false
	}
	v := r.Headers[0].Value
	return len(v) > 1 && v[1]&markAlone != 0
}

// MarkHeader is the header of a mark, and the last one of a record that says the time of its writer.
const MarkHeader = "streamd-time"

const markAlone = 2 // flag: nothing but the mark

// WithoutMark returns the headers of a record of a repartition topic as its operator wrote them.
func (r *Record) WithoutMark() []Header {
	if n := len(r.Headers) - 1; n >= 0 && r.Headers[n].Key == MarkHeader {
		return r.Headers[:n]
	}
	return r.Headers
}

// Where returns "topic/partition@offset".
func (r *Record) Where() string { return At(r.Partition, r.Offset) }

// At writes a place as "topic/partition@offset".
func At(p Partition, offset int64) string { return fmt.Sprintf("%s@%d", p, offset) }

// Span is a half-open range of offsets.
type Span struct{ From, To int64 }

// Spans are all decided records of the partitions.
func Spans(bounds map[Partition]Bounds) map[Partition]Span {
	out := make(map[Partition]Span, len(bounds))
	for p, b := range bounds {
		out[p] = Span{b.Start, b.Stable}
	}
	return out
}

const (
	fetchBytes    = 4 << 20
	fetchWait     = 250 * time.Millisecond
	fetchAttempts = 120 // in a row without an answer that counts, about 100 ms apart
)

// Read calls fn for the committed records of the spans, one partition after the other in the order of
// their names, each in the order of its offsets. To must not lie behind the last stable offset. It stops
// at the first error of fn and returns it.
func (c *Cluster) Read(ctx context.Context, spans map[Partition]Span, fn func(Record) error) error {
	for _, p := range Sorted(spans) {
		if err := c.readPartition(ctx, p, spans[p], fn); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) readPartition(ctx context.Context, p Partition, s Span, fn func(Record) error) error {
	f := &Follower{c: c, p: p, next: s.From}
	for f.next < s.To {
		err := f.poll(ctx, 0, func(r Record) error {
			if r.Offset >= s.To {
				return nil
			}
			return fn(r)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Follower reads one partition on and on. It is used by one goroutine at a time.
type Follower struct {
	c        *Cluster
	p        Partition
	next     int64
	id       [16]byte
	leader   int32
	known    bool // id and leader
	failures int
}

// Follow reads the partition from an offset on.
func (c *Cluster) Follow(p Partition, from int64) *Follower { return &Follower{c: c, p: p, next: from} }

// Next is the offset behind all that was read, markers and aborted records included.
func (f *Follower) Next() int64 { return f.next }

// Poll waits a moment for records and hands out those that have come and are decided; maybe none.
func (f *Follower) Poll(ctx context.Context, fn func(Record) error) error {
	return f.poll(ctx, fetchWait, fn)
}

func (f *Follower) poll(ctx context.Context, patience time.Duration, fn func(Record) error) error {
	rp, err := f.fetch(ctx, patience)
	if err != nil {
		f.known = false // the leader may have moved
		// Only what time heals is tried again: a leader that moves, a broker that starts.
		var code *kerr.Error
		final := ctx.Err() != nil || errors.As(err, &code) && !code.Retriable || errors.Is(err, kerr.OffsetOutOfRange)
		if f.failures++; final || f.failures > fetchAttempts {
			return fault("read "+At(f.p, f.next), err)
		}
		return wait(ctx, 100*time.Millisecond)
	}
	opts := kgo.ProcessFetchPartitionOpts{Offset: f.next, IsolationLevel: kgo.ReadCommitted(), Topic: f.p.Topic, Partition: f.p.Number}
	got, next := kgo.ProcessFetchPartition(opts, rp, kgo.DefaultDecompressor(), nil)
	if got.Err != nil {
		return fault("read "+At(f.p, f.next), got.Err)
	}
	if next > f.next {
		f.failures = 0
		f.c.read.Add(next - f.next)
	}
	for _, r := range got.Records {
		if err := fn(f.record(r)); err != nil {
			return err
		}
	}
	f.next = next
	return nil
}

func (f *Follower) record(r *kgo.Record) Record {
	out := Record{Partition: f.p, Offset: r.Offset, Time: r.Timestamp, Key: r.Key, Value: r.Value, Producer: r.ProducerID}
	for _, h := range r.Headers {
		out.Headers = append(out.Headers, Header{h.Key, h.Value})
	}
	return out
}

// fetch makes one Fetch request to the leader. kgo's own consumer does not tell where it is behind
// markers and aborted records, which is what decides when a bounded read is done.
func (f *Follower) fetch(ctx context.Context, patience time.Duration) (*kmsg.FetchResponseTopicPartition, error) {
	if !f.known {
		meta, err := f.c.metadata(ctx, f.p.Topic)
		if err != nil {
			return nil, err
		}
		leader, ok := meta[f.p.Topic].leaders[f.p.Number]
		switch {
		case !ok:
			return nil, kerr.UnknownTopicOrPartition
		case leader < 0:
			return nil, kerr.LeaderNotAvailable
		}
		f.id, f.leader, f.known = meta[f.p.Topic].id, leader, true
	}
	req := kmsg.NewPtrFetchRequest()
	// The limit is that of the partition. One for all of them never cuts an answer short: kfake would leave its aborted transactions out.
	req.ReplicaID, req.IsolationLevel, req.MaxBytes, req.MinBytes = -1, 1, math.MaxInt32, 1
	req.MaxWaitMillis = int32(patience.Milliseconds())
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = f.p.Topic, f.id
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = f.p.Number, f.next, fetchBytes
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := f.c.client.Broker(int(f.leader)).Request(ctx, req)
	if err != nil {
		return nil, err
	}
	answer := resp.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
		return nil, err
	}
	for i := range answer.Topics {
		for j := range answer.Topics[i].Partitions {
			rp := &answer.Topics[i].Partitions[j]
			return rp, kerr.ErrorForCode(rp.ErrorCode)
		}
	}
	return nil, errors.New("the answer to a fetch is empty")
}
