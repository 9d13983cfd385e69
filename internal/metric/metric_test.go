package metric

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

func testSnapshot() Snapshot {
	return Snapshot{
		State: "running", States: []string{"created", "running", "error"},
		Started: time.Unix(1000, 0), StreamTime: time.Unix(2000, 500_000_000), LastCommit: time.Unix(3000, 0),
		Tasks:  map[string]int{"running": 2, "restoring": 0},
		Inputs: []Input{{Topic: "bills", Partition: 0, Lag: 3}, {Topic: "bills", Partition: 1, Lag: 7}, {Topic: "other", Partition: 0, Lag: -1}},
		Topics: []Topic{{Name: "bills", Consumed: &Volume{10, 1000}}, {Name: "totals", Produced: &Volume{8, 80}}},
		Operators: []Operator{
			{Name: "bills", Kind: "source", Counters: map[string]uint64{"in": 11, "out": 10, ErrorCounter("decode", "dead_letter"): 1}},
			{Name: "unique", Kind: "dedup", Counters: map[string]uint64{
				"in": 10, "out": 6, "dedup/checked": 9, "dedup/dup_committed": 2, "dedup/dup_open": 1, "dedup/missing/forward": 1,
				"dedup/bloom/negative": 5, "dedup/bloom/true_positive": 2, "dedup/bloom/false_positive": 1, "a kind of the future": 5,
			}, Dedup: &Dedup{IDs: 6, Retention: time.Hour, Oldest: time.Unix(1500, 0), BloomBytes: 64, BloomFill: .25, FalsePositiveRatio: .001, Expired: 4, Rebuilds: map[string]uint64{"start": 1}}},
			{Name: "totals", Kind: "aggregate", Counters: map[string]uint64{"in": 6, "out": 6, "timers/fired": 2}},
			{Name: "charge", Kind: "effect", Effect: &Effect{Waiting: 4, Running: 3, Uncertain: 2, Hanging: 1}},
		},
		Stores:  []Store{{Name: "totals", LSM: 100, ValueLog: 20, WrittenRecords: 6, WrittenBytes: 60, RestoredRecords: 2, RestoreRemaining: -1}},
		Globals: []Global{{Name: "countries", Rows: 3, Bytes: 300, Lag: 2, AsOf: time.Unix(1700000000, 0), Skipped: 1}},
	}
}

// touch moves everything that a Set counts itself.
func touch(s *Set) {
	s.ExpectSinks([]string{"totals"})
	s.Expect([]string{"totals"}, []string{"unique"})
	s.Committed(100)
	s.Aborted(AbortRebalance)
	for _, p := range []Phase{PhaseClaim, PhaseAhead, PhaseFlush, PhaseOffsets, PhaseEndTxn, PhaseApply} {
		s.CommitPhase(p, 5*time.Millisecond)
	}
	s.Latency(-time.Second)
	s.Rebalanced(2 * time.Second)
	s.Restored("totals", "tail", time.Second)
	s.Lookup("unique", "memory").Observe(2e-6)
	s.DuplicateAge("unique").Observe(60)
	s.ExpectEffects([]string{"charge"})
	s.Called("charge", CallTimeout, time.Second)
}

func gather(t *testing.T, g prometheus.Gatherer) map[string]*dto.MetricFamily {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]*dto.MetricFamily{}
	for _, f := range families {
		m[f.GetName()] = f
	}
	return m
}

// series returns the value of one series, NaN if it is not there.
func series(f *dto.MetricFamily, labels ...string) float64 {
	for _, m := range f.GetMetric() {
		have := map[string]string{}
		for _, l := range m.Label {
			have[l.GetName()] = l.GetValue()
		}
		ok := true
		for i := 0; i < len(labels); i += 2 {
			ok = ok && have[labels[i]] == labels[i+1]
		}
		switch {
		case ok && m.Counter != nil:
			return m.Counter.GetValue()
		case ok && m.Gauge != nil:
			return m.Gauge.GetValue()
		case ok && m.Histogram != nil:
			return float64(m.Histogram.GetSampleCount())
		}
	}
	return math.NaN()
}

// What is kept with the tasks is shown once it is known, and never as a zero that was more before. All else is shown at any time.
func TestCountersThatAreNotKnownAreNotShown(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s, err := New(reg, "p1")
	if err != nil {
		t.Fatal(err)
	}
	unknown := false
	s.Source(func() Snapshot {
		x := testSnapshot()
		x.Unknown = unknown
		return x
	})
	touch(s)
	all := gather(t, reg)
	unknown = true
	some := gather(t, reg)
	var missing []string
	for name := range all {
		if some[name] == nil {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	want := []string{
		"streamd_changelog_written_bytes_total", "streamd_changelog_written_records_total",
		"streamd_consumed_bytes_total", "streamd_consumed_records_total", "streamd_dead_letter_records_total",
		"streamd_dedup_bloom_lookups_total", "streamd_dedup_checked_records_total", "streamd_dedup_conflicts_total",
		"streamd_dedup_duplicates_total", "streamd_dedup_missing_ids_total", "streamd_operator_dropped_records_total",
		"streamd_operator_errors_total", "streamd_operator_records_in_total", "streamd_operator_records_out_total",
		"streamd_operator_timers_fired_total", "streamd_produced_bytes_total", "streamd_produced_records_total",
	}
	if !slices.Equal(missing, want) {
		t.Errorf("left out are\n%q, want\n%q", missing, want)
	}
}

func TestEveryMetricOfTheCatalogueIsExposedAndLintClean(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s, err := New(reg, "p1")
	if err != nil {
		t.Fatal(err)
	}
	s.Source(testSnapshot)
	touch(s)
	if _, err := NewProcess(reg, "v1", "abc", func() (uint64, uint64, error) { return 1, 2, nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := NewIngress(reg, "p1", []Source{{Name: "bills", Files: true, Table: true}}); err != nil {
		t.Fatal(err)
	}
	got := gather(t, reg)
	for i, defs := range [][]Def{slices.Concat(Catalogue(), IngressCatalogue()), ProcessCatalogue()} {
		for _, d := range defs {
			f := got[d.Name]
			if f == nil {
				t.Errorf("%s is in the catalogue but never exposed", d.Name)
				continue
			}
			delete(got, d.Name)
			if !strings.EqualFold(f.GetType().String(), string(d.Type)) || f.GetHelp() != d.Help {
				t.Errorf("%s is exposed as %v %q", d.Name, f.GetType(), f.GetHelp())
			}
			want := slices.Clone(d.Labels)
			if i == 0 {
				want = append(want, "pipeline")
			}
			slices.Sort(want)
			var have []string
			for _, l := range f.Metric[0].Label {
				have = append(have, l.GetName())
			}
			slices.Sort(have)
			if !slices.Equal(have, want) {
				t.Errorf("%s has labels %v, want %v", d.Name, have, want)
			}
			if d.Type == Histogram {
				h := f.Metric[0].Histogram
				if len(h.Bucket) != len(d.Buckets) || h.Schema == nil {
					t.Errorf("%s: %d classic buckets, want %d; native schema %v", d.Name, len(h.Bucket), len(d.Buckets), h.Schema)
				}
			}
		}
	}
	for name := range got {
		t.Errorf("%s is exposed but not in the catalogue", name)
	}
	families, _ := reg.Gather()
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v %v", problems, err)
	}
}

func TestValues(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s, err := New(reg, "p1")
	if err != nil {
		t.Fatal(err)
	}
	s.Source(testSnapshot)
	touch(s)
	got := gather(t, reg)
	for _, c := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"streamd_pipeline_state", []string{"state", "running", "pipeline", "p1"}, 1},
		{"streamd_pipeline_state", []string{"state", "error"}, 0},
		{"streamd_tasks", []string{"state", "running"}, 2},
		{"streamd_stream_time_timestamp_seconds", nil, 2000.5},
		{"streamd_transaction_open_timestamp_seconds", nil, 0},
		{"streamd_consumer_lag_records", []string{"topic", "bills", "partition", "1"}, 7},
		{"streamd_consumer_lag_records", []string{"topic", "other"}, 0},
		{"streamd_consumer_lag_max_records", []string{"topic", "bills"}, 7},
		{"streamd_operator_records_in_total", []string{"operator", "unique"}, 10},
		{"streamd_operator_errors_total", []string{"operator", "bills", "stage", "decode", "action", "dead_letter"}, 1},
		{"streamd_operator_errors_total", []string{"operator", "bills", "stage", "decode", "action", "skip"}, 0},
		{"streamd_dead_letter_records_total", []string{"operator", "bills", "stage", "decode"}, 1},
		{"streamd_dead_letter_records_total", []string{"operator", "totals", "stage", "process"}, 0},
		{"streamd_dedup_duplicates_total", []string{"operator", "unique", "seen", "committed"}, 2},
		{"streamd_dedup_duplicates_total", []string{"operator", "unique", "seen", "open_transaction"}, 1},
		{"streamd_dedup_missing_ids_total", []string{"action", "forward"}, 1},
		{"streamd_dedup_missing_ids_total", []string{"action", "dead_letter"}, 0},
		{"streamd_dedup_conflicts_total", []string{"operator", "unique"}, 0},
		{"streamd_dedup_bloom_lookups_total", []string{"result", "false_positive"}, 1},
		{"streamd_dedup_bloom_rebuilds_total", []string{"reason", "start"}, 1},
		{"streamd_dedup_bloom_rebuilds_total", []string{"reason", "rotate"}, 0},
		{"streamd_dedup_retention_seconds", nil, 3600},
		{"streamd_restore_duration_seconds", []string{"mode", "full"}, 0},
		{"streamd_restore_duration_seconds", []string{"mode", "tail"}, 1},
		{"streamd_restore_remaining_records", nil, 0},
		{"streamd_global_table_rows", []string{"table", "countries"}, 3},
		{"streamd_global_table_size_bytes", nil, 300},
		{"streamd_global_table_lag_records", nil, 2},
		{"streamd_global_table_as_of_timestamp_seconds", nil, 1700000000},
		{"streamd_global_table_skipped_records_total", nil, 1},
		{"streamd_transactions_total", []string{"outcome", "committed"}, 1},
		{"streamd_transaction_aborts_total", []string{"reason", "rebalance"}, 1},
		{"streamd_transaction_aborts_total", []string{"reason", "fenced"}, 0},
		{"streamd_produced_bytes_total", []string{"topic", "totals"}, 80},
	} {
		if v := series(got[c.name], c.labels...); v != c.want {
			t.Errorf("%s %v = %v, want %v", c.name, c.labels, v, c.want)
		}
	}
}

func TestPartitionLagIsShownWholeOrNotAtAll(t *testing.T) {
	for _, c := range []struct {
		mode   PartitionLag
		inputs int
		want   int
	}{
		{PartitionLagAuto, 200, 200}, {PartitionLagAuto, 201, 0}, {PartitionLagOn, 201, 201}, {PartitionLagOff, 1, 0},
	} {
		reg := prometheus.NewPedanticRegistry()
		s, err := New(reg, "p")
		if err != nil {
			t.Fatal(err)
		}
		s.ShowPartitions(c.mode)
		s.Source(func() Snapshot {
			var snap Snapshot
			for i := range c.inputs {
				snap.Inputs = append(snap.Inputs, Input{Topic: "t", Partition: int32(i), Lag: int64(i)})
			}
			return snap
		})
		got := gather(t, reg)
		if n := len(got["streamd_consumer_lag_records"].GetMetric()); n != c.want {
			t.Errorf("%s with %d partitions: %d series, want %d", c.mode, c.inputs, n, c.want)
		}
		if v := series(got["streamd_consumer_lag_max_records"], "topic", "t"); v != float64(c.inputs-1) {
			t.Errorf("%s: max lag %v", c.mode, v)
		}
	}
}

func TestTwoPipelinesAndRestarts(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	a, err := New(reg, "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(reg, "a"); err == nil {
		t.Error("two live pipelines of one name were both registered")
	}
	for range 3 {
		b, err := New(reg, "b")
		if err != nil {
			t.Fatal(err)
		}
		a.Source(testSnapshot)
		b.Source(testSnapshot)
		if n := len(gather(t, reg)["streamd_txlog_ids"].GetMetric()); n != 2 {
			t.Errorf("%d series of streamd_txlog_ids, want one for each pipeline", n)
		}
		b.Close()
		b.Close()
	}
	a.Close()
	if got := gather(t, reg); len(got) > 0 {
		t.Errorf("%d families are left after Close", len(got))
	}
	none, err := New(nil, "c")
	if err != nil {
		t.Fatal(err)
	}
	touch(none)
	none.Close()
}

// Whoever watches by scrapes alone must see that a pipeline has ended with an error: its state stays, and nothing that others count by now.
func TestAPipelineThatHasFailed(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	for range 2 { // the next one makes room for itself
		a, err := New(reg, "a")
		if err != nil {
			t.Fatal(err)
		}
		a.Source(testSnapshot)
		all := len(gather(t, reg))
		a.Fail()
		got := gather(t, reg)
		if all < 20 || len(got) != 2 || got["streamd_pipeline_state"] == nil || got["streamd_pipeline_start_timestamp_seconds"] == nil {
			t.Errorf("of %d families %v are left", all, slices.Sorted(maps.Keys(got)))
		}
	}
}

// A name that is not UTF-8 or appears twice must not make the whole scrape fail.
func TestOddNamesDoNotFailTheScrape(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s, err := New(reg, "p")
	if err != nil {
		t.Fatal(err)
	}
	s.Source(func() Snapshot {
		return Snapshot{Topics: []Topic{{Name: "t\xff", Consumed: &Volume{1, 1}}, {Name: "u", Consumed: &Volume{1, 1}}, {Name: "u", Consumed: &Volume{2, 2}}}}
	})
	got := gather(t, reg)["streamd_consumed_records_total"]
	if v := series(got, "topic", "u"); v != 3 {
		t.Errorf("the same topic twice shows %v, want the sum 3", v)
	}
	if v := series(got, "topic", "t\uFFFD"); v != 1 {
		t.Errorf("odd name shows %v", v)
	}
}

func TestScrapeWhileCounting(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s, err := New(reg, "p")
	if err != nil {
		t.Fatal(err)
	}
	s.Source(testSnapshot)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				touch(s)
			}
		})
	}
	for range 20 {
		gather(t, reg)
	}
	wg.Wait()
	if v := series(gather(t, reg)["streamd_transactions_total"], "outcome", "committed"); v != 800 {
		t.Errorf("committed = %v, want 800", v)
	}
}

func TestLogMessagesAreCounted(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	p, err := NewProcess(reg, "v1", "abc", func() (uint64, uint64, error) { return 0, 0, fmt.Errorf("no such directory") })
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(p.LogHandler(slog.NewTextHandler(io.Discard, nil)))
	log.With("a", 1).WithGroup("g").Warn("one")
	log.Warn("two")
	log.Debug("not written, so not counted")
	got := gather(t, reg)
	for level, want := range map[string]float64{"warn": 2, "debug": 0, "error": 0} {
		if v := series(got["streamd_log_messages_total"], "level", level); v != want {
			t.Errorf("%s = %v, want %v", level, v, want)
		}
	}
	if got["streamd_data_dir_free_bytes"] != nil {
		t.Error("a disk that cannot be asked shows a value")
	}
}

func TestDocumentation(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "metrics.md")
	if *update {
		if err := os.WriteFile(path, []byte(Markdown()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != Markdown() {
		t.Error("docs/metrics.md is out of date: go test ./internal/metric -update")
	}
}

func BenchmarkCommitted(b *testing.B) {
	s, err := New(nil, "p")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		s.Committed(100)
		s.CommitPhase(PhaseFlush, time.Millisecond)
	}
}

// A source without a table has no figure that says that nobody reads one.
func TestSourcesHaveTheFiguresOfTheirKind(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	_, err := NewIngress(reg, "p", []Source{{Name: "posted"}, {Name: "lines", Files: true}, {Name: "rows", Table: true}})
	if err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, f := range families {
		got[f.GetName()] = len(f.GetMetric())
	}
	for gauge, want := range map[string]int{"streamd_ingress_failing": 3, "streamd_ingress_queued_bytes": 3, "streamd_ingress_files": 1, "streamd_ingress_table_reading": 1} {
		if got[gauge] != want {
			t.Errorf("%s: %d children, want %d", gauge, got[gauge], want)
		}
	}
}
