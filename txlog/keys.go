package txlog

import (
	"encoding/binary"
	"fmt"
)

// Kinds of keys, the first byte of each (docs/format.md).
const (
	kindName      = 'n'
	kindForgotten = 'f'
	kindVersion   = 'v'
	kindPosition  = 'p'
	kindBlock     = 'l'
	kindSeal      = 'g'
	kindRun       = 'r'
	kindFilter    = 'b'
	kindState     = 's'
)

// Kinds of names.
const (
	nameTask     = 't'
	nameOperator = 'o'
	nameStore    = 's'
)

// MaxKeyBytes and MaxValueBytes are the largest key and value of a state store. Badger's own limits
// are 65,000 and, for a value that stays in the tables, one byte less than 1 MiB.
const (
	MaxKeyBytes   = 64_000
	MaxValueBytes = 1<<20 - 1
)

// maxNameBytes is the longest name of a task, an operator or a store.
const maxNameBytes = 1024

// taskKinds are the kinds of keys that a task number owns.
const taskKinds = string(rune(kindPosition)) + string(rune(kindBlock)) + string(rune(kindSeal)) +
	string(rune(kindRun)) + string(rune(kindFilter)) + string(rune(kindState))

func nameKey(kind byte, id uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{kindName, kind}, id)
}

func taskKey(kind byte, task uint16) []byte {
	return binary.BigEndian.AppendUint16(append(make([]byte, 0, 32), kind), task)
}

// generationKey is the common beginning of all keys of that kind of one generation.
func generationKey(kind byte, task, op uint16, gen uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint16(taskKey(kind, task), op), gen)
}

func blockKey(task, op uint16, gen, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(generationKey(kindBlock, task, op, gen), seq)
}

// partKey is the key of a run (n is its slot) or of a piece of a filter.
func partKey(kind byte, task, op uint16, gen uint64, n uint32) []byte {
	return binary.BigEndian.AppendUint32(generationKey(kind, task, op, gen), n)
}

// appendStateKey appends the key of a state store's key to dst.
func appendStateKey(dst []byte, task, store uint16, key []byte) []byte {
	dst = binary.BigEndian.AppendUint16(append(dst, kindState), task)
	dst = binary.BigEndian.AppendUint16(dst, store)
	return append(dst, key...)
}

// genID names one generation of one operator.
type genID struct {
	op  uint16
	gen uint64
}

func (g genID) compare(o genID) int {
	if g.op != o.op {
		return int(g.op) - int(o.op)
	}
	switch {
	case g.gen < o.gen:
		return -1
	case g.gen > o.gen:
		return 1
	}
	return 0
}

// generationKeyBytes is the length of [generationKey].
const generationKeyBytes = 1 + 2 + 2 + 8

// parsedKey is a key of kind 'l', 'g', 'r' or 'b' taken apart.
type parsedKey struct {
	genID
	n uint64 // seq, slot or chunk; 0 for a seal marker
}

// parseGenerationKey takes apart the key of a block, a seal marker, a run or a filter piece.
func parseGenerationKey(key []byte) (parsedKey, error) {
	bad := func() (parsedKey, error) { return parsedKey{}, fmt.Errorf("%w: key %x", ErrDamaged, key) }
	if len(key) < generationKeyBytes {
		return bad()
	}
	k := parsedKey{genID: genID{op: binary.BigEndian.Uint16(key[3:]), gen: binary.BigEndian.Uint64(key[5:])}}
	rest := key[generationKeyBytes:]
	switch key[0] {
	case kindBlock:
		if len(rest) != 8 {
			return bad()
		}
		k.n = binary.BigEndian.Uint64(rest)
	case kindRun, kindFilter:
		if len(rest) != 4 {
			return bad()
		}
		k.n = uint64(binary.BigEndian.Uint32(rest))
	case kindSeal:
		if len(rest) != 0 {
			return bad()
		}
	default:
		return bad()
	}
	return k, nil
}
