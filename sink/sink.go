package sink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/record"
)

// Class is what a target promises.
type Class string

// The classes, the strongest first.
const (
	Ledger     Class = "ledger"     // exactly once, at every moment
	TwoPhase   Class = "two_phase"  // exactly once, at every moment, as long as the target loses nothing that it has prepared
	Idempotent Class = "idempotent" // exactly once in the final state
	Plain      Class = "plain"      // at least once
)

// Partition names one partition of a sink's topic.
type Partition struct {
	// Sink is the name of the sink: with the partition, the key of its progress in the target.
	Sink string
	record.TopicPartition
	// TopicID is the UUID of the topic. Offsets of a topic that was deleted and made anew mean
	// something else: the target refuses them.
	TopicID string
}

// Target is a place that results are written to. Safe for concurrent use.
type Target interface {
	// Class says what the target promises, as it is configured.
	Class() Class
	// Check looks, before the first record is read, whether the target can be written to: it is
	// reachable, the table is there with these columns, and the rights suffice. Errors: *SetupError for
	// what a restart cannot mend, any other one is temporary.
	Check(ctx context.Context) error
	// Claim makes the caller the writer of a partition. Whoever held it before can write no more (but
	// for Plain). Errors: as Check.
	Claim(ctx context.Context, p Partition) (Writer, error)
	// Close gives back what the target holds. Writers are closed before.
	Close() error
}

// Writer writes one partition. Not safe for concurrent use.
type Writer interface {
	// Next is the offset of the first record that the target does not have. False if the target keeps no
	// offsets, or has never seen the partition: then the group's committed offset decides.
	Next() (record.Offset, bool)
	// Write makes a batch durable. Errors:
	//
	//	ErrFenced    somebody else has claimed the partition. Nothing was written.
	//	*RowError    one row is to blame. Nothing was written; the batch is the caller's again, who may write
	//	             another one with the same writer.
	//	*SetupError  the target has changed so that a restart cannot mend it. Nothing was written.
	//	any other    it is not known whether the batch was written. Close the writer and claim the
	//	             partition again: the new writer's Next is the truth.
	Write(ctx context.Context, b Batch) error
	// Close gives the writer's connection back. The claim stays until somebody else makes one.
	Close() error
}

// Gatherer is a Writer that makes several batches durable together, as a file does. Its Write takes a batch over; Next
// follows when the portion that the batch belongs to is durable as a whole, and is then the end of a batch. What was taken over before a failure is
// not durable and comes again. A TwoPhase one is durable with each Write, and ends in Settle what others have left behind.
type Gatherer interface {
	Writer
	// Settle makes durable what has waited long enough at a time. It is called after each batch and, as long as none comes,
	// some times a second. Errors: as Write, but for *RowError.
	Settle(ctx context.Context, now time.Time) error
}

// Batch is what a sink's topic holds in a range of offsets.
type Batch struct {
	Rows []Row
	// First and Next are the range, half-open. It may hold more offsets than rows: markers of
	// transactions, and records that a compaction took.
	First, Next record.Offset
}

// Row is one change of the target's table.
type Row struct {
	ID     record.ID
	Offset record.Offset
	// Values has one value for each column of the table, in its order: nil for NULL, else the Go type
	// of the column's Kind. The slice and what it holds belong to the target from here on.
	Values []any
	// Delete takes the row with this key away. Only the values of key columns count.
	Delete bool
}

// ErrFenced: somebody else has claimed the partition. The writer must not be used again.
var ErrFenced = errors.New("sink: fenced: another process has claimed this partition")

// RowError is a row that the target refuses for what it holds. The batch was not written.
type RowError struct {
	Index int // in Batch.Rows; negative: one of them, the target does not say which
	Err   error
}

// Error returns "row N: cause".
func (e *RowError) Error() string {
	if e.Index < 0 {
		return "sink: a row of the batch: " + e.Err.Error()
	}
	return fmt.Sprintf("sink: row %d of the batch: %v", e.Index, e.Err)
}

// Unwrap returns the cause.
func (e *RowError) Unwrap() error { return e.Err }

// SetupError is what no restart mends: a table, a column, a right that is missing. Err says what, and
// Remedy what to do.
type SetupError struct {
	Err    error
	Remedy string
	// Rights says that credentials or rights are the matter.
	Rights bool
}

// Error returns "cause (remedy)".
func (e *SetupError) Error() string {
	if e.Remedy == "" {
		return "sink: " + e.Err.Error()
	}
	return "sink: " + e.Err.Error() + " (" + e.Remedy + ")"
}

// Unwrap returns the cause.
func (e *SetupError) Unwrap() error { return e.Err }
