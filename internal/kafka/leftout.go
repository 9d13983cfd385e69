package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// DescribeProducers (KIP-664), in its only version, which is a "flexible" one. Brokers before 2.8 lack it.
const keyDescribeProducers, versionDescribeProducers = 61, 0

// ended makes sure that no older transaction of this producer is open where the next one is going to write, and refuses to go on if one is.
//
// A coordinator can hold a transaction to be over, and nothing marks its end in a partition: Kafka leaves out the markers of partitions that have no
// leader just then (KAFKA-20734, seen with 4.4.0 when a lone broker is killed). The leader then takes what the producer writes next for a part
// of the old transaction, and the next marker decides about both: committed records are lost with the abort of another transaction, aborted
// ones are read with the commit of another one.
//
// It is asked once for each partition and epoch, before the partition is added to a transaction: from then on, an abort would end what hangs there,
// too. Init has waited by then until the coordinator holds all older transactions to be over, so that whatever is open is never going to be ended.
// Within one epoch it is not asked again: whoever lost a broker has lost the connections to it, which leads to Init.
func (p *producer) ended(ctx context.Context, group string) error {
	if !p.c.tellsProducers {
		return nil
	}
	var ask []record.TopicPartition
	for _, part := range p.touched {
		if !part.clean {
			ask = append(ask, part.tp)
		}
	}
	// The offsets as well: with the wrong end of a transaction, positions go back or forth.
	offsets := group != "" && group != p.cleanGroup
	doubted := map[record.TopicPartition]bool{}
	for n := 0; offsets || len(ask) > 0; n++ {
		if offsets {
			tp, there, err := p.c.offsetsPartition(ctx, group)
			switch {
			case err != nil && fatal(kindOf(err)):
				return err
			case err == nil && there:
				ask = append(ask, tp)
			}
			offsets = err != nil
		}
		var err error
		if ask, err = p.askLeaders(ctx, ask, doubted); err != nil {
			return err
		}
		where := broker.OffsetsTopic
		switch {
		case len(ask) > 0:
			where = ask[0].String()
		case !offsets:
			continue
		}
		pause := backoff(n, time.Millisecond, 50*time.Millisecond)
		if len(doubted) > 0 {
			pause = max(pause, doubtPause)
		}
		if sleep(ctx, pause) != nil {
			return &broker.Error{
				Op: string(reqProducers), Where: where, Kind: broker.ErrUnreachable,
				Cause: fmt.Errorf("no leader said what is open there before the deadline: %w", context.Cause(ctx)),
			}
		}
		var topics []string
		for _, tp := range ask {
			topics = append(topics, tp.Topic)
		}
		if len(topics) > 0 {
			p.c.refresh(ctx, topics)
		}
	}
	for _, part := range p.touched {
		part.clean = true
	}
	if group != "" {
		p.cleanGroup = group
	}
	return nil
}

// offsetsPartition is where the offsets of a group are. There is none before any group has committed; not to be allowed to know is the same here. An
// error says that nobody was there to ask.
func (c *Cluster) offsetsPartition(ctx context.Context, group string) (tp record.TopicPartition, there bool, err error) {
	resp, _, err := c.describe(ctx, broker.OffsetsTopic)
	if err != nil {
		c.heals(reqMetadata, broker.OffsetsTopic, err)
		return tp, false, err
	}
	if len(resp.Topics) == 0 || len(resp.Topics[0].Partitions) == 0 {
		return tp, false, nil
	}
	n := broker.OffsetsPartition(group, len(resp.Topics[0].Partitions))
	return record.TopicPartition{Topic: broker.OffsetsTopic, Partition: record.Partition(n)}, true, nil
}

// doubtPause is how long a leader has to find out that it is none any more.
const doubtPause = 250 * time.Millisecond

// askLeaders asks the leaders, one after the other, and returns the partitions that have to be asked about again.
//
// Those where something is open are asked about once more, of the leader that new metadata names, before it counts: a leader that slept and was replaced
// answers for a moment as of before its sleep, and what was open then may have been ended by its successor. doubted are those
// that have been found open before.
func (p *producer) askLeaders(ctx context.Context, ask []record.TopicPartition, doubted map[record.TopicPartition]bool) (later []record.TopicPartition, err error) {
	parts := map[int32][]record.TopicPartition{}
	addrs := map[int32]string{}
	for _, tp := range ask {
		id, addr, err := p.c.leader(ctx, tp)
		var e *broker.Error
		switch {
		case err == nil:
			parts[id], addrs[id] = append(parts[id], tp), addr
		case errors.As(err, &e) && fatal(e.Kind) || ctx.Err() != nil:
			return nil, err
		default:
			later = append(later, tp)
		}
	}
	for _, id := range sortedKeys(parts) {
		answers, err := p.askLeader(ctx, p.leaderLink(id, addrs[id]), parts[id])
		var e *broker.Error
		if errors.As(err, &e) && fatal(e.Kind) {
			return nil, err
		}
		for _, tp := range parts[id] {
			a, answered := answers[tp]
			if a.open != nil && doubted[tp] {
				return nil, p.leftOut(tp, a.open)
			}
			if a.open != nil {
				doubted[tp] = true
				later = append(later, tp)
				continue
			}
			switch _, react := classify(reqProducers, a.code); {
			case !answered, react == again, react == elsewhere:
				later = append(later, tp)
			case react != done && p.c.logged[reqProducers].ok(): // no right to look, above all: it goes on as without this question
				p.c.conf.Logger.Warn("kafka: whether an older transaction was left open is not known", "topic", tp.Topic, "partition", tp.Partition,
					"err", codeError(reqProducers, tp.Topic, a.code))
			}
		}
	}
	return later, nil
}

// leftOut is the error of a partition in which a transaction of this producer was not ended.
func (p *producer) leftOut(tp record.TopicPartition, t *openTxn) error {
	return &broker.Error{
		Op: string(reqProducers), Where: tp.String(), Kind: broker.ErrLeftOpen,
		Cause: fmt.Errorf("transactional ID %s, producer %d, epoch %d, from offset %d on", p.cfg.TransactionalID, p.pid, t.epoch, t.from),
		Remedy: "Kafka has left out its marker (KAFKA-20734), and with the next one its records might be lost, or aborted ones be read: " +
			"streamd inspect transactions FILE --end-hanging --execute ends it as it was decided",
	}
}

// openTxn is an open transaction of this producer, as the leader of a partition knows it.
type openTxn struct {
	epoch int32
	from  int64
}

// openAnswer is what a leader says of one partition. open is nil if nothing of this producer's is open.
type openAnswer struct {
	code sarama.KError
	open *openTxn
}

// askLeader asks one leader. The question changes nothing, so that it may be asked again if no answer came.
func (p *producer) askLeader(ctx context.Context, to *link, parts []record.TopicPartition) (map[record.TopicPartition]openAnswer, error) {
	k, err := to.get(ctx)
	if err != nil {
		return nil, err
	}
	body, err := k.roundTrip(ctx, producersFrame(k, parts), 0)
	if err == nil {
		var out map[record.TopicPartition]openAnswer
		var throttle time.Duration
		if out, throttle, err = decodeProducers(body, p.pid); err == nil {
			k.muted = time.Now().Add(throttle)
			return out, nil
		}
	}
	to.drop()
	p.c.heals(reqProducers, parts[0].String(), err)
	return nil, err
}

// producersFrame encodes a DescribeProducers request.
func producersFrame(k *conn, parts []record.TopicPartition) []byte {
	b := append(k.nextFrame(nil, keyDescribeProducers, versionDescribeProducers), 0) // a header of version 2: no tags
	byTopic := map[string][]int32{}
	for _, tp := range parts {
		byTopic[tp.Topic] = append(byTopic[tp.Topic], int32(tp.Partition))
	}
	b = appendLength(b, len(byTopic))
	for topic, numbers := range byTopic {
		b = append(appendLength(b, len(topic)), topic...)
		b = appendLength(b, len(numbers))
		for _, n := range numbers {
			b = append32(b, n)
		}
		b = append(b, 0)
	}
	return finishFrame(append(b, 0))
}

// appendLength appends a length as "flexible" versions have it: one more than it is, 0 being null.
func appendLength(b []byte, n int) []byte { return binary.AppendUvarint(b, uint64(n)+1) }

// decodeProducers reads a DescribeProducers answer and picks what is open of one producer.
func decodeProducers(b []byte, pid int64) (map[record.TopicPartition]openAnswer, time.Duration, error) {
	c := cursor{b: b}
	c.tags()
	throttle := time.Duration(c.int32()) * time.Millisecond
	out := map[record.TopicPartition]openAnswer{}
	for range c.length(3) {
		topic := string(c.take(c.length(1)))
		for range c.length(9) {
			tp := record.TopicPartition{Topic: topic, Partition: record.Partition(c.int32())}
			a := openAnswer{code: sarama.KError(c.int16())}
			c.take(c.length(1)) // a message
			for range c.length(37) {
				id, epoch := c.int64(), c.int32()
				c.take(4 + 8 + 4) // last sequence, last timestamp, epoch of the coordinator
				if from := c.int64(); id == pid && from >= 0 {
					a.open = &openTxn{epoch, from}
				}
				c.tags()
			}
			c.tags()
			out[tp] = a
		}
		c.tags()
	}
	c.tags()
	return out, throttle, c.err
}

// length reads a length as appendLength writes it; null gives 0. each is the least size of one element, as in count.
func (c *cursor) length(each int) int {
	n := c.uvarint()
	if n <= 1 {
		return 0
	}
	if n-1 > uint64(len(c.b)/each) {
		c.fail()
		return 0
	}
	return int(n - 1)
}

func (c *cursor) uvarint() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.fail()
		return 0
	}
	c.take(n)
	return v
}

// tags skips tagged fields.
func (c *cursor) tags() {
	for range c.uvarint() {
		if c.uvarint(); c.err != nil { // the tag; the number of them may be corrupt
			return
		}
		c.take(int(min(c.uvarint(), maxFrame)))
	}
}
