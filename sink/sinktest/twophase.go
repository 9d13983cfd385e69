package sinktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
)

// prepareStatement is the harness's Commit for the first of the two phases.
// It has no word boundary in front: there may be the length of the message.
const prepareStatement = `(?i)(prepare transaction|xa prepare) `

// as opens a target of class two_phase.
func (s *suite) as(t *testing.T, spec Spec) sink.Decided {
	t.Helper()
	target, ok := s.open(t, spec).(sink.Decided)
	if !ok {
		t.Fatal("the target is no sink.Decided")
	}
	return target
}

// pendingOf lists what is prepared of a partition.
func (s *suite) pendingOf(t *testing.T, p sink.Partition, table sink.Table) (mine []sink.TransactionID) {
	t.Helper()
	target, ok := s.unchecked(t, Spec{Table: table}).(sink.Decided)
	if !ok {
		t.Fatal("the target is no sink.Decided")
	}
	defer func() { _ = target.Close() }()
	all, err := target.Pending(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(id sink.TransactionID) bool { return !id.Of(p) })
}

// participant opens a target and one partition's part of it.
func (s *suite) participant(t *testing.T, table sink.Table, p sink.Partition) sink.Participant {
	t.Helper()
	target, ok := s.open(t, Spec{Table: table}).(sink.Preparer)
	if !ok {
		t.Fatal("the target is no sink.Preparer")
	}
	part, err := target.Participant(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = part.Close() })
	return part
}

// capabilities tries the five things that two phases ask of a target, each on the server.
func capabilities(t *testing.T, s *suite) {
	table := s.table(t, counted(), nil)
	p := partition()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	prepared := func(part sink.Participant, from, to record.Offset) sink.TransactionID {
		t.Helper()
		id := sink.NewTransactionID(p, to, time.Now())
		must(part.Begin(t.Context(), id))
		must(part.Write(t.Context(), batch(from, to, "x").Rows))
		must(part.Prepare(t.Context()))
		return id
	}
	part := s.participant(t, table, p)

	// transactions; open: nothing is seen before the commit, and a pause in the middle does no harm.
	id := sink.NewTransactionID(p, 3, time.Now())
	must(part.Begin(t.Context(), id))
	must(part.Write(t.Context(), batch(0, 2, "x").Rows))
	time.Sleep(2 * time.Second) // a batch that takes its time
	must(part.Write(t.Context(), batch(2, 3, "x").Rows))
	s.holds(t, table, 0, always("x"))
	must(part.Prepare(t.Context()))
	s.holds(t, table, 0, always("x"))
	must(part.Commit(t.Context(), id))
	s.holds(t, table, 3, always("x"))

	// repeatable: again, here and by another process.
	must(part.Commit(t.Context(), id))
	must(s.participant(t, table, p).Commit(t.Context(), id))
	s.holds(t, table, 3, always("x"))

	// What is aborted leaves nothing, open or prepared.
	id = sink.NewTransactionID(p, 6, time.Now())
	must(part.Begin(t.Context(), id))
	must(part.Write(t.Context(), batch(3, 6, "open").Rows))
	must(part.Abort(t.Context(), id))
	id = prepared(part, 3, 6)
	must(part.Abort(t.Context(), id))
	must(part.Abort(t.Context(), id))
	s.holds(t, table, 3, always("x"))

	// pending; recoverable: two outlive their connections and the server, and another process ends each as it wants.
	commit, abort := prepared(part, 3, 6), sink.TransactionID("")
	must(part.Close())
	part = s.participant(t, table, p)
	abort = prepared(part, 6, 9)
	must(part.Close())
	must(errors.Join(s.Kill(), s.Start(t.Context())))
	s.holds(t, table, 3, always("x"))
	listed := s.pendingOf(t, p, table)
	if len(listed) != 2 || !slices.Contains(listed, commit) || !slices.Contains(listed, abort) {
		t.Fatalf("after a kill of the server %v are prepared, want %s and %s", listed, commit, abort)
	}
	if age := time.Since(commit.Time()); age < 0 || age > 10*time.Minute {
		t.Errorf("%s is %v old", commit, age)
	}
	other := s.participant(t, table, p)
	must(other.Commit(t.Context(), commit))
	must(other.Abort(t.Context(), abort))
	s.holds(t, table, 6, always("x"))
	if listed := s.pendingOf(t, p, table); len(listed) > 0 {
		t.Errorf("%v are still prepared", listed)
	}
}

// offsets: the place of decisions has the offset, also for positions without rows, and each partition its own.
func offsets(t *testing.T, s *suite) {
	table := s.table(t, counted(), nil)
	target, p := s.open(t, Spec{Table: table}), partition()
	w := s.claim(t, target, p)
	next(t, w, 0)
	write(t, w, sink.Batch{First: 0, Next: 2}) // markers
	write(t, w, batch(2, 5, "x"))
	next(t, w, 5)
	write(t, w, sink.Batch{First: 5, Next: 9})
	next(t, s.claim(t, s.open(t, Spec{Table: table}), p), 9)
	other := p
	other.Partition++
	next(t, s.claim(t, target, other), 0)
	if err := s.claim(t, target, p).Write(t.Context(), batch(3, 9, "again")); err == nil {
		t.Error("a batch that the target has was written again")
	}
	rows, err := s.look(t.Context(), table)
	if err != nil || len(rows) != 3 {
		t.Errorf("rows %v, %v", rows, err)
	}
}

// othersAreLeftAlone: what another sink, another partition or an older topic has prepared is not touched by a claim.
func othersAreLeftAlone(t *testing.T, s *suite) {
	table := s.table(t, counted(), nil)
	p := partition()
	var foreign []sink.TransactionID
	for i, change := range []func(*sink.Partition){
		func(x *sink.Partition) { x.Sink += "x" },
		func(x *sink.Partition) { x.Partition = x.Partition*10 + 1 },
		func(x *sink.Partition) { x.TopicID = "another" },
	} {
		other := p
		change(&other)
		part := s.participant(t, table, other)
		id := sink.NewTransactionID(other, 1, time.Now())
		if err := errors.Join(part.Begin(t.Context(), id), part.Write(t.Context(), batch(record.Offset(i), record.Offset(i)+1, "theirs").Rows), part.Prepare(t.Context()), part.Close()); err != nil {
			t.Fatal(err)
		}
		foreign = append(foreign, id)
	}
	target := s.as(t, Spec{Table: table})
	write(t, s.claim(t, target, p), batch(0, 3, "x"))
	s.holds(t, table, 3, always("x"))
	listed, err := target.Pending(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	end := s.participant(t, table, p)
	for _, id := range foreign {
		if !slices.Contains(listed, id) {
			t.Errorf("%s of somebody else is gone", id)
		}
		s.eventually(t, func() error { return end.Abort(t.Context(), id) })
	}
}

// eventually tries until it works: a server may take a moment to notice that a connection is gone.
func (s *suite) eventually(t *testing.T, f func() error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // between two tries
	}
}

// offsetSetByHand: nobody can say whether what is prepared was decided. It is left as it is, and said.
func offsetSetByHand(t *testing.T, s *suite) {
	table := s.table(t, counted(), nil)
	p := partition()
	target := s.as(t, Spec{Table: table})
	d := s.decisions(p)
	o := d.owner()
	o.before = func() error { return errGone }
	w, err := target.ClaimDecided(t.Context(), p, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(t.Context(), batch(0, 3, "x")); !errors.Is(err, errGone) {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	d.byHand = true
	var setup *sink.SetupError
	if _, err := target.ClaimDecided(t.Context(), p, d.owner()); !errors.As(err, &setup) || setup.Remedy == "" {
		t.Fatalf("an offset that is no decision, beside a prepared transaction: %v", err)
	}
	listed := s.pendingOf(t, p, table)
	if len(listed) != 1 {
		t.Fatalf("%v are prepared, want one", listed)
	}
	d.byHand = false
	next(t, s.claimAnyway(t, target, p), 0)
	s.holds(t, table, 0, always("x"))
}

// step is a place at which a process dies, by what remains of it.
type step struct {
	name      string
	statement string // that the network acts on
	network   action
	before    error // of the decision: it is not made
	after     error // it is made, and the answer is lost
	next      record.Offset
}

func allSteps(s *suite) []step {
	return []step{
		{"PREPARE is lost", prepareStatement, loseBefore, nil, nil, 3},
		{"the answer of PREPARE is lost", prepareStatement, loseAfter, nil, nil, 3},
		{"prepared, not decided", "", forward, errGone, nil, 3},
		{"refused", "", forward, &sink.UndecidedError{Err: errGone}, nil, 3},
		{"the answer of the decision is lost", "", forward, nil, errGone, 6},
		{"COMMIT is lost", s.Commit(), loseBefore, nil, nil, 6},
		{"the answer of COMMIT is lost", s.Commit(), loseAfter, nil, nil, 6},
	}
}

// steps: whoever wrote is gone at each step, and the next owner ends what he left.
func steps(t *testing.T, s *suite) {
	for _, x := range allSteps(s) {
		t.Run(x.name, func(t *testing.T) { atStep(t, s, x, nil) })
	}
}

// stepsServerKilled: the server dies there as well.
func stepsServerKilled(t *testing.T, s *suite) {
	for _, x := range allSteps(s) {
		t.Run(x.name, func(t *testing.T) {
			atStep(t, s, x, func() {
				if err := errors.Join(s.Kill(), s.Start(t.Context())); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

func atStep(t *testing.T, s *suite, x step, kill func()) {
	table := s.table(t, counted(), []string{"n"}) // with a key: what stays prepared holds its rows
	p := partition()
	if x.statement == "" {
		x.statement = "never"
	}
	network := s.proxyAt(t, x.statement)
	target := s.as(t, Spec{Table: table, Address: network.address()})
	o := s.decisions(p).owner()
	w, err := target.ClaimDecided(t.Context(), p, o)
	if err != nil {
		t.Fatal(err)
	}
	write(t, w, batch(0, 3, "x"))
	o.before = func() error {
		if kill != nil {
			kill()
		}
		return x.before
	}
	o.after = func() error { return x.after }
	network.at(x.network)
	err = w.Write(t.Context(), batch(3, 6, "x"))
	var setup *sink.SetupError
	var row *sink.RowError
	if x.network == loseBefore || x.before != nil || x.after != nil {
		if err == nil || errors.As(err, &setup) || errors.As(err, &row) {
			t.Fatalf("%v, want an error that leaves it open", err)
		}
	}
	if err != nil {
		if err := w.Write(t.Context(), batch(3, 6, "x")); err == nil {
			t.Fatal("the writer wrote after an outcome that is not known")
		}
	}
	network.cut() // and nothing of the old owner is closed in order
	if kill != nil && (x.statement == prepareStatement) {
		kill() // the decision was not reached
	}
	fresh := s.as(t, Spec{Table: table})
	w = s.claimAnyway(t, fresh, p)
	next(t, w, x.next)
	s.holds(t, table, int(x.next), always("x"))
	// What a broken connection still prepares on the server comes after the claim's list: then it holds its rows until the owner looks again.
	for at := x.next; at < 9; {
		err := w.Write(t.Context(), batch(at, 9, "x"))
		if err != nil {
			_ = w.Close()
			w = s.claimAnyway(t, fresh, p)
		}
		at, _ = w.Next()
	}
	s.holds(t, table, 9, always("x"))
	s.nothingPending(t, p, table, w)
}

// nothingPending fails if the owner leaves anything behind.
func (s *suite) nothingPending(t *testing.T, p sink.Partition, table sink.Table, w sink.Writer) {
	t.Helper()
	s.eventually(t, func() error {
		if err := sweep(t.Context(), w); err != nil {
			return err
		}
		if left := s.pendingOf(t, p, table); len(left) > 0 {
			return fmt.Errorf("%v are still prepared", left)
		}
		return nil
	})
}

// sweep lets an owner look as it does once a minute.
func sweep(ctx context.Context, w sink.Writer) error {
	g, ok := w.(sink.Gatherer)
	if !ok {
		return nil
	}
	for _, now := range []time.Time{time.Unix(1, 0), time.Now().Add(time.Hour), time.Now().Add(time.Duration(1<<62) / 2)} {
		if err := g.Settle(ctx, now); err != nil {
			return err
		}
	}
	return nil
}
