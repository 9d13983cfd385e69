package faultnet

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"
)

// conn is a client's connection. The client writes whole requests one after the other and reads an
// answer only after it has written its request: sarama and our own frames both do.
type conn struct {
	net.Conn // to the broker
	n        *Net
	addr     string
	closed   chan struct{} // the client's end is closed

	mu     sync.Mutex // guards the rest
	out    []byte     // written, not a whole frame yet
	inject []byte     // answers made here
	broken bool       // the client's end is cut
	// swap is the request whose answer from the broker is replaced by an error code, nil for none.
	swap    []byte
	code    int16
	swallow bool     // the next answer from the broker is dropped, then the end is cut
	kept    bool     // the broker's end is needed after the client's was closed
	late    [][]byte // requests that are to reach the broker later, in order
	last    Key      // of the last request
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
	c.last = Key(binary.BigEndian.Uint16(f[4:]))
	if p := c.n.paused(); p != nil {
		if !p.keeps(c.last) {
			c.broken = true
			return nil
		}
		c.later(f, p.over)
		return nil
	}
	r := c.n.take(c.last, f)
	switch r.Do {
	case LoseRequest:
		c.broken = true
		return nil
	case Hold:
		c.broken, c.kept = true, true
		r.held.server, r.held.frame = c.Conn, f
		close(r.held.ready)
		return nil
	case Answer:
		resp, err := respond(f, r.Answer)
		c.inject = append(c.inject, resp...)
		return err
	case Refuse:
		if c.last == metadata {
			c.swap, c.code = f, r.Code // the brokers in its answer are true
			break
		}
		resp, err := refuse(f, r.Code)
		c.inject = append(c.inject, resp...)
		return err
	case HandleThenRefuse:
		c.swap, c.code = f, r.Code
	case LoseAnswer:
		c.swallow = true
	case Slow:
		over := make(chan struct{})
		time.AfterFunc(r.Wait, func() { close(over) })
		c.later(f, over)
		return nil
	}
	if len(c.late) > 0 {
		c.late = append(c.late, f)
		return nil
	}
	_, err := c.Conn.Write(f)
	return err
}

// later sends a request when over is closed, also if the client has gone by then. c.mu is held.
func (c *conn) later(f []byte, over <-chan struct{}) {
	c.late = append(c.late, f)
	if len(c.late) > 1 {
		return // goes with the first one
	}
	c.kept = true
	go func() {
		<-over
		c.mu.Lock()
		frames, broken := c.late, c.broken
		c.late = nil
		if !broken {
			c.kept = false
		}
		c.mu.Unlock()
		if broken {
			_ = deliver(c.Conn, frames...)
			return
		}
		for _, f := range frames {
			if _, err := c.Conn.Write(f); err != nil {
				_ = c.Close()
				return
			}
		}
	}()
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
	broken, swallow, swap, code := c.broken, c.swallow, c.swap, c.code
	c.swap = nil
	c.mu.Unlock()
	switch {
	case broken:
		return 0, io.EOF
	case swallow:
		_, _ = readFrame(c.Conn) // the request has been handled now
		c.mu.Lock()
		c.broken = true
		c.mu.Unlock()
		return 0, io.EOF
	case swap != nil:
		body, err := readFrame(c.Conn)
		if err != nil {
			return 0, err
		}
		resp, err := refuseAfter(swap, body, code)
		if err != nil {
			return 0, err
		}
		c.mu.Lock()
		c.inject = append(c.inject, resp...)
		c.mu.Unlock()
		return c.Read(b)
	}
	n, err := c.Conn.Read(b)
	if p := c.n.paused(); p != nil { // nothing is heard while the client is paused
		select {
		case <-p.over:
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
	return n, err
}

// Close closes the client's end, and the broker's unless a request that is to come late needs it.
func (c *conn) Close() error {
	c.mu.Lock()
	if !isClosed(c.closed) {
		close(c.closed)
	}
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

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
