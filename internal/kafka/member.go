package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

// What lies between sarama's ConsumerGroup and the brokers, so that a session ends for one reason only:
// the group's coordinator has said so, or we have. sarama by itself ends it when it has tried a number
// of times, and a dead broker is named as the coordinator for longer than any sensible number of tries
// takes: until the controller misses its heartbeats (broker.session.timeout.ms, 9 s). Nothing is
// gained by giving up earlier: a member that the group has given up learns that from the first answer,
// and until then its commits are refused by their generation.
//
// One way is left: a coordinator that dies while it holds our JoinGroup or SyncGroup. sarama ends the
// session then. The member joins again at once under its instance ID, and the tasks replay the tails
// of their changelogs.

const (
	// leaveTimeout is what an orderly end of a session may take.
	leaveTimeout = time.Second
	// memberPause is between two attempts to reach the coordinator.
	memberPause = 50 * time.Millisecond
	// memberAttempts is how many failed heartbeats in a row end a session: after eight minutes at least.
	// sarama recurses that deep when it asks for offsets.
	memberAttempts = 10_000
)

// memberClient is the client as sarama's ConsumerGroup sees it.
//
// It keeps the claims from touching a broker: they are paused, and a broker that is never opened is
// their leader. Otherwise each claim would ask for two offsets and might fetch once, and a committed
// offset that is out of range, which is ours to judge, would end the session.
type memberClient struct {
	sarama.Client
	ctx     context.Context // ends with the session
	refuse  context.CancelCauseFunc
	conf    *sarama.Config
	nowhere *sarama.Broker
	calls   pacer
}

func newMemberClient(ctx context.Context, client sarama.Client, refuse context.CancelCauseFunc) *memberClient {
	conf := *client.Config()
	// The group's patience. The client's is short, so that each attempt asks anew who the coordinator is.
	conf.Metadata.Retry.Max, conf.Metadata.Retry.Backoff = memberAttempts, memberPause
	return &memberClient{Client: client, ctx: ctx, refuse: refuse, conf: &conf, nowhere: sarama.NewBroker("nowhere:0")}
}

// Config returns the group's settings, which differ from the client's in how often it tries again.
func (m *memberClient) Config() *sarama.Config { return m.conf }

// GetOffset answers without asking: every offset is in range.
func (*memberClient) GetOffset(_ string, _ int32, at int64) (int64, error) {
	if at == sarama.OffsetNewest {
		return math.MaxInt64, nil
	}
	return 0, nil
}

// Leader returns a broker that is never opened.
func (m *memberClient) Leader(string, int32) (*sarama.Broker, error) { return m.nowhere, nil }

// LeaderAndEpoch returns a broker that is never opened.
func (m *memberClient) LeaderAndEpoch(string, int32) (*sarama.Broker, int32, error) {
	return m.nowhere, -1, nil
}

// PartitionNotReadable would delay a claim while a leader is elected.
func (*memberClient) PartitionNotReadable(string, int32) bool { return false }

// RefreshMetadata waits for a broker that answers. A member needs no leaders: without this, a rebalance
// while one is elected would end the session.
func (m *memberClient) RefreshMetadata(topics ...string) error {
	limit := time.Now().Add(requestTimeout)
	for {
		err := m.Client.RefreshMetadata(topics...)
		code, answered := codeIn(err)
		switch {
		case err == nil, code == sarama.ErrLeaderNotAvailable:
			return nil
		case answered, errors.Is(err, sarama.ErrClosedClient), time.Now().After(limit):
			return err
		}
		if sleep(m.ctx, memberPause) != nil {
			return err
		}
	}
}

// Coordinator returns a coordinator that a connection is open to. It looks it up again when the
// connection is gone: sarama would send each heartbeat to the dead broker.
func (m *memberClient) Coordinator(group string) (*sarama.Broker, error) {
	if !m.calls.ok(time.Now()) {
		_ = sleep(m.ctx, memberPause)
	}
	b, err := m.connected(group)
	if err == nil || m.ctx.Err() != nil {
		return b, err
	}
	_ = sleep(m.ctx, memberPause)
	if err := m.Client.RefreshCoordinator(group); err != nil {
		return nil, m.judge(err)
	}
	b, err = m.connected(group)
	return b, m.judge(err)
}

func (m *memberClient) connected(group string) (*sarama.Broker, error) {
	b, err := m.Client.Coordinator(group)
	if err != nil {
		return nil, err
	}
	if up, err := b.Connected(); !up || err != nil {
		if err == nil {
			err = sarama.ErrNotConnected
		}
		return nil, connectError(b.Addr(), err)
	}
	return b, nil
}

// judge ends the session if no retry heals the error: refused credentials, that is.
func (m *memberClient) judge(err error) error {
	if err != nil && fatal(kindOf(err)) {
		m.refuse(err)
	}
	return err
}

// pacer finds calls in a tight loop: sarama sends a heartbeat that failed again without a pause.
type pacer struct {
	mu    sync.Mutex // guards the fields below
	since time.Time
	n     int
}

// ok says whether a call at now is one of the first three within the pause.
func (p *pacer) ok(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.since) > memberPause {
		p.since, p.n = now, 0
	}
	p.n++
	return p.n <= 3
}

// memberDialer opens the connections of a session's client, and can close them all: a request that waits
// for its answer ends then.
type memberDialer struct {
	ctx       context.Context
	conf      *Config
	joinLimit time.Duration // how long JoinGroup and SyncGroup may wait for their answer

	mu     sync.Mutex // guards the fields below
	open   []net.Conn
	closed bool
}

// Dial implements sarama's dialer.
func (d *memberDialer) Dial(network, addr string) (net.Conn, error) {
	top, _, err := d.conf.open(d.ctx, network, addr)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = top.Close()
		return nil, net.ErrClosed
	}
	d.open = append(d.open, &memberConn{Conn: top, d: d})
	return d.open[len(d.open)-1], nil
}

func (d *memberDialer) close() {
	d.mu.Lock()
	d.closed = true
	open := d.open
	d.open = nil
	d.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

// memberConn forgets itself when it is closed. It also knows which requests may wait long for their
// answer: sarama has one time limit for all of a connection, and a heartbeat that waits as long as a
// JoinGroup may for a broker that has stopped answering outlasts the session timeout.
type memberConn struct {
	net.Conn
	d      *memberDialer
	joined atomic.Int64 // when the last JoinGroup or SyncGroup was written, in Unix nanoseconds
}

const (
	keyJoinGroup = 11
	keySyncGroup = 14
)

// Write implements net.Conn. sarama writes one frame at a time.
func (c *memberConn) Write(b []byte) (int, error) {
	if len(b) >= 6 {
		if key := binary.BigEndian.Uint16(b[4:]); key == keyJoinGroup || key == keySyncGroup {
			c.joined.Store(time.Now().UnixNano())
		}
	}
	return c.Conn.Write(b)
}

// SetReadDeadline implements net.Conn. sarama calls it when it begins to wait for an answer.
func (c *memberConn) SetReadDeadline(t time.Time) error {
	now := time.Now()
	if soon := now.Add(requestTimeout); t.After(soon) && now.Sub(time.Unix(0, c.joined.Load())) > c.d.joinLimit {
		t = soon
	}
	return c.Conn.SetReadDeadline(t)
}

// Close implements net.Conn.
func (c *memberConn) Close() error {
	c.d.mu.Lock()
	c.d.open = slices.DeleteFunc(c.d.open, func(o net.Conn) bool { return o == net.Conn(c) })
	c.d.mu.Unlock()
	return c.Conn.Close()
}
