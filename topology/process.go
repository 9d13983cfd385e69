package topology

import (
	"fmt"
	"time"

	"github.com/streamd/streamd/record"
)

// WithStore gives a Process operator state stores. Operators of one sub-topology may share one.
func WithStore(stores ...StateStore) ProcessSetting {
	return ProcessSetting{func(o *options) { o.stores = append(o.stores, stores...) }}
}

// Context is what a Process function may know of the record, or the timer, in hand and its task. It is valid while the
// function runs.
type Context struct{ p *processContext }

// StreamTime is the highest timestamp of the task so far, the record in hand included.
func (c Context) StreamTime() time.Time { return c.p.c.rt.StreamTime() }

// Position is where the source record in hand stands; zero for a timer.
func (c Context) Position() record.Position { return c.p.c.rt.Position() }

// Process is the low level: any number of records of each record, with state and timers. Everything goes
// through its arguments: state through the stores of ctx, output through emit, failure through the
// error. If it returns an error, or an operator downstream does, nothing of the record remains.
// Outputs are children of the input, told apart by the order of the calls to emit.
//
// fn must be deterministic (no clock, no random numbers, no map order that reaches the output): the
// same records must give the same outputs when they are processed again. Options: WithStore, OnTimer, Punctuate,
// PunctuateWall, PreserveKey, OnError.
func Process[K, V, K2, V2 any](s *Stream[K, V], name string, fn func(ctx Context, r record.Record[K, V], emit Emit[K2, V2]) error, opts ...ProcessOption) *Stream[K2, V2] {
	b := s.b
	n := &node{kind: kindProcess, name: b.stateName(kindProcess, name), opts: collect(opts)}
	n.stores = n.opts.stores
	b.add(n, s)
	b.require(fn != nil, n, "function", "the function is nil")
	b.claimTimers(n, Emit[K2, V2](nil))
	b.claimSchedules(n, Emit[K2, V2](nil))
	for _, h := range n.stores {
		b.require(h.complete(), n, "serde", fmt.Sprintf("store %q has a nil serde", h.spec().Name))
	}
	lag := n.lag
	n.instantiate = func(c *instance, n *node) any {
		x := newProcessing[K2, V2](c, n, lag)
		return step[K, V](func(r *record.Record[K, V]) error {
			*x.e.op.in++
			ctx := x.begin(r.Timestamp, r.Headers, r.Identity)
			return x.end(fn(ctx, *r, x.emit))
		})
	}
	return &Stream[K2, V2]{b: b, from: n, keys: keep[K, K2](s.keys), values: keep[V, V2](s.values), rekeyed: s.rekeyedBy(n)}
}

// processing is a Process operator in one task: what its function and its callbacks share.
type processing[K2, V2 any] struct {
	e    *emitter[K2, V2]
	p    *processContext
	emit Emit[K2, V2]
}

func newProcessing[K2, V2 any](c *instance, n *node, lag time.Duration) *processing[K2, V2] {
	e := newEmitter(c, n, downstream[K2, V2](c, n, 0))
	x := &processing[K2, V2]{e: e, emit: e.emit, p: &processContext{c: c, op: e.op, handles: n.stores}}
	for _, h := range n.stores {
		x.p.stores = append(x.p.stores, h.instantiate(c, e.op))
	}
	if len(n.opts.timers)+len(n.opts.schedules) > 0 {
		c.addTimed(n, newTiming(c, n, x, x.p, lag))
	}
	return x
}

// begin comes before user code, with what it is called for.
func (x *processing[K2, V2]) begin(at time.Time, h record.Headers, id record.Identity) Context {
	x.e.open(at, h, id)
	x.p.live, x.p.broken, x.p.identity = true, nil, id
	x.p.c.user = x.e.op
	return Context{x.p}
}

// end comes after it, with its error.
func (x *processing[K2, V2]) end(err error) error {
	x.p.c.user = nil
	x.p.live = false
	if x.p.broken != nil {
		x.e.live = false
		return x.p.broken
	}
	return x.e.end(err)
}
