package faultnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
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

// Action is what becomes of one request.
type Action uint8

const (
	// LoseRequest: it is not handled, the connection breaks.
	LoseRequest Action = iota + 1
	// LoseAnswer: it is handled, then the connection breaks.
	LoseAnswer
	// Hold: it is kept back until [Held.Deliver]; for the client the connection breaks.
	Hold
	// Slow: it reaches the broker late. If the client has given up by then, it is handled all the same.
	Slow
	// Refuse: it is not handled, the answer carries an error code.
	Refuse
	// HandleThenRefuse: it is handled, but the answer carries an error code.
	HandleThenRefuse
	// Answer: a function answers in the broker's place.
	Answer
)

// String names the action.
func (a Action) String() string {
	return [...]string{"none", "lose request", "lose answer", "hold", "slow", "refuse", "handle, then refuse", "answer"}[a]
}

// Fault is an action with what it needs.
type Fault struct {
	Do     Action
	Code   int16         // of Refuse and HandleThenRefuse
	Wait   time.Duration // of Slow
	Answer func(kmsg.Request) kmsg.Response
	// Match, if set, says which requests of the kind are meant: others pass until one is.
	Match func(kmsg.Request) bool
	// Hit, if set, is called when the fault strikes. It must not block nor call a method of its Net but Next.
	Hit func()

	held *Held
}

// Net dials through faults. Its methods are safe for concurrent use.
type Net struct {
	base func(ctx context.Context, network, addr string) (net.Conn, error)

	mu    sync.Mutex // guards the rest; taken after a conn's
	dials int        // that were refused
	rules map[Key][]Fault
	seen  []Key
	conns map[*conn]bool
	down  map[string]bool
	pause *pause // nil: none
}

// New makes a dialer on top of base; nil: the network.
func New(base func(ctx context.Context, network, addr string) (net.Conn, error)) *Net {
	if base == nil {
		base = (&net.Dialer{}).DialContext
	}
	return &Net{base: base, rules: map[Key][]Fault{}, conns: map[*conn]bool{}, down: map[string]bool{}}
}

var errDown = errors.New("faultnet: this address is down")

// Dial is the function for kafka.Config.
func (n *Net) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	n.mu.Lock()
	down := n.down[addr] || n.pause != nil
	if down {
		n.dials++
	}
	n.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errDown}
	}
	s, err := n.base(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: s, n: n, addr: addr, closed: make(chan struct{})}
	n.mu.Lock()
	n.conns[c] = true
	n.mu.Unlock()
	return c, nil
}

// Next does f to the next request of this kind that has no fault yet. With Hold it returns the request.
func (n *Net) Next(k Key, f Fault) *Held {
	if f.Do == Hold {
		f.held = &Held{ready: make(chan struct{})}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules[k] = append(n.rules[k], f)
	return f.held
}

// LoseRequest drops the next request of this kind: it is not handled and the connection breaks.
func (n *Net) LoseRequest(k Key) { n.Next(k, Fault{Do: LoseRequest}) }

// LoseAnswer lets the next request of this kind be handled; then the connection breaks instead of answering.
func (n *Net) LoseAnswer(k Key) { n.Next(k, Fault{Do: LoseAnswer}) }

// Answer has fn answer the next request of this kind in the broker's place.
func (n *Net) Answer(k Key, fn func(kmsg.Request) kmsg.Response) {
	n.Next(k, Fault{Do: Answer, Answer: fn})
}

// Hold keeps the next request of this kind back; for the client the connection breaks.
func (n *Net) Hold(k Key) *Held { return n.Next(k, Fault{Do: Hold}) }

// Refuse answers the next times requests of this kind with an error code.
func (n *Net) Refuse(k Key, code int16, times int) {
	for range times {
		n.Next(k, Fault{Do: Refuse, Code: code})
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

// Refused is how often somebody has dialed an address that was down.
func (n *Net) Refused() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials
}

// Down makes an address unreachable and cuts its connections, or makes it reachable again.
func (n *Net) Down(addr string, down bool) {
	n.mu.Lock()
	n.down[addr] = down
	n.mu.Unlock()
	if down {
		n.cut(func(c *conn) bool { return c.addr == addr })
	}
}

// Cut breaks all connections; they may be opened again at once.
func (n *Net) Cut() { n.cut(func(*conn) bool { return true }) }

func (n *Net) cut(which func(*conn) bool) {
	n.mu.Lock()
	conns := slices.Collect(maps.Keys(n.conns))
	n.mu.Unlock()
	for _, c := range conns {
		if which(c) {
			_ = c.Close()
		}
	}
}

// take returns what is to be done with a request.
func (n *Net) take(k Key, frame []byte) Fault {
	n.mu.Lock()
	if len(n.seen) < 1<<16 { // a long soak does not fill the memory
		n.seen = append(n.seen, k)
	}
	var f Fault
	if q := n.rules[k]; len(q) > 0 && (q[0].Match == nil || matches(frame, q[0].Match)) {
		f, n.rules[k] = q[0], q[1:]
	}
	n.mu.Unlock()
	if f.Hit != nil {
		f.Hit()
	}
	return f
}

func matches(frame []byte, match func(kmsg.Request) bool) bool {
	req, err := request(frame)
	return err == nil && match(req)
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
	return deliver(h.server, h.frame)
}

// deliver sends frames whose client is gone, and waits for their answers.
func deliver(server net.Conn, frames ...[]byte) error {
	defer server.Close()
	_ = server.SetDeadline(time.Now().Add(10 * time.Second))
	for _, f := range frames {
		if _, err := server.Write(f); err != nil {
			return err
		}
		if _, err := readFrame(server); err != nil {
			return err
		}
	}
	return nil
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
