package topology

import (
	"fmt"
	"slices"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/window"
)

// Timer is a timer whose time has come.
type Timer[K any] struct {
	Key K
	// At is the time for which it was set: in UTC, in whole milliseconds.
	At time.Time
}

// TimerStore declares a set of timers, at most one for each key: a timer is named by the set and its key. They are state like
// that of a KeyValueStore: changed with the record that sets them, or not at all; there after a crash and on another
// host. An operator that wants several timers for a key declares several sets, or puts more into the key.
//
// OnTimer gives a set to the operator that acts when its timers are due; WithStore lets others set and cancel them.
type TimerStore[K any] struct {
	name string
	keys serde.Serde[K]
	wall bool
}

// Timers declares timers that go by event time: one is due as soon as the watermark has reached its time, so that all
// records from before it were processed (but late ones). The name is a part of the changelog topic's, and of the IDs of
// what the timers emit: it must not change while there is state.
func Timers[K any](name string, keys serde.Serde[K]) *TimerStore[K] {
	return &TimerStore[K]{name: name, keys: keys}
}

// WallTimers declares timers that go by the host's clock: one is due once it shows their time, within about a tenth of a
// second, whether records come or not. If it is due while the task does not run, it fires when that runs again.
func WallTimers[K any](name string, keys serde.Serde[K]) *TimerStore[K] {
	return &TimerStore[K]{name: name, keys: keys, wall: true}
}

func (s *TimerStore[K]) spec() StoreSpec { return StoreSpec{Name: s.name} }
func (s *TimerStore[K]) complete() bool  { return s.keys != nil }
func (s *TimerStore[K]) byWall() bool    { return s.wall }

func (s *TimerStore[K]) instantiate(c *instance, op *operator) any {
	return &timerCells[K]{cells: KeyValue(s.name, s.keys, serde.Bytes()).in(c, op), name: s.name, q: c.timerQueue(s.name)}
}

// anyTimers is a TimerStore without its types.
type anyTimers interface {
	StateStore
	byWall() bool
}

// Set makes the timer of the key due at a time, instead of the time that it may have been set for before. A time that has
// passed already makes it due as soon as the record in hand is done; parts finer than a millisecond are rounded up.
// A time that is zero or outside of the years 1 to 9999 is an error.
func (s *TimerStore[K]) Set(ctx Context, key K, at time.Time) error {
	x, k, err := s.at(ctx, key)
	if err == nil {
		err = x.set(k, at, ctx.p.identity)
	}
	return ctx.p.back(err)
}

// Cancel takes the timer of the key off. It is no error if there is none.
func (s *TimerStore[K]) Cancel(ctx Context, key K) error {
	x, k, err := s.at(ctx, key)
	if err == nil {
		if err = x.q.cancel(k); err != nil {
			err = x.op.fault("cancel a timer", err)
		}
	}
	return ctx.p.back(err)
}

// At is the time for which the timer of the key is set, false if there is none.
func (s *TimerStore[K]) At(ctx Context, key K) (at time.Time, ok bool, err error) {
	x, k, err := s.at(ctx, key)
	if err == nil {
		var st timerState
		if st, ok, err = x.q.read(k[timeBytes:]); err != nil {
			err = x.op.fault("read a timer", err)
		} else if ok {
			at = st.at.Time()
		}
	}
	return at, ok, ctx.p.back(err)
}

// Now is what the clock of the timers shows: the watermark for Timers, zero while it is not known; the host's clock for
// WallTimers. Use the latter for nothing but to set a timer: it is another one when the record is processed again.
func (s *TimerStore[K]) Now(ctx Context) (time.Time, error) {
	x, err := s.of(ctx)
	if err != nil || x.q.now < window.MinMillis {
		return time.Time{}, err
	}
	return x.q.now.Time(), nil
}

// at finds the timers in the task of the context, and encodes a key behind the room that its entries need.
func (s *TimerStore[K]) at(ctx Context, key K) (*timerCells[K], []byte, error) {
	x, err := s.of(ctx)
	if err != nil {
		return nil, nil, err
	}
	k, err := x.keyBehind(timerPrefix, key)
	if err == nil && k == nil {
		err = ErrNullKey
	}
	return x, k, err
}

func (s *TimerStore[K]) of(ctx Context) (*timerCells[K], error) {
	x, err := ctx.store(s)
	if err != nil {
		return nil, err
	}
	return x.(*timerCells[K]), nil
}

// timerCells are the timers of a set in one task, for one operator.
type timerCells[K any] struct {
	*cells[K, []byte]
	name string
	q    *timerQueue
}

// set also keeps what set the timer: its ID goes into those of what the timer emits. Otherwise a timer that is set
// again for the very time at which it has fired, by another record, would emit other things under the same IDs.
func (x *timerCells[K]) set(key []byte, at time.Time, by record.Identity) error {
	m, ok := window.Of(at)
	if !ok || at.IsZero() {
		return x.op.fail(fmt.Errorf("timer %q: its time, %d s after 1970, is zero or outside of the years 1 to 9999", x.name, at.Unix()))
	}
	if at.Nanosecond()%int(time.Millisecond) != 0 {
		m++ // never early
	}
	st := timerState{at: m}
	if id := by.ID(); !id.Empty() {
		h := id.Hash()
		st.setter = h[:]
	}
	if err := x.q.set(key, st); err != nil {
		return x.op.fault("set a timer", err)
	}
	return nil
}

// timerHandler is what OnTimer was given, without its types.
type timerHandler struct {
	timers anyTimers // nil: none was given
	fn     any       // for messages
	given  bool      // fn is not nil
	fits   func(emit any) bool
	// bind makes the callback for one task: of a *processing[K2, V2] and a *timerCells[K].
	bind func(process, cells any) timerCallback
}

// timerCallback runs the user's function for a timer that was taken off. The key is the callback's to keep.
type timerCallback func(key []byte, at window.Millis, setter []byte) error

// OnTimer gives timers to a Process operator, and says what it does when one is due. fn may do all that the operator's main
// function may, and emits the same types: state, further timers, outputs, an error. The timer is off when fn is called,
// and may be set again.
//
// A timer fires once. What fn did is committed together with its going off; after a crash before that, both happen
// again. Timers of an operator fire in the order of their times, then of the declaration of the sets, then of their keys'
// bytes, each before any record that comes after its time. If fn fails, the operator's error policy decides; skipped,
// or as a dead letter, the timer is off and nothing else of fn remains.
//
// What fn emits has the time of the timer, unless it says otherwise, no headers, and an ID made of operator, set, key, time, the ID
// of what set the timer, and the order of the calls to emit. ctx.Position is zero. Kafka Streams has no such timers.
func OnTimer[K, K2, V2 any](timers *TimerStore[K], fn func(ctx Context, t Timer[K], emit Emit[K2, V2]) error) ProcessSetting {
	h := timerHandler{
		fn: fn, given: fn != nil,
		fits: func(emit any) bool { _, ok := emit.(Emit[K2, V2]); return ok },
		bind: func(process, cells any) timerCallback {
			p, x := process.(*processing[K2, V2]), cells.(*timerCells[K])
			return func(key []byte, at window.Millis, setter []byte) error {
				k, err := decodeState(x.cells, x.keys, false, key)
				if err != nil {
					return err
				}
				t := Timer[K]{Key: k, At: at.Time()}
				ctx := p.begin(t.At, nil, x.c.timerRoot(key, x.name, t.At, setter))
				return p.end(fn(ctx, t, p.emit))
			}
		},
	}
	return ProcessSetting{func(o *options) {
		if timers != nil {
			h.timers = timers
			o.stores = addStore(o.stores, timers)
		}
		o.timers = append(o.timers, h)
	}}
}

// addStore adds a store unless it is there.
func addStore(stores []StateStore, s StateStore) []StateStore {
	if slices.Contains(stores, s) {
		return stores
	}
	return append(stores, s)
}

// claimTimers checks what OnTimer and the schedules were given, and notes whose timers they are.
func (b *Builder) claimTimers(n *node, emit any) {
	for _, h := range n.opts.timers {
		b.require(h.given && h.timers != nil, n, "function", "OnTimer's timers or its function are nil")
		b.require(h.fits(emit), n, "option", fmt.Sprintf("OnTimer's function is a %T, the operator has %T", h.fn, emit))
		if h.timers == nil {
			continue
		}
		if other := b.timers[h.timers]; other != nil {
			b.problem(n, "store", fmt.Sprintf("timers %q have an OnTimer already, at %q", h.timers.spec().Name, other.name))
			continue
		}
		b.timers[h.timers] = n
	}
	n.check = func(note func(rule, what string)) {
		for _, s := range n.stores {
			t, ok := s.(anyTimers)
			if !ok || slices.ContainsFunc(n.opts.timers, func(h timerHandler) bool { return h.timers == t }) {
				continue
			}
			switch owner := b.timers[t]; {
			case owner == nil:
				note("store", fmt.Sprintf("timers %q have no OnTimer: nothing would happen when they are due", t.spec().Name))
			case owner.index < n.index:
				// Else what the operator does with the results of a closed window could set a timer in the past
				// of one whose turn is over, and when it fires would depend on where a commit falls.
				note("store", fmt.Sprintf("sets timers of %q: declare it before that", owner.name))
			}
		}
	}
}
