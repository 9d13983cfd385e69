package processor

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/txlog"
)

// TestLaggingReadsAsIfApplied: whatever waits, a store read through a lagging is the one to which every batch
// was applied at once, and the disk catches up without a doubled block.
func TestLaggingReadsAsIfApplied(t *testing.T) {
	for seed := range uint64(80) {
		r := rand.New(rand.NewPCG(seed, 1))
		model, disk := &memoryTask{}, &lockedTask{}
		_, _ = model.Reset(), disk.Reset()
		var jobs sync.WaitGroup
		aside := jobs.Go
		if seed%2 == 0 {
			aside = nil
		}
		l := newLagging(disk, 40*r.IntN(10), aside)
		at, gen := time.Unix(1e9, 0), uint64(1)
		for seq := range uint64(60) {
			at = at.Add(time.Duration(r.IntN(300)) * time.Millisecond)
			b := randomBatch(r, seq+1, at, &gen)
			if err := model.Apply(b); err != nil {
				t.Fatal(err)
			}
			if r.IntN(4) == 0 {
				disk.failNext(txlog.ErrDiskFull)
			}
			for l.Apply(b) != nil { // as on a disk that is full: the same batch again
			}
			scribble(b)
			switch r.IntN(12) {
			case 0:
				if err := l.settle(); err != nil && !errors.Is(err, txlog.ErrDiskFull) {
					t.Fatal(err)
				}
			case 1:
				_, _ = model.Reset(), l.Reset()
			}
			sameStore(t, seed, l, model)
		}
		disk.failNext(nil)
		if err := l.settle(); err != nil && (aside == nil || l.settle() != nil) { // an error may have been a job's
			t.Fatal(err)
		}
		jobs.Wait()
		sameStore(t, seed, disk, model)
		a, _ := disk.log("op").Generations()
		if b, _ := model.log("op").Generations(); !reflect.DeepEqual(a, b) {
			t.Fatalf("seed %d: generations %v, want %v", seed, a, b)
		}
		if disk.applied > model.applied {
			t.Fatalf("seed %d: %d writes for %d batches", seed, disk.applied, model.applied)
		}
	}
}

// lockedTask is a memoryTask for several goroutines.
type lockedTask struct {
	memoryTask
	mu    sync.Mutex
	begin func() // before an Apply, if set
}

func (t *lockedTask) failNext(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fail = err
}

func (t *lockedTask) Position() (record.LocalPosition, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.memoryTask.Position()
}

func (t *lockedTask) Apply(b *record.Batch) error {
	if t.begin != nil {
		t.begin()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.memoryTask.Apply(b)
}

func (t *lockedTask) Get(store string, key []byte) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.memoryTask.Get(store, key)
}

func (t *lockedTask) Range(store string, from, to []byte, fn func(k, v []byte) bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.memoryTask.Range(store, from, to, fn)
}

func randomBatch(r *rand.Rand, seq uint64, at time.Time, gen *uint64) *record.Batch {
	b := &record.Batch{Position: record.LocalPosition{
		CommitPoint: record.CommitPoint{Sequence: seq, Counters: []record.Counter{{Name: "n", Value: seq}}},
		Changelogs:  []record.ChangelogPosition{{Next: record.Offset(seq)}}, AppliedAt: at, Complete: true,
	}}
	for range r.IntN(4) {
		c := record.StateChange{Store: fmt.Sprint("s", r.IntN(2)), Key: []byte{'k', byte('0' + r.IntN(6))}}
		if r.IntN(4) > 0 {
			c.Value = make([]byte, r.IntN(5)) // an empty value is not an absent one
			for i := range c.Value {
				c.Value[i] = byte(r.IntN(256))
			}
		}
		b.State = append(b.State, c)
	}
	slices.SortStableFunc(b.State, func(x, y record.StateChange) int { return int(x.Store[1]) - int(y.Store[1]) })
	for range r.IntN(3) {
		entry := make([]byte, 16)
		entry[0], entry[1] = byte(seq), byte(r.IntN(256))
		b.Blocks = append(b.Blocks, record.OperatorBlock{Operator: "op", IDBlock: record.IDBlock{Generation: *gen, EntryBytes: 16, StreamTime: at, Entries: entry}})
	}
	if r.IntN(10) == 0 { // numbers begin again, as after a reset of the task
		b.Blocks = nil
		b.Drops = []record.GenerationDrop{{Operator: "op", Generation: *gen}}
		*gen = uint64(1 + r.IntN(2))
	}
	return b
}

// scribble: the batch belongs to the caller, who uses its memory again.
func scribble(b *record.Batch) {
	for _, c := range b.State {
		clear(c.Key)
		clear(c.Value)
	}
	for _, x := range b.Blocks {
		clear(x.Entries)
	}
	clear(b.Position.Changelogs)
}

func sameStore(t *testing.T, seed uint64, got, want LocalStore) {
	t.Helper()
	p, found := got.Position()
	q, wanted := want.Position()
	if found != wanted || p.Sequence != q.Sequence || p.AppliedAt != q.AppliedAt {
		t.Fatalf("seed %d: position %d of %v (%v), want %d of %v (%v)", seed, p.Sequence, p.AppliedAt, found, q.Sequence, q.AppliedAt, wanted)
	}
	for _, store := range []string{"s0", "s1"} {
		for _, bounds := range [][2][]byte{{nil, nil}, {[]byte("k1"), []byte("k4")}, {[]byte("k3"), nil}} {
			a, b := listOf(t, got, store, bounds, 9), listOf(t, want, store, bounds, 9)
			if !slices.Equal(a, b) {
				t.Fatalf("seed %d: %s%q holds %q, want %q", seed, store, bounds, a, b)
			}
			if a, b := listOf(t, got, store, bounds, 2), listOf(t, want, store, bounds, 2); !slices.Equal(a, b) {
				t.Fatalf("seed %d: the first two of %s%q are %q, want %q", seed, store, bounds, a, b)
			}
		}
		for k := range 6 {
			key := []byte{'k', byte('0' + k)}
			a, err := got.Get(store, key)
			if err != nil {
				t.Fatal(err)
			}
			if b, _ := want.Get(store, key); !reflect.DeepEqual(a, b) {
				t.Fatalf("seed %d: %s %q is %v, want %v", seed, store, key, a, b)
			}
		}
	}
}

func listOf(t *testing.T, s LocalStore, store string, bounds [2][]byte, most int) (out []string) {
	t.Helper()
	err := s.Range(store, bounds[0], bounds[1], func(k, v []byte) bool {
		out = append(out, fmt.Sprintf("%s=%x", k, v))
		return len(out) < most
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestLaggingWritesAKeyOnce: that is what it is for.
func TestLaggingWritesAKeyOnce(t *testing.T) {
	disk := &memoryTask{}
	_ = disk.Reset()
	l := newLagging(disk, lagBytes, nil)
	at := time.Unix(1e9, 0)
	for n := range uint64(100) {
		b := &record.Batch{
			State:    []record.StateChange{{Store: "s", Key: []byte("k"), Value: []byte{byte(n)}}},
			Position: record.LocalPosition{CommitPoint: record.CommitPoint{Sequence: n + 1}, AppliedAt: at.Add(time.Duration(n) * lagAge / 50)},
		}
		if err := l.Apply(b); err != nil {
			t.Fatal(err)
		}
		if behind := n + 1 - disk.position.Sequence; behind > 50 {
			t.Fatalf("the disk is %d commits behind, the age allows 50", behind)
		}
	}
	if disk.applied != 1 || len(l.front.batch.State) != 1 {
		t.Errorf("%d writes, %d keys wait; want 1 and 1", disk.applied, len(l.front.batch.State))
	}
}

// TestLaggingSealsWhatWaits: a generation is read back and sealed only when all its blocks are on the disk.
func TestLaggingSealsWhatWaits(t *testing.T) {
	disk := &memoryTask{}
	_ = disk.Reset()
	l := newLagging(disk, lagBytes, nil)
	block := record.OperatorBlock{Operator: "op", IDBlock: record.IDBlock{Generation: 1, EntryBytes: 16, Entries: make([]byte, 16)}}
	if err := l.Apply(&record.Batch{Blocks: []record.OperatorBlock{block}, Position: record.LocalPosition{CommitPoint: record.CommitPoint{Sequence: 1}}}); err != nil {
		t.Fatal(err)
	}
	if disk.applied != 0 {
		t.Fatal("the first batch does not wait")
	}
	gens, err := l.IDs("op").Generations()
	if err != nil || len(gens) != 1 || gens[0].IDs != 1 {
		t.Errorf("generations: %v, %v; want one with one ID", gens, err)
	}
}

// TestLaggingGoesOnWhileTheDiskWrites: while a batch is on its way to the disk, everything that waits is read, more is taken,
// and what the disk has refused is given to it again: by the next one that can return the error.
func TestLaggingGoesOnWhileTheDiskWrites(t *testing.T) {
	disk := &lockedTask{}
	_ = disk.Reset()
	begun, goOn := make(chan struct{}), make(chan struct{})
	disk.begin = func() {
		begun <- struct{}{}
		<-goOn
	}
	var jobs sync.WaitGroup
	l := newLagging(disk, 1, jobs.Go)
	apply := func(seq uint64, changes ...record.StateChange) error {
		return l.Apply(&record.Batch{State: changes, Position: record.LocalPosition{CommitPoint: record.CommitPoint{Sequence: seq}, AppliedAt: time.Unix(1e9, 0)}})
	}
	change := func(k, v string) record.StateChange {
		c := record.StateChange{Store: "s", Key: []byte(k)}
		if v != "" {
			c.Value = []byte(v)
		}
		return c
	}
	want := func(sequence uint64, values ...string) {
		t.Helper()
		if p, ok := l.Position(); !ok || p.Sequence != sequence {
			t.Errorf("position %d, want %d", p.Sequence, sequence)
		}
		if got := listOf(t, l, "s", [2][]byte{}, 9); !slices.Equal(got, values) {
			t.Errorf("range %q, want %q", got, values)
		}
		page, _, at, _, err := l.pageAt("s", nil, nil, 9)
		if err != nil || at.Sequence != sequence || len(page) != len(values) {
			t.Errorf("page of %d keys at %d, %v", len(page), at.Sequence, err)
		}
		for _, e := range page {
			if v, err := l.Get("s", e.key); err != nil || !slices.Equal(v, e.value) || !slices.Contains(values, fmt.Sprintf("%s=%x", e.key, v)) {
				t.Errorf("%s=%x, %v; want one of %q", e.key, v, err, values)
			}
		}
	}
	if err := errors.Join(apply(1, change("a", "1"), change("b", "1"), change("c", "1")), apply(2, change("a", "2"), change("b", ""))); err != nil {
		t.Fatal(err)
	}
	<-begun // the first one is on its way, the second one waits
	want(2, "a=32", "c=31")
	if p, _ := disk.Position(); p.Sequence != 0 {
		t.Fatalf("the disk has %d already", p.Sequence)
	}
	disk.failNext(txlog.ErrDiskFull)
	goOn <- struct{}{}
	jobs.Wait()
	want(2, "a=32", "c=31")
	disk.begin = nil
	disk.failNext(txlog.ErrDiskFull)
	if err := apply(3, change("c", "3")); !errors.Is(err, txlog.ErrDiskFull) {
		t.Errorf("a batch was taken though the disk is full: %v", err)
	}
	want(2, "a=32", "c=31")
	if err := errors.Join(apply(3, change("c", "3")), l.settle()); err != nil {
		t.Fatal(err)
	}
	jobs.Wait()
	want(3, "a=32", "c=33")
	if p, _ := disk.Position(); p.Sequence != 3 || disk.applied != 3 {
		t.Errorf("the disk has %d after %d writes, want 3 after 3", p.Sequence, disk.applied)
	}
}
