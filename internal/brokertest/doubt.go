package brokertest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// The codes that these facts make a broker answer.
const (
	unknownServerError     = -1
	leaderNotAvailable     = 5
	notLeader              = 6
	requestTimedOut        = 7
	coordinatorLoading     = 14
	coordinatorUnavailable = 15
	notCoordinator         = 16
	notEnoughReplicas      = 19
	notEnoughAfterAppend   = 20
	outOfOrderSequence     = 45
	invalidTxnState        = 48
	concurrentTransactions = 51
	unknownProducerID      = 59
)

// doubtFacts are about requests that get an error or no answer.
var doubtFacts = []fact{
	{"before the commit nothing is visible and the position waits", "LoseRequest", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 2), s.producer(t)
		a := tp(x, 0)
		add(p, a, "1")
		s.commit(t, p)
		s.settled(t, a)
		add(p, a, "2", "3")
		s.LoseRequest("EndTxn")
		s.wantCommit(t, p, broker.Unknown, offset(tp(x, 1), 5))
		// The transaction is open: its records stand behind the last stable offset.
		if st, hi := s.stable(t, a), s.high(t, a); st != 2 || hi != 4 {
			t.Fatalf("last stable offset %d, high watermark %d; want 2, 4", st, hi)
		}
		recs, next := s.readTo(t, a, broker.ReadCommitted, 0, 2)
		if len(recs) != 1 || next != 2 {
			t.Fatalf("read_committed: %q to %d", values(recs), next)
		}
		recs, next = s.readTo(t, a, broker.ReadUncommitted, 0, 4)
		if len(recs) != 3 || next != 4 {
			t.Fatalf("read_uncommitted: %q to %d", values(recs), next)
		}
		_, err := s.Cluster.CommittedOffsets(s.ctx(t), s.group, []record.TopicPartition{tp(x, 1)})
		if !errors.Is(err, broker.ErrUnstableOffsets) {
			t.Fatalf("offsets of an undecided transaction: %v", err)
		}
		p.Reset()
		s.init(t, p)
		s.wantOffset(t, tp(x, 1), record.NoOffset)
		s.wantValues(t, a, "1")
	}},
	{"aborted records are never seen and the position passes them", "LoseRequest", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		add(p, a, "1", "2")
		s.LoseRequest("EndTxn")
		s.wantCommit(t, p, broker.Unknown)
		p.Reset()
		s.init(t, p)
		s.settled(t, a)
		end := s.high(t, a)
		recs, next := s.readTo(t, a, broker.ReadCommitted, 0, end)
		if len(recs) != 0 || next != end || end != 3 {
			t.Fatalf("%q, next %d, end %d", values(recs), next, end)
		}
		if recs, _ = s.readTo(t, a, broker.ReadUncommitted, 0, end); len(recs) != 2 {
			t.Fatalf("read_uncommitted: %q", values(recs))
		}
		add(p, a, "3")
		s.commit(t, p)
		s.wantValues(t, a, "3")
	}},
	{"a successor's Init ends its predecessor's transaction at once", "LoseRequest", func(t *testing.T, s *suite) {
		x, id := s.topic(t, 2), s.id()
		old := s.producer(t, withID(id))
		add(old, tp(x, 0), "1")
		s.LoseRequest("EndTxn")
		s.wantCommit(t, old, broker.Unknown, offset(tp(x, 1), 5))
		next := s.producer(t, withID(id))
		s.wantOffset(t, tp(x, 1), record.NoOffset)
		s.wantValues(t, tp(x, 0))
		add(next, tp(x, 0), "2")
		s.commit(t, next, offset(tp(x, 1), 6))
		s.wantValues(t, tp(x, 0), "2")
		s.wantOffset(t, tp(x, 1), 6)
	}},
	{"a decided transaction behind an open one waits for it", "LoseRequest", func(t *testing.T, s *suite) {
		a := tp(s.topic(t, 1), 0)
		first, second := s.producer(t), s.producer(t)
		add(first, a, "1")
		s.LoseRequest("EndTxn")
		s.wantCommit(t, first, broker.Unknown)
		add(second, a, "2")
		s.commit(t, second)
		if st := s.stable(t, a); st != 0 {
			t.Fatalf("last stable offset %d, want 0", st)
		}
		first.Reset()
		s.init(t, first)
		s.wantValues(t, a, "2")
	}},
	{"a commit whose answer is lost is unknown and was committed", "LoseAnswer", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 2), s.producer(t)
		add(p, tp(x, 0), "1")
		s.LoseAnswer("EndTxn")
		s.wantCommit(t, p, broker.Unknown, offset(tp(x, 1), 1))
		p.Reset()
		s.init(t, p)
		s.wantOffset(t, tp(x, 1), 1)
		s.wantValues(t, tp(x, 0), "1")
	}},
	{"a commit whose request is lost is unknown and was not committed", "LoseRequest", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 2), s.producer(t)
		add(p, tp(x, 0), "1")
		s.LoseRequest("EndTxn")
		s.wantCommit(t, p, broker.Unknown, offset(tp(x, 1), 1))
		p.Reset()
		s.init(t, p)
		s.wantOffset(t, tp(x, 1), record.NoOffset)
		add(p, tp(x, 0), "1")
		s.commit(t, p, offset(tp(x, 1), 1))
		s.wantValues(t, tp(x, 0), "1")
		s.wantOffset(t, tp(x, 1), 1)
	}},
	{"an error to EndTxn leaves the outcome unknown", "Refuse", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		for i, code := range []int16{unknownServerError, requestTimedOut, invalidTxnState} {
			add(p, a, fmt.Sprint(i))
			s.Refuse("EndTxn", code, 1)
			s.wantCommit(t, p, broker.Unknown)
			p.Reset()
			s.init(t, p)
		}
		s.wantValues(t, a) // none was handled, and Init aborted them all
	}},
	{"a lost answer before EndTxn commits nothing and the buffer runs again", "LoseAnswer", func(t *testing.T, s *suite) {
		s.everyStep(t, s.LoseAnswer)
	}},
	{"a lost request before EndTxn commits nothing and the buffer runs again", "LoseRequest", func(t *testing.T, s *suite) {
		s.everyStep(t, s.LoseRequest)
	}},
	{"Init answers in the end though its first answer is lost", "LoseAnswer", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		add(p, a, "1")
		s.commit(t, p)
		s.LoseAnswer("InitProducerId")
		s.init(t, p)
		add(p, a, "2")
		s.commit(t, p)
		s.wantValues(t, a, "1", "2")
	}},
	{"errors that heal are sent again within the commit", "Refuse", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 2), s.producer(t)
		heals := []struct {
			api   string
			codes []int16
		}{
			{"AddPartitionsToTxn", []int16{concurrentTransactions, coordinatorLoading, coordinatorUnavailable, notCoordinator}},
			{"AddOffsetsToTxn", []int16{concurrentTransactions, coordinatorLoading, coordinatorUnavailable, notCoordinator}},
			{"Produce", []int16{leaderNotAvailable, notLeader, notEnoughReplicas, notEnoughAfterAppend}},
			{"TxnOffsetCommit", []int16{coordinatorLoading, coordinatorUnavailable, notCoordinator}},
			{"EndTxn", []int16{concurrentTransactions, coordinatorLoading, coordinatorUnavailable, notCoordinator}},
		}
		var want []string
		for _, h := range heals {
			if !s.sends(h.api) {
				continue
			}
			for _, code := range h.codes {
				v := fmt.Sprint(h.api, code)
				want = append(want, v)
				add(p, tp(x, 0), v)
				s.Refuse(h.api, code, 3)
				s.commit(t, p, offset(tp(x, 1), record.Offset(len(want))))
			}
		}
		s.wantValues(t, tp(x, 0), want...)
		s.wantOffset(t, tp(x, 1), record.Offset(len(want)))
	}},
	{"errors that do not heal end the transaction and Init heals them", "Refuse", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		var want []string
		for _, api := range []string{"Produce", "AddPartitionsToTxn"} {
			if !s.sends(api) {
				continue
			}
			for _, code := range []int16{outOfOrderSequence, invalidTxnState, unknownProducerID, unknownServerError} {
				v := fmt.Sprint(api, code)
				want = append(want, v)
				add(p, a, v)
				s.Refuse(api, code, 1)
				if err := s.wantCommit(t, p, broker.NotCommitted); !errors.Is(err, broker.ErrAbortable) {
					t.Fatalf("%s answered %d: %v, want ErrAbortable", api, code, err)
				}
				s.init(t, p)
				s.commit(t, p)
			}
		}
		s.wantValues(t, a, want...)
	}},
	{"Init waits out its coordinator", "Refuse", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		for _, code := range []int16{concurrentTransactions, coordinatorLoading, coordinatorUnavailable, notCoordinator} {
			s.Refuse("InitProducerId", code, 3)
			s.init(t, p)
		}
		add(p, a, "1")
		s.commit(t, p)
		s.wantValues(t, a, "1")
	}},
	{"a late EndTxn of an older transaction commits nothing", "Hold LoseRequest", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		add(p, a, "1")
		deliver := s.Hold("EndTxn")
		s.wantCommit(t, p, broker.Unknown)
		p.Reset()
		s.init(t, p)
		add(p, a, "2") // the next transaction stays open
		s.LoseRequest("EndTxn")
		s.wantCommit(t, p, broker.Unknown)
		deliver()
		s.pass(s.MaxWait)
		p.Reset()
		s.init(t, p)
		s.wantValues(t, a)
	}},
	{"a late TxnOffsetCommit does not move offsets back", "Hold", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		s.commit(t, p, offset(a, 10))
		deliver := s.Hold("TxnOffsetCommit")
		s.wantCommit(t, p, broker.NotCommitted, offset(a, 20))
		s.init(t, p)
		s.commit(t, p, offset(a, 30))
		deliver()
		s.pass(s.MaxWait)
		s.commit(t, p, offset(tp(s.topic(t, 1), 0), 1))
		s.wantOffset(t, a, 30)
	}},
	{"a late Produce does not take the place of a newer batch", "Hold", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		add(p, a, "1")
		deliver := s.Hold("Produce")
		s.wantCommit(t, p, broker.NotCommitted)
		p.Reset()
		s.init(t, p)
		deliver()
		s.pass(s.MaxWait)
		add(p, a, "2")
		s.commit(t, p)
		s.wantValues(t, a, "2")
	}},
	{"a late InitProducerId costs a transaction and no record", "Hold", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.producer(t)
		deliver := s.Hold("InitProducerId")
		s.init(t, p) // asks again
		add(p, a, "1")
		s.commit(t, p)
		deliver()
		s.pass(s.MaxWait)
		for try := 0; ; try++ {
			add(p, a, "2")
			_, out, err := p.Commit(s.ctx(t), broker.GroupMeta{Generation: -1}, nil)
			if out == broker.Committed {
				break
			}
			if try == 3 {
				t.Fatalf("still %v: %v", out, err)
			}
			p.Reset()
			s.init(t, p)
		}
		s.wantValues(t, a, "1", "2")
	}},
}

// everyStep makes each request before EndTxn go without an answer, once, and runs the buffer again.
func (s *suite) everyStep(t *testing.T, fault func(api string)) {
	x, p := s.topic(t, 2), s.producer(t)
	var want []string
	for _, api := range []string{"AddPartitionsToTxn", "AddOffsetsToTxn", "Produce", "TxnOffsetCommit"} {
		if !s.sends(api) {
			continue
		}
		add(p, tp(x, 0), api)
		next := offset(tp(x, 1), record.Offset(len(want)+1))
		fault(api)
		s.wantCommit(t, p, broker.NotCommitted, next)
		s.init(t, p)
		s.wantValues(t, tp(x, 0), want...)
		s.commit(t, p, next)
		want = append(want, api)
	}
	s.wantValues(t, tp(x, 0), want...)
	s.wantOffset(t, tp(x, 1), record.Offset(len(want)))
}
