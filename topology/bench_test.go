package topology

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/window"
)

type bytesRecord = record.Record[[]byte, []byte]

// benchmarks are chains that must not allocate. setup may add what the source record has.
var benchmarks = []struct {
	name  string
	build func(in *Stream[[]byte, []byte])
	opts  []SourceOption
}{
	{"source", func(in *Stream[[]byte, []byte]) { Process(in, "end", discard[[]byte]) }, nil},
	{"source by position", func(in *Stream[[]byte, []byte]) { Process(in, "end", discard[[]byte]) }, []SourceOption{IDPosition()}},
	{"five operators", func(in *Stream[[]byte, []byte]) {
		some := func(r bytesRecord) (bool, error) { return len(r.Value) > 0, nil }
		a := Map(Filter(in, some), func(r bytesRecord) ([]byte, []byte, error) { return r.Key, r.Value[1:], nil })
		b := Filter(MapValues(a, func(r bytesRecord) (int, error) { return len(r.Value), nil }),
			func(r record.Record[[]byte, int]) (bool, error) { return r.Value > 0, nil })
		c := Map(b, func(r record.Record[[]byte, int]) ([]byte, int, error) { return r.Key, r.Value + 1, nil })
		Process(c, "end", discard[int])
	}, nil},
	{"dedup", func(in *Stream[[]byte, []byte]) {
		Process(Dedup(in, "unique", Retention(hour)), "end", discard[[]byte])
	}, nil},
	{"dedup by a field with payload", func(in *Stream[[]byte, []byte]) {
		id := ID(func(r bytesRecord) record.ID { return aliasID(r.Value[:8]) })
		Process(Dedup(in, "unique", id, Retention(hour), ComparePayload()), "end", discard[[]byte])
	}, nil},
	{"dedup to", func(in *Stream[[]byte, []byte]) {
		To(Dedup(in, "unique", Retention(hour)), "out", serde.Bytes(), serde.Bytes())
	}, nil},
	{"map to", func(in *Stream[[]byte, []byte]) {
		m := Map(in, func(r bytesRecord) ([]byte, []byte, error) { return r.Key, r.Value, nil })
		To(m, "out", serde.Bytes(), serde.Bytes())
	}, nil},
	{"flat map to", func(in *Stream[[]byte, []byte]) {
		m := FlatMap(in, func(r bytesRecord, emit Emit[[]byte, []byte]) error {
			emit(bytesRecord{Key: r.Key, Value: r.Value})
			return nil
		})
		To(m, "out", serde.Bytes(), serde.Bytes())
	}, []SourceOption{IDPosition()}},
	{"key by", func(in *Stream[[]byte, []byte]) {
		k := KeyBy(in, "by", serde.Bytes(), func(r bytesRecord) ([]byte, error) { return r.Value[:4], nil })
		Process(k, "end", discard[[]byte])
	}, nil},
	{"dedup scope stream", func(in *Stream[[]byte, []byte]) {
		Process(Dedup(in, "unique", Retention(hour), ScopeStream()), "end", discard[[]byte])
	}, nil},
	{"count", func(in *Stream[[]byte, []byte]) { Count(in, "totals") }, nil},
	{"tumbling count", func(in *Stream[[]byte, []byte]) {
		Count(WindowedBy(in, window.Tumbling(time.Minute)), "totals")
	}, nil},
	{"tumbling count, on close", func(in *Stream[[]byte, []byte]) {
		Count(WindowedBy(in, window.Tumbling(time.Minute).Grace(time.Second)), "totals", EmitOnClose())
	}, nil},
	{"aggregate", func(in *Stream[[]byte, []byte]) {
		Aggregate(in, "totals", serde.Int64(), func(n int64, r bytesRecord) (int64, error) { return n + int64(len(r.Value)), nil })
	}, nil},
}

// discard is a function that ends a stream; what it does not do costs nothing.
func discard[V any](Context, record.Record[[]byte, V], Emit[[]byte, V]) error { return nil }

// benchChain builds the first sub-topology of one of the benchmarks and a record for it.
func benchChain(tb testing.TB, build func(*Stream[[]byte, []byte]), opts []SourceOption) (run func(), rt *fakeRuntime) {
	b := New("app")
	build(From(b, "in", serde.Bytes(), serde.Bytes(), opts...))
	d := drive(tb, b)
	d.rt.keepOut = false
	d.rt.position = record.Position{TopicPartition: record.TopicPartition{Topic: "in", Partition: 3}}
	for _, l := range d.rt.ids {
		l.quiet = true
	}
	for _, s := range d.sub.Stores {
		// A store that allocates would hide what the operator does.
		d.rt.stores[s.Name].fixed = binary.BigEndian.AppendUint64(nil, 7)
	}
	in := &broker.Record{
		Offset: 12345, Timestamp: testTime, Key: []byte("account-12345678"), Value: make([]byte, 100),
		Headers: record.Headers{{Key: DefaultIDHeader, Value: []byte("bill-0123456789")}},
	}
	return func() {
		in.Offset++
		if err := d.chain.Sources[0](in); err != nil {
			tb.Fatal(err)
		}
	}, d.rt
}

func BenchmarkChain(b *testing.B) {
	for _, bm := range benchmarks {
		b.Run(bm.name, func(b *testing.B) {
			run, _ := benchChain(b, bm.build, bm.opts)
			b.ReportAllocs()
			for b.Loop() {
				run()
			}
		})
	}
}

func TestChainsDoNotAllocate(t *testing.T) {
	for _, bm := range benchmarks {
		t.Run(bm.name, func(t *testing.T) {
			run, rt := benchChain(t, bm.build, bm.opts)
			// More runs than a chunk of headers or IDs has room for: what is left is the share of a chunk.
			if n := testing.AllocsPerRun(4*headersChunk, run); n != 0 {
				t.Errorf("%v allocations a record, want 0", n)
			}
			if len(rt.counters) == 0 {
				t.Error("the chain did not run")
			}
		})
	}
}
