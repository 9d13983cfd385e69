package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
)

func TestNothingIsAcknowledgedBeforeItIsCommitted(t *testing.T) {
	r := newRig(t)
	p := r.process(HTTPConfig{}, 1<<20)
	var answered atomic.Bool
	var checked atomic.Int32
	r.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if answered.Load() {
			t.Errorf("answered before %s", c.API)
		}
		if c.API == simbroker.EndTxn {
			checked.Add(1)
		}
		return simbroker.Action{}
	})
	w := p.post(`[1,2,3]`, "", "k")
	answered.Store(true)
	if w.Code != 200 || checked.Load() != 1 || len(r.lines()) != 3 {
		t.Errorf("%d, %d commits, %d records", w.Code, checked.Load(), len(r.lines()))
	}
}

// The n-th request to Kafka meets a fault, and the client sends again until it has an answer: each record is there, none under
// another ID, and what was acknowledged was never gone.
func TestEveryFault(t *testing.T) {
	faults := map[string]simbroker.Action{
		"request lost": {Verdict: simbroker.LoseRequest},
		"answer lost":  {Verdict: simbroker.LoseAnswer},
		"late":         {Verdict: simbroker.Hold, Requests: 3},
		"twice":        {Verdict: simbroker.Repeat, Requests: 2},
		"killed":       {Verdict: simbroker.CrashBefore},
		"killed after": {Verdict: simbroker.CrashAfter},
		"moving":       {Verdict: simbroker.Refuse, Code: simbroker.CoordinatorLoadInProgress},
		"unknown":      {Verdict: simbroker.HandleThenFail, Code: simbroker.CoordinatorNotAvailable},
	}
	for name, act := range faults {
		t.Run(name, func(t *testing.T) {
			repeats := 0
			for n := 1; ; n++ {
				hit := false
				repeats += faultRun(t, n, func(c simbroker.Call) (simbroker.Action, bool) {
					hit = true
					return act, true
				})
				if !hit || t.Failed() {
					break
				}
			}
			t.Logf("%d repeats for a dedup step to drop", repeats)
		})
	}
}

// faultRun sends three requests while the n-th request to Kafka meets a fault, and returns how many records stand in the log again.
func faultRun(t *testing.T, n int, fault func(simbroker.Call) (simbroker.Action, bool)) (repeats int) {
	r := newRig(t)
	first, done := r.b.Calls(), false
	r.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if done || c.N != first+n {
			return simbroker.Action{}
		}
		done = true
		act, _ := fault(c)
		return act
	})
	p := r.process(HTTPConfig{}, 1<<20)
	acknowledged := map[string]bool{}
	for i := range 3 {
		key := fmt.Sprintf("r%d", i)
		var w *httptest.ResponseRecorder
		for tries := 0; w == nil || w.Code != 200; tries++ {
			if tries > 20 {
				t.Fatalf("call %d: no answer", n)
			}
			if w = p.post(`[1,2]`, "", key); w == nil {
				p = r.process(HTTPConfig{}, 1<<20) // the next process, under the same transactional ID
			}
		}
		for k := range 2 {
			acknowledged[fmt.Sprintf("%s/%d", key, k)] = true
		}
		have := r.counts()
		for id := range acknowledged {
			if have[id] == 0 {
				t.Errorf("call %d: %s was acknowledged and is not there", n, id)
			}
		}
	}
	if err := p.stop(); err != nil {
		t.Errorf("call %d: %v", n, err)
	}
	r.b.DeliverHeld()
	for id, times := range r.counts() {
		if !acknowledged[id] {
			t.Errorf("call %d: %s was never sent", n, id)
		}
		repeats += times - 1
	}
	return repeats
}

// While Kafka takes nothing, clients hear it soon and with when to come again; what they were told they had is there afterwards, and what
// was taken back is not.
func TestKafkaIsDown(t *testing.T) {
	r := newRig(t)
	var down atomic.Bool
	down.Store(true)
	r.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if down.Load() && c.API == simbroker.Produce {
			return simbroker.Action{Verdict: simbroker.LoseRequest}
		}
		return simbroker.Action{}
	})
	p := r.process(HTTPConfig{Timeout: 50 * time.Millisecond}, 12)
	w := p.post(`1`, "", "first") // the writer has it: it may come in later
	if w.Code != 503 || w.Header().Get("Retry-After") == "" || !strings.Contains(text(w), "not known yet") {
		t.Errorf("%d %s", w.Code, text(w))
	}
	w = p.post(`2`, "", "second") // waits behind it and is taken back
	if w.Code != 503 || !strings.Contains(text(w), "nothing was written") {
		t.Errorf("%d %s", w.Code, text(w))
	}
	if w = p.post(`"0123456789ab"`, "", "third"); w.Code != 503 || w.Header().Get("Retry-After") == "" { // no room
		t.Errorf("%d %s", w.Code, text(w))
	}
	ready := httptest.NewRecorder()
	if p.ServeHTTP(ready, httptest.NewRequest("GET", "/readyz", nil)); ready.Code != 503 {
		t.Errorf("readyz: %d", ready.Code)
	}
	down.Store(false)
	for deadline := time.Now().Add(patience); ; {
		if w = p.post(`1`, "", "first"); w.Code == 200 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(text(w))
		}
	}
	if n := r.counts(); n["first/0"] == 0 || n["second/0"] != 0 || n["third/0"] != 0 {
		t.Errorf("%v", n)
	}
}

// Too much at once is told to come again, and is not read into memory.
func TestBusy(t *testing.T) {
	r := newRig(t)
	hold := make(chan struct{})
	var begun sync.Once
	started := make(chan struct{})
	r.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if c.API == simbroker.Produce {
			begun.Do(func() { close(started) })
			<-hold
		}
		return simbroker.Action{}
	})
	p := r.process(HTTPConfig{}, 10)
	answers := make(chan *httptest.ResponseRecorder, 1)
	go func() { answers <- p.post(`"0123456"`, "", "a") }()
	<-started
	w := p.post(`"0123456"`, "", "b")
	if w.Code != 429 || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d %s", w.Code, text(w))
	}
	close(hold)
	if w := <-answers; w.Code != 200 {
		t.Errorf("%d %s", w.Code, text(w))
	}
	if w := p.post(`"0123456"`, "", "b"); w.Code != 200 { // the room is free again
		t.Errorf("%d %s", w.Code, text(w))
	}
}

// A record that the topic does not take costs its own request only, though others share the transaction.
func TestTopicTakesLess(t *testing.T) {
	r := newRig(t)
	if err := r.b.Client("setup").CreateTopic(t.Context(), broker.Topic{Name: "small", Partitions: 3, MaxMessageBytes: 1000}); err != nil {
		t.Fatal(err)
	}
	log := r.log()
	log.cfg.Topic.Name = "small" // which was made smaller after it was looked at
	q := NewQueue(log, 1<<20, patience)
	big := strings.Repeat("x", 2000)
	var entries []*entry
	for _, values := range [][]string{{"a", "b"}, {"c", big}, {"d"}} {
		room, err := q.Reserve(1)
		if err != nil {
			t.Fatal(err)
		}
		e := &entry{room: room, done: make(chan error, 1)}
		for _, v := range values {
			e.outs = append(e.outs, log.output(&Record{ID: record.StringID(v[:1]), Value: []byte(v)}))
		}
		entries = append(entries, e)
	}
	if err := q.write(t.Context(), entries); err != nil {
		t.Fatal(err)
	}
	var large *TooLargeError
	if err := <-entries[1].done; !errors.As(err, &large) || large.Index != 1 || refusalOf(err).code != 413 {
		t.Errorf("%v", err)
	}
	for _, i := range []int{0, 2} {
		if err := <-entries[i].done; err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if q.used != 0 {
		t.Errorf("%d bytes are kept", q.used)
	}
}

// A record beyond what the topic takes is refused before anything is sent.
func TestTooLargeRecord(t *testing.T) {
	r := newRig(t)
	p := r.process(HTTPConfig{MaxBody: 4 << 20}, 8<<20)
	w := p.post(`[1,"`+strings.Repeat("x", 1<<20)+`"]`, "", "k")
	if w.Code != 413 || !strings.Contains(text(w), `"index":1`) || len(r.lines()) != 0 {
		t.Errorf("%d %s", w.Code, text(w))
	}
}

// Two processes of one transactional ID: the older one ends, and does not disturb the newer one.
func TestFenced(t *testing.T) {
	r := newRig(t)
	old := r.process(HTTPConfig{}, 1<<20)
	if w := old.post(`1`, "", "a"); w.Code != 200 {
		t.Fatal(text(w))
	}
	young := r.process(HTTPConfig{}, 1<<20)
	if w := young.post(`2`, "", "b"); w.Code != 200 {
		t.Fatal(text(w))
	}
	if w := old.post(`3`, "", "c"); w == nil || w.Code != 503 {
		t.Errorf("the older one answered %v", w)
	}
	if err := old.stop(); !errors.Is(err, broker.ErrFenced) {
		t.Errorf("the older one ended with %v", err)
	}
	if w := old.post(`4`, "", "d"); w == nil || w.Code != 503 {
		t.Errorf("after its end it answered %v", w)
	}
	if w := young.post(`5`, "", "e"); w.Code != 200 {
		t.Errorf("the newer one is disturbed: %s", text(w))
	}
}

// serve runs an endpoint on a port.
func serve(t *testing.T, r *rig, cfg HTTPConfig) (address string, stop func() error) {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = patience
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	q := NewQueue(r.log(), 1<<20, patience)
	s := &Server{Listener: Limit(l, 16), Handler: NewHTTP(cfg, q), Queue: q, Timeout: cfg.Timeout, Drain: patience, Logger: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { _ = stop() })
	return l.Addr().String(), stop
}

// The end finishes what was accepted: requests whose transaction is on its way get their 200, and later ones no connection.
func TestStopFinishes(t *testing.T) {
	r := newRig(t)
	hold, started := make(chan struct{}), make(chan struct{})
	var begun sync.Once
	r.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if c.API == simbroker.Produce {
			begun.Do(func() { close(started) })
			<-hold
		}
		return simbroker.Action{}
	})
	address, stop := serve(t, r, HTTPConfig{})
	codes := make(chan int, 1)
	go func() {
		req, err := http.NewRequest("POST", "http://"+address+"/", strings.NewReader(`1`))
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set(DefaultIDHeader, "k")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			codes <- 0
			return
		}
		_ = resp.Body.Close()
		codes <- resp.StatusCode
	}()
	<-started
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			break // it listens no more: the end has begun
		}
		_ = conn.Close()
		if time.Now().After(deadline) {
			t.Fatal("it still listens")
		}
	}
	close(hold)
	if code := <-codes; code != 200 {
		t.Errorf("the accepted request: %d", code)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if n := r.counts(); n["k/0"] != 1 {
		t.Errorf("%v", n)
	}
}

// Clients that break off, send without end or lie about the length leave nothing behind: no record, no room that is taken.
func TestBrokenClients(t *testing.T) {
	r := newRig(t)
	address, stop := serve(t, r, HTTPConfig{MaxBody: 100_000})
	head := "POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\n"
	for name, c := range map[string]struct{ request, want string }{
		"breaks off":       {head + "Content-Length: 10\r\n\r\n[1,", ""},
		"says too much":    {head + "Content-Length: 100001\r\n\r\n", "413"},
		"chunks no end":    {head + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("2000\r\n"+strings.Repeat("1", 0x2000)+"\r\n", 20), "413"},
		"negative length":  {head + "Content-Length: -1\r\n\r\n", "400"},
		"a long header":    {"POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: " + strings.Repeat("k", 60_000) + "\r\n\r\n", "431"},
		"no HTTP":          {"hello\r\n\r\n", "400"},
		"control in a key": {"POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: a\x01b\r\nContent-Length: 1\r\n\r\n1", "400"},
	} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, c.request) // it may be refused in its middle
		if c.want == "" {
			_ = conn.(*net.TCPConn).CloseWrite()
		}
		var b [256]byte
		n, _ := conn.Read(b[:])
		if !strings.Contains(string(b[:n]), c.want) {
			t.Errorf("%s: %q, want %s", name, b[:n], c.want)
		}
		_ = conn.Close()
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if n := r.lines(); len(n) != 0 {
		t.Errorf("%d records", len(n))
	}
}

// The end of a queue writes what waits, behind a transaction that is on its way.
func TestQueueEnds(t *testing.T) {
	r := newRig(t)
	hold, started := make(chan struct{}), make(chan struct{})
	var begun sync.Once
	r.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if c.API == simbroker.Produce {
			begun.Do(func() { close(started) })
			<-hold
		}
		return simbroker.Action{}
	})
	q := NewQueue(r.log(), 1<<20, patience)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- q.Run(ctx) }()
	answers := make(chan error, 2)
	appending := func(id string) {
		room, err := q.Reserve(1)
		if err != nil {
			t.Error(err)
			return
		}
		go func() { answers <- q.Append(context.Background(), []Record{{ID: record.StringID(id)}}, room) }()
	}
	appending("a")
	<-started
	appending("b")
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		q.mu.Lock()
		n := len(q.waiting)
		q.mu.Unlock()
		if n == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the second one does not wait")
		}
	}
	cancel()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, err := q.Reserve(1); errors.Is(err, ErrStopping) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it still takes records")
		}
	}
	close(hold)
	for range 2 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if err := <-ended; err != nil || len(r.counts()) != 2 {
		t.Errorf("%v, %v", err, r.counts())
	}
}
