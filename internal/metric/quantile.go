package metric

import (
	"math"
	"sort"

	dto "github.com/prometheus/client_model/go"
)

// Quantile estimates a quantile (0 to 1) from a histogram's classic buckets as Prometheus does: evenly
// spread in each. NaN: nothing was observed.
func Quantile(q float64, h *dto.Histogram) float64 {
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
