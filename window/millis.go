package window

import "time"

// Millis is a moment of event time in milliseconds since 1970-01-01 UTC: what the arithmetic and the state stores
// use. Durations are added to it as milliseconds.
type Millis int64

// The times that can be put into windows: years 1 to 9999. Sums of them and of any duration do not overflow.
const (
	MinMillis Millis = -62_135_596_800_000
	MaxMillis Millis = 253_402_300_799_999
)

// NoTime is before all times: a watermark of which nothing is known yet.
const NoTime = MinMillis - 1

// Of returns the moment of a time, false if it lies outside of MinMillis to MaxMillis. Parts finer than a
// millisecond are cut off.
func Of(t time.Time) (Millis, bool) {
	// Not t.UnixMilli alone, which overflows for times that no clock shows.
	s := t.Unix()
	if s < int64(MinMillis/1000) || s > int64(MaxMillis/1000) {
		return 0, false
	}
	return Millis(s*1000 + int64(t.Nanosecond())/int64(time.Millisecond)), true
}

// Time returns the moment as a time, in UTC.
func (m Millis) Time() time.Time { return time.UnixMilli(int64(m)).UTC() }

// Add returns the moment d later, in whole milliseconds.
func (m Millis) Add(d time.Duration) Millis { return m + Millis(d/time.Millisecond) }

// Span is a window in milliseconds, [Start, End).
type Span struct{ Start, End Millis }

// Window returns the span as a Window, in UTC.
func (s Span) Window() Window { return Window{s.Start.Time(), s.End.Time()} }

// Starts returns where the first and the last of the tumbling or hopping windows begin that contain the moment;
// those between begin Every apart. Other kinds have no fixed starts: the result is 0, -1.
func (w Windows) Starts(at Millis) (first, last Millis) {
	every, size := Millis(w.every/time.Millisecond), Millis(w.size/time.Millisecond)
	if every <= 0 {
		return 0, -1
	}
	last = floor(at, every)
	return floor(at-size, every) + every, last
}

// floor rounds down to a multiple of step, also below zero.
func floor(at, step Millis) Millis {
	r := at % step
	if r < 0 {
		r += step
	}
	return at - r
}

// ClosesAt is when a window with that end is closed: as soon as the watermark is not below it.
func (w Windows) ClosesAt(end Millis) Millis { return end.Add(w.grace) }

// Alone is the window of a record that no other one is near: a session of one record, or the sliding window that ends with it.
func (w Windows) Alone(at Millis) Span {
	if w.kind == KindSliding {
		return Span{at.Add(-w.size), at + 1}
	}
	return Span{at, at.Add(w.size)}
}

// Join says what a record does to the sessions of its key: sessions[from:to] and the record become one, which
// is merged. If from equals to the record begins a session of its own, to be put at that place. The sessions are
// in the order of time and do not touch each other; so is what comes of it.
func (w Windows) Join(sessions []Span, at Millis) (from, to int, merged Span) {
	merged = w.Alone(at)
	for from < len(sessions) && sessions[from].End < merged.Start {
		from++
	}
	for to = from; to < len(sessions) && sessions[to].Start <= merged.End; to++ {
		merged.Start, merged.End = min(merged.Start, sessions[to].Start), max(merged.End, sessions[to].End)
	}
	return from, to, merged
}
