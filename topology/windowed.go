package topology

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/window"
)

// windowed is what the aggregates of all kinds of windows have in common, in one task.
type windowed[K, V, G, A, R any] struct {
	dueList
	c       *instance
	windows window.Windows
	agg     aggregator[K, V, A, R]
	cells   *cells[K, A]
	keys    serde.Serde[K]
	group   func(K, window.Span) G
	forward step[G, R]
	onClose bool

	late   step[K, V] // nil: the policy decides
	onLate Action

	nullKey, dropped, filtered *uint64

	out record.Record[G, R]
}

// windowTimer names the timer in the IDs of closed windows.
const windowTimer = "close"

func newWindowed[K, V, G, A, R any](c *instance, n *node, store *KeyValueStore[K, A], a aggregator[K, V, A, R], g grouping[K, V, G], lag time.Duration) *windowed[K, V, G, A, R] {
	op := c.operator(n)
	cells := store.in(c, op)
	return &windowed[K, V, G, A, R]{
		dueList: newDueList(op, cells.store, lag), c: c, windows: g.windowed.windows, agg: a, cells: cells, keys: g.s.keys, group: g.group,
		onClose: n.opts.emit == emitClose, onLate: n.opts.onLate, nullKey: c.counter(CounterNullKey, n), dropped: c.counter(CounterLate, n), filtered: c.counter(CounterFiltered, n),
	}
}

// connect finds what follows. It comes after addTimed: the order is of no importance to it.
func (s *windowed[K, V, G, A, R]) connect(c *instance, n *node) {
	s.forward = downstream[G, R](c, n, 0)
	if n.uses(latePort) {
		s.late = downstream[K, V](c, n, latePort)
	}
}

// closed says whether a window with that end is closed.
func (s *windowed[K, V, G, A, R]) closed(end window.Millis) bool {
	return s.windows.ClosesAt(end) <= s.w
}

// begin finds the moment and the key of a record; prefix is the room before the key. A nil key: the record is dropped.
func (s *windowed[K, V, G, A, R]) begin(r *record.Record[K, V], prefix int) (at window.Millis, key []byte, err error) {
	*s.op.in++
	if at, err = momentOf(r.Timestamp); err != nil {
		return 0, nil, s.op.fail(err)
	}
	key, err = s.cells.keyBehind(prefix, r.Key)
	if err == nil && key == nil {
		*s.nullKey++
	}
	return at, key, err
}

// tooLate does with a late record what was asked for. end is that of the last window it belonged to.
func (s *windowed[K, V, G, A, R]) tooLate(r *record.Record[K, V], end window.Millis) error {
	if s.late != nil {
		*s.op.out++
		return s.late(r)
	}
	if s.onLate == ActionDefault || s.onLate == Drop {
		*s.dropped++
		return nil
	}
	return s.op.failAs(s.onLate.policy(s.op.policy), fmt.Errorf("%w (record of %s; its window ended at %s, was closed at %s, the watermark is %s)", ErrLate,
		r.Timestamp.UTC().Format(time.RFC3339Nano), end.Time().Format(time.RFC3339Nano), s.windows.ClosesAt(end).Time().Format(time.RFC3339Nano), s.w.Time().Format(time.RFC3339Nano)))
}

// add puts the record to a value.
func (s *windowed[K, V, G, A, R]) add(old A, first bool, r *record.Record[K, V]) (next A, changed bool, err error) {
	s.c.user = s.op
	next, changed, err = s.agg.add(old, first, r)
	s.c.user = nil
	if err != nil {
		err = s.op.fail(err)
	}
	return next, changed, err
}

// merge makes one of two values, the earlier one first.
func (s *windowed[K, V, G, A, R]) merge(a, b A) (A, error) {
	s.c.user = s.op
	m, err := s.agg.merge(a, b)
	s.c.user = nil
	if err != nil {
		err = s.op.fail(err)
	}
	return m, err
}

// update hands on the new result of a window, which the record changed.
func (s *windowed[K, V, G, A, R]) update(r *record.Record[K, V], span window.Span, a A, ordinal uint32) error {
	s.out.Timestamp, s.out.Headers, s.out.Identity = r.Timestamp, r.Headers, r.Identity.Child(s.op.hash, ordinal)
	return s.emit(r.Key, span, a)
}

// close hands on the result of a closed window.
func (s *windowed[K, V, G, A, R]) close(keyBytes []byte, span window.Span, a A) error {
	key, err := decodeState(s.cells, s.keys, false, keyBytes) // a copy of our own, which nobody changes
	if err != nil {
		return err
	}
	end := span.End.Time()
	s.out.Timestamp, s.out.Headers = end.Add(-time.Millisecond), nil
	s.out.Identity = s.c.timerIdentity(s.op, keyBytes, windowTimer, end, 0)
	return s.emit(key, span, a)
}

func (s *windowed[K, V, G, A, R]) emit(key K, span window.Span, a A) (err error) {
	s.c.user = s.op
	s.out.Value, err = s.agg.result(a)
	s.c.user = nil
	if err != nil {
		return s.op.fail(err)
	}
	s.out.Key = s.group(key, span)
	*s.op.out++
	return s.forward(&s.out)
}

// putTime writes a moment so that the order of the bytes is the order of time.
func putTime(dst []byte, m window.Millis) {
	binary.BigEndian.PutUint64(dst, uint64(m)^1<<63)
}

// getTime is the reverse.
func getTime(b []byte) window.Millis { return window.Millis(binary.BigEndian.Uint64(b) ^ 1<<63) }

// timeBytes is what a moment takes.
const timeBytes = 8
