package txlog

import "fmt"

// Store is a handle on one state store of one task. Reads may be made from any goroutine, also
// while a batch is applied: each read then sees the batch or not, several reads see parts of it.
type Store struct {
	task *Task
	text string
	name *name
	err  error // the name is not possible
}

// Store returns the handle of the state store with that name, for the life of the task. Nothing
// is written until the first batch that uses it.
func (t *Task) Store(text string) *Store {
	t.mu.Lock()
	s := t.stores[text]
	t.mu.Unlock()
	if s != nil {
		return s
	}
	n, err := t.log.intern(nameStore, text)
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.stores[text]; s != nil {
		return s
	}
	s = &Store{task: t, text: text, name: n, err: err}
	t.stores[text] = s
	return s
}

// Get returns the value of a key in a store, nil if it is absent; see [Store.Get].
func (t *Task) Get(store string, key []byte) ([]byte, error) { return t.Store(store).Get(key) }

// Range calls fn for the keys of a store; see [Store.Range].
func (t *Task) Range(store string, from, to []byte, fn func(k, v []byte) bool) error {
	return t.Store(store).Range(from, to, fn)
}

// Get returns the value of a key, nil if it is absent; an empty value is not nil. The value
// belongs to the caller.
func (s *Store) Get(key []byte) ([]byte, error) {
	if s.err != nil {
		return nil, s.err
	}
	if len(key) > MaxKeyBytes {
		return nil, nil // no batch can have written it
	}
	var buf [64]byte
	return s.task.log.kv.get(appendStateKey(buf[:0], s.task.number(), s.name.number, key))
}

// Range calls fn for each key from from on and before to, in the order of the bytes, until fn
// returns false. A nil from is the first key, a nil to is no end. Key and value are valid only
// during the call.
func (s *Store) Range(from, to []byte, fn func(k, v []byte) bool) error {
	if s.err != nil {
		return s.err
	}
	number := s.task.number()
	prefix := appendStateKey(nil, number, s.name.number, nil)
	start := appendStateKey(nil, number, s.name.number, from)
	err := s.task.log.kv.each(prefix, start, func(e entry) ([]byte, error) {
		key := e.key[len(prefix):]
		if to != nil && string(key) >= string(to) {
			return nil, errStop
		}
		value, err := e.value()
		if err != nil {
			return nil, err
		}
		if !fn(key, value) {
			return nil, errStop
		}
		return nil, nil
	})
	if err != nil {
		return fmt.Errorf("txlog: store %q: %w", s.text, err)
	}
	return nil
}
