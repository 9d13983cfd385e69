package metric

import (
	"fmt"
	"strings"
)

// Type is the type of a metric as the exposition format names it.
type Type string

// The types in use.
const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// Def is one line of the catalogue.
type Def struct {
	Name    string
	Type    Type
	Help    string
	Labels  []string  // without "pipeline", which every metric of a Set carries
	Buckets []float64 // upper bounds of a histogram's classic buckets, in its base unit
}

// Bucket bounds are chosen so that the limits that people set alerts on are bounds themselves, since
// a quantile is only exact at a bound. The native histogram beside them has no such limit.
func commitBuckets() []float64 {
	return []float64{.0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
}

func lookupBuckets() []float64 {
	return []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 1e-2, .1, 1}
}

func slowBuckets() []float64 {
	return []float64{.1, .5, 1, 5, 10, 30, 60, 300, 900, 1800, 3600, 10800}
}

func ageBuckets() []float64 {
	return []float64{.1, 1, 10, 60, 600, 3600, 21600, 86400, 259200, 604800, 2592000}
}

func latencyBuckets() []float64 {
	return []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 21600, 86400}
}

func callBuckets() []float64 {
	return []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
}

func sizeBuckets() []float64 {
	return []float64{1, 10, 100, 500, 1000, 5000, 10000, 50000, 100000}
}

// Catalogue returns every metric of a pipeline, in the order of the documentation.
func Catalogue() []Def {
	return []Def{
		// The pipeline.
		{Name: "streamd_pipeline_state", Type: Gauge, Help: "Current state of the pipeline: 1 for the state it is in, 0 for the others.", Labels: []string{"state"}},
		{Name: "streamd_pipeline_start_timestamp_seconds", Type: Gauge, Help: "Unix time at which the pipeline was started in this process."},
		{Name: "streamd_tasks", Type: Gauge, Help: "Tasks owned by this process, by state.", Labels: []string{"state"}},
		{Name: "streamd_rebalances_total", Type: Counter, Help: "Consumer group rebalances this process took part in."},
		{Name: "streamd_rebalance_duration_seconds", Type: Histogram, Help: "Time from losing the old assignment to running every task of the new one.", Buckets: slowBuckets()},
		// Input.
		{Name: "streamd_consumed_records_total", Type: Counter, Help: "Records read from input topics in committed transactions.", Labels: []string{"topic"}},
		{Name: "streamd_consumed_bytes_total", Type: Counter, Help: "Key, value and header bytes read from input topics in committed transactions.", Labels: []string{"topic"}},
		{Name: "streamd_consumer_lag_records", Type: Gauge, Help: "Last stable offset minus next offset to process. Left out as a whole above 200 owned partitions.", Labels: []string{"topic", "partition"}},
		{Name: "streamd_consumer_lag_max_records", Type: Gauge, Help: "Largest consumer lag among the partitions owned by this process.", Labels: []string{"topic"}},
		{Name: "streamd_stream_time_timestamp_seconds", Type: Gauge, Help: "Largest record timestamp seen, the lowest among this process's tasks."},
		{Name: "streamd_record_latency_seconds", Type: Histogram, Help: "Time from a record's timestamp to the commit that made its effects visible.", Buckets: latencyBuckets()},
		// Operators.
		{Name: "streamd_operator_records_in_total", Type: Counter, Help: "Records that entered the operator.", Labels: []string{"operator"}},
		{Name: "streamd_operator_records_out_total", Type: Counter, Help: "Records that the operator forwarded.", Labels: []string{"operator"}},
		{Name: "streamd_operator_dropped_records_total", Type: Counter, Help: "Records dropped without an error, by reason.", Labels: []string{"operator", "reason"}},
		{Name: "streamd_operator_timers_fired_total", Type: Counter, Help: "Timers of the operator that have fired.", Labels: []string{"operator"}},
		{Name: "streamd_operator_errors_total", Type: Counter, Help: "Records that failed, by stage and by what was done about it.", Labels: []string{"operator", "stage", "action"}},
		{Name: "streamd_dead_letter_records_total", Type: Counter, Help: "Records sent to the dead letter topic, by the stage that failed.", Labels: []string{"operator", "stage"}},
		// Effects.
		{Name: "streamd_effect_calls", Type: Gauge, Help: "Calls that are not settled, by state: waiting, running, hanging; uncertain counts those of the others that an earlier process may have made.", Labels: []string{"operator", "state"}},
		{Name: "streamd_effect_attempts_total", Type: Counter, Help: "Attempts to call, by result: ok, error, timeout, panic.", Labels: []string{"operator", "result"}},
		{Name: "streamd_effect_attempt_duration_seconds", Type: Histogram, Help: "Time of one attempt to call.", Labels: []string{"operator"}, Buckets: callBuckets()},
		// Dedup.
		{Name: "streamd_dedup_checked_records_total", Type: Counter, Help: "Record IDs looked up before running user logic.", Labels: []string{"operator"}},
		{Name: "streamd_dedup_duplicates_total", Type: Counter, Help: "Records found to be duplicates, by where the first one was found.", Labels: []string{"operator", "seen"}},
		{Name: "streamd_dedup_missing_ids_total", Type: Counter, Help: "Records for which the ID expression gave no ID, by what was done.", Labels: []string{"operator", "action"}},
		{Name: "streamd_dedup_conflicts_total", Type: Counter, Help: "Duplicates whose payload differs from the first record with that ID.", Labels: []string{"operator"}},
		{Name: "streamd_dedup_duplicate_age_seconds", Type: Histogram, Help: "Event time between a duplicate and the first record with that ID (sampled).", Labels: []string{"operator"}, Buckets: ageBuckets()},
		{Name: "streamd_dedup_bloom_lookups_total", Type: Counter, Help: "Bloom filter answers: negative (new, memory only), true_positive, false_positive.", Labels: []string{"operator", "result"}},
		{Name: "streamd_dedup_bloom_fill_ratio", Type: Gauge, Help: "Share of bits set, the highest among this process's tasks.", Labels: []string{"operator"}},
		{Name: "streamd_dedup_bloom_false_positive_ratio", Type: Gauge, Help: "False positive rate estimated from the fill, the highest among this process's tasks.", Labels: []string{"operator"}},
		{Name: "streamd_dedup_bloom_size_bytes", Type: Gauge, Help: "Memory held by Bloom filters.", Labels: []string{"operator"}},
		{Name: "streamd_dedup_bloom_rebuilds_total", Type: Counter, Help: "Bloom filters rebuilt, by reason.", Labels: []string{"operator", "reason"}},
		{Name: "streamd_dedup_lookup_duration_seconds", Type: Histogram, Help: "Time to answer one ID lookup, by the tier that answered (sampled).", Labels: []string{"operator", "tier"}, Buckets: lookupBuckets()},
		{Name: "streamd_dedup_retention_seconds", Type: Gauge, Help: "Configured time an ID is remembered.", Labels: []string{"operator"}},
		// The transaction log.
		{Name: "streamd_txlog_ids", Type: Gauge, Help: "Processed IDs held.", Labels: []string{"operator"}},
		{Name: "streamd_txlog_expired_ids_total", Type: Counter, Help: "IDs forgotten because they outlived the retention.", Labels: []string{"operator"}},
		{Name: "streamd_txlog_oldest_id_timestamp_seconds", Type: Gauge, Help: "Event time of the oldest ID still remembered: an older record could pass again.", Labels: []string{"operator"}},
		// Transactions.
		{Name: "streamd_transactions_total", Type: Counter, Help: "Kafka transactions ended, by outcome.", Labels: []string{"outcome"}},
		{Name: "streamd_transaction_aborts_total", Type: Counter, Help: "Kafka transactions aborted, by reason.", Labels: []string{"reason"}},
		{Name: "streamd_transaction_commit_duration_seconds", Type: Histogram, Help: "Time spent in each phase of a commit: claim (at most once), ahead (at least once), flush, offsets, end_txn, apply.", Labels: []string{"phase"}, Buckets: commitBuckets()},
		{Name: "streamd_transaction_records", Type: Histogram, Help: "Input records per committed transaction.", Buckets: sizeBuckets()},
		{Name: "streamd_transaction_open_timestamp_seconds", Type: Gauge, Help: "Unix time at which the oldest open transaction began, 0 if none is open."},
		{Name: "streamd_last_commit_timestamp_seconds", Type: Gauge, Help: "Unix time of the last committed transaction that covered a record, 0 before the first."},
		// State.
		{Name: "streamd_store_size_bytes", Type: Gauge, Help: "Bytes on disk held by the local store, by part.", Labels: []string{"store", "part"}},
		{Name: "streamd_changelog_written_records_total", Type: Counter, Help: "Records written to changelog topics in committed transactions.", Labels: []string{"store"}},
		{Name: "streamd_changelog_written_bytes_total", Type: Counter, Help: "Bytes written to changelog topics in committed transactions.", Labels: []string{"store"}},
		{Name: "streamd_restored_records_total", Type: Counter, Help: "Changelog records read back into local stores.", Labels: []string{"store"}},
		{Name: "streamd_restore_remaining_records", Type: Gauge, Help: "Changelog records still to read before the tasks of this process can run.", Labels: []string{"store"}},
		{Name: "streamd_restore_duration_seconds", Type: Histogram, Help: "Time a task needed to restore, by mode: tail or full.", Labels: []string{"store", "mode"}, Buckets: slowBuckets()},
		// Global tables.
		{Name: "streamd_global_table_rows", Type: Gauge, Help: "Rows of a global table in this process.", Labels: []string{"table"}},
		{Name: "streamd_global_table_size_bytes", Type: Gauge, Help: "Memory that the rows of a global table count for in this process.", Labels: []string{"table"}},
		{Name: "streamd_global_table_lag_records", Type: Gauge, Help: "Offsets of the topic of a global table that are known to be committed and not in its rows.", Labels: []string{"table"}},
		{Name: "streamd_global_table_as_of_timestamp_seconds", Type: Gauge, Help: "Unix time as of which the rows of a global table are those of its topic, 0 before it was read: its age grows while the topic cannot be read.", Labels: []string{"table"}},
		{Name: "streamd_global_table_skipped_records_total", Type: Counter, Help: "Records of the topic of a global table that were no rows and were passed over, since the start of the process.", Labels: []string{"table"}},
		// Output.
		{Name: "streamd_produced_records_total", Type: Counter, Help: "Records written to output topics in committed transactions.", Labels: []string{"topic"}},
		{Name: "streamd_produced_bytes_total", Type: Counter, Help: "Key, value and header bytes written to output topics in committed transactions.", Labels: []string{"topic"}},
		// Sinks outside of Kafka.
		{Name: "streamd_sink_rows_total", Type: Counter, Help: "Rows written to the target in committed transactions.", Labels: []string{"sink"}},
		{Name: "streamd_sink_skipped_records_total", Type: Counter, Help: "Records skipped because the target already held their effect.", Labels: []string{"sink"}},
		{Name: "streamd_sink_write_duration_seconds", Type: Histogram, Help: "Time of one transaction of the target.", Labels: []string{"sink"}, Buckets: commitBuckets()},
		{Name: "streamd_sink_errors_total", Type: Counter, Help: "Failed claims and writes, by kind: retryable or fatal.", Labels: []string{"sink", "kind"}},
	}
}

// ProcessCatalogue returns the metrics of a streamd process, which carry no pipeline label.
func ProcessCatalogue() []Def {
	return []Def{
		{Name: "streamd_data_dir_free_bytes", Type: Gauge, Help: "Free bytes on the file system of the data directory."},
		{Name: "streamd_data_dir_size_bytes", Type: Gauge, Help: "Size in bytes of the file system of the data directory."},
		{Name: "streamd_log_messages_total", Type: Counter, Help: "Log messages written, by level.", Labels: []string{"level"}},
		{Name: "streamd_build_info", Type: Gauge, Help: "Always 1, labelled with the build.", Labels: []string{"version", "revision", "goversion"}},
	}
}

// Markdown returns the catalogue as the text of docs/metrics.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString("# Metrics\n\nGenerated from internal/metric by `go test ./internal/metric -update`. Do not edit.\n\n" +
		"Counters of records move only when a transaction commits, and survive restarts: they are kept with the\n" +
		"state of the task that counts. A task that moves to another process takes them along: the counter of one\n" +
		"process steps at a rebalance, the sum over all of them does not. So sum first, then take a difference, as\n" +
		"the rules in deploy/prometheus do; rate() and increase() of one process would take the step for records.\n" +
		"A process shows them from when all the tasks that it begins with are restored until it stops, and none while\n" +
		"it has no task: the gap of a restart is no reset. What a restore lacks is in `streamd_restore_remaining_records`.\n" +
		"Each alert has a runbook in docs/runbooks. Transactions, commit phases, restores, rebalances and attempts to call are counted from the start of the\n" +
		"process. Histograms are classic and native at once.\n")
	section := func(title string, pipeline bool, defs []Def) {
		fmt.Fprintf(&b, "\n## %s\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n", title)
		for _, d := range defs {
			labels := d.Labels
			if pipeline {
				labels = append([]string{"pipeline"}, labels...)
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Type, strings.Join(labels, ", "), d.Help)
		}
	}
	section("Of a pipeline", true, Catalogue())
	section("Of sources outside of Kafka", true, IngressCatalogue())
	section("Of the process", false, ProcessCatalogue())
	b.WriteString("\n## What holds at every scrape\n\n" +
		"For each dedup operator, with everything summed over its labels and over all instances:\n\n" +
		"- `records_in = checked + missing_ids`\n" +
		"- `checked + missing_ids{action=\"forward\"} = duplicates + records_out + dropped{reason=\"late\"} + errors{stage=\"id\"}` of\n" +
		"  conflicts and of records that came too late. What `on_missing_id: forward` lets through has no ID to check and is in\n" +
		"  `records_out`; so is what `on_duplicate: forward`, `on_too_late: forward` and side outputs let through, which is to be\n" +
		"  taken off `records_out` first\n" +
		"- `bloom_lookups <= checked - duplicates{seen=\"open_transaction\"}`: the open generation is an exact set, and what\n" +
		"  it knows asks no filter; without a sealed generation nothing does\n" +
		"- `bloom_lookups{result=\"true_positive\"} <= duplicates{seen=\"committed\"}`\n")
	return b.String()
}
