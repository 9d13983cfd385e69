package topology

import (
	"fmt"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/window"
)

// windowTable is an aggregate over tumbling or hopping windows in one task. The store has one key for each window
// and key: start ‖ key (docs/format.md). The windows of one start are neighbours, the oldest first: they leave from the
// low end, and what is still open is never looked at for that.
type windowTable[K, V, G, A, R any] struct {
	*windowed[K, V, G, A, R]
	own []byte // the key of the record in hand
}

func newWindowTable[K, V, G, A, R any](c *instance, n *node, x *windowed[K, V, G, A, R]) step[K, V] {
	s := &windowTable[K, V, G, A, R]{windowed: x}
	c.addTimed(n, s)
	s.connect(c, n)
	return s.handle
}

func (s *windowTable[K, V, G, A, R]) handle(r *record.Record[K, V]) error {
	at, key, err := s.begin(r, timeBytes)
	if err != nil || key == nil {
		return err
	}
	first, last := s.windows.Starts(at)
	size := s.windows.Size()
	if s.closed(last.Add(size)) {
		return s.tooLate(r, last.Add(size))
	}
	if first != last {
		s.own = append(s.own[:0], key...) // what follows encodes keys, too
		key = s.own
	}
	ordinal, same := uint32(0), true
	for start := first; start <= last; start = start.Add(s.windows.Every()) {
		span := window.Span{Start: start, End: start.Add(size)}
		if s.closed(span.End) {
			continue
		}
		putTime(key, start)
		changed, err := s.put(r, key, span, ordinal)
		if err != nil {
			return err
		}
		same = same && !changed
		ordinal++
	}
	if same {
		*s.filtered++
	}
	return nil
}

// put puts the record into one window.
func (s *windowTable[K, V, G, A, R]) put(r *record.Record[K, V], key []byte, span window.Span, ordinal uint32) (changed bool, err error) {
	old, found, err := s.cells.get(key)
	if err != nil {
		return false, err
	}
	next, changed, err := s.add(old, !found, r)
	if err != nil || !changed {
		return false, err
	}
	if err := s.cells.put(key, next); err != nil {
		return false, err
	}
	s.expect(s.windows.ClosesAt(span.End))
	if s.onClose {
		return true, nil
	}
	return true, s.update(r, span, next, ordinal)
}

// Fire implements Timed: it closes one window of one key.
func (s *windowTable[K, V, G, A, R]) Fire(quiet bool) (did bool, err error) {
	defer s.c.rescue(&err)
	if s.idle() {
		return false, nil
	}
	if len(s.due) == 0 {
		if err := s.find(); err != nil || len(s.due) == 0 {
			return false, err
		}
	}
	p := s.due[0]
	s.piece = p
	if err := s.cells.delete(p.key); err != nil {
		return false, err
	}
	if s.onClose && !quiet {
		start := getTime(p.key)
		a, err := decodeState(s.cells, s.cells.values, false, p.value)
		if err != nil {
			return false, err
		}
		if err := s.close(p.key[timeBytes:], window.Span{Start: start, End: start.Add(s.windows.Size())}, a); err != nil {
			return false, err
		}
	}
	s.done()
	return true, nil
}

// find looks for windows that are due.
func (s *windowTable[K, V, G, A, R]) find() error {
	var from []byte
	if s.low != unknown {
		from = make([]byte, timeBytes)
		putTime(from, s.low.Add(-s.windows.GracePeriod()-s.windows.Size()))
	}
	var broken error
	err := s.lookUp(from, nil, s.onClose, func(key []byte) (window.Millis, bool) {
		if len(key) < timeBytes {
			broken = fmt.Errorf("a key of %d bytes", len(key))
			return 0, false
		}
		return s.windows.ClosesAt(getTime(key).Add(s.windows.Size())), true
	})
	if err == nil && broken != nil {
		err = s.op.fault("read state", broken)
	}
	return err
}
