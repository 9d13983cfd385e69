package changelog

import (
	"fmt"
	"time"

	"github.com/streamd/streamd/record"
)

// Keeping is what to do with a local store that was found.
type Keeping uint8

// The ways.
const (
	// KeepTail: it is right as far as it goes; replay what it lacks.
	KeepTail Keeping = iota
	// RestoreFull: reset it and replay the changelogs from their start.
	RestoreFull
	// Refuse: it belongs to something else; change nothing and stop.
	Refuse
	// Lost: a state store's changelog no longer has what the local store was made of. A restore would
	// give less than was committed: change nothing and stop.
	Lost
)

// String returns the way's name.
func (k Keeping) String() string { return [...]string{"keep", "restore in full", "refuse", "lost"}[k] }

// LocalEvidence is what is known of a task's local store and of its changelogs.
type LocalEvidence struct {
	Local record.LocalPosition
	Found bool  // there is a position
	Logs  []Log // the ID log and all stores
	Group []GroupOffset
	Now   time.Time
}

// KeepLocal decides whether a local store may be kept, and says why not. It looks at what only the
// changelogs and the group can tell; directory, application, cluster, boot and format are the
// local log's own guards. What it cannot see, that the sequence at the position does not go on, the
// Follower finds (ErrSequence): then restore in full.
func KeepLocal(e LocalEvidence) (Keeping, string) {
	if !e.Found {
		return RestoreFull, "there is no local store"
	}
	g, err := readGroup(e.Group)
	if err != nil {
		return Refuse, err.Error()
	}
	current := e.current(g)
	for _, l := range e.Logs {
		c, ok := position(e.Local.Changelogs, l.TopicPartition)
		switch {
		case !ok && l.Store == "":
			// CRASH 35: a task keeps its ID log for life.
			return Refuse, fmt.Sprintf("the local store does not belong to this task: its ID log is not %s", l.TopicPartition)
		case !ok:
			return RestoreFull, fmt.Sprintf("the local store does not know %s", l.TopicPartition)
		case l.Store != "" && (c.TopicID != l.TopicID || c.Next > l.End):
			// CRASH 31, 32: the ID log is the old one (it is looked at first), so this is no new beginning.
			return Lost, storeLost(l, c.TopicID, c.Next)
		case c.TopicID != l.TopicID:
			return RestoreFull, fmt.Sprintf("topic %q was made anew (%s, was %s)", l.Topic, l.TopicID, c.TopicID)
		case c.Next > l.End:
			// CRASH 31: an unclean election, a truncated log.
			return RestoreFull, fmt.Sprintf("the local store is at %d of %s, which ends at %d", c.Next, l.TopicPartition, l.End)
		case c.Next < l.Start && l.Store == "" && current:
			// The retention took what the store holds anyway: nothing was committed since.
		case c.Next < l.Start:
			// Even if one record is missing, it may have been a tombstone.
			return RestoreFull, fmt.Sprintf("the local store is at %d of %s, which begins at %d", c.Next, l.TopicPartition, l.Start)
		}
		// Without a time, no state was read yet: there is nothing that a tombstone could be missing for.
		if l.Store == "" || c.Next == l.End || current || e.Local.AppliedAt.IsZero() {
			continue
		}
		// CRASH 30: what is read from here on lacks the tombstones that compaction has removed since, so
		// that deleted keys would come back.
		if age, limit := e.Now.Sub(e.Local.AppliedAt), l.DeleteRetention-l.DeleteRetention/tombstoneMargin; age >= limit {
			return RestoreFull, fmt.Sprintf("the local store is %v old, tombstones of %q are kept for %v", age.Round(time.Second), l.Topic, l.DeleteRetention)
		}
	}
	if len(e.Local.Changelogs) > len(e.Logs) {
		return RestoreFull, "the local store has changelogs that the task no longer has"
	}
	switch {
	case g.last.Sequence == 0 || e.Local.Sequence == 0:
		return KeepTail, ""
	case g.last.Incarnation != e.Local.Incarnation:
		return RestoreFull, fmt.Sprintf("the local store is of incarnation %016x, the group's offsets of %016x: the task was reset", e.Local.Incarnation, g.last.Incarnation)
	case e.Local.Sequence > g.last.Sequence:
		return RestoreFull, fmt.Sprintf("the local store is ahead: commit %d, the group's offsets are of %d", e.Local.Sequence, g.last.Sequence)
	}
	return KeepTail, ""
}

// current says that nothing was committed since the local store's position, however long ago that is: the
// group names the same commit, and at most its marker follows it in the ID log.
func (e LocalEvidence) current(g group) bool {
	for _, l := range e.Logs {
		if c, ok := position(e.Local.Changelogs, l.TopicPartition); ok && l.Store == "" && l.End-c.Next > 1 {
			return false
		}
	}
	return e.Local.Complete && e.Local.Sequence > 0 && e.Local.Sequence == g.last.Sequence && e.Local.Incarnation == g.last.Incarnation
}

// tombstoneMargin is the share of delete.retention.ms by which a local store must be younger: clocks
// differ, and a restore takes time.
const tombstoneMargin = 10

// storeLost says what is wrong with a state store's changelog that was of topic id and reached next.
func storeLost(l Log, id string, next record.Offset) string {
	if id != l.TopicID {
		return fmt.Sprintf("the changelog %s of store %q was made anew (topic ID %s, was %s)", l.TopicPartition, l.Store, l.TopicID, id)
	}
	return fmt.Sprintf("the changelog %s of store %q ends at %d, it had reached %d: it was truncated", l.TopicPartition, l.Store, l.End, next)
}
