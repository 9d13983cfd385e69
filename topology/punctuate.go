package topology

import (
	"fmt"
	"time"

	"github.com/streamd/streamd/window"
)

// Punctuate makes a Process operator act at each multiple of an interval in event time, counted from 1970-01-01 UTC: fn
// is called once the watermark has reached it, with the tick's time, for the task as a whole and not for a key. It may do
// all that the operator's main function may. (Kafka Streams: ProcessorContext.schedule with STREAM_TIME.)
//
// The first tick is the first one after the time that the watermark shows when the task begins. If it passes several at once, fn is
// called once, for the last of them. Which one was the last is part of the state: after a crash no tick comes again,
// and none is lost. An operator keeps that in a store of its own, named "<operator>-schedule". The interval is whole
// milliseconds, at least one.
//
// What fn emits has the time of the tick, unless it says otherwise, and no headers. If it fails, the operator's error policy decides;
// skipped, the tick is over.
func Punctuate[K2, V2 any](interval time.Duration, fn func(ctx Context, tick time.Time, emit Emit[K2, V2]) error) ProcessSetting {
	return punctuate(interval, false, fn)
}

// PunctuateWall is Punctuate by the host's clock, within about a tenth of a second. Ticks that were missed while the
// task did not run are made up for by one, at once. (Kafka Streams: WALL_CLOCK_TIME.)
func PunctuateWall[K2, V2 any](interval time.Duration, fn func(ctx Context, tick time.Time, emit Emit[K2, V2]) error) ProcessSetting {
	return punctuate(interval, true, fn)
}

func punctuate[K2, V2 any](interval time.Duration, wall bool, fn func(ctx Context, tick time.Time, emit Emit[K2, V2]) error) ProcessSetting {
	h := scheduleHandler{
		interval: interval, wall: wall, fn: fn, given: fn != nil,
		fits: func(emit any) bool { _, ok := emit.(Emit[K2, V2]); return ok },
		bind: func(process any, key string) tickCallback {
			p := process.(*processing[K2, V2])
			return func(at window.Millis) error {
				t := at.Time()
				ctx := p.begin(t, nil, p.p.c.timerRoot([]byte(key), scheduleTimer, t, nil))
				return p.end(fn(ctx, t, p.emit))
			}
		},
	}
	return ProcessSetting{func(o *options) { o.schedules = append(o.schedules, h) }}
}

// scheduleTimer names the timer in the IDs of what a tick makes.
const scheduleTimer = "@schedule" // no set of timers has such a name

// scheduleHandler is what Punctuate was given, without its types.
type scheduleHandler struct {
	interval time.Duration
	wall     bool
	fn       any // for messages
	given    bool
	fits     func(emit any) bool
	bind     func(process any, key string) tickCallback
}

type tickCallback func(tick window.Millis) error

// key names the schedule within its operator, in the state and in IDs.
func (h *scheduleHandler) key() string {
	if h.wall {
		return "wall " + h.interval.String()
	}
	return h.interval.String()
}

// scheduleStore is where an operator keeps which ticks were the last.
type scheduleStore struct{ name string }

func (s *scheduleStore) spec() StoreSpec                          { return StoreSpec{Name: s.name} }
func (s *scheduleStore) complete() bool                           { return true }
func (s *scheduleStore) instantiate(c *instance, _ *operator) any { return c.rt.Store(s.name) }

// claimSchedules checks what Punctuate was given, and adds the store.
func (b *Builder) claimSchedules(n *node, emit any) {
	seen := map[string]bool{}
	for _, h := range n.opts.schedules {
		b.require(h.given, n, "function", "the function of a schedule is nil")
		b.require(h.fits(emit), n, "option", fmt.Sprintf("the function of a schedule is a %T, the operator has %T", h.fn, emit))
		b.require(h.interval >= time.Millisecond && h.interval%time.Millisecond == 0, n, "option", "the interval of a schedule must be whole milliseconds, at least one")
		b.require(!seen[h.key()], n, "option", fmt.Sprintf("has two schedules with the interval %v: do both in one function", h.interval))
		seen[h.key()] = true
	}
	if len(n.opts.schedules) > 0 {
		n.stores = append(n.stores, &scheduleStore{n.name + "-schedule"})
	}
}

// schedule is one in one task.
type schedule struct {
	key   string
	every window.Windows // its starts are the ticks
	call  tickCallback
	store Store
	now   window.Millis
	// last is the tick that was the last, or the time at which the schedule began; known: it was read. Both void by forget.
	last  window.Millis
	known bool
}

func newSchedule(c *instance, n *node, h scheduleHandler, process any) *schedule {
	key := h.key()
	return &schedule{
		key: key, every: window.Tumbling(h.interval), call: h.bind(process, key),
		store: c.rt.Store(n.name + "-schedule"), now: window.NoTime,
	}
}

// due says whether there may be a tick. If the host's clock was set back by more than an interval, the schedule begins
// again: it would be silent until the clock is where it was.
func (s *schedule) due() bool {
	if s.now < window.MinMillis {
		return false
	}
	if !s.known {
		return true
	}
	size := s.every.Size()
	return s.now >= s.last.Add(size) || s.now < s.last.Add(-size)
}

// take finds the newest tick and notes it as done. call: it is to be acted on, and not only where the schedule begins.
func (s *schedule) take() (tick window.Millis, did, call bool, err error) {
	tick, _ = s.every.Starts(s.now)
	b, err := s.store.Get([]byte(s.key))
	switch {
	case err != nil:
		return 0, false, false, err
	case b != nil && len(b) != timeBytes:
		return 0, false, false, fmt.Errorf("a schedule of %d bytes is damaged", len(b))
	case b != nil:
		last := getTime(b)
		if tick <= last && tick >= last.Add(-s.every.Size()) {
			s.done(last)
			return 0, false, false, nil
		}
		call = tick > last
	}
	s.known = false // until it is done
	var v [timeBytes]byte
	putTime(v[:], tick)
	return tick, true, call, s.store.Put([]byte(s.key), v[:])
}

// done says which tick was the last.
func (s *schedule) done(tick window.Millis) { s.last, s.known = tick, true }
