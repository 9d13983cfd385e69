package topology

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/streamd/streamd/internal/invariant"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/window"
)

// effectQueue is an Effect in one task, without its types: what is to be called, what is being called, and what came of it. It is
// pure: whoever makes the calls takes them from Next and brings their outcomes by Done.
//
// The store has an entry for each call that is not settled: its number, eight bytes, and the intent (docs/format.md). Numbers grow as the
// records come. The life of a call:
//
//	add        the number and the intent, in the transaction of the record
//	Committed  that is committed: the call is known, and waits for its turn
//	Next       it is made
//	Done       its outcome has come, and is due (Timed)
//	Fire       the intent is taken off and the outcome handed on, in one transaction; Reset takes that back
//	Committed  that is committed: it is settled, and the next call of its key may be made
//
// In memory are at most as many calls as the backlog says, without their content. The others are in the store alone until there is room.
type effectQueue struct {
	c     *instance
	op    *operator
	spec  EffectSpec
	store Store

	make func(ctx context.Context, in *intent, attempt int, uncertain bool) ([]byte, error)
	hand func(in *intent, outcome []byte, at time.Time) error

	// Numbers. Invariant: loaded <= seen <= next.
	next   uint64 // of the next intent
	seen   uint64 // below it all that is committed is counted in total
	loaded uint64 // below it all that is not settled is in calls
	opened uint64 // below it a call was there when the task began
	added  int    // since the last commit
	total  int    // not settled, as committed
	// uncertain are those of total that were there when the task began.
	uncertain int

	calls   map[uint64]*effectCall
	lanes   map[record.Hash][]*effectCall // by key, in order: what is not settled
	ready   []*effectCall                 // may be made
	done    []*effectCall                 // have an outcome, which is to be handed on
	applied []*effectCall                 // it is, in the open transaction
	running int                           // functions that have not returned
	hanging int                           // of these, calls that were given up

	watermark window.Millis
	last      Piece
	keyBuf    [seqBytes]byte
	buf       []byte
}

// effectCall is a call that is not settled, without its content.
type effectCall struct {
	seq       uint64
	lane      record.Hash
	keyed     bool // it has a lane
	uncertain bool
	outcome   []byte
	err       error
	hangs     bool // it was given up, and its function has not returned
	settled   bool
}

const seqBytes = 8

// Calling is an operator that calls other systems, see Effect. Chain.Calls lists those of a chain, which are in Chain.Timed, too: what
// is due are outcomes that have come.
type Calling interface {
	Timed
	// Spec is what its options say.
	Spec() EffectSpec
	// Open finds what the committed state has to be called. It comes before all others.
	Open() error
	// Committed takes note that the task has committed.
	Committed() error
	// Next is a call that is to be made now, false if there is none. The caller makes it, however long that takes, and hands its outcome to Done.
	Next() (EffectCall, bool, error)
	// Done takes the outcome of a call. One of a call that is not known is passed over.
	Done(Outcome)
	// Due says whether an outcome is there that is not handed on.
	Due() bool
	// Full says that the backlog is: no record should come before the next commit of an outcome.
	Full() bool
	// Stats says what there is.
	Stats() EffectStats
}

// EffectCall is a call that is to be made: by a runner, beside the task. It may be copied.
type EffectCall struct {
	EffectSpec
	Seq            uint64 // its number in the task
	IdempotencyKey string
	Uncertain      bool
	// Attempt makes one attempt, the first one is number 1. It runs beside the task, from one goroutine at a time. Panics of user code are errors. Without an
	// error the outcome is as its serde wrote it, nil for null.
	Attempt func(ctx context.Context, n int) (outcome []byte, err error)
}

// Outcome is what came of a call.
type Outcome struct {
	Seq   uint64
	Value []byte // nil: null
	Err   error  // what is left after all attempts
	// Hangs: the function has not returned, and Err says so. Returned comes later, without anything else, when it does.
	Hangs, Returned bool
}

// EffectStats are the calls of an Effect in one task as committed.
type EffectStats struct {
	Waiting   int // to be made
	Running   int // being made
	Uncertain int // of both, those that may have been made by an earlier process
	Hanging   int // given up, but their functions have not returned
}

func newEffectQueue(c *instance, op *operator, spec EffectSpec, store Store) *effectQueue {
	return &effectQueue{
		c: c, op: op, spec: spec, store: store, calls: map[uint64]*effectCall{}, lanes: map[record.Hash][]*effectCall{}, watermark: window.NoTime,
		next: 1, seen: 1, loaded: 1,
	}
}

// key is that of a call in the store, valid until the next one.
func (q *effectQueue) key(seq uint64) []byte {
	binary.BigEndian.PutUint64(q.keyBuf[:], seq)
	return q.keyBuf[:]
}

// add writes an intent down.
func (q *effectQueue) add(in *intent) error {
	q.buf = in.append(q.buf[:0])
	if err := q.store.Put(q.key(q.next), q.buf); err != nil {
		return q.op.fault("write down a call", err)
	}
	q.next++ // not taken back if the record fails: numbers may be left out
	q.added++
	return nil
}

// Spec implements Calling.
func (q *effectQueue) Spec() EffectSpec { return q.spec }

// Open implements Calling.
func (q *effectQueue) Open() error {
	err := q.scan(1, func(seq uint64, _ []byte) (bool, error) {
		q.total++
		q.next = seq + 1
		return true, nil
	})
	if err != nil {
		return err
	}
	q.seen, q.opened, q.uncertain = q.next, q.next, q.total
	return q.load()
}

// Committed implements Calling.
func (q *effectQueue) Committed() error {
	for _, e := range q.applied {
		q.total--
		if e.uncertain {
			q.uncertain--
		}
		if e.settled = true; !e.hangs {
			q.forget(e)
		}
	}
	clear(q.applied)
	q.applied = q.applied[:0]
	if q.added > 0 {
		err := q.scan(q.seen, func(uint64, []byte) (bool, error) {
			q.total++
			return true, nil
		})
		if err != nil {
			return err
		}
	}
	q.seen, q.added = q.next, 0
	return q.load()
}

// load takes calls from the store into memory while there is room.
func (q *effectQueue) load() error {
	if q.loaded == q.seen || len(q.calls) >= q.spec.Backlog {
		return nil
	}
	full := false
	err := q.scan(q.loaded, func(seq uint64, b []byte) (bool, error) {
		if full = len(q.calls) >= q.spec.Backlog; full {
			return false, nil
		}
		in, err := decodeIntent(b)
		if err != nil {
			return false, err
		}
		e := &effectCall{seq: seq, uncertain: seq < q.opened}
		e.lane, e.keyed = in.lane()
		q.calls[seq] = e
		q.loaded = seq + 1
		q.queue(e)
		return true, nil
	})
	if err == nil && !full {
		q.loaded = q.seen
	}
	return err
}

// scan walks the committed intents from a number on, up to next.
func (q *effectQueue) scan(from uint64, fn func(seq uint64, b []byte) (bool, error)) error {
	var failed error
	err := q.store.Range(bytes.Clone(q.key(from)), nil, func(k, b []byte) bool {
		if len(k) != seqBytes {
			failed = fmt.Errorf("the key of a call, %x, is damaged", k)
			return false
		}
		more := false
		more, failed = fn(binary.BigEndian.Uint64(k), b)
		return more
	})
	if err = errors.Join(err, failed); err != nil {
		return q.op.fault("look for calls that are to be made", err)
	}
	return nil
}

// queue puts a call behind those of its key.
func (q *effectQueue) queue(e *effectCall) {
	first := true
	if e.keyed {
		first = len(q.lanes[e.lane]) == 0
		q.lanes[e.lane] = append(q.lanes[e.lane], e)
	}
	switch {
	case e.uncertain && q.spec.Uncertain == Fail:
		e.err = ErrUncertain
		q.done = append(q.done, e)
	case first:
		q.ready = append(q.ready, e)
	}
}

// forget lets go of a call that is settled, and of the next one of its key.
func (q *effectQueue) forget(e *effectCall) {
	delete(q.calls, e.seq)
	if !e.keyed {
		return
	}
	// It is the first one: those of a key are settled in order.
	lane := q.lanes[e.lane]
	invariant.Check(len(lane) > 0 && lane[0] == e, "INV-6 operator %q settles call %d before another one of its key", q.op.name, e.seq)
	if lane = lane[1:]; len(lane) == 0 {
		delete(q.lanes, e.lane)
		return
	}
	q.lanes[e.lane] = lane
	if next := lane[0]; next.err == nil {
		q.ready = append(q.ready, next)
	}
}

// Next implements Calling. Outcomes that are not handed on count as calls under way, so that their number is bounded, too.
func (q *effectQueue) Next() (EffectCall, bool, error) {
	if len(q.ready) == 0 || q.running+len(q.done) >= q.spec.Concurrency {
		return EffectCall{}, false, nil
	}
	e := q.ready[0]
	in, err := q.read(e)
	if err != nil {
		return EffectCall{}, false, err
	}
	q.ready = q.ready[1:]
	q.running++
	c := EffectCall{EffectSpec: q.spec, Seq: e.seq, Uncertain: e.uncertain, IdempotencyKey: in.callKey(q.op)}
	c.Attempt = func(ctx context.Context, n int) ([]byte, error) { return q.make(ctx, in, n, c.Uncertain) }
	return c, true, nil
}

// read returns a call's content, which is the caller's.
func (q *effectQueue) read(e *effectCall) (*intent, error) {
	b, err := q.store.Get(q.key(e.seq))
	if err == nil && b == nil {
		err = fmt.Errorf("call %d is not there", e.seq)
	}
	var in *intent
	if err == nil {
		in, err = decodeIntent(bytes.Clone(b))
	}
	if err != nil {
		return nil, q.op.fault("read a call", err)
	}
	return in, nil
}

// Done implements Calling.
func (q *effectQueue) Done(o Outcome) {
	e := q.calls[o.Seq]
	switch {
	case e == nil:
	case o.Returned:
		e.hangs = false
		q.running--
		q.hanging--
		if e.settled {
			q.forget(e)
		}
	default:
		e.outcome, e.err, e.hangs = o.Value, o.Err, o.Hangs
		if o.Hangs {
			q.hanging++
		} else {
			q.running--
		}
		q.done = append(q.done, e)
	}
}

// Due implements Calling.
func (q *effectQueue) Due() bool { return len(q.done) > 0 }

// Full implements Calling.
func (q *effectQueue) Full() bool { return q.total+q.added >= q.spec.Backlog }

// Stats implements Calling.
func (q *effectQueue) Stats() EffectStats {
	running := q.running - q.hanging
	return EffectStats{Waiting: q.total - running - len(q.done) - len(q.applied), Running: running, Uncertain: q.uncertain, Hanging: q.hanging}
}

// Advance implements Timed.
func (q *effectQueue) Advance(m Moment) bool {
	q.watermark = m.Watermark
	return q.Due()
}

// Reset implements Timed: what the state has again was not handed on. The outcome is known all the same, so that
// nothing is called again.
func (q *effectQueue) Reset(m Moment) {
	q.watermark = m.Watermark
	if q.opened == 0 {
		return // nothing is known yet that could be void
	}
	// Without it Full might speak of intents that are gone, and nothing would ever be committed.
	q.added = 0
	if err := q.scan(q.seen, func(uint64, []byte) (bool, error) { q.added++; return true, nil }); err != nil {
		q.added = 1 // Committed looks again, and says so
	}
	var back, gone []*effectCall
	for _, e := range q.applied {
		// An error counts as there: Fire will meet it, and say so.
		if b, err := q.store.Get(q.key(e.seq)); err != nil || b != nil {
			back = append(back, e)
		} else {
			gone = append(gone, e)
		}
	}
	q.applied, q.done = gone, append(back, q.done...)
}

// Pending implements Timed.
func (q *effectQueue) Pending() Piece { return q.last }

// Fire implements Timed: it takes one call off the state and hands its outcome on.
func (q *effectQueue) Fire(quiet bool) (did bool, err error) {
	defer q.c.rescue(&err)
	if len(q.done) == 0 {
		return false, nil
	}
	e := q.done[0]
	in, err := q.read(e)
	if err != nil {
		return false, err
	}
	q.last = Piece{What: "call " + in.callKey(q.op), Key: in.key, Value: in.request, Headers: in.headers, Timestamp: in.at}
	if err := q.store.Put(q.key(e.seq), nil); err != nil {
		return false, q.op.fault("take a call off", err)
	}
	if !quiet {
		if err := q.settle(e, in); err != nil {
			return false, err
		}
	}
	q.done = q.done[1:]
	q.applied = append(q.applied, e)
	return true, nil
}

func (q *effectQueue) settle(e *effectCall, in *intent) error {
	var known *OperatorError
	switch {
	case errors.As(e.err, &known):
		return e.err
	case e.err != nil:
		return q.op.fail(fmt.Errorf("call %s: %w", in.callKey(q.op), e.err))
	}
	at := in.at
	if q.watermark >= window.MinMillis && q.watermark.Time().After(at) {
		at = q.watermark.Time()
	}
	return q.hand(in, e.outcome, at)
}

// rescueCall turns a panic of user code, outside of the chain, into an error.
func rescueCall(err *error) {
	v := recover()
	if v == nil {
		return
	}
	if _, ours := v.(invariant.Violation); ours {
		panic(v)
	}
	stack := debug.Stack()
	*err = &PanicError{Value: v, Stack: stack[:min(len(stack), maxStack)]}
}
