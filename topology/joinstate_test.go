package topology

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestJoinInChunks: whether what waits stands in its list or in chunks, many small ones or few, cannot be told from the results of a key: not from
// their order, not from their IDs. And nothing of it is left in the end.
func TestJoinInChunks(t *testing.T) {
	inline, chunk := joinInline, joinChunkBytes
	defer func() { joinInline, joinChunkBytes = inline, chunk }()
	windows := []JoinWindows{
		JoinWithin(20 * time.Second).Grace(5 * time.Second),
		JoinWithin(0).After(40 * time.Second).Grace(0),
		JoinWithin(3 * time.Second).Before(30 * time.Second).Grace(20 * time.Second),
	}
	kinds := map[string]func(l, r *Stream[string, string], w JoinWindows) *Stream[string, string]{
		"inner": func(l, r *Stream[string, string], w JoinWindows) *Stream[string, string] {
			return Join(l, r, "joined", w, joinText)
		},
		"left": func(l, r *Stream[string, string], w JoinWindows) *Stream[string, string] {
			return LeftJoin(l, r, "joined", w, joinMaybe)
		},
		"outer": func(l, r *Stream[string, string], w JoinWindows) *Stream[string, string] {
			return OuterJoin(l, r, "joined", w, joinAny)
		},
	}
	for name, kind := range kinds {
		for seed := range uint64(30) {
			w := windows[seed%3]
			joinInline, joinChunkBytes = 1<<30, 1<<30
			want, _ := playJoin(t, seed, func(l, r *Stream[string, string]) *Stream[string, string] { return kind(l, r, w) })
			for _, limits := range [][2]int{{0, 0}, {1, 60}, {60, 200}, {100, 1 << 20}} {
				joinInline, joinChunkBytes = limits[0], limits[1]
				got, chunks := playJoin(t, seed, func(l, r *Stream[string, string]) *Stream[string, string] { return kind(l, r, w) })
				if !slices.Equal(got, want) {
					t.Fatalf("%s, seed %d, limits %v:\n%d results, want %d; %s", name, seed, limits, len(got), len(want), firstDifference(got, want))
				}
				if chunks < 2 {
					t.Errorf("%s, seed %d, limits %v: at most %d chunks", name, seed, limits, chunks)
				}
			}
		}
	}
}

func firstDifference(got, want []string) string {
	for i := range got {
		if i >= len(want) || got[i] != want[i] {
			return fmt.Sprintf("the %d-th is %q, want %q", i, got[i], want[min(i, len(want)-1)])
		}
	}
	return "the last ones are missing"
}

// playJoin sends a random history of two sides, and returns the results, those of a key in one row, and how many chunks there were.
func playJoin(t *testing.T, seed uint64, join func(l, r *Stream[string, string]) *Stream[string, string]) (results []string, chunks int) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	d := windowedJoin(t, join)
	now := 1000
	pass := func(seconds int) {
		if err := d.pass(time.Unix(int64(seconds), 0), false); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 400 {
		switch r.IntN(12) {
		case 0:
			now += r.IntN(8)
		case 1, 2, 3:
			now += r.IntN(2)
		case 4:
			if r.IntN(10) == 0 {
				now += 60
			}
		}
		pass(now - 10)
		of := now - r.IntN(12)
		d.mustSendTo(r.IntN(5)%2, at(of, fmt.Sprintf("%c=%d#%d", 'a'+rune(r.IntN(2)), i, i)))
		n := 0
		for k := range d.rt.stores["joined"].content {
			if k[0] == chunkOf {
				n++
			}
		}
		chunks = max(chunks, n)
	}
	pass(now + 1000)
	for k, v := range d.rt.stores["joined"].content {
		t.Errorf("seed %d: left in the store: %q: %q", seed, k, v)
	}
	for _, o := range d.rt.out {
		results = append(results, fmt.Sprintf("%s=%s %s at %d", o.Key, o.Value, header(o, DefaultIDHeader), o.Timestamp.UnixMilli()))
	}
	slices.SortStableFunc(results, func(a, b string) int { return strings.Compare(a[:1], b[:1]) })
	return results, chunks
}
