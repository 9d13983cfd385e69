package sinktest

import (
	"net"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/sink"
)

// proxy stands between a target and its server and does what a network does to it.
type proxy struct {
	listener net.Listener
	to       string
	commit   *regexp.Regexp

	mu    sync.Mutex
	conns []net.Conn
	// onCommit is called once with the next COMMIT on its way to the server.
	onCommit action
	frozen   chan struct{} // closed: bytes flow
	hung     chan struct{} // closed: the statement is on its way
}

// action is what happens to a COMMIT.
type action uint8

const (
	forward    action = iota
	loseBefore        // the connection breaks, the server never sees it
	loseAfter         // the server commits, its answer is lost
	hang              // it stays in the network until thaw, as the rest of the connection
)

func (s *suite) proxy(t *testing.T) *proxy { return s.proxyAt(t, s.Commit()) }

// proxyAt acts on what matches instead of on a COMMIT.
func (s *suite) proxyAt(t *testing.T, statement string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	commit, err := regexp.Compile(statement)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, to: s.Address(), commit: commit, frozen: make(chan struct{}), hung: make(chan struct{})}
	t.Cleanup(p.close)
	go p.serve()
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) close() {
	_ = p.listener.Close() // ends serve
	p.thaw()
	p.cut()
}

// at sets what happens to the next COMMIT.
func (p *proxy) at(a action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onCommit = a
}

// cut breaks all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close() // that is the point
	}
	p.conns = nil
}

// thaw lets go on what hangs.
func (p *proxy) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.frozen:
	default:
		close(p.frozen)
	}
}

// held has a writer write a batch, and returns when the network holds its statement back. What comes of it is sent once the network goes on.
func held(t *testing.T, network *proxy, w sink.Writer, b sink.Batch) <-chan error {
	t.Helper()
	network.at(hang)
	answer := make(chan error, 1)
	go func() { answer <- w.Write(t.Context(), b) }()
	select {
	case <-network.hung:
	case <-time.After(2 * time.Minute):
		t.Fatal("the statement was not sent")
	}
	return answer
}

// take returns the pending action if the bytes hold a COMMIT.
func (p *proxy) take(b []byte) action {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.onCommit == forward || !p.commit.Match(b) {
		return forward
	}
	a := p.onCommit
	p.onCommit = forward
	return a
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.to)
		if err != nil {
			_ = client.Close() // the server is down: so is the proxy
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		lost := make(chan struct{})
		go p.toServer(client, server, lost)
		go p.toClient(server, client, lost)
	}
}

func (p *proxy) toServer(client, server net.Conn, lost chan struct{}) {
	defer func() { _ = client.Close(); _ = server.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if n > 0 {
			switch p.take(buf[:n]) {
			case loseBefore:
				return
			case loseAfter:
				close(lost) // before the server can answer
			case hang:
				close(p.hung)
				<-p.frozen
			}
			if _, err := server.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// toClient forwards answers. When the answer to a COMMIT is to be lost, its arrival breaks the
// connection instead.
func (p *proxy) toClient(server, client net.Conn, lost chan struct{}) {
	defer func() { _ = client.Close(); _ = server.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		select {
		case <-lost:
			return
		default:
		}
		if n > 0 {
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
