package kafka

import (
	"cmp"
	"slices"
	"strings"

	"github.com/IBM/sarama"
)

// assignorName names the group protocol. All members of a group must offer it: a group in which
// another application uses another one is refused by the coordinator.
const assignorName = "streamd-cooperative"

// unit is what is assigned as one: partition p of every topic of a co-partitioned set.
type unit struct {
	set       int
	partition int32
}

// member is one member of the group, as its subscription says.
type member struct {
	id         string
	topics     map[string]bool
	generation int32
	owned      map[string][]int32
	load       int         // units assigned
	perSet     map[int]int // units assigned, by set
}

// assign distributes partitions. Co-partitioned topics go together; a unit stays with the member that
// owns it unless that one has too much; every member gets the same number of units, give or take
// one, and of each set as evenly as that allows. The result depends on the arguments only.
//
// Cooperative (KIP-429): a unit that moves is given to nobody in this round. Its owner sees that it
// is gone, lets it go and joins again; the next round gives it to the new owner. halfway says that
// there must be one.
func assign(sets [][]string, members []*member, partitions map[string][]int32) (shares map[string]map[string][]int32, halfway bool) {
	slices.SortFunc(members, func(a, b *member) int { return strings.Compare(a.id, b.id) })
	sets = completeSets(sets, partitions)
	units := listUnits(sets, partitions)
	owner := owners(sets, members, partitions)
	plan := place(sets, members, units, owner)

	out := make(map[string]map[string][]int32, len(members))
	for _, m := range members {
		out[m.id] = map[string][]int32{}
	}
	for _, u := range units {
		m := plan[u]
		if m == nil {
			continue
		}
		if owner[u] != nil && owner[u] != m {
			halfway = true
			continue
		}
		for _, topic := range sets[u.set] {
			if slices.Contains(partitions[topic], u.partition) {
				out[m.id][topic] = append(out[m.id][topic], u.partition)
			}
		}
	}
	return out, halfway
}

// completeSets merges sets that share a topic, since a partition goes to one member only, and adds a set
// of its own for each subscribed topic that is in none: another version of the topology, in the
// middle of a rolling upgrade, may read more.
func completeSets(sets [][]string, partitions map[string][]int32) [][]string {
	var out [][]string
	for _, s := range sets {
		merged := slices.Clone(s)
		out = slices.DeleteFunc(out, func(o []string) bool {
			shares := slices.ContainsFunc(o, func(t string) bool { return slices.Contains(s, t) })
			if shares {
				merged = append(merged, o...)
			}
			return shares
		})
		slices.Sort(merged)
		out = append(out, slices.Compact(merged))
	}
	for t := range partitions {
		if !slices.ContainsFunc(out, func(o []string) bool { return slices.Contains(o, t) }) {
			out = append(out, []string{t})
		}
	}
	slices.SortFunc(out, func(a, b []string) int { return slices.Compare(a, b) })
	return out
}

// listUnits lists all units, by partition and then by set: neighbours in the list are of different
// sets, so that a member's share is mixed.
func listUnits(sets [][]string, partitions map[string][]int32) []unit {
	var out []unit
	for i, set := range sets {
		seen := map[int32]bool{}
		for _, t := range set {
			for _, p := range partitions[t] {
				if !seen[p] {
					seen[p] = true
					out = append(out, unit{i, p})
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b unit) int {
		return cmp.Or(cmp.Compare(a.partition, b.partition), cmp.Compare(a.set, b.set))
	})
	return out
}

// owners finds who owns each unit now. When two members claim a partition, the one with the later
// generation is right: the other has missed a rebalance (KIP-792). A unit of which two members own
// a part each gets an owner that is no member: it goes to nobody until both have let go.
func owners(sets [][]string, members []*member, partitions map[string][]int32) map[unit]*member {
	type part struct {
		topic string
		n     int32
	}
	claims := map[part]*member{}
	for _, m := range members {
		for topic, ps := range m.owned {
			for _, n := range ps {
				if was := claims[part{topic, n}]; was == nil || was.generation < m.generation {
					claims[part{topic, n}] = m
				}
			}
		}
	}
	nobody := &member{}
	out := map[unit]*member{}
	for i, set := range sets {
		for _, topic := range set {
			for _, n := range partitions[topic] {
				m, u := claims[part{topic, n}], unit{i, n}
				if was := out[u]; m != nil && was != nil && was != m {
					out[u] = nobody
				} else if m != nil {
					out[u] = m
				}
			}
		}
	}
	return out
}

// place decides where each unit belongs in the end.
func place(sets [][]string, members []*member, units []unit, owner map[unit]*member) map[unit]*member {
	plan := make(map[unit]*member, len(units))
	if len(members) == 0 {
		return plan
	}
	for _, m := range members {
		m.load, m.perSet = 0, map[int]int{}
	}
	take := func(u unit, m *member) {
		plan[u] = m
		m.load++
		m.perSet[u.set]++
	}
	// Owners keep up to their share; who keeps one unit more than the others is first come first served.
	low, extra := len(units)/len(members), len(units)%len(members)
	for _, u := range units {
		m := owner[u]
		if m == nil || !m.reads(sets[u.set]) {
			continue
		}
		switch {
		case m.load < low:
			take(u, m)
		case m.load == low && extra > 0:
			extra--
			take(u, m)
		}
	}
	// The rest goes where least is. Among equals the member with fewest units of that set, so that the
	// sub-topologies are spread as evenly as the units; then the first by ID, so that all leaders agree.
	for _, u := range units {
		if plan[u] != nil {
			continue
		}
		var best *member
		for _, m := range members {
			if m.reads(sets[u.set]) && (best == nil || m.lighter(best, u.set)) {
				best = m
			}
		}
		if best != nil {
			take(u, best)
		}
	}
	return plan
}

// reads says whether a member subscribes to all topics of a set.
func (m *member) reads(set []string) bool {
	return !slices.ContainsFunc(set, func(t string) bool { return !m.topics[t] })
}

func (m *member) lighter(than *member, set int) bool {
	if m.load != than.load {
		return m.load < than.load
	}
	return m.perSet[set] < than.perSet[set]
}

// strategy is the assignment as sarama wants it. Its hooks are also how we learn when a join is over.
type strategy struct {
	sets     [][]string
	userData func() []byte
	// assigned gets what a member is to own, and whether partitions of the group are nobody's until the next round.
	assigned func(topics map[string][]int32, generation int32, halfway bool)

	halfway bool // the last Plan is
}

// halfwayMark is what the leader adds to each share of a plan that is halfway. The coordinator keeps it with the share.
const halfwayMark = 1

var (
	_ sarama.RebalanceProtocolBalanceStrategy    = (*strategy)(nil)
	_ sarama.SubscriptionUserDataBalanceStrategy = (*strategy)(nil)
	_ sarama.OnAssignmentBalanceStrategy         = (*strategy)(nil)
)

// Name implements sarama.BalanceStrategy.
func (s *strategy) Name() string { return assignorName }

// SupportedProtocols implements sarama's interface of that name.
func (s *strategy) SupportedProtocols() []sarama.RebalanceProtocol {
	return []sarama.RebalanceProtocol{sarama.RebalanceProtocolCooperative}
}

// Plan implements sarama.BalanceStrategy; only the group's leader is asked.
func (s *strategy) Plan(members map[string]sarama.ConsumerGroupMemberMetadata, topics map[string][]int32) (sarama.BalanceStrategyPlan, error) {
	list := make([]*member, 0, len(members))
	for id, meta := range members {
		m := &member{id: id, topics: map[string]bool{}, generation: meta.GenerationID, owned: map[string][]int32{}}
		for _, t := range meta.Topics {
			m.topics[t] = true
		}
		for _, o := range meta.OwnedPartitions {
			m.owned[o.Topic] = append(m.owned[o.Topic], o.Partitions...)
		}
		list = append(list, m)
	}
	shares, halfway := assign(s.sets, list, topics)
	s.halfway = halfway
	return shares, nil
}

// AssignmentData implements sarama.BalanceStrategy: what the leader tells beside the partitions of the last Plan.
func (s *strategy) AssignmentData(string, map[string][]int32, int32) ([]byte, error) {
	if s.halfway {
		return []byte{halfwayMark}, nil
	}
	return nil, nil
}

// SubscriptionUserData implements sarama's interface of that name. It is called just before JoinGroup goes out.
func (s *strategy) SubscriptionUserData([]string) ([]byte, error) {
	if s.userData == nil {
		return nil, nil
	}
	return s.userData(), nil
}

// OnAssignment implements sarama's interface of that name. It is called just after SyncGroup was answered.
func (s *strategy) OnAssignment(a *sarama.ConsumerGroupMemberAssignment, generation int32) {
	s.assigned(a.Topics, generation, len(a.UserData) > 0 && a.UserData[0] == halfwayMark)
}
