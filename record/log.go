package record

import (
	"slices"
	"time"
)

// IDBlock is the unit in which processed IDs are kept: those that one transaction added to one
// operator's log, in the order in which they were first seen. One block is one value in the local
// log and one record in the changelog.
type IDBlock struct {
	// Generation numbers the part of the log that the block belongs to. A generation is
	// forgotten as a whole.
	Generation uint64
	// StreamTime is the task's stream time when the transaction was prepared.
	StreamTime time.Time
	// EntryBytes is the size of one entry: HashBytes, or HashBytes+8 if a hash of the payload
	// stands behind each ID's hash (big-endian).
	EntryBytes int
	// Entries holds the entries back to back. Invariant: len(Entries) % EntryBytes == 0.
	Entries []byte
}

// Len is the number of IDs in the block.
func (b IDBlock) Len() int { return len(b.Entries) / b.EntryBytes }

// OperatorBlock is a block with the name of the dedup operator that it belongs to.
type OperatorBlock struct {
	Operator string
	IDBlock
}

// Generation describes a generation of an operator's ID log as the local log holds it.
type Generation struct {
	Number     uint64
	Sealed     bool   // runs and a filter instead of blocks
	IDs        uint64 // entries in it
	EntryBytes int
	Slots      uint32 // of a sealed one: the number of runs, a power of two
	// From and To are the lowest and the highest stream time of its blocks.
	From, To time.Time
}

// GenerationDrop says that an operator forgets a generation.
type GenerationDrop struct {
	Operator   string
	Generation uint64
}

// StateChange is one change of a state store. A nil Value deletes the key.
type StateChange struct {
	Store string
	Key   []byte
	Value []byte
}

// InputPosition is how far a task has processed one of its input partitions.
type InputPosition struct {
	TopicPartition
	TopicID string // UUID of the topic that Next belongs to; empty: not known
	Next    Offset
}

// CommitPoint is what identifies one committed transaction of a task. The same point stands in
// the local log, in the commit record at the end of the transaction and (sequence and incarnation)
// in the metadata of the committed offsets, so that each can be checked against the others.
type CommitPoint struct {
	// Sequence counts the task's commits from 1. 0: none yet.
	Sequence uint64
	// Incarnation is drawn anew when a task starts with neither offsets nor changelog, and by a
	// reset: a sequence is only comparable within one incarnation.
	Incarnation uint64
	StreamTime  time.Time // zero: no record yet
	// Inputs are all input partitions of the task, sorted by topic, then partition.
	Inputs []InputPosition
	// Counters are the task's metrics up to here, so that they are exactly-once too (INV-9).
	// Their meaning is given by the processor; an unknown name is kept.
	Counters []Counter
	// Stores are the changelogs of the task's state stores as of the commit before: a changelog that was
	// truncated or made anew is found by them. Commit records hold them, the local log does not.
	Stores []StorePosition
}

// StorePosition is how far a state store's changelog went at an earlier commit of the task.
type StorePosition struct {
	Store   string
	TopicID string // UUID of the changelog topic
	Next    Offset // the partition has ended here or later ever since
}

// Counter is one persistent counter of a task.
type Counter struct {
	Name  string
	Value uint64
}

// ChangelogPosition is how far a changelog partition is contained in a local store.
type ChangelogPosition struct {
	TopicPartition
	TopicID string // UUID of the topic
	Next    Offset
}

// LocalPosition is the position record of a task in the local log: written with each batch, in the
// same atomic transaction. What the log holds may be ahead of it, never behind (INV-2, INV-5).
type LocalPosition struct {
	CommitPoint
	// Complete is false while a restore has not reached its target: the content is a prefix.
	Complete bool
	// Changelogs are the task's changelog partitions: the ID log first, then the stores by name.
	Changelogs []ChangelogPosition
	// AppliedAt is the broker's time of the commit that was applied, or at which all that there was then had been read from the changelogs.
	// Until then, nothing behind what was read of any state topic was written before it, so that compacted tombstones there are younger; 1970 if
	// nothing is known of that. Zero: no state was read.
	AppliedAt time.Time
}

// Clone returns a copy that shares nothing with p but what nobody changes: the bytes of texts.
func (p LocalPosition) Clone() LocalPosition {
	p.Inputs, p.Counters, p.Stores, p.Changelogs = slices.Clone(p.Inputs), slices.Clone(p.Counters), slices.Clone(p.Stores), slices.Clone(p.Changelogs)
	return p
}

// Batch is what one transaction, or one step of a restore, changes in a task's local store.
type Batch struct {
	Blocks   []OperatorBlock
	Drops    []GenerationDrop
	State    []StateChange
	Position LocalPosition
}
