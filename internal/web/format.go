package web

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Count writes a number with spaces between groups of three digits: 1 204.
func Count[T ~int | ~int64 | ~uint64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	sign := ""
	if s[0] == '-' {
		sign, s = "-", s[1:]
	}
	var b strings.Builder
	b.WriteString(sign)
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(' ')
		}
		b.WriteRune(c)
	}
	return b.String()
}

// Short writes a number with three digits and a unit: 48.1k, 41.2M.
func Short(v float64) string {
	switch abs := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case abs < 10 && v != math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 1, 64)
	case abs < 999.5:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	for _, unit := range []string{"k", "M", "G", "T"} {
		if v /= 1000; math.Abs(v) < 999.5 || unit == "T" {
			return strconv.FormatFloat(v, 'f', decimals(v), 64) + unit
		}
	}
	return ""
}

// decimals keeps three digits.
func decimals(v float64) int {
	if math.Abs(v) < 99.95 {
		return 1
	}
	return 0
}

// Size writes bytes with binary units: 1.2 GiB.
func Size(n uint64) string {
	v := float64(n)
	if v < 1024 {
		return strconv.FormatUint(n, 10) + " B"
	}
	for _, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v /= 1024; v < 1000 || unit == "TiB" {
			return strconv.FormatFloat(v, 'f', decimals(v), 64) + " " + unit
		}
	}
	return ""
}

// Percent writes a share with as many digits as matter: 0.15%, 31%.
func Percent(v float64) string {
	switch v *= 100; {
	case math.IsNaN(v):
		return "–"
	case v == 0:
		return "0%"
	case v < 0.01:
		return "<0.01%"
	case v < 10:
		return strconv.FormatFloat(v, 'f', 2, 64) + "%"
	}
	return strconv.FormatFloat(v, 'f', 0, 64) + "%"
}

// Age writes a time span with its two largest units: 3d 4h, 12m 5s, 140ms.
func Age(d time.Duration) string {
	sign := ""
	if d < 0 {
		sign, d = "-", -d
	}
	switch {
	case d < time.Second:
		return sign + strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	case d < 10*time.Second:
		return sign + strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
	}
	d = d.Round(time.Second)
	units := []struct {
		name string
		d    time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}}
	for i, u := range units {
		if d < u.d {
			continue
		}
		out := sign + strconv.FormatInt(int64(d/u.d), 10) + u.name
		if i+1 < len(units) {
			if rest := d % u.d / units[i+1].d; rest > 0 {
				out += " " + strconv.FormatInt(int64(rest), 10) + units[i+1].name
			}
		}
		return out
	}
	return sign + "0s"
}

// Since writes how long ago something was; a dash for the zero time.
func Since(now, t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return Age(now.Sub(t))
}

// Seconds writes a time in seconds; a dash for NaN.
func Seconds(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "–"
	}
	if v < 0.01 && v > 0 {
		return strconv.FormatFloat(v*1000, 'f', 1, 64) + "ms"
	}
	return Age(time.Duration(v * float64(time.Second)))
}
