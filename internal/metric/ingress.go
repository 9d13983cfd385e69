package metric

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Refusal is why a sender was told no.
type Refusal string

// The reasons.
const (
	RefusedRequest     Refusal = "bad_request" // what was sent cannot be taken: sending it again does not help
	RefusedTooLarge    Refusal = "too_large"
	RefusedBusy        Refusal = "busy"        // too much is waiting already
	RefusedUnavailable Refusal = "unavailable" // Kafka takes nothing
	RefusedStopping    Refusal = "stopping"
	RefusedDoubt       Refusal = "doubt" // whether it was written is not known
)

func refusals() []Refusal {
	return []Refusal{RefusedRequest, RefusedTooLarge, RefusedBusy, RefusedUnavailable, RefusedStopping, RefusedDoubt}
}

// IngressCatalogue returns the metrics of sources outside of Kafka. A pipeline without one shows none of them.
func IngressCatalogue() []Def {
	return []Def{
		{Name: "streamd_ingress_records_total", Type: Counter, Help: "Records that stand in the source's topic. Counted from the start of the process.", Labels: []string{"source"}},
		{Name: "streamd_ingress_bytes_total", Type: Counter, Help: "Bytes of their values.", Labels: []string{"source"}},
		{Name: "streamd_ingress_refused_total", Type: Counter, Help: "Requests and lines that were refused, by reason.", Labels: []string{"source", "reason"}},
		{Name: "streamd_ingress_commit_duration_seconds", Type: Histogram, Help: "Time from the first attempt to write a batch until Kafka had it.", Labels: []string{"source"}, Buckets: commitBuckets()},
		{Name: "streamd_ingress_failing", Type: Gauge, Help: "1 while Kafka takes nothing from the source, else 0.", Labels: []string{"source"}},
		{Name: "streamd_ingress_files", Type: Gauge, Help: "Files that the source reads.", Labels: []string{"source"}},
		{Name: "streamd_ingress_file_lag_bytes", Type: Gauge, Help: "Bytes of its files that were not read yet, the last part of a line that has no end yet left out.", Labels: []string{"source"}},
		{Name: "streamd_ingress_long_lines_total", Type: Counter, Help: "Lines that were passed over since they are too long.", Labels: []string{"source"}},
		{Name: "streamd_ingress_table_reading", Type: Gauge, Help: "1 while this process reads the table, 0 while another one does or the database is away.", Labels: []string{"source"}},
		{Name: "streamd_ingress_table_lag_numbers", Type: Gauge, Help: "Numbers that the table has given out beyond those that were read, also of rows that were rolled back or deleted.", Labels: []string{"source"}},
		{Name: "streamd_ingress_table_undecided_seconds", Type: Gauge, Help: "How long rows have waited, so far, until it is decided that none with a lower number comes.", Labels: []string{"source"}},
		{Name: "streamd_ingress_table_failing", Type: Gauge, Help: "1 while the table cannot be read, else 0.", Labels: []string{"source"}},
		{Name: "streamd_ingress_queued_bytes", Type: Gauge, Help: "Bytes of requests and lines that are being read or wait for Kafka.", Labels: []string{"source"}},
	}
}

// Ingress holds the metrics of the sources of one pipeline. Its methods may be called from any goroutine.
type Ingress struct {
	counters map[string]*prometheus.CounterVec
	gauges   map[string]*prometheus.GaugeVec
	commits  *prometheus.HistogramVec
}

// Source is what brings records in.
type Source struct {
	Name  string
	Files bool // it reads files
	Table bool // it reads a table
}

// has is whether a gauge says something of the source. One that is 0 for lack of a table would be a table that nobody reads.
func (s Source) has(gauge string) bool {
	switch {
	case strings.HasPrefix(gauge, "streamd_ingress_file"):
		return s.Files
	case strings.HasPrefix(gauge, "streamd_ingress_table_"):
		return s.Table
	}
	return true
}

// NewIngress makes the metrics of a pipeline's sources, each with those of its children that it has at 0, and registers them, labelled
// pipeline=name. A nil registerer registers nothing.
func NewIngress(r prometheus.Registerer, pipeline string, sources []Source) (*Ingress, error) {
	in := &Ingress{counters: map[string]*prometheus.CounterVec{}, gauges: map[string]*prometheus.GaugeVec{}}
	labels := prometheus.Labels{"pipeline": pipeline}
	var all []prometheus.Collector
	for _, d := range IngressCatalogue() {
		switch d.Type {
		case Counter:
			v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.Name, Help: d.Help, ConstLabels: labels}, d.Labels)
			in.counters[d.Name], all = v, append(all, v)
		case Gauge:
			v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: d.Name, Help: d.Help, ConstLabels: labels}, d.Labels)
			in.gauges[d.Name], all = v, append(all, v)
		default:
			in.commits = newHistogram(d, labels)
			all = append(all, in.commits)
		}
	}
	for _, s := range sources {
		in.Committed(s.Name, 0, 0, -1)
		in.counters["streamd_ingress_long_lines_total"].WithLabelValues(s.Name)
		for _, reason := range refusals() {
			in.counters["streamd_ingress_refused_total"].WithLabelValues(s.Name, string(reason))
		}
		for name, g := range in.gauges {
			if s.has(name) {
				g.WithLabelValues(s.Name)
			}
		}
	}
	if r == nil {
		return in, nil
	}
	for _, c := range all {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("metric: registering the metrics of the sources of %q: %w", pipeline, err)
		}
	}
	return in, nil
}

// Committed counts what a transaction has written; took < 0 is not observed.
func (in *Ingress) Committed(source string, records, bytes int, took time.Duration) {
	in.counters["streamd_ingress_records_total"].WithLabelValues(source).Add(float64(records))
	in.counters["streamd_ingress_bytes_total"].WithLabelValues(source).Add(float64(bytes))
	if h := in.commits.WithLabelValues(source); took >= 0 {
		h.Observe(took.Seconds())
	}
}

// Refused counts a refusal.
func (in *Ingress) Refused(source string, why Refusal) {
	in.counters["streamd_ingress_refused_total"].WithLabelValues(source, string(why)).Inc()
}

// Failing says whether Kafka takes nothing from the source.
func (in *Ingress) Failing(source string, failing bool) {
	in.gauges["streamd_ingress_failing"].WithLabelValues(source).Set(truth(failing))
}

// Files says how many files are read, and how much is left of them.
func (in *Ingress) Files(source string, n int, lag int64) {
	in.gauges["streamd_ingress_files"].WithLabelValues(source).Set(float64(n))
	in.gauges["streamd_ingress_file_lag_bytes"].WithLabelValues(source).Set(float64(lag))
}

// Table says whether this process reads the table, how many numbers are left, and how long rows have waited to be decided.
func (in *Ingress) Table(source string, reading bool, lag int64, undecided time.Duration) {
	in.gauges["streamd_ingress_table_reading"].WithLabelValues(source).Set(truth(reading))
	in.gauges["streamd_ingress_table_lag_numbers"].WithLabelValues(source).Set(float64(lag))
	in.gauges["streamd_ingress_table_undecided_seconds"].WithLabelValues(source).Set(undecided.Seconds())
}

// TableFailing says whether the table cannot be read.
func (in *Ingress) TableFailing(source string, failing bool) {
	in.gauges["streamd_ingress_table_failing"].WithLabelValues(source).Set(truth(failing))
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// LongLine counts a line that was passed over.
func (in *Ingress) LongLine(source string) {
	in.counters["streamd_ingress_long_lines_total"].WithLabelValues(source).Inc()
}

// Queued says how much waits.
func (in *Ingress) Queued(source string, bytes int64) {
	in.gauges["streamd_ingress_queued_bytes"].WithLabelValues(source).Set(float64(bytes))
}

// SourceFigures are the metrics of one source, as they are now.
type SourceFigures struct {
	Records, Bytes, LongLines uint64
	Refused                   map[string]uint64 // by reason, those that happened
	Queued                    int64
	Files                     int
	FileLag                   int64
	TableReading              bool
	TableLag                  int64
	TableUndecided            float64 // seconds
}

// Read returns the figures of a source that NewIngress was given: who shows them and who scrapes them see the same.
func (in *Ingress) Read(s Source) SourceFigures {
	counter := func(name string, labels ...string) uint64 {
		return uint64(value(in.counters[name].WithLabelValues(append([]string{s.Name}, labels...)...)))
	}
	gauge := func(name string) float64 {
		if !s.has(name) {
			return 0
		}
		return value(in.gauges[name].WithLabelValues(s.Name))
	}
	f := SourceFigures{
		Records: counter("streamd_ingress_records_total"), Bytes: counter("streamd_ingress_bytes_total"), LongLines: counter("streamd_ingress_long_lines_total"),
		Refused: map[string]uint64{}, Queued: int64(gauge("streamd_ingress_queued_bytes")),
		Files: int(gauge("streamd_ingress_files")), FileLag: int64(gauge("streamd_ingress_file_lag_bytes")),
		TableReading: gauge("streamd_ingress_table_reading") == 1, TableLag: int64(gauge("streamd_ingress_table_lag_numbers")),
		TableUndecided: gauge("streamd_ingress_table_undecided_seconds"),
	}
	for _, reason := range refusals() {
		if n := counter("streamd_ingress_refused_total", string(reason)); n > 0 {
			f.Refused[string(reason)] = n
		}
	}
	return f
}

// value is that of a counter or a gauge.
func value(m prometheus.Metric) float64 {
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		return 0 // neither kind can fail
	}
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}
