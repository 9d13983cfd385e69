package simbroker

import (
	"context"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// sender is the client without transactions. A request without an answer is sent again under its sequence numbers.
type sender struct {
	producer
	// rest is what a Send that failed has left, as it was sent: the batches of one partition in their order.
	rest []outBatch
}

// NewSender makes a producer without transactions.
func (c *Client) NewSender(conf broker.SenderConfig) broker.Sender {
	if conf.Deadline == 0 {
		conf.Deadline = 8 * time.Second
	}
	p := c.NewProducer(broker.ProducerConfig{CommitDeadline: conf.Deadline, MaxBatchBytes: conf.MaxBatchBytes})
	return &sender{producer: *p.(*producer)}
}

// Send sends what is buffered.
func (s *sender) Send(ctx context.Context) error {
	s.expires = s.c.b.Now().Add(s.conf.CommitDeadline)
	if err := s.identify(ctx); err != nil {
		return err
	}
	s.rest = append(s.rest, split(s.buf, s.conf.MaxBatchBytes)...)
	s.producer.Reset()
	for len(s.rest) > 0 {
		if _, err := s.produce(ctx, s.rest[0]); err != nil {
			s.pid = -1 // its sequence numbers are used up: a late request may still act
			return err
		}
		s.rest = s.rest[1:]
	}
	return nil
}

// identify gets a producer ID, if there is none.
func (s *sender) identify(ctx context.Context) error {
	for n := 0; s.pid < 0; n++ {
		code := s.c.request(ctx, InitProducerID, "", func() Code {
			s.c.b.nextPID++
			s.pid, s.epoch = s.c.b.nextPID, 0
			return None
		})
		if code == None {
			s.seqs = map[record.TopicPartition]int32{}
			return nil
		}
		s.pid = -1
		if code != noAnswer && code.kind() != broker.ErrAbortable || !s.wait(ctx, n) {
			return newError(InitProducerID, "", code, code.kind())
		}
	}
	return nil
}

// Reset drops the buffer.
func (s *sender) Reset() {
	s.producer.Reset()
	s.rest = nil
}
