package metric

import (
	"context"
	"log/slog"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
)

// Process holds the metrics of a streamd process.
type Process struct {
	build    prometheus.Gauge
	messages *prometheus.CounterVec
	free     *prometheus.Desc
	size     *prometheus.Desc
	disk     func() (free, size uint64, err error)
}

// NewProcess registers the metrics of a streamd process: its build, the log lines that go through
// LogHandler, and the file system of its data directory. A disk that cannot be asked shows nothing.
func NewProcess(r prometheus.Registerer, version, revision string, disk func() (free, size uint64, err error)) (*Process, error) {
	def := map[string]Def{}
	for _, d := range ProcessCatalogue() {
		def[d.Name] = d
	}
	free, size := def["streamd_data_dir_free_bytes"], def["streamd_data_dir_size_bytes"]
	messages, build := def["streamd_log_messages_total"], def["streamd_build_info"]
	p := &Process{
		free:     prometheus.NewDesc(free.Name, free.Help, nil, nil),
		size:     prometheus.NewDesc(size.Name, size.Help, nil, nil),
		disk:     disk,
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{Name: messages.Name, Help: messages.Help}, messages.Labels),
		build: prometheus.NewGauge(prometheus.GaugeOpts{Name: build.Name, Help: build.Help, ConstLabels: prometheus.Labels{
			"version": version, "revision": revision, "goversion": runtime.Version(),
		}}),
	}
	p.build.Set(1)
	for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		p.messages.WithLabelValues(levelName(l))
	}
	return p, r.Register(p)
}

// Describe implements prometheus.Collector.
func (p *Process) Describe(ch chan<- *prometheus.Desc) {
	p.build.Describe(ch)
	p.messages.Describe(ch)
	ch <- p.free
	ch <- p.size
}

// Collect implements prometheus.Collector.
func (p *Process) Collect(ch chan<- prometheus.Metric) {
	p.build.Collect(ch)
	p.messages.Collect(ch)
	if free, size, err := p.disk(); err == nil {
		ch <- prometheus.MustNewConstMetric(p.free, prometheus.GaugeValue, float64(free))
		ch <- prometheus.MustNewConstMetric(p.size, prometheus.GaugeValue, float64(size))
	}
}

// LogHandler returns a handler that counts what next handles.
func (p *Process) LogHandler(next slog.Handler) slog.Handler {
	return &countingHandler{Handler: next, messages: p.messages}
}

type countingHandler struct {
	slog.Handler
	messages *prometheus.CounterVec
}

// Handle counts the line, then hands it on.
func (h *countingHandler) Handle(ctx context.Context, r slog.Record) error {
	h.messages.WithLabelValues(levelName(r.Level)).Inc()
	return h.Handler.Handle(ctx, r)
}

// WithAttrs keeps counting.
func (h *countingHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return &countingHandler{Handler: h.Handler.WithAttrs(a), messages: h.messages}
}

// WithGroup keeps counting.
func (h *countingHandler) WithGroup(name string) slog.Handler {
	return &countingHandler{Handler: h.Handler.WithGroup(name), messages: h.messages}
}

// levelName maps levels between the named ones to the one below, so that the label stays bounded.
func levelName(l slog.Level) string {
	switch {
	case l < slog.LevelInfo:
		return "debug"
	case l < slog.LevelWarn:
		return "info"
	case l < slog.LevelError:
		return "warn"
	}
	return "error"
}
