package web

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// The histograms that the page reads. Those of duplicates are kept by operator, behind the name.
const (
	latencyFamily = "streamd_record_latency_seconds"
	commitFamily  = "streamd_transaction_commit_duration_seconds"
	ageFamily     = "streamd_dedup_duplicate_age_seconds"
)

// recorder keeps the history of all pipelines of a handler.
type recorder struct {
	entries  []Entry
	gatherer prometheus.Gatherer // nil: no percentiles
	series   []*series           // as entries

	sampling sync.Mutex // held while a sample is taken: nobody waits for it, see sample
	mu       sync.Mutex // guards last
	last     time.Time
}

func newRecorder(c Config) *recorder {
	r := &recorder{entries: c.Pipelines, gatherer: c.Gatherer}
	for _, e := range c.Pipelines {
		r.series = append(r.series, newSeries(e.Topology))
	}
	return r
}

// Run takes a sample every two seconds until ctx ends, so that rates and curves are there when somebody
// looks. It may be left out.
func (h *Handler) Run(ctx context.Context) {
	t := time.NewTicker(sampleInterval)
	defer t.Stop()
	for {
		h.history.sample(time.Now(), sampleInterval/2)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// sample takes a sample if the last one is older than minAge and nobody else is about to. It does not wait:
// a metric that hangs costs the page its news, not its answers.
func (r *recorder) sample(now time.Time, minAge time.Duration) {
	if !r.sampling.TryLock() {
		return
	}
	defer r.sampling.Unlock()
	r.mu.Lock()
	due := now.Sub(r.last) >= minAge
	r.mu.Unlock()
	if !due {
		return
	}
	families := histograms(r.gatherer)
	for i, e := range r.entries {
		r.series[i].add(now, e.Pipeline.Status(), families[e.Name])
	}
	r.mu.Lock()
	r.last = now
	r.mu.Unlock()
}

// histograms gathers those that the page reads, by pipeline and name. What cannot be gathered is missing.
func histograms(g prometheus.Gatherer) map[string]map[string][]*dto.Histogram {
	if g == nil {
		return nil
	}
	all, _ := g.Gather() // an error names collectors that failed; what the others say is there
	out := map[string]map[string][]*dto.Histogram{}
	for _, f := range all {
		name := f.GetName()
		if name != latencyFamily && name != commitFamily && name != ageFamily {
			continue
		}
		for _, m := range f.GetMetric() {
			pipeline, key := "", name
			for _, l := range m.GetLabel() {
				switch l.GetName() {
				case "pipeline":
					pipeline = l.GetValue()
				case "operator":
					key += l.GetValue()
				}
			}
			if out[pipeline] == nil {
				out[pipeline] = map[string][]*dto.Histogram{}
			}
			// Only what is read is kept: not the native buckets.
			h := &dto.Histogram{SampleCount: m.GetHistogram().SampleCount, Bucket: m.GetHistogram().GetBucket()}
			out[pipeline][key] = append(out[pipeline][key], h)
		}
	}
	return out
}
