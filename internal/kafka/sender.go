package kafka

import (
	"context"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
)

// sender implements broker.Sender: a producer's buffer and its Produce requests, without a transaction around them.
type sender struct{ *producer }

// NewSender makes a producer without transactions; see broker.SenderConfig for the defaults.
func (c *Cluster) NewSender(cfg broker.SenderConfig) broker.Sender {
	p := c.newProducer(broker.ProducerConfig{CommitDeadline: cfg.Deadline, Compression: cfg.Compression, MaxBatchBytes: cfg.MaxBatchBytes})
	p.alone = true
	return sender{p}
}

// Send implements broker.Sender.
func (s sender) Send(ctx context.Context) error {
	p := s.producer
	if p.wrong != nil {
		return p.wrong
	}
	if p.bad != nil {
		return p.bad
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.CommitDeadline)
	defer cancel()
	if !p.ready {
		if err := s.identify(ctx); err != nil {
			return err
		}
	}
	if err := p.produce(ctx); err != nil {
		// What is in doubt may be written yet. Its sequence numbers are used up: with others, under a new producer ID, it would
		// be there twice, and with the same ones another batch could be taken for it.
		p.ready = false
		s.settle()
		return err
	}
	p.Reset()
	return nil
}

// identify gets a producer ID that nobody else has or had. Any broker gives one, and each answer another one, so that a lost
// answer costs a number.
func (s sender) identify(ctx context.Context) error {
	p := s.producer
	return p.c.retrying(ctx, reqInit, "", adminLimit, func(ctx context.Context) error {
		var resp *sarama.InitProducerIDResponse
		err := p.c.askAny(ctx, func(b *sarama.Broker) (err error) {
			resp, err = b.InitProducerID(&sarama.InitProducerIDRequest{Version: 4, ProducerID: -1, ProducerEpoch: -1})
			return err
		})
		if err != nil {
			return err
		}
		if resp.Err != sarama.ErrNoError {
			return codeError(reqInit, "", resp.Err)
		}
		p.adopt(resp)
		return nil
	})
}

// settle forgets what was acknowledged, so that the next Send does not send it again.
func (s sender) settle() {
	kept := s.touched[:0]
	for _, part := range s.touched {
		for _, b := range part.batches[:part.sent] {
			s.freeBatch(b)
		}
		n := copy(part.batches, part.batches[part.sent:])
		clear(part.batches[n:])
		part.batches, part.sent = part.batches[:n], 0
		if n > 0 {
			kept = append(kept, part)
		}
	}
	clear(s.touched[len(kept):])
	s.touched = kept
}
