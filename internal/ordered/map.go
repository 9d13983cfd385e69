package ordered

import (
	"iter"
	"slices"
	"strings"
)

// Map is a map with an order. The zero value is empty.
//
// Reading and writing one key costs what it costs with a map of Go. The order is made when it is asked for, out of the
// old one and what is new since: who puts keys at the end, as a queue by time does, moves nothing.
type Map struct {
	values map[string][]byte
	keys   []string // sorted, each once; some of them may be deleted
	fresh  []string // keys that are in values and perhaps not in keys
	dead   int      // at least so many of keys are deleted
}

// Len is the number of keys.
func (m *Map) Len() int { return len(m.values) }

// Get returns the value of a key, nil if there is none.
func (m *Map) Get(key []byte) []byte { return m.values[string(key)] }

// Put sets the value of a key. A nil value is a value: see Delete.
func (m *Map) Put(key string, value []byte) {
	if m.values == nil {
		m.values = map[string][]byte{}
	}
	before := len(m.values)
	m.values[key] = value
	if len(m.values) > before {
		m.fresh = append(m.fresh, key)
	}
}

// Delete takes a key away.
func (m *Map) Delete(key []byte) {
	before := len(m.values)
	delete(m.values, string(key))
	m.dead += before - len(m.values)
}

// Range calls fn for each key with from <= key < to in order, until it returns false. A nil to is no bound. fn may read the
// map and must not change it.
func (m *Map) Range(from, to []byte, fn func(key string, value []byte) bool) {
	m.settle()
	at, _ := slices.BinarySearch(m.keys, string(from))
	for _, k := range m.keys[at:] {
		if to != nil && k >= string(to) {
			return
		}
		if v, ok := m.values[k]; ok && !fn(k, v) {
			return
		}
	}
}

// All is Range over everything.
func (m *Map) All() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) { m.Range(nil, nil, yield) }
}

// settle puts what is new into the order.
func (m *Map) settle() {
	if m.dead > 32 && m.dead > len(m.keys)/2 {
		m.keys = slices.DeleteFunc(m.keys, func(k string) bool { _, ok := m.values[k]; return !ok })
		m.dead = 0
	}
	if len(m.fresh) == 0 {
		return
	}
	slices.Sort(m.fresh)
	// One that was deleted and put again may be there twice, and in keys already.
	m.fresh = slices.DeleteFunc(slices.Compact(m.fresh), func(k string) bool {
		_, there := slices.BinarySearch(m.keys, k)
		return there
	})
	// From behind, so that what lies before the first new key is not moved.
	i, j := len(m.keys)-1, len(m.fresh)-1
	m.keys = slices.Grow(m.keys, len(m.fresh))[:len(m.keys)+len(m.fresh)]
	for at := len(m.keys) - 1; j >= 0; at-- {
		if i >= 0 && strings.Compare(m.keys[i], m.fresh[j]) > 0 {
			m.keys[at] = m.keys[i]
			i--
		} else {
			m.keys[at] = m.fresh[j]
			j--
		}
	}
	clear(m.fresh)
	m.fresh = m.fresh[:0]
}
