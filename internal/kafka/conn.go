package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
)

// lostError says that a request was sent, at least in part, and no answer came: the broker may act on
// it, now or later. Whoever gets one drops the connection and never sends that request again under
// the same producer epoch.
type lostError struct{ err error }

func (e *lostError) Error() string { return "no answer: " + e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

func isLost(err error) bool {
	var l *lostError
	return errors.As(err, &l)
}

// conn is one open connection. sarama opens it (ApiVersions, SASL) and sends what it can encode; our
// own frames go over the same connection, which sarama reads only while a request of its own waits.
// One goroutine uses a conn at a time, but for abort.
type conn struct {
	b      *sarama.Broker
	top    net.Conn // where bytes are written: TLS, or the same as base
	abort  func()   // closes base: whatever waits on the connection fails at once. Safe from any goroutine.
	conf   *sarama.Config
	frame  int32 // our correlation IDs; they are negative, sarama's are not
	used   time.Time
	muted  time.Time // the broker asked for silence until then (quota)
	authAt time.Time // when a session renewal was last offered
}

// capture is the dialer that one sarama.Broker is opened with. It keeps hold of the connection.
type capture struct {
	ctx  context.Context
	conf *Config

	mu        sync.Mutex // guards the rest
	top, base net.Conn
	err       error
	aborted   bool
}

// Dial implements sarama's dialer.
func (c *capture) Dial(network, addr string) (net.Conn, error) {
	top, base, err := c.conf.open(c.ctx, network, addr)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && c.aborted {
		_ = base.Close()
		err = context.Cause(c.ctx)
	}
	c.top, c.base, c.err = top, base, err
	return top, err
}

func (c *capture) abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aborted = true
	if c.base != nil {
		_ = c.base.Close()
	}
}

// dial opens a connection of our own to a broker.
func (c *Cluster) dial(ctx context.Context, addr string) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, connectError(addr, err)
	}
	d := &capture{ctx: ctx, conf: &c.conf}
	conf, err := c.conf.saramaConfig(d)
	if err != nil {
		return nil, &broker.Error{Op: string(reqConnect), Where: addr, Kind: broker.ErrAuthentication, Cause: err}
	}
	b := sarama.NewBroker(addr)
	if err := b.Open(conf); err != nil {
		return nil, &broker.Error{Op: string(reqConnect), Where: addr, Kind: broker.ErrConfig, Cause: err}
	}
	// A handshake has its own time limit for each step; ctx ends it earlier.
	stop := context.AfterFunc(ctx, d.abort)
	connected, err := b.Connected()
	stop()
	if !connected || err != nil {
		conf.MetricRegistry.UnregisterAll()
		if err == nil {
			err = errors.New("connection closed")
		}
		return nil, connectError(addr, err)
	}
	now := time.Now()
	return &conn{b: b, top: d.top, abort: d.abort, conf: conf, used: now, authAt: now}, nil
}

// connectError tells refused credentials and certificates, which no retry heals, from a broker that is down.
func connectError(addr string, err error) error {
	kind := broker.ErrUnreachable
	code, ok := codeIn(err)
	if k, _ := classify(reqConnect, code); ok && errors.Is(k, broker.ErrAuthentication) {
		kind = k
	} else {
		code = sarama.ErrNoError
	}
	var terr *tlsError
	if errors.As(err, &terr) && !isNetwork(terr.err) {
		kind = broker.ErrAuthentication
	}
	remedy := ""
	if errors.Is(err, io.EOF) {
		remedy = "the broker closed the connection while it was set up: check whether this listener wants TLS or SASL, and which"
	}
	return &broker.Error{Op: string(reqConnect), Where: addr, Kind: kind, Code: int16(code), Cause: err, Remedy: remedy}
}

// codeIn finds Kafka's code in an error of sarama. Some of its errors hide the code from errors.As and
// show it to errors.Is only.
func codeIn(err error) (code sarama.KError, ok bool) {
	if errors.As(err, &code) {
		return code, true
	}
	for _, code = range []sarama.KError{
		sarama.ErrSASLAuthenticationFailed, sarama.ErrUnsupportedSASLMechanism, sarama.ErrIllegalSASLState, sarama.ErrGroupAuthorizationFailed,
		sarama.ErrTopicAuthorizationFailed, sarama.ErrFencedInstancedId, sarama.ErrConsumerCoordinatorNotAvailable,
	} {
		if errors.Is(err, code) {
			return code, true
		}
	}
	return sarama.ErrNoError, false
}

// isNetwork says whether an error is the network's and may heal.
func isNetwork(err error) bool {
	var n net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, context.Canceled) || errors.As(err, &n)
}

// call runs one of sarama's requests; ctx ends the wait by cutting the connection.
func (k *conn) call(ctx context.Context, f func(*sarama.Broker) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, k.abort)
	err := f(k.b)
	stop()
	k.used = time.Now()
	var enc sarama.PacketEncodingError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sarama.ErrNotConnected), errors.Is(err, sarama.ErrUnsupportedVersion), errors.As(err, &enc):
		return err // nothing was written
	case ctx.Err() != nil:
		return &lostError{fmt.Errorf("%w (%w)", context.Cause(ctx), err)}
	}
	return &lostError{err}
}

// roundTrip sends one frame of our own and returns the body of its answer, in memory of its own.
// wait is how long the broker may hold the request back by design.
func (k *conn) roundTrip(ctx context.Context, frame []byte, wait time.Duration) ([]byte, error) {
	if err := k.beforeFrame(ctx); err != nil {
		return nil, err
	}
	limit := time.Now().Add(requestTimeout + wait)
	if d, ok := ctx.Deadline(); ok && d.Before(limit) {
		limit = d
	}
	if err := k.top.SetDeadline(limit); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, k.abort)
	body, err := k.exchange(frame)
	stop()
	k.used = time.Now()
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
		return nil, &lostError{err}
	}
	return body, nil
}

// exchange writes a frame and reads the next one.
func (k *conn) exchange(frame []byte) ([]byte, error) {
	if _, err := k.top.Write(frame); err != nil {
		return nil, err
	}
	var head [8]byte
	if _, err := io.ReadFull(k.top, head[:]); err != nil {
		return nil, err
	}
	size := int(int32(binary.BigEndian.Uint32(head[:])))
	if size < 4 || size > maxFrame {
		return nil, fmt.Errorf("answer of %d bytes", size)
	}
	if got, want := binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint32(frame[8:]); got != want {
		return nil, fmt.Errorf("answer to request %d, not %d", int32(got), int32(want))
	}
	body := make([]byte, size-4)
	_, err := io.ReadFull(k.top, body)
	return body, err
}

// renewCheck is how often a session renewal is offered. Brokers announce a lifetime, and sarama takes a
// session for due from 85 to 95 % of it on: lifetimes of 5 s and more never run out unnoticed.
const renewCheck = 250 * time.Millisecond

// beforeFrame waits out a quota and has sarama renew the SASL session when it is due: that happens
// only in front of one of its own requests (KIP-368).
func (k *conn) beforeFrame(ctx context.Context) error {
	if d := time.Until(k.muted); d > 0 {
		if err := sleep(ctx, d); err != nil {
			return err
		}
	}
	if !k.conf.Net.SASL.Enable || time.Since(k.authAt) < renewCheck {
		return ctx.Err()
	}
	k.authAt = time.Now()
	return k.call(ctx, func(b *sarama.Broker) error {
		_, err := b.ApiVersions(&sarama.ApiVersionsRequest{Version: 0})
		return err
	})
}

// nextFrame starts a request frame.
func (k *conn) nextFrame(buf []byte, key, version int16) []byte {
	k.frame--
	return appendFrame(buf[:0], key, version, k.frame, k.conf.ClientID)
}

// close ends the connection. It waits for nothing: sarama's Close would wait for an answer.
func (k *conn) close() {
	k.abort()
	_ = k.b.Close()
	k.conf.MetricRegistry.UnregisterAll()
}

// link is a connection that is opened when it is needed, to wherever find says, and again after it was lost.
type link struct {
	c    *Cluster
	find func(ctx context.Context) (addr string, err error)
	k    *conn
}

// get returns the connection, opening it if there is none.
func (l *link) get(ctx context.Context) (*conn, error) {
	if l.k != nil && time.Since(l.k.used) > idleLimit {
		l.drop()
	}
	if l.k != nil {
		return l.k, nil
	}
	addr, err := l.find(ctx)
	if err != nil {
		return nil, err
	}
	l.k, err = l.c.dial(ctx, addr)
	return l.k, err
}

// drop ends the connection; the next get finds the address again.
func (l *link) drop() {
	if l.k != nil {
		l.k.close()
		l.k = nil
	}
}

// sleep waits, or returns early with ctx's error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// backoff is the n-th pause (from 0) of a doubling series.
func backoff(n int, first, limit time.Duration) time.Duration {
	return min(first<<min(n, 20), limit)
}

// markersBackoff is the pause after CONCURRENT_TRANSACTIONS. Markers are written 2 to 3 ms after
// EndTxn was answered: asking less often costs throughput, 20 ms at once costs a factor of five.
func markersBackoff(n int) time.Duration {
	if n < 2 {
		return time.Millisecond
	}
	return backoff(n-1, time.Millisecond, 20*time.Millisecond)
}

// sometimes lets one event a second through, for log lines about what heals by itself.
type sometimes struct{ last atomic.Int64 }

func (s *sometimes) ok() bool {
	now := time.Now().UnixNano()
	last := s.last.Load()
	return now-last >= int64(time.Second) && s.last.CompareAndSwap(last, now)
}
