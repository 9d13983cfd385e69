package ordered

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// Whatever is put and deleted, a Map is a Go map whose keys are sorted.
func TestAgainstAMapOfGo(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 10 {
		var m Map
		want := map[string][]byte{}
		keys := 1 + r.IntN(200)
		for range 2000 {
			key := fmt.Sprint(r.IntN(keys))
			switch r.IntN(6) {
			case 0, 1, 2:
				value := fmt.Append(nil, r.IntN(1000))
				m.Put(key, value)
				want[key] = value
			case 3, 4:
				m.Delete([]byte(key))
				delete(want, key)
			default:
				compareRange(t, &m, want, fmt.Append(nil, r.IntN(keys)), bound(r, keys))
			}
			if got := m.Get([]byte(key)); !bytes.Equal(got, want[key]) || (got == nil) != (want[key] == nil) || m.Len() != len(want) {
				t.Fatalf("round %d: %q is %q of %d, want %q of %d", round, key, got, m.Len(), want[key], len(want))
			}
		}
		compareRange(t, &m, want, nil, nil)
	}
}

func bound(r *rand.Rand, keys int) []byte {
	if r.IntN(3) == 0 {
		return nil
	}
	return fmt.Append(nil, r.IntN(keys))
}

func compareRange(t *testing.T, m *Map, all map[string][]byte, from, to []byte) {
	t.Helper()
	var got, want []string
	m.Range(from, to, func(k string, v []byte) bool {
		got = append(got, k+"="+string(v))
		return true
	})
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if k >= string(from) && (to == nil || k < string(to)) {
			want = append(want, k+"="+string(all[k]))
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("from %q to %q: %v, want %v", from, to, got, want)
	}
}

// A walk that has seen enough ends.
func TestRangeEnds(t *testing.T) {
	var m Map
	for _, k := range []string{"c", "a", "b"} {
		m.Put(k, []byte(k))
	}
	var got []string
	for k := range m.All() {
		if got = append(got, k); k == "b" {
			break
		}
	}
	if !slices.Equal(got, []string{"a", "b"}) {
		t.Error(got)
	}
}
