package page

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

func TestHandlerOfAnApp(t *testing.T) {
	b := topology.New("billing")
	in := topology.From(b, "bills.raw", serde.String(), serde.String(), topology.Name("bills"))
	topology.To(topology.Dedup(in, "unique", topology.Retention(time.Hour)), "bills.unique", serde.String(), serde.String(), topology.Name("publish"))
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	app, err := processor.New(topo, processor.WithBrokers("127.0.0.1:1"), processor.WithStateDir(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	h, err := New(Config{Version: "v1", Pipelines: []Pipeline{{app, topo}}})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/ops/", http.StripPrefix("/ops", h))
	for path, want := range map[string]string{
		"/ops/": "billing", "/ops/?step=unique": "Step unique", "/ops/api/v1/pipelines/billing": `"state": "created"`,
		"/ops/api/v1/pipelines/billing/graph?format=text": "Processor: unique", "/ops/api/v1/pipelines/billing/graph": `"nodes"`,
		"/ops/api/v1/pipelines/billing/graph?format=dot": "not one of",
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: no %s in %s", path, want, w.Body)
		}
		if path == "/ops/" && strings.Contains(w.Body.String(), "graph as dot") {
			t.Error("a link to a format that is not there")
		}
	}
	if _, err := New(Config{Pipelines: []Pipeline{{App: app}}}); err == nil {
		t.Error("no topology is no error")
	}
}
