package ingress

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/streamd/streamd/internal/simbroker"
)

// The bound is of what a request holds in memory, not of the bytes of its body: small records, each with a long ID, take the most.
func TestSmallRecordsCountForWhatTheyHold(t *testing.T) {
	r := newRig(t)
	const limit = 1 << 20
	h := NewHTTP(HTTPConfig{}, NewQueue(r.log(), limit, patience)) // nobody writes
	body := "[" + strings.Repeat("1,", 999) + "1]"
	other, err := h.queue.Reserve(1)
	if err != nil {
		t.Fatal(err)
	}
	h.cfg.Timeout = 50 * time.Millisecond // of one that is let in
	req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	req.Header.Set(DefaultIDHeader, strings.Repeat("k", 4000))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	if w.Code != 429 || w.Header().Get("Retry-After") == "" {
		t.Errorf("a thousand records with IDs of 4000 bytes, in a queue of %d bytes: %d %s", limit, w.Code, text(w))
	}
	if h.queue.used != 1 {
		t.Errorf("%d bytes stay reserved, want 1", h.queue.used)
	}
	// Alone it comes in, as any that is larger than all there is.
	other.Release()
	room, err := h.queue.Reserve(10)
	if err == nil {
		err = room.Resize(2 * limit)
	}
	if err != nil || h.queue.used != 2*limit {
		t.Errorf("alone: %v, %d bytes", err, h.queue.used)
	}
	if _, err := h.queue.Reserve(1); !errors.Is(err, ErrBusy) {
		t.Errorf("beside it: %v", err)
	}
}

// A body that comes too slowly may come in time the next time: a client must not take it for a request to be mended.
func TestSlowBody(t *testing.T) {
	h := NewHTTP(HTTPConfig{}, NewQueue(newRig(t).log(), 1<<20, patience))
	req := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader(`[1,`), iotest.ErrReader(&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded})))
	req.Header.Set(DefaultIDHeader, "k")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	if w.Code != http.StatusRequestTimeout || w.Header().Get("Retry-After") == "" || w.Header().Get("Connection") != "close" || h.queue.used != 0 {
		t.Errorf("%d %v %s, %d bytes reserved", w.Code, w.Header(), text(w), h.queue.used)
	}
}

// Clients that say that they send much, and send it slowly, keep nobody out: they hold what they have sent.
func TestSlowBodiesHoldWhatTheySent(t *testing.T) {
	p := newRig(t).process(HTTPConfig{MaxBody: 1 << 20}, 1<<20)
	post := func(body io.Reader, size int, key string) <-chan *httptest.ResponseRecorder {
		req := httptest.NewRequest(http.MethodPost, "/", body)
		req.ContentLength = int64(size)
		req.Header.Set(DefaultIDHeader, key)
		done := make(chan *httptest.ResponseRecorder, 1)
		go func() {
			w := httptest.NewRecorder()
			p.ServeHTTP(w, req)
			done <- w
		}()
		return done
	}
	from, to := io.Pipe()
	slow := post(from, 1<<20, "slow")
	if _, err := io.WriteString(to, "[\""); err != nil { // the pipe gives it over: the request is being read
		t.Fatal(err)
	}
	if w := <-post(strings.NewReader("[1,2]"), 5, "quick"); w.Code != 200 {
		t.Fatalf("beside a slow one: %d %s", w.Code, text(w))
	}
	if _, err := io.WriteString(to, strings.Repeat("x", 1<<20-4)+"\"]"); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	if w := <-slow; w.Code != http.StatusRequestEntityTooLarge { // the topic takes no record of that length
		t.Errorf("the slow one: %d %s", w.Code, text(w))
	}
	if p.queue.used != 0 {
		t.Errorf("%d bytes stay reserved", p.queue.used)
	}
}

// Room that is not there when a body has come half is no error of the request.
func TestBodyThatOutgrowsTheRoom(t *testing.T) {
	h := NewHTTP(HTTPConfig{}, NewQueue(newRig(t).log(), 1<<20, patience))
	if _, err := h.queue.Reserve(1<<20 - bodyStep); err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("["+strings.Repeat("1,", bodyStep)+"1]"))
	req.Header.Set(DefaultIDHeader, "k")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	if w.Code != 429 || w.Header().Get("Retry-After") == "" || w.Header().Get("Connection") != "close" || h.queue.used != 1<<20-bodyStep {
		t.Errorf("%d %v, %d bytes reserved", w.Code, w.Header(), h.queue.used)
	}
}

// A sender that does not read its acknowledgements holds up the end no longer than anything else may.
func TestLinesEndWithASenderThatReadsNothing(t *testing.T) {
	r := newRig(t)
	client, server := net.Pipe() // whose writes wait for a reader
	defer func() { _ = client.Close() }()
	l := &onePipe{conns: make(chan net.Conn, 1)}
	l.conns <- server
	const drain = 100 * time.Millisecond
	s := NewLines(LinesConfig{Acknowledge: true}, NewQueue(r.log(), 1<<20, drain), l, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	if _, err := client.Write([]byte("1\n")); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); len(r.lines()) == 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatal("the line is not written")
		}
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(writeTimeout / 2):
		t.Errorf("half of %v after it was told to end, with %v for that, it still waits for the sender", writeTimeout, drain)
	}
}

// onePipe is a listener of connections that are there.
type onePipe struct{ conns chan net.Conn }

func (l *onePipe) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l *onePipe) Close() error   { close(l.conns); return nil }
func (l *onePipe) Addr() net.Addr { return &net.TCPAddr{} }

// The time for the end is one time, for what is waited for and for Kafka together: a process that is given longer than its
// supervisor waits is killed.
func TestTheEndTakesItsTimeOnce(t *testing.T) {
	const drain = 2 * time.Second
	for name, run := range map[string]func(*rig, *Queue, net.Listener) (serve func(context.Context) error, request string){
		"http": func(_ *rig, q *Queue, l net.Listener) (func(context.Context) error, string) {
			s := &Server{Listener: l, Handler: NewHTTP(HTTPConfig{Timeout: patience}, q), Queue: q, Timeout: patience, Drain: drain, Logger: slog.New(slog.DiscardHandler)}
			return s.Run, "POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 1\r\n\r\n1"
		},
		"lines": func(_ *rig, q *Queue, l net.Listener) (func(context.Context) error, string) {
			return NewLines(LinesConfig{Acknowledge: true}, q, l, slog.New(slog.DiscardHandler)).Run, "1\n"
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.b.SetFault(func(simbroker.Call) simbroker.Action { return simbroker.Action{Verdict: simbroker.LoseRequest} })
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			q := NewQueue(r.log(), 1<<20, drain)
			serve, request := run(r, q, l)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- serve(ctx) }()
			c := dial(t, l.Addr().String())
			c.send(request)
			for q.begun() == 0 && len(ended) == 0 {
				time.Sleep(time.Millisecond)
			}
			cancel()
			began := time.Now()
			<-ended
			if took := time.Since(began); took > drain*3/2 {
				t.Errorf("the end took %v, it has %v", took, drain)
			}
		})
	}
}

// begun is how many bytes are being written.
func (q *Queue) begun() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) > 0 {
		return 0
	}
	return q.used
}
