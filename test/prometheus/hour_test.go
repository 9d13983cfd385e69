//go:build prometheus

package prometheus

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// An hour is scraped each 15 seconds, by the index of the scrape, after twenty minutes that give the counters a history.
const (
	scrapeSeconds  = 15
	historyMinutes = 20
	scrapes        = (historyMinutes + 60) * 60 / scrapeSeconds
	// restarted is when a rolling restart takes instance a away, for two minutes; its tasks are with b meanwhile.
	restarted, back = 180, 188
)

// hour is an hour of normal load of two processes: traffic that swells and ebbs, copies, a rolling restart, one failed write of a target, one
// transaction that the broker ended, a task that restored for two minutes. A series is left out where f is NaN.
func hour() map[string]func(i int) float64 {
	series := map[string]func(i int) float64{}
	away := func(i int) bool { return i >= restarted && i < back }
	// share of the records that instance a has.
	share := func(i int) float64 {
		if away(i) {
			return math.NaN()
		}
		return 0.5
	}
	other := func(i int) float64 {
		if away(i-1) && away(i+1) { // for a moment they are nobody's
			return 1
		}
		return 0.5
	}
	for instance, part := range map[string]func(int) float64{"a": share, "b": other} {
		for name, f := range map[string]func(i int) float64{
			// 1,000 records a second that swell by half in waves of 20 minutes, and what waits of them: a burst is worked off within a minute.
			`streamd_consumer_lag_records{topic="t",partition="OF-INSTANCE"}`: func(i int) float64 {
				return math.Round(150 + 100*math.Sin(float64(i)/13) + 2000*math.Max(0, math.Sin(float64(i)/17)-0.98)/0.02)
			},
			`streamd_consumer_lag_max_records{topic="t"}`:                                   func(i int) float64 { return math.Round(150 + 100*math.Sin(float64(i)/13)) },
			`streamd_dedup_checked_records_total{operator="d"}`:                             func(i int) float64 { return math.Round(15000*float64(i) + 2000*math.Sin(float64(i)/12.7)) },
			`streamd_dedup_duplicates_total{operator="d",seen="committed"}`:                 func(i int) float64 { return 150 * float64(i) },
			`streamd_dedup_conflicts_total{operator="d"}`:                                   func(int) float64 { return 14 }, // of last month
			`streamd_dedup_missing_ids_total{operator="d",action="forward"}`:                func(int) float64 { return 6 },
			`streamd_dead_letter_records_total{operator="d",stage="decode"}`:                func(int) float64 { return 8 },
			`streamd_dedup_retention_seconds{operator="d"}`:                                 func(int) float64 { return 604800 },
			`streamd_dedup_bloom_false_positive_ratio{operator="d"}`:                        func(i int) float64 { return 0.001 + 0.00001*float64(i) },
			`streamd_dedup_duplicate_age_seconds_bucket{operator="d",le="10"}`:              func(i int) float64 { return 140 * float64(i) },
			`streamd_dedup_duplicate_age_seconds_bucket{operator="d",le="21600"}`:           func(i int) float64 { return 150 * float64(i) },
			`streamd_dedup_duplicate_age_seconds_bucket{operator="d",le="+Inf"}`:            func(i int) float64 { return 150 * float64(i) },
			`streamd_transaction_commit_duration_seconds_bucket{phase="end_txn",le="0.01"}`: func(i int) float64 { return 140 * float64(i) },
			`streamd_transaction_commit_duration_seconds_bucket{phase="end_txn",le="+Inf"}`: func(i int) float64 { return 150 * float64(i) },
		} {
			counts := strings.Contains(name, "_total") // of records: they move with the tasks
			f := f
			series[with(strings.ReplaceAll(name, "OF-INSTANCE", instance), instance)] = func(i int) float64 {
				switch {
				case math.IsNaN(part(i)):
					return math.NaN()
				case counts:
					return math.Round(f(i) * part(i))
				}
				return f(i)
			}
		}
		began := func(i int) float64 {
			if instance == "a" && i >= back {
				return float64(back * scrapeSeconds)
			}
			return -86400
		}
		// since the process began
		since := func(i int) float64 {
			if instance == "a" && i >= back {
				return float64(i - back)
			}
			return float64(i)
		}
		for name, f := range map[string]func(i int) float64{
			`streamd_pipeline_start_timestamp_seconds`:        began,
			`streamd_last_commit_timestamp_seconds`:           func(i int) float64 { return float64(i*scrapeSeconds) - 0.1 },
			`streamd_transaction_open_timestamp_seconds`:      func(i int) float64 { return float64(i%2) * (float64(i*scrapeSeconds) - 0.1) },
			`streamd_pipeline_state{state="running"}`:         func(int) float64 { return 1 },
			`streamd_pipeline_state{state="blocked"}`:         func(i int) float64 { return is(i > 120 && i < 126) }, // the failed write
			`streamd_pipeline_state{state="error"}`:           func(int) float64 { return 0 },
			`streamd_tasks{state="running"}`:                  func(int) float64 { return 4 },
			`streamd_tasks{state="restoring"}`:                func(i int) float64 { return is(i >= back && i < back+8) },
			`streamd_transactions_total{outcome="committed"}`: func(i int) float64 { return 150 * since(i) },
			`streamd_transactions_total{outcome="aborted"}`:   func(i int) float64 { return is(since(i) > 20) },
			`streamd_transaction_aborts_total{reason="fenced"}`: func(i int) float64 {
				return is(since(i) > 20)
			},
			`streamd_transaction_aborts_total{reason="rebalance"}`: func(i int) float64 { return 2 * is(i > restarted) },
			`streamd_rebalances_total`: func(i int) float64 {
				return 1 + 2*is(i >= restarted && instance == "b") + is(i >= back && instance == "b")
			},
			`streamd_sink_errors_total{sink="s",kind="retryable"}`:        func(i int) float64 { return 3 * is(i > 120) },
			`streamd_global_table_as_of_timestamp_seconds{table="rates"}`: func(i int) float64 { return float64(i*scrapeSeconds) - 5 },
			`streamd_ingress_table_reading{source="table"}`:               func(i int) float64 { return is((instance == "a") != away(i)) }, // the other one takes over
			`streamd_ingress_table_undecided_seconds{source="table"}`:     func(i int) float64 { return float64(i % 30) },
			`streamd_ingress_failing{source="posted"}`:                    func(i int) float64 { return is(i > 230 && i < 234) }, // a broker of three restarts
			`streamd_data_dir_free_bytes`:                                 func(i int) float64 { return 40e9 - 1e6*float64(i) },
			`streamd_data_dir_size_bytes`:                                 func(int) float64 { return 100e9 },
		} {
			f := f
			series[with(name, instance)] = func(i int) float64 {
				if math.IsNaN(part(i)) {
					return math.NaN()
				}
				return f(i)
			}
		}
	}
	return series
}

func is(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// with adds the labels that every series has. Those of a process have no pipeline.
func with(series, instance string) string {
	name, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
	if labels != "" {
		labels += ","
	}
	if !strings.HasPrefix(name, "streamd_data_dir") {
		labels += `pipeline="bills",`
	}
	return fmt.Sprintf(`%s{%sinstance=%q}`, name, labels, instance)
}

// promtool lets the rules of the given text evaluate the hour, and wants no alert at any minute of it, pending ones apart.
func promtool(t *testing.T, rules string, series map[string]func(i int) float64) (string, error) {
	t.Helper()
	dir := t.TempDir()
	var b strings.Builder
	fmt.Fprintf(&b, "rule_files: [rules.yaml]\nevaluation_interval: 15s\ntests:\n- interval: %ds\n  input_series:\n", scrapeSeconds)
	for name, f := range series {
		fmt.Fprintf(&b, "  - series: '%s'\n    values: '", name)
		for i := range scrapes + 1 {
			if v := f(i); math.IsNaN(v) {
				b.WriteString("stale ") // what Prometheus writes where a scrape fails
			} else {
				fmt.Fprintf(&b, "%g ", v)
			}
		}
		b.WriteString("'\n")
	}
	b.WriteString("  promql_expr_test:\n")
	for minute := historyMinutes; minute <= historyMinutes+60; minute++ {
		fmt.Fprintf(&b, "  - {expr: 'ALERTS{alertstate=\"firing\"}', eval_time: %dm, exp_samples: []}\n", minute)
	}
	for name, text := range map[string]string{"rules.yaml": rules, "test.yaml": b.String()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), program(t, "promtool"), "test", "rules", filepath.Join(dir, "test.yaml")).CombinedOutput()
	return string(out), err
}

func TestAnHourOfNormalLoad(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(rules, rulesName))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := promtool(t, string(text), hour()); err != nil {
		t.Errorf("%v\n%s", err, out)
	}

	// Every metric that a rule reads is there: an alert cannot fire for want of series.
	has := map[string]bool{}
	for name := range hour() {
		metric, _, _ := strings.Cut(name, "{")
		has[metric] = true
	}
	for _, name := range regexp.MustCompile(`\bstreamd_[a-z_]+\b`).FindAllString(expressions(string(text)), -1) {
		if !has[name] {
			t.Errorf("no series of %s", name)
			has[name] = true
		}
	}
}

// expressions is a file of rules without what is prose, and without the names of recorded series.
func expressions(rules string) string {
	var lines []string
	for _, line := range strings.Split(rules, "\n") {
		switch s := strings.TrimSpace(line); {
		case strings.HasPrefix(s, "#"), strings.HasPrefix(s, "summary:"), strings.HasPrefix(s, "description:"), strings.HasPrefix(s, "- record:"), strings.HasPrefix(s, "- name:"):
		default:
			lines = append(lines, regexp.MustCompile(`\w+:streamd_\w+(:\w+)?`).ReplaceAllString(line, ""))
		}
	}
	return strings.Join(lines, "\n")
}

// TestAnHourThatIsNotNormal: the hour is no hour in which nothing could fire. Each of these changes of it brings its alert.
func TestAnHourThatIsNotNormal(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(rules, rulesName))
	if err != nil {
		t.Fatal(err)
	}
	changes := map[string]struct {
		series string
		f      func(i int) float64
	}{
		"StreamdPipelineFailed":         {`streamd_pipeline_state{state="error"}`, func(i int) float64 { return is(i > 130) }},
		"StreamdBlocked":                {`streamd_pipeline_state{state="blocked"}`, func(i int) float64 { return is(i > 130) }},
		"StreamdStalled":                {`streamd_last_commit_timestamp_seconds`, func(int) float64 { return 600 }},
		"StreamdTransactionAborts":      {`streamd_transaction_aborts_total{reason="fenced"}`, func(i int) float64 { return 20 * float64(i) }},
		"StreamdTransactionOpenTooLong": {`streamd_transaction_open_timestamp_seconds`, func(int) float64 { return 1000 }},
		"StreamdLagGrowing":             {`streamd_consumer_lag_records{topic="t",partition="OF-INSTANCE"}`, func(i int) float64 { return 100 * float64(i) }},
		"StreamdDedupRetentionTooShort": {`streamd_dedup_retention_seconds{operator="d"}`, func(int) float64 { return 3600 }},
		"StreamdDedupIDConflict":        {`streamd_dedup_conflicts_total{operator="d"}`, func(i int) float64 { return 14 + is(i > 200) }},
		"StreamdDedupMissingIDs":        {`streamd_dedup_missing_ids_total{operator="d",action="forward"}`, func(i int) float64 { return 6 + is(i > 200) }},
		"StreamdDeadLetters":            {`streamd_dead_letter_records_total{operator="d",stage="decode"}`, func(i int) float64 { return 8 + is(i > 200) }},
		"StreamdBloomSaturated":         {`streamd_dedup_bloom_false_positive_ratio{operator="d"}`, func(int) float64 { return 0.3 }},
		"StreamdSinkFailing":            {`streamd_sink_errors_total{sink="s",kind="retryable"}`, func(i int) float64 { return float64(i) }},
		"StreamdIngressFailing":         {`streamd_ingress_failing{source="posted"}`, func(i int) float64 { return is(i > 230) }},
		"StreamdTableNotRead":           {`streamd_ingress_table_reading{source="table"}`, func(int) float64 { return 0 }},
		"StreamdTableUndecided":         {`streamd_ingress_table_undecided_seconds{source="table"}`, func(int) float64 { return 700 }},
		"StreamdCrashLoop":              {`streamd_pipeline_start_timestamp_seconds`, func(i int) float64 { return float64(i / 8) }},
		"StreamdGlobalTableStale":       {`streamd_global_table_as_of_timestamp_seconds{table="rates"}`, func(int) float64 { return 600 }},
		"StreamdRestoreSlow":            {`streamd_tasks{state="restoring"}`, func(int) float64 { return 1 }},
		"StreamdRebalanceStorm":         {`streamd_rebalances_total`, func(i int) float64 { return float64(i) }},
		"StreamdDiskFull":               {`streamd_data_dir_free_bytes`, func(int) float64 { return 5e9 }},
	}
	series := hour()
	for _, change := range changes {
		for _, instance := range []string{"a", "b"} {
			name := with(strings.ReplaceAll(change.series, "OF-INSTANCE", instance), instance)
			if series[name] == nil {
				t.Fatalf("the hour has no %s", name)
			}
			series[name] = change.f
		}
	}
	out, err := promtool(t, string(text), series)
	for alert := range changes {
		if err == nil || !strings.Contains(out, fmt.Sprintf("alertname=%q", alert)) {
			t.Errorf("no alert %s", alert)
		}
	}

	series = hour()
	for name, f := range series {
		series[name] = func(i int) float64 {
			if i > 200 {
				return math.NaN()
			}
			return f(i)
		}
	}
	gone := "StreamdPipelineGone"
	if out, err := promtool(t, string(text), series); err == nil || !strings.Contains(out, fmt.Sprintf("alertname=%q", gone)) {
		t.Errorf("no alert %s: %v", gone, err)
	}
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(text), -1) {
		if _, ok := changes[m[1]]; !ok && m[1] != gone {
			t.Errorf("nothing brings %s", m[1])
		}
	}
}
