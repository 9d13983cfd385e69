package metric

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// PartitionLag says whether lag is shown for each partition.
type PartitionLag string

// The modes of PartitionLag.
const (
	// PartitionLagAuto shows it up to maxPartitionSeries owned partitions. Above it all are left out,
	// never a part of them: a sum over a part would look right and be wrong.
	PartitionLagAuto PartitionLag = "auto"
	PartitionLagOn   PartitionLag = "on"
	PartitionLagOff  PartitionLag = "off"
)

const maxPartitionSeries = 200

// AbortReason is why a Kafka transaction was aborted.
type AbortReason string

// The reasons.
const (
	AbortRebalance AbortReason = "rebalance"
	AbortFenced    AbortReason = "fenced"
	AbortProcess   AbortReason = "process"
	AbortProduce   AbortReason = "produce"
	AbortTimeout   AbortReason = "timeout"
	AbortShutdown  AbortReason = "shutdown"
	AbortUnknown   AbortReason = "unknown" // the commit's answer was lost, and it turned out as aborted
)

// SinkError is what became of a failed claim or write of a sink.
type SinkError string

// The kinds.
const (
	SinkRetryable SinkError = "retryable" // tried again
	SinkFatal     SinkError = "fatal"     // the pipeline stopped
)

// CallResult is what came of one attempt to call.
type CallResult string

// The results.
const (
	CallOK      CallResult = "ok"
	CallError   CallResult = "error"
	CallTimeout CallResult = "timeout"
	CallPanic   CallResult = "panic"
)

// Phase is a part of a commit.
type Phase string

// The phases in their order.
const (
	PhaseClaim   Phase = "claim" // at most once: the transaction with the positions
	PhaseAhead   Phase = "ahead" // at least once: the outputs before the transaction
	PhaseFlush   Phase = "flush"
	PhaseOffsets Phase = "offsets"
	PhaseEndTxn  Phase = "end_txn"
	PhaseApply   Phase = "apply"
)

// Set holds the metrics of one pipeline in this process. The methods that count and observe may be
// called from any goroutine; they cost some tens of nanoseconds.
type Set struct {
	registerer prometheus.Registerer // nil: not registered, everything else works
	descs      map[string]*prometheus.Desc
	snapshot   atomic.Pointer[func() Snapshot]
	partitions atomic.Pointer[PartitionLag]
	closed     atomic.Bool
	failed     atomic.Bool

	rebalances   prometheus.Counter
	transactions *prometheus.CounterVec
	aborts       *prometheus.CounterVec

	rebalance prometheus.Histogram
	latency   prometheus.Histogram
	records   prometheus.Histogram
	commit    *prometheus.HistogramVec
	restore   *prometheus.HistogramVec
	lookup    *prometheus.HistogramVec
	age       *prometheus.HistogramVec

	attempts *prometheus.CounterVec
	call     *prometheus.HistogramVec

	sinkRows    *prometheus.CounterVec
	sinkSkipped *prometheus.CounterVec
	sinkErrors  *prometheus.CounterVec
	sinkWrite   *prometheus.HistogramVec

	committed prometheus.Counter
	aborted   prometheus.Counter
	phases    map[Phase]prometheus.Observer
	// own are the metrics above, which know their own children.
	own []prometheus.Collector
}

// New makes the metrics of a pipeline and registers them, labelled pipeline=name, until Close. A nil
// registerer registers nothing. A second live pipeline of the same name at the same registerer is an
// error: their figures could not be told apart. One that has failed makes room.
func New(r prometheus.Registerer, pipeline string) (*Set, error) {
	s := &Set{registerer: r, descs: map[string]*prometheus.Desc{}, phases: map[Phase]prometheus.Observer{}}
	s.ShowPartitions(PartitionLagAuto)
	labels := prometheus.Labels{"pipeline": pipeline}
	counters := map[string]*prometheus.CounterVec{}
	histograms := map[string]*prometheus.HistogramVec{}
	for _, d := range Catalogue() {
		s.descs[d.Name] = prometheus.NewDesc(d.Name, d.Help, d.Labels, labels)
		switch {
		case d.Type == Histogram:
			histograms[d.Name] = newHistogram(d, labels)
			s.own = append(s.own, histograms[d.Name])
		case ownCounter(d.Name):
			counters[d.Name] = prometheus.NewCounterVec(
				prometheus.CounterOpts{Name: d.Name, Help: d.Help, ConstLabels: labels}, d.Labels)
			s.own = append(s.own, counters[d.Name])
		}
	}
	s.rebalances = counters["streamd_rebalances_total"].WithLabelValues()
	s.transactions = counters["streamd_transactions_total"]
	s.aborts = counters["streamd_transaction_aborts_total"]
	s.rebalance = histograms["streamd_rebalance_duration_seconds"].WithLabelValues().(prometheus.Histogram)
	s.latency = histograms["streamd_record_latency_seconds"].WithLabelValues().(prometheus.Histogram)
	s.records = histograms["streamd_transaction_records"].WithLabelValues().(prometheus.Histogram)
	s.commit = histograms["streamd_transaction_commit_duration_seconds"]
	s.restore = histograms["streamd_restore_duration_seconds"]
	s.lookup = histograms["streamd_dedup_lookup_duration_seconds"]
	s.age = histograms["streamd_dedup_duplicate_age_seconds"]
	s.attempts = counters["streamd_effect_attempts_total"]
	s.call = histograms["streamd_effect_attempt_duration_seconds"]
	s.sinkRows = counters["streamd_sink_rows_total"]
	s.sinkSkipped = counters["streamd_sink_skipped_records_total"]
	s.sinkErrors = counters["streamd_sink_errors_total"]
	s.sinkWrite = histograms["streamd_sink_write_duration_seconds"]
	s.startChildren()
	if r == nil {
		return s, nil
	}
	err := r.Register(s)
	if there := (prometheus.AlreadyRegisteredError{}); errors.As(err, &there) {
		if old, ok := there.ExistingCollector.(*Set); ok && old.failed.Load() {
			old.Close()
			err = r.Register(s)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("metric: registering the metrics of pipeline %q: %w", pipeline, err)
	}
	return s, nil
}

// newHistogram makes a classic and native histogram. The limits of the native part bound its memory: 160
// buckets, then it is merged to coarser ones, at most once an hour by a reset.
func newHistogram(d Def, labels prometheus.Labels) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: d.Name, Help: d.Help, ConstLabels: labels, Buckets: d.Buckets,
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  160,
		NativeHistogramMinResetDuration: time.Hour,
	}, d.Labels)
}

// ownCounter says which counters begin with the process. All others come from the snapshot.
func ownCounter(name string) bool {
	switch name {
	case "streamd_rebalances_total", "streamd_transactions_total", "streamd_transaction_aborts_total",
		"streamd_effect_attempts_total", "streamd_sink_rows_total", "streamd_sink_skipped_records_total", "streamd_sink_errors_total":
		return true
	}
	return false
}

// startChildren makes the children of fixed labels, so that they show 0 before they first move: a rate
// over a series that appears with its first value misses that value.
func (s *Set) startChildren() {
	s.committed = s.transactions.WithLabelValues("committed")
	s.aborted = s.transactions.WithLabelValues("aborted")
	for _, r := range []AbortReason{AbortRebalance, AbortFenced, AbortProcess, AbortProduce, AbortTimeout, AbortShutdown, AbortUnknown} {
		s.aborts.WithLabelValues(string(r))
	}
	for _, p := range []Phase{PhaseClaim, PhaseAhead, PhaseFlush, PhaseOffsets, PhaseEndTxn, PhaseApply} {
		s.phases[p] = s.commit.WithLabelValues(string(p))
	}
}

// Expect makes the histogram children of these stores (ID logs included) and dedup operators, so that
// they show 0 from the start. Call it once, after New.
func (s *Set) Expect(stores, dedups []string) {
	for _, name := range stores {
		s.restore.WithLabelValues(name, "tail")
		s.restore.WithLabelValues(name, "full")
	}
	for _, name := range dedups {
		s.age.WithLabelValues(name)
		s.lookup.WithLabelValues(name, "memory")
		s.lookup.WithLabelValues(name, "disk")
	}
}

// Source sets where a scrape gets its snapshot. It is called from the scraping goroutine and must not
// wait for the pipeline: a scrape must work while the pipeline is stuck.
func (s *Set) Source(fn func() Snapshot) { s.snapshot.Store(&fn) }

// ShowPartitions sets whether lag is shown for each partition. Default PartitionLagAuto.
func (s *Set) ShowPartitions(m PartitionLag) { s.partitions.Store(&m) }

// Fail takes all but the state, and when it began, out of the registry: a pipeline that has ended with an error is to be seen by those who
// scrape for as long as the process lives, or until one of the same name is made. What it counted, others count by now.
func (s *Set) Fail() { s.failed.Store(true) }

// Close takes the metrics out of the registry. It is idempotent.
func (s *Set) Close() {
	if !s.closed.Swap(true) && s.registerer != nil {
		s.registerer.Unregister(s)
	}
}

// Committed counts a committed transaction of so many input records.
func (s *Set) Committed(records int) {
	s.committed.Inc()
	s.records.Observe(float64(records))
}

// Aborted counts a transaction that was not committed.
func (s *Set) Aborted(reason AbortReason) {
	s.aborted.Inc()
	s.aborts.WithLabelValues(string(reason)).Inc()
}

// CommitPhase observes how long one phase of a commit took.
func (s *Set) CommitPhase(p Phase, d time.Duration) { s.phases[p].Observe(d.Seconds()) }

// Latency observes the time from a record's timestamp to the commit. Meant for one record in some: the
// caller samples. A timestamp from the future counts as 0.
func (s *Set) Latency(d time.Duration) { s.latency.Observe(max(d, 0).Seconds()) }

// Rebalanced counts a rebalance and how long it kept tasks from running.
func (s *Set) Rebalanced(d time.Duration) {
	s.rebalances.Inc()
	s.rebalance.Observe(d.Seconds())
}

// Restored observes a restore of one store of a task. Mode is tail or full.
func (s *Set) Restored(store, mode string, d time.Duration) {
	s.restore.WithLabelValues(store, mode).Observe(d.Seconds())
}

// Lookup returns the observer of one operator's ID lookups in a tier, memory or disk. Keep it: finding
// it costs more than the lookup that it measures. The caller samples.
func (s *Set) Lookup(operator, tier string) prometheus.Observer {
	return s.lookup.WithLabelValues(operator, tier)
}

// DuplicateAge returns the observer of the seconds between a duplicate and the first record with its ID.
func (s *Set) DuplicateAge(operator string) prometheus.Observer {
	return s.age.WithLabelValues(operator)
}

// ExpectEffects makes the counters of these operators, so that they show 0 from the start.
func (s *Set) ExpectEffects(names []string) {
	for _, name := range names {
		s.call.WithLabelValues(name)
		for _, r := range []CallResult{CallOK, CallError, CallTimeout, CallPanic} {
			s.attempts.WithLabelValues(name, string(r))
		}
	}
}

// Called counts one attempt of an effect to call.
func (s *Set) Called(operator string, r CallResult, d time.Duration) {
	s.attempts.WithLabelValues(operator, string(r)).Inc()
	s.call.WithLabelValues(operator).Observe(d.Seconds())
}

// ExpectSinks makes the children of these sinks, so that they show 0 from the start.
func (s *Set) ExpectSinks(names []string) {
	for _, name := range names {
		s.sinkRows.WithLabelValues(name)
		s.sinkSkipped.WithLabelValues(name)
		s.sinkWrite.WithLabelValues(name)
		s.sinkErrors.WithLabelValues(name, string(SinkRetryable))
		s.sinkErrors.WithLabelValues(name, string(SinkFatal))
	}
}

// SinkWrote counts the rows of a written batch and how long it took.
func (s *Set) SinkWrote(sink string, rows int, d time.Duration) {
	s.sinkRows.WithLabelValues(sink).Add(float64(rows))
	s.sinkWrite.WithLabelValues(sink).Observe(d.Seconds())
}

// SinkSkipped counts records that the target had already.
func (s *Set) SinkSkipped(sink string, records int) {
	s.sinkSkipped.WithLabelValues(sink).Add(float64(records))
}

// SinkFailed counts a failed claim or write.
func (s *Set) SinkFailed(sink string, kind SinkError) {
	s.sinkErrors.WithLabelValues(sink, string(kind)).Inc()
}
