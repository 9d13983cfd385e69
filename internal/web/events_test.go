package web

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// serve serves the handler until the test ends and returns its address.
func serve(t *testing.T, h http.Handler) (address string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l.Addr().String(), serveOn(t, l, h)
}

func serveOn(t *testing.T, l net.Listener, h http.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, h, slog.New(slog.DiscardHandler)) }()
	stop = func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			ended <- nil
		case <-time.After(30 * time.Second):
			t.Fatal("the server does not end")
		}
	}
	t.Cleanup(stop)
	return stop
}

// waitFor polls a condition that must come true.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain: ", what)
		}
	}
}

func TestEvents(t *testing.T) {
	h := handlerOf(t, Entry{Name: "bills", Pipeline: fake{running()}, Topology: graph()})
	h.interval = 10 * time.Millisecond
	address, stop := serve(t, h)
	resp, err := http.Get("http://" + address + "/api/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if kind := resp.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Error(kind)
	}
	lines := bufio.NewScanner(resp.Body)
	seen := 0
	for seen < 3 && lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		seen++
		var e Event
		if err := json.Unmarshal([]byte(data), &e); err != nil || len(e.Pipelines) != 1 || e.Pipelines[0].Lag != 7 {
			t.Fatalf("%v %s", err, data)
		}
	}
	if seen != 3 {
		t.Fatalf("%d events: %v", seen, lines.Err())
	}
	// The server ends the stream as a whole answer; one that it had to cut off would end in an error.
	stop()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Errorf("the stream was cut off: %v", err)
	}
}

// The limits of short answers are not those of a stream: it outlives the time that a request may take to be read.
func TestAStreamOutlivesTheServersLimits(t *testing.T) {
	h := handlerOf(t)
	h.interval = 100 * time.Millisecond
	address, _ := serve(t, h)
	resp, err := http.Get("http://" + address + "/api/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for end := time.Now().Add(headerTimeout + time.Second); time.Now().Before(end); {
		if !lines.Scan() {
			t.Fatalf("the stream ended: %v", lines.Err())
		}
	}
}

func TestAStreamEndsWithItsClient(t *testing.T) {
	h := handlerOf(t)
	h.interval = time.Hour
	address, _ := serve(t, h)
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/api/v1/events", nil)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the stream is counted", func() bool { return h.streams.Load() == 1 })
	cancel()
	_ = resp.Body.Close()
	waitFor(t, "the stream ends", func() bool { return h.streams.Load() == 0 })
}

// tight is a listener whose connections have room for a few events, however much the kernel would give them.
type tight struct{ net.Listener }

const roomForFew = 4 << 10

func (l tight) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return c, c.(*net.TCPConn).SetWriteBuffer(roomForFew)
}

// A client that does not read fills its own connection and nothing else.
func TestAClientThatDoesNotReadBlocksNobody(t *testing.T) {
	h := handlerOf(t, Entry{Name: "bills", Pipeline: fake{running()}})
	h.interval, h.patience = time.Millisecond, 500*time.Millisecond
	began, ended := make(chan struct{}), make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, tight{l}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(began)
		h.ServeHTTP(w, r)
		close(ended)
	}))
	deaf, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	if err := deaf.(*net.TCPConn).SetReadBuffer(roomForFew); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(deaf, "GET /api/v1/events HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	await(t, "its stream begins", began)
	for range 20 {
		if w := get(h, "/"); w.Code != http.StatusOK {
			t.Fatal(w.Code)
		}
	}
	await(t, "its stream is given up", ended)
	if n := h.streams.Load(); n != 0 {
		t.Errorf("%d streams are counted", n)
	}
}

// await waits for something that must happen.
func await(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("waited in vain: ", what)
	}
}

func TestStreamsAreLimited(t *testing.T) {
	h := handlerOf(t)
	h.streams.Store(maxStreams)
	w := get(h, "/api/v1/events")
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || h.streams.Load() != maxStreams {
		t.Errorf("%d, %d streams", w.Code, h.streams.Load())
	}
}

// Below a prefix, every link of the page still leads to the handler.
func TestMountedBelowAPrefix(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/ops/streamd/", http.StripPrefix("/ops/streamd", handlerOf(t, Entry{Name: "bills", Pipeline: fake{running()}})))
	server := httptest.NewServer(mux)
	defer server.Close()
	resp, err := http.Get(server.URL + "/ops/streamd") // the mux adds the slash
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, _ := io.ReadAll(resp.Body)
	links := 0
	for _, part := range strings.FieldsFunc(string(page), func(r rune) bool { return r == '"' }) {
		if !strings.HasPrefix(part, "static/") && !strings.HasPrefix(part, "api/") && part != "metrics" && part != "version" {
			continue
		}
		links++
		target, err := resp.Request.URL.Parse(part)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.Get(target.String())
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", target, answer.Status)
		}
	}
	if links < 6 {
		t.Errorf("%d links in %s", links, page)
	}
}
