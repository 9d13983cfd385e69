package dedup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/streamd/streamd/dedup/deduptest"
	"github.com/streamd/streamd/record"
)

func hashOf(i int) record.Hash {
	return record.ID(binary.BigEndian.AppendUint64(nil, uint64(i))).Hash()
}

func at(ms int64) time.Time { return time.UnixMilli(ms) }

// model is the oracle: a map from ID to when it was committed, and with which payload.
type model struct {
	committed map[int]seen
	pending   map[int]seen
	order     []int // of pending
}

type seen struct {
	at      int64
	payload uint64
}

// world is an index with its log and the oracle, stepped at random.
type world struct {
	t         *testing.T
	rng       *rand.Rand
	cfg       Config
	log       *deduptest.Log
	ix        *Index
	m         model
	now, base int64 // stream time, and as of the last commit
	job       func() SealResult
	counts    map[string]int
}

func (w *world) open() {
	ix, err := Open(w.cfg, w.log)
	if err != nil {
		w.t.Fatalf("open: %v", err)
	}
	ix.generationIDs = 40 // small generations, so that few steps make many
	w.ix, w.job = ix, nil
	w.now = w.base
	w.ix.Advance(at(w.base))
	w.m.pending, w.m.order = map[int]seen{}, nil
}

// check asks for one ID and compares with the oracle.
func (w *world) check(id int, payload uint64) {
	w.t.Helper()
	ans, err := w.ix.Check(hashOf(id), payload, at(w.now))
	if err != nil {
		w.t.Fatalf("check: %v", err)
	}
	w.counts[ans.Verdict.String()]++
	retention := w.cfg.Retention.Milliseconds()
	if p, ok := w.m.pending[id]; ok {
		want := DuplicatePending
		if w.cfg.Payload && p.payload != payload {
			want = Conflict
		}
		if ans.Verdict != want || !ans.Pending {
			w.t.Fatalf("ID %d is pending: %+v, want %v", id, ans, want)
		}
		return
	}
	c, ok := w.m.committed[id]
	switch {
	case ok && w.now <= c.at+retention: // must be remembered
		conflict := ans.Verdict == Conflict && !ans.Pending && w.cfg.Payload && c.payload != payload && c.payload != noPayload
		same := ans.Verdict == Duplicate && (!w.cfg.Payload || c.payload == payload || c.payload == noPayload)
		if !conflict && !same {
			w.t.Fatalf("ID %d of %d at %d: %+v (payload %d, now %d)", id, c.at, w.now, ans, c.payload, payload)
		}
		if d := ans.SeenAt.UnixMilli() - c.at; d > retention/8 || d < -retention/8 {
			w.t.Fatalf("ID %d of %d is said to be of %d", id, c.at, ans.SeenAt.UnixMilli())
		}
		return
	case ok && w.now < c.at+retention+retention/8: // may be remembered
		if ans.Verdict != New {
			return
		}
	case ans.Verdict != New:
		w.t.Fatalf("ID %d is new at %d (last %+v): %+v", id, w.now, c, ans)
	}
	if !w.cfg.Payload {
		payload = noPayload
	}
	w.m.pending[id] = seen{payload: payload}
	w.m.order = append(w.m.order, id)
}

// noPayload marks what was recorded without a payload hash.
const noPayload = 99

func (w *world) commit() {
	blocks, drops := w.ix.Prepare(at(w.now))
	if n := w.rng.IntN(10); n == 0 {
		w.counts["abort prepared"]++
		w.abort()
		return
	}
	if err := w.log.Apply(blocks, drops); err != nil {
		w.t.Fatal(err)
	}
	w.ix.Commit()
	w.base = w.now
	for id, s := range w.m.pending {
		w.m.committed[id] = seen{at: w.now, payload: s.payload}
	}
	w.m.pending, w.m.order = map[int]seen{}, nil
	w.counts["drop"] += len(drops)
}

func (w *world) abort() {
	w.ix.Abort()
	w.now = w.base
	w.ix.Advance(at(w.now))
	w.m.pending, w.m.order = map[int]seen{}, nil
}

// rollback undoes the last few IDs.
func (w *world) rollback() {
	if w.ix.Mark() != len(w.m.order) {
		w.t.Fatalf("mark %d, %d pending", w.ix.Mark(), len(w.m.order))
	}
	mark := w.rng.IntN(len(w.m.order) + 1)
	w.ix.Rollback(mark)
	for _, id := range w.m.order[mark:] {
		delete(w.m.pending, id)
	}
	w.m.order = w.m.order[:mark]
}

// seal takes a job, or ends the one that was taken some steps ago.
func (w *world) seal() {
	if w.job == nil {
		w.job = w.ix.SealJob()
		return
	}
	if w.ix.SealJob() != nil {
		w.t.Fatal("two seals at a time")
	}
	n, crash := 0, w.rng.IntN(3) == 0
	stop := w.rng.IntN(4)
	w.log.SealStep = func() error {
		if n++; crash && n > stop {
			return errDisk
		}
		return nil
	}
	r := w.job()
	w.log.SealStep, w.job = nil, nil
	err := w.ix.Sealed(r)
	if err != nil && !errors.Is(err, errDisk) {
		w.t.Fatal(err)
	}
	w.counts[fmt.Sprintf("seal ok %v", err == nil)]++
}

var errDisk = errors.New("disk")

// reopen is a crash: the log is as it was, maybe with a damaged or lost filter.
func (w *world) reopen() {
	w.log = w.log.Clone()
	gens, _ := w.log.Generations()
	for _, g := range gens {
		switch f, _ := w.log.Filter(g.Number); {
		case len(f) == 0:
		case w.rng.IntN(6) == 0:
			w.log.SetFilter(g.Number, nil)
		case w.rng.IntN(6) == 0:
			f = slices.Clone(f)
			f[w.rng.IntN(len(f))] ^= 1 << w.rng.IntN(8)
			w.log.SetFilter(g.Number, f)
		}
	}
	if w.rng.IntN(4) == 0 {
		w.cfg.Payload = !w.cfg.Payload
	}
	w.open()
	w.counts["rebuilt"] += int(w.ix.rebuilds.Corrupt + w.ix.rebuilds.Missing)
}

// TestModel compares the index with a map through random checks, commits, aborts, rollbacks, seals
// (also failing ones), expiry, crashes and damaged filters.
func TestModel(t *testing.T) {
	total := map[string]int{}
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { run(t, seed, total) })
	}
	t.Log(total)
	// A run that never came by some event proves nothing about it.
	for _, event := range []string{"new", "duplicate", "duplicate pending", "conflict", "drop", "seal ok true", "seal ok false", "rebuilt", "abort prepared"} {
		if total[event] < 50 {
			t.Errorf("%q happened %d times only", event, total[event])
		}
	}
}

func run(t *testing.T, seed uint64, counts map[string]int) {
	w := &world{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), log: &deduptest.Log{}, counts: counts,
		cfg: Config{Retention: 8 * time.Second, Payload: seed%2 == 0, FalsePositiveRate: []float64{0, 0.5}[seed/2%2]},
		m:   model{committed: map[int]seen{}},
	}
	w.now = 1_000_000
	w.base = w.now
	w.open()
	next := 0
	for range 4000 {
		switch n := w.rng.IntN(100); {
		case n < 70:
			id := next
			if w.rng.IntN(2) == 0 && next > 0 {
				id = max(0, next-1-w.rng.IntN(1+w.rng.IntN(1500)))
			} else {
				next++
			}
			w.check(id, uint64(w.rng.IntN(20)/19))
		case n < 80:
			w.now += w.rng.Int64N(100)
			w.ix.Advance(at(w.now))
		case n < 90:
			w.commit()
		case n < 92:
			w.abort()
		case n < 94:
			w.rollback()
		case n < 99:
			w.seal()
		case w.rng.IntN(5) == 0:
			w.reopen()
		case w.rng.IntN(20) == 0: // a long pause
			w.now += w.rng.Int64N(20_000)
			w.ix.Advance(at(w.now))
		}
	}
}
