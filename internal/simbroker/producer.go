package simbroker

import (
	"context"
	"errors"
	"sort"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// producer is the transactional client: the requests, their order and the reactions of KAFKA.md
// sections 2 and 3, without a network.
type producer struct {
	c     *Client
	conf  broker.ProducerConfig
	pid   int64 // -1: none yet
	epoch int16
	// ready is false from the start and after each failed commit: Init comes first.
	ready   bool
	buf     []broker.Output
	bytes   int
	seqs    map[record.TopicPartition]int32 // next sequence numbers in this epoch
	expires time.Time                       // of the commit that is running
}

// outBatch is one record batch of a transaction.
type outBatch struct {
	tp      record.TopicPartition
	records []broker.Record
	index   []int // of each record in the order of Add
	bytes   int
}

// NewProducer makes a transactional producer.
func (c *Client) NewProducer(conf broker.ProducerConfig) broker.Producer {
	if conf.TransactionTimeout == 0 {
		conf.TransactionTimeout = 10 * time.Second
	}
	if conf.CommitDeadline == 0 {
		conf.CommitDeadline = conf.TransactionTimeout * 8 / 10
	}
	if conf.MaxBatchBytes == 0 {
		conf.MaxBatchBytes = 900 << 10
	}
	return &producer{c: c, conf: conf, pid: -1, epoch: -1, seqs: map[record.TopicPartition]int32{}}
}

// Init gets a producer ID, or raises the epoch. It repeats itself until it is answered: a late
// InitProducerId can only fence, never commit.
func (p *producer) Init(ctx context.Context) error {
	p.ready = false
	id := p.conf.TransactionalID
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return &broker.Error{Op: string(InitProducerID), Where: id, Kind: broker.ErrAbortable, Cause: err}
		}
		askPID, askEpoch := p.pid, p.epoch
		var pid int64
		var epoch int16
		code := p.c.request(ctx, InitProducerID, id, func() (code Code) {
			pid, epoch, code = p.c.b.initProducer(id, p.conf.TransactionTimeout, askPID, askEpoch)
			return code
		})
		switch {
		case code == None:
			p.pid, p.epoch, p.ready = pid, epoch, true
			p.seqs = map[record.TopicPartition]int32{}
			return nil
		case code == InvalidProducerIDMapping || code == UnknownProducerID:
			p.pid, p.epoch = -1, -1 // the broker forgot this ID: ask for a new one
		case code == ProducerFenced || code == InvalidProducerEpoch:
			return newError(InitProducerID, id, code, broker.ErrFenced)
		case code != noAnswer && coordinatorReaction(code) == fail && code != RequestTimedOut && code.kind() != broker.ErrAbortable:
			return newError(InitProducerID, id, code, code.kind())
		}
		p.c.sleep(backoff(n))
	}
}

// Add buffers one record.
func (p *producer) Add(o broker.Output) {
	p.buf = append(p.buf, o)
	p.bytes += outputBytes(&o)
}

func outputBytes(o *broker.Output) int {
	r := broker.Record{Key: o.Key, Value: o.Value, Headers: o.Headers}
	return r.Size() + recordOverhead
}

// Buffered returns what is buffered.
func (p *producer) Buffered() (records, bytes int) { return len(p.buf), p.bytes }

// Reset drops the buffer.
func (p *producer) Reset() { p.buf, p.bytes = nil, 0 }

// Close ends the producer.
func (p *producer) Close() { p.ready = false }

// Commit runs the transaction.
func (p *producer) Commit(ctx context.Context, meta broker.GroupMeta, offsets []broker.OffsetCommit) (broker.Receipt, broker.Outcome, error) {
	id := p.conf.TransactionalID
	refuse := func(kind error, why string) (broker.Receipt, broker.Outcome, error) {
		p.ready = false
		return broker.Receipt{}, broker.NotCommitted, &broker.Error{Op: "commit", Where: id, Kind: kind, Cause: errors.New(why)}
	}
	switch {
	case !p.ready:
		return refuse(broker.ErrAbortable, "the producer must be initialised first")
	case len(p.buf) == 0 && len(offsets) == 0:
		return refuse(broker.ErrAbortable, "an empty transaction")
	case len(offsets) > 0 && meta.Generation < 0:
		return refuse(broker.ErrIllegalGeneration, "the records were read without a generation")
	}
	p.expires = p.c.b.Now().Add(p.conf.CommitDeadline)
	receipt, err := p.send(ctx, meta, offsets)
	if err != nil {
		p.ready = false
		return broker.Receipt{}, broker.NotCommitted, err
	}
	start := p.c.b.Now()
	// Too late, or no longer wanted: EndTxn is not sent, so that the outcome is known.
	if ctx.Err() != nil {
		return refuse(broker.ErrAbortable, ctx.Err().Error())
	}
	if !start.Before(p.expires) {
		return refuse(broker.ErrAbortable, "the commit's deadline has passed")
	}
	if err := p.endTxn(ctx); err != nil {
		p.ready = false
		return broker.Receipt{}, broker.Unknown, err
	}
	receipt.EndTxn = p.c.b.Now().Sub(start)
	p.Reset()
	return receipt, broker.Committed, nil
}

// endTxn asks for the commit. With V2 the answer has the epoch of the next transaction.
func (p *producer) endTxn(ctx context.Context) error {
	id := p.conf.TransactionalID
	if p.c.Protocol == V1 {
		return p.coordinator(ctx, EndTxn, id, coordinatorReaction, func(pid int64, epoch int16) Code {
			return p.c.b.endTxn(id, pid, epoch, true)
		})
	}
	var nextPID int64
	var nextEpoch int16
	err := p.coordinator(ctx, EndTxn, id, coordinatorReaction, func(pid int64, epoch int16) (code Code) {
		nextPID, nextEpoch, code = p.c.b.endTxnV2(id, pid, epoch, true)
		return code
	})
	if err == nil {
		p.pid, p.epoch, p.seqs = nextPID, nextEpoch, map[record.TopicPartition]int32{}
	}
	return err
}

// send is everything before EndTxn, strictly one request after the other.
func (p *producer) send(ctx context.Context, meta broker.GroupMeta, offsets []broker.OffsetCommit) (broker.Receipt, error) {
	id := p.conf.TransactionalID
	start := p.c.b.Now()
	receipt := broker.Receipt{Next: map[record.TopicPartition]record.Offset{}}
	batches := split(p.buf, p.conf.MaxBatchBytes)
	v1 := p.c.Protocol == V1 // with V2 the partitions are added by what is written to them
	if v1 && len(batches) > 0 {
		tps := partitionsOf(batches)
		if err := p.coordinator(ctx, AddPartitionsToTxn, id, addPartitionsReaction, func(pid int64, epoch int16) Code {
			return p.c.b.addPartitions(id, pid, epoch, tps)
		}); err != nil {
			return receipt, err
		}
	}
	if v1 && len(offsets) > 0 {
		if err := p.coordinator(ctx, AddOffsetsToTxn, id, coordinatorReaction, func(pid int64, epoch int16) Code {
			return p.c.b.addPartitions(id, pid, epoch, []record.TopicPartition{offsetsPartition})
		}); err != nil {
			return receipt, err
		}
	}
	for _, b := range batches {
		next, err := p.produce(ctx, b)
		if err != nil {
			return receipt, err
		}
		if next != record.NoOffset {
			receipt.Next[b.tp] = next
		}
	}
	flushed := p.c.b.Now()
	receipt.Flush = flushed.Sub(start)
	if len(offsets) > 0 {
		offsets = append([]broker.OffsetCommit(nil), offsets...) // a held request outlives the call
		if err := p.coordinator(ctx, TxnOffsetCommit, meta.Group, coordinatorReaction, func(pid int64, epoch int16) Code {
			return p.c.b.commitOffsets(p.c.Protocol, id, pid, epoch, meta, offsets)
		}); err != nil {
			return receipt, err
		}
		receipt.Offsets = p.c.b.Now().Sub(flushed)
	}
	return receipt, nil
}

// coordinator sends one request to a coordinator, again as long as it is answered with an error that
// heals. Without an answer it is over: the request may act later, and only a new epoch stops it.
func (p *producer) coordinator(ctx context.Context, api API, where string, react func(Code) reaction, handle func(pid int64, epoch int16) Code) error {
	pid, epoch := p.pid, p.epoch
	for n := 0; ; n++ {
		code := p.c.request(ctx, api, where, func() Code { return handle(pid, epoch) })
		if code == None {
			return nil
		}
		if code == noAnswer || react(code) == fail || !p.wait(ctx, n) {
			p.note(code)
			return newError(api, where, code, code.kind())
		}
	}
}

// note keeps what a final error says about the producer ID itself.
func (p *producer) note(code Code) {
	if code == InvalidProducerIDMapping || code == UnknownProducerID {
		p.pid, p.epoch = -1, -1
	}
}

// wait backs off, unless that would pass the deadline of the commit.
func (p *producer) wait(ctx context.Context, n int) bool {
	d := backoff(n)
	if ctx.Err() != nil || p.c.b.Now().Add(d).After(p.expires) {
		return false
	}
	p.c.sleep(d)
	return true
}

// produce sends one batch and returns the offset after it, NoOffset if the broker knew it already and
// does not say where. A batch that is too large is halved.
func (p *producer) produce(ctx context.Context, b outBatch) (record.Offset, error) {
	pid, epoch, seq := p.pid, p.epoch, p.seqs[b.tp]
	where := b.tp.String()
	for n := 0; ; n++ {
		base := record.NoOffset
		code := p.c.request(ctx, Produce, where, func() (code Code) {
			if code = p.c.checkLeader(b.tp); code == None {
				base, code = p.write(pid, epoch, seq, b)
			}
			return code
		})
		switch {
		case code == None || code == DuplicateSequence:
			// DUPLICATE_SEQUENCE is success, and only because no request is sent again unanswered.
			p.seqs[b.tp] = addSequence(seq, int32(len(b.records)))
			if code == DuplicateSequence || base == record.NoOffset {
				return record.NoOffset, nil
			}
			return base + record.Offset(len(b.records)), nil
		case code == MessageTooLarge:
			return p.halve(ctx, b)
		case code == noAnswer && !p.alone() || code != noAnswer && produceReaction(code) == fail || !p.wait(ctx, n):
			p.note(code)
			return record.NoOffset, newError(Produce, where, code, code.kind())
		case code == noAnswer || produceReaction(code) == refresh:
			p.c.refresh(ctx, b.tp)
		}
	}
}

// alone says that it is the inside of a sender.
func (p *producer) alone() bool { return p.conf.TransactionalID == "" }

// write is how the broker handles a batch.
func (p *producer) write(pid int64, epoch int16, seq int32, b outBatch) (record.Offset, Code) {
	if p.alone() {
		return p.c.b.produceAlone(pid, epoch, seq, b)
	}
	return p.c.b.produce(p.c.Protocol, p.conf.TransactionalID, pid, epoch, seq, b)
}

func (p *producer) halve(ctx context.Context, b outBatch) (record.Offset, error) {
	if len(b.records) == 1 {
		return record.NoOffset, &broker.TooLargeError{Index: b.index[0], Bytes: b.bytes, Topic: b.tp.Topic}
	}
	h := len(b.records) / 2
	left := outBatch{tp: b.tp, records: b.records[:h], index: b.index[:h]}
	right := outBatch{tp: b.tp, records: b.records[h:], index: b.index[h:]}
	var next record.Offset
	for _, part := range []outBatch{left, right} {
		part.bytes = batchOverhead
		for i := range part.records {
			part.bytes += part.records[i].Size() + recordOverhead
		}
		var err error
		if next, err = p.produce(ctx, part); err != nil {
			return record.NoOffset, err
		}
	}
	return next, nil
}

// split cuts the buffer into batches: per partition in the order of Add, each below maxBytes unless a
// single record is larger. The batches come in rounds, the first one of each partition first.
func split(buf []broker.Output, maxBytes int) []outBatch {
	var out []outBatch
	current := map[record.TopicPartition]int{} // index of the partition's last batch in out
	rounds := []int{}
	for i := range buf {
		o := &buf[i]
		size := outputBytes(o)
		k, ok := current[o.TopicPartition]
		if !ok || out[k].bytes+size > maxBytes {
			round := 0
			if ok {
				round = rounds[k] + 1
			}
			k = len(out)
			current[o.TopicPartition] = k
			out = append(out, outBatch{tp: o.TopicPartition, bytes: batchOverhead})
			rounds = append(rounds, round)
		}
		out[k].bytes += size
		out[k].index = append(out[k].index, i)
		out[k].records = append(out[k].records, broker.Record{
			// A copy: a held request and the log outlive the caller's bytes.
			Timestamp: o.Timestamp.Truncate(time.Millisecond), Key: clone(o.Key), Value: clone(o.Value), Headers: cloneHeaders(o.Headers),
		})
	}
	order := make([]int, len(out))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool { return rounds[order[i]] < rounds[order[j]] })
	sorted := make([]outBatch, len(out))
	for i, k := range order {
		sorted[i] = out[k]
	}
	return sorted
}

func partitionsOf(batches []outBatch) []record.TopicPartition {
	seen := map[record.TopicPartition]bool{}
	var tps []record.TopicPartition
	for i := range batches {
		if tp := batches[i].tp; !seen[tp] {
			seen[tp] = true
			tps = append(tps, tp)
		}
	}
	return tps
}

// sortedPartitions gives a map's keys in a fixed order.
func sortedPartitions[V any](m map[record.TopicPartition]V) []record.TopicPartition {
	tps := make([]record.TopicPartition, 0, len(m))
	for tp := range m {
		tps = append(tps, tp)
	}
	sort.Slice(tps, func(i, j int) bool {
		if tps[i].Topic != tps[j].Topic {
			return tps[i].Topic < tps[j].Topic
		}
		return tps[i].Partition < tps[j].Partition
	})
	return tps
}
