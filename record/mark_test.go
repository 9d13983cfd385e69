package record

import (
	"bytes"
	"math"
	"strings"
	"testing"
)

func TestMarks(t *testing.T) {
	for _, m := range []Mark{
		{}, {Task: 7, Watermark: 1_700_000_000_123}, {Task: math.MaxInt32, Watermark: -62_135_596_800_001, Idle: true}, {Watermark: math.MinInt64}, {Watermark: math.MaxInt64, Idle: true},
	} {
		h := m.Headers()
		if !IsMark(nil, nil, h) || IsMark([]byte{}, nil, h) || IsMark(nil, []byte{}, h) || IsMark(nil, nil, append(Headers{{Key: "x"}}, h...)) || IsMark(nil, nil, nil) || IsMark(nil, nil, Headers{{Key: MarkHeader, Value: m.Append(nil)}}) {
			t.Errorf("%+v: it is not told from a record", m)
		}
		if got, err := ParseMark(h[0].Value); err != nil || got != m {
			t.Errorf("%+v: read back as %+v, %v", m, got, err)
		}
	}
	whole := Mark{Task: 1, Watermark: 2}.Headers()[0].Value
	if want := []byte{1, 2, 0, 0, 0, 1, 0x80, 0, 0, 0, 0, 0, 0, 2}; !bytes.Equal(whole, want) {
		t.Errorf("stored as % x, want % x", whole, want)
	}
	for n := range whole {
		if _, err := ParseMark(whole[:n]); err == nil {
			t.Errorf("%d bytes of it are a mark", n)
		}
	}
	for what, change := range map[string]func(b []byte){
		"newer":          func(b []byte) { b[0] = 2 },
		"damaged":        func(b []byte) { b[0] = 0 },
		"damaged, flags": func(b []byte) { b[1] = 4 },
		"damaged, task":  func(b []byte) { b[2] = 255 },
	} {
		b := bytes.Clone(whole)
		change(b)
		word, _, _ := strings.Cut(what, ",")
		if _, err := ParseMark(b); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
