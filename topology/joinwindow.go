package topology

import (
	"errors"
	"time"

	"github.com/streamd/streamd/window"
)

// JoinWindows says how near to each other in event time two records must be to be joined. It is a value: its methods return another one. Make
// it with JoinWithin. (Kafka Streams: JoinWindows.)
type JoinWindows struct {
	before, after, grace time.Duration
	graceGiven           bool
}

// JoinWithin joins records whose times are at most d apart, whichever comes first, both ends included. Whole milliseconds, not
// below 0.
func JoinWithin(d time.Duration) JoinWindows { return JoinWindows{before: d, after: d} }

// Before is how much earlier than the left record the right one may be. Default: what JoinWithin was given.
func (w JoinWindows) Before(d time.Duration) JoinWindows {
	w.before = d
	return w
}

// After is how much later than the left record the right one may be. Default: what JoinWithin was given.
func (w JoinWindows) After(d time.Duration) JoinWindows {
	w.after = d
	return w
}

// Grace is how far behind the watermark a record may come and still be joined; one that comes later is late, see OnLate.
// Left and outer joins wait for it before they say that a record has no match: an unmatched left record comes after
// After and grace. Default: the larger one of Before and After. Whole milliseconds, not below 0.
func (w JoinWindows) Grace(d time.Duration) JoinWindows {
	w.grace, w.graceGiven = d, true
	return w
}

// GracePeriod is what Grace was given, or the default.
func (w JoinWindows) GracePeriod() time.Duration {
	if w.graceGiven {
		return w.grace
	}
	return max(w.before, w.after)
}

// Matches says whether a left and a right record of these times are joined.
func (w JoinWindows) Matches(left, right time.Time) bool {
	l, okLeft := window.Of(left)
	r, okRight := window.Of(right)
	return okLeft && okRight && l.Add(-w.before) <= r && r <= l.Add(w.after)
}

// Validate returns what is wrong, all of it joined.
func (w JoinWindows) Validate() error {
	var wrong []error
	for _, x := range []struct {
		what string
		d    time.Duration
	}{{"Before", w.before}, {"After", w.after}, {"Grace", w.GracePeriod()}} {
		if x.d < 0 || x.d%time.Millisecond != 0 {
			wrong = append(wrong, errors.New(x.what+" must be whole milliseconds, not below 0"))
		}
	}
	return errors.Join(wrong...)
}
