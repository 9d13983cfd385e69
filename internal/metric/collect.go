package metric

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Describe implements prometheus.Collector.
func (s *Set) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range Catalogue() {
		if d.Type != Histogram && !ownCounter(d.Name) {
			ch <- s.descs[d.Name]
		}
	}
	for _, c := range s.own {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (s *Set) Collect(ch chan<- prometheus.Metric) {
	failed := s.failed.Load()
	for _, c := range s.own {
		if !failed {
			c.Collect(ch)
		}
	}
	source := s.snapshot.Load()
	if source == nil {
		return
	}
	snap := (*source)()
	b := batch{set: s, at: map[string]int{}, unknown: snap.Unknown}
	b.state(&snap)
	if !failed {
		b.figures(&snap)
	}
	for _, m := range b.samples {
		ch <- m.metric(s.descs[m.name])
	}
}

// figures are all that a snapshot has but the state.
func (b *batch) figures(snap *Snapshot) {
	b.pipeline(snap)
	b.inputs(snap.Inputs, *b.set.partitions.Load())
	for _, t := range snap.Topics {
		b.topic(t)
	}
	for _, o := range snap.Operators {
		b.operator(o)
	}
	for _, st := range snap.Stores {
		b.store(st)
	}
	for _, g := range snap.Globals {
		b.global(g)
	}
}

// sample is one series of a scrape.
type sample struct {
	name   string
	labels []string
	typ    prometheus.ValueType
	value  float64
}

// metric never fails for a label that is not UTF-8: one bad topic name must not make the whole scrape fail.
func (m sample) metric(d *prometheus.Desc) prometheus.Metric {
	for i, l := range m.labels {
		m.labels[i] = strings.ToValidUTF8(l, "\uFFFD")
	}
	metric, err := prometheus.NewConstMetric(d, m.typ, m.value, m.labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(d, err)
	}
	return metric
}

// batch gathers the series of one scrape. Equal series are summed: the registry refuses a scrape that
// shows one twice.
type batch struct {
	set     *Set
	samples []sample
	at      map[string]int // index into samples by name and labels
	unknown bool           // the counters of records are
}

func (b *batch) put(name string, typ prometheus.ValueType, v float64, labels []string) {
	id := name + "\xff" + strings.Join(labels, "\xff")
	if i, ok := b.at[id]; ok {
		b.samples[i].value += v
		return
	}
	b.at[id] = len(b.samples)
	b.samples = append(b.samples, sample{name: name, labels: labels, typ: typ, value: v})
}

func (b *batch) gauge(name string, v float64, labels ...string) {
	b.put(name, prometheus.GaugeValue, v, labels)
}

func (b *batch) count(name string, v uint64, labels ...string) {
	b.put(name, prometheus.CounterValue, float64(v), labels)
}

func (b *batch) state(s *Snapshot) {
	for _, state := range s.States {
		v := 0.0
		if state == s.State {
			v = 1
		}
		b.gauge("streamd_pipeline_state", v, state)
	}
	b.gauge("streamd_pipeline_start_timestamp_seconds", unix(s.Started))
}

func (b *batch) pipeline(s *Snapshot) {
	for state, n := range s.Tasks {
		b.gauge("streamd_tasks", float64(n), state)
	}
	b.gauge("streamd_transaction_open_timestamp_seconds", unix(s.OldestOpen))
	b.gauge("streamd_last_commit_timestamp_seconds", unix(s.LastCommit))
	if !s.StreamTime.IsZero() {
		b.gauge("streamd_stream_time_timestamp_seconds", unix(s.StreamTime))
	}
}

func (b *batch) inputs(inputs []Input, mode PartitionLag) {
	each := mode == PartitionLagOn || mode == PartitionLagAuto && len(inputs) <= maxPartitionSeries
	highest := map[string]int64{}
	for _, in := range inputs {
		lag := max(in.Lag, 0)
		highest[in.Topic] = max(highest[in.Topic], lag)
		if each {
			b.gauge("streamd_consumer_lag_records", float64(lag), in.Topic, strconv.Itoa(int(in.Partition)))
		}
	}
	for topic, lag := range highest {
		b.gauge("streamd_consumer_lag_max_records", float64(lag), topic)
	}
}

func (b *batch) global(g Global) {
	b.gauge("streamd_global_table_rows", float64(g.Rows), g.Name)
	b.gauge("streamd_global_table_size_bytes", float64(g.Bytes), g.Name)
	b.gauge("streamd_global_table_lag_records", float64(g.Lag), g.Name)
	b.gauge("streamd_global_table_as_of_timestamp_seconds", unix(g.AsOf), g.Name)
	b.count("streamd_global_table_skipped_records_total", g.Skipped, g.Name)
}

func (b *batch) topic(t Topic) {
	if b.unknown {
		return
	}
	if t.Consumed != nil {
		b.count("streamd_consumed_records_total", t.Consumed.Records, t.Name)
		b.count("streamd_consumed_bytes_total", t.Consumed.Bytes, t.Name)
	}
	if t.Produced != nil {
		b.count("streamd_produced_records_total", t.Produced.Records, t.Name)
		b.count("streamd_produced_bytes_total", t.Produced.Bytes, t.Name)
	}
}

func (b *batch) operator(o Operator) {
	for _, kind := range startCounters(o.Kind) {
		b.counter(o.Name, kind, 0)
	}
	for kind, v := range o.Counters {
		b.counter(o.Name, kind, v)
	}
	if x := o.Effect; x != nil {
		b.gauge("streamd_effect_calls", float64(x.Waiting), o.Name, "waiting")
		b.gauge("streamd_effect_calls", float64(x.Running), o.Name, "running")
		b.gauge("streamd_effect_calls", float64(x.Uncertain), o.Name, "uncertain")
		b.gauge("streamd_effect_calls", float64(x.Hanging), o.Name, "hanging")
	}
	d := o.Dedup
	if d == nil {
		return
	}
	b.gauge("streamd_txlog_ids", float64(d.IDs), o.Name)
	b.count("streamd_txlog_expired_ids_total", d.Expired, o.Name)
	if !d.Oldest.IsZero() {
		b.gauge("streamd_txlog_oldest_id_timestamp_seconds", unix(d.Oldest), o.Name)
	}
	b.gauge("streamd_dedup_retention_seconds", d.Retention.Seconds(), o.Name)
	b.gauge("streamd_dedup_bloom_size_bytes", float64(d.BloomBytes), o.Name)
	b.gauge("streamd_dedup_bloom_fill_ratio", d.BloomFill, o.Name)
	b.gauge("streamd_dedup_bloom_false_positive_ratio", d.FalsePositiveRatio, o.Name)
	for _, reason := range []string{"start", "rotate", "grow"} {
		b.count("streamd_dedup_bloom_rebuilds_total", 0, o.Name, reason)
	}
	for reason, n := range d.Rebuilds {
		b.count("streamd_dedup_bloom_rebuilds_total", n, o.Name, reason)
	}
}

// counter shows one counter of an operator. The names are topology.CounterKind's.
func (b *batch) counter(operator, kind string, v uint64) {
	if b.unknown {
		return
	}
	group, rest, _ := strings.Cut(kind, "/")
	switch group {
	case "in":
		b.count("streamd_operator_records_in_total", v, operator)
	case "out":
		b.count("streamd_operator_records_out_total", v, operator)
	case "dropped":
		b.count("streamd_operator_dropped_records_total", v, operator, rest)
	case "errors":
		stage, action, _ := strings.Cut(rest, "/")
		b.count("streamd_operator_errors_total", v, operator, stage, action)
		if action == "dead_letter" {
			b.count("streamd_dead_letter_records_total", v, operator, stage)
		}
	case "timers":
		b.count("streamd_operator_timers_fired_total", v, operator)
	case "dedup":
		b.dedupCounter(operator, rest, v)
	}
}

func (b *batch) dedupCounter(operator, kind string, v uint64) {
	group, rest, _ := strings.Cut(kind, "/")
	switch group {
	case "checked":
		b.count("streamd_dedup_checked_records_total", v, operator)
	case "dup_committed":
		b.count("streamd_dedup_duplicates_total", v, operator, "committed")
	case "dup_open":
		b.count("streamd_dedup_duplicates_total", v, operator, "open_transaction")
	case "conflict":
		b.count("streamd_dedup_conflicts_total", v, operator)
	case "too_late":
		b.count("streamd_operator_dropped_records_total", v, operator, "late")
	case "missing":
		b.count("streamd_dedup_missing_ids_total", v, operator, rest)
	case "bloom":
		b.count("streamd_dedup_bloom_lookups_total", v, operator, rest)
	}
}

// startCounters are the counters that an operator of a kind shows before they first move: those that
// it can move, so that the number of series stays small.
func startCounters(kind string) []string {
	kinds := []string{"in", "out"}
	stages := []string{"process"}
	switch kind {
	case "source":
		stages = []string{"decode", "id"}
	case "to":
		stages = []string{"encode", "produce"}
	case "key_by":
		stages = []string{"process", "encode"}
	case "effect":
		stages = []string{"id", "process"}
	case "aggregate":
		kinds = append(kinds, "dropped/null_key")
		stages = []string{"decode", "process", "encode"}
	case "filter":
		kinds = append(kinds, "dropped/filtered")
	case "dedup":
		kinds = append(kinds, "dedup/checked", "dedup/dup_committed", "dedup/dup_open", "dedup/conflict", "dedup/too_late",
			"dedup/missing/stop", "dedup/missing/dead_letter", "dedup/missing/forward",
			"dedup/bloom/negative", "dedup/bloom/true_positive", "dedup/bloom/false_positive")
		stages = []string{"id"}
	}
	for _, stage := range stages {
		// Not stop: it ends the process, and what is not committed is not counted.
		for _, action := range []string{"dead_letter", "skip"} {
			kinds = append(kinds, ErrorCounter(stage, action))
		}
	}
	return kinds
}

func (b *batch) store(s Store) {
	b.gauge("streamd_store_size_bytes", float64(s.LSM), s.Name, "lsm")
	b.gauge("streamd_store_size_bytes", float64(s.ValueLog), s.Name, "vlog")
	if !b.unknown {
		b.count("streamd_changelog_written_records_total", s.WrittenRecords, s.Name)
		b.count("streamd_changelog_written_bytes_total", s.WrittenBytes, s.Name)
	}
	b.count("streamd_restored_records_total", s.RestoredRecords, s.Name)
	b.gauge("streamd_restore_remaining_records", float64(max(s.RestoreRemaining, 0)), s.Name)
}

// unix is the time in seconds as Prometheus counts it; the zero time is 0.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMicro()) / 1e6
}
