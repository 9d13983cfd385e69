package processor

import (
	"iter"

	"github.com/tidwall/btree"
)

// This file is how a range of a store is read, of which one part lies on the disk and the rest is changes in memory that are
// not there yet: those of the open transaction (overlay) and those that wait (lagging). A range costs what is read of it,
// however many changes there are.

// change is what a key has become. A nil value: it was deleted.
type change struct {
	key   string
	value []byte
}

// changesAt bounds how many changes are taken in one go, at first. A look at what is due needs few of them.
const changesAt = 16

// keysInOrder are the keys of changes, each with what is known of it. Who reads no range has no order, and pays nothing for it:
// it is made when it is asked for, and kept from then on.
type keysInOrder[V any] struct {
	tree *btree.Map[string, V] // nil: nobody asked
}

// keep makes the order of the keys that there are.
func (x *keysInOrder[V]) keep(keys iter.Seq2[string, V]) {
	x.tree = btree.NewMap[string, V](0)
	for k, v := range keys {
		x.tree.Set(k, v)
	}
}

func (x *keysInOrder[V]) kept() bool { return x.tree != nil }

func (x *keysInOrder[V]) set(key string, v V) {
	if x.tree != nil {
		x.tree.Set(key, v)
	}
}

func (x *keysInOrder[V]) remove(key string) {
	if x.tree != nil {
		x.tree.Delete(key)
	}
}

func (x *keysInOrder[V]) forget() { x.tree = nil }

// take appends to dst what value says of the keys with from <= key < to (nil: no bound), in order, at most n.
func (x *keysInOrder[V]) take(dst []change, from, to []byte, n int, value func(V) []byte) []change {
	end := len(dst) + n
	x.tree.Ascend(string(from), func(k string, v V) bool {
		if len(dst) == end || to != nil && k >= string(to) {
			return false
		}
		dst = append(dst, change{k, value(v)})
		return true
	})
	return dst
}

// ranged calls fn for what a store holds, as LocalStore.Range does.
type ranged func(from, to []byte, fn func(key, value []byte) bool) error

// changeList appends to dst the first changes of a range, in order, at most n.
type changeList func(dst []change, from, to []byte, n int) []change

// rangeOver is ranged for a store with changes over it.
//
// It takes them in portions, and reads of the store what lies between the first and the last of a portion. That the
// store is given changes meanwhile does not show, if it is given such only as changes has told or would tell: those
// of the portion in hand hide what it has, and those behind are asked for later, before the store is.
func rangeOver(store ranged, from, to []byte, changes changeList, fn func(key, value []byte) bool) error {
	var room [changesAt]change
	some := room[:0]
	for n := changesAt; ; n *= 4 {
		some = changes(some[:0], from, to, n)
		bound, last := to, len(some) < n
		if !last {
			bound = append([]byte(some[n-1].key), 0)
		}
		stopped, err := mergeOver(store, from, bound, some, fn)
		if err != nil || stopped || last {
			return err
		}
		from = bound
	}
}

// mergeOver is rangeOver for one portion. stopped: fn wants no more.
func mergeOver(store ranged, from, to []byte, changes []change, fn func(key, value []byte) bool) (stopped bool, err error) {
	emit := func(c change) bool {
		stopped = c.value != nil && !fn([]byte(c.key), c.value)
		return !stopped
	}
	err = store(from, to, func(k, v []byte) bool {
		for len(changes) > 0 && changes[0].key < string(k) {
			c := changes[0]
			if changes = changes[1:]; !emit(c) {
				return false
			}
		}
		if len(changes) > 0 && changes[0].key == string(k) {
			c := changes[0]
			changes = changes[1:]
			return emit(c)
		}
		stopped = !fn(k, v)
		return !stopped
	})
	for err == nil && !stopped && len(changes) > 0 {
		emit(changes[0])
		changes = changes[1:]
	}
	return stopped, err
}
