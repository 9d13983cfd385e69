package changelog

import (
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

var (
	// ErrSequence: commit records are missing or come twice, or the log does not go on where the local
	// store stands. After a tail: restore in full. In a full restore: committed data was lost.
	ErrSequence = errors.New("changelog: the commit records are not in sequence")
	// ErrTorn: the ID log ends with blocks that no commit record follows. A transaction is whole or
	// absent, so committed data was lost.
	ErrTorn = errors.New("changelog: the ID log ends inside a transaction")
)

// maxOpenBytes bounds the blocks that wait for their commit record: as many IDs as one generation holds.
const maxOpenBytes = 1 << 24 * (record.HashBytes + payloadBytes)

// Log describes one changelog partition of a task as the cluster has it now.
type Log struct {
	record.TopicPartition
	TopicID string // UUID of the topic
	Store   string // the state store; empty: this is the ID log
	// Start is the log start, End the high watermark: both taken after the committed offsets were read.
	Start, End record.Offset
	// Retention is the ID log's retention.ms; zero or negative: for ever.
	Retention time.Duration
	// DeleteRetention is a store topic's delete.retention.ms: how long a tombstone outlives compaction.
	DeleteRetention time.Duration
}

// Follower turns the records of a task's changelog partitions into batches for its local store, up to the
// given ends. It keeps no clock and reads nothing; records come through Add.
type Follower struct {
	logs []followed
	id   int // which of them is the ID log

	point  record.CommitPoint // of the last commit record
	known  bool               // there is a point
	tail   bool               // it began as the local store's
	beyond bool               // a state change behind the end of its log was taken

	open      []record.OperatorBlock // blocks before their commit record
	openBytes int
	openAt    record.Offset // of the first of them

	// generations that were handed over or are in step, in the order of their first block; kept by a full
	// restore only, for a reset in the middle.
	generations []record.GenerationDrop

	step    record.Batch
	changed bool           // step is worth to be applied
	done    []record.Batch // steps before it
	final   bool           // the end was announced by a step
}

// followed is one partition and how far it is read.
type followed struct {
	Log
	next    record.Offset // behind everything that was read
	applied record.Offset // what a local store may note: behind what was handed over
	handed  bool          // something of it was handed over, or is in the local store
	at      time.Time     // what lies behind applied was written no sooner, see appliedAt
	marks   []mark        // of commits that lie behind applied
}

// mark says that a store's changes from an offset on were written by a commit of that time, or later.
type mark struct {
	next record.Offset
	at   time.Time
}

// markEvery is how far marks are apart at least: a log may be read far ahead of another.
const markEvery = time.Minute

// unknownAge is the age of what was read before there was anything to tell it by.
func unknownAge() time.Time { return time.Unix(0, 0) }

// note takes a bound for what lies behind applied.
func (l *followed) note(at time.Time) {
	if at.After(l.at) {
		l.at = at
	}
}

// pass takes the bounds of the marks that were reached.
func (l *followed) pass() {
	n := 0
	for n < len(l.marks) && l.marks[n].next <= l.applied {
		l.note(l.marks[n].at)
		n++
	}
	l.marks = l.marks[n:]
}

// NewFollower follows on from a local store's position. The zero position follows from the start of
// each log. Exactly one log is the ID log. A position that names other partitions than logs is an error: see
// KeepLocal for what fits.
func NewFollower(logs []Log, from record.LocalPosition) (*Follower, error) {
	f := &Follower{id: -1, point: from.CommitPoint, known: from.Sequence > 0, tail: from.Sequence > 0}
	for i, l := range logs {
		next := l.Start
		if len(from.Changelogs) > 0 {
			c, ok := position(from.Changelogs, l.TopicPartition)
			if !ok {
				return nil, fmt.Errorf("changelog: the local position does not know %s", l.TopicPartition)
			}
			next = max(c.Next, l.Start) // the ID log's retention may have passed it, see KeepLocal
		}
		if l.Store == "" {
			if f.id >= 0 {
				return nil, fmt.Errorf("changelog: %s and %s are both the ID log", logs[f.id].TopicPartition, l.TopicPartition)
			}
			f.id = i
		}
		f.logs = append(f.logs, followed{Log: l, next: next, applied: next, handed: !from.AppliedAt.IsZero(), at: from.AppliedAt})
	}
	if f.id < 0 {
		return nil, errors.New("changelog: no ID log among the changelogs")
	}
	return f, f.finish()
}

func position(list []record.ChangelogPosition, tp record.TopicPartition) (record.ChangelogPosition, bool) {
	for _, c := range list {
		if c.TopicPartition == tp {
			return c, true
		}
	}
	return record.ChangelogPosition{}, false
}

// Add takes over what was fetched from one partition: the visible records in the order of their
// offsets, and the offset behind all that was read, markers and aborted records included. Keys, values and
// entries are kept without copying. Records before the position are passed over, those behind the end are taken.
//
// After an error the follower must not be used: ErrSequence, ErrTorn, ErrCorrupt, ErrForeign, ErrNewerFormat.
func (f *Follower) Add(tp record.TopicPartition, records []broker.Record, next record.Offset) error {
	l := f.find(tp)
	if l == nil {
		return fmt.Errorf("changelog: records of %s, which is not followed", tp)
	}
	for i := range records {
		r := &records[i]
		if r.Offset < l.next {
			continue
		}
		if l.Store != "" {
			if r.Key == nil {
				return fmt.Errorf("%s@%d: %w: a state change without a key", tp, r.Offset, ErrCorrupt)
			}
			f.step.State = append(f.step.State, record.StateChange{Store: l.Store, Key: r.Key, Value: r.Value})
			l.handed = true
			l.note(r.Timestamp) // of its event, which is clamped to the clock: no later than its commit
			f.beyond = f.beyond || r.Offset >= l.End
		} else if err := f.addID(l, r); err != nil {
			return fmt.Errorf("%s@%d: %w", tp, r.Offset, err)
		}
		l.next = r.Offset + 1
	}
	if next > l.next {
		l.next = next
	}
	// State counts as it is read. The ID log counts up to its last commit record only.
	if l.Store != "" && l.applied < l.next {
		l.applied = l.next
		l.pass()
		f.changed = true
	}
	return f.finish()
}

// Overrun says whether a commit record or a state change was taken that lies behind the end of its log: somebody wrote on.
func (f *Follower) Overrun() bool { return f.beyond || f.logs[f.id].applied > f.logs[f.id].End }

func (f *Follower) find(tp record.TopicPartition) *followed {
	for i := range f.logs {
		if f.logs[i].TopicPartition == tp {
			return &f.logs[i]
		}
	}
	return nil
}

// addID takes one record of the ID log.
func (f *Follower) addID(l *followed, r *broker.Record) error {
	kind, err := KindOf(r.Key)
	if err != nil {
		return err
	}
	if kind == KindBlock {
		b, err := DecodeBlock(r.Key, r.Value)
		if err != nil {
			return err
		}
		if len(f.open) == 0 {
			f.openAt = r.Offset
		}
		f.open = append(f.open, b)
		if f.openBytes += len(b.Entries); f.openBytes > maxOpenBytes {
			return fmt.Errorf("%w: blocks of %d bytes without a commit record", ErrCorrupt, f.openBytes)
		}
		return nil
	}
	p, err := DecodeCommit(r.Value)
	if err != nil {
		return err
	}
	if err := f.commit(p); err != nil {
		return err
	}
	l.applied = r.Offset + 1
	f.mark(p, r.Timestamp)
	return nil
}

// mark keeps how far the stores' logs went before a commit, and when that was written.
func (f *Follower) mark(p record.CommitPoint, at time.Time) {
	for _, s := range p.Stores {
		for i := range f.logs {
			l := &f.logs[i]
			if l.Store != s.Store || l.TopicID != s.TopicID {
				continue
			}
			if n := len(l.marks); n == 0 || at.Sub(l.marks[n-1].at) >= markEvery {
				l.marks = append(l.marks, mark{s.Next, at})
			}
			l.pass()
		}
	}
}

// commit takes a commit record: the blocks before it are now known to be whole.
func (f *Follower) commit(p record.CommitPoint) error {
	switch {
	case !f.known:
		// The log's first commit record: retention may have taken what was before, blocks of the same
		// transaction included. Both are older than any ID that still matters.
	case p.Incarnation != f.point.Incarnation:
		if f.tail {
			return fmt.Errorf("%w: the local store is of incarnation %016x, the log goes on with %016x: the task was reset",
				ErrSequence, f.point.Incarnation, p.Incarnation)
		}
		f.reset()
	case p.Sequence != f.point.Sequence+1:
		return fmt.Errorf("%w: %d comes after %d (incarnation %016x)", ErrSequence, p.Sequence, f.point.Sequence, p.Incarnation)
	default:
		p.Counters = mergeCounters(f.point.Counters, p.Counters)
	}
	for _, b := range f.open {
		if f.tail {
			break
		}
		d := record.GenerationDrop{Operator: b.Operator, Generation: b.Generation}
		if !contains(f.generations, d) {
			f.generations = append(f.generations, d)
		}
	}
	f.step.Blocks = append(f.step.Blocks, f.open...)
	f.open, f.openBytes = nil, 0
	f.point, f.known, f.changed = p, true, true
	return nil
}

// reset takes a change of the incarnation: what the ID log said before counts no more. (A reset empties the
// state topics by itself.)
func (f *Follower) reset() {
	f.cut()
	f.step.Drops = f.generations
	f.generations = nil
	f.changed = true
	f.cut() // of its own: numbers of generations begin again
}

// cut ends the step in hand, if there is anything in it.
func (f *Follower) cut() {
	if !f.changed {
		return
	}
	f.step.Position = record.LocalPosition{CommitPoint: f.point, Complete: f.Done(), AppliedAt: f.appliedAt()}
	for _, l := range f.logs {
		f.step.Position.Changelogs = append(f.step.Position.Changelogs,
			record.ChangelogPosition{TopicPartition: l.TopicPartition, TopicID: l.TopicID, Next: l.applied})
	}
	f.done = append(f.done, f.step)
	f.step, f.changed = record.Batch{}, false
}

// appliedAt is the time from which on no tombstone may be missing, if reading goes on later: the oldest of what is known of the state
// topics, each by itself, since one may be read far behind another, and behind commit records that are newer. Zero: none was read.
func (f *Follower) appliedAt() (at time.Time) {
	for _, l := range f.logs {
		if l.Store == "" || !l.handed {
			continue
		}
		of := unknownAge()
		if l.at.After(of) {
			of = l.at
		}
		if at.IsZero() || of.Before(at) {
			at = of
		}
	}
	return at
}

// finish looks whether the ends are reached.
func (f *Follower) finish() error {
	if id := &f.logs[f.id]; len(f.open) > 0 && f.openAt < id.End && id.next >= id.End {
		return fmt.Errorf("%w: blocks from offset %d of %s on have no commit record before its end, %d", ErrTorn, f.openAt, id.TopicPartition, id.End)
	}
	if !f.final && f.Done() {
		// Also if nothing was to be read: the store learns that it is complete.
		f.final, f.changed = true, true
	}
	return nil
}

// Take returns what is to be applied next, in order; false if there is nothing. A step holds what was
// added since the last one and belongs to the caller. Position.Complete is set once all ends are
// reached; the ID log's position is the one behind the last commit record, never the end.
func (f *Follower) Take() (record.Batch, bool) {
	if len(f.done) == 0 {
		f.cut()
	}
	if len(f.done) == 0 {
		return record.Batch{}, false
	}
	step := f.done[0]
	f.done = f.done[1:]
	return step, true
}

// Done says whether every partition was read to its end.
func (f *Follower) Done() bool { return f.Remaining() == 0 }

// Remaining is how many offsets are left to the ends. Markers and compacted records count, so it is
// an upper bound for the records.
func (f *Follower) Remaining() (n int64) {
	for i := range f.logs {
		n += max(0, int64(f.logs[i].End-f.logs[i].next))
	}
	return n
}

// Point is that of the last commit record, with all counters, or the local store's; sequence 0 if there
// was neither.
func (f *Follower) Point() record.CommitPoint { return f.point }

// mergeCounters lays newer values over older ones, in the order of their first appearance.
func mergeCounters(older, newer []record.Counter) []record.Counter {
	out := append(make([]record.Counter, 0, len(older)+len(newer)), older...)
next:
	for _, n := range newer {
		for i := range out {
			if out[i].Name == n.Name {
				out[i].Value = n.Value
				continue next
			}
		}
		out = append(out, n)
	}
	return out
}

// contains looks from the end: a block mostly belongs to one of the newest generations.
func contains(list []record.GenerationDrop, d record.GenerationDrop) bool {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i] == d {
			return true
		}
	}
	return false
}
