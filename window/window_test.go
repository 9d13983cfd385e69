package window_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/window"
)

const ms = time.Millisecond

// TestStartsByDefinition: the windows of a record are exactly those that contain it.
func TestStartsByDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		every := rapid.Int64Range(1, 50).Draw(t, "every")
		size := rapid.Int64Range(every, 200).Draw(t, "size")
		at := window.Millis(rapid.Int64Range(-500, 500).Draw(t, "at"))
		w := window.Hopping(time.Duration(size)*ms, time.Duration(every)*ms)
		if every == size && rapid.Bool().Draw(t, "tumbling") {
			w = window.Tumbling(time.Duration(size) * ms)
		}
		if err := w.Validate(); err != nil {
			t.Fatal(err)
		}
		var want, got []window.Millis
		for s := window.Millis(-1000); s < 1000; s++ {
			if int64(s)%every == 0 && s <= at && at < s+window.Millis(size) {
				want = append(want, s)
			}
		}
		first, last := w.Starts(at)
		for s := first; s <= last; s = s.Add(w.Every()) {
			got = append(got, s)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v at %d: %v, want %v", w, at, got, want)
		}
	})
}

// TestJoinByDefinition: joined one by one, in any order, records make the sessions that a look at all of them
// makes: neighbours at most gap apart belong together.
func TestJoinByDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gap := window.Millis(rapid.Int64Range(1, 20).Draw(t, "gap"))
		w := window.Session(time.Duration(gap) * ms)
		times := rapid.SliceOf(rapid.Int64Range(-100, 100)).Draw(t, "times")
		var got []window.Span
		for _, x := range times {
			from, to, merged := w.Join(got, window.Millis(x))
			got = slices.Replace(got, from, to, merged)
		}
		var want []window.Span
		for _, x := range slices.Sorted(slices.Values(times)) {
			at := window.Millis(x)
			if n := len(want); n > 0 && at <= want[n-1].End {
				want[n-1].End = at + gap
			} else {
				want = append(want, window.Span{Start: at, End: at + gap})
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("gap %d, records %v: %v, want %v", gap, times, got, want)
		}
	})
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		w    window.Windows
		good bool
	}{
		{window.Tumbling(time.Minute), true},
		{window.Tumbling(ms).Grace(time.Hour), true},
		{window.Tumbling(0), false},
		{window.Tumbling(-time.Second), false},
		{window.Tumbling(time.Millisecond + time.Microsecond), false},
		{window.Tumbling(time.Minute).Grace(-ms), false},
		{window.Tumbling(time.Minute).Grace(time.Microsecond), false},
		{window.Hopping(time.Minute, 10*time.Second), true},
		{window.Hopping(time.Minute, 2*time.Minute), false},
		{window.Hopping(time.Minute, 0), false},
		{window.Hopping(24*time.Hour, time.Minute), true},
		{window.Hopping(24*time.Hour, time.Second), false},
		{window.Sliding(time.Minute), true},
		{window.Session(time.Minute), true},
		{window.Session(0), false},
		{window.Windows{}, false},
	} {
		if err := c.w.Validate(); (err == nil) != c.good {
			t.Errorf("%v: %v", c.w, err)
		}
	}
}

func TestClosing(t *testing.T) {
	w := window.Tumbling(time.Minute).Grace(10 * time.Second)
	if got := w.ClosesAt(60_000); got != 70_000 {
		t.Errorf("closes at %d", got)
	}
	if got, want := w.String(), "tumbling 1m0s, grace 10s"; got != want {
		t.Errorf("%q", got)
	}
}

// TestOf: what a producer can send as a timestamp is put into windows or refused, and never overflows.
func TestOf(t *testing.T) {
	for _, x := range []int64{-1 << 63, -1 << 62, int64(window.MinMillis) - 1, int64(window.MaxMillis) + 1, 1 << 62, 1<<63 - 1} {
		if m, ok := window.Of(time.UnixMilli(x)); ok {
			t.Errorf("%d is taken for %d", x, m)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.Int64Range(int64(window.MinMillis), int64(window.MaxMillis)).Draw(t, "ms")
		fine := rapid.Int64Range(0, int64(ms)-1).Draw(t, "finer")
		m, ok := window.Of(time.UnixMilli(x).Add(time.Duration(fine)))
		if !ok || int64(m) != x || m.Time().UnixMilli() != x {
			t.Fatalf("%d became %d, %v", x, m, ok)
		}
	})
}

func TestKeySerde(t *testing.T) {
	s := window.KeySerde(serde.String())
	rapid.Check(t, func(t *rapid.T) {
		start := window.Millis(rapid.Int64Range(int64(window.MinMillis), int64(window.MaxMillis)).Draw(t, "start"))
		end := window.Millis(rapid.Int64Range(int64(start), int64(window.MaxMillis)).Draw(t, "end"))
		k := window.Key[string]{Key: rapid.String().Draw(t, "key"), Window: window.Span{Start: start, End: end}.Window()}
		b, err := s.Append([]byte("before"), k)
		if err != nil {
			t.Fatal(err)
		}
		b = b[len("before"):]
		back, err := s.Decode(b)
		if err != nil || back != k {
			t.Fatalf("%v came back as %v, %v", k, back, err)
		}
		part := s.(interface{ PartitionBytes([]byte) []byte }).PartitionBytes(b)
		if string(part) != k.Key {
			t.Fatalf("partitioned by %q, want %q", part, k.Key)
		}
	})
	for _, b := range [][]byte{nil, {}, make([]byte, 15), append([]byte("k"), make([]byte, 15)...), []byte("k\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02"), []byte("\xff\xff\xff\xff\xff\xff\xff\xff\x80\x00\x00\x00\x00\x00\x00\x00")} {
		if _, err := s.Decode(b); !errors.Is(err, window.ErrKey) {
			t.Errorf("%q: %v", b, err)
		}
	}
	if _, err := window.KeySerde(serde.Bytes()).Append(nil, window.Key[[]byte]{}); !errors.Is(err, serde.ErrNull) {
		t.Errorf("null key: %v", err)
	}
	if _, err := s.Append(nil, window.Key[string]{Window: window.Window{Start: time.UnixMilli(1 << 60), End: time.UnixMilli(1 << 61)}}); !errors.Is(err, window.ErrKey) {
		t.Errorf("a window beyond all times: %v", err)
	}
}
