package sinktest

import (
	"errors"
	"testing"
	"time"

	"github.com/streamd/streamd/sink"
)

// preparedAfterTheClaim: PREPARE of an owner that was shut out hangs in the network until the next one has claimed the partition. It prepares then, and
// holds the rows. It must not be committed, and the owner must get on.
func preparedAfterTheClaim(t *testing.T, s *suite) {
	table := s.table(t, counted(), []string{"n"})
	p := partition()
	network := s.proxyAt(t, prepareStatement)
	old, err := s.as(t, Spec{Table: table, Address: network.address()}).ClaimDecided(t.Context(), p, s.decisions(p).owner())
	if err != nil {
		t.Fatal(err)
	}
	write(t, old, batch(0, 3, "x"))
	answer := held(t, network, old, batch(3, 6, "zombie"))

	successor := s.as(t, Spec{Table: table})
	w := s.claimAnyway(t, successor, p)
	next(t, w, 3)
	network.thaw()
	if err := <-answer; !errors.Is(err, sink.ErrFenced) {
		t.Errorf("the zombie: %v, want ErrFenced: its decision must be refused", err)
	}
	_ = old.Close()
	s.writeAnyway(t, successor, &w, p, batch(3, 9, "x"))
	s.holds(t, table, 9, always("x"))
	s.nothingPending(t, p, table, w)
}

// preparedAndFenced: the same, and the zombie dies before it can abort what it has prepared. With a key that is in the owner's way; without one
// the owner writes past it, so that its offset lies behind what was prepared: it must not be taken for decided then.
func preparedAndFenced(t *testing.T, s *suite) {
	for _, key := range [][]string{{"n"}, nil} {
		leftPrepared(t, s, key)
	}
}

func leftPrepared(t *testing.T, s *suite, key []string) {
	table := s.table(t, counted(), key)
	p := partition()
	network := s.proxyAt(t, prepareStatement)
	target := s.as(t, Spec{Table: table, Address: network.address()})
	o := s.decisions(p).owner()
	old, err := target.ClaimDecided(t.Context(), p, o)
	if err != nil {
		t.Fatal(err)
	}
	write(t, old, batch(0, 3, "x"))
	o.before = func() error { network.cut(); return errGone } // dies
	answer := held(t, network, old, batch(3, 6, "zombie"))

	successor := s.as(t, Spec{Table: table})
	w := s.claimAnyway(t, successor, p)
	network.thaw()
	if err := <-answer; err == nil {
		t.Error("a zombie that died has written")
	}
	if left := s.pendingOf(t, p, table); len(left) == 0 {
		t.Error("nothing is prepared: the test shows nothing")
	}
	s.writeAnyway(t, successor, &w, p, batch(3, 9, "x"))
	s.holds(t, table, 9, always("x"))
	s.nothingPending(t, p, table, w)
	s.holds(t, table, 9, always("x"))
}

// writeAnyway writes a batch as the owner of a partition does: after a failure it claims again.
func (s *suite) writeAnyway(t *testing.T, target sink.Target, w *sink.Writer, p sink.Partition, b sink.Batch) {
	t.Helper()
	start := time.Now()
	for {
		err := (*w).Write(t.Context(), b)
		if err == nil {
			t.Logf("the owner got on after %v", time.Since(start).Round(time.Millisecond))
			return
		}
		if time.Since(start) > 2*time.Minute {
			t.Fatal(err)
		}
		_ = (*w).Close()
		*w = s.claimAnyway(t, target, p)
		next(t, *w, b.First)
	}
}

// decidedAndPaused: an owner stands still between the decision and COMMIT. Its rows count: the next owner commits them, or waits until it can.
// What the zombie sends then changes nothing.
func decidedAndPaused(t *testing.T, s *suite) {
	table := s.table(t, counted(), []string{"n"})
	p := partition()
	network := s.proxy(t)
	old, err := s.as(t, Spec{Table: table, Address: network.address()}).ClaimDecided(t.Context(), p, s.decisions(p).owner())
	if err != nil {
		t.Fatal(err)
	}
	write(t, old, batch(0, 3, "x"))
	answer := held(t, network, old, batch(3, 6, "x"))

	start := time.Now()
	successor := s.as(t, Spec{Table: table})
	w := s.claimAnyway(t, successor, p)
	t.Logf("claimed after %v", time.Since(start).Round(time.Millisecond))
	next(t, w, 6)
	s.holds(t, table, 6, always("x"))
	write(t, w, batch(6, 9, "x"))
	network.thaw()
	<-answer // whether the zombie hears that it was committed depends on the server
	write(t, w, batch(9, 12, "x"))
	s.holds(t, table, 12, always("x"))
	s.nothingPending(t, p, table, w)
}

// claimOvertaken: a process that claims stands still when it has read the last decision. Meanwhile the next owner prepares and decides. What the first one
// believes to be undecided is not, and it must not abort it.
func claimOvertaken(t *testing.T, s *suite) {
	table := s.table(t, counted(), nil)
	p := partition()
	d := s.decisions(p)
	write(t, s.claim(t, s.open(t, Spec{Table: table}), p), batch(0, 3, "x"))
	for _, when := range []string{"listed before", "listed after"} {
		first := d.last.Next
		next := d.owner()
		w, err := s.as(t, Spec{Table: table}).ClaimDecided(t.Context(), p, next)
		if err != nil {
			t.Fatal(err)
		}
		slow := &owner{d: d, number: next.number - 1}
		claim := func() error {
			_, err := s.as(t, Spec{Table: table}).ClaimDecided(t.Context(), p, slow)
			return err
		}
		var failed error
		if when == "listed after" {
			// What the owner has prepared is in the list; it decides between the slow one's look at the last decision and what that makes of it.
			next.before = func() error {
				reading, goOn := make(chan struct{}), make(chan struct{})
				slow.read = func() { close(reading); <-goOn }
				answer := make(chan error, 1)
				go func() { answer <- claim() }()
				<-reading
				next.after = func() error { close(goOn); failed = <-answer; return nil }
				return nil
			}
		} else {
			next.after = func() error { failed = claim(); return nil }
		}
		if err := w.Write(t.Context(), batch(first, first+3, "x")); err != nil {
			t.Errorf("%s: the owner: %v", when, err)
		}
		if !errors.Is(failed, sink.ErrFenced) {
			t.Errorf("%s: the process that was overtaken: %v, want ErrFenced", when, failed)
		}
		s.holds(t, table, int(first)+3, always("x"))
	}
}
