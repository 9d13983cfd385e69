package brokertest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
)

// sender makes a producer without transactions.
func (s *suite) sender(t *testing.T, more ...func(*broker.SenderConfig)) broker.Sender {
	var conf broker.SenderConfig
	for _, f := range more {
		f(&conf)
	}
	p := s.Cluster.NewSender(conf)
	t.Cleanup(p.Close)
	return p
}

func (s *suite) send(t *testing.T, p broker.Sender) {
	t.Helper()
	if err := p.Send(s.ctx(t)); err != nil {
		t.Fatalf("send: %v", err)
	}
}

// senderFacts are about what is sent outside of transactions.
var senderFacts = []fact{
	{"what is sent without a transaction is seen at once, in order, with no marker behind it", "", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 2), s.sender(t)
		for i := range 6 {
			add(p, tp(x, i%2), fmt.Sprint(i))
		}
		s.send(t, p)
		add(p, tp(x, 0), "6")
		s.send(t, p)
		s.send(t, p) // of nothing
		if a, b := s.high(t, tp(x, 0)), s.high(t, tp(x, 1)); a != 4 || b != 3 {
			t.Fatalf("high watermarks %d and %d, want 4 and 3", a, b)
		}
		s.wantValues(t, tp(x, 0), "0", "2", "4", "6")
		s.wantValues(t, tp(x, 1), "1", "3", "5")
	}},
	{"a sender waits for no transaction, and its records stand behind an open one", "Hold", func(t *testing.T, s *suite) {
		a, p, alone := tp(s.topic(t, 1), 0), s.producer(t), s.sender(t)
		add(p, a, "in")
		deliver := s.Hold("EndTxn") // no answer: the transaction stays open
		s.wantCommit(t, p, broker.Unknown)
		add(alone, a, "alone")
		s.send(t, alone)
		if h, st := s.high(t, a), s.stable(t, a); h != 2 || st != 0 {
			t.Fatalf("high watermark %d, last stable offset %d; want 2 and 0", h, st)
		}
		deliver()
		s.wantValues(t, a, "in", "alone")
	}},
	{"what is reset is not sent", "", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.sender(t)
		add(p, a, "dropped")
		p.Reset()
		add(p, a, "sent")
		s.send(t, p)
		s.wantValues(t, a, "sent")
	}},
	{"a lost Produce without a transaction is sent again and written once", "LoseRequest LoseAnswer", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.sender(t)
		for i, lose := range []func(string){s.LoseRequest, s.LoseAnswer} {
			add(p, a, fmt.Sprint(2*i))
			s.send(t, p)
			lose("Produce")
			add(p, a, fmt.Sprint(2*i+1))
			s.send(t, p)
		}
		s.wantValues(t, a, "0", "1", "2", "3")
	}},
	{"a late Produce without a transaction is refused once it was sent again", "Hold", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.sender(t)
		add(p, a, "0")
		s.send(t, p)
		deliver := s.Hold("Produce")
		add(p, a, "1")
		s.send(t, p)
		add(p, a, "2")
		s.send(t, p)
		deliver()
		s.wantValues(t, a, "0", "1", "2")
	}},
	{"after an error the rest is buffered, and what was written is not sent again", "Refuse", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 1), s.sender(t)
		add(p, tp(x, 0), "0")
		s.send(t, p)
		s.Refuse("Produce", -1, 1) // UNKNOWN_SERVER_ERROR: maybe written, maybe not
		add(p, tp(x, 0), "1")
		if err := p.Send(s.ctx(t)); !errors.Is(err, broker.ErrAbortable) {
			t.Fatalf("send: %v", err)
		}
		add(p, tp(x, 0), "2")
		s.send(t, p) // under another producer ID
		s.wantValues(t, tp(x, 0), "0", "1", "2")
	}},
	{"a sender gets another producer ID if the answer with one is lost", "LoseAnswer", func(t *testing.T, s *suite) {
		a, p := tp(s.topic(t, 1), 0), s.sender(t)
		s.LoseAnswer("InitProducerId")
		add(p, a, "1")
		s.send(t, p)
		s.wantValues(t, a, "1")
	}},
	{"a record that no batch can carry is named by Send", "", func(t *testing.T, s *suite) {
		name := s.topic(t, 1, func(top *broker.Topic) { top.MaxMessageBytes = 2000 })
		p := s.sender(t)
		add(p, tp(name, 0), "small", strings.Repeat("x", 3000))
		var large *broker.TooLargeError
		if err := p.Send(s.ctx(t)); !errors.As(err, &large) || large.Index != 1 || large.Topic != name {
			t.Fatalf("send: %v", err)
		}
		p.Reset()
		add(p, tp(name, 0), "next")
		s.send(t, p)
		s.settled(t, tp(name, 0))
		recs, _ := s.readTo(t, tp(name, 0), broker.ReadCommitted, 0, s.high(t, tp(name, 0)))
		if got := values(recs); !slices.Contains(got, "next") || slices.ContainsFunc(got, func(v string) bool { return len(v) > 100 }) {
			t.Fatalf("values %q", got)
		}
	}},
	{"a sender gives up at its deadline", "", func(t *testing.T, s *suite) {
		x, p := s.topic(t, 1), s.sender(t, func(c *broker.SenderConfig) { c.Deadline = 300 * time.Millisecond })
		add(p, tp(x, 0), "0")
		add(p, tp(x, 7), "there is no such partition")
		if err := p.Send(s.ctx(t)); !errors.Is(err, broker.ErrUnknownTopic) && !errors.Is(err, broker.ErrUnreachable) {
			t.Fatalf("send: %v", err)
		}
	}},
}
