package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// newScriptedBroker answers every request with what script says: the bytes behind the correlation ID.
func newScriptedBroker(t testing.TB, script func(key, version int16, body []byte) []byte) (stop func(), addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for {
			f, err := readTestFrame(c)
			if err != nil {
				return
			}
			out := append(append(make([]byte, 4), f[4:8]...), script(int16(binary.BigEndian.Uint16(f)), int16(binary.BigEndian.Uint16(f[2:])), f[8:])...)
			binary.BigEndian.PutUint32(out, uint32(len(out)-4))
			if _, err := c.Write(out); err != nil {
				return
			}
		}
	}()
	return func() { _ = ln.Close(); <-done }, ln.Addr().String()
}

func readTestFrame(c net.Conn) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := c.Read(head); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(head))
	for n := 0; n < len(b); {
		k, err := c.Read(b[n:])
		if err != nil {
			return nil, err
		}
		n += k
	}
	return b, nil
}

// fetchAnswerV12 is a Fetch answer of version 12 (flexible) with these records of topic t, partition 0.
func fetchAnswerV12(records []byte) []byte {
	b := []byte{0}                               // header tags
	b = append32(b, 0)                           // throttle
	b = append(b, 0, 0)                          // code
	b = append32(b, 0)                           // session
	b = append(b, 2, 2, 't', 2)                  // one topic, its name, one partition
	b = append32(b, 0)                           // partition
	b = append(b, 0, 0)                          // code
	b = append64(append64(append64(b, 9), 9), 0) // high watermark, last stable, log start
	b = append(b, 0)                             // aborted: null
	b = append32(b, -1)                          // preferred replica
	b = binary.AppendUvarint(b, uint64(len(records)+1))
	b = append(b, records...)
	return append(b, 0, 0, 0) // tags of partition, topic, answer
}

// logModel is a partition's log, byte by byte, and what a read_committed reader must see of it.
type logModel struct {
	next    int64
	batches [][]byte
	aborted []aborted
	ends    []int64         // offsets of the abort markers of aborted
	all     []broker.Record // of data batches, visible or not
	state   map[int64]bool  // offset -> committed
}

func (l *logModel) data(t testing.TB, r *rand.Rand, producer int64, n int, kind codec, committed bool) {
	outs := randomOutputs(r, n)
	b := encodeBatch(t, outs, kind, l.next)
	if producer < 0 { // not transactional
		binary.BigEndian.PutUint16(b[21:], binary.BigEndian.Uint16(b[21:])&^attrTxn)
	}
	binary.BigEndian.PutUint64(b[43:], uint64(producer))
	l.append(b)
	for i, o := range outs {
		l.all = append(l.all, broker.Record{Offset: record.Offset(l.next + int64(i)), Key: o.Key, Value: o.Value, Timestamp: o.Timestamp})
		l.state[l.next+int64(i)] = committed
	}
	l.next += int64(n)
}

func (l *logModel) append(b []byte) {
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], castagnoli()))
	l.batches = append(l.batches, b)
}

// marker appends a commit or abort marker.
func (l *logModel) marker(t testing.TB, producer int64, commit bool) {
	kind := byte(0)
	if commit {
		kind = 1
	}
	outs := []broker.Output{{Timestamp: time.UnixMilli(5), Key: []byte{0, 0, 0, kind}, Value: make([]byte, 6)}}
	b := encodeBatch(t, outs, codecNone, l.next)
	binary.BigEndian.PutUint16(b[21:], attrTxn|attrControl)
	binary.BigEndian.PutUint64(b[43:], uint64(producer))
	l.append(b)
	for i, a := range l.aborted {
		if a.producer == producer && l.ends[i] < 0 {
			l.ends[i] = l.next
		}
	}
	l.next++
}

// empty appends what compaction leaves of a batch: a header without records.
func (l *logModel) empty(t testing.TB, producer int64, n int) {
	b := encodeBatch(t, []broker.Output{{Timestamp: time.UnixMilli(5)}}, codecNone, l.next)[:batchHeader]
	binary.BigEndian.PutUint32(b[8:], batchHeader-12)
	binary.BigEndian.PutUint32(b[23:], uint32(n-1))
	binary.BigEndian.PutUint32(b[57:], 0)
	binary.BigEndian.PutUint64(b[43:], uint64(producer))
	l.append(b)
	l.next += int64(n)
}

// randomLog makes a log with committed, aborted and compacted transactions of several producers.
func randomLog(t testing.TB, r *rand.Rand) *logModel {
	l := &logModel{state: map[int64]bool{}}
	type txn struct {
		commit bool
		first  int64
	}
	open := map[int64]*txn{}
	for range 10 + r.IntN(60) {
		p := int64(r.IntN(4))
		if p == 3 {
			l.data(t, r, -1, 1+r.IntN(5), codec(r.IntN(5)), true)
			continue
		}
		x := open[p]
		switch {
		case x == nil:
			x = &txn{commit: r.IntN(2) == 0, first: l.next}
			open[p] = x
			if !x.commit {
				l.aborted, l.ends = append(l.aborted, aborted{producer: p, first: l.next}), append(l.ends, -1)
			}
			if r.IntN(4) == 0 { // compaction removed the first batch of the transaction
				l.empty(t, p, 1+r.IntN(4))
				continue
			}
			fallthrough
		case r.IntN(3) > 0:
			if r.IntN(5) == 0 {
				l.empty(t, p, 1+r.IntN(4))
				continue
			}
			l.data(t, r, p, 1+r.IntN(6), codec(r.IntN(5)), x.commit)
		default:
			l.marker(t, p, x.commit)
			delete(open, p)
		}
		if r.IntN(6) == 0 { // compaction removed whole batches: a gap
			l.next += int64(1 + r.IntN(5))
		}
	}
	for _, p := range []int64{0, 1, 2} {
		if x := open[p]; x != nil {
			l.marker(t, p, x.commit)
		}
	}
	return l
}

// fetch is what a broker answers: whole batches from the one that holds pos on, cut at size bytes, and
// the aborted transactions that overlap what it sends.
func (l *logModel) fetch(pos record.Offset, size int) *fetched {
	var out []byte
	end := int64(-1)
	for _, b := range l.batches {
		info, _, err := splitBatch(b)
		if err != nil {
			panic(err)
		}
		if info.last < int64(pos) || len(out) >= size {
			continue
		}
		out = append(out, b...)
		end = info.last
	}
	if len(out) > size {
		out = out[:size]
	}
	f := &fetched{records: out, highWater: l.next, lastStable: l.next, readReplica: -1}
	for i, a := range l.aborted {
		if a.first <= end && l.ends[i] >= int64(pos) {
			f.aborted = append(f.aborted, a)
		}
	}
	return f
}

// TestDecodeAnyFetchSize reads random logs with fetch sizes from less than one batch on: the records
// are always the committed ones, in order, and the position reaches the end.
func TestDecodeAnyFetchSize(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 9))
		l := randomLog(t, r)
		for _, committed := range []bool{true, false} {
			var want []record.Offset
			for _, rec := range l.all {
				if !committed || l.state[int64(rec.Offset)] {
					want = append(want, rec.Offset)
				}
			}
			for _, size := range []int{40, 200, 700, 1 << 20} {
				got := readModel(t, l, committed, size)
				if !slices.Equal(got, want) {
					t.Fatalf("seed %d, %d bytes, committed %v: offsets %v, want %v", seed, size, committed, got, want)
				}
			}
		}
	}
}

func readModel(t *testing.T, l *logModel, committed bool, size int) (got []record.Offset) {
	t.Helper()
	var d decoder
	last, _, _ := splitBatch(l.batches[len(l.batches)-1])
	want := size
	for pos := record.Offset(0); pos <= record.Offset(last.last); {
		recs, next, need, err := d.decode(l.fetch(pos, want), pos, committed)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range recs {
			got = append(got, rec.Offset)
		}
		if next == pos && need <= want {
			t.Fatalf("stuck at %d with %d bytes, need %d", pos, want, need)
		}
		if next > pos {
			want = size
		} else {
			want = need
		}
		pos = next
	}
	return got
}

func TestDecodeFromTheMiddleOfAnAbortedTransaction(t *testing.T) {
	l := &logModel{state: map[int64]bool{}}
	r := rand.New(rand.NewPCG(1, 1))
	l.aborted, l.ends = []aborted{{producer: 1, first: 0}}, []int64{-1}
	l.data(t, r, 1, 3, codecNone, false)
	l.data(t, r, 1, 3, codecNone, false)
	l.marker(t, 1, false)
	l.data(t, r, 1, 2, codecNone, true) // the same producer, committed
	l.marker(t, 1, true)
	var d decoder
	recs, pos, _, err := d.decode(l.fetch(4, 1<<20), 4, true)
	if err != nil || pos != 10 || len(recs) != 2 || recs[0].Offset != 7 {
		t.Fatalf("%d records to %d, %v", len(recs), pos, err)
	}
}

func TestDecodeNamesWhatIsWrong(t *testing.T) {
	good := encodeBatch(t, randomOutputs(rand.New(rand.NewPCG(1, 1)), 10), codecNone, 0)
	bad := func(change func(b []byte)) []byte {
		b := append([]byte(nil), good...)
		change(b)
		return b
	}
	resum := func(b []byte) { binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], castagnoli())) }
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"a flipped bit":          {bad(func(b []byte) { b[80] ^= 1 }), errCRC},
		"an old format":          {bad(func(b []byte) { b[16] = 1 }), errOldFormat},
		"a future format":        {bad(func(b []byte) { b[16] = 3 }), errBatch},
		"a short length":         {bad(func(b []byte) { binary.BigEndian.PutUint32(b[8:], 10) }), errBatch},
		"a negative length":      {bad(func(b []byte) { binary.BigEndian.PutUint32(b[8:], 1<<31) }), errBatch},
		"a huge length":          {bad(func(b []byte) { binary.BigEndian.PutUint32(b[8:], 1<<30) }), errHugeBatch},
		"too many records":       {bad(func(b []byte) { binary.BigEndian.PutUint32(b[57:], 1<<20); resum(b) }), errBatch},
		"more records than last": {bad(func(b []byte) { binary.BigEndian.PutUint32(b[23:], 3); resum(b) }), errBatch},
		"an unknown codec":       {bad(func(b []byte) { b[22] |= 7; resum(b) }), errBatch},
		"not that codec":         {bad(func(b []byte) { b[22] |= 4; resum(b) }), errBatch},
		"a negative count":       {bad(func(b []byte) { binary.BigEndian.PutUint32(b[57:], 1<<31); resum(b) }), errBatch},
		"a negative base":        {bad(func(b []byte) { b[0] = 0x80 }), errBatch},
	} {
		t.Run(name, func(t *testing.T) {
			var d decoder
			// Behind a good batch: its records are delivered, the position stays at the bad one.
			first := encodeBatch(t, randomOutputs(rand.New(rand.NewPCG(1, 1)), 3), codecNone, 0)
			b := c.b
			if name != "a negative base" {
				b = rebase(b, 3)
			}
			recs, pos, _, err := d.decode(&fetched{records: append(first, b...)}, 0, true)
			if !errors.Is(err, c.want) || pos != 3 || len(recs) != 3 {
				t.Fatalf("%d records to %d, %v; want %v", len(recs), pos, err, c.want)
			}
		})
	}
}

func TestHeadersDoNotKeepOldAnswersAlive(t *testing.T) {
	var d decoder
	outs := []broker.Output{{Timestamp: time.UnixMilli(1), Headers: record.Headers{{Key: "id", Value: []byte("x")}}}}
	a, _, _, _ := d.decode(&fetched{records: encodeBatch(t, outs, codecNone, 0)}, 0, true)
	b, _, _, _ := d.decode(&fetched{records: encodeBatch(t, outs, codecNone, 0)}, 0, true)
	if &a[0].Headers[0] == &b[0].Headers[0] || cap(a[0].Headers) != 1 {
		t.Fatal("headers of two answers share memory")
	}
}

func TestHeaderKeysAreInterned(t *testing.T) {
	outs := make([]broker.Output, 100)
	for i := range outs {
		outs[i] = broker.Output{Timestamp: time.UnixMilli(1), Headers: record.Headers{{Key: "first"}, {Key: "second"}}}
	}
	f := &fetched{records: encodeBatch(t, outs, codecNone, 0)}
	var d decoder
	_, _, _, _ = d.decode(f, 0, true)
	// What goroutines of other tests allocate meanwhile is counted, too: they only ever add.
	least := math.Inf(1)
	for range 50 {
		least = min(least, testing.AllocsPerRun(10, func() { _, _, _, _ = d.decode(f, 0, true) }))
	}
	if least > 3 {
		t.Errorf("%v allocations for 100 records with 200 headers", least)
	}
	for i := range 10 * maxKeys { // keys that never come again do not fill the memory
		d.intern(fmt.Append(nil, i), 0)
	}
	if len(d.keys) > maxKeys {
		t.Errorf("%d keys kept", len(d.keys))
	}
}

func FuzzDecodeRecords(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, kind := range []codec{codecNone, codecGzip, codecSnappy, codecLZ4, codecZstd} {
		f.Add(encodeBatch(f, randomOutputs(r, 5), kind, 0), true)
	}
	l := randomLog(f, r)
	f.Add(slices.Concat(l.batches...), false)
	f.Fuzz(func(t *testing.T, b []byte, resum bool) {
		if resum && len(b) > batchHeader { // else nearly everything ends at the checksum
			binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
			b[16] = batchMagic
			binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], castagnoli()))
		}
		var d decoder
		recs, pos, _, _ := d.decode(&fetched{records: b, aborted: []aborted{{producer: 1}}}, 0, true)
		before := record.Offset(-1)
		for _, rec := range recs {
			if rec.Offset >= pos || rec.Offset < before {
				t.Fatalf("offset %d after %d, position %d", rec.Offset, before, pos)
			}
			before = rec.Offset
		}
	})
}

func FuzzDecodeAnswers(f *testing.F) {
	f.Add([]byte{}, true)
	f.Add(make([]byte, 100), false)
	f.Fuzz(func(t *testing.T, b []byte, fetch bool) {
		if fetch {
			_, _, _, _ = decodeFetch(b)
		} else {
			_, _, _ = decodeProduce(b)
		}
	})
}
