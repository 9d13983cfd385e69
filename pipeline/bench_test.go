package pipeline

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// benchRuntime does nothing but say "new", so that what is measured is the chain.
type benchRuntime struct {
	fakeTask
	buf []byte
	n   uint64
}

func (b *benchRuntime) Dedup(string) topology.IDLog { return b }
func (b *benchRuntime) Check(record.Hash, uint64, time.Time) (dedup.Answer, error) {
	return dedup.Answer{Verdict: dedup.New}, nil
}
func (b *benchRuntime) Emit(int, topology.SinkRecord)      { b.n++ }
func (b *benchRuntime) Alloc(int) []byte                   { return b.buf[:0] }
func (b *benchRuntime) Counter(topology.CounterID) *uint64 { return new(uint64) }

// cpuTime reports the CPU time of the process for each operation: the wall clock lies on a machine that
// others use, too.
func cpuTime(b *testing.B) func() {
	used := func() time.Duration {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			b.Fatal(err)
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	start := used()
	return func() { b.ReportMetric(float64((used()-start).Nanoseconds())/float64(b.N), "cpu-ns/op") }
}

// benchValue has 100 bytes, as the records of the comparison with others.
func benchValue(i int) []byte {
	return fmt.Appendf(nil, `{"bill_id":"b-%08d","account":"acc-0042","amount":"1234.56","issued_at":"2026-01-01T00:00:00Z"}`, i)
}

func benchChain(b *testing.B, topo *topology.Topology) {
	rt := &benchRuntime{buf: make([]byte, 0, 1<<16)}
	chain, err := topo.Subtopologies()[0].NewChain(rt)
	if err != nil {
		b.Fatal(err)
	}
	records := make([]broker.Record, 1024)
	for i := range records {
		records[i] = broker.Record{Key: fmt.Appendf(nil, "k%07d", i), Value: benchValue(i), Timestamp: time.UnixMilli(1_700_000_000_000)}
	}
	b.ReportAllocs()
	defer cpuTime(b)()
	for i := 0; b.Loop(); i++ {
		r := &records[i&1023]
		r.Offset = record.Offset(i)
		if err := chain.Sources[0](r); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDedup is the pipeline 1-dedup.yaml, and beside it the same topology with serde.Bytes and an ID that costs
// nothing to find: the difference is what this package adds.
func BenchmarkDedup(b *testing.B) {
	b.Run("pipeline", func(b *testing.B) {
		p, err := LoadFile("testdata/pipelines/1-dedup.yaml", Options{})
		if err != nil {
			b.Fatal(err)
		}
		topo, err := p.Topology()
		if err != nil {
			b.Fatal(err)
		}
		benchChain(b, topo)
	})
	b.Run("topology", func(b *testing.B) {
		t := topology.New("bench")
		in := topology.From(t, "bills.raw", serde.Bytes(), serde.Bytes())
		unique := topology.Dedup(in, "unique", topology.Retention(time.Hour),
			topology.ID(func(r record.Record[[]byte, []byte]) record.ID { return record.ID(r.Value[12:22]) }))
		topology.To(unique, "bills.unique", serde.Bytes(), serde.Bytes())
		topo, err := t.Build()
		if err != nil {
			b.Fatal(err)
		}
		benchChain(b, topo)
	})
}

// BenchmarkFilterMap decodes the value and evaluates two expressions.
func BenchmarkFilterMap(b *testing.B) {
	p := mustLoad(b, head(`%s
sources: {bills: {topic: bills.raw, type: Bill}}
steps:
  - {name: valid, filter: value.amount > 0 && value.account != ""}
  - {name: out, to: {topic: out, value: {id: value.bill_id, twice: value.amount * 2}}}
`, billTypes), Options{})
	topo, err := p.Topology()
	if err != nil {
		b.Fatal(err)
	}
	benchChain(b, topo)
}

func BenchmarkFindField(b *testing.B) {
	v := benchValue(7)
	b.SetBytes(int64(len(v)))
	b.ReportAllocs()
	defer cpuTime(b)()
	for b.Loop() {
		if _, err := findField(v, "bill_id"); err != nil {
			b.Fatal(err)
		}
	}
}
