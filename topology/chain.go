package topology

import (
	"errors"
	"fmt"
	"runtime/debug"
	"unsafe"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/invariant"
	"github.com/streamd/streamd/record"
)

// step is an operator's entry in one task. The record is only valid, and must not be changed, during the
// call: operators hand on a pointer to a place of their own, so that nothing is allocated.
type step[K, V any] func(*record.Record[K, V]) error

// instance is a sub-topology in one task while it is put together, and what its operators share
// afterwards.
type instance struct {
	rt       Runtime
	env      Environment // nil: the runtime has none
	sinks    map[*node]int
	made     map[*node]any
	problems []error
	timed    []timedEntry
	calls    []Calling
	timers   map[string]*timerQueue // by store: several operators may set them

	// in is the source record in hand.
	in *broker.Record
	// user is the operator whose user code is running, else nil. It tells a user's panic from ours
	// and names it.
	user *operator

	headers  record.Headers // room for the headers of outputs, handed out and never taken back
	ids      []byte         // room for position IDs, likewise
	scratch  []byte         // for an ID that is only hashed
	keyBuf   []byte         // for a store's key
	valueBuf []byte         // for a store's value
	payload  []byte         // for a value that is only hashed
}

// chunk sizes: large against a record, small against a transaction.
const (
	headersChunk = 1024
	idsChunk     = 32 << 10
)

// newChain instantiates the sources and, through them, everything behind them.
func newChain(rt Runtime, sources []*node, sinks map[*node]int) (*Chain, error) {
	c := &instance{
		rt: rt, sinks: sinks, made: map[*node]any{},
		// Never nil: nil would mean null.
		scratch: make([]byte, 0, 64), keyBuf: make([]byte, 0, 64), valueBuf: make([]byte, 0, 64), payload: make([]byte, 0, 64),
	}
	c.env, _ = rt.(Environment)
	chain := &Chain{}
	for _, n := range sources {
		chain.Sources = append(chain.Sources, c.make(n).(func(*broker.Record) error))
	}
	if len(c.problems) > 0 {
		return nil, errors.Join(c.problems...)
	}
	chain.Timed, chain.Calls = c.timedInOrder(), c.calls
	return chain, nil
}

// make returns the node's instance, one for each task however many inputs lead to it.
func (c *instance) make(n *node) any {
	if s, ok := c.made[n]; ok {
		return s
	}
	s := n.instantiate(c, n)
	c.made[n] = s
	return s
}

// refuse makes NewChain fail.
func (c *instance) refuse(n *node, what string) {
	c.problems = append(c.problems, fmt.Errorf("topology: operator %q: %s", n.name, what))
}

// downstream is all that follows a port of a node.
func downstream[K, V any](c *instance, n *node, port int) step[K, V] {
	var steps []step[K, V]
	for _, e := range n.outputs {
		if e.port == port {
			// The types agree: the edge was made from a Stream[K, V].
			steps = append(steps, c.make(e.to).(step[K, V]))
		}
	}
	switch len(steps) {
	case 0:
		return func(*record.Record[K, V]) error { return nil }
	case 1:
		return steps[0]
	}
	return func(r *record.Record[K, V]) error {
		for _, s := range steps {
			if err := s(r); err != nil {
				return err
			}
		}
		return nil
	}
}

// operator is what each operator has in a task. A copy with another stage stands for the same
// operator while it does that.
type operator struct {
	name    string
	policy  Policy
	stage   Stage
	hash    uint64 // for the IDs of its children
	in, out *uint64
}

func (c *instance) operator(n *node) *operator {
	return &operator{
		name: n.name, policy: n.opts.policy, stage: StageProcess, hash: record.OperatorHash(n.name),
		in: c.counter(CounterIn, n), out: c.counter(CounterOut, n),
	}
}

func (c *instance) counter(k CounterKind, n *node) *uint64 {
	return c.rt.Counter(CounterID{Kind: k, Of: n.name})
}

// during is the operator while it does something else than processing.
func (o *operator) during(s Stage) *operator {
	p := *o
	p.stage = s
	return &p
}

func (o *operator) fail(err error) error { return o.failAs(o.policy, err) }

func (o *operator) failAs(p Policy, err error) error {
	return &OperatorError{Operator: o.name, Stage: o.stage, Policy: p, Err: err}
}

// fault is an error of the runtime: nothing that the record is to blame for, so that no policy applies, unless its key or
// value is too large for a store.
func (o *operator) fault(what string, err error) error {
	if errors.Is(err, ErrTooLarge) {
		return o.fail(fmt.Errorf("%s: %w", what, err))
	}
	return fmt.Errorf("topology: operator %q: %s: %w", o.name, what, err)
}

// PanicError is a panic of user code. The runtime handles it as an error of the operator.
type PanicError struct {
	Value any
	// Stack is where it happened, at most 4 KiB of it.
	Stack []byte
}

// Error returns "panic: value".
func (p *PanicError) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Unwrap returns the value if it is an error.
func (p *PanicError) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

const maxStack = 4 << 10

// rescue turns a panic of user code into an error that names the operator. It is deferred once for each
// source record. Our own panics go on: after a broken invariant, going on can only corrupt.
func (c *instance) rescue(err *error) {
	o := c.user
	if o == nil {
		return
	}
	c.user = nil
	v := recover()
	if v == nil {
		return // runtime.Goexit, as testing.T.FailNow does it
	}
	if _, ours := v.(invariant.Violation); ours {
		panic(v)
	}
	stack := debug.Stack()
	*err = o.fail(&PanicError{Value: v, Stack: stack[:min(len(stack), maxStack)]})
}

// withHeader returns headers in which key has exactly this one value. Its slices come from the
// instance's room; h is not changed.
func (c *instance) withHeader(h record.Headers, key string, value []byte) record.Headers {
	out := c.room(len(h) + 1)
	for i := range h {
		if h[i].Key != key {
			out = append(out, h[i])
		}
	}
	return append(out, record.Header{Key: key, Value: value})
}

// withoutHeader returns h without a key. It is h itself if there is no such key, or if only the
// last one has it.
func (c *instance) withoutHeader(h record.Headers, key string) record.Headers {
	for i := range h {
		if h[i].Key != key {
			continue
		}
		if i == len(h)-1 {
			return h[:i:i]
		}
		out := append(c.room(len(h)-1), h[:i]...)
		for _, x := range h[i+1:] {
			if x.Key != key {
				out = append(out, x)
			}
		}
		return out
	}
	return h
}

// room returns an empty slice for n headers that nobody else uses.
func (c *instance) room(n int) record.Headers {
	if cap(c.headers)-len(c.headers) < n {
		c.headers = make(record.Headers, 0, max(n, headersChunk))
	}
	at := len(c.headers)
	c.headers = c.headers[:at+n]
	return c.headers[at : at : at+n]
}

// aliasID is b as an ID without a copy. Nobody changes b as long as the ID lives: it is a part of a
// fetched record, of the ids room, or the ID is used at once.
func aliasID(b []byte) record.ID {
	return record.ID(unsafe.String(unsafe.SliceData(b), len(b)))
}
