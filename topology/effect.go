package topology

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// Call is what the function of an Effect is called for.
type Call[K, V any] struct {
	// IdempotencyKey names the call to the other system: 32 hexadecimal digits made of the record's ID, the operators on its
	// way, their ordinals and the effect's name. It is the same however often the call is made, and wherever. It is also the
	// ID of the record that the outcome becomes. The application's name is no part of it: a run of the same operators
	// over the same records under another name makes the same calls.
	IdempotencyKey string
	// Key and Request are the record's key and value, Timestamp its event time in whole milliseconds, Headers its own.
	Key       K
	Request   V
	Timestamp time.Time
	Headers   record.Headers
	// Attempt is 1 for the first one that this process makes of the call.
	Attempt int
	// Uncertain says that an earlier process may have made the call: it stood in the state when the task began.
	Uncertain bool
}

// Uncertainty says what is done with a call that may have been made before.
type Uncertainty uint8

// The choices.
const (
	Retry Uncertainty = iota // make it again, under the same key
	Fail                     // do not make it: ErrUncertain goes to the error policy
)

// The errors of calls, as the error policy and the error of the application tell them (errors.Is).
var (
	// ErrUncertain: whether the call was made is not known, and OnUncertain says not to make it again.
	ErrUncertain = errors.New("topology: it is not known whether the call was made: the process that was to make it has ended")
	// ErrCallTimeout: the function took longer than Timeout.
	ErrCallTimeout = errors.New("topology: the call took too long")
	// ErrCallHangs: the function has not returned although its context has ended. Its place is not given to another call, and its key gets no further
	// one, until it does.
	ErrCallHangs = errors.New("topology: the call has not returned although its context has ended")
)

// permanentError is an error that another attempt would only meet again.
type permanentError struct{ error }

func (p permanentError) Unwrap() error { return p.error }

// Permanent marks an error of an Effect's function as one that no further attempt can heal: a card that was refused, a
// request that is not valid. Nil stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanentError{err}
}

// IsPermanent says whether a further attempt is of no use: the error is marked by Permanent, or a panic, or one of the stored request.
func IsPermanent(err error) bool {
	var p permanentError
	var crash *PanicError
	var damaged *OperatorError
	return errors.As(err, &p) || errors.As(err, &crash) || errors.As(err, &damaged)
}

// The defaults of an Effect.
const (
	DefaultConcurrency = 16
	DefaultBacklog     = 1_000
	DefaultCallTimeout = 30 * time.Second
	DefaultRetries     = 5
	DefaultBackoff     = 100 * time.Millisecond
)

// EffectSpec is what the options of an Effect say.
type EffectSpec struct {
	Name        string
	Concurrency int
	Backlog     int
	Timeout     time.Duration
	Retries     int // negative: without end
	Backoff     time.Duration
	Uncertain   Uncertainty
	Idempotent  bool
}

// Concurrency is how many calls of one task may be under way at the same time, 1 to 1024, default 16: so the other system gets at most
// that many times the number of partitions, on however many instances they are.
func Concurrency(n int) EffectSetting {
	return EffectSetting{func(o *options) { o.effect.Concurrency = n }}
}

// Backlog is how many calls of a task may wait or be under way before it takes no further records, 1 to 100,000, default 1,000. They wait in the
// task's state, not in memory.
func Backlog(n int) EffectSetting {
	return EffectSetting{func(o *options) { o.effect.Backlog = n }}
}

// Timeout is how long one attempt may take: then its context ends, and it has failed. At least a millisecond, default 30 s.
func Timeout(d time.Duration) EffectSetting {
	return EffectSetting{func(o *options) { o.effect.Timeout = d }}
}

// Retries is how often a call that has failed is made again, default 5, and how long to wait before the first time, default 100 ms: each time twice as
// long as before, at most 30 s. 0: never. Negative: until it succeeds. Errors marked by Permanent and panics are not tried again. A
// call that is tried again holds up its key, and its place among the calls under way.
func Retries(n int, backoff time.Duration) EffectSetting {
	return EffectSetting{func(o *options) { o.effect.Retries, o.effect.Backoff = n, backoff }}
}

// OnUncertain says what becomes of a call that stood in the state when its task began, so that it may have been made by the process before. Default
// Retry. With Fail think of Retries, too: an attempt that failed may have had its effect.
func OnUncertain(u Uncertainty) EffectSetting {
	return EffectSetting{func(o *options) { o.effect.Uncertain = u }}
}

// Idempotent promises that the other system does a call once, however often it comes under the same IdempotencyKey. It changes
// nothing but what Explain says. A broken promise is a payment made twice.
func Idempotent() EffectSetting {
	return EffectSetting{func(o *options) { o.effect.Idempotent = true }}
}

func (o *EffectSpec) defaults() {
	*o = EffectSpec{Concurrency: DefaultConcurrency, Backlog: DefaultBacklog, Timeout: DefaultCallTimeout, Retries: DefaultRetries, Backoff: DefaultBackoff}
}

// Effect calls another system for each record, and hands on what it answers: a record with the input's key and headers, and fn's
// result as its value. It takes two transactions. The record's own writes what is to be called, as state of the operator.
// Once that is committed, and not before, fn is called, beside the task, which goes on meanwhile. The next
// transaction takes the call off the state and hands the outcome on, once.
//
// What holds, over kill -9, rebalances, lost disks and owners that have been replaced without knowing it:
//
//   - fn is never called for a record whose transaction did not commit, and at least once for one whose did. If the other system
//     honours Call.IdempotencyKey, what fn does happens once.
//   - The outcome is handed on once, and is that of one of the calls.
//   - Calls of one key are made one after the other, in the order of the records, each when the outcome of the one before it is committed. Records
//     without a key are in no order.
//
// fn runs in a goroutine of its own. It must end with its context, and may be called again while an earlier process still is in it. An
// error is tried again as Retries says; what is left, or a panic, goes to the error policy: stop
// ends the application, and the next start calls again; a dead letter has the record's key, headers and, as requests writes it, its value.
// A record without an ID (OnMissingID(Forward)) fails, since its calls could not be told apart.
//
// The outcome has the time of the record or, if event time has gone on meanwhile, that of the watermark: it is never late. requests writes
// and reads the value in the operator's state, outcomes the result. The state's name is the operator's, and
// as with all state it must not change. Options: Concurrency, Backlog, Timeout, Retries, OnUncertain, Idempotent, OnError.
//
// Neither Kafka Streams nor its exactly-once has this; in Flink it is AsyncFunction, which calls before the commit.
func Effect[K, V, Out any](s *Stream[K, V], name string, requests serde.Serde[V], outcomes serde.Serde[Out], fn func(ctx context.Context, call Call[K, V]) (Out, error), opts ...EffectOption) *Stream[K, Out] {
	b := s.b
	var o options
	o.effect.defaults()
	for _, x := range opts {
		x.apply(&o)
	}
	n := &node{kind: kindEffect, name: b.stateName(kindEffect, name), opts: o}
	n.opts.effect.Name = n.name
	n.stores = []StateStore{&effectStore{n.name}}
	b.add(n, s)
	b.require(fn != nil, n, "function", "the function is nil")
	b.require(requests != nil && outcomes != nil, n, "serde", "the serde of the requests or that of the outcomes is nil")
	b.require(s.keys != nil, n, "serde", "the serde of its keys is not known: use WithKeys")
	b.checkEffect(n)
	keys := s.keys
	n.instantiate = func(c *instance, n *node) any {
		x := newEffect(c, n, effectTypes[K, V, Out]{keys: keys, requests: requests, outcomes: outcomes, fn: fn})
		return step[K, V](x.add)
	}
	return &Stream[K, Out]{b: b, from: n, keys: s.keys, values: outcomes, rekeyed: s.rekeyed}
}

func (b *Builder) checkEffect(n *node) {
	o := n.opts.effect
	b.require(o.Concurrency >= 1 && o.Concurrency <= 1024, n, "option", fmt.Sprintf("Concurrency is %d, want 1 to 1024", o.Concurrency))
	b.require(o.Backlog >= 1 && o.Backlog <= 100_000, n, "option", fmt.Sprintf("Backlog is %d, want 1 to 100000", o.Backlog))
	b.require(o.Timeout >= time.Millisecond, n, "option", fmt.Sprintf("Timeout is %v, want at least 1ms", o.Timeout))
	b.require(o.Backoff >= 0, n, "option", fmt.Sprintf("the backoff of Retries is %v, want no less than 0", o.Backoff))
	b.require(o.Uncertain <= Fail, n, "option", "OnUncertain takes Retry or Fail")
}

// effectStore is where an operator keeps the calls that are not settled.
type effectStore struct{ name string }

func (s *effectStore) spec() StoreSpec                          { return StoreSpec{Name: s.name} }
func (s *effectStore) complete() bool                           { return true }
func (s *effectStore) instantiate(c *instance, _ *operator) any { return c.rt.Store(s.name) }

// effectTypes is what an Effect was given.
type effectTypes[K, V, Out any] struct {
	keys     serde.Serde[K]
	requests serde.Serde[V]
	outcomes serde.Serde[Out]
	fn       func(context.Context, Call[K, V]) (Out, error)
}

// effect is an Effect in one task. Its queue knows what to call and what came of it; here is what depends on types.
type effect[K, V, Out any] struct {
	effectTypes[K, V, Out]
	c              *instance
	op             *operator
	id             *operator // at StageID
	encode, decode *operator
	queue          *effectQueue
	forward        step[K, Out]
	out            record.Record[K, Out]
	in             intent
}

func newEffect[K, V, Out any](c *instance, n *node, types effectTypes[K, V, Out]) *effect[K, V, Out] {
	op := c.operator(n)
	x := &effect[K, V, Out]{
		effectTypes: types, c: c, op: op, id: op.during(StageID), encode: op.during(StageEncode), decode: op.during(StageDecode),
		forward: downstream[K, Out](c, n, 0),
	}
	x.decode.policy = PolicyStop // as everywhere: what stands in the state is no fault of a record
	x.queue = newEffectQueue(c, op, n.opts.effect, c.rt.Store(n.name))
	x.queue.make, x.queue.hand = x.attempt, x.hand
	c.addTimed(n, x.queue)
	c.calls = append(c.calls, x.queue)
	return x
}

// add writes down what is to be called.
func (x *effect[K, V, Out]) add(r *record.Record[K, V]) error {
	*x.op.in++
	in := &x.in
	if in.id = r.Identity.AppendID(in.id[:0]); len(in.id) == 0 {
		return x.id.fail(fmt.Errorf("%w: its calls could not be told apart; give it one at its source", record.ErrNoID))
	}
	in.at, in.headers = r.Timestamp, r.Headers
	x.c.user = x.encode
	var err error
	if in.key, err = x.keys.Append(x.c.keyBuf[:0], r.Key); err != nil {
		x.c.user = nil
		return x.encode.fail(fmt.Errorf("key: %w", err))
	}
	in.request, err = x.requests.Append(x.c.valueBuf[:0], r.Value)
	x.c.user = nil
	if err != nil {
		return x.encode.fail(fmt.Errorf("request: %w", err))
	}
	if in.key != nil {
		x.c.keyBuf = in.key
	}
	if in.request != nil {
		x.c.valueBuf = in.request
	}
	return x.queue.add(in)
}

// attempt makes one attempt of a call. It runs outside of the task, so that it touches nothing of the instance. in is the call's alone.
func (x *effect[K, V, Out]) attempt(ctx context.Context, in *intent, n int, uncertain bool) (out []byte, err error) {
	defer rescueCall(&err)
	call := Call[K, V]{IdempotencyKey: in.callKey(x.op), Timestamp: in.at, Headers: in.headers, Attempt: n, Uncertain: uncertain}
	if call.Key, err = x.keys.Decode(in.key); err != nil {
		return nil, x.decode.fail(fmt.Errorf("state: key: %w", err))
	}
	if call.Request, err = x.requests.Decode(in.request); err != nil {
		return nil, x.decode.fail(fmt.Errorf("state: request: %w", err))
	}
	v, err := x.fn(ctx, call)
	if err != nil {
		return nil, err
	}
	// Not nil: that would be a null outcome.
	if out, err = x.outcomes.Append(make([]byte, 0, 64), v); err != nil {
		return nil, x.encode.fail(fmt.Errorf("outcome: %w", err))
	}
	return out, nil
}

// hand hands an outcome on.
func (x *effect[K, V, Out]) hand(in *intent, outcome []byte, at time.Time) (err error) {
	x.c.user = x.decode
	x.out.Key, err = x.keys.Decode(in.key)
	if err == nil {
		x.out.Value, err = x.outcomes.Decode(outcome)
	}
	x.c.user = nil
	if err != nil {
		return x.decode.fail(fmt.Errorf("state: %w", err))
	}
	x.out.Timestamp, x.out.Headers, x.out.Identity = at, in.headers, x.c.aloneIdentity(x.op, in.id)
	*x.op.out++
	return x.forward(&x.out)
}
