package sink

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/streamd/streamd/record"
)

// Applier is what a system without transactions has to be for streamd to write to it: the topic in front of the sink is the write-ahead log, and
// each row is applied from it, again and again until that is confirmed. NewTarget makes a Target of it. Safe for concurrent use.
type Applier interface {
	// Check is Target's.
	Check(ctx context.Context) error
	// Apply makes rows durable, in their order. The task and Row.Offset, the row's sequence number in the task's log, name a row for ever: under
	// them it always holds the same. A row that comes again must change nothing, neither what it did before nor what a later one did; it
	// comes after a crash, and from an owner that has been replaced and does not know it yet. Errors:
	//
	//	*RowError     the row at Index is refused for what it holds; those before it are applied, those behind it are not.
	//	*SetupError   what a restart cannot mend.
	//	*PartialError the first rows are applied, and do not come again to this process. Of the others nothing is known.
	//	any other     some rows may be applied. All of them come again.
	Apply(ctx context.Context, task string, rows []Row) error
	// Close is Target's.
	Close() error
}

// PartialError says how far an Apply came before it failed.
type PartialError struct {
	Applied int // rows
	Err     error
}

// Error returns "N rows were applied, then: cause".
func (e *PartialError) Error() string {
	return fmt.Sprintf("sink: %d rows were applied, then: %v", e.Applied, e.Err)
}

// Unwrap returns the cause.
func (e *PartialError) Unwrap() error { return e.Err }

// Conditional is a Target whose class holds only if somebody else does his part. Explain says so.
type Conditional interface {
	// Condition is what would break the class, and what to do about it; empty if nothing would.
	Condition() (what, remedy string)
}

// NewTarget makes a target of an Applier. A class is Idempotent, if the Applier is as its documentation asks, or Plain.
func NewTarget(a Applier, class Class, table Table) (Target, error) {
	if class != Idempotent && class != Plain {
		return nil, fmt.Errorf("sink: class %q, want %s or %s: what has no transactions keeps no offset", class, Idempotent, Plain)
	}
	if err := table.Validate(); err != nil {
		return nil, err
	}
	return &logTarget{Applier: a, class: class, table: table, applied: map[string]record.Offset{}, began: map[string]record.Offset{}}, nil
}

// logTarget is the target of an Applier.
type logTarget struct {
	Applier
	class Class
	table Table

	mu sync.Mutex // guards what is below
	// applied is, by task, the sequence number before which this process knows rows to be applied. The group's offset follows whole batches
	// only: without it a receiver that fails once in a batch would get the batch from its start, and one that often fails would never get to its end.
	// Whoever sets the group's offset back wants rows again, and ends all processes for that, or this memory would skip them.
	applied map[string]record.Offset
	// began is, by task, where the last claim began to write. One that begins before it was set back.
	began map[string]record.Offset
}

// Class implements Target.
func (t *logTarget) Class() Class { return t.class }

// Condition implements Conditional.
func (t *logTarget) Condition() (what, remedy string) { return AppliedCondition(t.class) }

// AppliedCondition is the Condition of what NewTarget makes, by its class.
func AppliedCondition(class Class) (what, remedy string) {
	if class != Idempotent {
		return "", ""
	}
	return "its receiver must change nothing when a row comes again under the same key", "if it does not, the class is plain"
}

// Claim implements Target. Nobody is shut out: two owners do the same twice, which changes nothing.
func (t *logTarget) Claim(_ context.Context, p Partition) (Writer, error) {
	// The topic's ID: offsets of a topic that was made anew are other rows.
	return &logWriter{t: t, task: fmt.Sprintf("%s/%s/%d", p.Sink, p.TopicID, p.Partition)}, nil
}

// unapplied is the index of the first row that is not known to be applied.
func (t *logTarget) unapplied(task string, rows []Row) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := 0
	for at < len(rows) && rows[at].Offset < t.applied[task] {
		at++
	}
	return at
}

// note remembers that the rows of a task before an offset are applied.
func (t *logTarget) note(task string, before record.Offset) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.applied[task] = max(t.applied[task], before)
}

// begin is told where a claim begins. The group's offset never goes back by itself: if it did, what was applied is asked for again.
func (t *logTarget) begin(task string, first record.Offset) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if first < t.began[task] {
		delete(t.applied, task)
	}
	t.began[task] = first
}

type logWriter struct {
	t     *logTarget
	task  string
	begun bool
}

// Next implements Writer: the group's offset says where to go on.
func (w *logWriter) Next() (record.Offset, bool) { return 0, false }

// Close implements Writer.
func (w *logWriter) Close() error { return nil }

// Write implements Writer.
func (w *logWriter) Write(ctx context.Context, b Batch) error {
	if !w.begun {
		w.begun = true
		w.t.begin(w.task, b.First)
	}
	for i, r := range b.Rows {
		if err := w.t.table.Check(r); err != nil {
			return &RowError{Index: i, Err: err}
		}
	}
	skip := w.t.unapplied(w.task, b.Rows)
	rows := b.Rows[skip:]
	if len(rows) == 0 {
		return nil
	}
	err := w.t.Apply(ctx, w.task, rows)
	var refused *RowError
	var partial *PartialError
	switch {
	case err == nil:
		w.t.note(w.task, rows[len(rows)-1].Offset+1)
	case errors.As(err, &refused) && refused.Index >= 0 && refused.Index < len(rows):
		w.t.note(w.task, rows[refused.Index].Offset)
		return &RowError{Index: skip + refused.Index, Err: refused.Err}
	case errors.As(err, &partial) && partial.Applied > 0 && partial.Applied <= len(rows):
		w.t.note(w.task, rows[partial.Applied-1].Offset+1)
	}
	return err
}
