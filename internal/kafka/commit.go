package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/record"
)

// Commit implements broker.Producer. The requests are strictly serial, and only Produce to different
// leaders runs in parallel: Kafka 4 verifies a transaction per partition (KIP-890), and a request that
// arrives while another one of the transaction is handled is answered NOT_ENOUGH_REPLICAS or
// COORDINATOR_LOAD_IN_PROGRESS.
//
//	AddPartitionsToTxn  AddOffsetsToTxn  Produce...  TxnOffsetCommit  EndTxn
//
// Before the first one in an epoch, and to partitions that are new in it, the leaders are asked what is open there: see ended.
func (p *producer) Commit(ctx context.Context, meta broker.GroupMeta, offsets []broker.OffsetCommit) (broker.Receipt, broker.Outcome, error) {
	var receipt broker.Receipt
	err := p.check(meta, offsets)
	p.ready = false // whatever goes wrong from here on, only Init makes it right
	if err != nil {
		return receipt, broker.NotCommitted, err
	}
	// The deadline is below the transaction timeout, so that we give up before the coordinator does:
	// its clock starts with the first request below, ours just before.
	ctx, cancel := context.WithTimeout(ctx, p.cfg.CommitDeadline)
	defer cancel()

	p.remember(meta)
	begin := time.Now()
	group := ""
	if len(offsets) > 0 {
		group = meta.Group
	}
	if err := p.ended(ctx, group); err != nil {
		return receipt, broker.NotCommitted, err
	}
	if err := p.flush(ctx, meta, len(offsets) > 0); err != nil {
		return receipt, broker.NotCommitted, err
	}
	fault.Point("flush.done")
	flushed := time.Now()
	if len(offsets) > 0 {
		if err := p.commitOffsets(ctx, meta, offsets); err != nil {
			return receipt, broker.NotCommitted, err
		}
	}
	receipt.Next, err = p.nextOffsets(ctx)
	if err != nil {
		return receipt, broker.NotCommitted, err
	}
	fault.Point("offsets.committed")
	offsetsDone := time.Now()
	outcome, err := p.endTxn(ctx)
	fault.Point("endtxn.acked")
	receipt.Flush, receipt.Offsets, receipt.EndTxn = flushed.Sub(begin), offsetsDone.Sub(flushed), time.Since(offsetsDone)
	if outcome == broker.Committed {
		p.Reset()
		p.ready = true
	}
	return receipt, outcome, err
}

// flush opens the transaction and sends every record: when it returns nil every acknowledgement is in hand.
func (p *producer) flush(ctx context.Context, meta broker.GroupMeta, withOffsets bool) error {
	if p.records > 0 {
		if err := p.addPartitions(ctx); err != nil {
			return err
		}
		fault.Point("partitions.added")
	}
	// Before Produce and not beside it: see above. The partition of __consumer_offsets cannot be added
	// with the others, the coordinator refuses it.
	if withOffsets {
		if err := p.addOffsets(ctx, meta.Group); err != nil {
			return err
		}
		fault.Point("offsets.added")
	}
	if p.records > 0 {
		return p.produce(ctx)
	}
	return nil
}

// answer is what one coordinator request was answered, and about what.
type answer struct {
	code  sarama.KError
	where string
}

// coordinate sends one request to a coordinator until it is answered with something final. An
// answered error may be retried; a request that got no answer is never sent again: it may act later.
func (p *producer) coordinate(ctx context.Context, req request, l *link, send func(*sarama.Broker) (answer, error)) (sent bool, err error) {
	var conflicts, failures int
	var lastCode error
	for {
		k, err := l.get(ctx)
		if err == nil {
			var a answer
			err = k.call(ctx, func(b *sarama.Broker) error {
				a, err = send(b)
				return err
			})
			sent = sent || err == nil || isLost(err)
			if err != nil { // no answer: whatever it was, it is not sent again
				l.drop()
				return sent, p.requestError(ctx, req, err, lastCode)
			}
			_, react := classify(req, a.code)
			if react == done {
				return sent, nil
			}
			err = codeError(req, a.where, a.code)
			lastCode = err
			switch react {
			case markers:
				conflicts++
				if sleep(ctx, markersBackoff(conflicts-1)) != nil {
					return sent, err
				}
				continue
			case again:
			case elsewhere:
				l.drop()
			case renew:
				p.pid, p.epoch = -1, -1
				return sent, err
			default:
				return sent, err
			}
		}
		// Here the error was answered, or the coordinator not even reached: both may be tried again.
		var be *broker.Error
		if errors.As(err, &be) && fatal(be.Kind) {
			return sent, err
		}
		if sleep(ctx, backoff(failures, time.Millisecond, 50*time.Millisecond)) != nil {
			return sent, p.requestError(ctx, req, err, lastCode)
		}
		failures++
	}
}

// requestError wraps the end of a request without a usable answer.
func (p *producer) requestError(ctx context.Context, req request, err, lastCode error) error {
	if lastCode != nil && ctx.Err() != nil { // the deadline ended the retries of an answered error: that one tells more
		return lastCode
	}
	var be *broker.Error
	if errors.As(err, &be) {
		return err
	}
	if errors.Is(err, sarama.ErrUnsupportedVersion) {
		return &broker.Error{Op: string(req), Where: p.cfg.TransactionalID, Kind: broker.ErrUnsupported, Cause: err}
	}
	return &broker.Error{Op: string(req), Where: p.cfg.TransactionalID, Kind: broker.ErrUnreachable, Cause: err}
}

// addPartitions registers every partition that is written to, in one request.
func (p *producer) addPartitions(ctx context.Context) error {
	tps := make(map[string][]int32)
	for _, part := range p.touched {
		tps[part.tp.Topic] = append(tps[part.tp.Topic], int32(part.tp.Partition))
	}
	_, err := p.coordinate(ctx, reqAddPartitions, p.coord, func(b *sarama.Broker) (answer, error) {
		resp, err := b.AddPartitionsToTxn(&sarama.AddPartitionsToTxnRequest{
			Version: 3, TransactionalID: p.cfg.TransactionalID, ProducerID: p.pid, ProducerEpoch: p.epoch, TopicPartitions: tps,
		})
		if err != nil {
			return answer{}, err
		}
		return p.worst(resp.Errors), nil
	})
	return err
}

// worst picks the answer that matters among those of several partitions: OPERATION_NOT_ATTEMPTED
// only says that another one failed. Errors about the producer are the same for all and are reported
// with its ID, the others with their topic.
func (p *producer) worst(errs map[string][]*sarama.PartitionError) answer {
	worst := answer{where: p.cfg.TransactionalID}
	for topic, es := range errs {
		for _, e := range es {
			if e.Err == sarama.ErrNoError || worst.code != sarama.ErrNoError && e.Err == sarama.ErrOperationNotAttempted {
				continue
			}
			if worst.code == sarama.ErrNoError || worst.code == sarama.ErrOperationNotAttempted || severity(e.Err) > severity(worst.code) {
				worst.code = e.Err
				if kind, _ := classify(reqAddPartitions, e.Err); e.Err == sarama.ErrTopicAuthorizationFailed {
					worst.where = topic
				} else if errors.Is(kind, broker.ErrUnknownTopic) {
					worst.where = record.TopicPartition{Topic: topic, Partition: record.Partition(e.Partition)}.String()
				}
			}
		}
	}
	return worst
}

// severity orders codes by how little a retry helps.
func severity(code sarama.KError) int {
	_, react := classify(reqAddPartitions, code)
	return int(react)
}

func (p *producer) addOffsets(ctx context.Context, group string) error {
	_, err := p.coordinate(ctx, reqAddOffsets, p.coord, func(b *sarama.Broker) (answer, error) {
		resp, err := b.AddOffsetsToTxn(&sarama.AddOffsetsToTxnRequest{
			Version: 3, TransactionalID: p.cfg.TransactionalID, ProducerID: p.pid, ProducerEpoch: p.epoch, GroupID: group,
		})
		if err != nil {
			return answer{}, err
		}
		where := p.cfg.TransactionalID
		if resp.Err == sarama.ErrGroupAuthorizationFailed {
			where = group
		}
		return answer{resp.Err, where}, nil
	})
	return err
}

// commitOffsets sends the positions with member and generation as they were when the records were read (KIP-447).
func (p *producer) commitOffsets(ctx context.Context, meta broker.GroupMeta, offsets []broker.OffsetCommit) error {
	if p.group == nil || p.groupID != meta.Group {
		if p.group != nil {
			p.group.drop()
		}
		p.groupID = meta.Group
		p.group = &link{c: p.c, find: func(ctx context.Context) (string, error) {
			return p.c.coordinator(ctx, meta.Group, sarama.CoordinatorGroup)
		}}
	}
	topics := make(map[string][]*sarama.PartitionOffsetMetadata)
	slab := make([]sarama.PartitionOffsetMetadata, len(offsets))
	for i, o := range offsets {
		// Leader epoch -1: the reader does not track it, and a wrong one would be worse than none.
		m := o.Metadata
		slab[i] = sarama.PartitionOffsetMetadata{Partition: int32(o.Partition), Offset: int64(o.Next), LeaderEpoch: -1, Metadata: &m}
		topics[o.Topic] = append(topics[o.Topic], &slab[i])
	}
	var instance *string
	if meta.Instance != "" {
		instance = &meta.Instance
	}
	_, err := p.coordinate(ctx, reqTxnOffsetCommit, p.group, func(b *sarama.Broker) (answer, error) {
		resp, err := b.TxnOffsetCommit(&sarama.TxnOffsetCommitRequest{
			Version: 3, TransactionalID: p.cfg.TransactionalID, GroupID: meta.Group, ProducerID: p.pid, ProducerEpoch: p.epoch,
			GenerationID: meta.Generation, MemberID: meta.Member, GroupInstanceID: instance, Topics: topics,
		})
		if err != nil {
			return answer{}, err
		}
		a := p.worst(resp.Topics)
		if a.where == p.cfg.TransactionalID && a.code != sarama.ErrTransactionalIDAuthorizationFailed {
			a.where = meta.Group
		}
		return a, nil
	})
	return err
}

// endTxn asks for the commit. Once it was sent, everything but "no error" leaves the outcome unknown,
// an answered error too: COORDINATOR_NOT_AVAILABLE may hide a decision that survives.
func (p *producer) endTxn(ctx context.Context) (broker.Outcome, error) {
	sent, err := p.coordinate(ctx, reqEndTxn, p.coord, func(b *sarama.Broker) (answer, error) {
		resp, err := b.EndTxn(&sarama.EndTxnRequest{
			Version: 3, TransactionalID: p.cfg.TransactionalID, ProducerID: p.pid, ProducerEpoch: p.epoch, TransactionResult: true,
		})
		if err != nil {
			return answer{}, err
		}
		return answer{resp.Err, p.cfg.TransactionalID}, nil
	})
	switch {
	case err == nil:
		return broker.Committed, nil
	case sent:
		return broker.Unknown, err
	}
	return broker.NotCommitted, err
}
