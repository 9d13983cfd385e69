package simbroker

import (
	"context"
	"fmt"
	"sync"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// committedOffset is one committed position with its place in the offsets log.
type committedOffset struct {
	broker.CommittedOffset
	seq int // place in the offsets log: of two, the later one counts, whichever marker comes first
}

type offsetKey struct {
	group string
	tp    record.TopicPartition
}

type pendingOffset struct {
	offsetKey
	pid int64
	committedOffset
}

// offsetsLog is __consumer_offsets with the group coordinator's view of it.
type offsetsLog struct {
	seq       int
	committed map[offsetKey]committedOffset
	pending   []pendingOffset // of undecided transactions, in log order
	epochs    map[int64]int16 // by producer ID, as in any partition's log
}

func newOffsetsLog() *offsetsLog {
	return &offsetsLog{committed: map[offsetKey]committedOffset{}, epochs: map[int64]int16{}}
}

func (o *offsetsLog) apply(k offsetKey, c committedOffset) {
	if old, ok := o.committed[k]; !ok || old.seq < c.seq {
		o.committed[k] = c
	}
}

// mark ends a producer's pending offsets.
func (o *offsetsLog) mark(pid int64, epoch int16, commit bool) {
	o.epochs[pid] = max(o.epochs[pid], epoch)
	keep := o.pending[:0]
	for _, p := range o.pending {
		switch {
		case p.pid != pid:
			keep = append(keep, p)
		case commit:
			o.apply(p.offsetKey, p.committedOffset)
		}
	}
	o.pending = keep
}

func (o *offsetsLog) hasPending(pid int64) bool {
	for _, p := range o.pending {
		if p.pid == pid {
			return true
		}
	}
	return false
}

// unstable says whether an undecided transaction holds an offset of this partition.
func (o *offsetsLog) unstable(k offsetKey) bool {
	for i := range o.pending {
		if o.pending[i].offsetKey == k {
			return true
		}
	}
	return false
}

func (o *offsetsLog) forget(match func(group string, tp record.TopicPartition) bool) {
	for k := range o.committed {
		if match(k.group, k.tp) {
			delete(o.committed, k)
		}
	}
}

// commitOffsets is TxnOffsetCommit.
func (b *Broker) commitOffsets(v Protocol, id string, pid int64, epoch int16, meta broker.GroupMeta, offsets []broker.OffsetCommit) Code {
	if code := b.groups[meta.Group].check(meta); code != None {
		return code
	}
	if last, ok := b.offsets.epochs[pid]; ok && epoch < last {
		return InvalidProducerEpoch
	}
	if !b.offsets.hasPending(pid) {
		switch code := b.join(v, id, pid, epoch, offsetsPartition); code {
		case None:
		case NotEnoughReplicas:
			return CoordinatorLoadInProgress // the same conflict, as a group coordinator words it
		default:
			return code
		}
	}
	b.offsets.epochs[pid] = epoch
	for _, oc := range offsets {
		b.offsets.seq++
		b.offsets.pending = append(b.offsets.pending, pendingOffset{
			offsetKey{meta.Group, oc.TopicPartition},
			pid,
			committedOffset{broker.CommittedOffset{Next: oc.Next, LeaderEpoch: -1, Metadata: oc.Metadata}, b.offsets.seq},
		})
	}
	return None
}

// Group is a consumer group. The simulation drives it: members come by Client.Join or Group.Add, and
// partitions move by Rebalance only.
type Group struct {
	b         *Broker
	name      string
	balancing sync.Mutex // one rebalance at a time; taken before Broker.mu

	// Guarded by Broker.mu.
	generation int32
	members    map[string]*member // by instance ID
	joins      int
	moving     bool // between two generations: members give back what they lose
}

type member struct {
	id      string
	handler broker.GroupHandler // nil: nobody is told
	silent  bool
	sets    [][]string
	owned   []record.TopicPartition

	userData []byte
}

// Group returns a consumer group, which is made if needed.
func (b *Broker) Group(name string) *Group {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.groups[name]
	if g == nil {
		g = &Group{b: b, name: name, members: map[string]*member{}}
		b.groups[name] = g
	}
	return g
}

// check is KIP-447's fence: the commit must come from a member, as of the present generation.
func (g *Group) check(meta broker.GroupMeta) Code {
	if g == nil {
		return IllegalGeneration
	}
	m := g.members[meta.Instance]
	switch {
	case m == nil:
		return UnknownMemberID
	case m.id != meta.Member:
		return FencedInstanceID // KIP-345: another process joined with the same instance ID
	case meta.Generation != g.generation:
		return IllegalGeneration
	}
	return None
}

// Add makes a static member, or a new incarnation of it: then the old one is fenced and the generation
// stays (KIP-345). It owns what it owned. The handler may be nil.
func (g *Group) Add(instance string, sets [][]string, h broker.GroupHandler) {
	g.b.mu.Lock()
	defer g.b.mu.Unlock()
	m := g.members[instance]
	if m == nil {
		m = &member{}
		g.members[instance] = m
	}
	g.joins++
	m.id = fmt.Sprintf("%s-%d", instance, g.joins)
	m.handler, m.sets, m.silent = h, sets, false
}

// Describe sets what a member says of itself when it joins: GroupConfig.UserData.
func (g *Group) Describe(instance string, userData []byte) {
	g.b.mu.Lock()
	defer g.b.mu.Unlock()
	if m := g.members[instance]; m != nil {
		m.userData = userData
	}
}

// Meta is what the member knows of itself now.
func (g *Group) Meta(instance string) broker.GroupMeta {
	g.b.mu.Lock()
	defer g.b.mu.Unlock()
	return g.meta(instance)
}

func (g *Group) meta(instance string) broker.GroupMeta {
	meta := broker.GroupMeta{Group: g.name, Instance: instance, Generation: -1}
	if m := g.members[instance]; m != nil {
		meta.Member, meta.Generation = m.id, g.generation
	}
	return meta
}

// Owned returns what a member owns.
func (g *Group) Owned(instance string) []record.TopicPartition {
	g.b.mu.Lock()
	defer g.b.mu.Unlock()
	if m := g.members[instance]; m != nil {
		return append([]record.TopicPartition(nil), m.owned...)
	}
	return nil
}

// Instances returns the members' instance IDs, sorted.
func (g *Group) Instances() []string {
	g.b.mu.Lock()
	defer g.b.mu.Unlock()
	return sortedKeys(g.members)
}

// Has says whether the instance is a member.
func (g *Group) Has(instance string) bool {
	g.b.mu.Lock()
	defer g.b.mu.Unlock()
	return g.members[instance] != nil
}

// Silence makes a member deaf: it stays in the group, and its handler is not called. So is a process that is paused.
func (g *Group) Silence(instance string, silent bool) {
	g.b.mu.Lock()
	defer g.b.mu.Unlock()
	if m := g.members[instance]; m != nil {
		m.silent = silent
	}
}

// Remove takes a member out, as its session timeout does, in a new generation. Its handler is told
// that all is lost, unless it is silent. Its partitions belong to nobody until the next Rebalance.
func (g *Group) Remove(instance string) {
	g.b.mu.Lock()
	m := g.members[instance]
	delete(g.members, instance)
	if m != nil {
		g.generation++
	}
	g.b.mu.Unlock()
	if m != nil && m.handler != nil && !m.silent {
		m.handler.Lost(m.owned)
	}
}

// Rebalance gives each member exactly what the plan says (none if it is not named): each is asked to
// give back what it loses, then the generation rises, then each is told what it owns. Members that are
// silent lose theirs unasked.
func (g *Group) Rebalance(ctx context.Context, plan map[string][]record.TopicPartition) {
	g.balancing.Lock()
	defer g.balancing.Unlock()
	instances := g.Instances()
	g.setMoving(true)
	for _, in := range instances {
		g.b.mu.Lock()
		m := g.members[in]
		gone := minus(m.owned, plan[in])
		h := m.audience()
		g.b.mu.Unlock()
		if h != nil && len(gone) > 0 {
			h.Revoked(ctx, gone)
		}
	}
	g.b.mu.Lock()
	g.generation++
	g.moving = false
	for _, in := range instances {
		if m := g.members[in]; m != nil {
			m.owned = append([]record.TopicPartition(nil), plan[in]...)
		}
	}
	g.b.mu.Unlock()
	for _, in := range instances {
		g.b.mu.Lock()
		m := g.members[in]
		var h broker.GroupHandler
		var owned []record.TopicPartition
		if m != nil {
			h, owned = m.audience(), append(owned, m.owned...)
		}
		meta := g.meta(in)
		g.b.mu.Unlock()
		if h != nil {
			h.Assigned(meta, owned)
		}
	}
}

func (g *Group) setMoving(moving bool) {
	g.b.mu.Lock()
	defer g.b.mu.Unlock()
	g.moving = moving
}

func (m *member) audience() broker.GroupHandler {
	if m.silent {
		return nil
	}
	return m.handler
}

// Spread is a plan that deals the partitions of each co-partitioned set to the members in turn.
func (g *Group) Spread() map[string][]record.TopicPartition {
	g.b.mu.Lock()
	defer g.b.mu.Unlock()
	plan := map[string][]record.TopicPartition{}
	instances := sortedKeys(g.members)
	if len(instances) == 0 {
		return plan
	}
	for _, set := range g.members[instances[0]].sets {
		for _, name := range set {
			t := g.b.topics[name]
			if t == nil {
				continue
			}
			for p := range t.Partitions {
				in := instances[int(p)%len(instances)]
				plan[in] = append(plan[in], record.TopicPartition{Topic: name, Partition: record.Partition(p)})
			}
		}
	}
	return plan
}

// SetOffsets sets committed offsets as an administrator's tool does, outside of any transaction.
func (g *Group) SetOffsets(offsets ...broker.OffsetCommit) {
	g.b.mu.Lock()
	defer g.b.mu.Unlock()
	for _, oc := range offsets {
		g.b.offsets.seq++
		g.b.offsets.apply(offsetKey{g.name, oc.TopicPartition},
			committedOffset{broker.CommittedOffset{Next: oc.Next, LeaderEpoch: -1, Metadata: oc.Metadata}, g.b.offsets.seq})
	}
}

// ExpireOffsets forgets the group's committed offsets, as offsets.retention.minutes does.
func (g *Group) ExpireOffsets() {
	g.b.mu.Lock()
	defer g.b.mu.Unlock()
	g.b.offsets.forget(func(group string, _ record.TopicPartition) bool { return group == g.name })
}

// minus returns what is in a and not in b, in a's order.
func minus(a, b []record.TopicPartition) []record.TopicPartition {
	in := map[record.TopicPartition]bool{}
	for _, tp := range b {
		in[tp] = true
	}
	var out []record.TopicPartition
	for _, tp := range a {
		if !in[tp] {
			out = append(out, tp)
		}
	}
	return out
}
