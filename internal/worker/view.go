package worker

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/processor"
)

// View is what a worker says of itself at one moment.
type View struct {
	Ready bool
	Tasks int // that it owns
	// Of the dedup operator, as committed:
	In, Duplicates, Unique uint64
	Lag                    int64  // of the topic that was asked for
	Commits                uint64 // of the process that runs now
	Restored               uint64 // changelog records that it has replayed
	Full                   uint64 // restores in full
	// P99 is about the 99th percentile of a commit, in seconds. NaN: no commit yet.
	P99 float64
}

// Look asks a worker how the pipeline does: the figures of its dedup operator and the lag of its input topic.
func Look(ctx context.Context, c *daemon.Client, pipeline, operator, topic string) (View, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var s processor.Status
	if err := c.Get(ctx, "/api/v1/pipelines/"+pipeline, &s); err != nil {
		return View{}, err
	}
	v := View{Ready: s.Ready(), Tasks: len(s.Tasks), Commits: s.Transactions.Committed}
	for _, o := range s.Operators {
		if o.Name == operator {
			v.In, v.Unique = o.Counters["in"], o.Counters["out"]
			v.Duplicates = o.Counters["dedup/dup_committed"] + o.Counters["dedup/dup_open"]
		}
	}
	for _, t := range s.Tasks {
		for _, in := range t.Inputs {
			if in.Topic == topic {
				v.Lag += max(in.Lag, 0)
			}
		}
	}
	text, err := c.Read(ctx, "/metrics")
	if err != nil {
		return View{}, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return View{}, fmt.Errorf("worker: its metrics: %w", err)
	}
	for _, m := range families["streamd_restored_records_total"].GetMetric() {
		v.Restored += uint64(m.GetCounter().GetValue())
	}
	for _, m := range families["streamd_restore_duration_seconds"].GetMetric() {
		for _, l := range m.Label {
			if l.GetName() == "mode" && l.GetValue() == "full" {
				v.Full += m.GetHistogram().GetSampleCount()
			}
		}
	}
	v.P99 = math.NaN()
	// The phases of a commit follow each other. The sum of their 99th percentiles is at least the 99th
	// percentile of the whole.
	for _, m := range families["streamd_transaction_commit_duration_seconds"].GetMetric() {
		if q := metric.Quantile(.99, m.GetHistogram()); !math.IsNaN(q) {
			if math.IsNaN(v.P99) {
				v.P99 = 0
			}
			v.P99 += q
		}
	}
	return v, nil
}
