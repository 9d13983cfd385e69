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
		for seed := range uint64(12) {
			w := windows[seed%3]
			joinInline, joinChunkBytes = 1<<30, 1<<30
			join := func(l, r *Stream[string, string]) *Stream[string, string] { return kind(l, r, w) }
			want, _ := playJoin(t, seed, join, join)
			for _, limits := range [][2]int{{0, 0}, {1, 60}, {60, 200}, {100, 1 << 20}} {
				joinInline, joinChunkBytes = limits[0], limits[1]
				got, chunks := playJoin(t, seed, join, join)
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

// TestJoinBecomesAnother: what waits is there when the application is started again with longer or shorter windows, or as a join that tells what has no match. What
// chunks say of themselves is by the old ones.
func TestJoinBecomesAnother(t *testing.T) {
	inline, chunk := joinInline, joinChunkBytes
	defer func() { joinInline, joinChunkBytes = inline, chunk }()
	type joining = func(l, r *Stream[string, string]) *Stream[string, string]
	w, longer, shorter := JoinWithin(20*time.Second).Grace(5*time.Second), JoinWithin(60*time.Second).Grace(50*time.Second), JoinWithin(5*time.Second).Grace(time.Second)
	inner := func(w JoinWindows) joining {
		return func(l, r *Stream[string, string]) *Stream[string, string] { return Join(l, r, "joined", w, joinText) }
	}
	outer := func(w JoinWindows) joining {
		return func(l, r *Stream[string, string]) *Stream[string, string] {
			return OuterJoin(l, r, "joined", w, joinAny)
		}
	}
	for name, c := range map[string][2]joining{
		"longer": {inner(w), inner(longer)}, "longer, outer": {outer(w), outer(longer)}, "shorter": {inner(w), inner(shorter)}, "shorter, outer": {outer(w), outer(shorter)},
		"inner to outer": {inner(w), outer(w)}, "outer to inner": {outer(w), inner(w)}, "inner to longer outer": {inner(w), outer(longer)},
	} {
		for seed := range uint64(10) {
			joinInline, joinChunkBytes = 1<<30, 1<<30
			want, _ := playJoin(t, seed, c[0], c[1])
			joinInline, joinChunkBytes = 60, 200
			got, _ := playJoin(t, seed, c[0], c[1])
			switch {
			case strings.Contains(name, "longer"): // what was closed may have been there still, and be open again: it depends on when it was let go of
				onceEach(t, got)
				if len(got) < len(want)*9/10 {
					t.Fatalf("%s, seed %d: %d results, want about %d", name, seed, len(got), len(want))
				}
				continue
			case strings.HasPrefix(name, "shorter"): // the old time is the time to look: the results are the same, and not their order
				slices.Sort(got)
				slices.Sort(want)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s, seed %d: %d results, want %d; %s", name, seed, len(got), len(want), firstDifference(got, want))
			}
		}
	}
}

// onceEach holds that no pair is there twice, and no record with a match and without one.
func onceEach(t *testing.T, results []string) {
	t.Helper()
	seen, matched := map[string]bool{}, map[string]bool{}
	var alone []string
	for _, s := range results {
		pair, _, _ := strings.Cut(s, " ")
		if seen[pair] {
			t.Fatalf("%s is there twice", pair)
		}
		seen[pair] = true
		left, right, _ := strings.Cut(pair, "+")
		left = left[2:] // the key
		switch {
		case right == "?":
			alone = append(alone, left)
		case left == "?":
			alone = append(alone, right)
		default:
			matched[left], matched[right] = true, true
		}
	}
	for _, v := range alone {
		if matched[v] {
			t.Fatalf("%s has a match, and has none", v)
		}
	}
}

// playJoin sends a random history of two sides to a join, and then to what it has become, and returns the results, those of a key in one
// row, and how many chunks there were.
func playJoin(t *testing.T, seed uint64, first, then func(l, r *Stream[string, string]) *Stream[string, string]) (results []string, chunks int) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	d := windowedJoin(t, first)
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
		if i == 200 {
			was := d
			d = windowedJoin(t, then)
			d.rt.stores["joined"].content, d.rt.out, d.passed = was.rt.stores["joined"].content, was.rt.out, was.passed
			for _, x := range d.chain.Timed {
				x.Reset(Moment{Watermark: d.passed})
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

// FuzzJoinList: whatever stands in a store is read or refused, and what was read is written as it was meant.
func FuzzJoinList(f *testing.F) {
	l := joinList{due: 7, chunks: []joinChunk{{from: -5, to: 900, look: 1000, tells: true}, {number: 300, from: -700, to: -700, look: -20}}}
	l.entries = insertEntry(l.entries, joinEntry{at: 5, right: true, id: []byte("id"), value: []byte("value")})
	f.Add(l.append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var one, two joinList
		if one.decode(b) != nil {
			return
		}
		again := one.append(nil)
		if err := two.decode(again); err != nil || !slices.Equal(one.chunks, two.chunks) || one.due != two.due || string(two.append(nil)) != string(again) {
			t.Errorf("%v: %+v became %+v", err, one, two)
		}
	})
}
