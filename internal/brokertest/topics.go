package brokertest

import (
	"errors"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// topicFacts are about metadata and administration.
var topicFacts = []fact{
	{"a cluster has one ID", "", func(t *testing.T, s *suite) {
		a, err := s.Cluster.ID(s.ctx(t))
		b, err2 := s.Cluster.ID(s.ctx(t))
		if err != nil || err2 != nil || a == "" || a != b {
			t.Fatalf("%q %v, %q %v", a, err, b, err2)
		}
	}},
	{"a topic is as it was created", "", func(t *testing.T, s *suite) {
		name := s.topic(t, 3, func(top *broker.Topic) {
			top.Cleanup, top.DeleteRetention, top.LogAppendTime, top.MaxMessageBytes = broker.Compact, 3*time.Hour, true, 12345
		})
		other := s.topic(t, 1, func(top *broker.Topic) { top.Retention = 5 * time.Hour })
		got, err := s.Cluster.Topics(s.ctx(t), name, other, s.prefix+"-missing")
		if err != nil || len(got) != 2 {
			t.Fatalf("%v, %v; a topic that does not exist is left out", got, err)
		}
		a, b := got[name], got[other]
		if a.Name != name || a.Partitions != 3 || a.Cleanup != broker.Compact || a.DeleteRetention != 3*time.Hour ||
			!a.LogAppendTime || a.MaxMessageBytes != 12345 || len(a.ID) != 36 || a.Replicas < 1 || a.MinInSync < 1 {
			t.Fatalf("%+v", a)
		}
		if b.Partitions != 1 || b.Cleanup != broker.Delete || b.Retention != 5*time.Hour || b.LogAppendTime || b.ID == a.ID {
			t.Fatalf("%+v", b)
		}
	}},
	{"a topic that exists is not made again", "", func(t *testing.T, s *suite) {
		name := s.topic(t, 1)
		err := s.Cluster.CreateTopic(s.ctx(t), broker.Topic{Name: name, Partitions: 5, Replicas: -1, Cleanup: broker.Delete})
		if !errors.Is(err, broker.ErrTopicExists) {
			t.Fatalf("%v", err)
		}
		if got, _ := s.Cluster.Topics(s.ctx(t), name); got[name].Partitions != 1 {
			t.Fatalf("%+v", got)
		}
	}},
	{"a topic that is made again has another ID", "DeleteTopic", func(t *testing.T, s *suite) {
		name := s.topic(t, 1)
		before, _ := s.Cluster.Topics(s.ctx(t), name)
		s.DeleteTopic(name)
		if got, err := s.Cluster.Topics(s.ctx(t), name); err != nil || len(got) != 0 {
			t.Fatalf("%v, %v", got, err)
		}
		if err := s.Cluster.CreateTopic(s.ctx(t), broker.Topic{Name: name, Partitions: 1, Replicas: -1, Cleanup: broker.Delete}); err != nil {
			t.Fatal(err)
		}
		after, _ := s.Cluster.Topics(s.ctx(t), name)
		if before[name].ID == after[name].ID || after[name].ID == "" {
			t.Fatalf("%q, then %q", before[name].ID, after[name].ID)
		}
	}},
	{"offsets of an empty partition are 0", "", func(t *testing.T, s *suite) {
		a := tp(s.topic(t, 1), 0)
		if st, hi, lo := s.offset(t, s.Cluster.StartOffsets, a), s.high(t, a), s.stable(t, a); st != 0 || hi != 0 || lo != 0 {
			t.Fatalf("start %d, high watermark %d, last stable %d", st, hi, lo)
		}
	}},
	{"offsets of an unknown partition are an error", "", func(t *testing.T, s *suite) {
		missing := []record.TopicPartition{tp(s.prefix+"-missing", 0)}
		for _, of := range []offsetsOf{s.Cluster.StartOffsets, s.Cluster.HighWatermarks, s.Cluster.StableOffsets} {
			if got, err := of(s.ctx(t), missing); !errors.Is(err, broker.ErrUnknownTopic) {
				t.Fatalf("%v, %v", got, err)
			}
		}
	}},
	{"DeleteRecords moves the log start", "", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		add(p, a, "0", "1", "2", "3")
		s.commit(t, p)
		s.settled(t, a)
		if err := s.Cluster.DeleteRecords(s.ctx(t), map[record.TopicPartition]record.Offset{a: 2}); err != nil {
			t.Fatal(err)
		}
		if st := s.offset(t, s.Cluster.StartOffsets, a); st != 2 {
			t.Fatalf("log start %d, want 2", st)
		}
		recs, _ := s.readTo(t, a, broker.ReadCommitted, 2, 4)
		if len(recs) != 2 || string(recs[0].Value) != "2" {
			t.Fatalf("%q", values(recs))
		}
		r := s.reader(t, broker.ReadCommitted)
		r.Seek(a, 1, 1)
		got := s.poll(t, r, "an error", func(broker.Batch) bool { return false })
		if err := got[len(got)-1].Err; !errors.Is(err, broker.ErrOffsetOutOfRange) {
			t.Fatalf("below the log start: %v", err)
		}
	}},
	{"a call ends with its context", "", func(t *testing.T, s *suite) {
		ctx, cancel := cancelled(s.ctx(t))
		defer cancel()
		if _, err := s.Cluster.Topics(ctx, "x"); err == nil {
			t.Fatal("Topics: no error")
		}
		p := s.producer(t)
		add(p, tp(s.topic(t, 1), 0), "1")
		if _, out, err := p.Commit(ctx, broker.GroupMeta{Generation: -1}, nil); out != broker.NotCommitted || err == nil {
			t.Fatalf("Commit: %v, %v; nothing was asked to commit", out, err)
		}
		if err := p.Init(ctx); err == nil {
			t.Fatal("Init: no error")
		}
	}},
}
