package kafka

import (
	"context"
	"time"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
)

// reclaimOnce is how long after a reclaim the next fencing is taken for another owner, whatever the group says.
const reclaimOnce = time.Minute

// reclaim finds out what PRODUCER_FENCED as the answer to our Init means. It is another process with this
// transactional ID, or it is nobody: a coordinator that ends a transaction at its timeout raises the epoch, and
// remembers that the old one was ours only in memory. If it then dies, its successor no longer knows. That is
// what a process meets that was suspended for a while.
//
// The group knows: it has one member under our instance ID, to which the transactional ID belongs. If that is
// another one, it tells us so, and we are the zombie. If it is us or nobody, Init may begin anew as a start of
// the process does: an answer to that is given when every older transaction is decided, and its epoch is
// higher than all before. Two processes that do not share the instance ID but the transactional ID are not found
// in this way, so that it is done once within a while only.
func (p *producer) reclaim(ctx context.Context) bool {
	if p.pid < 0 || p.member.Instance == "" || time.Since(p.reclaimed) < reclaimOnce {
		return false
	}
	ours := false
	err := p.c.retrying(ctx, reqHeartbeat, p.member.Group, reclaimOnce, func(ctx context.Context) error {
		addr, err := p.c.coordinator(ctx, p.member.Group, sarama.CoordinatorGroup)
		if err != nil {
			return err
		}
		var code sarama.KError
		err = p.c.ask(ctx, addr, func(b *sarama.Broker) error {
			resp, err := b.Heartbeat(&sarama.HeartbeatRequest{
				Version: 3, GroupId: p.member.Group, GenerationId: p.member.Generation, MemberId: p.member.Member, GroupInstanceId: &p.member.Instance,
			})
			if err == nil {
				code = resp.Err
			}
			return err
		})
		if err != nil {
			return err
		}
		switch code {
		case sarama.ErrNoError, sarama.ErrRebalanceInProgress, sarama.ErrIllegalGeneration, sarama.ErrUnknownMemberId:
			ours = true
			return nil
		}
		return codeError(reqHeartbeat, p.member.Group, code)
	})
	if err != nil {
		p.c.heals(reqInit, p.cfg.TransactionalID, err)
	}
	if ours {
		p.reclaimed = time.Now()
		p.c.conf.Logger.Warn("kafka: the epoch of this producer was lost with its coordinator; beginning anew", "transactional_id", p.cfg.TransactionalID)
	}
	return ours
}

// remember keeps the member that commits with this producer.
func (p *producer) remember(meta broker.GroupMeta) {
	if meta.Instance != "" {
		p.member = meta
	}
}
