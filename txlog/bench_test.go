package txlog

import (
	"encoding/binary"
	"flag"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/streamd/streamd/record"
)

// The CPU time of the whole process counts, Badger's goroutines included.
func cpuNow() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchOptions(b *testing.B) Options {
	return Options{Dir: b.TempDir(), App: "bench", MinFreeBytes: 1}
}

// hashes fills a block with n new hashes.
func hashes(dst []byte, from, n int) []byte {
	var key [8]byte
	for i := range n {
		binary.BigEndian.PutUint64(key[:], uint64(from+i))
		h := xxh3.Hash128(key[:])
		dst = binary.BigEndian.AppendUint64(dst, h.Hi)
		dst = binary.BigEndian.AppendUint64(dst, h.Lo)
	}
	return dst
}

// perID reports wall and CPU time per ID (not per batch), the compactions that were caused included.
func perID(b *testing.B, l *Log, n int, cpu time.Duration) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/ID")
	b.ReportMetric(float64((cpuNow()-cpu).Nanoseconds())/float64(n), "cpu-ns/ID")
	if z, err := l.Sizes(); err == nil {
		b.ReportMetric(float64(z.Total)/float64(n), "disk-B/ID")
	}
}

const benchBatch = 1000

// What a batch costs as one block, alone and with state.
func BenchmarkApply(b *testing.B) { benchApply(b, benchOptions, 0, 100, 1000) }

// What encryption costs: run with -bench 'Encrypted|Apply|Read', since only figures of one run can be compared.
func BenchmarkEncryptedApply(b *testing.B) { benchApply(b, encryptedBench, 0, 100, 1000) }

func BenchmarkEncryptedRead(b *testing.B) { benchRead(b, encryptedBench) }

func encryptedBench(b *testing.B) Options { return encrypted(benchOptions(b)) }

func benchApply(b *testing.B, options func(*testing.B) Options, sizes ...int) {
	for _, puts := range sizes {
		b.Run(fmt.Sprintf("1000 IDs and %d puts", puts), func(b *testing.B) {
			l := openTest(b, options(b))
			task := mustTask(b, l, "t")
			value := make([]byte, 64)
			var entries []byte
			b.ReportAllocs()
			cpu, n := cpuNow(), 0
			for b.Loop() {
				entries = hashes(entries[:0], n, benchBatch)
				batch := &record.Batch{
					Blocks:   []record.OperatorBlock{block("d", uint64(n/1_000_000), 1, entries)},
					Position: position(uint64(n)),
				}
				for i := range puts {
					batch.State = append(batch.State, record.StateChange{
						Store: "s", Key: binary.BigEndian.AppendUint64(nil, uint64(n*7+i*131)%100_000), Value: value,
					})
				}
				must(b, task.Apply(batch))
				n += benchBatch
			}
			perID(b, l, n, cpu)
		})
	}
}

// The whole life of IDs: logged, sealed in runs of 4 KiB, and dropped when eight sealed generations
// are there.
func BenchmarkGenerations(b *testing.B) {
	const perGeneration = 262_144
	l := openTest(b, benchOptions(b))
	task := mustTask(b, l, "t")
	op := task.Operator("d")
	cpu, n := cpuNow(), 0
	var all []byte
	for b.Loop() {
		gen := uint64(n / perGeneration)
		from := len(all)
		all = hashes(all, n, 1024)
		n += 1024
		must(b, task.Apply(&record.Batch{
			Blocks: []record.OperatorBlock{block("d", gen, 1, all[from:])}, Position: position(uint64(n)),
		}))
		if len(all) == perGeneration*record.HashBytes {
			runs := sortIntoRuns(all, record.HashBytes, perGeneration/256)
			g := record.Generation{Number: gen, IDs: perGeneration, EntryBytes: record.HashBytes, Slots: perGeneration / 256}
			must(b, op.Seal(g, func(slot uint32) []byte { return runs[slot] }, make([]byte, perGeneration*18/10)))
			if gen >= 8 {
				must(b, op.Drop(gen-8))
			}
			all = all[:0]
		}
	}
	perID(b, l, n, cpu)
}

// The simple alternative: one key per ID, in transactions of 1000. What a block is compared with.
func BenchmarkOneKeyPerID(b *testing.B) {
	l := openTest(b, benchOptions(b))
	cpu, n := cpuNow(), 0
	var entries []byte
	for b.Loop() {
		entries = hashes(entries[:0], n, benchBatch)
		writes := make([]write, 0, benchBatch)
		for i := range benchBatch {
			writes = append(writes, write{append([]byte{'d', 0, 1}, entries[i*16:(i+1)*16]...), []byte{}})
		}
		must(b, l.kv.commit(writes))
		n += benchBatch
	}
	perID(b, l, n, cpu)
}

func BenchmarkRead(b *testing.B) { benchRead(b, benchOptions) }

func benchRead(b *testing.B, options func(*testing.B) Options) {
	l := openTest(b, options(b))
	task := mustTask(b, l, "t")
	const keys = 200_000
	for from := 0; from < keys; from += 5000 {
		batch := &record.Batch{Position: position(1)}
		for i := range 5000 {
			batch.State = append(batch.State, record.StateChange{
				Store: "s", Key: xxhKey(from + i), Value: make([]byte, 64),
			})
		}
		must(b, task.Apply(batch))
	}
	must(b, l.Flatten())
	store := task.Store("s")
	for name, offset := range map[string]int{"present": 0, "absent": keys} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			i, cpu := 0, cpuNow()
			for b.Loop() {
				if _, err := store.Get(xxhKey(offset + i%keys)); err != nil {
					b.Fatal(err)
				}
				i += 7919
			}
			b.ReportMetric(float64((cpuNow()-cpu).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
	// More than the cache of an encrypted store holds, as the runs of IDs are: each read decrypts.
	const large = 60_000
	for from := 0; from < large; from += 500 {
		batch := &record.Batch{Position: position(2)}
		for i := range 500 {
			batch.State = append(batch.State, record.StateChange{Store: "large", Key: xxhKey(from + i), Value: make([]byte, 4096)})
		}
		must(b, task.Apply(batch))
	}
	must(b, l.Flatten())
	runs := task.Store("large")
	b.Run("4 KiB, of 240 MB", func(b *testing.B) {
		b.ReportAllocs()
		i, cpu := 0, cpuNow()
		for b.Loop() {
			if v, err := runs.Get(xxhKey(i % large)); err != nil || len(v) != 4096 {
				b.Fatal(len(v), err)
			}
			i += 7919
		}
		b.ReportMetric(float64((cpuNow()-cpu).Nanoseconds())/float64(b.N), "cpu-ns/op")
	})
	b.Run("range of 100", func(b *testing.B) {
		for b.Loop() {
			n := 0
			must(b, store.Range(xxhKey(7), nil, func(_, _ []byte) bool { n++; return n < 100 }))
		}
	})
}

func xxhKey(i int) []byte {
	return binary.BigEndian.AppendUint64(nil, xxh3.Hash(binary.BigEndian.AppendUint64(nil, uint64(i))))
}

var reopenIDs = flag.Int("txlog.ids", 10_000_000, "IDs in the store of BenchmarkReopen")

// A start with ten million IDs, eight of ten generations sealed, after kill -9 and after a clean stop;
// before it what they take on disk, and what dropping them costs.
func BenchmarkReopen(b *testing.B) {
	const gens = 10
	perGeneration := *reopenIDs / gens / 1000 * 1000
	o := benchOptions(b)
	l := openTest(b, o)
	task := mustTask(b, l, "t")
	op := task.Operator("d")
	var all []byte
	seq, n := uint64(0), 0
	for gen := range uint64(gens) {
		all = all[:0]
		for range perGeneration / 1000 {
			from := len(all)
			all = hashes(all, n, 1000)
			n, seq = n+1000, seq+1
			must(b, task.Apply(&record.Batch{
				Blocks: []record.OperatorBlock{block("d", gen, 1, all[from:])}, Position: position(seq),
			}))
		}
		if gen < gens-1 {
			slots := uint32(1)
			for int(slots)*256 < perGeneration {
				slots *= 2
			}
			runs := sortIntoRuns(all, record.HashBytes, slots)
			g := record.Generation{Number: gen, IDs: uint64(perGeneration), EntryBytes: record.HashBytes, Slots: slots}
			must(b, op.Seal(g, func(slot uint32) []byte { return runs[slot] }, make([]byte, perGeneration*18/10)))
		}
	}
	runtime.GC()
	for _, after := range []string{"kill", "clean stop"} {
		b.Run("after a "+after, func(b *testing.B) {
			dir := o.Dir
			for b.Loop() {
				b.StopTimer()
				if after == "kill" {
					dir = b.TempDir()
					snapshot(b, o.Dir, dir)
				} else {
					must(b, l.Close())
				}
				b.StartTimer()
				again := o
				again.Dir = dir
				cpu := cpuNow()
				opened, err := Open(again)
				must(b, err)
				b.ReportMetric(float64((cpuNow() - cpu).Milliseconds()), "cpu-ms")
				b.StopTimer()
				if reason, ok := opened.SetAside(); ok {
					b.Fatal(reason)
				}
				if after == "kill" {
					must(b, opened.Close())
				} else {
					l = opened
				}
				b.StartTimer()
			}
		})
	}
	must(b, l.Flatten())
	z, err := l.Sizes()
	must(b, err)
	b.Logf("%d IDs: %.1f bytes each on disk after Flatten, %.1f of them in tables", n, float64(z.Total)/float64(n), float64(z.Tables)/float64(n))
	task = mustTask(b, l, "t")
	op = task.Operator("d")
	began, cpu := time.Now(), cpuNow()
	for gen := range uint64(gens - 1) {
		must(b, op.Drop(gen))
	}
	for left := true; left; {
		left, err = l.Sweep(sweepAll)
		must(b, err)
	}
	dropped := float64(n - perGeneration)
	b.Logf("dropped: %.0f ns, %.0f CPU ns per ID", float64(time.Since(began).Nanoseconds())/dropped, float64((cpuNow()-cpu).Nanoseconds())/dropped)
	must(b, l.Flatten())
	z, err = l.Sizes()
	must(b, err)
	b.Logf("afterwards %d MB on disk", z.Total>>20)
	must(b, l.Close())
}
