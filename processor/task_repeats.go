package processor

import (
	"slices"
	"time"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/record"
)

// keptDuplicates bounds what is remembered of single duplicates, of an operator in a task and in the status.
const keptDuplicates = 20

// repeat is a record that was found to be a duplicate.
type repeat struct {
	at        record.Position // zero: it is of a timer
	timestamp time.Time
	first     time.Time // about when the first one was processed, in stream time
	id        record.Hash
	open      bool      // the first one was in the same transaction
	time      time.Time // of the commit; zero before
}

// repeatLog holds the last duplicates of an operator in a task. Its zero value is empty.
type repeatLog struct {
	last []repeat // committed, oldest first, at most keptDuplicates. Never changed once it is here: status reads it
	open []repeat // of the open transaction, oldest first: the last keptDuplicates at least, and up to twice as many
	hand []repeat // of the record in hand, which may be undone: the last keptDuplicates
}

// note adds a duplicate of the record in hand.
func (r *repeatLog) note(x repeat) {
	if len(r.hand) == keptDuplicates {
		r.hand = append(r.hand[:0], r.hand[1:]...)
	}
	r.hand = append(r.hand, x)
}

// begin starts a record: what the one before it has added stays.
func (r *repeatLog) begin() {
	if len(r.hand) == 0 {
		return
	}
	if more := len(r.open) + len(r.hand) - 2*keptDuplicates; more > 0 {
		r.open = append(r.open[:0], r.open[max(more, len(r.open)-keptDuplicates):]...)
	}
	r.open, r.hand = append(r.open, r.hand...), r.hand[:0]
}

// undo takes back what the record in hand has added.
func (r *repeatLog) undo() { r.hand = r.hand[:0] }

// commit keeps the last ones of the transaction.
func (r *repeatLog) commit(now time.Time) {
	if r.begin(); len(r.open) == 0 {
		return
	}
	added := r.open[max(0, len(r.open)-keptDuplicates):]
	before := r.last[max(0, len(r.last)+len(added)-keptDuplicates):]
	next := slices.Concat(before, added)
	for i := len(before); i < len(next); i++ {
		next[i].time = now
	}
	r.last = next
	r.abort()
}

// abort forgets those of the transaction.
func (r *repeatLog) abort() { r.open, r.hand = r.open[:0], r.hand[:0] }

// noteRepeat keeps where a duplicate was.
func (l *idLog) noteRepeat(h record.Hash, a dedup.Answer, at time.Time) {
	if a.Verdict == dedup.Duplicate || a.Verdict == dedup.DuplicatePending {
		l.repeats.note(repeat{at: *l.current, timestamp: at, first: a.SeenAt, id: h, open: a.Verdict == dedup.DuplicatePending})
	}
}
