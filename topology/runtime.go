package topology

import (
	"errors"
	"time"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// Runtime is what one task gives to its instance of a sub-topology: the low, untyped side of every
// operator. processor.Task implements it; nothing in it does I/O beyond the local store.
//
// It is used from one goroutine, only while the chain handles a record. Every effect (Emit, Store,
// Dedup) is undone by the runtime if the chain returns an error for the record, and reaches the
// outside only with the task's next commit.
type Runtime interface {
	// Store returns the task's part of a declared state store.
	Store(name string) Store
	// Dedup returns the ID log of a declared dedup operator.
	Dedup(name string) IDLog
	// Emit hands one encoded record to a sink of the sub-topology. Key and Value must stay unchanged
	// from here on; take them from Alloc.
	Emit(sink int, out SinkRecord)
	// Alloc returns an empty slice with room for at least n bytes that stays valid until the commit.
	// Append to it and hand the result on: what is not used of it is lost until then.
	Alloc(n int) []byte
	// Keep tells the runtime how much of the last Alloc was used, so that the rest can be used again.
	Keep(used int)
	// StreamTime is the highest timestamp of the task so far, the record in hand included.
	StreamTime() time.Time
	// Position is where the source record in hand stands.
	Position() record.Position
	// Counter returns the cell of a counter. Whoever handles a record adds to it directly; the
	// runtime keeps the increments only if the transaction commits.
	Counter(c CounterID) *uint64
}

// Environment is the part of a Runtime that only some operators need: sources that fall back to the
// position as a record's ID, and sinks with a Partition function. NewChain refuses a sub-topology
// with such an operator if its Runtime does not implement it.
type Environment interface {
	Runtime
	// ClusterID is the ID of the Kafka cluster, never empty.
	ClusterID() string
	// TopicID is the UUID of an input topic (its full name), never empty.
	TopicID(topic string) string
	// Partitions is the number of partitions of a sink's topic.
	Partitions(sink int) int32
}

// GlobalRuntime is the part of a Runtime that only joins with global tables need. NewChain refuses a sub-topology with such a join if
// its Runtime does not implement it.
type GlobalRuntime interface {
	Runtime
	// Global returns a declared global table.
	Global(name string) GlobalStore
}

// GlobalStore is the untyped face of a global table: rows as GlobalSpec.Row has made them. It may change between two calls, by
// another goroutine.
type GlobalStore interface {
	// Get returns nil for a key without a row. The bytes must not be changed, and stay as they are.
	Get(key []byte) []byte
}

// ErrTooLarge: a key or value is larger than a state store takes. The policy of the operator applies.
var ErrTooLarge = errors.New("too large for the store")

// Store is the untyped face of a state store: the changes of the open transaction over the committed
// content. Returned bytes must not be changed and are valid until the record in hand is done.
type Store interface {
	// Get returns nil for an absent key.
	Get(key []byte) ([]byte, error)
	// Put stores a copy of key and value. A nil value deletes. [ErrTooLarge]: nothing was stored.
	Put(key, value []byte) error
	// Range calls fn in the byte order of the keys for from <= key < to (nil: no bound) until it returns false.
	Range(from, to []byte, fn func(key, value []byte) bool) error
}

// IDLog is the untyped face of a dedup operator's log.
type IDLog interface {
	// Check says whether the ID is new and, if so, makes it pending. See dedup.Index.Check.
	Check(h record.Hash, payload uint64, at time.Time) (dedup.Answer, error)
}

// SinkRecord is a record on its way into a topic.
type SinkRecord struct {
	Key       []byte // nil: no key
	Value     []byte // nil: tombstone
	Headers   record.Headers
	Timestamp time.Time
	// Partition is chosen by the hash of the key if negative (without a key: the partition of the
	// source record, modulo).
	Partition record.Partition
}

// CounterKind says what a counter counts; with the operator (or topic) it identifies the counter.
// The names are stored in commit records: never change one.
type CounterKind string

// The counters that operators keep.
const (
	CounterIn                 CounterKind = "in"                  // records that entered the operator
	CounterOut                CounterKind = "out"                 // records that it forwarded
	CounterFiltered           CounterKind = "dropped/filtered"    // dropped without an error, by reason
	CounterNullKey            CounterKind = "dropped/null_key"    //
	CounterNullValue          CounterKind = "dropped/null_value"  //
	CounterLate               CounterKind = "dropped/late"        //
	CounterNoMatch            CounterKind = "dropped/no_match"    // a branch without a case for the record
	CounterTimers             CounterKind = "timers/fired"        // timers and ticks of schedules
	CounterChecked            CounterKind = "dedup/checked"       // IDs looked up
	CounterDuplicateCommitted CounterKind = "dedup/dup_committed" // first one found in the committed log
	CounterDuplicateOpen      CounterKind = "dedup/dup_open"      // first one in the same transaction
	CounterConflict           CounterKind = "dedup/conflict"      // same ID, other payload
	CounterTooLate            CounterKind = "dedup/too_late"      // older than the window
	CounterMissingStop        CounterKind = "dedup/missing/stop"  // no usable ID, by what was done
	CounterMissingDeadLetter  CounterKind = "dedup/missing/dead_letter"
	CounterMissingForward     CounterKind = "dedup/missing/forward"
	CounterBloomNegative      CounterKind = "dedup/bloom/negative"
	CounterBloomTrue          CounterKind = "dedup/bloom/true_positive"
	CounterBloomFalse         CounterKind = "dedup/bloom/false_positive"
)

// CounterID names one counter of a task.
type CounterID struct {
	Kind CounterKind
	Of   string // operator, or topic
}

// Chain is a task's instance of a sub-topology. Not safe for concurrent use.
type Chain struct {
	// Sources has one entry for each source of the sub-topology, in Subtopology.Sources' order.
	//
	// An error is an *OperatorError if the record is to blame: its policy decides. Any other error came
	// from the Runtime (a store that cannot be read) and is no record's fault: never skip one. Panics
	// of user code are errors (PanicError); any other panic, and a broken invariant, goes through.
	Sources []func(in *broker.Record) error
	// Timed are the operators that act when time passes, each before those that get its outputs.
	Timed []Timed
	// Calls are the operators that call other systems.
	Calls []Calling
}

// Policy is what is done with a record that an operator cannot handle.
type Policy uint8

// The policies. PolicyDefault is the application's (processor.WithErrorPolicy), which is PolicyStop by default.
const (
	PolicyDefault    Policy = iota
	PolicyStop              // the application stops; the record is processed again at the next start
	PolicyDeadLetter        // to the dead letter topic, in the same transaction; nothing else of it remains
	PolicySkip              // counted, logged, nothing else of it remains
)

// Stage is where in an operator a record failed.
type Stage string

// The stages.
const (
	StageDecode  Stage = "decode"
	StageID      Stage = "id"
	StageProcess Stage = "process"
	StageEncode  Stage = "encode"
	StageProduce Stage = "produce"
)

// OperatorError is the error of a chain: which operator failed, at what, and what is to be done.
type OperatorError struct {
	Operator string
	Stage    Stage
	Policy   Policy
	Err      error
}

// Error returns "operator "name": stage: cause".
func (e *OperatorError) Error() string {
	return "operator " + quote(e.Operator) + ": " + string(e.Stage) + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *OperatorError) Unwrap() error { return e.Err }
