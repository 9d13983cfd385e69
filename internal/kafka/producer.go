package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// producer implements broker.Producer. The transaction itself is in commit.go, its Produce requests
// in produce.go.
type producer struct {
	c   *Cluster
	cfg broker.ProducerConfig
	// alone says that it is the inside of a sender: there is no transaction.
	alone bool
	kind  codec
	comp  compressor
	now   func() time.Time

	// Invariant: pid >= 0 once an Init has succeeded, until the broker forgets the ID.
	pid   int64
	epoch int16
	// member is the one that last committed with this producer, and reclaimed the time of the last reclaim.
	member    broker.GroupMeta
	reclaimed time.Time
	// ready says that the epoch is ours and no transaction of it is open: Commit may begin one.
	ready bool

	coord   *link            // the transaction coordinator
	group   *link            // the group coordinator of groupID
	groupID string           // changes hardly ever; the link is made anew if it does
	leaders map[int32]*link  // one connection per leader, for Produce only
	frames  map[int32][]byte // request buffers, per leader

	// cleanGroup is the group whose offsets hold nothing open of this producer's, as of this epoch. See ended.
	cleanGroup string

	topics  map[string]*outTopic
	last    *outTopic // topic of the last Add
	touched []*outPart
	free    []*outBatch
	records int
	bytes   int
	bad     error // the first record that can never be sent; ends with Reset
	// wrong is a mistake in the configuration, which every Init returns.
	wrong error
}

// outTopic holds a topic's partitions; partition numbers are small and dense.
type outTopic struct {
	name  string
	parts map[record.Partition]*outPart
	limit int // of one batch in bytes
	known int // the topic's max.message.bytes, 0 if it is not known
}

// outPart is one output partition.
type outPart struct {
	tp  record.TopicPartition
	top *outTopic
	seq int32 // of the next record, within this epoch
	// batches of the current transaction, in order. Those before sent were acknowledged.
	batches []*outBatch
	sent    int
	next    record.Offset // offset behind the last acknowledged record, NoOffset if the broker did not say
	clean   bool          // nothing of this producer's is open there, as of this epoch; see ended
}

// NewProducer makes a transactional producer; see broker.ProducerConfig for the defaults.
func (c *Cluster) NewProducer(cfg broker.ProducerConfig) broker.Producer {
	p := c.newProducer(cfg)
	if p.wrong == nil && cfg.TransactionalID == "" {
		p.wrong = &broker.Error{Op: string(reqInit), Kind: broker.ErrConfig, Cause: errors.New("no transactional ID")}
	}
	p.coord = &link{c: c, find: func(ctx context.Context) (string, error) {
		return c.coordinator(ctx, cfg.TransactionalID, sarama.CoordinatorTransaction)
	}}
	return p
}

// newProducer makes what producers and senders have in common.
func (c *Cluster) newProducer(cfg broker.ProducerConfig) *producer {
	if cfg.TransactionTimeout <= 0 {
		cfg.TransactionTimeout = 10 * time.Second
	}
	if cfg.CommitDeadline <= 0 {
		cfg.CommitDeadline = cfg.TransactionTimeout * 8 / 10
	}
	if cfg.MaxBatchBytes <= 0 {
		cfg.MaxBatchBytes = 900 << 10
	}
	p := &producer{
		c: c, cfg: cfg, now: time.Now, pid: -1, epoch: -1,
		leaders: map[int32]*link{}, frames: map[int32][]byte{}, topics: map[string]*outTopic{},
	}
	var err error
	if p.kind, err = parseCodec(cfg.Compression); err != nil {
		p.wrong = &broker.Error{Op: string(reqInit), Where: cfg.TransactionalID, Kind: broker.ErrConfig, Cause: err}
	}
	return p
}

// Add implements broker.Producer. It encodes the record: the caller's bytes are not needed afterwards.
func (p *producer) Add(o broker.Output) {
	part := p.part(o.Topic, o.Partition)
	ts := recordMillis(o.Timestamp, p.now)
	var b *outBatch
	if n := len(part.batches); n > 0 {
		b = part.batches[n-1]
	} else {
		p.touched = append(p.touched, part)
		b = p.newBatch(part, ts)
	}
	size := recordSize(&o, ts-b.first, b.count())
	if b.count() > 0 && len(b.buf)+size+5 > part.top.limit {
		b = p.newBatch(part, ts)
		size = recordSize(&o, 0, 0)
	}
	// What can never be sent is remembered, not encoded: Commit names it before anything goes out. A
	// compressed record may fit though it is longer than the limit, so that the broker decides.
	tooLong := part.top.known > 0 && p.kind == codecNone && batchHeader+varintSize(int64(size))+size > part.top.known
	if o.Partition < 0 || size > maxRecord || tooLong {
		if p.bad == nil {
			p.bad = p.refuse(&o, size)
		}
		p.records++ // it keeps its index
		return
	}
	b.add(&o, ts, size, int32(p.records))
	p.records++
	p.bytes += size + 1
}

// maxRecord is the longest record that fits a request at all: socket.request.max.bytes is 100 MiB, and
// a broker cuts the connection of a larger one without an answer, which would look like a lost one.
const maxRecord = 95 << 20

func (p *producer) refuse(o *broker.Output, size int) error {
	if o.Partition < 0 {
		return &broker.Error{Op: string(reqProduce), Where: o.TopicPartition.String(), Kind: broker.ErrUnknownTopic}
	}
	return &broker.TooLargeError{Index: p.records, Bytes: size, Topic: o.Topic}
}

// part finds the state of an output partition.
func (p *producer) part(topic string, n record.Partition) *outPart {
	t := p.last
	if t == nil || t.name != topic {
		if t = p.topics[topic]; t == nil {
			t = &outTopic{name: topic, parts: map[record.Partition]*outPart{}}
			p.topics[topic] = t
		}
		p.last = t
	}
	part := t.parts[n]
	if part == nil {
		// The limit is asked for once per new partition, so that it is learnt soon after it is known.
		t.limit = p.cfg.MaxBatchBytes
		if t.known = p.c.maxMessageBytes(topic); t.known > 0 {
			t.limit = min(t.limit, t.known)
		}
		part = &outPart{tp: record.TopicPartition{Topic: topic, Partition: n}, top: t}
		t.parts[n] = part
	}
	return part
}

func (p *producer) newBatch(part *outPart, ts int64) *outBatch {
	b := p.takeBatch()
	b.begin(ts)
	part.batches = append(part.batches, b)
	return b
}

func (p *producer) takeBatch() *outBatch {
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		return b
	}
	return &outBatch{}
}

// maxFree bounds what an idle producer keeps: about 30 MiB at the default batch size.
const maxFree = 32

func (p *producer) freeBatch(b *outBatch) {
	if len(p.free) < maxFree && cap(b.buf) <= 2*p.cfg.MaxBatchBytes {
		b.reset()
		p.free = append(p.free, b)
	}
}

// Buffered implements broker.Producer.
func (p *producer) Buffered() (records, bytes int) { return p.records, p.bytes }

// Reset implements broker.Producer.
func (p *producer) Reset() {
	for _, part := range p.touched {
		for _, b := range part.batches {
			p.freeBatch(b)
		}
		clear(part.batches)
		part.batches, part.sent = part.batches[:0], 0
	}
	clear(p.touched)
	p.touched = p.touched[:0]
	p.records, p.bytes = 0, 0
	p.bad = nil
}

// Close implements broker.Producer.
func (p *producer) Close() {
	p.ready = false
	if p.coord != nil {
		p.coord.drop()
	}
	if p.group != nil {
		p.group.drop()
	}
	for _, id := range sortedKeys(p.leaders) {
		p.leaders[id].drop()
	}
}

func sortedKeys[V any](m map[int32]V) []int32 {
	ks := make([]int32, 0, len(m))
	for k := range m {
		ks = append(ks, k)
	}
	slices.Sort(ks)
	return ks
}

// Init implements broker.Producer: (-1, -1) the first time, then (ID, epoch), so that the broker can
// tell a producer that renews its own epoch from another one that took the ID (KIP-360).
// An Init without an answer may be repeated: the broker knows the last epoch as well.
func (p *producer) Init(ctx context.Context) error {
	p.ready = false
	if p.wrong != nil {
		return p.wrong
	}
	var conflicts, failures int
	var since time.Time
	for {
		resp, err := p.initOnce(ctx)
		if ctx.Err() != nil && (err != nil || resp.Err != sarama.ErrNoError) {
			return p.initError(ctx.Err())
		}
		if err != nil {
			var e *broker.Error
			if errors.As(err, &e) && fatal(e.Kind) {
				return err
			}
			p.coord.drop()
			p.c.heals(reqInit, p.cfg.TransactionalID, err)
			if since.IsZero() {
				since = time.Now()
			}
			if werr := p.c.explainWait(ctx, sarama.CoordinatorTransaction, err, time.Since(since)); werr != nil {
				return werr
			}
			if sleep(ctx, backoff(failures, 10*time.Millisecond, 200*time.Millisecond)) != nil {
				return p.initError(ctx.Err())
			}
			failures++
			continue
		}
		// The coordinator has answered, so that it is there: what follows waits for the old transaction.
		since = time.Time{}
		switch _, react := classify(reqInit, resp.Err); react {
		case done:
			p.adopt(resp)
			return nil
		case markers:
			conflicts++
			err = sleep(ctx, markersBackoff(conflicts-1))
		case again, elsewhere:
			if react == elsewhere {
				p.coord.drop()
			}
			failures++
			err = sleep(ctx, backoff(failures-1, 2*time.Millisecond, 100*time.Millisecond))
		case renew:
			if p.pid < 0 {
				return codeError(reqInit, p.cfg.TransactionalID, resp.Err)
			}
			p.pid, p.epoch = -1, -1
		case suspect:
			switch {
			case p.reclaim(ctx):
				p.pid, p.epoch = -1, -1
			case ctx.Err() != nil:
				return p.initError(ctx.Err())
			default:
				return p.c.explainInit(ctx, p.cfg, codeError(reqInit, p.cfg.TransactionalID, resp.Err))
			}
		case rerun: // an answer that says no more than "failed"
			p.c.heals(reqInit, p.cfg.TransactionalID, codeError(reqInit, p.cfg.TransactionalID, resp.Err))
			failures++
			err = sleep(ctx, backoff(failures-1, 10*time.Millisecond, 200*time.Millisecond))
		default:
			return p.c.explainInit(ctx, p.cfg, codeError(reqInit, p.cfg.TransactionalID, resp.Err))
		}
		if err != nil {
			return p.initError(err)
		}
	}
}

func (p *producer) initError(err error) error {
	return &broker.Error{Op: string(reqInit), Where: p.cfg.TransactionalID, Kind: broker.ErrUnreachable, Cause: err}
}

func (p *producer) initOnce(ctx context.Context) (resp *sarama.InitProducerIDResponse, err error) {
	k, err := p.coord.get(ctx)
	if err != nil {
		return nil, err
	}
	err = k.call(ctx, func(b *sarama.Broker) error {
		resp, err = b.InitProducerID(&sarama.InitProducerIDRequest{
			Version: 4, TransactionalID: &p.cfg.TransactionalID, TransactionTimeout: p.cfg.TransactionTimeout,
			ProducerID: p.pid, ProducerEpoch: p.epoch,
		})
		return err
	})
	return resp, err
}

// adopt takes over the answered epoch, a new producer ID if it is a sender's. Sequences start at 0 in it; what is buffered stays.
func (p *producer) adopt(resp *sarama.InitProducerIDResponse) {
	p.pid, p.epoch, p.cleanGroup = resp.ProducerID, resp.ProducerEpoch, ""
	for _, t := range p.topics {
		for _, part := range t.parts {
			part.seq, part.sent, part.clean = 0, 0, false
		}
	}
	p.ready = true
}

// fatal says whether no retry of ours heals an error of this kind.
func fatal(kind error) bool {
	return slices.Contains([]error{broker.ErrAuthentication, broker.ErrAuthorization, broker.ErrUnsupported, broker.ErrConfig, broker.ErrFenced}, kind)
}

var errNotReady = errors.New("kafka: Commit needs a successful Init first")

// check refuses what must not be sent.
func (p *producer) check(meta broker.GroupMeta, offsets []broker.OffsetCommit) error {
	switch {
	case !p.ready:
		return &broker.Error{Op: string(reqEndTxn), Where: p.cfg.TransactionalID, Kind: broker.ErrAbortable, Cause: errNotReady}
	case p.bad != nil:
		return p.bad
	case p.records == 0 && len(offsets) == 0:
		return &broker.Error{
			Op: string(reqEndTxn), Where: p.cfg.TransactionalID, Kind: broker.ErrAbortable,
			Cause: errors.New("an empty transaction"),
		}
	case len(offsets) > 0 && meta.Generation < 0:
		// KIP-447: with a negative generation the coordinator checks neither member nor generation.
		return &broker.Error{
			Op: string(reqTxnOffsetCommit), Where: meta.Group, Kind: broker.ErrIllegalGeneration,
			Cause: fmt.Errorf("generation %d: not a member of the group yet", meta.Generation),
		}
	}
	return nil
}
