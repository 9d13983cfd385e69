package simbroker

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// reader is a Fetch reader: one fetch with all partitions in it, batches tagged by the Seek that they
// belong to.
type reader struct {
	c     *Client
	conf  broker.ReaderConfig
	order []record.TopicPartition // of Seek: fetches must not depend on a map's order
	parts map[record.TopicPartition]*readPosition
	ahead []broker.Batch // fetched, not yet returned (Client.Prefetch)
	woken atomic.Bool
}

type readPosition struct {
	next   record.Offset
	tag    uint64
	paused bool
	ended  bool // an error was reported: nothing more until Seek
}

// NewReader makes a reader without partitions.
func (c *Client) NewReader(conf broker.ReaderConfig) broker.Reader {
	if conf.MaxBytes == 0 {
		conf.MaxBytes = 1 << 20
	}
	return &reader{c: c, conf: conf, parts: map[record.TopicPartition]*readPosition{}}
}

// Seek starts or moves the reading of a partition. It keeps a pause.
func (r *reader) Seek(tp record.TopicPartition, next record.Offset, tag uint64) {
	p := r.parts[tp]
	if p == nil {
		p = &readPosition{}
		r.parts[tp] = p
		r.order = append(r.order, tp)
	}
	p.next, p.tag, p.ended = next, tag, false
}

// Pause leaves a partition out of the next fetches.
func (r *reader) Pause(tp record.TopicPartition, paused bool) {
	if p := r.parts[tp]; p != nil {
		p.paused = paused
	}
}

// Remove ends the reading of a partition.
func (r *reader) Remove(tp record.TopicPartition) {
	if r.parts[tp] == nil {
		return
	}
	delete(r.parts, tp)
	for i, o := range r.order {
		if o == tp {
			r.order = append(r.order[:i], r.order[i+1:]...)
			return
		}
	}
}

// Poll returns what one fetch brings. If that is nothing, virtual time passes by wait and it fetches
// once more.
func (r *reader) Poll(ctx context.Context, wait time.Duration) []broker.Batch {
	if r.woken.Swap(false) || ctx.Err() != nil {
		return nil
	}
	out := r.next(ctx)
	if wait <= 0 || news(out) {
		return out
	}
	r.c.sleep(wait)
	if r.woken.Swap(false) || ctx.Err() != nil {
		return out
	}
	return append(out, r.next(ctx)...)
}

func (r *reader) next(ctx context.Context) []broker.Batch {
	if !r.c.Prefetch {
		return r.fetch(ctx)
	}
	if !news(r.ahead) {
		r.ahead = append(r.ahead, r.fetch(ctx)...)
	}
	out := r.ahead
	r.ahead = nil
	if news(out) {
		r.ahead = r.fetch(ctx)
	}
	return out
}

// news says whether anything has come but answers that brought nothing.
func news(batches []broker.Batch) bool {
	return slices.ContainsFunc(batches, func(b broker.Batch) bool { return !b.Nothing })
}

// fetch is one Fetch request. One that brings nothing back is simply tried again by the next Poll.
func (r *reader) fetch(ctx context.Context) []broker.Batch {
	idle := true
	for _, tp := range r.order {
		p := r.parts[tp]
		idle = idle && (p.paused || p.ended)
	}
	if idle {
		return nil
	}
	var out []broker.Batch
	var moved []record.TopicPartition // whose leader is another one now
	asked := r.c.b.Now()
	code := r.c.request(ctx, Fetch, "", func() Code {
		out, moved = nil, nil
		for _, tp := range r.order {
			if p := r.parts[tp]; p != nil && !p.paused && !p.ended {
				b, code := r.read(tp, p)
				b.Asked, b.Nothing = asked, b.Err == nil && b.Next == p.next
				if code == NotLeaderOrFollower {
					moved = append(moved, tp)
				} else if r.conf.Answers || !b.Nothing {
					out = append(out, b)
				}
			}
		}
		return None
	})
	for _, tp := range moved {
		r.c.refresh(ctx, tp)
	}
	if code == noAnswer {
		return nil
	}
	if code != None {
		return r.failed(code)
	}
	for i := range out {
		if p := r.parts[out[i].TopicPartition]; p != nil && p.tag == out[i].Tag {
			p.next = out[i].Next
			p.ended = out[i].Err != nil
		}
	}
	return out
}

func (r *reader) read(tp record.TopicPartition, p *readPosition) (broker.Batch, Code) {
	b := broker.Batch{TopicPartition: tp, Tag: p.tag, Next: p.next}
	code := r.c.checkLeader(tp)
	if code == None {
		l := r.c.b.log(tp)
		b.HighWatermark, b.LastStable = l.end, l.stable()
		var recs []broker.Record
		limit := int(r.conf.MaxBytes)
		if r.c.MaxFetch > 0 {
			limit = min(limit, r.c.MaxFetch)
		}
		recs, b.Next, code = l.fetch(p.next, limit, r.conf.Isolation)
		b.Records = cloned(recs)
	}
	if code != None && code != NotLeaderOrFollower {
		b.Err = newError(Fetch, tp.String(), code, code.kind())
	}
	return b, code
}

// failed turns an error that answered the whole fetch into one per partition, unless it heals by itself.
func (r *reader) failed(code Code) []broker.Batch {
	switch code {
	case OffsetOutOfRange, CorruptMessage, TopicAuthorizationFailed:
	default:
		return nil
	}
	var out []broker.Batch
	for _, tp := range r.order {
		if p := r.parts[tp]; !p.paused && !p.ended {
			p.ended = true
			out = append(out, broker.Batch{TopicPartition: tp, Tag: p.tag, Next: p.next, Err: newError(Fetch, tp.String(), code, code.kind())})
		}
	}
	return out
}

// cloned copies what the caller will own: the log must not change by a caller's hand.
func cloned(recs []broker.Record) []broker.Record {
	for i := range recs {
		r := &recs[i]
		r.Key, r.Value = clone(r.Key), clone(r.Value)
		r.Headers = cloneHeaders(r.Headers)
	}
	return recs
}

func cloneHeaders(hs record.Headers) record.Headers {
	if hs == nil {
		return nil
	}
	out := make(record.Headers, len(hs))
	for k, h := range hs {
		out[k] = record.Header{Key: h.Key, Value: clone(h.Value)}
	}
	return out
}

func clone(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append([]byte{}, b...)
}

// Wake makes a Poll return at once.
func (r *reader) Wake() { r.woken.Store(true) }

// Close ends the reader.
func (r *reader) Close() { r.order, r.parts, r.ahead = nil, nil, nil }
