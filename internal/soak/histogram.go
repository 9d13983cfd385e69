package soak

import (
	"math"
	"time"
)

// histogram counts durations in buckets that grow by a tenth, from 1 ms on.
type histogram struct {
	buckets [160]int64
	count   int64
	max     time.Duration
}

const growth = 1.1

func (h *histogram) add(d time.Duration) {
	d = max(d, 0)
	i := 0
	if ms := float64(d) / float64(time.Millisecond); ms > 1 {
		i = min(int(math.Ceil(math.Log(ms)/math.Log(growth))), len(h.buckets)-1)
	}
	h.buckets[i]++
	h.count++
	h.max = max(h.max, d)
}

// quantile is the upper bound of the bucket that it lies in, at most a tenth too large; 0 if nothing was counted.
func (h *histogram) quantile(q float64) time.Duration {
	rank := int64(math.Ceil(q * float64(h.count)))
	for i, n := range h.buckets {
		if rank -= n; rank <= 0 && h.count > 0 {
			return min(time.Duration(math.Pow(growth, float64(i))*float64(time.Millisecond)), h.max)
		}
	}
	return h.max
}
