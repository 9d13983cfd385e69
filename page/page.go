package page

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamd/streamd/internal/web"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/topology"
)

// Pipeline is one that is shown. Both fields are required.
type Pipeline struct {
	App      *processor.App
	Topology *topology.Topology // that the App runs
}

// Config says what is shown.
type Config struct {
	Version   string // of the program; may be empty
	Pipelines []Pipeline
	// Gatherer is where the Apps' metrics are registered (processor.WithRegisterer). nil: no /metrics, and no
	// percentiles on the page.
	Gatherer prometheus.Gatherer
	Logger   *slog.Logger // nil: nothing is logged
	// Link is the URL of the page that shows a pipeline at another instance, by the address that the instance gives itself
	// (processor.WithAddress); empty: it has none. The address is text that whoever is in the consumer group may have written.
	// nil: instances are shown without links.
	Link func(pipeline, address string) string
}

// Handler is the http.Handler. Safe for concurrent use.
type Handler struct{ web *web.Handler }

// New makes a handler. It starts nothing.
func New(c Config) (*Handler, error) {
	inner := web.Config{Version: web.Version{Version: c.Version}, Gatherer: c.Gatherer, Logger: c.Logger, Link: c.Link}
	for i, p := range c.Pipelines {
		if p.App == nil || p.Topology == nil {
			return nil, fmt.Errorf("page: pipeline %d: it needs an App and its Topology", i)
		}
		inner.Pipelines = append(inner.Pipelines, web.Entry{
			Name: p.Topology.Name(), Pipeline: p.App, Topology: p.Topology.Graph(), Formats: []string{"text", "json"},
			Graph: func(format string) (string, error) { return draw(p.Topology, format) },
		})
	}
	h, err := web.New(inner)
	if err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	return &Handler{h}, nil
}

func draw(t *topology.Topology, format string) (string, error) {
	switch format {
	case "text":
		return t.Describe(), nil
	case "json":
		out, err := json.MarshalIndent(t.Graph(), "", "  ")
		return string(out) + "\n", err
	}
	return "", fmt.Errorf("page: format %q is not one of text, json", format)
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.web.ServeHTTP(w, r) }

// Run takes a sample every two seconds until ctx ends, so that rates and curves are there when somebody looks.
// Without it they begin with the first one who does.
func (h *Handler) Run(ctx context.Context) { h.web.Run(ctx) }
