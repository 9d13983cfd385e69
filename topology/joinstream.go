package topology

import (
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/window"
)

// Join makes one record of each pair of records, one of each stream, that have the same key and are near enough in event time:
//
//	shown := topology.Join(impressions, clicks, "clicked", topology.JoinWithin(10*time.Minute).Before(0), fn)
//
// A pair is joined as soon as the second one of it comes, whichever that is. A result has the later time of the two, no
// headers, and an ID made of both IDs: it does not depend on which record came first. (Kafka Streams: KStream.join.)
//
// Both streams must be partitioned by their keys, as JoinTable says. Records wait in a state store of the join's name
// until no match can come any more. A record with a null key or a null value is
// dropped and counted; one that is later than the grace goes by OnLate. The serdes of keys and values must be known
// (WithKeys, WithValues). Options: OnError, OnLate.
func Join[K, L, R, V any](left *Stream[K, L], right *Stream[K, R], name string, w JoinWindows, fn func(key K, left L, right R) (V, error), opts ...JoinOption) *Stream[K, V] {
	j := &streamJoin[K, L, R, V]{windows: w, fn: func(k K, l *L, r *R) (V, error) { return fn(k, *l, *r) }}
	return j.add(left, right, name, fn != nil, opts)
}

// LeftJoin is Join that makes a record also of each left record that has found no match when none can come any more: then right is nil.
// That is when the watermark has passed its time, After and the grace, or, if the inputs stop, when that much time has
// gone by (see WithIdleness). A left record has either results with matches or one without, never both. One without has the
// left record's time, and an ID made of the left record's. A left record with a null key never has a match: its result
// comes at once. (Kafka Streams: KStream.leftJoin.)
func LeftJoin[K, L, R, V any](left *Stream[K, L], right *Stream[K, R], name string, w JoinWindows, fn func(key K, left L, right *R) (V, error), opts ...JoinOption) *Stream[K, V] {
	j := &streamJoin[K, L, R, V]{windows: w, leftAlone: true, fn: func(k K, l *L, r *R) (V, error) { return fn(k, *l, r) }}
	return j.add(left, right, name, fn != nil, opts)
}

// OuterJoin is LeftJoin for both sides: what has no match comes with the other one nil. For a right record the time that
// it waits is Before and the grace. (Kafka Streams: KStream.outerJoin.)
func OuterJoin[K, L, R, V any](left *Stream[K, L], right *Stream[K, R], name string, w JoinWindows, fn func(key K, left *L, right *R) (V, error), opts ...JoinOption) *Stream[K, V] {
	j := &streamJoin[K, L, R, V]{windows: w, leftAlone: true, rightAlone: true, fn: fn}
	return j.add(left, right, name, fn != nil, opts)
}

// streamJoin describes a join of two streams.
type streamJoin[K, L, R, V any] struct {
	windows JoinWindows
	fn      func(K, *L, *R) (V, error) // nil for what has no match
	// leftAlone and rightAlone say which records have a result without a match.
	leftAlone, rightAlone bool
}

// add adds the operators: one for each side, and one that keeps what waits and hands on the results, as Kafka Streams does it
// (KSTREAM-JOINTHIS, KSTREAM-JOINOTHER, KSTREAM-MERGE).
func (j *streamJoin[K, L, R, V]) add(left *Stream[K, L], right *Stream[K, R], name string, usable bool, opts []JoinOption) *Stream[K, V] {
	b := left.b
	o := collect(opts)
	name = b.stateName(kindJoin, name)
	store := KeyValue(name, left.keys, serde.Bytes())
	l := &node{kind: kindJoin, name: name + "-left", opts: o, stores: []StateStore{store}}
	r := &node{kind: kindJoin, name: name + "-right", opts: o, stores: []StateStore{store}}
	n := &node{kind: kindJoin, name: name, opts: o, sides: []*node{left.from, right.from}}
	b.add(l, left)
	b.add(r, right)
	b.add(n, nodeOutput{b, l}, nodeOutput{b, r})
	b.require(usable, n, "function", "the function is nil")
	for _, err := range flatten(j.windows.Validate()) {
		b.problem(n, "window", err.Error())
	}
	b.allow(n, "OnLate", o.onLate, Drop, Stop, DeadLetter)
	b.require(left.keys != nil, l, "serde", "has no serde for the keys, which are the store's: give it with WithKeys")
	b.require(left.values != nil, l, "serde", "has no serde for the values, which wait in a store: give it with WithValues")
	b.require(right.values != nil, r, "serde", "has no serde for the values, which wait in a store: give it with WithValues")
	b.requireKeyed(l, left.rekeyed)
	b.requireKeyed(r, right.rekeyed)
	n.byTime = true
	before := n.lag
	grace, reachLeft, reachRight := j.windows.GracePeriod(), j.windows.after, j.windows.before
	if j.leftAlone {
		n.lag = max(n.lag, before+reachLeft+grace+time.Millisecond)
	}
	if j.rightAlone {
		n.lag = max(n.lag, before+reachRight+grace+time.Millisecond)
	}
	n.instantiate = func(c *instance, n *node) any {
		op := c.operator(n)
		cells := store.in(c, op)
		x := &streamJoiner[K, L, R, V]{streamJoin: j, c: c, dueList: newDueList(op, cells.store, before), cells: cells, keys: left.keys}
		x.dueIndex = dueIndex{of: &x.dueList, list: &x.joinList, tooLong: errJoinTooLong}
		x.onLate, x.late = o.onLate, c.counter(CounterLate, n)
		millis := func(d time.Duration) window.Millis { return window.Millis(0).Add(d) }
		x.joinState.grace = millis(grace)
		x.joinState.left = joinReach{back: millis(reachRight), reach: millis(reachLeft), alone: j.leftAlone}
		x.joinState.right = joinReach{back: millis(reachLeft), reach: millis(reachRight), alone: j.rightAlone}
		x.left, x.right = newJoinSide(c, l, left.values, j.leftAlone), newJoinSide(c, r, right.values, j.rightAlone)
		c.addTimed(n, x)
		x.forward = downstream[K, V](c, n, 0)
		return x
	}
	l.instantiate = func(c *instance, _ *node) any {
		x := c.make(n).(*streamJoiner[K, L, R, V])
		return step[K, L](func(r *record.Record[K, L]) error {
			return joinRecord(x, r, &x.left, &x.right, false, func(own *L, other *R) (V, error) { return j.fn(r.Key, own, other) })
		})
	}
	r.instantiate = func(c *instance, _ *node) any {
		x := c.make(n).(*streamJoiner[K, L, R, V])
		return step[K, R](func(r *record.Record[K, R]) error {
			return joinRecord(x, r, &x.right, &x.left, true, func(own *R, other *L) (V, error) { return j.fn(r.Key, other, own) })
		})
	}
	return &Stream[K, V]{b: b, from: n, keys: left.keys, rekeyed: left.rekeyed}
}

// joinSide is one side of a join in one task.
type joinSide[T any] struct {
	op                 *operator
	encode, decode     *operator
	values             serde.Serde[T]
	nullKey, nullValue *uint64
	alone              bool // a record without a match has a result
}

func newJoinSide[T any](c *instance, n *node, values serde.Serde[T], alone bool) joinSide[T] {
	op := c.operator(n)
	s := joinSide[T]{op: op, encode: op.during(StageEncode), decode: op.during(StageDecode), values: values, alone: alone}
	s.decode.policy = PolicyStop // as that of cells
	s.nullKey, s.nullValue = c.counter(CounterNullKey, n), c.counter(CounterNullValue, n)
	return s
}

// value decodes what an entry has, from a copy: what is decoded may share its memory.
func (s *joinSide[T]) value(c *instance, b []byte) (T, error) {
	c.user = s.decode
	v, err := s.values.Decode(append(make([]byte, 0, len(b)), b...))
	c.user = nil
	if err != nil {
		return v, s.decode.fail(fmt.Errorf("state: %w", err))
	}
	return v, nil
}

// streamJoiner is a join of two streams in one task. What waits of a key stands together, that of both sides: a match is noted
// where it is found.
type streamJoiner[K, L, R, V any] struct {
	*streamJoin[K, L, R, V]
	dueList
	joinState
	c       *instance
	cells   *cells[K, []byte]
	keys    serde.Serde[K]
	left    joinSide[L]
	right   joinSide[R]
	onLate  Action
	late    *uint64
	forward step[K, V]

	own []byte // ID and value of the record in hand
	out record.Record[K, V]
}

var errJoinTooLong = errors.New("too many records of this key wait for a match: it has too many for windows of this length")

// joinRecord does what a record of one side does. isRight says which one it is; result calls the user's function with it and a match, nil: there
// is none.
func joinRecord[K, O, T, L, R, V any](x *streamJoiner[K, L, R, V], r *record.Record[K, O], own *joinSide[O], other *joinSide[T], isRight bool, result func(*O, *T) (V, error)) error {
	*own.op.in++
	at, err := momentOf(r.Timestamp)
	if err != nil {
		return own.op.fail(err)
	}
	if x.isLate(at) {
		return x.tooLate(own.op, at)
	}
	e, err := waiting(x, r, own, at, isRight)
	if err != nil {
		return err
	}
	if e.value == nil {
		*own.nullValue++
		return nil
	}
	key, err := x.cells.keyBehind(1, r.Key)
	if err != nil {
		return err
	}
	if key == nil {
		if !own.alone {
			*own.nullKey++
			return nil
		}
		*own.op.out++
		return x.emit(r.Key, at, r.Identity.Child(own.op.hash, 0), func() (V, error) { return result(&r.Value, nil) })
	}
	x.take(key[1:])
	if err := x.read(); err != nil {
		return err
	}
	matches, err := x.match(at, isRight)
	if err != nil {
		return err
	}
	e.matched = len(matches) > 0
	for i := range matches {
		m := &matches[i]
		v, err := other.value(x.c, m.value)
		if err != nil {
			return err
		}
		left, right := e.id, m.id
		if isRight {
			left, right = right, left
		}
		*own.op.out++
		if err := x.emit(r.Key, max(at, m.at), x.c.pairIdentity(x.op, left, right), func() (V, error) { return result(&r.Value, &v) }); err != nil {
			return err
		}
	}
	return x.enter(e)
}

// waiting is a record as an entry. The value is nil if it is null.
func waiting[K, O, L, R, V any](x *streamJoiner[K, L, R, V], r *record.Record[K, O], own *joinSide[O], at window.Millis, isRight bool) (joinEntry, error) {
	e := joinEntry{at: at, right: isRight}
	b := r.Identity.AppendID(x.own[:0])
	n := len(b)
	x.c.user = own.encode
	v, err := own.values.Append(b, r.Value)
	x.c.user = nil
	switch {
	case err != nil:
		return e, own.encode.fail(fmt.Errorf("state: %w", err))
	case v == nil:
		return e, nil
	case len(v) < n:
		return e, own.encode.fail(fmt.Errorf("state: %w", errNotAppended))
	}
	x.own = v
	e.id, e.value = v[:n:n], v[n:len(v):len(v)]
	return e, nil
}

// isLate says whether a record is later than the grace: its match may be gone.
func (x *streamJoiner[K, L, R, V]) isLate(at window.Millis) bool { return at+x.grace < x.w }

func (x *streamJoiner[K, L, R, V]) tooLate(op *operator, at window.Millis) error {
	if x.onLate == ActionDefault || x.onLate == Drop {
		*x.late++
		return nil
	}
	return op.failAs(x.onLate.policy(op.policy), fmt.Errorf("%w (record of %s, grace %s, the watermark is %s)", ErrLate,
		at.Time().Format(time.RFC3339Nano), x.windows.GracePeriod(), x.w.Time().Format(time.RFC3339Nano)))
}

// emit hands on a result.
func (x *streamJoiner[K, L, R, V]) emit(k K, at window.Millis, id record.Identity, result func() (V, error)) (err error) {
	*x.op.in++
	x.c.user = x.op
	x.out.Value, err = result()
	x.c.user = nil
	if err != nil {
		return x.op.fail(err)
	}
	x.out.Key, x.out.Timestamp, x.out.Headers, x.out.Identity = k, at.Time(), nil, id
	*x.op.out++
	return x.forward(&x.out)
}

// Fire implements Timed: it lets go of what is closed of one key, up to the second record of which it is to be said that it
// had no match, and says so of the first.
func (x *streamJoiner[K, L, R, V]) Fire(quiet bool) (did bool, err error) {
	defer x.c.rescue(&err)
	keyBytes, err := x.first()
	if err != nil || keyBytes == nil {
		return false, err
	}
	key, err := decodeState(x.cells, x.keys, false, keyBytes) // a copy of our own, which nobody changes
	if err != nil {
		return false, err
	}
	alone, found, more, err := x.close()
	if err != nil {
		return false, err
	}
	if found {
		x.hold(alone.value)
		if !quiet {
			if err := x.unmatched(key, &alone); err != nil {
				return false, err
			}
		}
	}
	if err := x.settle(more, x.earliest()); err != nil {
		return false, err
	}
	return true, nil
}

// unmatched hands on the result of a record without a match.
func (x *streamJoiner[K, L, R, V]) unmatched(k K, e *joinEntry) error {
	if e.right {
		v, err := x.right.value(x.c, e.value)
		if err != nil {
			return err
		}
		*x.right.op.out++
		return x.emit(k, e.at, x.c.aloneIdentity(x.right.op, e.id), func() (V, error) { return x.fn(k, nil, &v) })
	}
	v, err := x.left.value(x.c, e.value)
	if err != nil {
		return err
	}
	*x.left.op.out++
	return x.emit(k, e.at, x.c.aloneIdentity(x.left.op, e.id), func() (V, error) { return x.fn(k, &v, nil) })
}
