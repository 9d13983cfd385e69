package processor

import (
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/internal/invariant"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// This file is how a task knows what time it is, and what it does when time passes.
//
//	stream time   the highest event time that was seen: what dedup windows go by
//	watermark     the event time below which no record is expected any more: what windows and timers go by. The
//	              lowest of its inputs' newest records, each less its OutOfOrderness, idle ones left out
//
// Records move both. While nothing is to be read, the host's clock moves the watermark: only by how much time
// has passed, never by what it shows.

const (
	// maxSkew is how far ahead of this host's clock a record's timestamp is believed.
	maxSkew = time.Minute
	// maxTick bounds the time that may pass for an input between two answers of its broker. A clock that jumps, a
	// process that was stopped or a task that was paused makes no input idle.
	maxTick = time.Second
)

// The task's clocks stand among its counters, as milliseconds after window.NoTime: so they are in each commit
// record, and go back with it. The names are stored: never change one.
const (
	counterWatermark topology.CounterKind = "time/watermark"
	counterInputTime topology.CounterKind = "time/input"
	// counterUnlogged is when a dedup operator whose log is left out judged an ID last: of "operator@guard".
	counterUnlogged topology.CounterKind = "time/unlogged"
	// clockOf begins what the clocks belong to: no topic and no operator is called so.
	clockOf = "@"
)

// clock is a moment that is part of the task's committed state.
type clock struct{ cell *uint64 }

func (t *Task) clock(kind topology.CounterKind, of string) clock {
	return clock{t.counters.cell(topology.CounterID{Kind: kind, Of: clockOf + of})}
}

func (c clock) time() window.Millis     { return window.NoTime + window.Millis(*c.cell&^idleBit) }
func (c clock) set(m window.Millis)     { *c.cell = uint64(m - window.NoTime) }
func (c clock) advance(m window.Millis) { c.set(max(c.time(), m)) }

// taskTime is what a task knows of time.
type taskTime struct {
	streamTime time.Time // Invariant: never goes back but to the committed one, by Abort (INV-8)
	// believed is when a timestamp was believed last, or when time was counted to have passed since then.
	believed time.Time
	ticked   time.Time // the last look at the host's clock

	timed []topology.Timed
	keeps bool // there is a watermark: for timed, or to be told
	tells telling
	// watermark is as far as event time has come; fired is the one up to which all that was due is done. No record is
	// processed while they differ. Only fired is committed: after a crash in between, what leads to watermark comes again.
	// Invariant: fired <= watermark.
	watermark window.Millis
	fired     clock
}

// startTime takes the clocks over from the committed point. The chain is made.
func (t *Task) startTime() {
	t.timed = t.chain.Timed
	t.startTelling()
	if t.keeps = len(t.timed)+len(t.tells.sinks) > 0; !t.keeps {
		return
	}
	t.fired = t.clock(counterWatermark, "")
	for _, in := range t.inputs {
		if in == nil {
			continue
		}
		in.newest = t.clock(counterInputTime, in.tp.Topic)
		if t.cfg.sub.Sources[in.source].Marks {
			t.startUpstream(in)
		}
	}
	t.resetTime()
}

// resetTime puts all clocks back to what is committed. Idle inputs have to become idle again: what they have may only
// not have been read anew.
func (t *Task) resetTime() {
	t.streamTime = t.point.StreamTime
	for _, in := range t.inputs {
		if in == nil {
			continue
		}
		in.busy()
		if in.upstream != nil {
			in.upstream.look()
		}
	}
	t.ticked = time.Time{}
	if !t.keeps {
		return
	}
	t.tells.said, t.tells.saying, t.tells.idle, t.tells.due = told{}, told{}, false, false
	t.watermark = t.fired.time()
	for _, x := range t.timed {
		x.Reset(topology.Moment{Watermark: t.watermark})
	}
}

// credible is the event time that a record may claim. A timestamp from further ahead than clocks differ says nothing but
// that time passes: it moves event time by no more than has passed on this host since a timestamp could be believed.
// So one wrong record expires nothing, and a producer or a host whose clock is wrong for good stops nothing.
func (t *Task) credible(at, now time.Time) time.Time {
	limit := now.Add(maxSkew)
	if !at.After(limit) {
		t.believed = now
		return at
	}
	if t.believed.IsZero() || now.Before(t.believed) {
		t.believed = now
	}
	passed := now.Sub(t.believed)
	switch {
	case !t.streamTime.IsZero():
		at = t.streamTime.Add(passed)
	case passed < maxSkew:
		return t.streamTime // others may know better
	default:
		at = now
	}
	t.believed = now
	if at.After(limit) {
		return limit
	}
	return at
}

// observe moves the clocks to the record that is next. Doing it again changes nothing.
func (t *Task) observe(in *input, now time.Time) {
	at := t.credible(in.time(), now)
	if at.After(t.streamTime) {
		t.streamTime = at
		t.advanceIDs()
	}
	if !t.keeps {
		return
	}
	in.busy()
	if in.upstream != nil {
		t.hearRecord(in, in.head())
		return
	}
	if m, ok := window.Of(at); ok && m > in.newest.time() {
		in.newest.set(m)
	}
	t.moveWatermark()
}

// tick lets time pass. That makes inputs idle of which it is known that nothing is in them, see input.rest.
func (t *Task) tick(now time.Time) {
	passed := min(now.Sub(t.ticked), maxTick)
	if t.ticked.IsZero() || passed < 0 {
		passed = 0
	}
	t.ticked = now
	t.wait(passed)
	if !t.keeps {
		return
	}
	for _, in := range t.inputs {
		if in != nil && (in.queued > 0 || in.next < in.stable) {
			in.busy() // there is more, it only has not come
		}
	}
	t.moveWatermark()
	_, t.tells.due = t.news(now)
}

// moveWatermark finds the watermark from what is known of the inputs.
func (t *Task) moveWatermark() {
	lowest, active, ahead := window.MaxMillis, false, window.NoTime
	for _, in := range t.inputs {
		if in == nil {
			continue
		}
		at, idle := in.reach(&t.cfg.sub.Sources[in.source])
		if idle < 0 {
			active, lowest = true, min(lowest, at)
		} else if at >= window.MinMillis {
			ahead = max(ahead, at.Add(idle))
		}
	}
	if t.tells.idle = !active; !active {
		lowest = ahead
	}
	t.watermark = max(t.watermark, lowest)
}

// fire lets the operators do what is due, at most limit pieces. What is left is done by the next call. An error means that
// an operator's policy is to stop.
func (t *Task) fire(now time.Time, limit int) (n int, err error) {
	if !t.keeps {
		return 0, nil
	}
	moment := topology.Moment{Watermark: t.watermark, Wall: now}
	most := t.size() + turnBytes
	for _, x := range t.timed {
		for due := x.Advance(moment); due; n++ {
			if n >= limit || t.size() >= most {
				return n, nil
			}
			if due, err = t.firePiece(x, moment); err != nil {
				return n, err
			}
			if !due {
				break
			}
			t.records++
		}
	}
	t.fired.advance(t.watermark)
	return n, nil
}

// firePiece does one piece of what is due. What it did is undone if it fails; then the piece is done without
// its outputs, if the policy lets it go on.
func (t *Task) firePiece(x topology.Timed, m topology.Moment) (did bool, err error) {
	t.current = record.Position{}
	t.begin()
	did, err = x.Fire(false)
	if err == nil && t.tooLarge == nil {
		t.keep()
		fault.Point("user.done")
		return did, nil
	}
	refused := t.tooLarge
	t.undo()
	if err == nil {
		err = refused
		x.Reset(m) // it takes the piece for done, which the state does not say any more
	}
	if err := t.pieceFailed(x, err, m.Wall); err != nil {
		return false, err
	}
	t.begin()
	if _, err := x.Fire(true); err != nil {
		return false, fmt.Errorf("processor: task %s: skip what was due: %w", t.name, err)
	}
	t.keep()
	return true, nil
}

// TimerError is an error that stops the application at something that was due: a window to be closed, a timer, the outcome of a call.
type TimerError struct {
	Task     string
	Operator string
	Stage    topology.Stage
	Key      []byte // as it stands in the state of the operator whose time has come
	Err      error
}

// Error names the operator and the key.
func (e *TimerError) Error() string {
	return fmt.Sprintf("operator %q cannot %s what is due for key %.200q: %v (error policy: stop)", e.Operator, e.Stage, e.Key, e.Err)
}

// Unwrap returns the cause.
func (e *TimerError) Unwrap() error { return e.Err }

// pieceFailed does with a piece what the policy says.
func (t *Task) pieceFailed(x topology.Timed, err error, now time.Time) error {
	var v invariant.Violation
	var oe *topology.OperatorError
	if errors.As(err, &v) || !errors.As(err, &oe) || errors.Is(err, serde.ErrUnavailable) {
		return fmt.Errorf("processor: task %s: what is due: %w", t.name, err)
	}
	piece := x.Pending()
	key, at := piece.Key, piece.Timestamp
	if at.IsZero() {
		at = t.streamTime
	}
	action := t.action(oe)
	t.note(RecordErrorStatus{Time: now, Operator: oe.Operator, Stage: string(oe.Stage), Action: action, Position: fmt.Sprintf("%s of key %q", piece.What, cut(string(key))), Error: cut(oe.Err.Error())})
	if action == actionStop {
		return &TimerError{Task: t.name, Operator: oe.Operator, Stage: oe.Stage, Key: key, Err: oe.Err}
	}
	t.counters.add(topology.CounterID{Kind: topology.CounterKind(metric.ErrorCounter(string(oe.Stage), action)), Of: oe.Operator}, 1)
	if action == actionSkip {
		return nil
	}
	h := errorHeaders(piece.Headers, oe, 1)
	size, err := t.sendDeadLetter(broker.Output{Timestamp: at, Key: key, Value: piece.Value, Headers: h}, t.cfg.partition)
	if err != nil {
		return &TimerError{Task: t.name, Operator: oe.Operator, Stage: topology.StageProduce, Key: key, Err: fmt.Errorf("%w; it failed with: %w", err, oe)}
	}
	t.outBytes += size
	return nil
}
