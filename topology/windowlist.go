package topology

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/window"
)

// windowList is an aggregate over sessions or sliding windows in one task: what a record does depends on the others of
// its key, so that all that is open of a key stands in one value, with its dueIndex (docs/format.md), the entries in the
// order of time.
//
// A session is an entry. Of sliding windows an entry holds the records of one moment; the window that ends with
// them is put together from the entries that lie in it.
//
// A session that grows does not move the index: it costs two writes of that in its life, and not two with each record.
type windowList[K, V, G, A, R any] struct {
	*windowed[K, V, G, A, R]
	dueIndex
	own      []byte // the value that the record in hand made
	list     list
	spans    []window.Span
	sessions bool
	delayed  window.Millis // how long after its window an entry is needed
}

// list is what a key has.
type list struct {
	due     window.Millis // of its entry in the index
	entries []listEntry
}

// listEntry is a session, or what is known of one moment. Its state aliases the store's or the instance's memory.
type listEntry struct {
	window.Span
	handed bool // sliding windows: the result of the window that ends here was handed on, or never will be
	state  []byte
}

var errListTooLong = errors.New("the windows of this key that are open take more than 512 KiB: it has too many records for windows of this kind, or its values are too large")

func newWindowList[K, V, G, A, R any](c *instance, n *node, x *windowed[K, V, G, A, R]) step[K, V] {
	s := &windowList[K, V, G, A, R]{windowed: x, sessions: x.windows.Kind() == window.KindSession}
	s.dueIndex = dueIndex{of: &x.dueList, list: &s.list, tooLong: errListTooLong}
	if !s.sessions {
		s.delayed = window.Millis(0).Add(x.windows.Size())
	}
	c.addTimed(n, s)
	s.connect(c, n)
	return s.handle
}

func (s *windowList[K, V, G, A, R]) handle(r *record.Record[K, V]) error {
	at, key, err := s.begin(r, 1)
	if err != nil || key == nil {
		return err
	}
	s.take(key[1:])
	if err := s.read(); err != nil {
		return err
	}
	if s.sessions {
		return s.session(r, at)
	}
	return s.slide(r, at)
}

// session puts the record into its session.
func (s *windowList[K, V, G, A, R]) session(r *record.Record[K, V], at window.Millis) error {
	s.spans = s.spans[:0]
	for i := range s.list.entries {
		s.spans = append(s.spans, s.list.entries[i].Span)
	}
	from, to, merged := s.windows.Join(s.spans, at)
	if s.closed(merged.End) {
		return s.tooLate(r, merged.End)
	}
	old, err := s.combine(s.list.entries[from:to])
	if err != nil {
		return err
	}
	next, changed, err := s.add(old, from == to, r)
	if err != nil {
		return err
	}
	grown := to-from != 1 || s.spans[from] != merged
	if !changed {
		next = old // the session grows all the same, and with it the key of its result
	}
	if err := s.store(from, to, listEntry{Span: merged}, next); err != nil {
		return err
	}
	if !changed && !grown {
		*s.filtered++
		return nil
	}
	if s.onClose {
		return nil
	}
	return s.update(r, merged, next, 0)
}

// slide puts the record to those of its moment, and hands on the windows that it changed.
func (s *windowList[K, V, G, A, R]) slide(r *record.Record[K, V], at window.Millis) error {
	if s.closed(at + 1 + s.delayed) {
		return s.tooLate(r, at+1+s.delayed)
	}
	from, found := slices.BinarySearchFunc(s.list.entries, at, func(e listEntry, at window.Millis) int { return cmp.Compare(e.Start, at) })
	to := from
	entry := listEntry{Span: window.Span{Start: at, End: at + 1}, handed: s.closed(at + 1)}
	if found {
		to, entry = from+1, s.list.entries[from]
	}
	old, err := s.combine(s.list.entries[from:to])
	if err != nil {
		return err
	}
	next, changed, err := s.add(old, !found, r)
	if err != nil {
		return err
	}
	if !changed {
		*s.filtered++
		return nil
	}
	if err := s.store(from, to, entry, next); err != nil || s.onClose {
		return err
	}
	ordinal := uint32(0)
	for i := from; i < len(s.list.entries) && s.list.entries[i].Start <= at+s.delayed; i++ {
		e := s.list.entries[i]
		if s.closed(e.End) {
			continue
		}
		a, err := s.ending(i)
		if err != nil {
			return err
		}
		if err := s.update(r, s.windows.Alone(e.Start), a, ordinal); err != nil {
			return err
		}
		ordinal++
	}
	return nil
}

// ending is the value of the sliding window that ends with entry i.
func (s *windowList[K, V, G, A, R]) ending(i int) (A, error) {
	from := i
	for from > 0 && s.list.entries[from-1].Start >= s.list.entries[i].Start-s.delayed {
		from--
	}
	return s.combine(s.list.entries[from : i+1])
}

// combine makes one value of several entries; the zero value of none.
func (s *windowList[K, V, G, A, R]) combine(entries []listEntry) (a A, err error) {
	for i := range entries {
		x, err := decodeState(s.cells, s.cells.values, s.cells.copyValues, entries[i].state)
		if err != nil {
			return a, err
		}
		if i == 0 {
			a = x
			continue
		}
		if a, err = s.merge(a, x); err != nil {
			return a, err
		}
	}
	return a, nil
}

// store puts an entry with a value in place of entries[from:to] and writes the list.
func (s *windowList[K, V, G, A, R]) store(from, to int, e listEntry, a A) error {
	s.c.user = s.cells.encode
	b, err := s.cells.values.Append(s.c.valueBuf[:0], a)
	s.c.user = nil
	if err != nil {
		return s.cells.encode.fail(fmt.Errorf("state: %w", err))
	}
	if b == nil { // null: the group is deleted
		s.list.entries = slices.Delete(s.list.entries, from, to)
		return s.write(s.earliest())
	}
	s.c.valueBuf = b
	s.own = append(s.own[:0], b...) // operators downstream encode values, too
	e.state = s.own
	s.list.entries = slices.Replace(s.list.entries, from, to, e)
	return s.write(s.earliest())
}

// earliest is when the next thing is to be done for the list: something to be handed on, or to be forgotten; never if it is empty.
func (s *windowList[K, V, G, A, R]) earliest() window.Millis {
	due := never
	for i := range s.list.entries {
		e := &s.list.entries[i]
		end := e.End
		if !s.onClose || e.handed {
			end += s.delayed
		}
		due = min(due, s.windows.ClosesAt(end))
	}
	return due
}

// Fire implements Timed: it hands on one closed window of one key, or does what else is due of it.
func (s *windowList[K, V, G, A, R]) Fire(quiet bool) (did bool, err error) {
	defer s.c.rescue(&err)
	key, err := s.first()
	if err != nil || key == nil {
		return false, err
	}
	i := s.unhanded(0)
	if i < len(s.list.entries) {
		s.list.entries[i].handed = true
		s.hold(s.list.entries[i].state)
		if !quiet {
			if err := s.handOn(key, i); err != nil {
				return false, err
			}
		}
	}
	next := s.unhanded(i)
	more := next < len(s.list.entries)
	needed := never
	if more {
		needed = s.list.entries[next].Start - s.delayed
	}
	s.list.entries = slices.DeleteFunc(s.list.entries, func(e listEntry) bool { return e.Start < needed && s.closed(e.End+s.delayed) })
	if err := s.settle(more, s.earliest()); err != nil {
		return false, err
	}
	return true, nil
}

// unhanded is the first entry from i on whose window is closed and to be handed on; that many as there are: none is. What was
// handed on while the window was open is not to be again.
func (s *windowList[K, V, G, A, R]) unhanded(i int) int {
	for ; i < len(s.list.entries); i++ {
		e := &s.list.entries[i]
		switch {
		case e.handed || !s.closed(e.End):
		case s.onClose:
			return i
		default:
			e.handed = true
		}
	}
	return i
}

// handOn hands on the window that is closed with entry i.
func (s *windowList[K, V, G, A, R]) handOn(key []byte, i int) error {
	span := s.list.entries[i].Span
	var a A
	var err error
	if s.sessions {
		a, err = s.combine(s.list.entries[i : i+1])
	} else {
		span = s.windows.Alone(span.Start)
		a, err = s.ending(i)
	}
	if err != nil {
		return err
	}
	return s.close(key, span, a)
}

// entryHeader is what stands before the length of an entry's state.
const entryHeader = 2*timeBytes + 1

func (l *list) indexed() *window.Millis { return &l.due }

// append encodes the list.
func (l *list) append(dst []byte) []byte {
	dst = append(dst, make([]byte, listHeader)...)
	putTime(dst[len(dst)-timeBytes:], l.due)
	for i := range l.entries {
		e := &l.entries[i]
		var head [entryHeader]byte
		putTime(head[:], e.Start)
		putTime(head[timeBytes:], e.End)
		if e.handed {
			head[2*timeBytes] = 1
		}
		dst = append(dst, head[:]...)
		dst = append(binary.AppendUvarint(dst, uint64(len(e.state))), e.state...)
	}
	return dst
}

var errList = errors.New("a list of windows is damaged")

// decode reads a list; nil is the empty one.
func (l *list) decode(b []byte) error {
	l.due, l.entries = never, l.entries[:0]
	if b == nil {
		return nil
	}
	if len(b) < listHeader {
		return errList
	}
	l.due = getTime(b)
	for b = b[listHeader:]; len(b) > 0; {
		if len(b) < entryHeader {
			return errList
		}
		e := listEntry{Span: window.Span{Start: getTime(b), End: getTime(b[timeBytes:])}, handed: b[2*timeBytes] != 0}
		b = b[entryHeader:]
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return errList
		}
		e.state, b = b[size:size+int(n):size+int(n)], b[size+int(n):]
		l.entries = append(l.entries, e)
	}
	return nil
}
