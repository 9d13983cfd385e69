package dedup

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/dedup/deduptest"
	"github.com/streamd/streamd/record"
)

// A crash at each write of a seal leaves the blocks, and the repeated seal gives the same bytes.
func TestCrashInSeal(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{}, log)
	fill(t, ix, log, 0, 2000, hour)
	fill(t, ix, log, 2000, 2001, 3*hour)
	sealed := log.Clone()
	if sealAll(t, mustOpen(t, Config{}, sealed)) != 1 {
		t.Fatal("nothing sealed")
	}
	for stop := range 10 { // 8 runs, filter, marker
		n := 0
		log.SealStep = func() error {
			if n++; n > stop {
				return errDisk
			}
			return nil
		}
		ix := mustOpen(t, Config{}, log)
		if err := ix.Sealed(ix.SealJob()()); !errors.Is(err, errDisk) {
			t.Fatalf("stop at %d: %v", stop, err)
		}
		mustCheck(t, ix, 7, Duplicate) // the one that lived on
		log = log.Clone()
		mustCheck(t, mustOpen(t, Config{}, log), 7, Duplicate)
	}
	ix = mustOpen(t, Config{}, log)
	if sealAll(t, ix) != 1 {
		t.Fatal("not sealed")
	}
	var last []byte
	for slot := range uint32(8) {
		a, _ := log.Run(1, slot)
		b, _ := sealed.Run(1, slot)
		for e := range slices.Chunk(a, 16) {
			if bytes.Compare(last, e) >= 0 {
				t.Fatalf("slot %d is not sorted", slot)
			}
			last = e
		}
		if !bytes.Equal(a, b) || len(a) == 0 {
			t.Errorf("slot %d differs", slot)
		}
	}
	a, _ := log.Filter(1)
	b, _ := sealed.Filter(1)
	if !bytes.Equal(a, b) {
		t.Error("the filters differ")
	}
}

// A seal on another goroutine, with checks, commits and expiry meanwhile (FIELD I5, under -race).
func TestSealBeside(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{}, log)
	ix.generationIDs = 500
	var wg sync.WaitGroup
	results := make(chan SealResult, 1)
	now := int64(0)
	for i := range 60_000 {
		mustCheck(t, ix, i, New)
		if i > 100 {
			mustCheck(t, ix, i-100, map[bool]Verdict{true: DuplicatePending, false: Duplicate}[(i-100)/50 == i/50])
		}
		if i%50 == 49 {
			now += hour / 20
			mustCommit(t, ix, log, now)
			select {
			case r := <-results:
				if err := ix.Sealed(r); err != nil {
					t.Fatal(err)
				}
			default:
			}
			if job := ix.SealJob(); job != nil {
				wg.Go(func() { results <- job() })
			}
		}
	}
	wg.Wait()
	if s := ix.Stats(); s.Expired == 0 || s.Sealed == 0 {
		t.Errorf("%+v", s)
	}
}

// A generation is not dropped while it is sealed: the seal would bring parts of it back.
func TestNoDropWhileSealing(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{}, log)
	mustCheck(t, ix, 1, New)
	mustCommit(t, ix, log, hour)
	mustCheck(t, ix, 2, New)
	mustCommit(t, ix, log, 3*hour)
	job := ix.SealJob()
	mustCheck(t, ix, 3, New)
	if _, drops := mustCommit(t, ix, log, 20*hour); !reflect.DeepEqual(drops, []uint64{2}) {
		t.Errorf("dropped while sealing: %v", drops)
	}
	if err := ix.Sealed(job()); err != nil {
		t.Fatal(err)
	}
	if _, drops := mustCommit(t, ix, log, 20*hour); !reflect.DeepEqual(drops, []uint64{1}) {
		t.Errorf("dropped after: %v", drops)
	}
	if err := ix.Sealed(SealResult{number: 1}); err == nil {
		t.Error("a result that nobody asked for is taken")
	}
}

// CRASH 38: a filter from the disk is used only with its checksum, else rebuilt.
func TestFilterIsVerified(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{}, log)
	fill(t, ix, log, 0, 3000, hour)
	mustCheck(t, ix, 9999, New)
	mustCommit(t, ix, log, 3*hour)
	sealAll(t, ix)
	good, _ := log.Filter(1)
	other := newFilter(2999, 0.001).finish().snapshot()
	for name, c := range map[string]struct {
		snapshot []byte
		want     Rebuilds
	}{
		"good":           {good, Rebuilds{}},
		"missing":        {nil, Rebuilds{Missing: 1}},
		"truncated":      {good[:len(good)-9], Rebuilds{Corrupt: 1}},
		"flipped":        {append(bytes.Clone(good[:100]), append([]byte{good[100] ^ 1}, good[101:]...)...), Rebuilds{Corrupt: 1}},
		"other moment":   {other, Rebuilds{Corrupt: 1}},
		"a few bytes":    {[]byte("filter"), Rebuilds{Corrupt: 1}},
		"all zero":       {make([]byte, len(good)), Rebuilds{Corrupt: 1}},
		"another format": {newFormat(good), Rebuilds{Corrupt: 1}},
	} {
		log.SetFilter(1, c.snapshot)
		ix := mustOpen(t, Config{}, log)
		if s := ix.Stats(); s.Rebuilds != c.want || s.Sealed != 1 {
			t.Errorf("%s: %+v", name, s)
		}
		for i := range 3000 {
			mustCheck(t, ix, i, Duplicate)
		}
		if !bytes.Equal(ix.closed[0].filter.snapshot(), good) {
			t.Errorf("%s: another filter", name)
		}
	}
}

// newFormat is a snapshot of a later version, with a right checksum.
func newFormat(b []byte) []byte {
	return sum(append([]byte{snapshotFormat + 1}, b[1:len(b)-4]...))
}

// A log that contradicts itself is refused, never believed.
func TestDamagedLogIsRefused(t *testing.T) {
	build := func() *deduptest.Log {
		log := &deduptest.Log{}
		ix := mustOpen(t, Config{}, log)
		fill(t, ix, log, 0, 3000, hour)
		mustCheck(t, ix, 9999, New)
		mustCommit(t, ix, log, 3*hour)
		sealAll(t, ix)
		log.SetFilter(1, nil)
		return log
	}
	run := func(slot uint32) []byte { r, _ := build().Run(1, slot); return r }
	for name, damage := range map[string]func(*deduptest.Log){
		"lost run": func(l *deduptest.Log) { l.SetRun(1, 3, nil) },
		"cut run":  func(l *deduptest.Log) { l.SetRun(1, 3, run(3)[1:]) },
		"swapped runs": func(l *deduptest.Log) {
			// No ID is missing: the count alone is right.
			a, b := run(3), run(4)
			n := min(len(a), len(b))
			l.SetRun(1, 3, append(bytes.Clone(a[:len(a)-n]), b[:n]...))
			l.SetRun(1, 4, append(bytes.Clone(b[n:]), a[len(a)-n:]...))
		},
		"run elsewhere": func(l *deduptest.Log) { l.SetRun(1, 3, run(4)) },
		"block of another size": func(l *deduptest.Log) {
			l.Apply([]record.IDBlock{{Generation: 2, EntryBytes: 24, Entries: make([]byte, 24)}}, nil)
		},
	} {
		log := build()
		damage(log)
		if _, err := Open(Config{Retention: time.Hour}, log); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, g := range map[string]record.Generation{
		"entry size":     {Number: 1, IDs: 1, EntryBytes: 17},
		"no entry size":  {Number: 1, IDs: 1},
		"too many":       {Number: 1, IDs: 1 << 40, EntryBytes: 16},
		"slots":          {Number: 1, IDs: 1000, EntryBytes: 16, Sealed: true, Slots: 3},
		"too many slots": {Number: 1, IDs: 1000, EntryBytes: 16, Sealed: true, Slots: 1 << 31},
		"number 0":       {Number: 0, IDs: 1, EntryBytes: 16},
		"count":          {Number: 1, IDs: 5, EntryBytes: 16},
	} {
		if _, err := Open(Config{Retention: time.Hour}, listing{&deduptest.Log{}, g}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// listing is a log that lists one generation, whatever it holds.
type listing struct {
	*deduptest.Log
	g record.Generation
}

func (l listing) Generations() ([]record.Generation, error) { return []record.Generation{l.g}, nil }

// A block that was applied twice under two numbers is counted twice, as the log does, and found once.
func TestBlockTwice(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{}, log)
	mustCheck(t, ix, 1, New)
	mustCheck(t, ix, 2, New)
	blocks, _ := mustCommit(t, ix, log, hour)
	again := blocks[0]
	h1, h2 := hashOf(1), hashOf(2)
	again.Entries = append(h1[:], h2[:]...)
	if err := log.Apply([]record.IDBlock{again}, nil); err != nil {
		t.Fatal(err)
	}
	ix = mustOpen(t, Config{}, log)
	mustCheck(t, ix, 1, Duplicate)
	mustCheck(t, ix, 3, New)
	mustCommit(t, ix, log, 3*hour)
	sealAll(t, ix)
	mustCheck(t, ix, 2, Duplicate)
	log.SetFilter(1, nil)
	if ix = mustOpen(t, Config{}, log); ix.Stats().IDs != 5 {
		t.Errorf("%+v", ix.Stats())
	}
}

func TestLogErrorsComeThrough(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{}, log)
	mustCheck(t, ix, 1, New)
	mustCommit(t, ix, log, hour)
	mustCheck(t, ix, 2, New)
	mustCommit(t, ix, log, 3*hour)
	sealAll(t, ix)
	broken := mustOpen(t, Config{}, failing{log})
	if _, err := broken.Check(hashOf(1), 0, at(3*hour)); !errors.Is(err, errDisk) || !strings.Contains(err.Error(), "generation 1") {
		t.Errorf("%v", err)
	}
	log.SetFilter(1, nil)
	if _, err := Open(Config{Retention: time.Hour}, failing{log}); !errors.Is(err, errDisk) {
		t.Errorf("%v", err)
	}
}

// A log that finds the damage itself is no other case than a checksum that is wrong here.
func TestFilterThatCannotBeRead(t *testing.T) {
	log := &deduptest.Log{}
	ix := mustOpen(t, Config{}, log)
	fill(t, ix, log, 0, 3000, hour)
	mustCheck(t, ix, 9999, New)
	mustCommit(t, ix, log, 3*hour)
	sealAll(t, ix)
	ix = mustOpen(t, Config{}, noFilter{log})
	if s := ix.Stats(); s.Rebuilds != (Rebuilds{Corrupt: 1}) {
		t.Errorf("%+v", s)
	}
	mustCheck(t, ix, 7, Duplicate)
}

type noFilter struct{ *deduptest.Log }

func (noFilter) Filter(uint64) ([]byte, error) { return nil, errDisk }

type failing struct{ *deduptest.Log }

func (failing) Run(uint64, uint32) ([]byte, error) { return nil, errDisk }
