package web

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamd/streamd/processor"
)

type fake struct{ s processor.Status }

func (f fake) Status() processor.Status { return f.s }

func running() processor.Status {
	return processor.Status{
		Pipeline: "bills", State: processor.Running, Instance: "i1",
		Tasks: []processor.TaskStatus{
			{Name: "bills/0", State: processor.TaskRunning, Inputs: []processor.InputStatus{{Topic: "bills.raw", Lag: 3}}},
			{Name: "bills/1", State: processor.TaskRunning, Inputs: []processor.InputStatus{{Topic: "bills.raw", Lag: 4}, {Topic: "x", Lag: -1}}},
		},
		Operators:    []processor.OperatorStatus{{Name: "unique", Kind: "dedup", Counters: map[string]uint64{"dedup/checked": 9, "dedup/dup_committed": 2, "dedup/dup_open": 1}}},
		Transactions: processor.TransactionStatus{Committed: 5, Aborted: map[string]uint64{"rebalance": 2, "timeout": 1}},
	}
}

func failed() processor.Status {
	return processor.Status{Pipeline: "<b>", State: processor.Failed, Reason: `no "topic" <script>alert(1)</script>`}
}

func handlerOf(t *testing.T, entries ...Entry) *Handler {
	t.Helper()
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "test_things_total", Help: "Things."})
	reg.MustRegister(c)
	h, err := New(Config{Version: Version{Version: "v1", GoVersion: "go1"}, Pipelines: entries, Gatherer: reg})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func get(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestEndpoints(t *testing.T) {
	graph := func(format string) (string, error) {
		if format != "json" && format != "dot" {
			return "", errors.New("no such format")
		}
		return `{"format": "` + format + `"}`, nil
	}
	h := handlerOf(t, Entry{Name: "bills", Pipeline: fake{running()}, Graph: graph}, Entry{Name: "other", Pipeline: fake{running()}})
	for _, c := range []struct {
		path, want string
		code       int
	}{
		{"/livez", "ok", 200},
		{"/readyz", "ok", 200},
		{"/readyz?verbose", "[+]bills running", 200},
		{"/version", `"version": "v1"`, 200},
		{"/metrics", "test_things_total 0", 200},
		{"/api/v1/pipelines", `"lag": 7`, 200},
		{"/api/v1/pipelines", `"duplicates": 3`, 200},
		{"/api/v1/pipelines", `"aborted": 3`, 200},
		{"/api/v1/pipelines", `"tasks_running": 2`, 200},
		{"/api/v1/pipelines/bills", `"kind": "dedup"`, 200},
		{"/api/v1/pipelines/bills/tasks", `"bills/1"`, 200},
		{"/api/v1/pipelines/bills/errors", `"errors": []`, 200},
		{"/api/v1/pipelines/bills/graph", `"format": "json"`, 200},
		{"/api/v1/pipelines/bills/graph?format=dot", `"format": "dot"`, 200},
		{"/api/v1/pipelines/bills/graph?format=png", `no such format`, 400},
		{"/api/v1/pipelines/other/graph", `has no graph`, 404},
		{"/api/v1/pipelines/nope", `no pipeline is called`, 404},
		{"/nope", "", 404},
		{"/api/v1/pipelines/bills/live", `"duplicate_ratio"`, 200},
		{"/", "bills running", 200},
		{"/?pipeline=other", "other running", 200},
		{"/?pipeline=nope", "No pipeline is called “nope”", 404},
		{"/static/style.css", "font", 200},
		{"/static/page.js", "EventSource", 200},
		{"/static/icon.svg", "<svg", 200},
		{"/static/index.html", "", 404},
		{"/static/", "", 404},
	} {
		w := get(h, c.path)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %d, want %d with %q:\n%s", c.path, w.Code, c.code, c.want, w.Body)
		}
		if strings.HasPrefix(c.path, "/api") && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s: not JSON: %s", c.path, w.Body)
		}
		if csp := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") {
			t.Errorf("%s: policy %q", c.path, csp)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/livez", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
	w = get(h, "/metrics", "Accept", "application/openmetrics-text; version=1.0.0")
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "application/openmetrics-text") || !strings.HasSuffix(w.Body.String(), "# EOF\n") {
		t.Errorf("OpenMetrics: %s\n%s", w.Header().Get("Content-Type"), w.Body)
	}
}

// A process whose pipeline does not run is alive, not ready, and says why; and what it says is text.
func TestAPipelineThatFailed(t *testing.T) {
	h := handlerOf(t, Entry{Name: "bills", Pipeline: fake{running()}}, Entry{Name: "<b>", Pipeline: fake{failed()}})
	if w := get(h, "/livez"); w.Code != 200 {
		t.Errorf("livez: %d", w.Code)
	}
	if w := get(h, "/readyz"); w.Code != 503 || w.Body.String() != "not ready\n" {
		t.Errorf("readyz: %d %s", w.Code, w.Body)
	}
	if w := get(h, "/readyz?verbose"); w.Code != 503 || !strings.Contains(w.Body.String(), "[-]<b> error: no \"topic\"") {
		t.Errorf("readyz?verbose: %d %s", w.Code, w.Body)
	}
	page := get(h, "/?pipeline=%3Cb%3E").Body.String()
	if strings.Contains(page, "<script>") || strings.Contains(page, "<b>") || !strings.Contains(page, "&lt;script&gt;") {
		t.Errorf("the page does not escape:\n%s", page)
	}
}

// The page loads nothing from elsewhere, holds no script or style of its own, and every link is relative.
func TestThePageIsWholeByItself(t *testing.T) {
	for _, page := range []string{get(handlerOf(t), "/").Body.String(), get(handlerOf(t, Entry{Name: "bills", Pipeline: fake{running()}}), "/").Body.String()} {
		for _, bad := range []string{"http://", "https://", "<script>", "<style", "style=", "onclick", `href="/`, `src="/`, `action="/`} {
			if strings.Contains(page, bad) {
				t.Errorf("the page contains %s:\n%s", bad, page)
			}
		}
	}
	if page := get(handlerOf(t), "/").Body.String(); !strings.Contains(page, "no pipeline") {
		t.Errorf("no word for an empty list:\n%s", page)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, handlerOf(t), slog.New(slog.DiscardHandler)) }()
	resp, err := http.Get("http://" + l.Addr().String() + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(resp.Body); string(body) != "ok\n" {
		t.Errorf("%q", body)
	}
	_ = resp.Body.Close()
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("Serve does not end")
	}
	if _, err := net.DialTimeout("tcp", l.Addr().String(), time.Second); err == nil {
		t.Error("still listening")
	}
	if err := Serve(t.Context(), l, handlerOf(t), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a closed listener is no error")
	}
}

var _ Pipeline = (*processor.App)(nil)
