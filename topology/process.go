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

// Context is what a Process function may know of the record and its task. It is valid while the
// function runs.
type Context struct{ p *processContext }

// StreamTime is the highest timestamp of the task so far, the record in hand included.
func (c Context) StreamTime() time.Time { return c.p.c.rt.StreamTime() }

// Position is where the source record in hand stands.
func (c Context) Position() record.Position { return c.p.c.rt.Position() }

// Process is the low level: any number of records of each record, with state. Everything goes
// through its arguments: state through the stores of ctx, output through emit, failure through the
// error. If it returns an error, or an operator downstream does, nothing of the record remains.
// Outputs are children of the input, told apart by the order of the calls to emit.
//
// fn must be deterministic (no clock, no random numbers, no map order that reaches the output): the
// same records must give the same outputs when they are processed again. Options: WithStore,
// PreserveKey, OnError.
func Process[K, V, K2, V2 any](s *Stream[K, V], name string, fn func(ctx Context, r record.Record[K, V], emit Emit[K2, V2]) error, opts ...ProcessOption) *Stream[K2, V2] {
	b := s.b
	n := &node{kind: kindProcess, name: b.stateName(kindProcess, name), opts: collect(opts)}
	n.stores = n.opts.stores
	b.add(n, s)
	b.require(fn != nil, n, "function", "the function is nil")
	for _, h := range n.stores {
		b.require(h.complete(), n, "serde", fmt.Sprintf("store %q has a nil serde", h.spec().Name))
	}
	n.instantiate = func(c *instance, n *node) any {
		e := newEmitter(c, n, downstream[K2, V2](c, n, 0))
		emit := Emit[K2, V2](e.emit)
		p := &processContext{c: c, op: e.op, handles: n.stores}
		for _, h := range n.stores {
			p.stores = append(p.stores, h.instantiate(c, e.op))
		}
		return step[K, V](func(r *record.Record[K, V]) error {
			e.begin(r.Timestamp, r.Headers, r.Identity)
			p.live, p.broken = true, nil
			c.user = e.op
			err := fn(Context{p}, *r, emit)
			c.user = nil
			p.live = false
			if p.broken != nil {
				e.live = false
				return p.broken
			}
			return e.end(err)
		})
	}
	return &Stream[K2, V2]{b: b, from: n, keys: keep[K, K2](s.keys), values: keep[V, V2](s.values), rekeyed: s.rekeyedBy(n)}
}
