package faultnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Key is the number of a request in Kafka's protocol.
type Key int16

// KeyOf returns the key of a request by Kafka's name: Produce, Fetch, EndTxn, ...
// It panics for a name that is none: a test with a typo must not pass.
func KeyOf(name string) Key {
	for k := range int16(kmsg.MaxKey + 1) {
		if kmsg.NameForKey(k) == name {
			return Key(k)
		}
	}
	// kmsg writes InitProducerID, Kafka InitProducerId.
	if len(name) > 2 && name[len(name)-2:] == "Id" {
		return KeyOf(name[:len(name)-2] + "ID")
	}
	panic(fmt.Sprintf("faultnet: no request is named %q", name))
}

// Net dials through faults. Its methods are safe for concurrent use.
type Net struct {
	base func(ctx context.Context, network, addr string) (net.Conn, error)

	mu    sync.Mutex // guards the rest
	rules map[Key][]rule
	seen  []Key
	conns map[*conn]bool
	down  map[string]bool
}

// rule is what happens to one request.
type rule struct {
	action action
	held   *Held
	answer func(kmsg.Request) kmsg.Response
}

type action uint8

const (
	loseRequest action = iota + 1
	loseAnswer
	hold
	answer
)

// New makes a dialer on top of base; nil: the network.
func New(base func(ctx context.Context, network, addr string) (net.Conn, error)) *Net {
	if base == nil {
		base = (&net.Dialer{}).DialContext
	}
	return &Net{base: base, rules: map[Key][]rule{}, conns: map[*conn]bool{}, down: map[string]bool{}}
}

var errDown = errors.New("faultnet: this address is down")

// Dial is the function for kafka.Config.
func (n *Net) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	n.mu.Lock()
	down := n.down[addr]
	n.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errDown}
	}
	s, err := n.base(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: s, n: n, addr: addr}
	n.mu.Lock()
	n.conns[c] = true
	n.mu.Unlock()
	return c, nil
}

// LoseRequest drops the next request of this kind: it is not handled and the connection breaks.
func (n *Net) LoseRequest(k Key) { n.add(k, rule{action: loseRequest}) }

// LoseAnswer lets the next request of this kind be handled; then the connection breaks instead of answering.
func (n *Net) LoseAnswer(k Key) { n.add(k, rule{action: loseAnswer}) }

// Answer has fn answer the next request of this kind in the broker's place.
func (n *Net) Answer(k Key, fn func(kmsg.Request) kmsg.Response) {
	n.add(k, rule{action: answer, answer: fn})
}

// Hold keeps the next request of this kind back; for the client the connection breaks.
func (n *Net) Hold(k Key) *Held {
	h := &Held{ready: make(chan struct{})}
	n.add(k, rule{action: hold, held: h})
	return h
}

// Refuse answers the next times requests of this kind with an error code.
func (n *Net) Refuse(k Key, code int16, times int) {
	for range times {
		n.Answer(k, func(r kmsg.Request) kmsg.Response { return refusal(r, code) })
	}
}

// Pending says how many faults of this kind are still to come.
func (n *Net) Pending(k Key) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.rules[k])
}

// Clear forgets all faults to come.
func (n *Net) Clear() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.rules)
}

// Seen returns the keys of all requests since the last call, in the order in which they were written.
func (n *Net) Seen() []Key {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := n.seen
	n.seen = nil
	return out
}

// Down makes an address unreachable and cuts its connections, or makes it reachable again.
func (n *Net) Down(addr string, down bool) {
	n.mu.Lock()
	n.down[addr] = down
	var cut []*conn
	for c := range n.conns {
		if down && c.addr == addr {
			cut = append(cut, c)
		}
	}
	n.mu.Unlock()
	for _, c := range cut {
		_ = c.Close()
	}
}

func (n *Net) add(k Key, r rule) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules[k] = append(n.rules[k], r)
}

func (n *Net) take(k Key) rule {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.seen) < 1<<16 { // a long soak does not fill the memory
		n.seen = append(n.seen, k)
	}
	q := n.rules[k]
	if len(q) == 0 {
		return rule{}
	}
	n.rules[k] = q[1:]
	return q[0]
}

// Held is a request that was kept back.
type Held struct {
	ready  chan struct{} // closed once the request has been caught
	server net.Conn
	frame  []byte
}

// Caught is closed once the request has been written by the client.
func (h *Held) Caught() <-chan struct{} { return h.ready }

// Deliver hands the request to the broker, on the connection that it was meant for, and returns when
// it was answered. It fails if the request has not been caught yet.
func (h *Held) Deliver() error {
	select {
	case <-h.ready:
	default:
		return errors.New("faultnet: nothing was held")
	}
	defer h.server.Close()
	_ = h.server.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := h.server.Write(h.frame); err != nil {
		return err
	}
	_, err := readFrame(h.server)
	return err
}

func readFrame(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(head[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

// conn is a client's connection. The client writes whole requests one after the other and reads an
// answer only after it has written its request: sarama and our own frames both do.
type conn struct {
	net.Conn // to the broker
	n        *Net
	addr     string

	mu      sync.Mutex // guards the rest
	out     []byte     // written, not a whole frame yet
	inject  []byte     // answers made here
	broken  bool       // the client's end is cut
	swallow bool       // the next answer from the broker is dropped, then the end is cut
	kept    bool       // a held request needs the broker's end
}

// Write passes whole frames on, or does to them what the rules say.
func (c *conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken {
		return 0, io.ErrClosedPipe
	}
	c.out = append(c.out, b...)
	for len(c.out) >= 8 {
		size := 4 + int(binary.BigEndian.Uint32(c.out))
		if len(c.out) < size {
			break
		}
		frame := c.out[:size:size]
		c.out = c.out[size:]
		if err := c.frame(frame); err != nil {
			return 0, err
		}
	}
	if len(c.out) == 0 {
		c.out = nil
	}
	return len(b), nil
}

// frame handles one request. c.mu is held.
func (c *conn) frame(f []byte) error {
	r := c.n.take(Key(binary.BigEndian.Uint16(f[4:])))
	switch r.action {
	case loseRequest:
		c.broken = true
		return nil
	case hold:
		c.broken, c.kept = true, true
		r.held.server, r.held.frame = c.Conn, f
		close(r.held.ready)
		return nil
	case answer:
		resp, err := respond(f, r.answer)
		c.inject = append(c.inject, resp...)
		return err
	case loseAnswer:
		c.swallow = true
	}
	_, err := c.Conn.Write(f)
	return err
}

// Read gives what was made here first, then what the broker answers.
func (c *conn) Read(b []byte) (int, error) {
	c.mu.Lock()
	if len(c.inject) > 0 {
		n := copy(b, c.inject)
		c.inject = c.inject[n:]
		c.mu.Unlock()
		return n, nil
	}
	broken, swallow := c.broken, c.swallow
	c.mu.Unlock()
	if broken {
		return 0, io.EOF
	}
	if swallow {
		_, _ = readFrame(c.Conn) // the request has been handled now
		c.mu.Lock()
		c.broken = true
		c.mu.Unlock()
		return 0, io.EOF
	}
	return c.Conn.Read(b)
}

// Close closes the client's end, and the broker's unless a held request needs it.
func (c *conn) Close() error {
	c.mu.Lock()
	c.broken = true
	kept := c.kept
	c.mu.Unlock()
	c.n.mu.Lock()
	delete(c.n.conns, c)
	c.n.mu.Unlock()
	if kept {
		return nil
	}
	return c.Conn.Close()
}
