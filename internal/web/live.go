package web

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/topology"
)

// Limits of the history: it holds points for five minutes and counters for the last seconds, however long
// the process runs.
const (
	sampleInterval = 2 * time.Second
	keptPoints     = 150
	keptCounts     = 6                // rates are over about ten seconds
	countsLimit    = 2 * time.Minute  // older counters would make a mean of times that nobody looked at
	quantileSpan   = 30 * time.Second // percentiles are of what was observed since then
)

// Number is a figure that may be unknown: NaN, null in JSON.
type Number float64

// MarshalJSON writes null for NaN and infinities, which JSON does not have.
func (n Number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// UnmarshalJSON reads null as NaN.
func (n *Number) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		*n = Number(math.NaN())
		return nil
	}
	return json.Unmarshal(data, (*float64)(n))
}

// Rates are the records per second of one operator.
type Rates struct {
	In         float64 `json:"in"`
	Out        float64 `json:"out"`
	Dropped    float64 `json:"dropped"`
	Errors     float64 `json:"errors"`
	Checked    float64 `json:"checked"` // by dedup
	Duplicates float64 `json:"duplicates"`
}

// Progress is how far a task that restores has come.
type Progress struct {
	Done Number `json:"done"` // 0 to 1
	Left Number `json:"left"` // seconds, null: not known yet
}

// Live are the rates of a pipeline in this process, of about the last ten seconds.
type Live struct {
	Time time.Time `json:"time"`
	// Span is the seconds that the rates are of; 0: there is one sample only, and all rates are 0.
	Span       float64             `json:"span"`
	In         float64             `json:"in"` // records a second from topics outside
	Duplicates Number              `json:"duplicate_ratio"`
	LatencyP99 Number              `json:"latency_p99"` // seconds from a record's time to its commit
	CommitP99  Number              `json:"commit_p99"`  // seconds; the sum of the phases' percentiles: an upper bound
	Operators  map[string]Rates    `json:"operators"`
	Restores   map[string]Progress `json:"restores,omitempty"` // by task
}

// point is one place of the small curves.
type point struct{ lag, in, duplicates, latency, commit float64 }

// counts are the counters of one moment.
type counts struct {
	time      time.Time
	operators map[string]Rates // totals, not rates
	remaining map[string]int64 // by task
}

// series is the history of one pipeline.
type series struct {
	external map[string]bool // sources that read topics of others

	mu         sync.Mutex // guards all below; never held while something else is asked
	tasks      string     // which tasks had state at the last sample
	counts     []counts
	points     []point
	largest    map[string]int64 // of a restore: what remained at its start
	histograms []observed
	live       Live
}

// observed are the histograms of one moment.
type observed struct {
	time     time.Time
	families map[string][]*dto.Histogram
}

func newSeries(g topology.Graph) *series {
	s := &series{external: map[string]bool{}, largest: map[string]int64{}, live: Live{Duplicates: Number(math.NaN()), LatencyP99: Number(math.NaN()), CommitP99: Number(math.NaN())}}
	internal := map[string]bool{}
	for _, n := range g.Nodes {
		internal[n.ID] = n.Internal
	}
	for _, e := range g.Edges {
		name, isOperator := strings.CutPrefix(e.To, string(topology.NodeOperator)+":")
		if isOperator && strings.HasPrefix(e.From, string(topology.NodeTopic)+":") && !internal[e.From] {
			s.external[name] = true
		}
	}
	return s
}

// add takes a sample into the history.
func (s *series) add(now time.Time, st processor.Status, histograms map[string][]*dto.Histogram) {
	next := counts{time: now, operators: map[string]Rates{}, remaining: map[string]int64{}}
	for _, o := range st.Operators {
		next.operators[o.Name] = totals(o)
	}
	restoring := map[string]bool{}
	for _, t := range st.Tasks {
		if t.State == processor.TaskRestoring || t.State == processor.TaskRecovering {
			next.remaining[t.Name] = t.Remaining
			restoring[t.Name] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Counters move with their tasks: the sum steps when one comes or goes, and a rate over the step
	// would be of records that nobody has sent.
	if id := withState(st.Tasks); id != s.tasks {
		s.tasks, s.counts = id, nil
	}
	for len(s.counts) > 0 && (len(s.counts) >= keptCounts || now.Sub(s.counts[0].time) > countsLimit) {
		s.counts = slices.Delete(s.counts, 0, 1)
	}
	s.counts = append(s.counts, next)
	for name := range s.largest {
		if !restoring[name] {
			delete(s.largest, name)
		}
	}
	for name, left := range next.remaining {
		s.largest[name] = max(s.largest[name], left)
	}
	s.observe(now, histograms)
	s.live = s.rates(now)
	lag := Summarize("", st).Lag
	s.points = append(s.points, point{float64(lag), s.live.In, float64(s.live.Duplicates), float64(s.live.LatencyP99), float64(s.live.CommitP99)})
	if n := len(s.points); n > keptPoints {
		s.points = slices.Delete(s.points, 0, n-keptPoints)
	}
}

// totals sums an operator's counters into what the page shows.
func totals(o processor.OperatorStatus) Rates {
	r := Rates{In: float64(o.Counters["in"]), Out: float64(o.Counters["out"])}
	for kind, n := range o.Counters {
		switch {
		case strings.HasPrefix(kind, "dropped/"), kind == "dedup/too_late":
			r.Dropped += float64(n)
		case strings.HasPrefix(kind, "errors/"):
			r.Errors += float64(n)
		case kind == "dedup/checked":
			r.Checked += float64(n)
		case kind == "dedup/dup_committed", kind == "dedup/dup_open":
			r.Duplicates += float64(n)
		}
	}
	return r
}

// withState names the tasks whose counters are in the sum.
func withState(tasks []processor.TaskStatus) string {
	var b strings.Builder
	for _, t := range tasks {
		if t.Sequence > 0 || t.State == processor.TaskRunning {
			b.WriteString(t.Name)
			b.WriteByte(' ')
		}
	}
	return b.String()
}

// rates compares the newest counters with the oldest kept.
func (s *series) rates(now time.Time) Live {
	first, last := s.counts[0], s.counts[len(s.counts)-1]
	span := last.time.Sub(first.time).Seconds()
	out := Live{Time: now, Span: span, Operators: map[string]Rates{}, Restores: map[string]Progress{}}
	per := func(from, to float64) float64 {
		if span <= 0 {
			return 0
		}
		return max(to-from, 0) / span
	}
	checked, duplicates := 0.0, 0.0
	for name, to := range last.operators {
		from := first.operators[name]
		r := Rates{per(from.In, to.In), per(from.Out, to.Out), per(from.Dropped, to.Dropped), per(from.Errors, to.Errors), per(from.Checked, to.Checked), per(from.Duplicates, to.Duplicates)}
		out.Operators[name] = r
		if s.external[name] {
			out.In += r.In
		}
		checked += r.Checked
		duplicates += r.Duplicates
	}
	out.Duplicates = 0
	if checked > 0 {
		out.Duplicates = Number(duplicates / checked)
	}
	for name, left := range last.remaining {
		p := Progress{Done: Number(math.NaN()), Left: Number(math.NaN())}
		if all := s.largest[name]; all > 0 {
			p.Done = Number(1 - float64(left)/float64(all))
		}
		if before, ok := first.remaining[name]; ok && before > left && span > 0 {
			p.Left = Number(float64(left) * span / float64(before-left))
		}
		out.Restores[name] = p
	}
	out.LatencyP99, out.CommitP99 = Number(s.quantile(latencyFamily)), Number(s.quantile(commitFamily))
	return out
}

// observe keeps the histograms, from before quantileSpan to now.
func (s *series) observe(now time.Time, families map[string][]*dto.Histogram) {
	if families == nil {
		return
	}
	for len(s.histograms) > 1 && now.Sub(s.histograms[1].time) >= quantileSpan {
		s.histograms = slices.Delete(s.histograms, 0, 1)
	}
	s.histograms = append(s.histograms, observed{now, families})
	// One sample in a while is enough to compare with: the list stays short even if somebody samples without pause.
	if n := len(s.histograms); n > keptCounts && s.histograms[n-1].time.Sub(s.histograms[n-2].time) < quantileSpan/keptCounts {
		s.histograms = slices.Delete(s.histograms, n-2, n-1)
	}
}

// quantile is the 99th percentile of what was observed lately, of everything if nothing was lately. Several
// histograms of a name are phases that follow each other: their sum is an upper bound.
func (s *series) quantile(family string) float64 {
	if len(s.histograms) == 0 {
		return math.NaN()
	}
	first, last := s.histograms[0].families[family], s.histograms[len(s.histograms)-1].families[family]
	sum, seen := 0.0, false
	for i, h := range last {
		if i < len(first) && len(s.histograms) > 1 {
			if d := difference(first[i], h); d.GetSampleCount() > 0 {
				h = d
			}
		}
		if q := metric.Quantile(.99, h); !math.IsNaN(q) {
			sum, seen = sum+q, true
		}
	}
	if !seen {
		return math.NaN()
	}
	return sum
}

// difference is what was observed between two readings of one histogram.
func difference(from, to *dto.Histogram) *dto.Histogram {
	if len(from.GetBucket()) != len(to.GetBucket()) || to.GetSampleCount() < from.GetSampleCount() {
		return to
	}
	n := to.GetSampleCount() - from.GetSampleCount()
	out := &dto.Histogram{SampleCount: &n}
	for i, b := range to.GetBucket() {
		c := b.GetCumulativeCount() - from.Bucket[i].GetCumulativeCount()
		out.Bucket = append(out.Bucket, &dto.Bucket{CumulativeCount: &c, UpperBound: b.UpperBound})
	}
	return out
}

// view is what a page takes from the history, as a copy.
type view struct {
	live   Live
	points []point
	age    *dto.Histogram // of the duplicates of one operator; nil: not known
}

func (s *series) view(operator string) view {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := view{live: s.live, points: slices.Clone(s.points)}
	if n := len(s.histograms); n > 0 {
		if h := s.histograms[n-1].families[ageFamily+operator]; len(h) > 0 {
			v.age = h[0]
		}
	}
	return v
}
