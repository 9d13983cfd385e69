package processor

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
)

// TestRangesAreThoseOfAMap: whatever is put, deleted, undone, committed, aborted and applied beside, a range of a state store is
// that of a map, from any key, as long as anybody wants to see of it, also where the one who sees it reads. And what a
// transaction says that it has changed makes its changelog that map.
func TestRangesAreThoseOfAMap(t *testing.T) {
	for seed := range uint64(60) {
		h := newRangeHistory(t, seed)
		for range 12 { // transactions
			for range h.r.IntN(8) {
				h.record()
			}
			h.end()
		}
		h.jobs.Wait()
	}
}

// rangeHistory is a state store and the map that it should be.
type rangeHistory struct {
	t    *testing.T
	seed uint64
	r    *rand.Rand
	jobs sync.WaitGroup

	disk   *readTask
	l      *lagging
	o      *overlay
	seq    uint64
	keys   int
	large  bool // values that fill pages
	inside bool // a range is being read
	next   int  // the number behind the last key that was put at the end, as an index by time has it

	txn, committed, changelog map[string]string
}

func newRangeHistory(t *testing.T, seed uint64) *rangeHistory {
	h := &rangeHistory{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 3)), disk: &readTask{}, txn: map[string]string{}, committed: map[string]string{}, changelog: map[string]string{}}
	_ = h.disk.Reset()
	aside := h.jobs.Go
	if seed%2 == 0 {
		aside = nil
	}
	h.keys, h.large = []int{5, 60, 1500}[h.r.IntN(3)], h.r.IntN(3) == 0
	h.l = newLagging(h.disk, []int{0, 300, lagBytes}[h.r.IntN(3)], aside)
	h.o = newOverlay("s", h.l, 1<<20)
	return h
}

func (h *rangeHistory) key() string {
	if n := h.r.IntN(h.keys); n > 0 {
		return fmt.Sprintf("%06d", n)
	}
	return "" // is a key, too
}

func (h *rangeHistory) put(key string) {
	value := fmt.Sprint(h.r.IntN(1000))
	if h.large {
		value += string(make([]byte, h.r.IntN(9<<10)))
	}
	if h.r.IntN(9) == 0 {
		value = ""
	}
	if err := h.o.Put([]byte(key), []byte(value)); err != nil {
		h.t.Fatal(err)
	}
	h.txn[key] = value
}

func (h *rangeHistory) remove(key string) {
	if err := h.o.Put([]byte(key), nil); err != nil {
		h.t.Fatal(err)
	}
	delete(h.txn, key)
}

// readTask is a lockedTask that may be read while a range of it is.
type readTask struct{ lockedTask }

func (t *readTask) Range(store string, from, to []byte, fn func(k, v []byte) bool) error {
	var all []rawEntry
	err := t.lockedTask.Range(store, from, to, func(k, v []byte) bool {
		all = append(all, rawEntry{k, v})
		return true
	})
	for _, e := range all {
		if !fn(e.key, e.value) {
			break
		}
	}
	return err
}

// record does what a record might do, and is kept or undone.
func (h *rangeHistory) record() {
	before := maps.Clone(h.txn)
	for range h.r.IntN(2 + min(h.keys, 200)/4) {
		switch h.r.IntN(8) {
		case 0, 1, 2:
			h.put(h.key())
		case 3:
			h.remove(h.key())
		case 4:
			h.next++
			h.put(fmt.Sprintf("%06d", h.next))
		case 5: // take off what is first
			for _, k := range h.see([]byte(fmt.Sprintf("%06d", max(0, h.next-h.r.IntN(h.keys)))), nil, 1+h.r.IntN(3)) {
				h.remove(k)
			}
		case 6:
			h.see([]byte(h.key()), []byte(h.key()), 1+h.r.IntN(200))
		default:
			h.see(nil, nil, 1+h.r.IntN(200))
		}
	}
	if h.r.IntN(4) == 0 {
		h.o.undo()
		h.txn = before
	} else {
		h.o.keep()
	}
}

// see compares a range, and returns its keys.
func (h *rangeHistory) see(from, to []byte, most int) (keys []string) {
	h.t.Helper()
	var want []string
	for k := range h.txn {
		if k >= string(from) && (to == nil || k < string(to)) {
			want = append(want, k)
		}
	}
	slices.Sort(want)
	want = want[:min(most, len(want))]
	nested := h.r.IntN(20)
	if h.inside {
		nested = 0
	}
	err := h.o.Range(from, to, func(k, v []byte) bool {
		if string(v) != h.txn[string(k)] || k == nil || v == nil {
			h.t.Fatalf("seed %d: %s is %.20q, want %.20q", h.seed, k, v, h.txn[string(k)])
		}
		if keys = append(keys, string(k)); len(keys) == nested {
			other := h.key()
			v, err := h.o.Get([]byte(other))
			if want, there := h.txn[other]; err != nil || string(v) != want || (v != nil) != there {
				h.t.Fatalf("seed %d: %s is %.20q, want %.20q (%v, %v)", h.seed, other, v, want, there, err)
			}
			h.inside = true
			h.see([]byte(other), nil, 100)
			h.inside = false
		}
		return len(keys) < most
	})
	if err != nil {
		h.t.Fatal(err)
	}
	if !slices.Equal(keys, want) {
		h.t.Fatalf("seed %d: from %s to %s: %v, want %v", h.seed, from, to, keys, want)
	}
	return keys
}

// end commits the transaction, aborts it, or makes the task anew.
func (h *rangeHistory) end() {
	if h.r.IntN(4) == 0 {
		h.o.abort()
		h.txn = maps.Clone(h.committed)
		return
	}
	h.seq++
	changes := h.o.appendChanges(nil, &arena{})
	for _, c := range changes {
		if c.Value == nil {
			delete(h.changelog, string(c.Key))
		} else {
			h.changelog[string(c.Key)] = string(c.Value)
		}
	}
	if !maps.Equal(h.changelog, h.txn) {
		h.t.Fatalf("seed %d: the changelog has %d keys, want %d", h.seed, len(h.changelog), len(h.txn))
	}
	b := &record.Batch{State: changes, Position: record.LocalPosition{CommitPoint: record.CommitPoint{Sequence: h.seq}, AppliedAt: time.Unix(int64(h.seq), 0)}}
	if err := h.l.Apply(b); err != nil {
		h.t.Fatal(err)
	}
	h.o.commit()
	h.committed = maps.Clone(h.txn)
	if h.r.IntN(6) == 0 {
		h.o = newOverlay("s", h.l, 1<<20)
	}
}

// TestALookReadsWhatIsNew: an index by time costs what is read of it, however much the transaction has changed, and however much
// was taken off it before: the local store is not read for each look.
func TestALookReadsWhatIsNew(t *testing.T) {
	store := &countedStore{}
	_ = store.Reset()
	o := newOverlay("s", store, 1<<20)
	const transactions, records, wait = 4, 3000, 5000
	at := 0
	key := func(n int) []byte { return fmt.Appendf(nil, "%08d", n) }
	for seq := range uint64(transactions) {
		for range records {
			at++
			if err := o.Put(key(at+wait), []byte{}); err != nil {
				t.Fatal(err)
			}
			var due []byte
			err := o.Range(key(at-1), nil, func(k, _ []byte) bool {
				if bytes.Compare(k, key(at)) <= 0 {
					due = bytes.Clone(k)
					return true
				}
				return false
			})
			if want := at > wait; err != nil || (due != nil) != want {
				t.Fatalf("at %d: due is %q, %v", at, due, err)
			}
			if due != nil {
				if err := o.Put(due, nil); err != nil {
					t.Fatal(err)
				}
			}
			o.keep()
		}
		b := &record.Batch{State: o.appendChanges(nil, &arena{}), Position: record.LocalPosition{CommitPoint: record.CommitPoint{Sequence: seq + 1}}}
		if err := store.Apply(b); err != nil {
			t.Fatal(err)
		}
		o.commit()
	}
	if most := transactions * records / pageAhead; store.ranges > most || store.seen > 2*transactions*records {
		t.Errorf("%d looks read the local store %d times and saw %d keys there, want at most %d times", transactions*records, store.ranges, store.seen, most)
	}
	if n := len(o.committed.page.entries); n > pageMost {
		t.Errorf("the page has %d entries", n)
	}
}

// countedStore counts what is read of it.
type countedStore struct {
	memoryTask
	ranges, seen int
}

func (s *countedStore) Range(store string, from, to []byte, fn func(k, v []byte) bool) error {
	s.ranges++
	return s.memoryTask.Range(store, from, to, func(k, v []byte) bool {
		s.seen++
		return fn(k, v)
	})
}
