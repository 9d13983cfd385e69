package brokertest

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// transactionFacts are about commits that get clear answers.
var transactionFacts = []fact{
	{"a commit is visible in order and its receipt says where", "", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		add(p, a, "1", "2", "3")
		r := s.commit(t, p)
		if r.Next[a] != 3 {
			t.Fatalf("receipt %v, want 3", r.Next)
		}
		add(p, a, "4")
		r = s.commit(t, p)
		if r.Next[a] != 5 { // the first transaction's marker stands at 3
			t.Fatalf("receipt %v, want 5", r.Next)
		}
		s.wantValues(t, a, "1", "2", "3", "4")
	}},
	{"the position passes markers and reaches the high watermark", "", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		add(p, a, "1")
		s.commit(t, p)
		s.settled(t, a)
		recs, next := s.readTo(t, a, broker.ReadCommitted, 0, 2)
		if len(recs) != 1 || next != 2 || s.high(t, a) != 2 {
			t.Fatalf("%d records, next %d, high watermark %d; want 1, 2, 2", len(recs), next, s.high(t, a))
		}
		// Only the marker is left to read: a batch without records that moves the position.
		if recs, next = s.readTo(t, a, broker.ReadCommitted, 1, 2); len(recs) != 0 || next != 2 {
			t.Fatalf("behind the record: %d records, next %d; want 0, 2", len(recs), next)
		}
	}},
	{"a transaction spans partitions and topics", "", func(t *testing.T, s *suite) {
		x, y, p := s.topic(t, 3), s.topic(t, 1), s.producer(t)
		for i := range 9 {
			add(p, tp(x, i%3), fmt.Sprint(i))
		}
		add(p, tp(y, 0), "y")
		r := s.commit(t, p)
		for i := range 3 {
			if r.Next[tp(x, i)] != 3 {
				t.Fatalf("receipt %v", r.Next)
			}
			s.wantValues(t, tp(x, i), fmt.Sprint(i), fmt.Sprint(i+3), fmt.Sprint(i+6))
		}
		s.wantValues(t, tp(y, 0), "y")
	}},
	{"a transaction may hold offsets only", "", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		s.commit(t, p, offset(a, 7))
		got := s.committed(t, a)
		if got.Next != 7 || got.Metadata != "m7" {
			t.Fatalf("committed %+v, want 7 and m7", got)
		}
	}},
	{"outputs and offsets commit together", "", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 2), s.producer(t)
		for i := range 3 {
			add(p, tp(x, 0), fmt.Sprint(i))
			s.commit(t, p, offset(tp(x, 1), record.Offset(i+1)))
		}
		s.wantValues(t, tp(x, 0), "0", "1", "2")
		s.wantOffset(t, tp(x, 1), 3)
	}},
	{"a partition without a committed offset has none", "", func(t *testing.T, s *suite) {
		s.wantOffset(t, tp(s.topic(t, 1), 0), record.NoOffset)
	}},
	{"an empty transaction is refused", "", func(t *testing.T, s *suite) {
		p := s.producer(t)
		s.wantCommit(t, p, broker.NotCommitted)
		a := tp(s.topic(t, 1), 0)
		s.init(t, p)
		add(p, a, "1")
		s.commit(t, p)
		s.wantValues(t, a, "1")
	}},
	{"a commit before Init is refused", "", func(t *testing.T, s *suite) {
		a := tp(s.topic(t, 1), 0)
		p := s.Cluster.NewProducer(broker.ProducerConfig{TransactionalID: s.id()})
		defer p.Close()
		add(p, a, "1")
		s.wantCommit(t, p, broker.NotCommitted)
		s.init(t, p) // Init keeps the buffer
		s.commit(t, p)
		s.wantValues(t, a, "1")
	}},
	{"a generation below 0 is refused before anything is sent", "", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 2), s.producer(t)
		meta := s.member(t, true)
		meta.Generation = -1
		add(p, tp(x, 0), "1")
		_, out, err := p.Commit(s.ctx(t), meta, []broker.OffsetCommit{offset(tp(x, 1), 1)})
		if out != broker.NotCommitted || !errors.Is(err, broker.ErrIllegalGeneration) {
			t.Fatalf("%v, %v", out, err)
		}
		if h := s.high(t, tp(x, 0)); h != 0 {
			t.Fatalf("something was sent: high watermark %d", h)
		}
		s.wantOffset(t, tp(x, 1), record.NoOffset)
	}},
	{"a stale generation is refused and the same buffer commits after Init", "", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 2), s.producer(t)
		good := s.member(t, true)
		stale := good
		stale.Generation++ // any other one
		add(p, tp(x, 0), "1")
		_, out, err := p.Commit(s.ctx(t), stale, []broker.OffsetCommit{offset(tp(x, 1), 1)})
		if out != broker.NotCommitted || !errors.Is(err, broker.ErrIllegalGeneration) {
			t.Fatalf("%v, %v", out, err)
		}
		s.init(t, p)
		s.wantOffset(t, tp(x, 1), record.NoOffset)
		s.wantValues(t, tp(x, 0)) // the refused attempt stays invisible
		s.commit(t, p, offset(tp(x, 1), 1))
		s.wantValues(t, tp(x, 0), "1")
		s.wantOffset(t, tp(x, 1), 1)
	}},
	{"an unknown member is refused", "", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 2), s.producer(t)
		meta := s.member(t, true)
		meta.Member += "-other"
		add(p, tp(x, 0), "1")
		_, out, err := p.Commit(s.ctx(t), meta, []broker.OffsetCommit{offset(tp(x, 1), 1)})
		if out != broker.NotCommitted || !errors.Is(err, broker.ErrUnknownMember) {
			t.Fatalf("%v, %v", out, err)
		}
		s.init(t, p)
		s.wantValues(t, tp(x, 0))
		s.wantOffset(t, tp(x, 1), record.NoOffset)
	}},
	{"a generation of a group without members is refused", "", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 2), s.producer(t)
		add(p, tp(x, 0), "1")
		_, out, err := p.Commit(s.ctx(t), broker.GroupMeta{Group: s.id(), Member: "m", Instance: "i", Generation: 1},
			[]broker.OffsetCommit{offset(tp(x, 1), 1)})
		if out != broker.NotCommitted || !(errors.Is(err, broker.ErrIllegalGeneration) || errors.Is(err, broker.ErrUnknownMember)) {
			t.Fatalf("%v, %v", out, err)
		}
		s.init(t, p)
		s.wantValues(t, tp(x, 0))
	}},
	{"Reset drops the buffer", "", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		add(p, a, "1", "2")
		n, size := p.Buffered()
		if n != 2 || size < 2*len("k-1"+"1") {
			t.Fatalf("buffered %d records, %d bytes", n, size)
		}
		p.Reset()
		if n, size = p.Buffered(); n != 0 || size != 0 {
			t.Fatalf("after Reset: %d records, %d bytes", n, size)
		}
		add(p, a, "3")
		s.commit(t, p)
		if n, _ = p.Buffered(); n != 0 {
			t.Fatalf("after the commit: %d records", n)
		}
		s.wantValues(t, a, "3")
	}},
	{"Init keeps the buffer", "", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		add(p, a, "1")
		s.init(t, p)
		add(p, a, "2")
		s.init(t, p)
		s.commit(t, p)
		s.wantValues(t, a, "1", "2")
	}},
	{"a second producer with the same ID fences the first", "", func(t *testing.T, s *suite) {
		a, id := tp(s.topic(t, 1), 0), s.id()
		old := s.producer(t, withID(id))
		add(old, a, "1")
		s.commit(t, old)
		next := s.producer(t, withID(id))
		add(old, a, "2")
		if err := s.wantCommit(t, old, broker.NotCommitted); errors.Is(err, broker.ErrFenced) {
			t.Fatalf("a commit cannot know that it was fenced for good: %v", err)
		}
		if err := old.Init(s.ctx(t)); !errors.Is(err, broker.ErrFenced) {
			t.Fatalf("init of the fenced producer: %v, want ErrFenced", err)
		}
		// The zombie's Init may have raised the epoch (it aborts an open transaction): the new owner
		// re-initialises, as after any doubt, and goes on.
		s.init(t, next)
		add(next, a, "3")
		s.commit(t, next)
		s.wantValues(t, a, "1", "3")
	}},
	{"two producers take turns in one partition", "", func(t *testing.T, s *suite) {
		a := tp(s.topic(t, 1), 0)
		ps := []broker.Producer{s.producer(t), s.producer(t)}
		var want []string
		for i := range 20 {
			v := fmt.Sprint(i)
			want = append(want, v)
			add(ps[i%2], a, v)
			s.commit(t, ps[i%2])
		}
		s.wantValues(t, a, want...)
	}},
	{"transactions that follow at once all commit", "", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 4), s.producer(t)
		want := make([][]string, 4)
		for i := range 50 {
			for k := range 4 {
				v := fmt.Sprint(i, k)
				want[k] = append(want[k], v)
				add(p, tp(x, k), v)
			}
			s.commit(t, p)
		}
		for k := range 4 {
			s.wantValues(t, tp(x, k), want[k]...)
		}
	}},
	{"a record that no batch can carry is named", "", func(t *testing.T, s *suite) {
		x := s.topic(t, 1, func(top *broker.Topic) { top.MaxMessageBytes = 4000 })
		a, b, p := tp(x, 0), tp(s.topic(t, 1), 0), s.producer(t)
		add(p, b, "1")
		add(p, a, "2", string(bytes.Repeat([]byte("x"), 9000)), "3")
		_, out, err := p.Commit(s.ctx(t), broker.GroupMeta{Generation: -1}, nil)
		var large *broker.TooLargeError
		if out != broker.NotCommitted || !errors.Is(err, broker.ErrRecordTooLarge) || !errors.As(err, &large) {
			t.Fatalf("%v, %v", out, err)
		}
		if large.Index != 2 || large.Topic != x || large.Bytes < 9000 {
			t.Fatalf("%+v, want index 2 of %s", large, x)
		}
		p.Reset()
		s.init(t, p)
		add(p, a, "4")
		s.commit(t, p)
		s.wantValues(t, a, "4")
		s.wantValues(t, b)
	}},
	{"a batch that is too large is split", "", func(t *testing.T, s *suite) {
		x := s.topic(t, 1, func(top *broker.Topic) { top.MaxMessageBytes = 4000 })
		a, p := tp(x, 0), s.producer(t)
		var want []string
		for i := range 40 {
			want = append(want, fmt.Sprintf("%03d%s", i, bytes.Repeat([]byte("x"), 500)))
		}
		add(p, a, want...)
		if r := s.commit(t, p); r.Next[a] != 40 {
			t.Fatalf("receipt %v, want 40", r.Next)
		}
		add(p, a, "last")
		s.commit(t, p) // the sequence numbers go on
		s.wantValues(t, a, append(want, "last")...)
	}},
	{"more bytes than one batch go in several", "", func(t *testing.T, s *suite) {
		a := tp(s.topic(t, 1), 0)
		p := s.producer(t, func(c *broker.ProducerConfig) { c.MaxBatchBytes = 2000 })
		var want []string
		for i := range 50 {
			want = append(want, fmt.Sprintf("%03d%s", i, bytes.Repeat([]byte("x"), 300)))
		}
		add(p, a, want...)
		s.commit(t, p)
		s.wantValues(t, a, want...)
	}},
	{"producing to an unknown topic fails and commits nothing", "", func(t *testing.T, s *suite) {
		a := tp(s.topic(t, 1), 0)
		p := s.producer(t, func(c *broker.ProducerConfig) { c.CommitDeadline = time.Second })
		add(p, a, "1")
		add(p, tp(s.prefix+"-missing", 0), "2")
		s.wantCommit(t, p, broker.NotCommitted)
		p.Reset()
		add(p, a, "3")
		s.eventually(t, "a commit within its deadline", func() bool { // which a busy machine may pass again
			s.init(t, p)
			_, out, err := p.Commit(s.ctx(t), s.member(t, false), nil)
			if out == broker.Unknown {
				t.Fatal(err)
			}
			return out == broker.Committed
		})
		s.wantValues(t, a, "3")
	}},
	{"every compression is read back", "", func(t *testing.T, s *suite) {
		a := tp(s.topic(t, 1), 0)
		var want []string
		for _, codec := range []string{"none", "snappy", "lz4", "zstd", "gzip"} {
			p := s.producer(t, func(c *broker.ProducerConfig) { c.Compression = codec })
			for i := range 20 {
				v := fmt.Sprintf("%s-%d-%s", codec, i, bytes.Repeat([]byte("x"), 50))
				want = append(want, v)
				add(p, a, v)
			}
			s.commit(t, p)
		}
		s.wantValues(t, a, want...)
	}},
	{"the bytes of a committed record are free again", "", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		v := []byte("before")
		p.Add(broker.Output{TopicPartition: a, Value: v, Timestamp: time.UnixMilli(1)})
		s.commit(t, p)
		copy(v, "after!")
		s.wantValues(t, a, "before")
	}},
	{"a transaction that is not ended is aborted by its timeout", "LoseRequest TimesOut", func(t *testing.T, s *suite) {
		x := s.topic(t, 2)
		p := s.producer(t, func(c *broker.ProducerConfig) { c.TransactionTimeout = time.Second })
		add(p, tp(x, 0), "1")
		s.LoseRequest("EndTxn")
		s.wantCommit(t, p, broker.Unknown, offset(tp(x, 1), 1))
		s.settled(t, tp(x, 0))
		s.wantOffset(t, tp(x, 1), record.NoOffset)
		s.wantValues(t, tp(x, 0))
		// The epoch was raised by the coordinator, not by another owner: one Init heals it.
		p.Reset()
		s.init(t, p)
		add(p, tp(x, 0), "2")
		s.commit(t, p)
		s.wantValues(t, tp(x, 0), "2")
	}},
	{"the offset committed later wins though its marker comes first", "HoldMarkers", func(t *testing.T, s *suite) {
		a := tp(s.topic(t, 1), 0)
		first, second := s.producer(t), s.producer(t)
		release := s.HoldMarkers(func(record.TopicPartition) bool { return true })
		s.commit(t, first, offset(a, 20))
		release2 := s.HoldMarkers(func(record.TopicPartition) bool { return false }) // the second's go through
		s.commit(t, second, offset(a, 30))
		release2()
		if _, err := s.Cluster.CommittedOffsets(s.ctx(t), s.group, []record.TopicPartition{a}); !errors.Is(err, broker.ErrUnstableOffsets) {
			t.Fatalf("the first is undecided for readers: %v", err)
		}
		release()
		s.wantOffset(t, a, 30)
	}},
	{"markers reach partitions at their own times", "HoldMarkers", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 2), s.producer(t)
		release := s.HoldMarkers(func(at record.TopicPartition) bool { return at == tp(x, 0) })
		add(p, tp(x, 0), "1")
		s.commit(t, p, offset(tp(x, 1), 1))
		// The offset is there, the record is not: a restore that stops at the last stable offset loses it.
		s.wantOffset(t, tp(x, 1), 1)
		if st, hi := s.stable(t, tp(x, 0)), s.high(t, tp(x, 0)); st != 0 || hi != 1 {
			t.Fatalf("last stable offset %d, high watermark %d; want 0, 1", st, hi)
		}
		release()
		s.wantValues(t, tp(x, 0), "1")
	}},
}
