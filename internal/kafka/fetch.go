package kafka

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

const (
	// shortWait is the long poll's limit while something is left out that may come in soon: a paused
	// partition, or more Seeks in a row. A partition that comes in waits for the poll under way.
	shortWait = 10 * time.Millisecond
	settling  = 300 * time.Millisecond // after a partition came or was moved
	// fetchShare is what the partitions of one Fetch share: each asks for its part, so that many
	// partitions do not mean much memory. fetchTotal bounds an answer where batches are larger than
	// these parts. It is well above: kfake forgets the aborted transactions of a partition that it cuts
	// off because of the total.
	fetchShare, fetchLeast = 16 << 20, 64 << 10
	fetchTotal             = 64 << 20
	// replicaLease is how long a preferred replica is used before the leader is asked again: a replica
	// that has dropped out of sync would not say so (metadata.max.age.ms of the Java client).
	replicaLease = 5 * time.Minute
	// corruptTries is how often bytes that cannot be read are fetched before that is an error: the
	// network, unlike the disk, heals.
	corruptTries = 3
	// leaderWord is how often the leaders are asked whether there is nothing, if a replica says so. It is below the time that an input may
	// be taken to be idle for between two answers (maxTick of the processor).
	leaderWord = 500 * time.Millisecond
	// littleBytes is what an answer must exceed for the next Fetch to follow at once: see ReaderConfig.Pace.
	littleBytes = 32 << 10
)

// fetchLeg reads from one broker: one Fetch in flight with all its partitions that are not paused,
// on a connection of its own. addr and interrupt are guarded by reader.mu, the rest is the goroutine's.
type fetchLeg struct {
	r         *reader
	id        int32
	addr      string
	interrupt func() // ends a long poll under way; nil if none is to be ended

	link    link
	dec     decoder
	buf     []byte
	version int // of sorted
	sorted  []*inPart
	turn    int // rotates who comes first: the broker fills its answer in the order of the request
	tries   int

	quiet     []ask     // of a replica, in this answer: it says that there is nothing
	confirmed time.Time // when the leaders were asked last whether that is so
}

// ask is what one Fetch asks of one partition.
type ask struct {
	p    *inPart
	pos  record.Offset
	want int32
}

// run fetches until the reader is closed.
func (l *fetchLeg) run() {
	l.link.find = func(context.Context) (string, error) {
		l.r.mu.Lock()
		defer l.r.mu.Unlock()
		return l.addr, nil
	}
	defer l.link.drop()
	for {
		asks, wait := l.pick()
		if asks == nil {
			return
		}
		sent := time.Now()
		body, k, err := l.fetch(asks, wait)
		if errors.Is(err, errInterrupted) {
			continue
		}
		if err != nil {
			l.failed(asks, err)
			continue
		}
		code, throttle, answers, err := decodeFetch(body)
		k.muted = time.Now().Add(throttle)
		if err == nil && code != sarama.ErrNoError {
			err = codeError(reqFetch, l.addr, code)
		}
		if err != nil {
			l.failed(asks, err)
			continue
		}
		// Answers come in an order of the broker's choice.
		l.tries = 0
		at := map[record.TopicPartition]int{}
		for i := range asks {
			at[asks[i].p.tp] = i
		}
		for i := range answers {
			f := &answers[i]
			if k, ok := at[record.TopicPartition{Topic: f.topic, Partition: record.Partition(f.partition)}]; ok {
				l.handle(asks[k], f, sent)
			}
		}
		l.confirm()
		if len(answers) < len(asks) {
			l.failed(asks, errors.New("the answer lacks a partition"))
		}
		if rest := l.r.cfg.Pace - time.Since(sent); rest > 0 && len(body) < littleBytes {
			_ = sleep(l.r.ctx, rest) // its end is Close, which the next pick sees
		}
	}
}

// pick waits for partitions to read and says what to ask for. Nil at Close.
func (l *fetchLeg) pick() ([]ask, time.Duration) {
	r := l.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.closed {
		if l.version != r.version || l.sorted == nil {
			l.sort()
		}
		now := time.Now()
		var asks []ask
		var soonest time.Time
		left := false
		for i := range l.sorted {
			p := l.sorted[(i+l.turn)%len(l.sorted)]
			switch {
			case p.failed:
			case p.paused:
				left = true
			case p.retryAt.After(now):
				left = true
				if soonest.IsZero() || p.retryAt.Before(soonest) {
					soonest = p.retryAt
				}
			default:
				asks = append(asks, ask{p, p.pos, p.want})
			}
		}
		if asks == nil {
			r.waitUntil(soonest)
			continue
		}
		l.turn++
		share := max(fetchShare/int32(len(asks)), fetchLeast)
		for i := range asks {
			if asks[i].want <= r.cfg.MaxBytes { // else it is known to need more
				asks[i].want = min(asks[i].want, share)
			}
		}
		if left || now.Sub(r.movedAt) < settling {
			return asks, min(shortWait, r.cfg.MaxWait)
		}
		return asks, r.cfg.MaxWait
	}
	return nil, 0
}

// sort collects this broker's partitions. r.mu is held.
func (l *fetchLeg) sort() {
	l.version = l.r.version
	l.sorted = make([]*inPart, 0, len(l.r.parts))
	for _, p := range l.r.parts {
		if p.leader == l.id {
			l.sorted = append(l.sorted, p)
		}
	}
	slices.SortFunc(l.sorted, func(a, b *inPart) int {
		return cmp.Or(strings.Compare(a.tp.Topic, b.tp.Topic), cmp.Compare(a.tp.Partition, b.tp.Partition))
	})
}

var errInterrupted = errors.New("interrupted by a seek")

// fetch sends one Fetch. A Seek may interrupt a long poll, at the price of the connection.
func (l *fetchLeg) fetch(asks []ask, wait time.Duration) ([]byte, *conn, error) {
	ctx, cancel := context.WithCancelCause(l.r.ctx)
	defer cancel(nil)
	k, err := l.link.get(ctx)
	if err != nil {
		return nil, nil, err
	}
	l.buf = l.frame(k, asks, wait)
	if wait > shortWait {
		l.setInterrupt(func() { cancel(errInterrupted) })
		defer l.setInterrupt(nil)
	}
	body, err := k.roundTrip(ctx, l.buf, wait)
	if err != nil {
		l.link.drop()
		if errors.Is(context.Cause(ctx), errInterrupted) {
			return nil, nil, errInterrupted
		}
		return nil, nil, err
	}
	return body, k, nil
}

func (l *fetchLeg) setInterrupt(f func()) {
	l.r.mu.Lock()
	l.interrupt = f
	l.r.mu.Unlock()
}

// frame encodes a Fetch request of version 11 without a fetch session: what is asked for changes too often.
func (l *fetchLeg) frame(k *conn, asks []ask, wait time.Duration) []byte {
	total := int64(fetchTotal)
	for _, a := range asks {
		total = max(total, int64(a.want))
	}
	b := k.nextFrame(l.buf, keyFetch, versionFetch)
	b = append32(b, -1) // a client, not a replica
	b = append32(b, int32(wait/time.Millisecond))
	b = append32(b, 1) // min bytes: answer at once
	b = append32(b, int32(total))
	isolation := byte(1)
	if l.r.cfg.Isolation == broker.ReadUncommitted {
		isolation = 0
	}
	b = append(b, isolation)
	b = append32(b, 0)  // session ID
	b = append32(b, -1) // session epoch: none
	topics := groupTopics(asks)
	b = append32(b, int32(len(topics)))
	for _, t := range topics {
		b = appendString(b, t[0].p.tp.Topic)
		b = append32(b, int32(len(t)))
		for _, a := range t {
			b = append32(b, int32(a.p.tp.Partition))
			b = append32(b, -1) // leader epoch: unknown
			b = append64(b, int64(a.pos))
			b = append64(b, -1) // log start, for replicas
			b = append32(b, a.want)
		}
	}
	b = append32(b, 0) // forgotten topics
	b = appendString(b, l.r.c.conf.Rack)
	return finishFrame(b)
}

// groupTopics groups by topic, each named once, in the order of the first partition of each.
func groupTopics(asks []ask) [][]ask {
	var out [][]ask
	at := map[string]int{}
	for _, a := range asks {
		i, ok := at[a.p.tp.Topic]
		if !ok {
			i = len(out)
			at[a.p.tp.Topic] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], a)
	}
	return out
}

// failed has every partition of a lost Fetch look for its leader again.
func (l *fetchLeg) failed(asks []ask, err error) {
	l.link.drop()
	l.tries++
	r := l.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	for _, a := range asks {
		if r.current(a.p) && a.p.leader == l.id {
			a.p.replica = noLeader
			a.p.tries = max(a.p.tries, l.tries-1)
			r.again(a.p, reqFetch, err)
		}
	}
}

// handle takes over the answer about one partition.
func (l *fetchLeg) handle(a ask, f *fetched, asked time.Time) {
	r := l.r
	if f.code != sarama.ErrNoError {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.current(a.p) {
			l.code(a.p, f)
		}
		return
	}
	// Decoding is the long part and needs no lock: a.pos cannot change but by a Seek, which makes a.p stale.
	recs, pos, need, err := l.dec.decode(f, a.pos, r.cfg.Isolation == broker.ReadCommitted)
	r.mu.Lock()
	defer r.mu.Unlock()
	p := a.p
	if !r.current(p) || r.closed {
		return
	}
	p.tries, p.unknown, p.outside = 0, time.Time{}, false
	switch {
	case pos > a.pos:
		p.corrupt = 0
		if !r.push(p, broker.Batch{
			TopicPartition: p.tp, Tag: p.tag, Records: recs, Next: pos,
			HighWatermark: record.Offset(f.highWater), LastStable: record.Offset(f.lastStable), Asked: asked,
		}) {
			return
		}
		p.pos = pos
	case !r.cfg.Answers || err != nil || need > 0:
	case p.replica == l.id:
		l.quiet = append(l.quiet, a)
	default:
		r.note(p, broker.Batch{
			TopicPartition: p.tp, Tag: p.tag, Next: pos, Nothing: true,
			HighWatermark: record.Offset(f.highWater), LastStable: record.Offset(f.lastStable), Asked: asked,
		})
	}
	switch {
	case err != nil && pos == a.pos:
		l.corrupt(p, err)
	case need > 0:
		// From now on: a partition with one large batch mostly has more of them.
		p.want = int32(min(max(need, int(p.want)), maxFrame-1<<16))
	}
	if f.readReplica >= 0 && f.readReplica != l.id {
		p.replica, p.replicaUntil = f.readReplica, time.Now().Add(replicaLease)
		p.leader = noLeader
		r.version++
		r.changed.Broadcast()
	} else if p.replica == l.id && time.Now().After(p.replicaUntil) {
		p.replica, p.leader = noLeader, noLeader
		r.version++
		r.changed.Broadcast()
	}
}

// confirm has the leaders say whether there is nothing in partitions of which a replica says so. It may lag behind without knowing: a
// broker that the cluster has cut off goes on answering until its lease ends, and an input would count as idle meanwhile.
func (l *fetchLeg) confirm() {
	quiet, asked := l.quiet, time.Now()
	l.quiet = l.quiet[:0]
	if len(quiet) == 0 || asked.Sub(l.confirmed) < leaderWord {
		return
	}
	l.confirmed = asked
	tps := make([]record.TopicPartition, len(quiet))
	for i, a := range quiet {
		tps[i] = a.p.tp
	}
	ctx, cancel := context.WithTimeout(l.r.ctx, leaderWord)
	defer cancel()
	stable, err := l.r.c.StableOffsets(ctx, tps)
	if err != nil {
		return // silence says nothing
	}
	r := l.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range quiet {
		if at := stable[a.p.tp]; r.current(a.p) && a.p.pos == a.pos && !r.closed {
			r.note(a.p, broker.Batch{TopicPartition: a.p.tp, Tag: a.p.tag, Next: a.pos, Nothing: true, HighWatermark: at, LastStable: at, Asked: asked})
		}
	}
}

// corrupt handles bytes at the partition's position that cannot be read. r.mu is held.
func (l *fetchLeg) corrupt(p *inPart, err error) {
	where := record.Position{TopicPartition: p.tp, Offset: p.pos}.String()
	e := &broker.Error{Op: string(reqFetch), Where: where, Kind: broker.ErrCorrupt, Cause: err}
	if errors.Is(err, errOldFormat) {
		e.Kind = broker.ErrUnsupported
		l.r.fail(p, e)
		return
	}
	p.corrupt++
	if p.corrupt >= corruptTries || errors.Is(err, errInflated) {
		l.r.fail(p, e)
		return
	}
	l.r.again(p, reqFetch, e)
}

// code handles an error that was answered for one partition. r.mu is held.
func (l *fetchLeg) code(p *inPart, f *fetched) {
	where := p.tp.String()
	switch f.code {
	case sarama.ErrOffsetOutOfRange:
		where = record.Position{TopicPartition: p.tp, Offset: p.pos}.String()
	case sarama.ErrTopicAuthorizationFailed:
		where = p.tp.Topic
	}
	err := codeError(reqFetch, where, f.code)
	replica := p.replica == l.id
	p.replica = noLeader
	_, react := classify(reqFetch, f.code)
	switch {
	case f.code == sarama.ErrInvalidMessage:
		l.corrupt(p, err)
	case f.code == sarama.ErrOffsetOutOfRange && (replica || !p.outside):
		// A follower may lag behind what its leader has shown: only the leader's word counts. And that is believed when
		// the metadata has been asked again: a topic made anew is shorter, and then that is the error to name.
		p.outside = p.outside || !replica
		l.r.again(p, reqFetch, &broker.Error{Op: string(reqFetch), Where: where, Kind: broker.ErrUnreachable, Cause: err})
	case react == stop:
		l.r.fail(p, err)
	case react == again:
		p.tries++
		p.retryAt = time.Now().Add(backoff(p.tries-1, 5*time.Millisecond, time.Second))
		l.r.c.heals(reqFetch, where, err)
	default:
		l.r.again(p, reqFetch, err)
	}
}
