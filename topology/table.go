package topology

import (
	"slices"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// KTable is a table: the newest value of each key, as it changes. A stream says what happened, a table what is. It is a
// description, as a Stream is; each task keeps the keys of its partition. (Kafka Streams: KTable.)
//
// A table is made by Table or ToTable, which keep it in a state store; FilterTable, MapTableValues and the joins of
// tables make others of it that are not stored but looked up through it.
type KTable[K, V any] struct {
	b      *Builder
	from   *node
	keys   serde.Serde[K]
	values serde.Serde[V] // nil: not known
	// owners are the operators in whose stores its content is.
	owners []*node
	// look makes the function by which another operator of the same task reads the table.
	look func(c *instance) lookup[K, V]
}

// lookup reads the value of a key as it is now; false: the table has none.
type lookup[K, V any] func(K) (V, bool, error)

// change is what happened to a key of a table. had and has say whether there was, and is, a value.
type change[V any] struct {
	// old is only known if somebody behind the table needs it (node.wantsOld).
	old, new V
	had, has bool
}

func (t *KTable[K, V]) origin() origin { return origin{b: t.b, from: t.from} }

// Table reads a topic as a table: a record replaces what its key had, one with a null value (a tombstone) deletes it. The
// topic should be compacted. The table is kept in a state store of the name given by Name, default: the topic's and
// "-table". Options: those of From; the functions of ID, Timestamp get a *V, nil for a tombstone. Name is the table's, its
// source is called as the topic.
//
// The order is that of the offsets: a late record replaces what is newer by its time. A record with a null key
// belongs to no row and is dropped, counted as null_key.
func Table[K, V any](b *Builder, topic string, keys serde.Serde[K], values serde.Serde[V], opts ...SourceOption) *KTable[K, V] {
	o := collect(opts)
	if o.name == "" {
		o.name = topic + "-table"
	}
	var nullable serde.Serde[*V]
	if values != nil {
		nullable = serde.Optional(values)
	}
	rows := From(b, topic, keys, nullable, append(slices.Clone(opts), Name(topic))...).WithPolicy(o.policy)
	return keepTable(rows, o.name, values, options{}, func(v *V) (row V, ok bool) {
		if v == nil {
			return row, false
		}
		return *v, true
	})
}

// ToTable takes a stream as the changes of a table: a record replaces what its key had, a value that values encodes as null
// deletes it. The table is kept in a state store of that name. Options: OnError.
//
// The stream must be partitioned by its key, see Aggregate.
func ToTable[K, V any](s *Stream[K, V], name string, values serde.Serde[V], opts ...TableOption) *KTable[K, V] {
	return keepTable(s, name, values, collect(opts), func(v V) (V, bool) { return v, true })
}

// keepTable adds the operator that keeps a table. row takes the value out of what a record has; false: it is none.
func keepTable[K, T, V any](s *Stream[K, T], name string, values serde.Serde[V], o options, row func(T) (V, bool)) *KTable[K, V] {
	b := s.b
	n := &node{kind: kindTable, name: b.stateName(kindTable, name), opts: o}
	store := KeyValue(n.name, s.keys, values)
	n.stores = []StateStore{store}
	b.add(n, s)
	b.require(values != nil, n, "serde", "the value's serde is nil")
	b.require(s.keys != nil, n, "serde", "has no serde for the keys, which are the store's: give it with WithKeys")
	b.requireKeyed(n, s.rekeyed)
	n.instantiate = func(c *instance, n *node) any {
		k := &tableKeeper[K, V]{op: c.operator(n), nullKey: c.counter(CounterNullKey, n), filtered: c.counter(CounterFiltered, n), wantsOld: n.wantsOld}
		k.cells, k.forward = store.in(c, k.op), downstream[K, change[V]](c, n, 0)
		return step[K, T](func(r *record.Record[K, T]) error {
			v, ok := row(r.Value)
			k.out.Key, k.out.Timestamp, k.out.Headers, k.out.Identity = r.Key, r.Timestamp, r.Headers, r.Identity
			return k.handle(v, ok)
		})
	}
	look := func(c *instance) lookup[K, V] {
		cells := store.in(c, c.operator(n))
		return func(k K) (v V, ok bool, err error) {
			key, err := cells.key(k)
			if err != nil || key == nil {
				return v, false, err
			}
			return cells.get(key)
		}
	}
	return &KTable[K, V]{b: b, from: n, keys: s.keys, values: values, owners: []*node{n}, look: look}
}

// tableKeeper keeps a table in one task.
type tableKeeper[K, V any] struct {
	op                *operator
	cells             *cells[K, V]
	nullKey, filtered *uint64
	wantsOld          bool
	forward           step[K, change[V]]
	out               record.Record[K, change[V]] // all but the value is that of the record in hand
}

// handle puts a row in its place; ok false: deletes it.
func (s *tableKeeper[K, V]) handle(row V, ok bool) error {
	*s.op.in++
	key, err := s.cells.key(s.out.Key)
	if err != nil {
		return err
	}
	if key == nil {
		*s.nullKey++
		return nil
	}
	c := change[V]{new: row}
	if s.wantsOld {
		c.old, c.had, err = s.cells.get(key)
	} else {
		c.had, err = s.cells.has(key)
	}
	if err != nil {
		return err
	}
	if ok {
		if c.has, err = s.cells.set(key, row); err != nil {
			return err
		}
	} else if c.had {
		if err := s.cells.delete(key); err != nil {
			return err
		}
	}
	if !c.had && !c.has { // it was not there, and is not
		*s.filtered++
		return nil
	}
	s.out.Value = c
	*s.op.out++
	return s.forward(&s.out)
}

// wantOld makes the tables before n tell the value before a change.
func (n *node) wantOld() {
	if n.wantsOld {
		return
	}
	n.wantsOld = true
	for _, t := range n.above {
		t.wantOld()
	}
}

// newTableStep adds an operator that keeps nothing behind a table.
func newTableStep[K, V any](t *KTable[K, V], kind string, hasFunction bool, opts []StepOption) *node {
	n := &node{kind: kind, opts: collect(opts), above: []*node{t.from}}
	n.name = n.opts.name
	t.b.add(n, t)
	t.b.require(hasFunction, n, "function", "the function is nil")
	return n
}

// FilterTable is the table of those rows for which fn returns true. A row that no longer passes is deleted from it.
// Changes keep their identity. fn may be called more than once for a row; it must always give the same answer. Options: Name,
// OnError.
func FilterTable[K, V any](t *KTable[K, V], fn func(key K, row V) (bool, error), opts ...StepOption) *KTable[K, V] {
	n := newTableStep(t, kindFilter, fn != nil, opts)
	t.from.wantOld()
	passes := func(c *instance, op *operator, k K, row V, ok bool) (bool, error) {
		if !ok {
			return false, nil
		}
		c.user = op
		ok, err := fn(k, row)
		c.user = nil
		if err != nil {
			return false, op.fail(err)
		}
		return ok, nil
	}
	n.instantiate = func(c *instance, n *node) any {
		op, dropped, forward, out := c.operator(n), c.counter(CounterFiltered, n), downstream[K, change[V]](c, n, 0), new(record.Record[K, change[V]])
		return step[K, change[V]](func(r *record.Record[K, change[V]]) (err error) {
			*op.in++
			*out = *r
			if out.Value.had, err = passes(c, op, r.Key, r.Value.old, r.Value.had); err != nil {
				return err
			}
			if out.Value.has, err = passes(c, op, r.Key, r.Value.new, r.Value.has); err != nil {
				return err
			}
			if !out.Value.had && !out.Value.has {
				*dropped++
				return nil
			}
			*op.out++
			return forward(out)
		})
	}
	look := func(c *instance) lookup[K, V] {
		op, get := c.operator(n), t.look(c)
		return func(k K) (V, bool, error) {
			row, ok, err := get(k)
			if err == nil {
				ok, err = passes(c, op, k, row, ok)
			}
			return row, ok, err
		}
	}
	return &KTable[K, V]{b: t.b, from: n, keys: t.keys, values: t.values, owners: t.owners, look: look}
}

// MapTableValues is the table with another value for each row. The changes are children of those before: an ID of their own. fn may be
// called more than once for a row; it must always give the same answer. Options: Name, OnError.
func MapTableValues[K, V, V2 any](t *KTable[K, V], fn func(key K, row V) (V2, error), opts ...StepOption) *KTable[K, V2] {
	n := newTableStep(t, kindMapValues, fn != nil, opts)
	mapped := func(c *instance, op *operator, k K, row V, ok bool) (v V2, err error) {
		if !ok {
			return v, nil
		}
		c.user = op
		v, err = fn(k, row)
		c.user = nil
		if err != nil {
			return v, op.fail(err)
		}
		return v, nil
	}
	n.instantiate = func(c *instance, n *node) any {
		op, forward, out := c.operator(n), downstream[K, change[V2]](c, n, 0), new(record.Record[K, change[V2]])
		return step[K, change[V]](func(r *record.Record[K, change[V]]) (err error) {
			*op.in++
			next := change[V2]{had: r.Value.had, has: r.Value.has}
			if next.old, err = mapped(c, op, r.Key, r.Value.old, r.Value.had && n.wantsOld); err != nil {
				return err
			}
			if next.new, err = mapped(c, op, r.Key, r.Value.new, r.Value.has); err != nil {
				return err
			}
			out.Key, out.Value, out.Timestamp, out.Headers, out.Identity = r.Key, next, r.Timestamp, r.Headers, r.Identity.Child(op.hash, 0)
			*op.out++
			return forward(out)
		})
	}
	look := func(c *instance) lookup[K, V2] {
		op, get := c.operator(n), t.look(c)
		return func(k K) (v V2, ok bool, err error) {
			row, ok, err := get(k)
			if err == nil {
				v, err = mapped(c, op, k, row, ok)
			}
			return v, ok, err
		}
	}
	return &KTable[K, V2]{b: t.b, from: n, keys: t.keys, values: keep[V, V2](t.values), owners: t.owners, look: look}
}

// ToStream is the stream of a table's changes: the new value of a row, nil if it was deleted. The records are the changes
// themselves, with their identity. Write them with serde.Optional, then a deleted row is a tombstone. Options: Name,
// OnError.
func ToStream[K, V any](t *KTable[K, V], opts ...StepOption) *Stream[K, *V] {
	n := newTableStep(t, kindToStream, true, opts)
	n.instantiate = func(c *instance, n *node) any {
		op, forward, out := c.operator(n), downstream[K, *V](c, n, 0), new(record.Record[K, *V])
		return step[K, change[V]](func(r *record.Record[K, change[V]]) error {
			*op.in++
			out.Value = nil
			if r.Value.has {
				row := r.Value.new
				out.Value = &row
			}
			out.Key, out.Timestamp, out.Headers, out.Identity = r.Key, r.Timestamp, r.Headers, r.Identity
			*op.out++
			return forward(out)
		})
	}
	out := &Stream[K, *V]{b: t.b, from: n, keys: t.keys}
	if t.values != nil {
		out.values = serde.Optional(t.values)
	}
	return out
}
