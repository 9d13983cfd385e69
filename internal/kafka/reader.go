package kafka

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// reader implements broker.Reader: one goroutine for each leader that it reads from (fetch.go), and
// one that finds leaders. All of them wait on changed, and Close waits for them.
type reader struct {
	c      *Cluster
	cfg    broker.ReaderConfig
	ctx    context.Context // ends at Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex // guards everything below, and the fields of parts that say so
	changed *sync.Cond // something below changed
	parts   map[record.TopicPartition]*inPart
	version int // changes with the set of partitions and their leaders
	legs    map[int32]*fetchLeg
	movedAt time.Time // when a partition last came to a leader, or was moved by Seek
	queue   []broker.Batch
	quiet   []*inPart // those whose quiet is set, and maybe others
	woken   bool
	started bool
	closed  bool

	// ready has a token when queue is not empty or woken is set.
	ready chan struct{}
}

// inPart is one partition that is read, from one Seek to the next: a new one is made then, so that
// what an earlier Fetch brings is known by its address. All fields are guarded by reader.mu.
type inPart struct {
	tp      record.TopicPartition
	pos     record.Offset
	tag     uint64
	paused  bool
	failed  bool  // an error was delivered; only Seek helps
	leader  int32 // the leg that reads it, noLeader if it is to be found
	refresh bool  // the known leader was wrong
	retryAt time.Time
	tries   int         // consecutive failures
	unknown time.Time   // since when the topic is said not to exist
	want    int32       // bytes to ask for: grows for a batch larger than that
	id      sarama.Uuid // of the topic that pos belongs to, once a leader was found
	outside bool        // the leader has just said that pos is out of range
	corrupt int         // how often in a row the bytes at pos could not be read
	// nothing is the last answer, if quiet: then it brought nothing, and was not handed on yet (ReaderConfig.Answers).
	nothing broker.Batch
	quiet   bool
	// replica is the broker to read from instead of the leader, until the given time (KIP-392).
	replica      int32
	replicaUntil time.Time
}

const noLeader = -1

// NewReader makes a reader; see broker.ReaderConfig for the defaults.
func (c *Cluster) NewReader(cfg broker.ReaderConfig) broker.Reader {
	if cfg.MaxWait <= 0 {
		cfg.MaxWait = 250 * time.Millisecond
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = 1 << 20
	}
	if cfg.Buffer <= 0 {
		cfg.Buffer = 8
	}
	r := &reader{
		c: c, cfg: cfg, parts: map[record.TopicPartition]*inPart{}, legs: map[int32]*fetchLeg{},
		ready: make(chan struct{}, 1),
	}
	r.changed = sync.NewCond(&r.mu)
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// Seek implements broker.Reader.
func (r *reader) Seek(tp record.TopicPartition, next record.Offset, tag uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	old := r.parts[tp]
	p := &inPart{tp: tp, pos: next, tag: tag, leader: noLeader, replica: noLeader, want: r.cfg.MaxBytes}
	if old != nil {
		// A pause outlives a Seek: it belongs to the consumer's queue, not to the position.
		p.paused, p.leader = old.paused, old.leader
		if old.failed {
			p.leader, p.refresh = noLeader, true
		} else {
			p.id = old.id
		}
	}
	r.parts[tp] = p
	r.movedAt = time.Now()
	r.drop(tp)
	r.version++
	r.interrupt(p.leader)
	if !r.started {
		r.started = true
		r.wg.Go(r.findLeaders)
	}
	r.changed.Broadcast()
}

// interrupt ends a long poll of a leader, which would keep a partition that is new to it waiting for
// data of the others. r.mu is held.
func (r *reader) interrupt(leader int32) {
	if l := r.legs[leader]; l != nil && l.interrupt != nil {
		l.interrupt()
	}
}

// drop removes what the queue has of a partition: it belongs to a position that is gone.
func (r *reader) drop(tp record.TopicPartition) {
	kept := r.queue[:0]
	for _, b := range r.queue {
		if b.TopicPartition != tp {
			kept = append(kept, b)
		}
	}
	clear(r.queue[len(kept):])
	r.queue = kept
}

// Pause implements broker.Reader.
func (r *reader) Pause(tp record.TopicPartition, paused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.parts[tp]; p != nil && p.paused != paused {
		p.paused = paused
		r.changed.Broadcast()
	}
}

// Remove implements broker.Reader.
func (r *reader) Remove(tp record.TopicPartition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.parts[tp] != nil {
		delete(r.parts, tp)
		r.version++
		r.drop(tp)
		r.changed.Broadcast()
	}
}

// Poll implements broker.Reader.
func (r *reader) Poll(ctx context.Context, wait time.Duration) []broker.Batch {
	var timeout <-chan time.Time
	for {
		r.mu.Lock()
		if len(r.queue) > 0 || r.woken || r.closed {
			out := append(r.queue, r.noted()...)
			r.queue, r.woken = nil, false
			r.changed.Broadcast() // there is room
			r.mu.Unlock()
			return out
		}
		if wait <= 0 {
			defer r.mu.Unlock()
			return r.noted()
		}
		r.mu.Unlock()
		if timeout == nil {
			t := time.NewTimer(wait)
			defer t.Stop()
			timeout = t.C
		}
		select {
		case <-r.ready:
		case <-timeout:
			wait = 0
		case <-ctx.Done():
			return nil
		}
	}
}

// Wake implements broker.Reader.
func (r *reader) Wake() {
	r.mu.Lock()
	r.woken = true
	r.mu.Unlock()
	r.signal()
}

func (r *reader) signal() {
	select {
	case r.ready <- struct{}{}:
	default:
	}
}

// Close implements broker.Reader.
func (r *reader) Close() {
	r.mu.Lock()
	r.closed = true
	r.queue = nil
	r.changed.Broadcast()
	r.mu.Unlock()
	r.cancel()
	r.signal()
	r.wg.Wait()
}

// current says whether a partition is still read as it was when p was taken.
func (r *reader) current(p *inPart) bool { return r.parts[p.tp] == p }

// push queues a batch, waiting for room: a consumer that is slow stops the fetching. It returns
// false if the batch is not wanted any more. r.mu is held, but for the wait.
func (r *reader) push(p *inPart, b broker.Batch) bool {
	for r.current(p) && !r.closed && len(r.queue) >= r.cfg.Buffer {
		r.changed.Wait()
	}
	if !r.current(p) || r.closed {
		return false
	}
	r.queue = append(r.queue, b)
	p.quiet = false // what it says is older
	r.signal()
	return true
}

// note keeps an answer that brought nothing for the next Poll. It needs no room, since only the newest of a partition
// is kept, and it ends no Poll: whoever waits for records waits on. r.mu is held.
func (r *reader) note(p *inPart, b broker.Batch) {
	if !p.quiet {
		r.quiet = append(r.quiet, p)
	}
	p.quiet, p.nothing = true, b
}

// noted hands over what note has kept. r.mu is held.
func (r *reader) noted() (out []broker.Batch) {
	for _, p := range r.quiet {
		if p.quiet && r.current(p) {
			out = append(out, p.nothing)
		}
		p.quiet = false
	}
	clear(r.quiet)
	r.quiet = r.quiet[:0]
	return out
}

// findLeaders gives partitions without a leader one, and starts the goroutine of a leader that is
// new. It is a goroutine of its own since metadata may take seconds while brokers are down.
func (r *reader) findLeaders() {
	for {
		parts, topics := r.leaderless()
		if parts == nil {
			return
		}
		if len(topics) > 0 {
			r.c.refresh(r.ctx, topics)
		}
		for _, p := range parts {
			id, addr, err := r.c.leader(r.ctx, p.tp)
			r.mu.Lock()
			if r.current(p) {
				switch remade := r.identify(p); {
				case err != nil:
					r.leaderError(p, err)
				case remade != nil:
					r.fail(p, remade)
				default:
					r.assign(p, id, addr)
				}
			}
			r.mu.Unlock()
		}
	}
}

// identify finds a topic that was deleted and made again: a position in the old one means another record in the new
// one, or none. A Fetch names the topic by its name, but the deletion shows in its answer, and the metadata that is
// asked for then has the new ID. r.mu is held.
func (r *reader) identify(p *inPart) error {
	id := r.c.topicID(p.tp.Topic)
	if p.id == (sarama.Uuid{}) || id == (sarama.Uuid{}) {
		p.id = id
	}
	if p.id == id {
		return nil
	}
	return &broker.Error{
		Op: string(reqFetch), Where: record.Position{TopicPartition: p.tp, Offset: p.pos}.String(), Kind: broker.ErrUnknownTopic,
		Cause: fmt.Errorf("the topic was deleted and made again: its ID is %s and was %s", uuidString(id), uuidString(p.id)),
	}
}

// leaderless waits for partitions without a leader whose pause is over. Nil at Close.
func (r *reader) leaderless() (parts []*inPart, topics []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.closed {
		now := time.Now()
		var soonest time.Time
		for _, p := range r.parts {
			switch {
			case p.leader != noLeader || p.failed:
			case p.retryAt.After(now):
				if soonest.IsZero() || p.retryAt.Before(soonest) {
					soonest = p.retryAt
				}
			default:
				parts = append(parts, p)
				if p.refresh {
					topics = append(topics, p.tp.Topic)
				}
			}
		}
		if parts != nil {
			return parts, topics
		}
		r.waitUntil(soonest)
	}
	return nil, nil
}

// waitUntil waits for a change, or for a time unless it is zero. r.mu is held.
func (r *reader) waitUntil(t time.Time) {
	if !t.IsZero() {
		defer time.AfterFunc(time.Until(t), r.broadcast).Stop()
	}
	r.changed.Wait()
}

func (r *reader) broadcast() {
	r.mu.Lock()
	r.changed.Broadcast()
	r.mu.Unlock()
}

// assign hands a partition to the goroutine of its leader. r.mu is held.
func (r *reader) assign(p *inPart, id int32, addr string) {
	if p.replica != noLeader {
		if a, ok := r.c.brokerAddr(p.replica); ok && time.Now().Before(p.replicaUntil) {
			id, addr = p.replica, a
		} else {
			p.replica = noLeader
		}
	}
	p.leader, p.refresh = id, false
	r.version++
	r.movedAt = time.Now()
	l := r.legs[id]
	if l == nil {
		l = &fetchLeg{r: r, id: id, link: link{c: r.c}}
		r.legs[id] = l
		r.wg.Go(l.run)
	}
	l.addr = addr
	r.interrupt(id)
	r.changed.Broadcast()
}

// unknownLimit is how long a topic may be unknown before that is an error: metadata of a new topic
// spreads within milliseconds, of a busy cluster within seconds.
const unknownLimit = 3 * time.Second

// leaderError handles a partition whose leader cannot be found. r.mu is held.
func (r *reader) leaderError(p *inPart, err error) {
	r.again(p, reqMetadata, err)
}

// again has a partition's leader found anew after a pause, or ends its reading if the error is for good.
// r.mu is held.
func (r *reader) again(p *inPart, req request, err error) {
	p.leader, p.refresh = noLeader, true
	p.retryAt = time.Now().Add(backoff(p.tries, 5*time.Millisecond, time.Second))
	p.tries++
	if kind := kindOf(err); kind == broker.ErrUnknownTopic {
		if p.unknown.IsZero() {
			p.unknown = time.Now()
		}
		if time.Since(p.unknown) > unknownLimit {
			r.fail(p, err)
			return
		}
	} else if fatal(kind) {
		r.fail(p, err)
		return
	}
	r.version++
	r.changed.Broadcast()
	r.c.heals(req, p.tp.String(), err)
}

// fail delivers an error and ends the partition's reading until the next Seek. r.mu is held.
func (r *reader) fail(p *inPart, err error) {
	p.failed = true
	r.version++
	r.push(p, broker.Batch{TopicPartition: p.tp, Tag: p.tag, Next: p.pos, Err: err})
}
