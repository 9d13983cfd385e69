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
	// open are those of the open transaction, oldest first: the last ones at least, up to twice as many.
	open []repeat
	n    int // how many the open transaction had, up to now
	mark int // n at the begin of the record in hand
}

// note adds a duplicate of the open transaction.
func (r *repeatLog) note(x repeat) {
	if len(r.open) == 2*keptDuplicates {
		r.open = append(r.open[:0], r.open[keptDuplicates:]...)
	}
	r.open = append(r.open, x)
	r.n++
}

// begin starts a record, undo takes back what it has added.
func (r *repeatLog) begin() { r.mark = r.n }

func (r *repeatLog) undo() {
	r.open = r.open[:len(r.open)-min(r.n-r.mark, len(r.open))]
	r.n = r.mark
}

// commit keeps the last ones of the transaction.
func (r *repeatLog) commit(now time.Time) {
	if r.n == 0 {
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
func (r *repeatLog) abort() { r.open, r.n, r.mark = r.open[:0], 0, 0 }

// noteRepeat keeps where a duplicate was.
func (l *idLog) noteRepeat(h record.Hash, a dedup.Answer, at time.Time) {
	if a.Verdict == dedup.Duplicate || a.Verdict == dedup.DuplicatePending {
		l.repeats.note(repeat{at: *l.current, timestamp: at, first: a.SeenAt, id: h, open: a.Verdict == dedup.DuplicatePending})
	}
}
