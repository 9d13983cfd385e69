package ingress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Limits of the server: a client that is slow costs one connection and its room in the queue for a bounded time.
const (
	headerTimeout  = 5 * time.Second
	bodyTimeout    = 30 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 32 << 10
)

// Server runs an endpoint with its queue.
type Server struct {
	Listener net.Listener
	Handler  http.Handler // an *HTTP, or what stands in front of it
	Queue    *Queue
	// Timeout is the endpoint's own: answers take so long at most.
	Timeout time.Duration
	// Drain is how long the end may wait for requests that were accepted.
	Drain  time.Duration
	Logger *slog.Logger
}

// Run serves until ctx ends, then finishes the requests that it has accepted, and returns nil. An error is the listener's, or the queue's.
func (s *Server) Run(ctx context.Context) error {
	srv := &http.Server{
		Handler: s.Handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, IdleTimeout: idleTimeout,
		WriteTimeout: bodyTimeout + s.Timeout + headerTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(s.Logger.Handler(), slog.LevelDebug),
	}
	// The queue outlives the server: it answers those who still wait.
	queueCtx, stopQueue := context.WithCancel(context.WithoutCancel(ctx))
	defer stopQueue()
	ended := make(chan error, 1)
	written := make(chan error, 1)
	go func() { ended <- srv.Serve(s.Listener) }()
	go func() { written <- s.Queue.Run(queueCtx) }()
	var err error
	select {
	case <-ctx.Done():
	case err = <-ended:
		err = fmt.Errorf("ingress: serving on %s: %w", s.Listener.Addr(), err)
		ended <- http.ErrServerClosed
	case err = <-written:
		written <- nil
	}
	s.Queue.ending()
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Drain)
	defer cancel()
	if serr := srv.Shutdown(stop); serr != nil {
		_ = srv.Close() // who does not read his answer sends again
	}
	stopQueue()
	if werr := <-written; err == nil {
		err = werr
	}
	if serr := <-ended; err == nil && !errors.Is(serr, http.ErrServerClosed) {
		err = fmt.Errorf("ingress: serving on %s: %w", s.Listener.Addr(), serr)
	}
	return err
}

// Limit accepts at most n connections at once; the next one waits until one ends. It belongs below TLS: a server looks for TLS at the
// connections that it is given.
func Limit(l net.Listener, n int) net.Listener {
	return &limitedListener{Listener: l, tokens: make(chan struct{}, n), closed: make(chan struct{})}
}

type limitedListener struct {
	net.Listener
	tokens chan struct{} // one in it for each open connection
	closed chan struct{}
	once   sync.Once
}

// Accept waits for a connection to end, if there are too many.
func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.tokens <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.tokens
		return nil, err
	}
	return &limitedConn{Conn: c, release: sync.OnceFunc(func() { <-l.tokens })}, nil
}

// Close also ends an Accept that waits for room.
func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	release func()
}

// Close makes room for the next one.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.release()
	return err
}
