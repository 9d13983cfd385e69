package postgres

import (
	"math"
	"testing"
	"time"
)

func TestAppendCopy(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{nil, `\N`},
		{`\N`, `\\N`},
		{"a\tb\nc\rd\\e.ü", `a\tb\nc\rd\\e.ü`},
		{`\.`, `\\.`},
		{"", ""},
		{int64(math.MinInt64), "-9223372036854775808"},
		{1e300, "1e+300"},
		{math.Inf(-1), "-Inf"},
		{math.NaN(), "NaN"},
		{true, "true"},
		{[]byte{0, 0xff}, `\\x00ff`},
		{[]byte{}, `\\x`},
		{time.Date(2026, 1, 2, 3, 4, 5, 123456000, time.FixedZone("", 3600)), "2026-01-02 02:04:05.123456+00"},
		{time.Date(12026, 1, 2, 3, 4, 5, 0, time.UTC), "12026-01-02 03:04:05+00"},
		{time.Date(0, 12, 31, 0, 0, 0, 0, time.UTC), "0001-12-31 00:00:00+00 BC"},
	} {
		got, err := appendCopy([]byte("before"), c.v)
		if err != nil || string(got) != "before"+c.want {
			t.Errorf("%v: %q, %v, want %q", c.v, got, err, c.want)
		}
	}
	if _, err := appendCopy(nil, 1); err == nil {
		t.Error("an int is taken")
	}
}
