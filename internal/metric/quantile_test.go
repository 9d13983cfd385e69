package metric

import (
	"math"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

func TestQuantile(t *testing.T) {
	h := func(count uint64, cumulative ...uint64) *dto.Histogram {
		out := &dto.Histogram{SampleCount: &count}
		for i, n := range cumulative {
			bound := float64(i + 1)
			out.Bucket = append(out.Bucket, &dto.Bucket{UpperBound: &bound, CumulativeCount: &n})
		}
		return out
	}
	for _, c := range []struct {
		h    *dto.Histogram
		q    float64
		want float64
	}{
		{h(100, 50, 100), .5, 1}, {h(100, 50, 100), .99, 1.98}, {h(100, 0, 100), .5, 1.5}, {h(100, 10, 20), .99, 2},
	} {
		if got := Quantile(c.q, c.h); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("quantile %v of %v = %v, want %v", c.q, c.h, got, c.want)
		}
	}
	if got := Quantile(.5, h(0)); !math.IsNaN(got) {
		t.Errorf("of nothing: %v", got)
	}
}
