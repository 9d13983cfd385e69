package web

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/streamd/streamd/internal/ingress"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/topology"
)

//go:embed static
var static embed.FS

// policy keeps a page harmless: it loads only its own style and scripts, asks only its own server, and
// is not framed.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// Pipeline is a running pipeline as this package sees it. processor.App is one.
type Pipeline interface {
	// Status is a snapshot; it must not wait for the pipeline.
	Status() processor.Status
}

// Graph draws a topology in a format: text, mermaid, dot or json.
type Graph func(format string) (string, error)

// Entry is one pipeline of the process.
type Entry struct {
	Name     string
	Pipeline Pipeline
	Graph    Graph    // nil: none
	Formats  []string // that Graph knows, as the page links to them
	// Topology is what the page draws. Without it there is no drawing, and no rate of what comes in.
	Topology topology.Graph
	// Sources are those outside of Kafka; nil: there are none. It must not wait.
	Sources func() []ingress.Status
	Config  []Setting // shown as it is: it must hold no secret
}

// Setting is one line of a pipeline's configuration.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Version is the build of the process.
type Version struct {
	Version   string `json:"version"`
	Revision  string `json:"revision,omitempty"`
	GoVersion string `json:"go"`
}

// Config says what a handler shows. It must not be changed afterwards.
type Config struct {
	Version   Version
	Pipelines []Entry             // in the order of the page
	Gatherer  prometheus.Gatherer // nil: no /metrics
	Logger    *slog.Logger        // nil: nothing is logged
	// Link is the URL of the page that shows a pipeline at the instance with an address (processor.WithAddress), empty if there is none. The
	// address is what somebody in the consumer group says. nil: instances are shown without links.
	Link func(pipeline, address string) string
}

// Handler serves the pages and the API. Safe for concurrent use.
type Handler struct {
	Config
	index    *template.Template
	history  *recorder
	mux      http.Handler
	interval time.Duration // from one event to the next
	patience time.Duration // for a client to take one event
	streams  atomic.Int64  // that are open
	patterns []string      // all routes
}

// routes is a mux that notes its patterns, so that a test can ask for all of them.
type routes struct {
	*http.ServeMux
	h *Handler
}

func (r routes) Handle(pattern string, next http.Handler) {
	r.h.patterns = append(r.h.patterns, pattern)
	r.ServeMux.Handle(pattern, next)
}

func (r routes) HandleFunc(pattern string, next http.HandlerFunc) { r.Handle(pattern, next) }

// New makes the handler. It starts nothing. It fails only if the embedded page is broken.
func New(c Config) (*Handler, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	index, err := template.ParseFS(static, "static/*.html")
	if err != nil {
		return nil, fmt.Errorf("web: the page: %w", err)
	}
	h := &Handler{Config: c, index: index, history: newRecorder(c), interval: sampleInterval, patience: eventTimeout}
	mux := routes{ServeMux: http.NewServeMux(), h: h}
	mux.HandleFunc("GET /{$}", h.page)
	for _, asset := range []string{"style.css", "page.js", "icon.svg"} {
		mux.HandleFunc("GET /static/"+asset, func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, static, "static/"+asset) })
	}
	mux.HandleFunc("GET /livez", h.alive)
	mux.HandleFunc("GET /readyz", h.ready)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { h.json(w, http.StatusOK, h.Version) })
	mux.HandleFunc("GET /api/v1/pipelines", h.list)
	mux.HandleFunc("GET /api/v1/events", h.events)
	mux.HandleFunc("GET /api/v1/pipelines/{name}", h.pipeline(func(w http.ResponseWriter, _ *http.Request, e Entry) {
		h.json(w, http.StatusOK, Status{e.Pipeline.Status(), e.sources()})
	}))
	mux.HandleFunc("GET /api/v1/pipelines/{name}/tasks", h.pipeline(func(w http.ResponseWriter, _ *http.Request, e Entry) {
		h.json(w, http.StatusOK, map[string]any{"tasks": nonNil(e.Pipeline.Status().Tasks)})
	}))
	mux.HandleFunc("GET /api/v1/pipelines/{name}/errors", h.pipeline(func(w http.ResponseWriter, _ *http.Request, e Entry) {
		h.json(w, http.StatusOK, map[string]any{"errors": nonNil(e.Pipeline.Status().Errors)})
	}))
	mux.HandleFunc("GET /api/v1/pipelines/{name}/live", h.pipeline(h.live))
	mux.HandleFunc("GET /api/v1/pipelines/{name}/graph", h.pipeline(h.graph))
	if c.Gatherer != nil {
		// OpenMetrics is what carries exemplars. A collector that fails must not hide all others.
		mux.Handle("GET /metrics", promhttp.HandlerFor(c.Gatherer, promhttp.HandlerOpts{
			EnableOpenMetrics: true,
			ErrorHandling:     promhttp.ContinueOnError,
			ErrorLog:          errorLog{c.Logger},
		}))
	}
	h.mux = secure(mux)
	return h, nil
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

// errorLog tells of a scrape that could not be answered in full.
type errorLog struct{ *slog.Logger }

// Println implements promhttp.Logger.
func (l errorLog) Println(v ...any) { l.Warn("metrics are incomplete", "err", fmt.Sprint(v...)) }

// secure sets the headers that keep a page harmless, and out of caches: assets change with the program.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// Summary is one pipeline in a list.
type Summary struct {
	Name         string          `json:"name"`
	State        processor.State `json:"state"`
	Reason       string          `json:"reason,omitempty"`
	Ready        bool            `json:"ready"`
	Instance     string          `json:"instance"`
	Instances    int             `json:"instances"` // of the whole application; 0: not known yet
	Started      time.Time       `json:"started"`
	Tasks        int             `json:"tasks"`
	TasksRunning int             `json:"tasks_running"`
	Lag          int64           `json:"lag"`     // of all owned partitions
	LagMax       int64           `json:"lag_max"` // of one
	Checked      uint64          `json:"checked"`
	Duplicates   uint64          `json:"duplicates"`
	Committed    uint64          `json:"committed"` // transactions since the start of the process
	Aborted      uint64          `json:"aborted"`
	LastCommit   time.Time       `json:"last_commit"`
	// Sources are those outside of Kafka, as this process reads them.
	Sources []ingress.Status `json:"sources,omitempty"`
}

// Status is what the API answers about a pipeline: what its engine says, and its sources outside of Kafka.
type Status struct {
	processor.Status
	Sources []ingress.Status `json:"sources,omitempty"`
}

func (e Entry) sources() []ingress.Status {
	if e.Sources == nil {
		return nil
	}
	return e.Sources()
}

// summary is the line of a pipeline now.
func (e Entry) summary() Summary {
	s := Summarize(e.Name, e.Pipeline.Status())
	s.Sources = e.sources()
	return s
}

// Summarize makes the line of a pipeline from its status.
func Summarize(name string, s processor.Status) Summary {
	sum := Summary{
		Name: name, State: s.State, Reason: s.Reason, Ready: s.Ready(), Instance: s.Instance, Started: s.Started,
		Tasks: len(s.Tasks), Committed: s.Transactions.Committed, LastCommit: s.Transactions.LastCommit,
	}
	if s.Instances != nil {
		sum.Instances = len(s.Instances.List)
	}
	for _, t := range s.Tasks {
		if t.State == processor.TaskRunning {
			sum.TasksRunning++
		}
		for _, in := range t.Inputs {
			lag := max(in.Lag, 0)
			sum.Lag += lag
			sum.LagMax = max(sum.LagMax, lag)
		}
	}
	for _, o := range s.Operators {
		sum.Checked += o.Counters["dedup/checked"]
		sum.Duplicates += o.Counters["dedup/dup_committed"] + o.Counters["dedup/dup_open"]
	}
	for _, n := range s.Transactions.Aborted {
		sum.Aborted += n
	}
	return sum
}

func (h *Handler) summaries() []Summary {
	out := make([]Summary, 0, len(h.Pipelines))
	for _, e := range h.Pipelines {
		out = append(out, e.summary())
	}
	return out
}

func (h *Handler) page(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	h.history.sample(now, h.interval)
	v := h.view(now, parse(r))
	code := http.StatusOK
	if v.Asked != "" {
		code = http.StatusNotFound
	}
	var b bytes.Buffer
	if err := h.index.ExecuteTemplate(&b, "index.html", v); err != nil {
		h.Logger.Error("page failed", "err", err)
		http.Error(w, "the page failed, see the log", http.StatusInternalServerError)
		return
	}
	h.write(w, code, "text/html; charset=utf-8", b.Bytes())
}

// live answers with a pipeline's rates.
func (h *Handler) live(w http.ResponseWriter, _ *http.Request, e Entry) {
	h.history.sample(time.Now(), h.interval)
	for i := range h.Pipelines {
		if h.Pipelines[i].Name == e.Name {
			h.json(w, http.StatusOK, h.history.series[i].view("").live)
		}
	}
}

func (h *Handler) list(w http.ResponseWriter, _ *http.Request) {
	h.json(w, http.StatusOK, map[string]any{"pipelines": h.summaries()})
}

// pipeline finds the pipeline that a request names.
func (h *Handler) pipeline(fn func(http.ResponseWriter, *http.Request, Entry)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		for _, e := range h.Pipelines {
			if e.Name == name {
				fn(w, r, e)
				return
			}
		}
		h.fail(w, http.StatusNotFound, fmt.Sprintf("no pipeline is called %q", name))
	}
}

func (h *Handler) graph(w http.ResponseWriter, r *http.Request, e Entry) {
	format := r.URL.Query().Get("format")
	if format == "" {
		format = "json"
	}
	if e.Graph == nil {
		h.fail(w, http.StatusNotFound, fmt.Sprintf("pipeline %q has no graph", e.Name))
		return
	}
	text, err := e.Graph(format)
	if err != nil {
		h.fail(w, http.StatusBadRequest, err.Error())
		return
	}
	kind := "text/plain; charset=utf-8"
	if format == "json" {
		kind = "application/json"
	}
	h.write(w, http.StatusOK, kind, []byte(text))
}

// alive says that the process answers. It must not depend on a pipeline: a restart helps none that
// restores or waits for a broker.
func (h *Handler) alive(w http.ResponseWriter, _ *http.Request) {
	h.write(w, http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
}

// ready says whether every pipeline runs all its tasks.
func (h *Handler) ready(w http.ResponseWriter, r *http.Request) {
	var lines bytes.Buffer
	code := http.StatusOK
	for _, e := range h.Pipelines {
		s := e.Pipeline.Status()
		mark := "+"
		if !s.Ready() {
			mark, code = "-", http.StatusServiceUnavailable
		}
		fmt.Fprintf(&lines, "[%s]%s %s", mark, e.Name, s.State)
		if s.Reason != "" {
			fmt.Fprintf(&lines, ": %s", s.Reason)
		}
		lines.WriteByte('\n')
	}
	text := []byte("ok\n")
	if code != http.StatusOK {
		text = []byte("not ready\n")
	}
	if r.URL.Query().Has("verbose") {
		text = append(lines.Bytes(), text...)
	}
	h.write(w, code, "text/plain; charset=utf-8", text)
}

func (h *Handler) fail(w http.ResponseWriter, code int, text string) {
	h.json(w, code, map[string]string{"error": text})
}

func (h *Handler) json(w http.ResponseWriter, code int, v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		h.Logger.Error("status could not be encoded", "err", err)
		http.Error(w, "the status could not be encoded, see the log", http.StatusInternalServerError)
		return
	}
	h.write(w, code, "application/json", b.Bytes())
}

// write sends an answer. A client that went away is no news.
func (h *Handler) write(w http.ResponseWriter, code int, kind string, body []byte) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(code)
	_, _ = w.Write(body)
}

// nonNil makes an empty list show as [], not as null.
func nonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
