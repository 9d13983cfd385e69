package brokertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// readerFacts are about broker.Reader and about what a record keeps on its way.
var readerFacts = []fact{
	{"keys, values and headers come back as they were", "", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		out := []broker.Output{
			{Key: nil, Value: []byte("no key")},
			{Key: []byte("tombstone"), Value: nil},
			{Key: []byte{}, Value: []byte{}},
			{Key: []byte{0, 255}, Value: bytes.Repeat([]byte{7}, 5000), Headers: record.Headers{
				{Key: "h", Value: []byte("1")}, {Key: "h", Value: []byte("2")}, {Key: "", Value: []byte{}}, {Key: "nil", Value: nil},
			}},
		}
		for _, o := range out {
			o.TopicPartition, o.Timestamp = a, time.UnixMilli(5)
			p.Add(o)
		}
		s.commit(t, p)
		recs, _ := s.readTo(t, a, broker.ReadCommitted, 0, 4)
		if len(recs) != len(out) {
			t.Fatalf("%d records, want %d", len(recs), len(out))
		}
		for i, r := range recs {
			o := out[i]
			if r.Offset != record.Offset(i) || !same(r.Key, o.Key) || !same(r.Value, o.Value) || len(r.Headers) != len(o.Headers) {
				t.Fatalf("record %d: %+v, want %+v", i, r, o)
			}
			for k, h := range r.Headers {
				if h.Key != o.Headers[k].Key || !bytes.Equal(h.Value, o.Headers[k].Value) {
					t.Fatalf("record %d, header %d: %+v, want %+v", i, k, h, o.Headers[k])
				}
			}
		}
	}},
	{"timestamps are kept to the millisecond", "", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		want := []time.Time{time.UnixMilli(1_700_000_000_123), time.UnixMilli(1_600_000_000_000), time.UnixMilli(1_700_000_000_124)}
		for i, ts := range want {
			p.Add(broker.Output{TopicPartition: a, Timestamp: ts.Add(999 * time.Microsecond), Value: fmt.Append(nil, i)})
		}
		s.commit(t, p)
		recs, _ := s.readTo(t, a, broker.ReadCommitted, 0, 3)
		for i, r := range recs {
			if !r.Timestamp.Equal(want[i]) {
				t.Fatalf("timestamp %d: %v, want %v", i, r.Timestamp, want[i])
			}
		}
	}},
	{"LogAppendTime replaces timestamps", "", func(t *testing.T, s *suite) {
		a := tp(s.topic(t, 1, func(top *broker.Topic) { top.LogAppendTime = true }), 0)
		p := s.producer(t)
		old := time.UnixMilli(1000)
		p.Add(broker.Output{TopicPartition: a, Timestamp: old, Value: []byte("1")})
		s.commit(t, p)
		recs, _ := s.readTo(t, a, broker.ReadCommitted, 0, 1)
		if len(recs) != 1 || !recs[0].Timestamp.After(old.AddDate(30, 0, 0)) {
			t.Fatalf("%+v", recs)
		}
	}},
	{"order holds over many batches and small fetches", "", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		var want []string
		for range 20 {
			for range 25 {
				v := fmt.Sprintf("%04d%s", len(want), bytes.Repeat([]byte("x"), 40))
				want = append(want, v)
				add(p, a, v)
			}
			s.commit(t, p)
		}
		s.settled(t, a)
		end := s.high(t, a)
		r := s.reader(t, broker.ReadCommitted, func(c *broker.ReaderConfig) { c.MaxBytes = 300 })
		r.Seek(a, 0, 1)
		var got []string
		last := record.Offset(0)
		for _, b := range s.poll(t, r, "the end", func(b broker.Batch) bool { return b.Next >= end }) {
			if b.Err != nil || b.Next <= last {
				t.Fatalf("batch to %d after %d, %v", b.Next, last, b.Err)
			}
			last = b.Next
			got = append(got, values(b.Records)...)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d records, want %d in order", len(got), len(want))
		}
	}},
	{"a reader starts in the middle of a batch", "", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		add(p, a, "0", "1", "2", "3")
		s.commit(t, p)
		recs, _ := s.readTo(t, a, broker.ReadCommitted, 2, 4)
		if !slices.Equal(values(recs), []string{"2", "3"}) || recs[0].Offset != 2 {
			t.Fatalf("%+v", recs)
		}
	}},
	{"one reader reads many partitions", "", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 5), s.producer(t)
		for i := range 50 {
			add(p, tp(x, i%5), fmt.Sprint(i))
		}
		s.commit(t, p)
		r := s.reader(t, broker.ReadCommitted)
		for i := range 5 {
			r.Seek(tp(x, i), 0, uint64(i))
		}
		got := map[record.TopicPartition]int{}
		all := 0
		s.poll(t, r, "50 records", func(b broker.Batch) bool {
			if b.Tag != uint64(b.Partition) {
				t.Fatalf("tag %d for partition %d", b.Tag, b.Partition)
			}
			got[b.TopicPartition] += len(b.Records)
			all += len(b.Records)
			return all == 50
		})
		for i := range 5 {
			if got[tp(x, i)] != 10 {
				t.Fatalf("%v", got)
			}
		}
	}},
	{"Seek moves and tags what is read from then on", "", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		add(p, a, "0", "1", "2")
		s.commit(t, p)
		r := s.reader(t, broker.ReadCommitted)
		r.Seek(a, 0, 1)
		s.poll(t, r, "the first round", func(b broker.Batch) bool { return b.Next >= 3 })
		r.Seek(a, 1, 2)
		var got []string
		s.poll(t, r, "the second round", func(b broker.Batch) bool {
			if b.Tag == 2 { // batches with another tag are of the old position
				got = append(got, values(b.Records)...)
			}
			return b.Tag == 2 && b.Next >= 3
		})
		if !slices.Equal(got, []string{"1", "2"}) {
			t.Fatalf("after Seek: %q", got)
		}
	}},
	{"a paused partition is left out and goes on without a gap", "", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 2), s.producer(t)
		a, b := tp(x, 0), tp(x, 1)
		r := s.reader(t, broker.ReadCommitted)
		r.Seek(a, 0, 1)
		r.Seek(b, 0, 1)
		add(p, a, "a0")
		add(p, b, "b0")
		s.commit(t, p)
		got := map[record.TopicPartition][]string{}
		take := func(until func() bool) func(broker.Batch) bool {
			return func(x broker.Batch) bool {
				got[x.TopicPartition] = append(got[x.TopicPartition], values(x.Records)...)
				return until()
			}
		}
		s.poll(t, r, "one record of each", take(func() bool { return len(got[a]) == 1 && len(got[b]) == 1 }))
		r.Pause(a, true)
		// What was asked for before the pause may still arrive: let it, before anything is written.
		for range 5 {
			for _, x := range r.Poll(s.ctx(t), s.MaxWait) {
				take(func() bool { return false })(x)
			}
		}
		add(p, a, "a1")
		add(p, b, "b1")
		s.commit(t, p)
		s.poll(t, r, "the other partition", take(func() bool { return len(got[b]) == 2 }))
		if len(got[a]) != 1 {
			t.Fatalf("the paused partition brought %q", got[a])
		}
		r.Pause(a, false)
		s.poll(t, r, "the resumed partition", take(func() bool { return len(got[a]) == 2 }))
		if !slices.Equal(got[a], []string{"a0", "a1"}) {
			t.Fatalf("%q", got[a])
		}
	}},
	{"a removed partition brings nothing more", "", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 2), s.producer(t)
		r := s.reader(t, broker.ReadCommitted)
		r.Seek(tp(x, 0), 0, 1)
		r.Seek(tp(x, 1), 0, 1)
		r.Remove(tp(x, 0))
		for range 5 {
			r.Poll(s.ctx(t), s.MaxWait)
		}
		add(p, tp(x, 0), "0")
		add(p, tp(x, 1), "1")
		s.commit(t, p)
		s.poll(t, r, "the other partition", func(b broker.Batch) bool {
			if b.Partition == 0 && len(b.Records) > 0 {
				t.Fatalf("the removed partition brought %q", values(b.Records))
			}
			return b.Partition == 1 && len(b.Records) == 1
		})
		r.Remove(tp(x, 0)) // again: nothing to do
	}},
	{"Poll waits for what is written later", "", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		r := s.reader(t, broker.ReadCommitted)
		r.Seek(a, 0, 1)
		if got := r.Poll(s.ctx(t), s.MaxWait); len(got) != 0 {
			t.Fatalf("%+v", got)
		}
		add(p, a, "1")
		s.commit(t, p)
		got := s.poll(t, r, "the record", func(b broker.Batch) bool { return len(b.Records) > 0 })
		last := got[len(got)-1]
		if last.Records[0].Offset != 0 || last.HighWatermark < 1 || last.LastStable < 1 {
			t.Fatalf("%+v", last)
		}
	}},
	{"a reader that is asked to tells answers that brought nothing, and no other one does", "", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		all, news := s.reader(t, broker.ReadCommitted, func(c *broker.ReaderConfig) { c.Answers = true }), s.reader(t, broker.ReadCommitted)
		all.Seek(a, 0, 7)
		news.Seek(a, 0, 7)
		nothing := func(next record.Offset) {
			var last time.Time
			s.poll(t, all, fmt.Sprintf("two answers at %d that brought nothing", next), func(b broker.Batch) bool {
				if !b.Nothing {
					return false
				}
				if b.Next != next || b.LastStable != next || b.Tag != 7 || len(b.Records) > 0 || b.Asked.IsZero() {
					t.Fatalf("%+v, want nothing at %d", b, next)
				}
				before := last
				last = b.Asked
				return !before.IsZero() && last.After(before)
			})
		}
		nothing(0)
		p.Add(broker.Output{TopicPartition: a, Value: []byte("1")})
		s.commit(t, p)
		s.settled(t, a)
		end := s.stable(t, a)
		var got []string
		s.poll(t, all, "the record and its marker", func(b broker.Batch) bool { got = append(got, values(b.Records)...); return b.Next == end })
		if !slices.Equal(got, []string{"1"}) {
			t.Errorf("read %v", got)
		}
		nothing(end)
		for _, b := range s.poll(t, news, "the record and its marker", func(b broker.Batch) bool { return b.Next == end }) {
			if b.Nothing {
				t.Errorf("a batch that nobody asked for: %+v", b)
			}
		}
	}},
	{"Wake ends a Poll", "", func(t *testing.T, s *suite) {
		a := tp(s.topic(t, 1), 0)
		r := s.reader(t, broker.ReadCommitted)
		r.Seek(a, 0, 1)
		r.Wake()
		start := time.Now()
		if got := r.Poll(s.ctx(t), time.Minute); len(got) != 0 || time.Since(start) > 30*time.Second {
			t.Fatalf("%d batches after %v", len(got), time.Since(start))
		}
	}},
	{"Poll ends with its context", "", func(t *testing.T, s *suite) {
		r := s.reader(t, broker.ReadCommitted)
		r.Seek(tp(s.topic(t, 1), 0), 0, 1)
		ctx, cancel := context.WithCancel(s.ctx(t))
		cancel()
		start := time.Now()
		if got := r.Poll(ctx, time.Minute); len(got) != 0 || time.Since(start) > 30*time.Second {
			t.Fatalf("%d batches after %v", len(got), time.Since(start))
		}
	}},
	{"a position outside the log is an error until the next Seek", "", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		add(p, a, "0")
		s.commit(t, p)
		r := s.reader(t, broker.ReadCommitted)
		r.Seek(a, 100, 1)
		got := s.poll(t, r, "an error", func(broker.Batch) bool { return false })
		if err := got[len(got)-1].Err; !errors.Is(err, broker.ErrOffsetOutOfRange) {
			t.Fatalf("%v", err)
		}
		for range 3 {
			if got := r.Poll(s.ctx(t), s.MaxWait); len(got) != 0 {
				t.Fatalf("the error is told once: %+v", got)
			}
		}
		r.Seek(a, 0, 2)
		s.poll(t, r, "the record", func(b broker.Batch) bool { return len(b.Records) == 1 && b.Tag == 2 })
	}},
	{"an unknown topic is an error", "", func(t *testing.T, s *suite) {
		r := s.reader(t, broker.ReadCommitted)
		a := tp(s.prefix+"-missing", 0)
		r.Seek(a, 0, 1)
		got := s.poll(t, r, "an error", func(broker.Batch) bool { return false })
		if err := got[len(got)-1].Err; !errors.Is(err, broker.ErrUnknownTopic) {
			t.Fatalf("%v", err)
		}
	}},
	{"a fetch without an answer is made again", "LoseAnswer LoseRequest", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		add(p, a, "0", "1")
		s.commit(t, p)
		r := s.reader(t, broker.ReadCommitted)
		s.LoseAnswer("Fetch")
		s.LoseRequest("Fetch")
		r.Seek(a, 0, 1)
		var got []string
		s.poll(t, r, "the records", func(b broker.Batch) bool {
			got = append(got, values(b.Records)...)
			return b.Next >= 2
		})
		if !slices.Equal(got, []string{"0", "1"}) {
			t.Fatalf("%q", got)
		}
	}},
	{"a reader and a producer follow a leader", "ElectLeader", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		r := s.reader(t, broker.ReadCommitted)
		r.Seek(a, 0, 1)
		var got []string
		for i := range 3 {
			add(p, a, fmt.Sprint(i))
			s.commit(t, p)
			s.poll(t, r, "record "+fmt.Sprint(i), func(b broker.Batch) bool {
				got = append(got, values(b.Records)...)
				return len(got) == i+1
			})
			s.ElectLeader(a)
		}
		if !slices.Equal(got, []string{"0", "1", "2"}) {
			t.Fatalf("%q", got)
		}
	}},
}

// same compares bytes, and nil is not empty: a tombstone is not an empty value.
func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
