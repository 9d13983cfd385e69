package tracing

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	wire "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
)

// receiver takes spans as a collector does.
type receiver struct {
	mu    sync.Mutex // guards what follows
	spans []*wire.Span
	about map[string]string
	path  string
}

func receive(t *testing.T) (*receiver, string) {
	t.Helper()
	r := &receiver{about: map[string]string{}}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return r, s.URL
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	var x collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &x)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.path = req.URL.Path
	for _, of := range x.ResourceSpans {
		for _, a := range of.Resource.Attributes {
			r.about[a.Key] = a.Value.GetStringValue()
		}
		for _, s := range of.ScopeSpans {
			r.spans = append(r.spans, s.Spans...)
		}
	}
}

func text(s *wire.Span, key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

func none(string) (string, bool) { return "", false }

// TestSpans: what a collector gets of transactions.
func TestSpans(t *testing.T) {
	r, address := receive(t)
	x, err := New(t.Context(), Config{Pipeline: "bills", Version: "v1", Endpoint: address, LookupEnv: none})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Unix(1000, 0)
	traced := processor.RecordTrace{
		TraceID: [16]byte{1}, Parent: [8]byte{2}, Span: [8]byte{3}, Flags: 1, State: "a=b", Task: "in/0", ID: "b-1", Begin: begin.Add(time.Millisecond), Outputs: 1,
		Position: record.Position{TopicPartition: record.TopicPartition{Topic: "bills.raw", Partition: 4}, Offset: 7},
	}
	failed := traced
	failed.Span, failed.Err, failed.State = [8]byte{4}, "no number", "=,=broken"
	x.Transaction(&processor.TransactionTrace{Begin: begin, End: begin.Add(time.Second), Records: 5, Traced: []processor.RecordTrace{traced, failed}, Untold: 3})
	x.Transaction(&processor.TransactionTrace{Begin: begin, End: begin.Add(time.Second), Records: 5, Traced: []processor.RecordTrace{traced}, Aborted: "fenced"})
	if err := x.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.path != "/v1/traces" || r.about["service.name"] != "streamd" || r.about["service.version"] != "v1" {
		t.Errorf("path %q, resource %v", r.path, r.about)
	}
	var records, transactions []*wire.Span
	for _, s := range r.spans {
		if s.Name == "transaction bills" {
			transactions = append(transactions, s)
		} else {
			records = append(records, s)
		}
	}
	if len(records) != 2 || len(transactions) != 2 {
		t.Fatalf("%d spans of records, %d of transactions, want 2 and 2", len(records), len(transactions))
	}
	done := transactions[0]
	if len(done.ParentSpanId) != 0 || len(done.Links) != 1 || hex.EncodeToString(done.Links[0].SpanId) != "0300000000000000" || done.Status.GetCode() != wire.Status_STATUS_CODE_UNSET {
		t.Errorf("the committed transaction: %v", done)
	}
	if s := transactions[1]; s.Status.GetCode() != wire.Status_STATUS_CODE_ERROR || s.Status.Message != "aborted: fenced" || len(s.Links) != 1 {
		t.Errorf("the aborted transaction: %v", s)
	}
	s := records[0]
	if hex.EncodeToString(s.TraceId) != "01000000000000000000000000000000" || hex.EncodeToString(s.SpanId) != "0300000000000000" || hex.EncodeToString(s.ParentSpanId) != "0200000000000000" {
		t.Errorf("the record's place in its trace: %v", s)
	}
	if s.Name != "process bills.raw" || s.TraceState != "a=b" || s.Kind != wire.Span_SPAN_KIND_CONSUMER || s.StartTimeUnixNano != uint64(traced.Begin.UnixNano()) ||
		s.EndTimeUnixNano != uint64(begin.Add(time.Second).UnixNano()) || text(s, "messaging.destination.partition.id") != "4" || text(s, "messaging.message.id") != "b-1" {
		t.Errorf("the record: %v", s)
	}
	if len(s.Links) != 1 || string(s.Links[0].SpanId) != string(done.SpanId) {
		t.Errorf("the record is not linked with its transaction: %v", s.Links)
	}
	if s := records[1]; s.Status.GetCode() != wire.Status_STATUS_CODE_ERROR || s.Status.Message != "no number" || s.TraceState != "" {
		t.Errorf("the record that failed: %v", s)
	}
}

// TestSampling: transactions by the share, records by their trace.
func TestSampling(t *testing.T) {
	r, address := receive(t)
	x, err := New(t.Context(), Config{Pipeline: "p", Endpoint: address, Sample: 1e-6, LookupEnv: none})
	if err != nil {
		t.Fatal(err)
	}
	for i := range byte(100) {
		x.Transaction(&processor.TransactionTrace{Traced: []processor.RecordTrace{{TraceID: [16]byte{1}, Parent: [8]byte{1}, Span: [8]byte{2, i}, Flags: 1}}})
	}
	if err := x.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.spans); n < 100 || n > 102 {
		t.Errorf("%d spans, want those of 100 records and next to none of transactions", n)
	}
}

// TestConfig: off unless somebody wants it, and never another thing than what was asked for.
func TestConfig(t *testing.T) {
	for _, c := range []struct {
		name, endpoint string
		env            map[string]string
		on             bool
		problem        string
	}{
		{name: "nothing said"},
		{name: "file", endpoint: "http://localhost:1", on: true},
		{name: "environment", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1"}, on: true},
		{name: "environment, traces", env: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:1/x"}, on: true},
		{name: "disabled", endpoint: "http://localhost:1", env: map[string]string{"OTEL_SDK_DISABLED": "TRUE"}},
		{name: "no exporter", endpoint: "http://localhost:1", env: map[string]string{"OTEL_TRACES_EXPORTER": "none"}},
		{name: "another exporter", endpoint: "http://localhost:1", env: map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, problem: "zipkin"},
		{name: "grpc", endpoint: "http://localhost:1", env: map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, problem: "http/protobuf only"},
		{name: "no address", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4317"}, problem: "want an address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, err := New(t.Context(), Config{Endpoint: c.endpoint, LookupEnv: func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }})
			if (x != nil) != c.on || (err != nil) != (c.problem != "") || err != nil && (!errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.problem)) {
				t.Errorf("tracer %v, error %v", x != nil, err)
			}
		})
	}
	for from, want := range map[string]string{"http://a:1": "http://a:1/v1/traces", "http://a:1/": "http://a:1/v1/traces", "https://a/api/otlp": "https://a/api/otlp"} {
		if got := tracesURL(from); got != want {
			t.Errorf("spans to %q go to %q, want %q", from, got, want)
		}
	}
}

// TestReceiverIsGone: transactions do not wait for it, and the end waits no longer than it may.
func TestReceiverIsGone(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	x, err := New(t.Context(), Config{Pipeline: "p", Endpoint: s.URL, LookupEnv: none})
	if err != nil {
		t.Fatal(err)
	}
	for range 5000 { // more than the queue holds
		x.Transaction(&processor.TransactionTrace{Records: 1})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// What could not be sent may be told here or to the handler of OpenTelemetry: only that it ends is sure.
	if err := x.Close(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("the end: %v", err)
	}
}
