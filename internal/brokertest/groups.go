package brokertest

import (
	"context"
	"errors"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

func cancelled(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	cancel()
	return ctx, cancel
}

// groupFacts are about membership. They are the slow ones on a real cluster.
var groupFacts = []fact{
	{"a member gets co-partitioned topics together", "", func(t *testing.T, s *suite) {
		x, y := s.topic(t, 4), s.topic(t, 4)
		group := s.id()
		a := s.join(t, group, "a", [][]string{{x, y}}, nil)
		if meta := a.wait(t, 8); meta.Group != group || meta.Instance != "a" || meta.Member == "" || meta.Generation < 0 {
			t.Fatalf("%+v", meta)
		}
	}},
	{"a second member takes its share and gives it back when it leaves", "", func(t *testing.T, s *suite) {
		x, y := s.topic(t, 4), s.topic(t, 4)
		sets, group := [][]string{{x, y}}, s.id()
		a := s.join(t, group, "a", sets, nil)
		first := a.wait(t, 8)
		b := s.join(t, group, "b", sets, nil)
		b.wait(t, 4)
		second := a.wait(t, 4)
		if second.Generation <= first.Generation {
			t.Fatalf("generation %d, then %d", first.Generation, second.Generation)
		}
		for _, m := range []*membership{a, b} {
			owned := m.assigned()
			for _, at := range owned {
				if at.Topic == x && !hasPartition(owned, tp(y, int(at.Partition))) {
					t.Fatalf("partition %d of the two topics is with two members: %v", at.Partition, owned)
				}
			}
		}
		if gone := len(a.given()); gone != 4 {
			t.Fatalf("the first member was asked to give back %d partitions, want 4", gone)
		}
		b.stop()
		if err := s.Cluster.LeaveGroup(s.ctx(t), group, "b"); err != nil {
			t.Fatal(err)
		}
		third := a.wait(t, 8)
		// The old generation is fenced now.
		p := s.producer(t)
		_, out, err := p.Commit(s.ctx(t), second, []broker.OffsetCommit{offset(tp(x, 0), 1)})
		if out != broker.NotCommitted || !errors.Is(err, broker.ErrIllegalGeneration) {
			t.Fatalf("with the old generation: %v, %v", out, err)
		}
		s.init(t, p)
		if _, out, err = p.Commit(s.ctx(t), third, []broker.OffsetCommit{offset(tp(x, 0), 1)}); out != broker.Committed {
			t.Fatalf("with the new generation: %v, %v", out, err)
		}
	}},
	{"anybody may ask who has what", "", func(t *testing.T, s *suite) {
		x, group := s.topic(t, 4), s.id()
		if got, err := s.Cluster.Members(s.ctx(t), group); err != nil || len(got) != 0 {
			t.Fatalf("of a group that is not there: %v, %v", got, err)
		}
		var mu sync.Mutex
		var duringErr error
		asked := false
		a := s.join(t, group, "a", [][]string{{x}}, func(ctx context.Context, _ []record.TopicPartition) {
			mu.Lock()
			defer mu.Unlock()
			_, duringErr = s.Cluster.Members(ctx, group)
			asked = true
		})
		a.wait(t, 4)
		b := s.join(t, group, "b", [][]string{{x}}, nil)
		b.wait(t, 2)
		a.wait(t, 2)
		var got []broker.Member
		s.eventually(t, "the group at rest", func() bool {
			var err error
			if got, err = s.Cluster.Members(s.ctx(t), group); err != nil && !errors.Is(err, broker.ErrRebalancing) {
				t.Fatal(err)
			}
			return err == nil && len(got) == 2 && len(got[0].Owned)+len(got[1].Owned) == 4
		})
		for i, m := range []*membership{a, b} {
			name := []string{"a", "b"}[i]
			if got[i].Instance != name || string(got[i].UserData) != "from "+name || len(got[i].Owned) != 2 {
				t.Fatalf("member %d is %+v", i, got[i])
			}
			for _, at := range got[i].Owned {
				if !hasPartition(m.assigned(), at) {
					t.Fatalf("%s has %v, and not %v", name, m.assigned(), at)
				}
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if !asked || duringErr != nil && !errors.Is(duringErr, broker.ErrRebalancing) {
			t.Fatalf("while a partition moved: asked %v, %v", asked, duringErr)
		}
	}},
	{"work is finished in Revoked under the old generation", "", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 2), s.producer(t)
		group := s.id()
		var a *membership
		var mu sync.Mutex
		var outcome broker.Outcome
		var failed error
		a = s.join(t, group, "a", [][]string{{x}}, func(ctx context.Context, gone []record.TopicPartition) {
			mu.Lock()
			defer mu.Unlock()
			_, outcome, failed = p.Commit(ctx, a.current(), []broker.OffsetCommit{offset(gone[0], 5)})
		})
		a.wait(t, 2)
		b := s.join(t, group, "b", [][]string{{x}}, nil)
		b.wait(t, 1)
		a.wait(t, 1)
		mu.Lock()
		defer mu.Unlock()
		if outcome != broker.Committed {
			t.Fatalf("%v, %v", outcome, failed)
		}
		moved := b.assigned()[0]
		var next record.Offset
		s.eventually(t, "the offset", func() bool {
			got, err := s.Cluster.CommittedOffsets(s.ctx(t), group, []record.TopicPartition{moved})
			next = got[moved].Next
			return err == nil
		})
		if next != 5 {
			t.Fatalf("the new owner starts at %d, want 5", next)
		}
	}},
	{"a static member that comes back gets the same, and fences its old self", "", func(t *testing.T, s *suite) {
		x := s.topic(t, 2)
		group := s.id()
		a := s.join(t, group, "a", [][]string{{x}}, nil)
		old := a.wait(t, 2)
		a.stop() // without leaving the group
		again := s.join(t, group, "a", [][]string{{x}}, nil)
		meta := again.wait(t, 2)
		if meta.Member == old.Member {
			t.Fatalf("member ID %q twice", meta.Member)
		}
		p := s.producer(t)
		_, out, err := p.Commit(s.ctx(t), old, []broker.OffsetCommit{offset(tp(x, 0), 1)})
		if out != broker.NotCommitted || !(errors.Is(err, broker.ErrUnknownMember) || errors.Is(err, broker.ErrIllegalGeneration)) {
			t.Fatalf("the old self: %v, %v", out, err)
		}
		s.init(t, p)
		if _, out, err = p.Commit(s.ctx(t), meta, []broker.OffsetCommit{offset(tp(x, 0), 1)}); out != broker.Committed {
			t.Fatalf("the new self: %v, %v", out, err)
		}
	}},
}

// membership is one Join in a goroutine of its own, and what its handler was told.
type membership struct {
	s      *suite
	cancel context.CancelFunc
	done   chan struct{}
	revoke func(context.Context, []record.TopicPartition)

	mu    sync.Mutex // guards all below
	meta  broker.GroupMeta
	owned []record.TopicPartition
	gone  []record.TopicPartition
	err   error
}

func (s *suite) join(t *testing.T, group, instance string, sets [][]string, revoke func(context.Context, []record.TopicPartition)) *membership {
	t.Helper()
	// Not bounded by the fact: the shared member lives as long as the suite's test binary.
	ctx, cancel := context.WithCancel(context.Background())
	m := &membership{s: s, cancel: cancel, done: make(chan struct{}), revoke: revoke, meta: broker.GroupMeta{Generation: -1}}
	go func() {
		defer close(m.done)
		err := s.Cluster.Join(ctx, broker.GroupConfig{
			Group: group, Instance: instance, CoPartitioned: sets,
			SessionTimeout: 6 * time.Second, HeartbeatInterval: 200 * time.Millisecond, RebalanceTimeout: 10 * time.Second,
			UserData: func() []byte { return []byte("from " + instance) },
		}, m)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.err = err
	}()
	if group != s.group {
		t.Cleanup(m.stop)
	}
	return m
}

// stop ends the membership and waits for it. The member stays in the group.
func (m *membership) stop() {
	m.cancel()
	<-m.done
}

// wait waits until exactly n partitions are owned, and returns the meta of that assignment.
func (m *membership) wait(t *testing.T, n int) broker.GroupMeta {
	t.Helper()
	// In real time also on a model: another goroutine has to come this far.
	deadline := time.Now().Add(m.s.Limit)
	for {
		m.mu.Lock()
		meta, owned, err := m.meta, len(m.owned), m.err
		m.mu.Unlock()
		switch {
		case err != nil:
			t.Fatalf("join: %v", err)
		case owned == n && meta.Generation >= 0:
			return meta
		case time.Now().After(deadline):
			t.Fatalf("%d partitions, want %d", owned, n)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (m *membership) current() broker.GroupMeta {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.meta
}

func (m *membership) assigned() []record.TopicPartition {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]record.TopicPartition(nil), m.owned...)
}

func (m *membership) given() []record.TopicPartition {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]record.TopicPartition(nil), m.gone...)
}

// Assigned implements broker.GroupHandler.
func (m *membership) Assigned(meta broker.GroupMeta, owned []record.TopicPartition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.meta, m.owned = meta, append([]record.TopicPartition(nil), owned...)
	sort.Slice(m.owned, func(i, j int) bool { return m.owned[i].String() < m.owned[j].String() })
}

// Revoked implements broker.GroupHandler.
func (m *membership) Revoked(ctx context.Context, gone []record.TopicPartition) {
	if m.revoke != nil {
		m.revoke(ctx, gone)
	}
	m.Lost(gone)
}

// Lost implements broker.GroupHandler.
func (m *membership) Lost(gone []record.TopicPartition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gone = append(m.gone, gone...)
	var left []record.TopicPartition
	for _, at := range m.owned {
		if !hasPartition(gone, at) {
			left = append(left, at)
		}
	}
	m.owned = left
}

func hasPartition(tps []record.TopicPartition, at record.TopicPartition) bool {
	for _, x := range tps {
		if x == at {
			return true
		}
	}
	return false
}
