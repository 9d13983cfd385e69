package kafka

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/kafka/faultnet"
	"github.com/streamd/streamd/record"
)

// testMember is a membership that tests look at.
type testMember struct {
	mu      sync.Mutex
	meta    broker.GroupMeta
	owned   []record.TopicPartition
	revoked []record.TopicPartition
	lost    int
	calls   int // running at once, must be 1 at most
	history []string
	revoke  func(ctx context.Context, gone []record.TopicPartition)
	changed chan struct{}
	done    chan error
	stop    context.CancelFunc
}

func (m *testMember) enter(what string) func() {
	m.mu.Lock()
	m.calls++
	if m.calls > 1 {
		m.history = append(m.history, "TWO CALLS AT ONCE")
	}
	m.history = append(m.history, what)
	m.mu.Unlock()
	return func() {
		m.mu.Lock()
		m.calls--
		m.mu.Unlock()
		select {
		case m.changed <- struct{}{}:
		default:
		}
	}
}

func (m *testMember) Assigned(meta broker.GroupMeta, owned []record.TopicPartition) {
	defer m.enter("assigned")()
	m.mu.Lock()
	m.meta, m.owned = meta, owned
	m.mu.Unlock()
}

func (m *testMember) Revoked(ctx context.Context, gone []record.TopicPartition) {
	defer m.enter("revoked")()
	if m.revoke != nil {
		m.revoke(ctx, gone)
	}
	m.mu.Lock()
	m.revoked = append(m.revoked, gone...)
	m.mu.Unlock()
}

func (m *testMember) Lost([]record.TopicPartition) {
	defer m.enter("lost")()
	m.mu.Lock()
	m.lost++
	m.owned = nil
	m.mu.Unlock()
}

func (m *testMember) current() broker.GroupMeta {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.meta
}

// until waits for a condition, which is called with the lock held.
func (m *testMember) until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		m.mu.Lock()
		ok := cond()
		m.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-m.changed:
		case <-time.After(20 * time.Millisecond):
		case <-limit:
			t.Fatalf("not in time: %s (%v)", what, m.history)
		}
	}
}

// wait waits until exactly n partitions are owned.
func (m *testMember) wait(t testing.TB, n int) broker.GroupMeta {
	t.Helper()
	m.until(t, "partitions", func() bool { return len(m.owned) == n })
	return m.current()
}

func joinGroup(t testing.TB, c *Cluster, group, instance string, topics ...string) *testMember {
	return joinWith(t, c, broker.GroupConfig{Group: group, Instance: instance, CoPartitioned: [][]string{topics}}, nil)
}

func joinWith(t testing.TB, c *Cluster, g broker.GroupConfig, revoke func(context.Context, []record.TopicPartition)) *testMember {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	m := &testMember{changed: make(chan struct{}, 1), done: make(chan error, 1), stop: cancel, revoke: revoke}
	go func() { m.done <- c.Join(ctx, g, m); close(m.done) }()
	t.Cleanup(func() {
		cancel()
		<-m.done
		m.mu.Lock()
		defer m.mu.Unlock()
		if slices.Contains(m.history, "TWO CALLS AT ONCE") {
			t.Error("handler calls overlapped")
		}
	})
	return m
}

func TestRebalanceDisturbsOnlyWhatMoves(t *testing.T) {
	f := newFake(t, 1)
	in := makeTopic(t, f.c, 6)
	var a *testMember
	p := newProducer(t, f.c, "x")
	kept := 0
	a = joinWith(t, f.c, broker.GroupConfig{Group: "g", Instance: "a", CoPartitioned: [][]string{{in}}}, func(ctx context.Context, gone []record.TopicPartition) {
		// While these go, the others are committed under the generation that Assigned has told.
		_, out, err := p.Commit(ctx, a.current(), []broker.OffsetCommit{{TopicPartition: tpOf(in, 0), Next: 1}})
		if out != broker.Committed {
			t.Errorf("in Revoked: %v, %v", out, err)
		}
		kept++
	})
	first := a.wait(t, 6)
	b := joinGroup(t, f.open(t), "g", "b", in)
	b.wait(t, 3)
	second := a.wait(t, 3)
	if second.Generation <= first.Generation || second.Member != first.Member || kept != 1 {
		t.Fatalf("%+v, then %+v, %d revocations", first, second, kept)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, tp := range a.revoked {
		if slices.Contains(a.owned, tp) {
			t.Errorf("%s was kept and revoked", tp)
		}
	}
	if len(a.revoked) != 3 || a.lost != 0 {
		t.Fatalf("revoked %v, lost %d, %v", a.revoked, a.lost, a.history)
	}
}

// TestSoftGate: while another member's join is pending, commits with the old generation go on. (CRASH 15)
func TestSoftGate(t *testing.T) {
	f := newFake(t, 1)
	in := makeTopic(t, f.c, 2)
	a := joinGroup(t, f.c, "g", "a", in)
	meta := a.wait(t, 2)
	p := newProducer(t, f.c, "x")
	f.net.Seen()
	b := joinGroup(t, f.open(t), "g", "b", in)
	joins := 0
	for joins < 1 {
		for _, k := range f.net.Seen() {
			if k == faultnet.KeyOf("JoinGroup") {
				joins++
			}
		}
		_, out, err := p.Commit(testContext(t), meta, []broker.OffsetCommit{{TopicPartition: tpOf(in, 0), Next: 1}})
		if out != broker.Committed {
			if !errors.Is(err, broker.ErrIllegalGeneration) || joins == 0 {
				t.Fatalf("%v, %v", out, err)
			}
			break // the join has completed in the meantime
		}
	}
	b.wait(t, 1)
	a.wait(t, 1)
}

func TestLostSessionJoinsAgain(t *testing.T) {
	f := newFake(t, 1)
	in := makeTopic(t, f.c, 2)
	for _, code := range []int16{22, 25} {
		g := broker.GroupConfig{Group: "g", Instance: "a", CoPartitioned: [][]string{{in}}, HeartbeatInterval: 20 * time.Millisecond}
		m := joinWith(t, f.c, g, nil)
		m.wait(t, 2)
		f.net.Refuse(faultnet.KeyOf("Heartbeat"), code, 1)
		m.until(t, "lost", func() bool { return m.lost == 1 })
		m.wait(t, 2)
		m.stop()
		if err := <-m.done; err != nil {
			t.Fatalf("after the context's end: %v", err)
		}
	}
}

func TestFencedInstanceStops(t *testing.T) {
	f := newFake(t, 1)
	in := makeTopic(t, f.c, 2)
	m := joinWith(t, f.c, broker.GroupConfig{Group: "g", Instance: "a", CoPartitioned: [][]string{{in}}, HeartbeatInterval: 20 * time.Millisecond}, nil)
	m.wait(t, 2)
	f.net.Refuse(faultnet.KeyOf("Heartbeat"), 82, 1)
	select {
	case err := <-m.done:
		if !errors.Is(err, broker.ErrFenced) {
			t.Fatal(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("Join goes on")
	}
	m.until(t, "lost", func() bool { return m.lost == 1 })
}

// beats waits until so many heartbeats were sent, and returns how many there were.
func beats(f *fake, want int) int {
	n := 0
	for limit := time.Now().Add(60 * time.Second); n < want && time.Now().Before(limit); time.Sleep(5 * time.Millisecond) {
		n += countKey(f.net.Seen(), faultnet.KeyOf("Heartbeat"))
	}
	return n
}

// TestCoordinatorMovesQuietly: neither a coordinator that moves nor one whose connection breaks costs
// the session.
func TestCoordinatorMovesQuietly(t *testing.T) {
	f := newFake(t, 3)
	in := makeTopic(t, f.c, 2)
	m := joinWith(t, f.c, broker.GroupConfig{Group: "g", Instance: "a", CoPartitioned: [][]string{{in}}, HeartbeatInterval: 20 * time.Millisecond}, nil)
	m.wait(t, 2)
	for range 5 {
		f.RehashCoordinators()
		f.net.LoseAnswer(faultnet.KeyOf("Heartbeat"))
		f.net.Seen()
		if n := beats(f, 5); n < 5 {
			t.Fatalf("%d heartbeats", n)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost != 0 || len(m.revoked) != 0 {
		t.Fatal(m.history)
	}
}

// TestDeadCoordinatorIsWaitedFor: brokers name a dead coordinator until its own session with the controller has
// timed out, 9 s by default. Nothing is lost by that: the session timeout of the group is longer.
func TestDeadCoordinatorIsWaitedFor(t *testing.T) {
	f := newFake(t, 3)
	in := makeTopic(t, f.c, 2)
	m := joinWith(t, f.c, broker.GroupConfig{Group: "g", Instance: "a", CoPartitioned: [][]string{{in}}, HeartbeatInterval: 20 * time.Millisecond}, nil)
	first := m.wait(t, 2)
	addr, err := f.c.coordinator(testContext(t), "g", sarama.CoordinatorGroup)
	if err != nil {
		t.Fatal(err)
	}
	f.net.Down(addr, true)
	// What ends the session, if anything does, is a count of attempts, each 50 ms after the last one: as many as there are in 6 s.
	for limit := time.Now().Add(30 * time.Second); f.net.Refused() < 120; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%d attempts to reach the coordinator", f.net.Refused())
		}
	}
	f.net.Down(addr, false)
	f.net.Seen()
	n := beats(f, 5)
	m.mu.Lock()
	defer m.mu.Unlock()
	if n < 5 || m.lost != 0 || len(m.revoked) != 0 || m.meta != first {
		t.Fatalf("%d heartbeats, %v", n, m.history)
	}
}

// TestFrozenCoordinatorIsLeft: a heartbeat waits for its answer no longer than other requests do, JoinGroup and
// SyncGroup as long as the members may take.
func TestFrozenCoordinatorIsLeft(t *testing.T) {
	base := &deadlines{}
	c := &memberConn{Conn: base, d: &memberDialer{joinLimit: time.Hour}}
	frame := func(key byte) []byte { return []byte{0, 0, 0, 2, 0, key, 0, 0} }
	for i, step := range []struct {
		key  byte
		long bool
	}{{12, false}, {keyJoinGroup, true}, {12, true}, {keySyncGroup, true}} {
		if _, err := c.Write(frame(step.key)); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := c.SetReadDeadline(begin.Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if long := base.last.After(time.Now().Add(requestTimeout)); long != step.long {
			t.Errorf("step %d: the answer is waited for until %v after it", i, base.last.Sub(begin))
		}
	}
	c.joined.Store(time.Now().Add(-2 * time.Hour).UnixNano())
	if _ = c.SetReadDeadline(time.Now().Add(time.Hour)); base.last.After(time.Now().Add(requestTimeout)) {
		t.Error("a join long ago still counts")
	}
}

// deadlines is a connection that remembers the last read deadline.
type deadlines struct {
	net.Conn
	last time.Time
}

func (*deadlines) Write(b []byte) (int, error)         { return len(b), nil }
func (d *deadlines) SetReadDeadline(t time.Time) error { d.last = t; return nil }

func TestUserDataTravels(t *testing.T) {
	f := newFake(t, 1)
	in := makeTopic(t, f.c, 1)
	asked := make(chan struct{}, 10)
	g := broker.GroupConfig{Group: "g", Instance: "a", CoPartitioned: [][]string{{in}}, UserData: func() []byte { asked <- struct{}{}; return []byte("here") }}
	joinWith(t, f.c, g, nil).wait(t, 1)
	if len(asked) == 0 {
		t.Fatal("UserData was not asked")
	}
}

func TestJoinRefusesWhatCannotBe(t *testing.T) {
	f := newFake(t, 1)
	in := makeTopic(t, f.c, 1)
	if err := f.c.Join(testContext(t), broker.GroupConfig{Group: "g", Instance: "not an instance!", CoPartitioned: [][]string{{in}}}, &testMember{changed: make(chan struct{}, 1)}); !errors.Is(err, broker.ErrConfig) {
		t.Error(err)
	}
	if err := f.c.Join(testContext(t), broker.GroupConfig{Group: "g", Instance: "a"}, &testMember{changed: make(chan struct{}, 1)}); !errors.Is(err, broker.ErrConfig) {
		t.Error(err)
	}
	if err := f.c.Join(testContext(t), broker.GroupConfig{Group: "g", Instance: "a", CoPartitioned: [][]string{{"no-such-topic"}}}, &testMember{changed: make(chan struct{}, 1)}); !errors.Is(err, broker.ErrUnknownTopic) {
		t.Error(err)
	}
}

// TestEndDuringAJoin: JoinGroup is answered when all other members have joined, and one that was killed
// makes it wait for the session timeout. A process that ends does not.
func TestEndDuringAJoin(t *testing.T) {
	f := newFake(t, 1)
	topic := makeTopic(t, f.c, 2)
	m := joinGroup(t, f.c, "g", "a", topic)
	m.wait(t, 2)
	joining, stall := make(chan struct{}, 8), make(chan struct{})
	defer close(stall)
	f.ControlKey(11, func(kmsg.Request) (kmsg.Response, error, bool) {
		joining <- struct{}{}
		<-stall
		return nil, nil, false
	})
	f.net.Refuse(faultnet.KeyOf("Heartbeat"), 27, 1) // REBALANCE_IN_PROGRESS
	select {
	case <-joining:
	case <-time.After(20 * time.Second):
		t.Fatal("no join")
	}
	begin := time.Now()
	m.stop()
	select {
	case err := <-m.done:
		if took := time.Since(begin); err != nil || took > 20*time.Second { // the session timeout is 45 s
			t.Errorf("%v after %v", err, took)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("still a member")
	}
}
