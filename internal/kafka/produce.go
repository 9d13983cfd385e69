package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/record"
)

const (
	// produceTimeout is how long a leader waits for its followers before it answers REQUEST_TIMED_OUT,
	// after which the same batch is sent again with the same sequence.
	produceTimeout = 5 * time.Second
	// maxProduce bounds one request, so that it stays below socket.request.max.bytes and in cache;
	// a larger single batch goes alone.
	maxProduce = 16 << 20
)

// leg is what one leader gets: in each request at most one batch per partition, since the broker
// appends the batches of a request in any order and sequences must go up.
type leg struct {
	id   int32
	addr string
	todo []*outPart
	err  error
}

// produce sends every batch and waits for every acknowledgement. Each round asks for the leaders,
// then works them off in parallel; partitions whose leader moved are left for the next round.
func (p *producer) produce(ctx context.Context) error {
	// By topic, since a request may name each topic once only: brokers drop the second one silently.
	slices.SortFunc(p.touched, func(a, b *outPart) int {
		return cmp.Or(strings.Compare(a.tp.Topic, b.tp.Topic), cmp.Compare(a.tp.Partition, b.tp.Partition))
	})
	for _, part := range p.touched {
		part.sent, part.next = 0, record.NoOffset
		for _, b := range part.batches {
			if err := b.pack(&p.comp, p.kind); err != nil {
				return &broker.Error{Op: string(reqProduce), Where: part.tp.String(), Kind: broker.ErrAbortable, Cause: err}
			}
		}
	}
	// Nobody asks for metadata in the first round: leaders hardly ever move.
	var refresh []string
	for n := 0; ; n++ {
		legs, err := p.legs(ctx, refresh)
		if len(legs) == 0 && err == nil {
			return nil
		}
		if err == nil {
			err = p.runLegs(ctx, legs)
		}
		if err != nil {
			return err
		}
		refresh = refresh[:0]
		for _, part := range p.touched {
			if part.sent < len(part.batches) && len(legs) > 0 {
				refresh = append(refresh, part.tp.Topic)
			}
		}
		if len(refresh) > 0 || len(legs) == 0 {
			if sleep(ctx, backoff(n, time.Millisecond, 50*time.Millisecond)) != nil {
				return unfinished(ctx, p.touched)
			}
		}
	}
}

// unfinished is the error of a deadline: that of the first of these partitions which is not through.
func unfinished(ctx context.Context, parts []*outPart) error {
	for _, part := range parts {
		if part.sent < len(part.batches) {
			return &broker.Error{
				Op: string(reqProduce), Where: part.tp.String(), Kind: broker.ErrUnreachable,
				Cause: fmt.Errorf("no leader took the batch before the deadline: %w", context.Cause(ctx)),
			}
		}
	}
	return ctx.Err()
}

// legs groups the partitions that still have something to send by their leaders.
func (p *producer) legs(ctx context.Context, refresh []string) ([]*leg, error) {
	if len(refresh) > 0 {
		p.c.refresh(ctx, refresh)
	}
	var legs []*leg
	byID := map[int32]*leg{}
	for n := 0; ; n++ {
		var missing []string
		legs = legs[:0]
		clear(byID)
		for _, part := range p.touched {
			if part.sent == len(part.batches) {
				continue
			}
			id, addr, err := p.c.leader(ctx, part.tp)
			if err != nil {
				var e *broker.Error
				if errors.As(err, &e) && fatal(e.Kind) {
					return nil, err
				}
				missing = append(missing, part.tp.Topic)
				if ctx.Err() != nil {
					return nil, err
				}
				continue
			}
			l := byID[id]
			if l == nil {
				l = &leg{id: id, addr: addr}
				byID[id] = l
				legs = append(legs, l)
			}
			l.todo = append(l.todo, part)
		}
		if len(missing) == 0 {
			return legs, nil
		}
		if sleep(ctx, backoff(n, time.Millisecond, 50*time.Millisecond)) != nil {
			return nil, unfinished(ctx, p.touched)
		}
		p.c.refresh(ctx, missing)
	}
}

// leaderLink is the connection to a leader, which stays open if the address does not change.
func (p *producer) leaderLink(id int32, addr string) *link {
	k := p.leaders[id]
	if k == nil {
		k = &link{c: p.c}
		p.leaders[id] = k
	}
	k.find = func(context.Context) (string, error) { return addr, nil }
	return k
}

// runLegs works the leaders off in parallel, the first one in this goroutine.
func (p *producer) runLegs(ctx context.Context, legs []*leg) error {
	for _, l := range legs {
		p.leaderLink(l.id, l.addr)
		if p.frames[l.id] == nil {
			p.frames[l.id] = make([]byte, 0, 4096)
		}
	}
	var wg sync.WaitGroup
	bufs := make([][]byte, len(legs))
	for i, l := range legs[1:] {
		buf, k := p.frames[l.id], p.leaders[l.id]
		wg.Go(func() { bufs[i+1], l.err = p.runLeg(ctx, l, k, buf) })
	}
	bufs[0], legs[0].err = p.runLeg(ctx, legs[0], p.leaders[legs[0].id], p.frames[legs[0].id])
	wg.Wait()
	var worst error
	for i, l := range legs {
		if cap(bufs[i]) <= maxProduce {
			p.frames[l.id] = bufs[i][:0]
		}
		// A request without an answer outweighs an answered error: it is why the epoch must change.
		if l.err != nil && (worst == nil || isLost(l.err)) {
			worst = l.err
		}
		var be *broker.Error
		if errors.As(l.err, &be) {
			if _, react := classify(reqProduce, sarama.KError(be.Code)); react == renew {
				p.pid, p.epoch = -1, -1
			}
		}
	}
	return worst
}

// runLeg sends to one leader until its partitions are through or have to go elsewhere. It touches
// only the link, the buffer and the partitions of its leg. An error ends the transaction.
func (p *producer) runLeg(ctx context.Context, l *leg, to *link, buf []byte) ([]byte, error) {
	for n := 0; ; {
		now := l.request()
		if len(now) == 0 {
			return buf, nil
		}
		k, err := to.get(ctx)
		if err != nil {
			var be *broker.Error
			if errors.As(err, &be) && fatal(be.Kind) {
				return buf, err
			}
			return buf, nil // nothing was sent: ask for the leaders anew
		}
		buf = p.produceFrame(k, buf, now)
		body, err := k.roundTrip(ctx, buf, produceTimeout)
		if err != nil {
			return buf, p.unanswered(to, now[0].tp, err)
		}
		answers, throttle, err := decodeProduce(body)
		k.muted = time.Now().Add(throttle)
		if err != nil { // an answer that cannot be read is no answer: the rule holds for it too
			return buf, p.unanswered(to, now[0].tp, &lostError{err})
		}
		fault.Point("produce")
		again, err := p.acknowledge(l, now, answers)
		if err != nil {
			return buf, err
		}
		if !again {
			n = 0
			continue
		}
		if sleep(ctx, backoff(n, time.Millisecond, 50*time.Millisecond)) != nil {
			return buf, unfinished(ctx, l.todo) // the partitions of the other legs are theirs
		}
		n++
	}
}

// unanswered is what follows from a Produce request without an answer. A transaction is over by it. A sender asks for the
// leaders and sends the same batches under the same sequence numbers, which no other batch ever gets: by
// them the broker knows what it has already, and refuses the first request should it arrive after the second one.
func (p *producer) unanswered(to *link, tp record.TopicPartition, err error) error {
	to.drop()
	if p.alone {
		p.c.heals(reqProduce, tp.String(), err)
		return nil
	}
	return &broker.Error{Op: string(reqProduce), Where: tp.String(), Kind: broker.ErrUnreachable, Cause: err}
}

// request picks the next batch of each partition, up to maxProduce bytes in all.
func (l *leg) request() []*outPart {
	var now []*outPart
	bytes := 0
	for _, part := range l.todo {
		if part.sent == len(part.batches) {
			continue
		}
		size := len(part.batches[part.sent].wire())
		if len(now) > 0 && bytes+size > maxProduce {
			break
		}
		bytes += size
		now = append(now, part)
	}
	return now
}

// produceFrame encodes a Produce request of version 8 with the current batch of each partition.
// Partitions of one topic follow each other.
func (p *producer) produceFrame(k *conn, buf []byte, parts []*outPart) []byte {
	b := k.nextFrame(buf, keyProduce, versionProduce)
	attributes := uint16(attrTxn)
	if p.alone {
		attributes, b = 0, append(b, 0xff, 0xff) // no transactional ID
	} else {
		b = appendString(b, p.cfg.TransactionalID)
	}
	b = append(b, 0xff, 0xff) // acks: all in sync
	b = append32(b, int32(produceTimeout/time.Millisecond))
	topics := 0
	at := len(b)
	b = append32(b, 0)
	for i := 0; i < len(parts); {
		n := i + 1
		for n < len(parts) && parts[n].top == parts[i].top {
			n++
		}
		b = appendString(b, parts[i].tp.Topic)
		b = append32(b, int32(n-i))
		for _, part := range parts[i:n] {
			batch := part.batches[part.sent]
			batch.stamp(attributes, p.pid, p.epoch, part.seq)
			w := batch.wire()
			b = append32(b, int32(part.tp.Partition))
			b = append32(b, int32(len(w)))
			b = append(b, w...)
		}
		topics++
		i = n
	}
	append32(b[:at], int32(topics))
	return finishFrame(b)
}

// produced is what a Produce answer says of one partition.
type produced struct {
	topic     string
	partition int32
	code      sarama.KError
	base      int64
	message   string
}

// decodeProduce reads a Produce answer of version 8.
func decodeProduce(b []byte) (out []produced, throttle time.Duration, err error) {
	c := cursor{b: b}
	for range c.count(6) {
		topic := c.string()
		for range c.count(36) {
			r := produced{topic: topic, partition: c.int32(), code: sarama.KError(c.int16()), base: c.int64()}
			c.int64() // log append time
			c.int64() // log start offset
			for range c.count(6) {
				c.int32() // index of a refused record
				if m := c.string(); m != "" && r.message == "" {
					r.message = m
				}
			}
			if m := c.string(); r.message == "" {
				r.message = m
			}
			out = append(out, r)
		}
	}
	throttle = time.Duration(c.int32()) * time.Millisecond
	return out, throttle, c.err
}

// acknowledge takes over the answers to one request. pause says that some batches go to the same
// leader once more; those that must go elsewhere are taken off the leg.
func (p *producer) acknowledge(l *leg, now []*outPart, answers []produced) (pause bool, err error) {
	// Every answer is taken over, also behind one that ends the transaction: sequences must be right
	// for the partitions whose leaders are asked again.
	for _, part := range now {
		a := findAnswer(answers, part.tp)
		if a == nil {
			return false, &broker.Error{
				Op: string(reqProduce), Where: part.tp.String(), Kind: broker.ErrUnreachable,
				Cause: &lostError{errors.New("the answer lacks the partition")},
			}
		}
		_, react := classify(reqProduce, a.code)
		switch react {
		case done:
			batch := part.batches[part.sent]
			part.seq = nextSequence(part.seq, batch.count())
			part.next = record.NoOffset
			if a.base >= 0 {
				part.next = record.Offset(a.base + int64(batch.count()))
			}
			part.sent++
		case again, markers:
			pause = true
		case elsewhere:
			l.remove(part)
		case halve:
			if err := p.halve(part); err != nil {
				return false, err
			}
			pause = true
		default:
			e := codeError(reqProduce, part.tp.String(), a.code)
			if react == stop && a.code == sarama.ErrTopicAuthorizationFailed {
				e = codeError(reqProduce, part.tp.Topic, a.code)
			}
			if a.message != "" {
				e.Cause = fmt.Errorf("%w: %s", e.Cause, a.message)
			}
			err = e
		}
	}
	return pause, err
}

func findAnswer(answers []produced, tp record.TopicPartition) *produced {
	for i := range answers {
		if a := &answers[i]; a.partition == int32(tp.Partition) && a.topic == tp.Topic {
			return a
		}
	}
	return nil
}

// remove takes a partition off the leg: its leader is another one.
func (l *leg) remove(part *outPart) {
	for i, x := range l.todo {
		if x == part {
			l.todo = append(l.todo[:i:i], l.todo[i+1:]...)
			return
		}
	}
}

// halve splits a batch that the broker found too large. A refused batch takes no sequence numbers, so
// that its halves take its place. A record that is too large alone is the caller's to decide: sending
// it again can only be refused again.
func (p *producer) halve(part *outPart) error {
	b := part.batches[part.sent]
	if b.count() == 1 {
		return &broker.TooLargeError{Index: int(b.index[0]), Bytes: len(b.wire()) - batchHeader, Topic: part.tp.Topic}
	}
	second := &outBatch{}
	b.split(second)
	part.batches = append(part.batches, nil)
	copy(part.batches[part.sent+2:], part.batches[part.sent+1:])
	part.batches[part.sent+1] = second
	for _, x := range part.batches[part.sent : part.sent+2] {
		if err := x.pack(&compressor{}, p.kind); err != nil {
			return &broker.Error{Op: string(reqProduce), Where: part.tp.String(), Kind: broker.ErrAbortable, Cause: err}
		}
	}
	return nil
}

// nextOffsets collects the receipt. A batch that was acknowledged as a duplicate may come without an
// offset; then the high watermark stands behind it, since nothing of ours comes after.
func (p *producer) nextOffsets(ctx context.Context) (map[record.TopicPartition]record.Offset, error) {
	next := make(map[record.TopicPartition]record.Offset, len(p.touched))
	var ask []record.TopicPartition
	for _, part := range p.touched {
		if part.next == record.NoOffset {
			ask = append(ask, part.tp)
		}
		next[part.tp] = part.next
	}
	if len(ask) == 0 {
		return next, nil
	}
	high, err := p.c.HighWatermarks(ctx, ask)
	for tp, o := range high {
		next[tp] = o
	}
	return next, err
}
