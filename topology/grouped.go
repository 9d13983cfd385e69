package topology

import (
	"errors"
	"fmt"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/window"
)

// Grouped is what an aggregate can be made of: a stream, which has one group for each key (G is K), or the
// windows of one (WindowedBy), which have one for each key and window (G is window.Key[K]). G is the key of
// the results. The types of this package are the only ones.
type Grouped[K, V, G any] interface {
	grouping() grouping[K, V, G]
}

type grouping[K, V, G any] struct {
	s *Stream[K, V]
	// group makes the key of a result; keys its serde.
	group    func(K, window.Span) G
	keys     serde.Serde[G]
	windowed *WindowedStream[K, V] // nil: no windows
}

func (s *Stream[K, V]) grouping() grouping[K, V, K] {
	return grouping[K, V, K]{s: s, group: func(k K, _ window.Span) K { return k }, keys: s.keys}
}

// WindowedStream is a stream cut into windows: an aggregate may follow.
type WindowedStream[K, V any] struct {
	s       *Stream[K, V]
	windows window.Windows
	used    []*node // the aggregates that were made of it
}

// WindowedBy cuts a stream into windows of event time, for an aggregate:
//
//	perMinute := topology.WindowedBy(clicks, window.Tumbling(time.Minute).Grace(10*time.Second))
//	counts := topology.Count(perMinute, "clicks-per-minute", topology.EmitOnClose())
//
// What event time is says the source (Timestamp, TimestampHeader); how far it has come, the watermark, follows from
// the records (OutOfOrderness, WithIdleness). A record that comes when all of its windows are closed is late: see
// OnLate and Late.
func WindowedBy[K, V any](s *Stream[K, V], w window.Windows) *WindowedStream[K, V] {
	return &WindowedStream[K, V]{s: s, windows: w}
}

func (w *WindowedStream[K, V]) grouping() grouping[K, V, window.Key[K]] {
	g := grouping[K, V, window.Key[K]]{
		s: w.s, windowed: w,
		group: func(k K, s window.Span) window.Key[K] { return window.Key[K]{Key: k, Window: s.Window()} },
	}
	if w.s.keys != nil {
		g.keys = window.KeySerde(w.s.keys)
	}
	return g
}

// latePort is the port of an aggregate from which the late records go.
const latePort = 1

// Late is the stream of the records that came too late for every one of their windows, as they are. Call it after the
// one aggregate that was made of w; then its late records are neither dropped nor an error (OnLate must not be given).
// For several aggregates, make a WindowedStream for each.
func (w *WindowedStream[K, V]) Late() *Stream[K, V] {
	s := *w.s
	s.policy = PolicyDefault
	if len(w.used) != 1 {
		w.s.b.problem(w.s.from, "window", fmt.Sprintf("Late belongs to one aggregate, here are %d: call it after the aggregate, and WindowedBy once for each", len(w.used)))
		return &s
	}
	n := w.used[0]
	w.s.b.require(n.opts.onLate == ActionDefault, n, "option", "OnLate has no meaning if Late is used")
	s.from, s.port = n, latePort
	return &s
}

// emitMode says when the results of windows are handed on.
type emitMode uint8

const (
	emitDefault emitMode = iota
	emitUpdate
	emitClose
)

// EmitOnUpdate hands on the new result of a window with each record, as an aggregate without windows does: the default. A
// reader takes the last one. (Kafka Streams: EmitStrategy.onWindowUpdate.)
//
// Sessions that grow together are replaced by one with another key; the results of the old ones stay where they
// were written. Where that matters, use EmitOnClose.
func EmitOnUpdate() AggregateSetting {
	return AggregateSetting{func(o *options) { o.emit = emitUpdate }}
}

// EmitOnClose hands on one result of each window, the last one, when the window is closed: when the watermark
// reaches its end and grace, or, if the input stops, when that much time has passed (see WithIdleness). The
// result's time is the last millisecond of the window; it has no headers. (Kafka Streams:
// EmitStrategy.onWindowClose.)
func EmitOnClose() AggregateSetting {
	return AggregateSetting{func(o *options) { o.emit = emitClose }}
}

// OnLate says what becomes of a record all of whose windows are closed: Drop (default; counted as dropped, late), Stop or
// DeadLetter. Late gives them a stream of their own instead. Of a join of streams: what becomes of a record that is later than
// the grace (see JoinWindows).
func OnLate(a Action) LateOption {
	return LateOption{func(o *options) { o.onLate = a }}
}

// MergeWith says how two values of an Aggregate become one, which sessions and sliding windows need: fn gets the
// value of the earlier records first. The other aggregates know it by themselves.
func MergeWith[A any](fn func(a, b A) (A, error)) AggregateSetting {
	return AggregateSetting{func(o *options) { o.merge = fn }}
}

// ErrLate: all windows of the record are closed. An error of the stage process that a policy handles.
var ErrLate = errors.New("later than its windows are kept open")

// aggregator is what an aggregate does. A is the value that is kept, R what is handed on.
type aggregator[K, V, A, R any] struct {
	// add puts a record to the value; first: there is none yet, and old is the zero value. If it does not change the
	// value, nothing is handed on, and the record counts as filtered.
	add func(old A, first bool, r *record.Record[K, V]) (next A, changed bool, err error)
	// merge makes one of two values; nil: that is not possible. a's records are the earlier ones.
	merge  func(a, b A) (A, error)
	result func(A) (R, error)
}

// newAggregate adds an aggregate of any kind.
func newAggregate[K, V, G, A, R any](in Grouped[K, V, G], name string, a aggregator[K, V, A, R], state serde.Serde[A], values serde.Serde[R], usable bool, opts []AggregateOption) *Stream[G, R] {
	g := in.grouping()
	b := g.s.b
	n := &node{kind: kindAggregate, name: b.stateName(kindAggregate, name), opts: collect(opts)}
	store := KeyValue(n.name, g.s.keys, state)
	n.stores = []StateStore{store}
	b.add(n, g.s)
	b.require(usable, n, "function", "the function is nil")
	b.require(state != nil, n, "serde", "the value's serde is nil")
	b.require(g.s.keys != nil, n, "serde", "has no serde for the keys, which are the store's: give it with WithKeys")
	b.requireKeyed(n, g.s.rekeyed)
	out := &Stream[G, R]{b: b, from: n, keys: g.keys, values: values, rekeyed: g.s.rekeyed}
	if g.windowed == nil {
		b.require(n.opts.emit == emitDefault && n.opts.onLate == ActionDefault && n.opts.merge == nil, n, "option",
			"EmitOnUpdate, EmitOnClose, OnLate and MergeWith have a meaning with windows only")
		n.instantiate = func(c *instance, n *node) any { return plainAggregate(c, n, store, a, g) }
		return out
	}
	w := g.windowed
	w.used = append(w.used, n)
	n.ports, n.freePorts = 2, 0
	for _, err := range flatten(w.windows.Validate()) {
		b.problem(n, "window", err.Error())
	}
	b.allow(n, "OnLate", n.opts.onLate, Drop, Stop, DeadLetter)
	if m := n.opts.merge; m != nil {
		fn, ok := m.(func(x, y A) (A, error))
		b.require(ok && fn != nil, n, "option", fmt.Sprintf("MergeWith's function is a %T, the values are %T", m, *new(A)))
		a.merge = fn
	}
	keyed := w.windows.Kind() == window.KindSession || w.windows.Kind() == window.KindSliding
	b.require(!keyed || a.merge != nil || n.opts.merge != nil, n, "window", "sessions and sliding windows put values together: say how, with MergeWith")
	n.byTime = true
	before := n.lag
	if n.opts.emit == emitClose {
		n.lag += w.windows.GracePeriod()
	}
	n.instantiate = func(c *instance, n *node) any {
		x := newWindowed(c, n, store, a, g, before)
		if keyed {
			return newWindowList(c, n, x)
		}
		return newWindowTable(c, n, x)
	}
	return out
}

// plainAggregate is an aggregate without windows in one task.
func plainAggregate[K, V, G, A, R any](c *instance, n *node, store *KeyValueStore[K, A], a aggregator[K, V, A, R], g grouping[K, V, G]) any {
	op, nullKey, filtered, out := c.operator(n), c.counter(CounterNullKey, n), c.counter(CounterFiltered, n), new(record.Record[G, R])
	forward, cells := downstream[G, R](c, n, 0), store.in(c, op)
	return step[K, V](func(r *record.Record[K, V]) error {
		*op.in++
		key, err := cells.key(r.Key)
		if err != nil {
			return err
		}
		if key == nil {
			*nullKey++
			return nil
		}
		old, found, err := cells.get(key)
		if err != nil {
			return err
		}
		c.user = op
		next, changed, err := a.add(old, !found, r)
		if err == nil && changed {
			out.Value, err = a.result(next)
		}
		c.user = nil
		if err != nil {
			return op.fail(err)
		}
		if !changed {
			*filtered++
			return nil
		}
		if err := cells.put(key, next); err != nil {
			return err
		}
		out.Key, out.Timestamp, out.Headers, out.Identity = g.group(r.Key, window.Span{}), r.Timestamp, r.Headers, r.Identity.Child(op.hash, 0)
		*op.out++
		return forward(out)
	})
}
