package topology

import (
	"fmt"
	"slices"

	"github.com/streamd/streamd/record"
)

// JoinTables is the table of the keys that both tables have. Each change of either of them makes a change of it: a new value, or,
// when one of the two rows goes, the deletion of the result. Changes that change nothing here are dropped, counted as
// filtered. (Kafka Streams: KTable.join.)
//
// The changes are children of the record that made them: its time and headers, an ID of its own. The result is not stored
// but looked up through both tables, so that fn may be called more than once for a row; it must always give the
// same answer. What the tables must have in common says JoinTable. Options: OnError.
func JoinTables[K, L, R, V any](left *KTable[K, L], right *KTable[K, R], name string, fn func(key K, left L, right R) (V, error), opts ...JoinOption) *KTable[K, V] {
	j := &tableJoin[K, L, R, V]{left: left, right: right, fn: func(k K, l *L, r *R) (V, error) { return fn(k, *l, *r) }}
	return j.add(name, fn != nil, opts)
}

// LeftJoinTables is the table of the keys that the left table has; right is nil where the right one has no row.
// (Kafka Streams: KTable.leftJoin.)
func LeftJoinTables[K, L, R, V any](left *KTable[K, L], right *KTable[K, R], name string, fn func(key K, left L, right *R) (V, error), opts ...JoinOption) *KTable[K, V] {
	j := &tableJoin[K, L, R, V]{left: left, right: right, leftAlone: true, fn: func(k K, l *L, r *R) (V, error) { return fn(k, *l, r) }}
	return j.add(name, fn != nil, opts)
}

// OuterJoinTables is the table of the keys that any of the two tables has; what the other one lacks is nil.
// (Kafka Streams: KTable.outerJoin.)
func OuterJoinTables[K, L, R, V any](left *KTable[K, L], right *KTable[K, R], name string, fn func(key K, left *L, right *R) (V, error), opts ...JoinOption) *KTable[K, V] {
	j := &tableJoin[K, L, R, V]{left: left, right: right, leftAlone: true, rightAlone: true, fn: fn}
	return j.add(name, fn != nil, opts)
}

// tableJoin describes a join of two tables.
type tableJoin[K, L, R, V any] struct {
	left  *KTable[K, L]
	right *KTable[K, R]
	fn    func(K, *L, *R) (V, error) // nil for what is not there
	// leftAlone and rightAlone say which rows have a result without the other one.
	leftAlone, rightAlone bool
}

// exists says whether there is a result for what the two sides have.
func (j *tableJoin[K, L, R, V]) exists(left, right bool) bool {
	return left && right || left && j.leftAlone || right && j.rightAlone
}

// add adds the operators: one for the changes of each side, and one that hands on what comes of them, as Kafka Streams
// does it (KTABLE-JOINTHIS, KTABLE-JOINOTHER, KTABLE-MERGE).
func (j *tableJoin[K, L, R, V]) add(name string, usable bool, opts []JoinOption) *KTable[K, V] {
	b := j.left.b
	o := collect(opts)
	name = b.stateName(kindJoin, name)
	left := &node{kind: kindJoin, name: name + "-left", opts: o, above: []*node{j.left.from}}
	right := &node{kind: kindJoin, name: name + "-right", opts: o, above: []*node{j.right.from}}
	n := &node{kind: kindJoin, name: name, opts: o, above: []*node{left, right}, sides: []*node{j.left.from, j.right.from}}
	b.add(left, j.left)
	b.add(right, j.right)
	b.add(n, nodeOutput{b, left}, nodeOutput{b, right})
	b.require(usable, n, "function", "the function is nil")
	b.require(o.onLate == ActionDefault, n, "option", "OnLate has a meaning for joins of two streams only")
	for _, x := range j.left.owners {
		// Such a join would see the other side's new row before that side's change: a deletion of both would be none of either.
		b.require(!slices.Contains(j.right.owners, x), n, "join", fmt.Sprintf("both tables are made of table %q: what one row has needs no join, use MapTableValues", x.name))
	}
	lookInto(left, j.right)
	lookInto(right, j.left)
	n.instantiate = func(c *instance, n *node) any {
		return &tableJoiner[K, L, R, V]{
			tableJoin: j, c: c, op: c.operator(n), filtered: c.counter(CounterFiltered, n), wantsOld: n.wantsOld,
			forward: downstream[K, change[V]](c, n, 0),
		}
	}
	left.instantiate = func(c *instance, side *node) any {
		x, op, get := c.make(n).(*tableJoiner[K, L, R, V]), c.operator(side), j.right.look(c)
		return step[K, change[L]](func(r *record.Record[K, change[L]]) error {
			*op.in++
			other, ok, err := get(r.Key)
			if err != nil {
				return err
			}
			was, is := row[L]{r.Value.old, r.Value.had}, row[L]{r.Value.new, r.Value.has}
			x.out.Timestamp, x.out.Headers, x.out.Identity = r.Timestamp, r.Headers, r.Identity.Child(op.hash, 0)
			*op.out++
			return x.handle(r.Key, was, is, row[R]{other, ok}, row[R]{other, ok})
		})
	}
	right.instantiate = func(c *instance, side *node) any {
		x, op, get := c.make(n).(*tableJoiner[K, L, R, V]), c.operator(side), j.left.look(c)
		return step[K, change[R]](func(r *record.Record[K, change[R]]) error {
			*op.in++
			other, ok, err := get(r.Key)
			if err != nil {
				return err
			}
			was, is := row[R]{r.Value.old, r.Value.had}, row[R]{r.Value.new, r.Value.has}
			x.out.Timestamp, x.out.Headers, x.out.Identity = r.Timestamp, r.Headers, r.Identity.Child(op.hash, 0)
			*op.out++
			return x.handle(r.Key, row[L]{other, ok}, row[L]{other, ok}, was, is)
		})
	}
	owners := slices.Concat(j.left.owners, j.right.owners)
	return &KTable[K, V]{b: b, from: n, keys: j.left.keys, owners: owners, look: j.look(n)}
}

// look reads the result through both tables.
func (j *tableJoin[K, L, R, V]) look(n *node) func(c *instance) lookup[K, V] {
	return func(c *instance) lookup[K, V] {
		op, left, right := c.operator(n), j.left.look(c), j.right.look(c)
		return func(k K) (v V, ok bool, err error) {
			l, hasLeft, err := left(k)
			if err != nil {
				return v, false, err
			}
			r, hasRight, err := right(k)
			if err != nil || !j.exists(hasLeft, hasRight) {
				return v, false, err
			}
			v, err = j.result(c, op, k, row[L]{l, hasLeft}, row[R]{r, hasRight})
			return v, err == nil, err
		}
	}
}

// row is what a table has for a key.
type row[T any] struct {
	value T
	ok    bool
}

// pointer is nil for no row.
func (r *row[T]) pointer() *T {
	if r.ok {
		return &r.value
	}
	return nil
}

func (j *tableJoin[K, L, R, V]) result(c *instance, op *operator, k K, l row[L], r row[R]) (V, error) {
	c.user = op
	v, err := j.fn(k, l.pointer(), r.pointer())
	c.user = nil
	if err != nil {
		return v, op.fail(err)
	}
	return v, nil
}

// tableJoiner is a join of two tables in one task.
type tableJoiner[K, L, R, V any] struct {
	*tableJoin[K, L, R, V]
	c        *instance
	op       *operator
	filtered *uint64
	wantsOld bool
	forward  step[K, change[V]]
	out      record.Record[K, change[V]] // time, headers and identity are those of the change in hand
}

// handle hands on what a change makes of the result. Of the side that did not change, old and new are the same.
func (x *tableJoiner[K, L, R, V]) handle(k K, oldLeft, newLeft row[L], oldRight, newRight row[R]) (err error) {
	*x.op.in++
	c := change[V]{had: x.exists(oldLeft.ok, oldRight.ok), has: x.exists(newLeft.ok, newRight.ok)}
	if !c.had && !c.has {
		*x.filtered++
		return nil
	}
	if c.had && x.wantsOld {
		if c.old, err = x.result(x.c, x.op, k, oldLeft, oldRight); err != nil {
			return err
		}
	}
	if c.has {
		if c.new, err = x.result(x.c, x.op, k, newLeft, newRight); err != nil {
			return err
		}
	}
	x.out.Key, x.out.Value = k, c
	*x.op.out++
	return x.forward(&x.out)
}

// nodeOutput is the output of an operator for another one that is added with it.
type nodeOutput struct {
	b *Builder
	n *node
}

func (o nodeOutput) origin() origin { return origin{b: o.b, from: o.n, policy: o.n.opts.policy} }
