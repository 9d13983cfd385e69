package sinktest

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
)

func fenced(t *testing.T, s *suite) {
	table := s.table(t, counted(), nil)
	p := partition()
	old := s.claim(t, s.open(t, Spec{Table: table}), p)
	write(t, old, batch(0, 3, "x"))
	owner := s.claim(t, s.open(t, Spec{Table: table}), p)
	next(t, owner, 3)
	if err := old.Write(t.Context(), batch(3, 6, "zombie")); !errors.Is(err, sink.ErrFenced) {
		t.Errorf("a fenced writer: %v", err)
	}
	write(t, owner, batch(3, 6, "x"))
	if err := old.Write(t.Context(), batch(3, 6, "zombie")); err == nil {
		t.Error("a fenced writer wrote at its second try")
	}
	s.holds(t, table, 6, always("x"))
}

// commitLost: the COMMIT never reached the server. The row says so, and the batch is written again.
func commitLost(t *testing.T, s *suite) { lost(t, s, loseBefore, 3) }

// commitAnswerLost: the server committed and its answer was lost. The row says so, and the batch is not
// written again.
func commitAnswerLost(t *testing.T, s *suite) { lost(t, s, loseAfter, 6) }

func lost(t *testing.T, s *suite, how action, after record.Offset) {
	table := s.table(t, counted(), nil)
	p := partition()
	network := s.proxy(t)
	target := s.open(t, Spec{Table: table, Address: network.address()})
	w := s.claim(t, target, p)
	write(t, w, batch(0, 3, "x"))
	network.at(how)
	err := w.Write(t.Context(), batch(3, 6, "x"))
	var setup *sink.SetupError
	var row *sink.RowError
	if err == nil || errors.Is(err, sink.ErrFenced) || errors.As(err, &setup) || errors.As(err, &row) {
		t.Fatalf("a lost COMMIT: %v, want an error that leaves it open", err)
	}
	if err := w.Write(t.Context(), batch(3, 6, "x")); err == nil {
		t.Fatal("the writer wrote after an outcome that is not known")
	}
	w = s.claimAnyway(t, target, p)
	next(t, w, after)
	write(t, w, batch(after, 9, "x"))
	s.holds(t, table, 9, always("x"))
}

// zombie: an owner is paused in the middle of a transaction, with the row locked. A successor waits, is told who
// holds it, and gets the partition when the server has given the zombie up. What the zombie sends then
// changes nothing.
func zombie(t *testing.T, s *suite) {
	table := s.table(t, counted(), nil)
	p := partition()
	network := s.proxy(t)
	old := s.claim(t, s.open(t, Spec{Table: table, Address: network.address()}), p)
	write(t, old, batch(0, 3, "x"))
	answer := held(t, network, old, batch(3, 6, "zombie"))

	successor := s.open(t, Spec{Table: table})
	var w sink.Writer
	var waited []string
	for deadline := time.Now().Add(2 * time.Minute); w == nil; {
		got, err := successor.Claim(t.Context(), p)
		switch {
		case err == nil:
			w = got
			t.Cleanup(func() { _ = w.Close() })
		case time.Now().After(deadline):
			t.Fatal(err)
		default:
			waited = append(waited, err.Error())
		}
	}
	if len(waited) == 0 {
		t.Log("the successor did not have to wait: the zombie had not locked the row yet")
	} else if !strings.Contains(waited[0], "is locked") || !strings.Contains(waited[0], p.Sink) {
		t.Errorf("the successor is told: %s", waited[0])
	}
	next(t, w, 3)
	write(t, w, batch(3, 6, "x"))
	network.thaw()
	if err := <-answer; err == nil {
		t.Error("the zombie's COMMIT was answered without an error")
	}
	write(t, w, batch(6, 9, "x"))
	s.holds(t, table, 9, always("x"))
}

// serverKilled: kill -9 of the server again and again, under load.
func serverKilled(t *testing.T, s *suite) {
	const kills, size = 5, 50
	table := s.table(t, counted(), nil)
	p := partition()
	target := s.open(t, Spec{Table: table})
	var at record.Offset
	for k := range kills {
		killed := make(chan error, 1)
		wait := time.Duration(20+rand.IntN(200)) * time.Millisecond
		go func() {
			time.Sleep(wait) // the load goes on meanwhile
			killed <- errors.Join(s.Kill(), s.Start(t.Context()))
		}()
		w := s.claimAnyway(t, target, p)
		if got, ok := w.Next(); ok {
			at = got
		}
		for err := error(nil); err == nil && len(killed) == 0; at += size { // on a slow machine the kill may have come before the claim
			err = w.Write(t.Context(), batch(at, at+size, "x"))
		}
		if err := <-killed; err != nil {
			t.Fatal(err)
		}
		w = s.claimAnyway(t, target, p)
		got, ok := w.Next()
		if (!ok && k > 0) || got > at {
			t.Fatalf("kill %d: next offset %d, %v; %d at most were written", k, got, ok, at)
		}
		at = max(got, 0)
	}
	s.holds(t, table, int(at), always("x"))
	if at == 0 {
		t.Error("nothing was written between the kills")
	}
}

// commitsLost: between two batches the server has gone back, and the connection did not notice. The next batch must not cover
// the gap: what was lost is written again.
func commitsLost(t *testing.T, s *suite) {
	table := s.table(t, counted(), []string{"n"})
	p := partition()
	target := s.open(t, Spec{Table: table})
	w := s.claim(t, target, p)
	write(t, w, batch(0, 5, "x"))
	write(t, w, batch(5, 10, "x"))
	if err := s.Rewind(t.Context(), p, 5); err != nil {
		t.Fatal(err)
	}
	if err := w.Write(t.Context(), batch(10, 15, "x")); err == nil || errors.Is(err, sink.ErrFenced) {
		t.Fatalf("a batch over a gap: %v, want an error that asks for a new claim", err)
	}
	w = s.claim(t, target, p)
	next(t, w, 5)
	write(t, w, batch(5, 15, "x"))
	s.holds(t, table, 15, always("x"))
}
