package sink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/record"
)

// Preparer is a system that can prepare a transaction and end it later, which is all that it has to be: it needs no room for a row of progress.
// NewTwoPhase makes a Target of it. Safe for concurrent use.
type Preparer interface {
	// Capabilities are what the system is known to do. The suite of sinktest tries each of them.
	Capabilities() Capabilities
	// Check is Target's. It also looks whether the server, as it is configured, does what the capabilities say.
	Check(ctx context.Context) error
	// Participant is the partition's part of the system, with a connection of its own.
	Participant(ctx context.Context, p Partition) (Participant, error)
	// Close is Target's.
	Close() error
}

// Participant runs the transactions of one partition, one after the other. Not safe for concurrent use.
type Participant interface {
	// Begin opens a transaction.
	Begin(ctx context.Context, id TransactionID) error
	// Write adds rows to the open one. Errors: *RowError and *SetupError as of Writer; after any of them the transaction can only be given up.
	Write(ctx context.Context, rows []Row) error
	// Prepare makes the open transaction outlive its connection, this process and the server, until Commit or Abort. *RowError: a row
	// is to blame, and nothing is prepared. After any other error it may be.
	Prepare(ctx context.Context) error
	// Commit makes the rows of a prepared transaction visible. One that is not there any more has been committed: nil. ErrHeld if it can be
	// ended on another connection only.
	Commit(ctx context.Context, id TransactionID) error
	// Abort takes back a transaction, open or prepared. One that is not there any more: nil. ErrHeld as of Commit.
	Abort(ctx context.Context, id TransactionID) error
	// Recover lists what is prepared and not ended, also by processes that are gone. It may list transactions of others.
	Recover(ctx context.Context) ([]TransactionID, error)
	// Close gives the connection back. What is open is taken back, what is prepared stays.
	Close() error
}

// Capabilities are the five things that two phases ask of a system.
type Capabilities struct {
	Transactions bool // rows of a transaction become visible together or not at all
	Open         bool // one may stay open for as long as a batch takes
	Pending      bool // a prepared one stays until it is told, for however long
	Recoverable  bool // it can be found and ended by another process, after its own and the server have died
	Repeatable   bool // its commit may be repeated: what is not there any more is no error
}

// missing names those that are not there.
func (c Capabilities) missing() (names []string) {
	for _, x := range []struct {
		ok   bool
		name string
	}{{c.Transactions, "transactions"}, {c.Open, "open"}, {c.Pending, "pending"}, {c.Recoverable, "recoverable"}, {c.Repeatable, "repeatable"}} {
		if !x.ok {
			names = append(names, x.name)
		}
	}
	return names
}

// ErrHeld: a prepared transaction belongs to a connection that is still open, and the system ends it there only.
var ErrHeld = errors.New("sink: the prepared transaction is held by a connection that is still open")

// Decision is what holds for a partition: where to go on, and which transaction is committed with that. There is never a second one that is decided and
// not committed: a decision is made when the one before was carried out.
type Decision struct {
	Next record.Offset
	ID   TransactionID // empty: none
}

// decidedMark begins the metadata of an offset that is a decision. What follows is the transaction, or "-" for none.
const decidedMark = "two-phase 1 "

// Metadata is what is committed with the offset.
func (d Decision) Metadata() string { return decidedMark + cmp.Or(string(d.ID), "-") }

// ParseDecision is the reverse; false for an offset that is no decision.
func ParseDecision(next record.Offset, metadata string) (Decision, bool) {
	id, ok := strings.CutPrefix(metadata, decidedMark)
	if !ok || next < 0 {
		return Decision{}, false
	}
	if id == "-" {
		return Decision{Next: next}, true
	}
	parsed, ok := ParseTransactionID(id)
	return Decision{Next: next, ID: parsed}, ok
}

// Decisions is where decisions stand: the committed offset of the sink's topic in the consumer group, with its metadata. There is one for each claim.
type Decisions interface {
	// Last returns the last decision, once nothing is undecided any more. False if what is there was not decided by a sink of this class; Next is where to
	// begin then.
	Last(ctx context.Context) (Decision, bool, error)
	// Decide makes a decision if the caller is still the owner of the partition: its success shows that, and no former owner
	// can decide from then on. *UndecidedError: it is not made and never will be. After any other error it may be.
	Decide(ctx context.Context, d Decision) error
}

// UndecidedError says that a decision was not made and never will be.
type UndecidedError struct{ Err error }

// Error returns "not decided: cause".
func (e *UndecidedError) Error() string { return "sink: not decided: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *UndecidedError) Unwrap() error { return e.Err }

// Decided is a Target of class TwoPhase.
type Decided interface {
	Target
	// ClaimDecided is Claim with the place where decisions stand; Claim fails.
	ClaimDecided(ctx context.Context, p Partition, d Decisions) (Writer, error)
	// Pending lists the transactions of streamd that are prepared in the target and not ended, of whichever sink.
	Pending(ctx context.Context) ([]TransactionID, error)
}

// NewTwoPhase makes a target of a Preparer. A batch is prepared under a name of its own; then the group's offset is committed with that
// name, which decides; then the transaction is committed. Whoever claims the partition later finds what is prepared, commits the one that
// is named, and aborts the others.
func NewTwoPhase(p Preparer, table Table) (Decided, error) {
	if missing := p.Capabilities().missing(); len(missing) > 0 {
		return nil, fmt.Errorf("sink: class %s needs a system that is %s: this one is not", TwoPhase, strings.Join(missing, ", "))
	}
	if err := table.Validate(); err != nil {
		return nil, err
	}
	return &twoPhase{Preparer: p, table: table}, nil
}

type twoPhase struct {
	Preparer
	table Table
}

// Class implements Target.
func (t *twoPhase) Class() Class { return TwoPhase }

// Claim implements Target.
func (t *twoPhase) Claim(context.Context, Partition) (Writer, error) {
	return nil, &SetupError{Err: fmt.Errorf("class %s needs a place for decisions", TwoPhase), Remedy: "claim with ClaimDecided"}
}

// Condition implements Conditional.
func (t *twoPhase) Condition() (what, remedy string) { return DecidedCondition(TwoPhase) }

// DecidedCondition is the Condition of what NewTwoPhase makes, by its class.
func DecidedCondition(class Class) (what, remedy string) {
	if class != TwoPhase {
		return "", ""
	}
	return "its target must not lose what it has prepared, nor may anybody else end that: the offset in Kafka is the only note of what the target has",
		"synchronous replication, and no restore of an older backup; if there is room for a table of progress, class ledger needs neither"
}

// Pending implements Decided.
func (t *twoPhase) Pending(ctx context.Context) ([]TransactionID, error) {
	part, err := t.Participant(ctx, Partition{})
	if err != nil {
		return nil, err
	}
	all, err := part.Recover(ctx)
	return all, errors.Join(err, part.Close())
}

// ClaimDecided implements Decided.
func (t *twoPhase) ClaimDecided(ctx context.Context, p Partition, d Decisions) (Writer, error) {
	part, err := t.Participant(ctx, p)
	if err != nil {
		return nil, err
	}
	w := &twoPhaseWriter{t: t, p: p, part: part, decisions: d}
	if err := w.settle(ctx); err != nil {
		_ = part.Close() // the first error counts
		return nil, err
	}
	return w, nil
}

// sweepInterval is how often an owner looks for what a former owner has prepared after it was shut out. Nobody else ends that.
const sweepInterval = time.Minute

type twoPhaseWriter struct {
	t         *twoPhase
	p         Partition
	part      Participant
	decisions Decisions
	last      Decision
	swept     time.Time
	done      bool // an outcome is not known
}

// settle ends what is pending, in an order that holds against whoever else believes to own the partition:
//
//	list     what is prepared
//	read     the last decision, when none is under way any more
//	decide   the same again: it succeeds for the owner only. So nobody had claimed the partition after us when we listed, and
//	         whoever had it before can decide nothing any more.
//	end      commit the one that the decision names; abort the others: they can never be decided
//
// A later owner's transactions are not in the list, and neither is what a former one prepares from now on: a later settle finds that.
func (w *twoPhaseWriter) settle(ctx context.Context) error {
	pending, err := w.pending(ctx)
	if err != nil {
		return err
	}
	last, ours, err := w.decisions.Last(ctx)
	if err != nil {
		return fmt.Errorf("read the last decision: %w", err)
	}
	if !ours && len(pending) > 0 {
		return &SetupError{
			Err: fmt.Errorf("sink %q, partition %d: %d transactions are prepared in the target (%s), and the group's offset %d does not say which of them counts: it was set by hand, or lost",
				w.p.Sink, w.p.Partition, len(pending), pending[0], last.Next),
			Remedy: "look into the sink's topic for the rows of each (its name has the offset after the last one), and end it in the target by hand",
		}
	}
	if last.ID != "" && !last.ID.Of(w.p) {
		return &SetupError{
			Err: fmt.Errorf("sink %q, partition %d: the group's offset %d is a decision about %s, which is of another topic: %s was deleted and made anew, or the offset was copied from another cluster. "+
				"Which rows the target has is not known", w.p.Sink, w.p.Partition, last.Next, last.ID, w.p.Topic),
			Remedy: "give the sink another name, and empty its table if everything is to be written anew; if what the topic has is to be appended to the old rows, delete the group's offsets of it",
		}
	}
	if err := w.decisions.Decide(ctx, last); err != nil {
		return fmt.Errorf("claim the partition: %w", err)
	}
	if last.ID != "" { // also if it was not listed: what is not there does no harm
		if err := w.part.Commit(ctx, last.ID); err != nil {
			return fmt.Errorf("commit what was decided, %s: %w", last.ID, err)
		}
	}
	for _, id := range pending {
		if id == last.ID {
			continue
		}
		// One that is held is its connection's: whoever has it aborts it, or the server when it gives the connection up.
		if err := w.part.Abort(ctx, id); err != nil && !errors.Is(err, ErrHeld) {
			return fmt.Errorf("abort what was not decided, %s: %w", id, err)
		}
	}
	w.last = last
	return nil
}

// pending lists what is prepared of this partition. What others have prepared is theirs.
func (w *twoPhaseWriter) pending(ctx context.Context) ([]TransactionID, error) {
	all, err := w.part.Recover(ctx)
	if err != nil {
		return nil, fmt.Errorf("list what is prepared: %w", err)
	}
	return slices.DeleteFunc(all, func(id TransactionID) bool { return !id.Of(w.p) }), nil
}

// Next implements Writer: the group's offset is the authority.
func (w *twoPhaseWriter) Next() (record.Offset, bool) { return w.last.Next, true }

// Close implements Writer.
func (w *twoPhaseWriter) Close() error { return w.part.Close() }

// Write implements Writer.
func (w *twoPhaseWriter) Write(ctx context.Context, b Batch) error {
	if w.done {
		return errors.New("sink: the writer has failed before: claim the partition again")
	}
	for i, r := range b.Rows {
		if err := w.t.table.Check(r); err != nil {
			return &RowError{Index: i, Err: err}
		}
	}
	if b.First < w.last.Next {
		return fmt.Errorf("sink: a batch from offset %d, the target has all up to %d", b.First, w.last.Next)
	}
	err := w.write(ctx, b)
	var row *RowError
	w.done = err != nil && !errors.As(err, &row) // what a row is to blame for was taken back: the writer is as before
	return err
}

func (w *twoPhaseWriter) write(ctx context.Context, b Batch) error {
	d := Decision{Next: b.Next, ID: w.last.ID}
	if len(b.Rows) > 0 {
		d.ID = NewTransactionID(w.p, b.Next, time.Now())
		if err := w.prepare(ctx, d.ID, b.Rows); err != nil {
			return err
		}
	}
	if err := w.decisions.Decide(ctx, d); err != nil {
		var never *UndecidedError
		if errors.As(err, &never) && d.ID != w.last.ID {
			err = errors.Join(err, w.part.Abort(ctx, d.ID)) // if that fails the next owner does it
		}
		return fmt.Errorf("decide: %w", err)
	}
	if d.ID != w.last.ID {
		if err := w.part.Commit(ctx, d.ID); err != nil {
			return fmt.Errorf("commit what was decided, %s: %w", d.ID, err)
		}
	}
	w.last = d
	return nil
}

// prepare brings the rows into a prepared transaction.
func (w *twoPhaseWriter) prepare(ctx context.Context, id TransactionID, rows []Row) error {
	if err := w.part.Begin(ctx, id); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	err := w.part.Write(ctx, rows)
	if err == nil {
		if err = w.part.Prepare(ctx); err == nil {
			return nil
		}
		err = fmt.Errorf("prepare: %w", err)
	}
	var row *RowError
	if errors.As(err, &row) {
		if failed := w.part.Abort(ctx, id); failed != nil {
			return fmt.Errorf("take back a batch with a row that was refused (%v): %w", err, failed)
		}
	}
	return err
}

// Settle implements Gatherer: each batch is durable when Write returns, and now and then what a former owner left is ended.
func (w *twoPhaseWriter) Settle(ctx context.Context, now time.Time) error {
	switch {
	case w.done:
		return errors.New("sink: the writer has failed before: claim the partition again")
	case w.swept.IsZero():
		w.swept = now // a claim has looked
		return nil
	case now.Sub(w.swept) < sweepInterval:
		return nil
	}
	w.swept = now
	pending, err := w.pending(ctx)
	if before := w.last; err == nil && len(pending) > 0 {
		if err = w.settle(ctx); err == nil && w.last != before {
			err = fmt.Errorf("sink: the last decision is offset %d with %q, not %d with %q as this owner made it", w.last.Next, w.last.ID, before.Next, before.ID)
		}
	}
	w.done = err != nil
	return err
}
