package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
)

// The group's limits, as a real one has them.
const (
	sessionTimeout = 4 * time.Second
	// A static member that does not answer in time stays a member, with the old generation, until its
	// session ends (KIP-345).
	rebalanceTimeout = 2 * time.Second
)

// membership plays the group coordinator and the members' heartbeats: cooperative, static members.
type membership struct {
	w    *world
	g    *simbroker.Group
	rng  *rand.Rand
	sets [][]string

	pending  bool                             // the membership changed: a new plan is needed
	moveAll  bool                             // nobody keeps what it has, if there are others
	back     bool                             // and soon after, everybody gets it back
	former   map[record.TopicPartition]string // who had what before
	returns  time.Time                        // when they get it back; zero: not planned
	revoking map[*owner]bool
	plan     map[string][]record.TopicPartition
	deadline time.Time
	gone     map[string]time.Time // since when a member does not heartbeat
}

func newMembership(w *world) *membership {
	return &membership{w: w, g: w.b.Group(group), rng: w.rngs(0x6e0), gone: map[string]time.Time{}}
}

func (m *membership) member(instance string) bool {
	return m.g.Has(instance)
}

// join is JoinGroup of a process that starts or comes back. A known static member gets what it had,
// without a rebalance; a new one causes one.
func (m *membership) join(o *owner) {
	m.sets = o.stepper.CoPartitioned()
	known := m.member(o.instance)
	m.g.Add(o.instance, m.sets, nil)
	delete(m.gone, o.instance)
	o.joined = true
	if known && m.plan == nil {
		m.tell(o)
		return
	}
	m.pending = true
}

// tell sends a member what it owns now. One that stands still through several rebalances may hear of the last one
// only: its join was answered by the newest generation, and nobody tells it what it missed.
func (m *membership) tell(o *owner) {
	if m.w.now().Before(o.paused) && m.rng.IntN(3) > 0 {
		if len(o.news) > 0 {
			m.w.hit("generation missed")
		}
		o.news = nil
	}
	delay := time.Duration(m.rng.IntN(30)) * time.Millisecond
	o.news = append(o.news, notice{at: m.w.now().Add(delay), meta: m.g.Meta(o.instance), owned: m.g.Owned(o.instance)})
}

// step does what is due.
func (m *membership) step(now time.Time) {
	for _, o := range m.w.owners {
		silent := o.resume == nil || now.Before(o.paused)
		switch since, ok := m.gone[o.instance]; {
		case !m.member(o.instance):
			// A zombie that wakes up learns from its next heartbeat that it is no member any more.
			if !silent && o.joined {
				o.joined = false
				o.news = append(o.news, notice{at: now.Add(time.Duration(m.rng.IntN(200)) * time.Millisecond), lost: m.everything()})
			}
		case !silent:
			delete(m.gone, o.instance)
		case !ok:
			m.gone[o.instance] = now
		case now.Sub(since) >= sessionTimeout:
			m.w.note("session of %s ends", o.instance)
			m.g.Remove(o.instance)
			delete(m.gone, o.instance)
			m.pending = true
		}
	}
	if m.plan != nil {
		m.finish(now)
	}
	if m.plan == nil && !m.returns.IsZero() && !now.Before(m.returns) {
		m.pending = true
	}
	if m.plan == nil && m.pending {
		m.begin(now)
	}
}

// everything is what a member that is out has lost: whatever it thinks it has.
func (m *membership) everything() []record.TopicPartition {
	all := []record.TopicPartition{}
	for _, set := range m.sets {
		m.w.each(set, func(tp record.TopicPartition) { all = append(all, tp) })
	}
	return all
}

// begin makes a plan and asks the members to give back what they lose.
func (m *membership) begin(now time.Time) {
	m.pending = false
	instances := m.g.Instances()
	if len(instances) == 0 {
		return
	}
	returns := !m.returns.IsZero() && !now.Before(m.returns)
	if m.back && m.moveAll {
		m.back, m.former = false, m.owners(instances)
	}
	m.plan = m.newPlan(instances, returns)
	m.moveAll = false
	if returns {
		m.w.hit("away and back")
		m.former, m.returns = nil, time.Time{}
	}
	m.revoking = map[*owner]bool{}
	m.deadline = now.Add(rebalanceTimeout)
	for _, o := range m.w.owners {
		gone := missing(m.g.Owned(o.instance), m.plan[o.instance])
		if len(gone) > 0 && o.resume != nil && o.stepper != nil && o.joined && m.member(o.instance) {
			o.news = append(o.news, notice{at: now, revoke: gone})
			m.revoking[o] = true
		}
	}
	m.w.note("rebalance begins: %d members", len(instances))
}

// newPlan deals each partition of each set to a member: mostly to the one that has it.
func (m *membership) newPlan(instances []string, returns bool) map[string][]record.TopicPartition {
	plan := map[string][]record.TopicPartition{}
	before := m.owners(instances)
	for _, set := range m.sets {
		for p := range record.Partition(m.w.partitions) {
			in, ok := before[record.TopicPartition{Topic: set[0], Partition: p}]
			was := m.former[record.TopicPartition{Topic: set[0], Partition: p}]
			switch {
			case returns && slices.Contains(instances, was):
				in = was
			case m.moveAll && ok:
				in = instances[(slices.Index(instances, in)+1)%len(instances)]
			case !ok || m.rng.IntN(3) == 0:
				in = instances[m.rng.IntN(len(instances))]
			}
			for _, topic := range set {
				plan[in] = append(plan[in], record.TopicPartition{Topic: topic, Partition: p})
			}
		}
	}
	return plan
}

// owners says who has what.
func (m *membership) owners(instances []string) map[record.TopicPartition]string {
	all := map[record.TopicPartition]string{}
	for _, in := range instances {
		for _, tp := range m.g.Owned(in) {
			all[tp] = in
		}
	}
	return all
}

// finish ends the rebalance once everybody has given back, or the rebalance timeout has passed.
func (m *membership) finish(now time.Time) {
	for o := range m.revoking {
		if o.givenBack() || !m.member(o.instance) {
			delete(m.revoking, o)
		}
	}
	if len(m.revoking) > 0 && now.Before(m.deadline) {
		return
	}
	instances := m.g.Instances()
	if len(instances) == 0 { // all sessions ended meanwhile
		m.plan, m.revoking = nil, nil
		return
	}
	m.g.Rebalance(context.Background(), m.plan)
	m.w.note("rebalance ends: generation %d", m.g.Meta(instances[0]).Generation)
	if m.former != nil && m.returns.IsZero() {
		m.returns = now.Add(time.Duration(100+m.rng.IntN(500)) * time.Millisecond)
		m.w.load.next = now
		if m.w.conf.Bills > 0 { // what the other one has to do meanwhile; a script brings its own
			m.w.load.left = max(m.w.load.left, 5)
		}
	}
	m.plan, m.revoking = nil, nil
	for _, o := range m.w.owners {
		if o.resume != nil && o.joined && m.member(o.instance) {
			m.tell(o)
		}
	}
}

// givenBack says whether nothing is left of a revoke.
func (o *owner) givenBack() bool {
	for _, n := range o.news {
		if n.revoke != nil && o.resume != nil {
			return false
		}
	}
	return o.revoke == nil || o.resume == nil
}

// missing is what is in a and not in b.
func missing(a, b []record.TopicPartition) (out []record.TopicPartition) {
	in := map[record.TopicPartition]bool{}
	for _, tp := range b {
		in[tp] = true
	}
	for _, tp := range a {
		if !in[tp] {
			out = append(out, tp)
		}
	}
	return out
}
