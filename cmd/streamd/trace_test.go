package main

import (
	"context"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	wire "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// TestTracedRun: a record's trace goes through a running process to a receiver and to whoever reads the output; the output is still what
// verify computes.
func TestTracedRun(t *testing.T) {
	var mu sync.Mutex // guards spans
	spans := map[string]*wire.Span{}
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var x collector.ExportTraceServiceRequest
		if body, err := io.ReadAll(r.Body); err != nil || proto.Unmarshal(body, &x) != nil {
			t.Error("a request is not of OTLP")
		}
		mu.Lock()
		defer mu.Unlock()
		for _, of := range x.ResourceSpans {
			for _, s := range of.ScopeSpans {
				for _, span := range s.Spans {
					spans[hex.EncodeToString(span.SpanId)] = span
				}
			}
		}
	}))
	defer receiver.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
	b, p, _ := running(t)

	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	k, err := kgo.NewClient(kgo.SeedBrokers(b.Address()), kgo.DefaultProduceTopic("in"), kgo.ConsumeTopics("out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	in := &kgo.Record{Key: []byte("traced"), Value: []byte(`{"id":"traced"}`), Headers: []kgo.RecordHeader{{Key: "traceparent", Value: []byte("00-" + trace + "-" + parent + "-01")}}}
	if err := k.ProduceSync(t.Context(), in).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var span string
	for span == "" {
		f := k.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("no output with a trace:\n%s", p.out)
		}
		f.EachRecord(func(r *kgo.Record) {
			for _, h := range r.Headers {
				if rest, ok := strings.CutPrefix(string(h.Value), "00-"+trace+"-"); ok && h.Key == "traceparent" && string(r.Key) == "traced" {
					span, _, _ = strings.Cut(rest, "-")
				}
			}
		})
	}
	waitFor(t, "the span that the output names", func() bool {
		mu.Lock()
		defer mu.Unlock()
		s := spans[span]
		return s != nil && hex.EncodeToString(s.TraceId) == trace && hex.EncodeToString(s.ParentSpanId) == parent && s.Name == "process in"
	})
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := p.ends(t, time.Minute); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, p.out)
	}
	data := p.Args[slices.Index(p.Args, "--data-dir")+1]
	v := start(t, "verify", p.Args[2], "-b", b.Address(), "--data-dir", data)
	if code := v.ends(t, time.Minute); code != 0 || !strings.Contains(v.out.String(), "p: equal") {
		t.Errorf("verify: exit code %d:\n%s", code, v.out)
	}
}
