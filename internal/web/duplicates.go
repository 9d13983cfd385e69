package web

import (
	"slices"

	"github.com/streamd/streamd/processor"
)

type duplicateRow struct{ Time, Position, Late, Seen, ID string }

// lastDuplicates lists them, the newest first.
func lastDuplicates(d *processor.DedupStatus) (out []duplicateRow) {
	for _, x := range slices.Backward(d.Last) {
		out = append(out, duplicateRow{x.Time.UTC().Format("2006-01-02 15:04:05Z"), DuplicateAt(x), DuplicateAge(x), DuplicateSeen(x), x.ID})
	}
	return out
}

// DuplicateAt is where a duplicate is.
func DuplicateAt(d processor.DuplicateStatus) string {
	if d.Position == "" {
		return "of a timer"
	}
	return d.Position
}

// DuplicateAge is about how much later than the first one a duplicate came, in the time of the records. Of one in the same transaction
// nothing is known: its time is not kept before the commit.
func DuplicateAge(d processor.DuplicateStatus) string {
	if d.FirstSeen.IsZero() || d.Timestamp.IsZero() || d.Seen == "open_transaction" {
		return "–"
	}
	return Age(max(0, d.Timestamp.Sub(d.FirstSeen)))
}

// DuplicateSeen is where the first one was found.
func DuplicateSeen(d processor.DuplicateStatus) string {
	if d.Seen == "open_transaction" {
		return "same transaction"
	}
	return "committed"
}
