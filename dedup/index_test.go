package dedup

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/streamd/streamd/dedup/deduptest"
	"github.com/streamd/streamd/record"
)

const hour = int64(3_600_000)

func mustOpen(t testing.TB, cfg Config, log Log) *Index {
	t.Helper()
	if cfg.Retention == 0 {
		cfg.Retention = 8 * time.Hour
	}
	ix, err := Open(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	return ix
}

func mustCheck(t testing.TB, ix *Index, id int, want Verdict) Answer {
	t.Helper()
	ans, err := ix.Check(hashOf(id), 0, milli(ix.streamTime))
	if err != nil || ans.Verdict != want {
		t.Fatalf("ID %d: %+v, %v; want %v", id, ans, err, want)
	}
	return ans
}

func mustCommit(t testing.TB, ix *Index, log *deduptest.Log, ms int64) (blocks []record.IDBlock, drops []uint64) {
	t.Helper()
	blocks, drops = ix.Prepare(at(ms))
	if err := log.Apply(blocks, drops); err != nil {
		t.Fatal(err)
	}
	ix.Commit()
	return blocks, drops
}

// fill commits the IDs from..to, 1000 a transaction.
func fill(t testing.TB, ix *Index, log *deduptest.Log, from, to int, ms int64) {
	t.Helper()
	for i := from; i < to; i++ {
		mustCheck(t, ix, i, New)
		if i%1000 == 999 || i == to-1 {
			mustCommit(t, ix, log, ms)
		}
	}
}

func sealAll(t testing.TB, ix *Index) (n int) {
	t.Helper()
	for job := ix.SealJob(); job != nil; job = ix.SealJob() {
		if err := ix.Sealed(job()); err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

func TestOneTransaction(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{}, log)
	ix.Advance(at(hour))
	mustCheck(t, ix, 1, New)
	if ans := mustCheck(t, ix, 1, DuplicatePending); !ans.Pending { // CRASH 39
		t.Errorf("%+v", ans)
	}
	blocks, drops := mustCommit(t, ix, log, hour)
	h := hashOf(1)
	want := []record.IDBlock{{Generation: 1, StreamTime: at(hour).UTC(), EntryBytes: 16, Entries: h[:]}}
	if !reflect.DeepEqual(blocks, want) || drops != nil {
		t.Fatalf("%+v, %v", blocks, drops)
	}
	if ans := mustCheck(t, ix, 1, Duplicate); ans.Pending || !ans.SeenAt.Equal(at(hour)) || ans.Bloom != NotAsked {
		t.Errorf("%+v", ans)
	}
	// A transaction of duplicates only adds nothing.
	if blocks, drops := ix.Prepare(at(hour)); blocks != nil || drops != nil {
		t.Errorf("%v, %v", blocks, drops)
	}
	if _, err := ix.Check(hashOf(2), 0, at(hour)); !errors.Is(err, ErrPrepared) {
		t.Errorf("check after prepare: %v", err)
	}
	ix.Commit()
}

// CRASH 40
func TestAbortLeavesNothing(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{}, log)
	ix.Advance(at(hour))
	mustCheck(t, ix, 1, New)
	mustCommit(t, ix, log, hour)
	for _, prepared := range []bool{false, true} {
		ix.Advance(at(20 * hour))
		mustCheck(t, ix, 1, New) // forgotten by now
		mustCheck(t, ix, 2, New)
		if prepared {
			ix.Prepare(at(20 * hour))
		}
		ix.Abort()
		// Stream time is back too, or the records would be judged by what came after them.
		mustCheck(t, ix, 1, Duplicate)
		mustCheck(t, ix, 2, New)
		ix.Abort()
	}
	if s := ix.Stats(); s.IDs != 1 || s.Generations != 1 || s.Expired != 0 {
		t.Errorf("%+v", s)
	}
}

func TestRollback(t *testing.T) {
	ix := mustOpen(t, Config{}, &deduptest.Log{})
	for i := range 1000 {
		mustCheck(t, ix, i, New)
	}
	mark := ix.Mark()
	for i := 1000; i < 3000; i++ {
		mustCheck(t, ix, i, New)
	}
	ix.Rollback(mark)
	for i := range 3000 {
		want := New
		if i < 1000 {
			want = DuplicatePending
		}
		mustCheck(t, ix, i, want)
	}
	defer func() {
		if recover() == nil {
			t.Error("a rollback forward is not noticed")
		}
	}()
	ix.Rollback(ix.Mark() + 1)
}

func TestConflict(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{Payload: true}, log)
	check := func(payload uint64, want Answer) {
		t.Helper()
		ans, err := ix.Check(hashOf(1), payload, at(hour))
		ans.SeenAt = time.Time{}
		if err != nil || ans != want {
			t.Fatalf("%+v, %v; want %+v", ans, err, want)
		}
	}
	check(7, Answer{Verdict: New})
	check(7, Answer{Verdict: DuplicatePending, Pending: true})
	check(8, Answer{Verdict: Conflict, Pending: true})
	mustCommit(t, ix, log, hour)
	check(7, Answer{Verdict: Duplicate})
	check(8, Answer{Verdict: Conflict})
	mustCheck(t, ix, 2, New)
	mustCommit(t, ix, log, 2*hour)
	if n := sealAll(t, ix); n != 1 {
		t.Fatalf("%d sealed", n)
	}
	check(7, Answer{Verdict: Duplicate, Bloom: TruePositive})
	check(8, Answer{Verdict: Conflict, Bloom: TruePositive})
	// Without payload hashes the same log knows duplicates only.
	ix = mustOpen(t, Config{}, log)
	check(8, Answer{Verdict: Duplicate, Bloom: TruePositive})
}

// CRASH 41: what is older than the window is unknown, not new.
func TestTooLate(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{Retention: 8 * time.Hour}, log)
	ix.Advance(at(20 * hour))
	for _, c := range []struct {
		at   int64
		want Verdict
	}{{12 * hour, New}, {12*hour - 1, TooLate}, {-1 << 40, TooLate}, {1 << 50, New}} {
		ans, err := ix.Check(hashOf(int(c.at)), 0, at(c.at))
		if err != nil || ans.Verdict != c.want || !ans.SeenAt.IsZero() {
			t.Errorf("at %d: %+v, %v; want %v", c.at, ans, err, c.want)
		}
	}
	// A known one is a duplicate however old it says it is.
	if ans, _ := ix.Check(hashOf(int(12*hour)), 0, at(0)); ans.Verdict != DuplicatePending {
		t.Errorf("%+v", ans)
	}
	if ix.Mark() != 2 {
		t.Errorf("%d pending", ix.Mark())
	}
	// The far future did not move stream time (CRASH 42).
	mustCheck(t, ix, 5, New)
}

// FIELD H10: the age at which an ID is forgotten lies within one generation of the setting.
func TestExpiryAge(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{Retention: 8 * time.Hour}, log)
	const step = hour / 10
	forgotten := map[int]int64{}
	alive := []int{}
	for i := range 400 {
		now := int64(i) * step
		ix.Advance(at(now))
		mustCheck(t, ix, i, New)
		mustCommit(t, ix, log, now)
		sealAll(t, ix)
		keep := alive[:0]
		for _, id := range alive {
			mark := ix.Mark()
			ans, err := ix.Check(hashOf(id), 0, at(now))
			if err != nil {
				t.Fatal(err)
			}
			ix.Rollback(mark)
			if ans.Verdict == New {
				forgotten[id] = now - int64(id)*step
			} else {
				keep = append(keep, id)
			}
		}
		alive = append(keep, i)
		gens, _ := log.Generations()
		if s := ix.Stats(); len(gens) > 11 || s.Generations > 10 || s.Sealed < s.Generations-1 {
			t.Fatalf("%d generations, %+v", len(gens), s)
		}
	}
	if len(forgotten) < 300 {
		t.Fatalf("%d forgotten", len(forgotten))
	}
	for id, age := range forgotten {
		if age <= 8*hour || age > 9*hour {
			t.Errorf("ID %d was forgotten at the age of %v", id, time.Duration(age)*time.Millisecond)
		}
	}
	if s := ix.Stats(); s.Expired < 290 {
		t.Errorf("%+v", s)
	}
}

// An idle operator keeps its newest generation for the number, but not its IDs.
func TestNumbersGoOn(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{}, log)
	mustCheck(t, ix, 1, New)
	mustCommit(t, ix, log, hour)
	if _, drops := mustCommit(t, ix, log, 100*hour); drops != nil {
		t.Fatalf("the only generation is dropped: %v", drops)
	}
	ix = mustOpen(t, Config{}, log)
	ix.Advance(at(100 * hour))
	if s := ix.Stats(); s.IDs != 0 || !s.Oldest.IsZero() {
		t.Errorf("%+v", s)
	}
	mustCheck(t, ix, 1, New)
	blocks, drops := mustCommit(t, ix, log, 100*hour)
	if blocks[0].Generation != 2 || !reflect.DeepEqual(drops, []uint64{1}) {
		t.Errorf("generation %d, drops %v", blocks[0].Generation, drops)
	}
}

// So does one whose entries have another size since the configuration was changed: it is closed, but the newest.
func TestNumbersGoOnAfterAChange(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{}, log)
	mustCheck(t, ix, 1, New)
	mustCommit(t, ix, log, hour)
	ix = mustOpen(t, Config{Payload: true}, log)
	if _, drops := mustCommit(t, ix, log, 100*hour); drops != nil {
		t.Fatalf("the only generation is dropped: %v", drops)
	}
	mustCheck(t, ix, 1, New)
	blocks, drops := mustCommit(t, ix, log, 100*hour)
	if blocks[0].Generation != 2 || blocks[0].EntryBytes != 24 || !reflect.DeepEqual(drops, []uint64{1}) {
		t.Errorf("%+v, drops %v", blocks[0], drops)
	}
}

// Opened again, the index is where its last block was, even before anybody tells it the time.
func TestTimeAfterOpen(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{}, log)
	mustCheck(t, ix, 1, New)
	mustCommit(t, ix, log, 20*hour)
	ix = mustOpen(t, Config{}, log)
	if ans, err := ix.Check(hashOf(2), 0, at(12*hour-1)); err != nil || ans.Verdict != TooLate {
		t.Errorf("%+v, %v", ans, err)
	}
}

// FIELD I6: the filter is never the truth. With filters that say "maybe" to every second ID no unique
// one is dropped.
func TestFalsePositivesDropNothing(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 20_000
	}
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{FalsePositiveRate: 0.5, Payload: true}, log)
	ix.generationIDs = n / 10
	answers := map[Bloom]int{}
	for i := range n {
		ans := mustCheck(t, ix, i, New)
		answers[ans.Bloom]++
		if i%500 == 499 {
			mustCommit(t, ix, log, int64(i))
			sealAll(t, ix)
		}
	}
	if answers[FalsePositive] < n/5 || answers[TruePositive] != 0 {
		t.Fatalf("the filters were not put to the test: %v", answers)
	}
	s := ix.Stats()
	if s.FalsePositives < 0.4 || s.WorstFill < 0.4 || s.WorstFill > 0.8 {
		t.Errorf("%+v", s)
	}
	for i := range n {
		mustCheck(t, ix, i, Duplicate)
	}
}

// FIELD I7: the rate measured is the rate computed, also for IDs that differ in a few characters only.
func TestRateIsAsComputed(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{FalsePositiveRate: 0.01}, log)
	fill(t, ix, log, 0, 150_000, hour)
	sealAll(t, ix)
	want, hits, n := ix.Stats().FalsePositives, 0, 0
	for i := 1_000_000; i < 1_030_000; i++ {
		n++
		if mustCheck(t, ix, i, New).Bloom == FalsePositive {
			hits++
		}
	}
	got := float64(hits) / float64(n)
	if want == 0 || math.Abs(got-want) > 0.2*want {
		t.Errorf("measured %v, computed %v", got, want)
	}
}

// Generations grow with an underestimated load, so that there are never many of them.
func TestGenerationsStayFew(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{ExpectedIDs: 1}, log) // 8 generations would be 262,144
	worst := 0.0
	for i := 0; i < 1_000_000; i += 10_000 {
		fill(t, ix, log, i, i+10_000, hour)
		sealAll(t, ix)
		s := ix.Stats()
		if s.IDs > 262_144 {
			worst = max(worst, float64(s.BloomBytes+s.ExactBytes)/float64(s.IDs))
		}
		if s.IDs == 260_000 && s.Generations > 9 {
			t.Errorf("%+v", s)
		}
	}
	if s := ix.Stats(); s.Generations > 14 || s.IDs != 1_000_000 {
		t.Errorf("%+v", s)
	}
	if worst > 6.5 {
		t.Errorf("up to %.1f bytes an ID", worst)
	}
}

// The same transactions give the same numbers and bytes, whatever is sealed in between and wherever
// the index is opened again.
func TestReplayGivesTheSame(t *testing.T) {
	run := func(seals, reopens bool) (out []record.IDBlock) {
		log := &deduptest.Log{}
		ix := mustOpen(t, Config{}, log)
		now := int64(0)
		for i := range 60_000 {
			mustCheck(t, ix, i, New)
			if i%100 == 0 {
				now += hour / 60
				ix.Advance(at(now))
				blocks, _ := mustCommit(t, ix, log, now)
				for _, b := range blocks {
					b.Entries = bytes.Clone(b.Entries)
					out = append(out, b)
				}
				if seals {
					sealAll(t, ix)
				}
				if reopens && i%3 == 0 {
					ix = mustOpen(t, Config{}, log)
				}
			}
		}
		return out
	}
	want := run(false, false)
	if want[len(want)-1].Generation < 6 {
		t.Fatalf("only %d generations", want[len(want)-1].Generation)
	}
	for _, c := range [][2]bool{{true, false}, {true, true}} {
		if !reflect.DeepEqual(run(c[0], c[1]), want) {
			t.Errorf("seals %v, reopens %v: other blocks", c[0], c[1])
		}
	}
}

func TestLargeTransactionHasSeveralBlocks(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{Payload: true}, log)
	for i := range 50_000 {
		mustCheck(t, ix, i, New)
	}
	blocks, _ := mustCommit(t, ix, log, hour)
	n := 0
	for _, b := range blocks {
		if b.Generation != 1 || len(b.Entries) > 512<<10 || len(b.Entries)%24 != 0 {
			t.Errorf("block of %d bytes", len(b.Entries))
		}
		n += b.Len()
	}
	if len(blocks) != 3 || n != 50_000 {
		t.Errorf("%d blocks, %d IDs", len(blocks), n)
	}
	ix = mustOpen(t, Config{Payload: true}, log)
	for i := range 50_000 {
		mustCheck(t, ix, i, Duplicate)
	}
}

func TestValidate(t *testing.T) {
	for name, c := range map[string]Config{
		"retention": {},
		"negative":  {Retention: time.Hour, ExpectedIDs: -1},
		"rate":      {Retention: time.Hour, FalsePositiveRate: 0.6},
		"rate low":  {Retention: time.Hour, FalsePositiveRate: 1e-10},
		"not a num": {Retention: time.Hour, FalsePositiveRate: math.NaN()},
	} {
		if c.Validate() == nil {
			t.Errorf("%s passes", name)
		}
		if _, err := Open(c, &deduptest.Log{}); err == nil {
			t.Errorf("%s opens", name)
		}
	}
	if err := (Config{Retention: time.Second, ExpectedIDs: math.MaxInt, FalsePositiveRate: 1e-9}).Validate(); err != nil {
		t.Error(err)
	}
}

// The answers that most records get cost no allocation.
func TestAllocations(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{}, log)
	fill(t, ix, log, 0, 100_000, hour)
	sealAll(t, ix)
	hashes := make([]record.Hash, 2000)
	for i := range hashes {
		hashes[i] = hashOf(1_000_000 + i)
	}
	i := 0
	if n := testing.AllocsPerRun(1000, func() {
		if ans, _ := ix.Check(hashes[i], 0, at(hour)); ans.Verdict != New {
			t.Error(ans)
		}
		if ans, _ := ix.Check(hashes[i], 0, at(hour)); ans.Verdict != DuplicatePending {
			t.Error(ans)
		}
		i++
	}); n > 0.1 {
		t.Errorf("%v allocations a record", n)
	}
}

// heapBytes is what the heap holds after a collection.
func heapBytes() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// Design target: at most 6 bytes an ID with everything, 2.2 of them in sealed generations.
func TestMemory(t *testing.T) {
	const n = 2_000_000
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{ExpectedIDs: n}, discard{log})
	before := heapBytes()
	worst := 0.0
	for i := range n {
		mustCheck(t, ix, i, New)
		if i%1000 == 999 {
			ix.Prepare(at(hour))
			ix.Commit()
			sealAll(t, ix)
		}
		if i%100_000 == 99_999 && i > n/2 {
			worst = max(worst, float64(heapBytes()-before)/float64(i))
		}
	}
	s := ix.Stats()
	sealed := s.IDs - ix.open.ids
	t.Logf("%.2f bytes an ID at worst from half full on, %.2f at the end, %.2f sealed: %+v", worst, float64(heapBytes()-before)/n, float64(s.BloomBytes)/float64(sealed), s)
	if worst > 6 || float64(s.BloomBytes)/float64(sealed) > 2.2 {
		t.Error("over the target")
	}
	runtime.KeepAlive(ix)
}

// discard is a log that keeps nothing.
type discard struct{ *deduptest.Log }

func (discard) Seal(record.Generation, func(uint32) []byte, []byte) error { return nil }
func (discard) Run(uint64, uint32) ([]byte, error)                        { return nil, nil }
