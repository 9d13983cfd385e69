package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// Owner is the instance that has a partition of a store.
type Owner struct {
	Partition record.Partition
	Instance  string // its instance ID; "": nobody has the partition at the moment
	Address   string // as its WithAddress says, "" if it has none
	Here      bool   // it is this process
}

// Owner is the instance that has a key, on whatever instance it is asked. Its answer is a route and no proof: a partition
// may move just then, and the instance that is asked for the value says ErrNotHere. An instance that ended without
// leaving the group counts for the owner until its session ends. Kafka is asked at most once in MaxStaleness, for all
// partitions of all stores. Errors: ErrNotReady while the group is between two owners, and before the application knows
// its topics; ErrNoStore, those of the key's serde, and Kafka's own.
// (Kafka Streams: KafkaStreams.queryMetadataForKey, and application.server for WithAddress.)
func (q *StoreQuery[K, V]) Owner(ctx context.Context, key K) (Owner, error) {
	p, _, err := q.Partition(key)
	if err != nil {
		return Owner{}, err
	}
	all, err := q.Owners(ctx)
	if err != nil {
		return Owner{}, err
	}
	if all[p].Instance == "" {
		return Owner{}, fmt.Errorf("%w: store %q, partition %d: no instance has it at the moment", ErrNotReady, q.store, p)
	}
	return all[p], nil
}

// Owners are the owners of all partitions of the store, in their order. Errors: as Owner, but that a partition that
// nobody has is none: its Instance is "".
func (q *StoreQuery[K, V]) Owners(ctx context.Context) ([]Owner, error) {
	if q.err != nil {
		return nil, q.err
	}
	s := &q.stats.served
	n, err := s.tasksOf(q.sub)
	if err != nil {
		return nil, err
	}
	members, err := s.members(ctx, q.staleness)
	if errors.Is(err, broker.ErrRebalancing) {
		return nil, fmt.Errorf("%w: store %q: %w", ErrNotReady, q.store, err)
	}
	if err != nil {
		return nil, fmt.Errorf("processor: query of store %q: who has its partitions: %w", q.store, err)
	}
	out := make([]Owner, n)
	for p := range out {
		out[p].Partition = record.Partition(p)
	}
	inputs, self := s.inputsOf(q.sub)
	for _, m := range members {
		for _, tp := range m.Owned {
			// All inputs of a partition go to one member: any of them tells. What it owns is bytes that another program may have written.
			if tp.Partition >= 0 && int(tp.Partition) < len(out) && slices.Contains(inputs, tp.Topic) {
				o := &out[tp.Partition]
				o.Instance, o.Address, o.Here = m.Instance, string(m.UserData), m.Instance == self
			}
		}
	}
	return out, nil
}

// servedGroup is what queries know of the application as a whole.
type servedGroup struct {
	name, self string // the consumer group, and this process's instance ID
	cluster    broker.Cluster
	now        func() time.Time
	subs       map[*topology.Subtopology]servedSub

	members []broker.Member
	asked   time.Time // for members; zero: never
}

type servedSub struct {
	tasks  int32
	inputs []string // topics
}

// know tells queries of the application, once its topics are known.
func (s *served) know(e *engine) {
	g := servedGroup{name: e.group(), self: e.stats.instance, cluster: e.cluster, now: e.now, subs: map[*topology.Subtopology]servedSub{}}
	for _, p := range e.plan {
		x := servedSub{tasks: p.tasks}
		for _, t := range p.inputs {
			x.inputs = append(x.inputs, t.Name)
		}
		g.subs[p.sub] = x
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.group = g
}

// ended is told that the connections to the cluster are closed.
func (s *served) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.group.cluster, s.group.members, s.group.asked = nil, nil, time.Time{}
}

// members are those of the group, as of at most so long ago.
func (s *served) members(ctx context.Context, age time.Duration) ([]broker.Member, error) {
	s.mu.Lock()
	g := s.group
	s.mu.Unlock()
	if g.cluster == nil {
		return nil, fmt.Errorf("%w: the application has ended", ErrNotReady)
	}
	begin := g.now()
	if !g.asked.IsZero() && age > 0 && begin.Sub(g.asked) <= age {
		return g.members, nil
	}
	members, err := g.cluster.Members(ctx, g.name)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if begin.After(s.group.asked) {
		s.group.members, s.group.asked = members, begin
	}
	return members, nil
}

// tasksOf is the number of partitions of a store.
func (s *served) tasksOf(sub *topology.Subtopology) (int32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x, ok := s.group.subs[sub]; ok {
		return x.tasks, nil
	}
	return 0, fmt.Errorf("%w: the application does not know its topics yet", ErrNotReady)
}

func (s *served) inputsOf(sub *topology.Subtopology) (topics []string, self string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.group.subs[sub].inputs, s.group.self
}
