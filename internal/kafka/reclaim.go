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
// another one, it tells us so, and we are the zombie; unless that other one is us again, since the session that the
// last commit was made in is over and a new one has begun. If it is us or nobody, Init may begin anew as a start of
// the process does: an answer to that is given when every older transaction is decided, and its epoch is
// higher than all before. Two processes that do not share the instance ID but the transactional ID are not found
// in this way, so that it is done once within a while only.
func (p *producer) reclaim(ctx context.Context) bool {
	if p.pid < 0 || p.member.Instance == "" || time.Since(p.reclaimed) < reclaimOnce {
		return false
	}
	ours, err := p.inGroup(ctx)
	if err != nil {
		p.c.heals(reqInit, p.cfg.TransactionalID, err)
	}
	if ours {
		p.reclaimed = time.Now()
		p.c.conf.Logger.Warn("kafka: the epoch of this producer was lost with its coordinator; beginning anew", "transactional_id", p.cfg.TransactionalID)
	}
	return ours
}

// inGroup asks the group whether the member under our instance ID is ours, or nobody.
func (p *producer) inGroup(ctx context.Context) (bool, error) {
	place := seat{p.member.Group, p.member.Instance}
	begin := time.Now()
	for {
		meta := p.member
		now, here := p.c.inSeat(place)
		if here && now == "" && time.Since(begin) < reclaimOnce {
			// Nobody can say while we join: which member we are, or that another one has come before us. There is no hurry, since
			// nothing is committed before that is known.
			if err := sleep(ctx, memberPause); err != nil {
				return false, err
			}
			continue
		}
		if now != "" {
			meta.Member = now
		}
		code, err := p.c.heartbeat(ctx, meta)
		if err != nil {
			return false, err
		}
		switch code {
		case sarama.ErrNoError, sarama.ErrRebalanceInProgress, sarama.ErrIllegalGeneration, sarama.ErrUnknownMemberId:
			return true, nil
		case sarama.ErrFencedInstancedId:
			if later, _ := p.c.inSeat(place); later != now {
				continue // by ourselves, meanwhile
			}
		}
		return false, codeError(reqHeartbeat, meta.Group, code)
	}
}

// heartbeat sends one for a member and returns what the group's coordinator answers.
func (c *Cluster) heartbeat(ctx context.Context, m broker.GroupMeta) (code sarama.KError, err error) {
	err = c.retrying(ctx, reqHeartbeat, m.Group, reclaimOnce, func(ctx context.Context) error {
		addr, err := c.coordinator(ctx, m.Group, sarama.CoordinatorGroup)
		if err != nil {
			return err
		}
		err = c.ask(ctx, addr, func(b *sarama.Broker) error {
			resp, err := b.Heartbeat(&sarama.HeartbeatRequest{
				Version: 3, GroupId: m.Group, GenerationId: m.Generation, MemberId: m.Member, GroupInstanceId: &m.Instance,
			})
			if err == nil {
				code = resp.Err
			}
			return err
		})
		if _, react := classify(reqHeartbeat, code); err == nil && (react == again || react == elsewhere) {
			return codeError(reqHeartbeat, m.Group, code)
		}
		return err
	})
	return code, err
}

// remember keeps the member that commits with this producer.
func (p *producer) remember(meta broker.GroupMeta) {
	if meta.Instance != "" {
		p.member = meta
	}
}

// seat is what a static member has in a group: one member at a time.
type seat struct{ group, instance string }

func (m *membership) seat() seat { return seat{m.g.Group, m.g.Instance} }

// takeSeat notes the ID of a member of ours, empty while it joins.
func (c *Cluster) takeSeat(s seat, member string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members[s] = member
}

func (c *Cluster) leaveSeat(s seat) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.members, s)
}

// inSeat returns the ID of our own member; false: there is none.
func (c *Cluster) inSeat(s seat) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	member, ok := c.members[s]
	return member, ok
}
