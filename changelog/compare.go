package changelog

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// Verdict is what the group's offsets, the changelog and the local store together say.
type Verdict uint8

// The verdicts.
const (
	// Fresh: the task has never committed. A new incarnation begins, at the offsets that somebody has
	// set for the group, else by the start policy.
	Fresh Verdict = iota
	// Agree: group and changelog name the same commit.
	Agree
	// UseChangelog: the changelog is right where the group's offsets are older, missing or foreign.
	UseChangelog
	// DataLost: something that was committed is no longer there. The task must not run.
	DataLost
)

// String returns the verdict's name.
func (v Verdict) String() string {
	return [...]string{"fresh", "agree", "use changelog", "data lost"}[v]
}

// GroupOffset is what the group has committed for one input partition. Next is record.NoOffset, or
// the partition is left out, if there is nothing.
type GroupOffset struct {
	record.TopicPartition
	broker.CommittedOffset
}

// Evidence is all that is known when a task starts.
type Evidence struct {
	Group []GroupOffset // of the task's input partitions
	// Point is the last commit record of the ID log, read to its end; sequence 0: there is none in it.
	// (Follower.Point, but after a tail without commit records that is the local store's, which is as good.)
	Point record.CommitPoint
	IDLog Log
	// Stores are the changelogs of the state stores.
	Stores []Log
	// Local is the local store's position as it was found, before any restore; zero: none.
	Local record.LocalPosition
	// Resets are the marks of the application's resets: a local store that was made of an ID log which one has deleted is no evidence.
	Resets Resets
	Now    time.Time
}

// Decision is what to do.
type Decision struct {
	Verdict Verdict
	// Point is where to go on: its Inputs are the positions. An input that is not among them has
	// never been read. Sequence 0 for Fresh.
	Point  record.CommitPoint
	Reason string // with the numbers; empty for Agree
	Remedy string // for DataLost
}

const (
	remedyRestore = "recover the changelog topic (replica, unclean leader election, deletion), or start anew under another application name"
	remedyOffsets = "set the group's offsets with kafka-consumer-groups.sh where processing shall go on (older IDs are forgotten: records may be processed twice)"
)

// Compare decides from what a task goes on. It is the check that finds truncated, emptied and re-created
// changelogs, and offsets that expired, were set by a tool or were written by a late request. The error
// is ErrNewerFormat: a newer version has committed offsets.
//
// Stateful tasks only: one without an ID log has nothing to compare with.
func Compare(e Evidence) (Decision, error) {
	g, err := readGroup(e.Group)
	if err != nil {
		return Decision{}, err
	}
	for _, l := range e.Stores {
		for _, s := range e.Point.Stores {
			if s.Store == l.Store && (s.TopicID != l.TopicID || s.Next > l.End) {
				return lost(storeLost(l, s.TopicID, s.Next), remedyRestore), nil
			}
		}
	}
	switch {
	case e.Point.Sequence == 0:
		return withoutCommitRecord(e, g), nil
	case g.offsets == 0:
		// CRASH 24, 25: expired, or the group was deleted. Never start at the input's end, nor anew.
		return useChangelog(e, "the group has no committed offsets (expired or deleted)"), nil
	case g.last.Sequence == 0:
		// CRASH 47. A jump forward must not skip records, one backward must not process them twice.
		if g.reset() { // it deletes the ID logs last
			return useChangelog(e, "the group's offsets were set by a streamd reset that was not completed; they are ignored (streamd reset --execute completes it)"), nil
		}
		return useChangelog(e, "the group's offsets were set by another program; they are ignored (to begin elsewhere, start under another application name)"), nil
	case g.last.Incarnation != e.Point.Incarnation:
		return lost(fmt.Sprintf("the group's offsets are of incarnation %016x, commit %d, the ID log %s of incarnation %016x, commit %d",
			g.last.Incarnation, g.last.Sequence, e.IDLog.TopicPartition, e.Point.Incarnation, e.Point.Sequence), remedyRestore), nil
	case g.last.Sequence > e.Point.Sequence:
		// CRASH 31
		return lost(fmt.Sprintf("the group has committed %d transactions, the ID log %s ends with commit %d", g.last.Sequence, e.IDLog.TopicPartition, e.Point.Sequence), remedyRestore), nil
	case g.last.Sequence < e.Point.Sequence:
		return useChangelog(e, fmt.Sprintf("the group's offsets are of commit %d", g.last.Sequence)), nil
	}
	if reason := g.differs(e.Point); reason != "" {
		// CRASH 7: a late request can move an offset; the commit record cannot be moved.
		return useChangelog(e, reason), nil
	}
	return Decision{Verdict: Agree, Point: e.Point}, nil
}

func useChangelog(e Evidence, reason string) Decision {
	return Decision{Verdict: UseChangelog, Point: e.Point, Reason: fmt.Sprintf("%s; going on after commit %d of the ID log", reason, e.Point.Sequence)}
}

func lost(reason, remedy string) Decision {
	return Decision{Verdict: DataLost, Reason: reason, Remedy: remedy}
}

// LocalWasReset says that the local store was made of another ID log than this one, and that a reset has deleted that.
func (e Evidence) LocalWasReset() bool {
	was, ok := position(e.Local.Changelogs, e.IDLog.TopicPartition)
	return ok && was.TopicID != e.IDLog.TopicID && e.Resets.Deleted(was.TopicID)
}

// withoutCommitRecord decides where the ID log holds no commit record: it is new, or it was emptied.
func withoutCommitRecord(e Evidence, g group) Decision {
	whole := e.IDLog.Start == 0 // nothing of it was ever deleted
	log := fmt.Sprintf("the ID log %s (offsets %d to %d)", e.IDLog.TopicPartition, e.IDLog.Start, e.IDLog.End)
	if g.last.Sequence > 0 {
		age := e.Now.Sub(g.last.CommitTime)
		switch {
		case whole:
			// CRASH 32: deleting moves the start. A whole log without the commit is another log, or a cut one.
			return lost(fmt.Sprintf("the group has committed %d transactions, %s holds none: the topic was made anew or truncated", g.last.Sequence, log), remedyRestore)
		case e.IDLog.Retention <= 0 || age < e.IDLog.Retention:
			// CRASH 33
			return lost(fmt.Sprintf("commit %d of %s is %v old, within the retention of %v, but %s holds no commit record", g.last.Sequence,
				g.last.CommitTime.UTC().Format(time.RFC3339), age.Round(time.Second), e.IDLog.Retention, log), remedyRestore)
		}
		// Every ID in it was older than its window when the log let go of it.
		p := record.CommitPoint{Sequence: g.last.Sequence, Incarnation: g.last.Incarnation, Inputs: g.inputs}
		if e.Local.Sequence == p.Sequence && e.Local.Incarnation == p.Incarnation {
			p.StreamTime, p.Counters = e.Local.StreamTime, e.Local.Counters
		}
		return Decision{Verdict: Agree, Point: p, Reason: fmt.Sprintf("%s was emptied by its retention of %v; the last commit is %v old", log, e.IDLog.Retention, age.Round(time.Second))}
	}
	fresh := Decision{Verdict: Fresh, Point: record.CommitPoint{Inputs: g.inputs}}
	if g.offsets > 0 {
		// Somebody has set them: before the first start, or as the remedy for what is below.
		by := "another program has"
		if g.reset() {
			by = "streamd reset has"
		}
		fresh.Reason = "starting at offsets that " + by + " set for the group"
		return fresh
	}
	switch {
	case e.Local.Sequence > 0 && !e.LocalWasReset():
		return lost(fmt.Sprintf("the local store knows commit %d, but the group has no offsets and %s holds no commit record", e.Local.Sequence, log),
			remedyOffsets+"; or, to start anew, remove the state directory")
	case !whole:
		return lost(fmt.Sprintf("the group has no offsets and %s holds no commit record any more: how far the task had come is not known", log), remedyOffsets)
	}
	return fresh
}

// group is what the committed offsets say.
type group struct {
	list    []GroupOffset
	meta    []Metadata // zero: foreign
	inputs  []record.InputPosition
	offsets int
	last    Metadata // the one with the highest sequence; zero: all are foreign
}

// reset says whether a reset has set the offsets.
func (g group) reset() bool {
	return slices.ContainsFunc(g.list, func(o GroupOffset) bool { return o.Metadata == ResetMetadata })
}

func readGroup(list []GroupOffset) (group, error) {
	g := group{}
	for _, o := range list {
		if o.Next == record.NoOffset {
			continue
		}
		m, err := ParseMetadata(o.Metadata)
		if errors.Is(err, ErrNewerFormat) {
			return group{}, fmt.Errorf("committed offset of %s: %w", o.TopicPartition, err)
		}
		// Corrupt is as good as foreign: it proves nothing.
		g.list, g.meta = append(g.list, o), append(g.meta, m)
		g.inputs = append(g.inputs, record.InputPosition{TopicPartition: o.TopicPartition, Next: o.Next})
		g.offsets++
		// A transaction commits all inputs; a lower sequence beside a higher one was put back by someone.
		if m.Sequence > g.last.Sequence {
			g.last = m
		}
	}
	return g, nil
}

// differs says where the offsets are not the commit point's, though its sequence stands with one of them.
func (g group) differs(p record.CommitPoint) string {
	for _, in := range p.Inputs {
		found := false
		for i, o := range g.list {
			if o.TopicPartition != in.TopicPartition {
				continue
			}
			found = true
			if o.Next != in.Next || g.meta[i].Sequence != p.Sequence || g.meta[i].Incarnation != p.Incarnation {
				return fmt.Sprintf("the group's offset of %s is %d (commit %d), the commit record says %d", in.TopicPartition, o.Next, g.meta[i].Sequence, in.Next)
			}
		}
		if !found {
			return fmt.Sprintf("the group has no offset of %s, the commit record says %d", in.TopicPartition, in.Next)
		}
	}
	return ""
}
