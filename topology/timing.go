package topology

import (
	"time"

	"github.com/streamd/streamd/window"
)

// timing is what a Process operator does when time passes: its timers and its schedules. It is one Timed for all of
// them, so that all that is due at the operator is done before those behind it hear of the time.
type timing struct {
	c   *instance
	op  *operator
	lag time.Duration // of the records that come, behind the watermark
	// What goes by event time comes before what goes by the host's clock.
	event, wall clockWork
	fired       *uint64
	last        pendingTimer
}

// pendingTimer is what was due last.
type pendingTimer struct {
	key  []byte
	name string
	at   window.Millis
}

// clockWork is what goes by one of the two clocks.
type clockWork struct {
	timers    []*firing
	schedules []*schedule
}

// firing is a set of timers at the operator that acts on them.
type firing struct {
	q    *timerQueue
	name string
	call timerCallback
}

// newTiming makes it for a task. process is the *processing of the operator.
func newTiming(c *instance, n *node, process any, p *processContext, lag time.Duration) *timing {
	t := &timing{c: c, op: p.op, lag: lag, fired: c.counter(CounterTimers, n)}
	for _, h := range n.opts.timers {
		name := h.timers.spec().Name
		for i, s := range p.handles {
			if s != StateStore(h.timers) {
				continue
			}
			on := t.by(h.timers.byWall())
			on.timers = append(on.timers, &firing{q: c.timerQueue(name), name: name, call: h.bind(process, p.stores[i])})
		}
	}
	for _, h := range n.opts.schedules {
		on := t.by(h.wall)
		on.schedules = append(on.schedules, newSchedule(c, n, h, process))
	}
	return t
}

func (t *timing) by(wall bool) *clockWork {
	if wall {
		return &t.wall
	}
	return &t.event
}

// Advance implements Timed.
func (t *timing) Advance(m Moment) bool {
	due := t.event.advance(m.Watermark.Add(-t.lag))
	if len(t.wall.timers)+len(t.wall.schedules) == 0 {
		return due
	}
	wall, ok := window.Of(m.Wall)
	if m.Wall.IsZero() || !ok {
		wall = window.NoTime
	}
	return t.wall.advance(wall) || due
}

// Reset implements Timed.
func (t *timing) Reset(m Moment) {
	t.event.forget()
	t.wall.forget()
	t.Advance(m)
}

// Pending implements Timed: the key as its serde wrote it, and the name of the timers and the time, as text, for a value.
func (t *timing) Pending() Piece {
	return Piece{What: "timer", Key: t.last.key, Value: []byte(t.last.name + " " + t.last.at.Time().Format(time.RFC3339Nano))}
}

// Fire implements Timed: it does one timer or one tick, event time first.
func (t *timing) Fire(quiet bool) (did bool, err error) {
	defer t.c.rescue(&err)
	if did, err = t.fire(&t.event, quiet); did || err != nil {
		return did, err
	}
	return t.fire(&t.wall, quiet)
}

// fire does what is due first by one clock: timers in the order of time, then of declaration, then of their keys. Ticks
// come after the timers, since a tick stands for all that was missed up to now.
func (t *timing) fire(w *clockWork, quiet bool) (did bool, err error) {
	var first *firing
	var at window.Millis
	for _, x := range w.timers {
		m, found, moved, err := x.q.head()
		switch {
		case err != nil:
			return false, t.op.fault("look for timers that are due", err)
		case moved:
			return true, nil
		case found && (first == nil || m < at):
			first, at = x, m
		}
	}
	if first != nil {
		return true, t.fireTimer(first, at, quiet)
	}
	for _, s := range w.schedules {
		if !s.due() {
			continue
		}
		if did, err = t.tick(s, quiet); did || err != nil {
			return did, err
		}
	}
	return false, nil
}

func (t *timing) fireTimer(x *firing, at window.Millis, quiet bool) error {
	index := x.q.due[0]
	key := index[timerPrefix:len(index):len(index)]
	t.last = pendingTimer{key, x.name, at}
	setter, err := x.q.take()
	if err != nil {
		return t.op.fault("take a timer off", err)
	}
	if !quiet {
		if err := x.call(key, at, setter); err != nil {
			return err
		}
		*t.fired++
	}
	x.q.done(index)
	return nil
}

func (t *timing) tick(s *schedule, quiet bool) (did bool, err error) {
	tick, did, call, err := s.take()
	if err != nil {
		return false, t.op.fault("read or write a schedule", err)
	}
	if !did {
		return false, nil
	}
	t.last = pendingTimer{[]byte(s.key), scheduleTimer, tick}
	if call && !quiet {
		if err := s.call(tick); err != nil {
			return false, err
		}
		*t.fired++
	}
	s.done(tick)
	return true, nil
}

// advance moves the clock and says whether anything may be due.
func (w *clockWork) advance(now window.Millis) (due bool) {
	for _, x := range w.timers {
		due = x.q.advance(now) || due
	}
	for _, s := range w.schedules {
		s.now = now
		due = s.due() || due
	}
	return due
}

func (w *clockWork) forget() {
	for _, x := range w.timers {
		x.q.forget()
	}
	for _, s := range w.schedules {
		s.known = false
	}
}
