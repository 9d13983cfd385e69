package topology

import (
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/record"
)

// Filter passes on the records for which fn returns true. They keep their identity. Options: Name,
// OnError.
func Filter[K, V any](s *Stream[K, V], fn func(record.Record[K, V]) (bool, error), opts ...StepOption) *Stream[K, V] {
	n := newStep(s, kindFilter, fn != nil, opts)
	n.instantiate = func(c *instance, n *node) any {
		op, dropped, forward := c.operator(n), c.counter(CounterFiltered, n), downstream[K, V](c, n, 0)
		return step[K, V](func(r *record.Record[K, V]) error {
			*op.in++
			c.user = op
			pass, err := fn(*r)
			c.user = nil
			if err != nil {
				return op.fail(err)
			}
			if !pass {
				*dropped++
				return nil
			}
			*op.out++
			return forward(r)
		})
	}
	return s.after(n)
}

// Map makes one record with another key and value of each record. The result is a child of the input:
// same time and headers, an ID of its own. Options: Name, OnError, PreserveKey.
//
// Since the key may have changed, Aggregate needs a KeyBy first. Use MapValues where the key stays.
func Map[K, V, K2, V2 any](s *Stream[K, V], fn func(record.Record[K, V]) (K2, V2, error), opts ...StepOption) *Stream[K2, V2] {
	n := newStep(s, kindMap, fn != nil, opts)
	n.instantiate = func(c *instance, n *node) any {
		op, forward, out := c.operator(n), downstream[K2, V2](c, n, 0), new(record.Record[K2, V2])
		return step[K, V](func(r *record.Record[K, V]) (err error) {
			*op.in++
			c.user = op
			out.Key, out.Value, err = fn(*r)
			c.user = nil
			if err != nil {
				return op.fail(err)
			}
			out.Timestamp, out.Headers, out.Identity = r.Timestamp, r.Headers, r.Identity.Child(op.hash, 0)
			*op.out++
			return forward(out)
		})
	}
	return &Stream[K2, V2]{b: s.b, from: n, keys: keep[K, K2](s.keys), values: keep[V, V2](s.values), rekeyed: s.rekeyedBy(n)}
}

// MapValues makes one record with the same key and another value of each record. The result is a child
// of the input: same time and headers, an ID of its own. Options: Name, OnError.
func MapValues[K, V, V2 any](s *Stream[K, V], fn func(record.Record[K, V]) (V2, error), opts ...StepOption) *Stream[K, V2] {
	n := newStep(s, kindMapValues, fn != nil, opts)
	n.instantiate = func(c *instance, n *node) any {
		op, forward, out := c.operator(n), downstream[K, V2](c, n, 0), new(record.Record[K, V2])
		return step[K, V](func(r *record.Record[K, V]) (err error) {
			*op.in++
			c.user = op
			out.Value, err = fn(*r)
			c.user = nil
			if err != nil {
				return op.fail(err)
			}
			out.Key, out.Timestamp, out.Headers, out.Identity = r.Key, r.Timestamp, r.Headers, r.Identity.Child(op.hash, 0)
			*op.out++
			return forward(out)
		})
	}
	return &Stream[K, V2]{b: s.b, from: n, keys: s.keys, values: keep[V, V2](s.values), rekeyed: s.rekeyed}
}

// FlatMap makes any number of records of each record, in the order of the calls to emit. They are
// children of the input, told apart by that order. Options: Name, OnError, PreserveKey.
func FlatMap[K, V, K2, V2 any](s *Stream[K, V], fn func(r record.Record[K, V], emit Emit[K2, V2]) error, opts ...StepOption) *Stream[K2, V2] {
	n := newStep(s, kindFlatMap, fn != nil, opts)
	n.instantiate = func(c *instance, n *node) any {
		e := newEmitter(c, n, downstream[K2, V2](c, n, 0))
		emit := Emit[K2, V2](e.emit)
		return step[K, V](func(r *record.Record[K, V]) error {
			e.begin(r.Timestamp, r.Headers, r.Identity)
			c.user = e.op
			err := fn(*r, emit)
			c.user = nil
			return e.end(err)
		})
	}
	return &Stream[K2, V2]{b: s.b, from: n, keys: keep[K, K2](s.keys), values: keep[V, V2](s.values), rekeyed: s.rekeyedBy(n)}
}

// Branch splits a stream: each record goes to the first stream whose case returns true. It returns
// one stream for each case and one more, the last, for the records of no case; if that one is not
// used they are dropped and counted. Records keep their identity. The cases are asked in order.
func Branch[K, V any](s *Stream[K, V], name string, cases ...func(record.Record[K, V]) (bool, error)) []*Stream[K, V] {
	n := &node{kind: kindBranch, name: s.b.stateName(kindBranch, name), ports: len(cases) + 1, freePorts: len(cases)}
	s.b.add(n, s)
	s.b.require(len(cases) > 0, n, "empty", "has no case")
	for i, fn := range cases {
		s.b.require(fn != nil, n, "function", fmt.Sprintf("case %d is nil", i))
	}
	n.instantiate = func(c *instance, n *node) any {
		op, noMatch := c.operator(n), c.counter(CounterNoMatch, n)
		forward := make([]step[K, V], n.ports)
		for i := range forward {
			forward[i] = downstream[K, V](c, n, i)
		}
		restUsed := false
		for _, e := range n.outputs {
			restUsed = restUsed || e.port == len(cases)
		}
		return step[K, V](func(r *record.Record[K, V]) error {
			*op.in++
			for i, fn := range cases {
				c.user = op
				match, err := fn(*r)
				c.user = nil
				if err != nil {
					return op.fail(err)
				}
				if match {
					*op.out++
					return forward[i](r)
				}
			}
			if !restUsed {
				*noMatch++
				return nil
			}
			*op.out++
			return forward[len(cases)](r)
		})
	}
	out := make([]*Stream[K, V], n.ports)
	for i := range out {
		out[i] = s.after(n)
		out[i].port = i
	}
	return out
}

// Merge makes one stream of several. Records keep their identity. Between records of different
// streams there is no order but the one in which the task took them: by timestamp among those that
// are there.
//
// Streams of different topics that are merged run in one sub-topology, whose topics must have the
// same number of partitions.
func Merge[K, V any](name string, first *Stream[K, V], others ...*Stream[K, V]) *Stream[K, V] {
	n := &node{kind: kindMerge, name: first.b.stateName(kindMerge, name)}
	out := first.after(n)
	inputs := []upstream{first}
	for _, s := range others {
		inputs = append(inputs, s)
		out.unchanged = out.unchanged && s.unchanged
		if out.rekeyed == nil {
			out.rekeyed = s.rekeyed
		}
		if out.keys == nil {
			out.keys = s.keys
		}
		if out.values == nil {
			out.values = s.values
		}
	}
	first.b.add(n, inputs...)
	n.instantiate = func(c *instance, n *node) any {
		op, forward := c.operator(n), downstream[K, V](c, n, 0)
		return step[K, V](func(r *record.Record[K, V]) error {
			*op.in++
			*op.out++
			return forward(r)
		})
	}
	return out
}

// newStep adds a stateless operator.
func newStep[K, V any](s *Stream[K, V], kind string, hasFunction bool, opts []StepOption) *node {
	n := &node{kind: kind, opts: collect(opts)}
	n.name = n.opts.name
	s.b.add(n, s)
	s.b.require(hasFunction, n, "function", "the function is nil")
	return n
}

// after is the stream of an operator that passes the records on as they are.
func (s *Stream[K, V]) after(n *node) *Stream[K, V] {
	t := *s
	t.from, t.port, t.policy = n, 0, PolicyDefault
	return &t
}

// rekeyedBy is what rekeyed becomes behind an operator that may change keys.
func (s *Stream[K, V]) rekeyedBy(n *node) *node {
	if n.opts.preserveKey || s.rekeyed != nil {
		return s.rekeyed
	}
	return n
}

// Emit passes a record on. Key and Value count; the Identity is always the operator's to give. A
// zero Timestamp is the input's, nil Headers are the input's (an empty slice: none). It may be
// called only while the function that it was given to runs. If an operator downstream fails, so
// does the record in hand, and further calls do nothing.
type Emit[K, V any] func(out record.Record[K, V])

// emitter is behind an Emit: it knows the record in hand and counts the outputs.
type emitter[K, V any] struct {
	c       *instance
	op      *operator
	forward step[K, V]

	timestamp time.Time
	headers   record.Headers
	identity  record.Identity
	ordinal   uint32 // of the next output
	live      bool   // the function is running
	stray     bool   // emit was called when it was not
	err       error  // the first of an operator downstream
	out       record.Record[K, V]
}

func newEmitter[K, V any](c *instance, n *node, forward step[K, V]) *emitter[K, V] {
	return &emitter[K, V]{c: c, op: c.operator(n), forward: forward}
}

// begin is called before the user's function with the record in hand.
func (e *emitter[K, V]) begin(t time.Time, h record.Headers, id record.Identity) {
	*e.op.in++
	e.open(t, h, id)
}

// open is begin for what is no record.
func (e *emitter[K, V]) open(t time.Time, h record.Headers, id record.Identity) {
	e.timestamp, e.headers, e.identity = t, h, id
	e.ordinal, e.live, e.err = 0, true, nil
}

func (e *emitter[K, V]) emit(out record.Record[K, V]) {
	if !e.live {
		e.stray = true
		return
	}
	if e.err != nil {
		return
	}
	e.out = out
	e.out.Identity = e.identity.Child(e.op.hash, e.ordinal)
	e.ordinal++
	if out.Timestamp.IsZero() {
		e.out.Timestamp = e.timestamp
	}
	if out.Headers == nil {
		e.out.Headers = e.headers
	}
	*e.op.out++
	e.c.user = nil // what follows is another operator's
	e.err = e.forward(&e.out)
	e.c.user = e.op
}

var errStrayEmit = errors.New("emit was called when its function was not running")

// end is called after the user's function with its error. The first failure counts: one downstream
// came before whatever the function made of it.
func (e *emitter[K, V]) end(err error) error {
	e.live = false
	switch {
	case e.err != nil:
		return e.err
	case err != nil:
		if _, named := err.(*OperatorError); named {
			return err // a store's, which knows the stage
		}
		return e.op.fail(err)
	case e.stray:
		return e.op.fail(errStrayEmit)
	}
	return nil
}
