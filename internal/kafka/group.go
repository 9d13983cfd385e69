package kafka

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// Join implements broker.Cluster: membership by sarama's ConsumerGroup, cooperative and static. It
// returns nil when ctx ends. A static member does not leave then: its partitions wait for its
// successor until the session timeout; LeaveGroup moves them at once.
//
// The gate between commits and rebalances is soft: commits with the old generation go on while a
// join is pending, since the coordinator takes them until it completes. The price is at most one
// ErrIllegalGeneration per rebalance; a hard gate would stop every member for the whole join.
//
// Within one rebalance the handler hears first Assigned with the new generation and everything that
// is owned, partitions that are about to go included, then Revoked for those, and after the next
// join Assigned without them.
func (c *Cluster) Join(ctx context.Context, g broker.GroupConfig, h broker.GroupHandler) error {
	groupDefaults(&g)
	if len(slices.Concat(g.CoPartitioned...)) == 0 {
		return &broker.Error{Op: string(reqJoin), Where: g.Group, Kind: broker.ErrConfig, Cause: errors.New("no topics")}
	}
	m := &membership{c: c, g: g, h: h, owned: map[record.TopicPartition]bool{}}
	defer c.leaveSeat(m.seat())
	var unknownSince time.Time
	for n := 0; ; n++ {
		begin := time.Now()
		err := m.session(ctx)
		if ctx.Err() != nil {
			m.end()
			return nil
		}
		m.lose(err)
		if errors.Is(err, errHalfway) {
			// Gone and come again: that begins a round in any case.
			c.heals(reqJoin, g.Group, err)
			if err = c.LeaveGroup(ctx, g.Group, g.Instance); err == nil {
				continue
			}
		}
		kind := kindOf(err)
		switch {
		case err == nil:
			unknownSince = time.Time{}
		case kind == broker.ErrUnknownTopic:
			if unknownSince.IsZero() {
				unknownSince = begin
			}
			if time.Since(unknownSince) > unknownLimit {
				return err
			}
		case fatal(kind):
			return err
		}
		if time.Since(begin) > 10*time.Second {
			n = 0
		}
		if err != nil {
			c.heals(reqJoin, g.Group, err)
		}
		if sleep(ctx, backoff(n, 20*time.Millisecond, time.Second)) != nil {
			return nil
		}
	}
}

func groupDefaults(g *broker.GroupConfig) {
	if g.SessionTimeout <= 0 {
		g.SessionTimeout = 45 * time.Second
	}
	if g.HeartbeatInterval <= 0 {
		g.HeartbeatInterval = g.SessionTimeout / 15
	}
	if g.RebalanceTimeout <= 0 {
		g.RebalanceTimeout = 60 * time.Second
	}
}

// membership is the state of one Join. It is sarama's handler.
type membership struct {
	c *Cluster
	g broker.GroupConfig
	h broker.GroupHandler
	// wg has the call of Revoked under way; each session waits for it.
	wg sync.WaitGroup

	calls sync.Mutex // held during a call of h: they come one at a time. Taken before mu.

	mu         sync.Mutex // guards the fields below
	sess       sarama.ConsumerGroupSession
	generation int32
	owned      map[record.TopicPartition]bool // as h was told
	target     []record.TopicPartition        // as the last assignment says
	announced  bool                           // h knows of target
	halfway    time.Time                      // since when the next round is missing; zero: it is not
	revoking   *revocation
}

// revocation is a call of Revoked under way.
type revocation struct {
	gone []record.TopicPartition
	done chan struct{}
}

// session joins and stays a member until something ends it. Nil: ended, join again.
func (m *membership) session(ctx context.Context) error {
	m.c.takeSeat(m.seat(), "")
	if err := m.awaitCoordinator(ctx); err != nil {
		return err
	}
	dialer := &memberDialer{ctx: ctx, conf: &m.c.conf, joinLimit: m.g.RebalanceTimeout + requestTimeout}
	conf, err := m.config(dialer)
	if err != nil {
		return &broker.Error{Op: string(reqJoin), Where: m.g.Group, Kind: broker.ErrConfig, Cause: err}
	}
	if err := conf.Validate(); err != nil {
		return &broker.Error{Op: string(reqJoin), Where: m.g.Group, Kind: broker.ErrConfig, Cause: err}
	}
	defer conf.MetricRegistry.UnregisterAll()
	client, err := sarama.NewClient(m.c.conf.Brokers, conf)
	if err != nil {
		return wrap(reqJoin, m.g.Group, err)
	}
	defer client.Close()
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	group, err := sarama.NewConsumerGroupFromClient(m.g.Group, newMemberClient(ctx, client, refuse))
	if err != nil {
		return &broker.Error{Op: string(reqJoin), Where: m.g.Group, Kind: broker.ErrConfig, Cause: err}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer refuse(nil) // the watch ends with the session
	wg.Go(func() { m.watchRounds(ctx, refuse) })
	wg.Go(func() {
		for err := range group.Errors() {
			m.c.heals(reqJoin, m.g.Group, err)
		}
	})
	defer group.Close()
	// Consume may wait without looking at ctx: for a coordinator that is down, or for JoinGroup's answer,
	// which comes when all other members have joined or their sessions have timed out. Nothing of ours
	// waits for either. Closing the client waits itself for requests under way, so connections go first.
	over := make(chan struct{})
	defer close(over)
	wg.Go(func() {
		select {
		case <-over:
			return
		case <-ctx.Done():
		}
		select {
		case <-over:
		case <-time.After(leaveTimeout):
			dialer.close()
			_ = client.Close()
		}
	})
	err = group.Consume(ctx, m.topics(), m)
	return m.ended(ctx, err)
}

// awaitCoordinator waits until the group has a coordinator that lets us in. sarama would sleep for two
// seconds and more on a new cluster, would try refused credentials many times, and could not say why.
func (m *membership) awaitCoordinator(ctx context.Context) error {
	begin := time.Now()
	for n := 0; ; n++ {
		addr, err := m.c.coordinator(ctx, m.g.Group, sarama.CoordinatorGroup)
		if err == nil {
			var k *conn
			if k, err = m.c.dial(ctx, addr); err == nil {
				k.close()
				return nil
			}
		}
		if fatal(kindOf(err)) || ctx.Err() != nil {
			return err
		}
		if werr := m.c.explainWait(ctx, sarama.CoordinatorGroup, err, time.Since(begin)); werr != nil {
			return werr
		}
		m.c.heals(reqCoordinator, m.g.Group, err)
		if sleep(ctx, backoff(n, 5*time.Millisecond, 200*time.Millisecond)) != nil {
			return err
		}
	}
}

// ended finds out why a session ended. Nil if joining again is all there is to do.
func (m *membership) ended(ctx context.Context, err error) error {
	m.mu.Lock()
	sess := m.sess
	m.mu.Unlock()
	if refused := context.Cause(ctx); fatal(kindOf(refused)) || errors.Is(refused, errHalfway) {
		return refused
	}
	code, ok := codeIn(err)
	if !ok && sess != nil {
		if err == nil {
			err = context.Cause(sess.Context())
		}
		code, ok = codeIn(err)
	}
	if ok && code != sarama.ErrNoError {
		where := m.g.Group
		if code == sarama.ErrFencedInstancedId {
			where += " instance " + m.g.Instance
		}
		return codeError(reqJoin, where, code)
	}
	if err == nil {
		return nil
	}
	return wrap(reqJoin, m.g.Group, err)
}

// config is the membership client's: nothing is fetched or committed with it.
func (m *membership) config(d *memberDialer) (*sarama.Config, error) {
	s, err := m.c.conf.saramaConfig(d)
	if err != nil {
		return nil, err
	}
	c := &s.Consumer
	c.Return.Errors = true
	c.Offsets.AutoCommit.Enable = false
	c.Offsets.Initial = sarama.OffsetOldest
	// sarama looks up the committed offset of each claim. We do not use it: what is read, from where,
	// is CommittedOffsets' business. With ReadCommitted the lookup would wait for open transactions.
	c.IsolationLevel = sarama.ReadUncommitted
	c.Group.ResetInvalidOffsets = false
	c.Group.InstanceId = m.g.Instance
	c.Group.Session.Timeout = m.g.SessionTimeout
	c.Group.Heartbeat.Interval = m.g.HeartbeatInterval
	c.Group.Rebalance.Timeout = m.g.RebalanceTimeout
	// A coordinator that moves during a join is looked for as long as the others wait for us.
	c.Group.Rebalance.Retry.Backoff = 100 * time.Millisecond
	c.Group.Rebalance.Retry.Max = int(m.g.RebalanceTimeout / c.Group.Rebalance.Retry.Backoff)
	c.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{&strategy{
		sets: m.g.CoPartitioned, userData: m.userData, assigned: m.onAssignment,
	}}
	// A changed number of partitions is noticed by the group's leader this often.
	s.Metadata.RefreshFrequency = time.Minute
	// JoinGroup is answered when every member has joined, at the latest after the rebalance timeout.
	s.Net.ReadTimeout = d.joinLimit
	s.ChannelBufferSize = 16
	return s, nil
}

func (m *membership) topics() []string {
	var out []string
	for _, set := range m.g.CoPartitioned {
		out = append(out, set...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// userData is called just before JoinGroup goes out. By then every revoked partition is released:
// sarama waits for the claims to return, but not for one that was revoked before it had begun.
func (m *membership) userData() []byte {
	m.mu.Lock()
	rev := m.revoking
	m.mu.Unlock()
	if rev != nil {
		<-rev.done
	}
	m.mu.Lock()
	m.halfway = time.Time{} // this is the next round, however long the others take to come to it
	m.mu.Unlock()
	m.c.takeSeat(m.seat(), "") // sarama may get a new member ID in it
	if m.g.UserData == nil {
		return nil
	}
	return m.g.UserData()
}

// onAssignment is called just after SyncGroup was answered, before sarama acts on the answer.
func (m *membership) onAssignment(topics map[string][]int32, generation int32, halfway bool) {
	m.calls.Lock()
	defer m.calls.Unlock()
	m.mu.Lock()
	m.generation, m.halfway = generation, time.Time{}
	if halfway {
		m.halfway = time.Now()
	}
	m.target, m.announced = nil, false
	keep := map[record.TopicPartition]bool{}
	for t, ps := range topics {
		for _, p := range ps {
			tp := record.TopicPartition{Topic: t, Partition: record.Partition(p)}
			m.target = append(m.target, tp)
			keep[tp] = true
		}
	}
	var gone []record.TopicPartition
	for tp := range m.owned {
		if !keep[tp] {
			gone = append(gone, tp)
		}
	}
	sortPartitions(gone)
	sess := m.sess
	// A member that owns something keeps its member ID through a join. One that owns nothing may
	// have got a new one, which is known once the first claim begins; so is a new session's.
	known := sess != nil && (len(m.owned) > 0 || len(m.target) == 0)
	if len(gone) > 0 {
		m.revoking = &revocation{gone: gone, done: make(chan struct{})}
	}
	rev := m.revoking
	m.mu.Unlock()
	if known {
		m.announce(sess)
	}
	if len(gone) > 0 {
		m.wg.Go(func() { m.revoke(sess.Context(), rev) })
	}
}

// revokePatience is how long a member may take to let partitions go, with its last commit, before those that own something take it for dead.
const revokePatience = 15 * time.Second

// errHalfway: partitions are nobody's, and nobody does anything about it.
var errHalfway = errors.New("kafka: the second round of a rebalance did not come")

// watchRounds ends a session that stays halfway through a rebalance. The member that was to let partitions go joins again once it
// has, which begins the second round. If it dies in between and comes back under its instance ID, the coordinator
// gives it its share of the first round (KIP-345 takes a restart for no change), and nothing would happen ever
// after. A round that begins too early does no harm: a member joins it when it has let go.
func (m *membership) watchRounds(ctx context.Context, end context.CancelCauseFunc) {
	if m.g.Instance == "" {
		return // without it the coordinator itself begins a round for whoever comes and goes
	}
	for sleep(ctx, m.g.HeartbeatInterval) == nil {
		if m.stuckHalfway(time.Now()) {
			end(errHalfway)
			return
		}
	}
}

// stuckHalfway says whether the second round is overdue: other members hear of one with their heartbeat. Whoever owns nothing acts
// first, since it has nothing to lose by it; the others give those that let go the time that a commit takes, and not all that the group
// would give: so long the partitions are nobody's.
func (m *membership) stuckHalfway(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	patience := 2 * m.g.HeartbeatInterval
	if len(m.owned) > 0 {
		patience = min(max(2*patience, revokePatience), m.g.RebalanceTimeout)
	}
	return !m.halfway.IsZero() && m.revoking == nil && now.Sub(m.halfway) > patience
}

// announce calls Assigned unless it has been. m.calls is held.
func (m *membership) announce(sess sarama.ConsumerGroupSession) {
	m.mu.Lock()
	if m.announced {
		m.mu.Unlock()
		return
	}
	m.announced = true
	for _, tp := range m.target {
		m.owned[tp] = true
	}
	owned := m.list()
	meta := broker.GroupMeta{Group: m.g.Group, Member: sess.MemberID(), Instance: m.g.Instance, Generation: m.generation}
	m.mu.Unlock()
	m.c.takeSeat(m.seat(), meta.Member)
	m.h.Assigned(meta, owned)
}

// list returns what is owned, in order. m.mu is held.
func (m *membership) list() []record.TopicPartition {
	out := make([]record.TopicPartition, 0, len(m.owned))
	for tp := range m.owned {
		out = append(out, tp)
	}
	sortPartitions(out)
	return out
}

func sortPartitions(tps []record.TopicPartition) {
	slices.SortFunc(tps, func(a, b record.TopicPartition) int {
		if c := strings.Compare(a.Topic, b.Topic); c != 0 {
			return c
		}
		return int(a.Partition) - int(b.Partition)
	})
}

// revoke calls Revoked and lets the claims go.
func (m *membership) revoke(ctx context.Context, rev *revocation) {
	// A little less, so that the handler can return before sarama gives the session up.
	ctx, cancel := context.WithTimeout(ctx, m.g.RebalanceTimeout*9/10)
	defer cancel()
	m.calls.Lock()
	m.h.Revoked(ctx, rev.gone)
	m.mu.Lock()
	for _, tp := range rev.gone {
		delete(m.owned, tp)
	}
	m.revoking = nil
	m.mu.Unlock()
	m.calls.Unlock()
	close(rev.done)
}

// end forgets a session and returns what was owned.
func (m *membership) end() []record.TopicPartition {
	m.wg.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	gone := m.list()
	clear(m.owned)
	m.sess, m.target, m.announced, m.halfway = nil, nil, false, time.Time{}
	return gone
}

// lose ends a session that was not given up by ourselves: the handler is told, and the log says why.
func (m *membership) lose(why error) {
	gone := m.end()
	if len(gone) == 0 {
		return
	}
	m.c.conf.Logger.Warn("kafka: the group session has ended, joining again", "group", m.g.Group, "partitions", len(gone), "err", why)
	m.calls.Lock()
	defer m.calls.Unlock()
	m.h.Lost(gone)
}

// Setup implements sarama.ConsumerGroupHandler: a new session.
func (m *membership) Setup(sess sarama.ConsumerGroupSession) error {
	m.calls.Lock()
	defer m.calls.Unlock()
	m.mu.Lock()
	m.sess, m.generation = sess, sess.GenerationID()
	m.mu.Unlock()
	m.announce(sess)
	return nil
}

// Cleanup implements sarama.ConsumerGroupHandler.
func (m *membership) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim implements sarama.ConsumerGroupHandler: "this partition is ours". Nothing is read
// through the claim. It returns only when the claim ends: sarama ends the whole session otherwise.
func (m *membership) ConsumeClaim(sess sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	if p, ok := claim.(sarama.PartitionConsumer); ok {
		p.Pause()
	}
	m.calls.Lock()
	m.announce(sess)
	m.calls.Unlock()
	for range claim.Messages() {
	}
	tp := record.TopicPartition{Topic: claim.Topic(), Partition: record.Partition(claim.Partition())}
	m.mu.Lock()
	rev := m.revoking
	m.mu.Unlock()
	if rev != nil && slices.Contains(rev.gone, tp) {
		<-rev.done
	}
	return nil
}
