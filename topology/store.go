package topology

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// KeyValueStore declares a state store: what a key has, per task. It is a description without content;
// the methods act on the store of the task whose Context they are given.
type KeyValueStore[K, V any] struct {
	name   string
	keys   serde.Serde[K]
	values serde.Serde[V]
}

// KeyValue declares a state store. Give it to the operators that use it with WithStore. The name is
// a part of the changelog topic's: it must not change while there is state.
func KeyValue[K, V any](name string, keys serde.Serde[K], values serde.Serde[V]) *KeyValueStore[K, V] {
	return &KeyValueStore[K, V]{name: name, keys: keys, values: values}
}

// StateStore is a declared store without its types.
type StateStore interface {
	spec() StoreSpec
	complete() bool
	instantiate(c *instance, op *operator) any
}

func (s *KeyValueStore[K, V]) spec() StoreSpec { return StoreSpec{Name: s.name} }
func (s *KeyValueStore[K, V]) complete() bool  { return s.keys != nil && s.values != nil }

func (s *KeyValueStore[K, V]) instantiate(c *instance, op *operator) any { return s.in(c, op) }

// errMisused is a mistake in the calling code.
var errMisused = errors.New("topology: state store")

// ErrNullKey: a store has no place for a null key.
var ErrNullKey = errors.New("topology: a state store has no null key")

// Get returns the value of a key, false if there is none. The value is the caller's to keep.
func (s *KeyValueStore[K, V]) Get(ctx Context, key K) (value V, ok bool, err error) {
	cells, k, err := s.at(ctx, key)
	if err == nil {
		value, ok, err = cells.get(k)
	}
	return value, ok, ctx.p.back(err)
}

// Put sets the value of a key. A value that is encoded as null deletes it.
func (s *KeyValueStore[K, V]) Put(ctx Context, key K, value V) error {
	cells, k, err := s.at(ctx, key)
	if err == nil {
		err = cells.put(k, value)
	}
	return ctx.p.back(err)
}

// Delete removes a key. It is no error if there is none.
func (s *KeyValueStore[K, V]) Delete(ctx Context, key K) error {
	cells, k, err := s.at(ctx, key)
	if err == nil {
		err = cells.delete(k)
	}
	return ctx.p.back(err)
}

// Range calls fn for from <= key < to, in the byte order of the encoded keys, until it returns
// false. fn must not change the store.
func (s *KeyValueStore[K, V]) Range(ctx Context, from, to K, fn func(K, V) bool) error {
	cells, k, err := s.at(ctx, from)
	if err != nil {
		return ctx.p.back(err)
	}
	lower := bytes.Clone(k) // the next key takes its place
	_, upper, err := s.at(ctx, to)
	if err == nil {
		err = cells.scan(lower, bytes.Clone(upper), fn)
	}
	return ctx.p.back(err)
}

// All calls fn for all keys, in the byte order of the encoded keys, until it returns false. fn must
// not change the store.
func (s *KeyValueStore[K, V]) All(ctx Context, fn func(K, V) bool) error {
	cells, err := s.of(ctx)
	if err == nil {
		err = cells.scan(nil, nil, fn)
	}
	return ctx.p.back(err)
}

// at finds the store in the task of the context, and encodes a key.
func (s *KeyValueStore[K, V]) at(ctx Context, key K) (*cells[K, V], []byte, error) {
	cells, err := s.of(ctx)
	if err != nil {
		return nil, nil, err
	}
	b, err := cells.key(key)
	if err == nil && b == nil {
		err = ErrNullKey
	}
	return cells, b, err
}

// of finds the store in the task of the context.
func (s *KeyValueStore[K, V]) of(ctx Context) (*cells[K, V], error) {
	x, err := ctx.store(s)
	if err != nil {
		return nil, err
	}
	return x.(*cells[K, V]), nil
}

// store finds what a declared store is in the task of the context.
func (c Context) store(s StateStore) (any, error) {
	if c.p == nil || !c.p.live {
		return nil, fmt.Errorf("%w: the context is used outside of the function that it was given to", errMisused)
	}
	for i, h := range c.p.handles {
		if h == s {
			return c.p.stores[i], nil
		}
	}
	return nil, fmt.Errorf("%w: store %q was not given to operator %q by WithStore or OnTimer", errMisused, s.spec().Name, c.p.op.name)
}

// cells is a store in one task, for one operator.
type cells[K, V any] struct {
	c              *instance
	op             *operator
	encode, decode *operator
	store          Store
	keys           serde.Serde[K]
	values         serde.Serde[V]
	// copied says which decoded parts would share the store's memory, which is used again after the
	// record.
	copyKeys, copyValues bool
}

func (s *KeyValueStore[K, V]) in(c *instance, op *operator) *cells[K, V] {
	decode := op.during(StageDecode)
	// What stands in the store is no fault of the record in hand: skipping record after record
	// would hide that the state cannot be read.
	decode.policy = PolicyStop
	return &cells[K, V]{
		c: c, op: op, encode: op.during(StageEncode), decode: decode, store: c.rt.Store(s.name),
		keys: s.keys, values: s.values, copyKeys: serde.Aliases(s.keys), copyValues: serde.Aliases(s.values),
	}
}

// key encodes a key, nil for a null one. It is valid until the next one is encoded.
func (s *cells[K, V]) key(k K) ([]byte, error) { return s.keyBehind(0, k) }

// keyBehind is key with room for a prefix, at most 64 bytes, which the caller fills.
func (s *cells[K, V]) keyBehind(prefix int, k K) ([]byte, error) {
	s.c.user = s.encode
	b, err := s.keys.Append(s.c.keyBuf[:prefix], k)
	s.c.user = nil
	switch {
	case err != nil:
		return nil, s.encode.fail(fmt.Errorf("key: %w", err))
	case b == nil:
		return nil, nil
	case len(b) < prefix:
		return nil, s.encode.fail(fmt.Errorf("key: %w", errNotAppended))
	}
	s.c.keyBuf = b
	return b, nil
}

func (s *cells[K, V]) get(key []byte) (v V, ok bool, err error) {
	b, err := s.store.Get(key)
	if err != nil {
		return v, false, s.op.fault("read state", err)
	}
	if b == nil {
		return v, false, nil
	}
	v, err = decodeState(s, s.values, s.copyValues, b)
	return v, err == nil, err
}

// has says whether there is a value, without decoding it.
func (s *cells[K, V]) has(key []byte) (bool, error) {
	b, err := s.store.Get(key)
	if err != nil {
		return false, s.op.fault("read state", err)
	}
	return b != nil, nil
}

func (s *cells[K, V]) put(key []byte, v V) error {
	_, err := s.set(key, v)
	return err
}

// set is put that says whether the key has a value now: one that is encoded as null deletes it.
func (s *cells[K, V]) set(key []byte, v V) (has bool, err error) {
	s.c.user = s.encode
	b, err := s.values.Append(s.c.valueBuf[:0], v)
	s.c.user = nil
	if err != nil {
		return false, s.encode.fail(fmt.Errorf("state: %w", err))
	}
	if b != nil {
		s.c.valueBuf = b
	}
	if err := s.store.Put(key, b); err != nil {
		return false, s.op.fault("write state", err)
	}
	return b != nil, nil
}

func (s *cells[K, V]) delete(key []byte) error {
	if err := s.store.Put(key, nil); err != nil {
		return s.op.fault("write state", err)
	}
	return nil
}

func (s *cells[K, V]) scan(from, to []byte, fn func(K, V) bool) error {
	var failed error
	err := s.store.Range(from, to, func(k, b []byte) bool {
		var key K
		var value V
		if key, failed = decodeState(s, s.keys, s.copyKeys, k); failed != nil {
			return false
		}
		if value, failed = decodeState(s, s.values, s.copyValues, b); failed != nil {
			return false
		}
		s.c.user = s.op
		more := fn(key, value)
		s.c.user = nil
		return more
	})
	if err != nil {
		return s.op.fault("read state", err)
	}
	return failed
}

// decodeState decodes a part of the store's content.
func decodeState[K, V, T any](s *cells[K, V], with serde.Serde[T], clone bool, b []byte) (T, error) {
	if clone {
		b = slices.Clip(bytes.Clone(b))
	}
	s.c.user = s.decode
	v, err := with.Decode(b)
	s.c.user = nil
	if err != nil {
		return v, s.decode.fail(fmt.Errorf("state: %w", err))
	}
	return v, nil
}

// processContext is what a Context leads to.
type processContext struct {
	c       *instance
	op      *operator
	live    bool // the function is running
	handles []StateStore
	stores  []any // *cells[K, V] or *timerCells[K], as handles
	// identity is that of the record or the timer in hand.
	identity record.Identity
	// broken is an error of the state, and not of the record, or of a record that is too large for it, of which a part may be
	// written: it counts even if the function swallows it.
	broken error
}

// back returns to user code with the answer of a store. A panic of the store itself does not come
// by here, so that it is not taken for the user's.
func (p *processContext) back(err error) error {
	if p == nil {
		return err
	}
	if p.live {
		p.c.user = p.op
	}
	if err == nil || p.broken != nil || errors.Is(err, ErrNullKey) || errors.Is(err, errMisused) {
		return err
	}
	var oe *OperatorError
	if !errors.As(err, &oe) || oe.Stage == StageDecode || errors.Is(err, ErrTooLarge) {
		p.broken = err
	}
	return err
}
