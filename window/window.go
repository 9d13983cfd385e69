package window

import (
	"errors"
	"fmt"
	"time"
)

// Window is the span [Start, End) of event time.
type Window struct {
	Start, End time.Time
}

// Contains says whether a record of that time belongs to the window.
func (w Window) Contains(at time.Time) bool { return !at.Before(w.Start) && at.Before(w.End) }

// String returns "[start, end)" in RFC 3339, UTC.
func (w Window) String() string {
	return "[" + w.Start.UTC().Format(time.RFC3339Nano) + ", " + w.End.UTC().Format(time.RFC3339Nano) + ")"
}

// Key is the key of a windowed aggregate: whose, and of which window.
type Key[K any] struct {
	Key K
	Window
}

// Kind is a way to cut time into windows.
type Kind uint8

// The kinds.
const (
	// KindTumbling: windows of one size, one after the other.
	KindTumbling Kind = iota + 1
	// KindHopping: windows of one size that begin more often than they end: they overlap.
	KindHopping
	// KindSliding: for each record the window that ends with it.
	KindSliding
	// KindSession: windows that grow as long as records follow each other closely.
	KindSession
)

// String returns the kind's name as it stands in pipeline files.
func (k Kind) String() string {
	names := [...]string{"none", "tumbling", "hopping", "sliding", "session"}
	if int(k) < len(names) {
		return names[k]
	}
	return "unknown"
}

// Windows says how time is cut. It is a value: its methods return another one. Make it with Tumbling, Hopping, Sliding or
// Session.
type Windows struct {
	kind               Kind
	size, every, grace time.Duration
}

// Tumbling are windows of one size without gap or overlap. size: at least 1 ms, whole milliseconds.
func Tumbling(size time.Duration) Windows {
	return Windows{kind: KindTumbling, size: size, every: size}
}

// Hopping are windows of one size of which one begins every so often: a record belongs to size/every of them.
// size and every: at least 1 ms, whole milliseconds, every not above size, and at most 1,440 windows for a record.
// (Flink calls them sliding.)
func Hopping(size, every time.Duration) Windows {
	return Windows{kind: KindHopping, size: size, every: every}
}

// Sliding are the windows that end with a record: the record itself and those up to size before it, both
// ends included. Records of the same time share one. size: at least 1 ms, whole milliseconds.
//
// Kafka Streams has, beside these, a window that begins just after each record; those have no use of their
// own and are not made.
func Sliding(size time.Duration) Windows {
	return Windows{kind: KindSliding, size: size}
}

// Session are windows of activity: a record that comes at most gap after another one is in the same session.
// A session ends gap after its last record. gap: at least 1 ms, whole milliseconds.
func Session(gap time.Duration) Windows {
	return Windows{kind: KindSession, size: gap}
}

// Grace is how much later than its end a window is closed, so that records that come out of order still
// count. Default 0. Whole milliseconds. (Kafka Streams: grace.)
func (w Windows) Grace(d time.Duration) Windows {
	w.grace = d
	return w
}

// Kind is the way in which time is cut; 0 for the zero Windows.
func (w Windows) Kind() Kind { return w.kind }

// Size is the length of a window; of a session the gap that ends it.
func (w Windows) Size() time.Duration { return w.size }

// Every is how far apart the starts of tumbling and hopping windows are.
func (w Windows) Every() time.Duration { return w.every }

// GracePeriod is what Grace was given.
func (w Windows) GracePeriod() time.Duration { return w.grace }

// String returns the windows as a pipeline file says it, such as "hopping 5m0s every 1m0s, grace 10s".
func (w Windows) String() string {
	s := w.kind.String() + " " + w.size.String()
	if w.kind == KindHopping {
		s += " every " + w.every.String()
	}
	if w.grace > 0 {
		s += ", grace " + w.grace.String()
	}
	return s
}

// maxOverlap bounds the windows that one record can belong to: a day in steps of a minute. Each costs an update
// of the state.
const maxOverlap = 1440

// Validate returns what is wrong, all of it joined.
func (w Windows) Validate() error {
	if w.kind == 0 {
		return errors.New("window: no windows: make them with Tumbling, Hopping, Sliding or Session")
	}
	var errs []error
	note := func(format string, args ...any) { errs = append(errs, fmt.Errorf("window: "+format, args...)) }
	whole := func(what string, d, least time.Duration) {
		switch {
		case d < least:
			note("%s of %v is less than %v", what, d, least)
		case d%time.Millisecond != 0:
			note("%s of %v is finer than a millisecond", what, d)
		}
	}
	whole("a size", w.size, time.Millisecond)
	whole("a grace", w.grace, 0)
	if w.kind == KindHopping {
		whole("a hop", w.every, time.Millisecond)
		switch {
		case w.every > w.size:
			note("a hop of %v is greater than the size %v: records in between would belong to no window", w.every, w.size)
		case w.every > 0 && (w.size-1)/w.every >= maxOverlap:
			note("each record would belong to %d windows, allowed are %d: take a greater hop", (w.size-1)/w.every+1, maxOverlap)
		}
	}
	return errors.Join(errs...)
}
