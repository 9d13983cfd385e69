package kafka

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// randomOutputs makes records of every shape: nil and empty keys and values, repeated headers, times
// that go back.
func randomOutputs(r *rand.Rand, n int) []broker.Output {
	out := make([]broker.Output, n)
	blob := func(limit int) []byte {
		switch r.IntN(6) {
		case 0:
			return nil
		case 1:
			return []byte{}
		}
		b := make([]byte, r.IntN(limit))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	for i := range out {
		out[i] = broker.Output{
			Timestamp: time.UnixMilli(1_700_000_000_000 + r.Int64N(20_000) - 10_000), Key: blob(40), Value: blob(200),
		}
		for range r.IntN(4) {
			out[i].Headers = append(out[i].Headers, record.Header{Key: fmt.Sprintf("h%d", r.IntN(5)), Value: blob(20)})
		}
	}
	return out
}

// encodeBatch encodes outputs as one batch at base.
func encodeBatch(t testing.TB, outs []broker.Output, kind codec, base int64) []byte {
	t.Helper()
	b := &outBatch{}
	for i := range outs {
		ts := outs[i].Timestamp.UnixMilli()
		if i == 0 {
			b.begin(ts)
		}
		b.add(&outs[i], ts, recordSize(&outs[i], ts-b.first, i), int32(i))
	}
	if err := b.pack(&compressor{}, kind); err != nil {
		t.Fatal(err)
	}
	b.stamp(attrTxn, 4711, 3, 99)
	return rebase(b.wire(), base)
}

// rebase sets the base offset as a broker does when it appends; the CRC does not cover it.
func rebase(b []byte, base int64) []byte {
	b = bytes.Clone(b)
	copy(b, append64(nil, base))
	return b
}

func sameOutputs(t *testing.T, got []broker.Record, want []broker.Output, base int64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
	for i, g := range got {
		w := want[i]
		if int64(g.Offset) != base+int64(i) || !g.Timestamp.Equal(w.Timestamp) || !sameBytes(g.Key, w.Key) || !sameBytes(g.Value, w.Value) || len(g.Headers) != len(w.Headers) {
			t.Fatalf("record %d: %+v, want %+v", i, g, w)
		}
		for k, h := range g.Headers {
			if h.Key != w.Headers[k].Key || !sameBytes(h.Value, w.Headers[k].Value) {
				t.Fatalf("record %d header %d: %+v, want %+v", i, k, h, w.Headers[k])
			}
		}
	}
}

// sameBytes tells nil from empty: a nil value is a tombstone.
func sameBytes(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

func TestBatchRoundTrip(t *testing.T) {
	for _, kind := range []codec{codecNone, codecGzip, codecSnappy, codecLZ4, codecZstd} {
		for seed := range uint64(20) {
			r := rand.New(rand.NewPCG(seed, uint64(kind)))
			outs := randomOutputs(r, 1+r.IntN(300))
			var d decoder
			f := &fetched{records: encodeBatch(t, outs, kind, 1000)}
			recs, pos, need, err := d.decode(f, 1000, true)
			if err != nil || need != 0 || pos != record.Offset(1000+len(outs)) {
				t.Fatalf("codec %d: position %d, need %d, %v", kind, pos, need, err)
			}
			sameOutputs(t, recs, outs, 1000)
		}
	}
}

// TestBatchIsKafkas decodes our batch with another implementation, field by field.
func TestBatchIsKafkas(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	outs := randomOutputs(r, 50)
	var b kmsg.RecordBatch
	if err := b.ReadFrom(encodeBatch(t, outs, codecNone, 7)); err != nil {
		t.Fatal(err)
	}
	if b.FirstOffset != 7 || b.Magic != 2 || b.ProducerID != 4711 || b.ProducerEpoch != 3 || b.FirstSequence != 99 || b.NumRecords != 50 ||
		b.LastOffsetDelta != 49 || b.Attributes != attrTxn || b.PartitionLeaderEpoch != -1 {
		t.Fatalf("%+v", b)
	}
	latest := int64(0)
	rest := b.Records
	for i := range outs {
		latest = max(latest, outs[i].Timestamp.UnixMilli())
		var rec kmsg.Record
		if err := rec.ReadFrom(rest); err != nil {
			t.Fatalf("record %d: %v", i, err)
		}
		rest = rest[int(rec.Length)+varintSize(int64(rec.Length)):]
		if !bytes.Equal(rec.Key, outs[i].Key) || !bytes.Equal(rec.Value, outs[i].Value) || int(rec.OffsetDelta) != i ||
			b.FirstTimestamp+rec.TimestampDelta64 != outs[i].Timestamp.UnixMilli() || len(rec.Headers) != len(outs[i].Headers) {
			t.Fatalf("record %d: %+v, want %+v", i, rec, outs[i])
		}
	}
	if len(rest) != 0 || b.MaxTimestamp != latest {
		t.Fatalf("%d bytes left, max timestamp %d, want %d", len(rest), b.MaxTimestamp, latest)
	}
}

func TestBatchSplits(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 3))
		outs := randomOutputs(r, 2+r.IntN(400))
		b := &outBatch{}
		for i := range outs {
			ts := outs[i].Timestamp.UnixMilli()
			if i == 0 {
				b.begin(ts)
			}
			b.add(&outs[i], ts, recordSize(&outs[i], ts-b.first, i), int32(2*i))
		}
		second := &outBatch{}
		b.split(second)
		half := b.count()
		if half != len(outs)/2 || second.count() != len(outs)-half || second.index[0] != int32(2*half) {
			t.Fatalf("%d and %d of %d", half, second.count(), len(outs))
		}
		var d decoder
		for i, part := range []*outBatch{b, second} {
			part.stamp(attrTxn, 1, 0, 0)
			want := outs[:half]
			if i == 1 {
				want = outs[half:]
			}
			recs, _, _, err := d.decode(&fetched{records: part.wire()}, 0, true)
			if err != nil {
				t.Fatal(err)
			}
			sameOutputs(t, recs, want, 0)
		}
	}
}

func TestSequenceWraps(t *testing.T) {
	for _, c := range []struct {
		seq, want int32
		n         int
	}{{0, 5, 5}, {math.MaxInt32, 0, 1}, {math.MaxInt32 - 2, 2, 5}, {math.MaxInt32 - 1, math.MaxInt32, 1}} {
		if got := nextSequence(c.seq, c.n); got != c.want {
			t.Errorf("%d records after %d: %d, want %d", c.n, c.seq, got, c.want)
		}
	}
}

// TestSaramaCannotDecodeDenseBatches pins why we decode record batches ourselves: sarama compares
// a batch's count of records with the bytes that are left of the answer *before* it decompresses, so
// that a batch which compresses to less than a byte per record is taken for cut off, for ever. If this
// test fails sarama has been mended.
func TestSaramaCannotDecodeDenseBatches(t *testing.T) {
	outs := make([]broker.Output, 5000)
	for i := range outs {
		outs[i] = broker.Output{Timestamp: time.UnixMilli(1), Value: []byte("the same again")}
	}
	b := encodeBatch(t, outs, codecZstd, 0)
	if len(b) >= len(outs) {
		t.Fatalf("the batch has %d bytes: not dense", len(b))
	}
	var d decoder
	recs, pos, _, err := d.decode(&fetched{records: b}, 0, true)
	if err != nil || len(recs) != len(outs) || pos != 5000 {
		t.Fatalf("%d records to %d, %v", len(recs), pos, err)
	}
	server, addr := newScriptedBroker(t, func(key int16, version int16, body []byte) []byte {
		return fetchAnswerV12(b)
	})
	defer server()
	conf := sarama.NewConfig()
	conf.ApiVersionsRequest = false
	conf.Version = sarama.V2_8_0_0
	br := sarama.NewBroker(addr)
	if err := br.Open(conf); err != nil {
		t.Fatal(err)
	}
	defer br.Close()
	q := &sarama.FetchRequest{Version: 12, MaxBytes: 1 << 20, SessionEpoch: -1}
	q.AddBlock("t", 0, 0, 1<<20, -1)
	resp, err := br.Fetch(q)
	if err != nil {
		t.Fatal(err)
	}
	if block := resp.GetBlock("t", 0); len(block.RecordsSet) != 0 || !block.Partial {
		t.Fatalf("sarama decodes it now: %d sets, partial %v", len(block.RecordsSet), block.Partial)
	}
}

func TestInflateIsBounded(t *testing.T) {
	zeros := make([]byte, maxInflated+1)
	for _, kind := range []codec{codecGzip, codecSnappy, codecLZ4, codecZstd} {
		small, err := (&compressor{}).compress(kind, nil, zeros)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (&inflater{}).inflate(kind, small); !errors.Is(err, errInflated) {
			t.Errorf("codec %d: %d bytes inflate: %v", kind, len(small), err)
		}
		fits, err := (&compressor{}).compress(kind, nil, zeros[:maxInflated/8])
		if err != nil {
			t.Fatal(err)
		}
		if out, err := (&inflater{}).inflate(kind, fits); err != nil || len(out) != maxInflated/8 {
			t.Errorf("codec %d: %d bytes, %v", kind, len(out), err)
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	c := &Cluster{}
	p := c.NewProducer(broker.ProducerConfig{TransactionalID: "x"}).(*producer)
	value, key := make([]byte, 100), make([]byte, 16)
	o := broker.Output{TopicPartition: record.TopicPartition{Topic: "topic"}, Timestamp: time.UnixMilli(1_700_000_000_000), Key: key, Value: value, Headers: record.Headers{{Key: "id", Value: key}}}
	b.ReportAllocs()
	for i := range b.N {
		o.Partition = record.Partition(i & 3)
		p.Add(o)
		if p.records == 10_000 {
			p.Reset()
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	outs := make([]broker.Output, 5000)
	for i := range outs {
		outs[i] = broker.Output{Timestamp: time.UnixMilli(1_700_000_000_000), Key: make([]byte, 16), Value: make([]byte, 100), Headers: record.Headers{{Key: "id", Value: make([]byte, 16)}}}
	}
	f := &fetched{records: encodeBatch(b, outs, codecNone, 0)}
	var d decoder
	b.ReportAllocs()
	for range b.N {
		if _, _, _, err := d.decode(f, 0, true); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(outs)), "ns/record")
}
