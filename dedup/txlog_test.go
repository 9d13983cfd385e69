package dedup_test

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/dedup/deduptest"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/txlog"
)

const retention = 8 * time.Hour

var start = time.UnixMilli(1_772_366_400_000).UTC()

// disk is the local log with one task and one operator.
type disk struct {
	t    testing.TB
	log  *txlog.Log
	task *txlog.Task
	seq  uint64
}

func openDisk(t testing.TB, dir string) *disk {
	t.Helper()
	log, err := txlog.Open(txlog.Options{Dir: dir, App: "bench", Cluster: "c", MinFreeBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	task, err := log.Task("bench/0")
	if err != nil {
		t.Fatal(err)
	}
	p, _ := task.Position()
	return &disk{t: t, log: log, task: task, seq: p.Sequence}
}

func (d *disk) close() {
	if err := d.log.Close(); err != nil {
		d.t.Fatal(err)
	}
}

func (d *disk) open(cfg dedup.Config) *dedup.Index {
	d.t.Helper()
	ix, err := dedup.Open(cfg, d.task.Operator("unique"))
	if err != nil {
		d.t.Fatal(err)
	}
	return ix
}

// commit is what a task does with a transaction.
func (d *disk) commit(ix *dedup.Index, at time.Time) {
	d.t.Helper()
	d.seq++
	blocks, drops := ix.Prepare(at)
	b := &record.Batch{Position: record.LocalPosition{CommitPoint: record.CommitPoint{Sequence: d.seq, Incarnation: 1, StreamTime: at}, Complete: true}}
	for _, x := range blocks {
		b.Blocks = append(b.Blocks, record.OperatorBlock{Operator: "unique", IDBlock: x})
	}
	for _, x := range drops {
		b.Drops = append(b.Drops, record.GenerationDrop{Operator: "unique", Generation: x})
	}
	if err := d.task.Apply(b); err != nil {
		d.t.Fatal(err)
	}
	ix.Commit()
}

func seal(t testing.TB, ix *dedup.Index) {
	t.Helper()
	for job := ix.SealJob(); job != nil; job = ix.SealJob() {
		if err := ix.Sealed(job()); err != nil {
			t.Fatal(err)
		}
	}
}

// hash makes the n-th of distinct uniform hashes, cheaper than SHA-256.
func hash(n uint64) (h record.Hash) {
	binary.BigEndian.PutUint64(h[:8], mix(n))
	binary.BigEndian.PutUint64(h[8:], mix(n+1<<50))
	return h
}

func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

// TestOnDisk: the index on the real local log, opened again and again, through seals and expiry.
func TestOnDisk(t *testing.T) {
	dir := t.TempDir()
	cfg := dedup.Config{Retention: retention, Payload: true}
	now := start
	check := func(ix *dedup.Index, id, payload uint64, want dedup.Verdict) {
		t.Helper()
		ans, err := ix.Check(hash(id), payload, now)
		if err != nil || ans.Verdict != want {
			t.Fatalf("ID %d at %v: %+v, %v; want %v", id, now, ans, err, want)
		}
	}
	const perRound, rounds = 4000, 12 // a round is one generation
	sealed := 0
	for round := range uint64(rounds) {
		d := openDisk(t, dir)
		ix := d.open(cfg)
		ix.Advance(now)
		for id := range round * perRound {
			// Not touched: what is between remembered and forgotten.
			switch age := round - id/perRound; {
			case age <= 8 && id%3 == 0:
				check(ix, id, id, dedup.Duplicate)
			case age <= 8 && id%101 == 0:
				check(ix, id, id+1, dedup.Conflict)
			case age > 9 && id%3 == 0:
				mark := ix.Mark()
				check(ix, id, id, dedup.New)
				ix.Rollback(mark)
			}
		}
		for id := round * perRound; id < (round+1)*perRound; id++ {
			check(ix, id, id, dedup.New)
			if id%500 == 499 {
				d.commit(ix, now)
			}
		}
		if round%3 > 0 {
			seal(t, ix)
		}
		s := ix.Stats()
		sealed = max(sealed, s.Sealed)
		if s.Rebuilds != (dedup.Rebuilds{}) || s.Generations > 10 {
			t.Fatalf("round %d: %+v", round, s)
		}
		d.close()
		now = now.Add(retention / 8)
	}
	if sealed < 5 {
		t.Errorf("at most %d generations were sealed", sealed)
	}
}

// cpu is the process's CPU time so far.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCheckAndRecord is the design's measure: 1M IDs, 5 % of the records repeated, transactions of
// 1000, seals included, in memory and on disk. CPU of the whole process, Badger's goroutines and
// the garbage collector included.
func BenchmarkCheckAndRecord(b *testing.B) {
	const n = 1_000_000
	run := func(b *testing.B, ix *dedup.Index, commit func(time.Time)) {
		done := 0
		for i := range uint64(n) {
			ids := []uint64{i, mix(i) % (i + 1)}
			if i%20 > 0 {
				ids = ids[:1]
			}
			for _, id := range ids {
				if _, err := ix.Check(hash(id), 0, start); err != nil {
					b.Fatal(err)
				}
				if done++; done%1000 == 0 {
					commit(start)
					seal(b, ix)
				}
			}
		}
	}
	cfg := dedup.Config{Retention: retention, ExpectedIDs: n}
	measure := func(b *testing.B, f func()) {
		for b.Loop() {
			runtime.GC()
			before := cpu()
			f()
			b.ReportMetric(float64((cpu()-before).Nanoseconds())/(n*1.05), "cpu-ns/record")
		}
	}
	b.Run("memory", func(b *testing.B) {
		measure(b, func() {
			log := &deduptest.Log{}
			ix, err := dedup.Open(cfg, log)
			if err != nil {
				b.Fatal(err)
			}
			run(b, ix, func(at time.Time) {
				if err := log.Apply(ix.Prepare(at)); err != nil {
					b.Fatal(err)
				}
				ix.Commit()
			})
		})
	})
	b.Run("disk", func(b *testing.B) {
		measure(b, func() {
			d := openDisk(b, b.TempDir())
			ix := d.open(cfg)
			run(b, ix, func(at time.Time) { d.commit(ix, at) })
			d.close()
		})
	})
}

// BenchmarkOpen: a clean restart with n IDs.
func BenchmarkOpen(b *testing.B) {
	for _, n := range []int{1_000_000, 10_000_000} {
		b.Run(fmt.Sprintf("ids=%d", n), func(b *testing.B) {
			if n > 1_000_000 && testing.Short() {
				b.Skip()
			}
			dir, cfg := b.TempDir(), dedup.Config{Retention: retention, ExpectedIDs: n}
			d := openDisk(b, dir)
			ix := d.open(cfg)
			for i := range n {
				if _, err := ix.Check(hash(uint64(i)), 0, start); err != nil {
					b.Fatal(err)
				}
				if i%10_000 == 9999 {
					d.commit(ix, start)
					seal(b, ix)
				}
			}
			d.close()
			for b.Loop() {
				d := openDisk(b, dir)
				ix := d.open(cfg)
				if s := ix.Stats(); s.IDs != uint64(n) || s.Rebuilds != (dedup.Rebuilds{}) {
					b.Fatalf("%+v", s)
				}
				b.StopTimer()
				d.close()
				b.StartTimer()
			}
		})
	}
}
