package demo

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"sort"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/processor"
)

// view is what the worker says of itself at one moment.
type view struct {
	ready      bool
	in         uint64
	duplicates uint64
	unique     uint64
	lag        int64
	commits    uint64 // of the worker that runs now
	lastCommit time.Time
	restored   uint64
	full       uint64  // restores in full
	p99        float64 // seconds; NaN: no commit yet
}

// look asks a worker.
func look(ctx context.Context, c *daemon.Client) (view, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var s processor.Status
	if err := c.Get(ctx, "/api/v1/pipelines/bills-demo", &s); err != nil {
		return view{}, err
	}
	v := view{ready: s.Ready(), commits: s.Transactions.Committed, lastCommit: s.Transactions.LastCommit}
	for _, o := range s.Operators {
		if o.Name == "unique" {
			v.in, v.unique = o.Counters["in"], o.Counters["out"]
			v.duplicates = o.Counters["dedup/dup_committed"] + o.Counters["dedup/dup_open"]
		}
	}
	for _, t := range s.Tasks {
		for _, in := range t.Inputs {
			if in.Topic == inputTopic {
				v.lag += max(in.Lag, 0)
			}
		}
	}
	text, err := c.Read(ctx, "/metrics")
	if err != nil {
		return view{}, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return view{}, fmt.Errorf("demo: the worker's metrics: %w", err)
	}
	for _, m := range families["streamd_restored_records_total"].GetMetric() {
		v.restored += uint64(m.GetCounter().GetValue())
	}
	for _, m := range families["streamd_restore_duration_seconds"].GetMetric() {
		for _, l := range m.Label {
			if l.GetName() == "mode" && l.GetValue() == "full" {
				v.full += m.GetHistogram().GetSampleCount()
			}
		}
	}
	v.p99 = math.NaN()
	// The phases of a commit follow each other. The sum of their 99th percentiles is at least the 99th
	// percentile of the whole.
	for _, m := range families["streamd_transaction_commit_duration_seconds"].GetMetric() {
		if q := quantile(.99, m.GetHistogram()); !math.IsNaN(q) {
			if math.IsNaN(v.p99) {
				v.p99 = 0
			}
			v.p99 += q
		}
	}
	return v, nil
}

// quantile estimates a quantile from classic buckets as Prometheus does: evenly spread in each.
func quantile(q float64, h *dto.Histogram) float64 {
	buckets := h.GetBucket()
	count := float64(h.GetSampleCount())
	if count == 0 || len(buckets) == 0 {
		return math.NaN()
	}
	rank := q * count
	i := sort.Search(len(buckets), func(i int) bool { return float64(buckets[i].GetCumulativeCount()) >= rank })
	if i == len(buckets) || math.IsInf(buckets[i].GetUpperBound(), 1) {
		// Above the last bound: that is all that is known.
		return buckets[len(buckets)-1].GetUpperBound()
	}
	from, before := 0.0, 0.0
	if i > 0 {
		from, before = buckets[i-1].GetUpperBound(), float64(buckets[i-1].GetCumulativeCount())
	}
	in := float64(buckets[i].GetCumulativeCount()) - before
	if in == 0 {
		return from
	}
	return from + (buckets[i].GetUpperBound()-from)*(rank-before)/in
}
