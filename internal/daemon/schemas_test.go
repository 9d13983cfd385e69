package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/serde/registry/registrytest"
)

// TestSchemasAtTheStart: a schema that is not there ends the start, with the code that says whether another start can help; a registry that is away
// is waited for.
func TestSchemasAtTheStart(t *testing.T) {
	load := func(r *registrytest.Registry) *pipeline.Pipeline {
		t.Helper()
		p, err := pipeline.Load([]byte("version: 1\nname: t\nkafka: {brokers: [\"localhost:9092\"], schema_registry: {url: \""+r.URL+"\"}}\n"+
			"sources: {in: {topic: in}}\nsteps: [{name: out, to: {topic: out, format: avro}}]\n"), pipeline.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct {
		name, words string
		status      int // of every answer; 0: the registry's own
		code        int
	}{
		{"no subject", "no such subject", 0, ExitConfig},
		{"denied", "credentials", http.StatusForbidden, ExitNotAllowed},
		{"away", "within 10ms", http.StatusServiceUnavailable, ExitTemporary},
	} {
		r := registrytest.New(t)
		if c.status != 0 {
			r.Instead(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(c.status) })
		}
		patience := time.Minute
		if c.code == ExitTemporary {
			patience = 10 * time.Millisecond
		}
		err := awaitSchemas(context.Background(), load(r), patience, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), c.words) || ExitCode(err) != c.code {
			t.Errorf("%s: %v, code %d; want %q, %d", c.name, err, ExitCode(err), c.words, c.code)
		}
	}
	r := registrytest.New(t)
	r.Add("out-value", "AVRO", `"int"`)
	asked := make(chan struct{}, 100)
	r.Instead(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		asked <- struct{}{}
	})
	done, p := make(chan error, 1), load(r)
	go func() {
		done <- awaitSchemas(context.Background(), p, time.Minute, slog.New(slog.DiscardHandler))
	}()
	<-asked
	r.Down(false)
	if err := <-done; err != nil {
		t.Errorf("after the registry came back: %v", err)
	}
	r.Down(true)
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if err := awaitSchemas(ctx, load(r), time.Minute, slog.New(slog.DiscardHandler)); !errors.Is(err, context.Canceled) && !errors.Is(err, ErrNotReachable) {
		t.Errorf("a start that is stopped: %v", err)
	}
}
