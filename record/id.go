package record

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// MaxIDBytes is the longest ID that is accepted. A longer one is handled by the source's
// or the operator's policy for bad IDs, it is never cut.
const MaxIDBytes = 4096

// HashBytes is the size of a [Hash].
const HashBytes = 16

// ID is what makes a record unique: any bytes, 1 to [MaxIDBytes] of them. The empty ID means
// "no ID" and is never equal to another one: whoever compares IDs checks [ID.Empty] first.
type ID string

// StringID returns s as an ID.
func StringID(s string) ID { return ID(s) }

// BytesID returns a copy of b as an ID.
func BytesID(b []byte) ID { return ID(b) }

// CompositeID joins parts without ambiguity: each is preceded by its length, so that
// ("a", "bc") and ("ab", "c") differ. An empty part makes the whole ID empty: a composite
// with a missing part identifies nothing.
func CompositeID(parts ...string) ID {
	n := 0
	for _, p := range parts {
		if p == "" {
			return ""
		}
		n += len(p) + binary.MaxVarintLen32
	}
	b := make([]byte, 0, n)
	for _, p := range parts {
		b = binary.AppendUvarint(b, uint64(len(p)))
		b = append(b, p...)
	}
	return ID(b)
}

// PositionID is the ID of a record by where it stands. It needs all four parts, since offsets
// repeat in another cluster, and in a topic that was deleted and created again (topicID is the
// topic's UUID). It protects against our own re-delivery only: a producer that sends a record
// twice gives it two positions.
func PositionID(clusterID, topicID string, p Partition, o Offset) ID {
	return CompositeID(clusterID, topicID, strconv.Itoa(int(p)), strconv.FormatInt(int64(o), 10))
}

// Empty says whether there is no ID.
func (id ID) Empty() bool { return id == "" }

// ErrNoID and ErrIDTooLong are what [ID.Check] finds.
var (
	ErrNoID      = errors.New("record: no ID")
	ErrIDTooLong = errors.New("record: ID is too long")
)

// Check returns nil for a usable ID, else [ErrNoID] or [ErrIDTooLong].
func (id ID) Check() error {
	switch {
	case id == "":
		return ErrNoID
	case len(id) > MaxIDBytes:
		return fmt.Errorf("%w: %d bytes, at most %d", ErrIDTooLong, len(id), MaxIDBytes)
	}
	return nil
}

// Hash is an ID as it is stored: the first 128 bits of its SHA-256.
//
// The arithmetic: among n remembered IDs of one operator, a new ID is taken for an old one with
// probability n/2^128 (n = 10^9: 3 in 10^30). SHA-256 and not a faster hash, since a producer that
// can choose IDs must not be able to find two with one hash and so make another's record vanish:
// a collision of 128 bits costs 2^64 evaluations.
type Hash [HashBytes]byte

// Hash returns the stored form of the ID.
func (id ID) Hash() Hash {
	// The conversion does not escape and is at most MaxIDBytes long: small IDs stay on the stack.
	var buf [128]byte
	sum := sha256.Sum256(append(buf[:0], id...))
	return Hash(sum[:HashBytes])
}

// Identity is a record's ID in the making: the root ID and the path from it.
// The zero Identity has no ID.
type Identity struct {
	root ID
	// The path in two words, both 0 for a root. Not an array: then the compiler keeps an Identity in
	// registers, and a step of a chain costs half.
	path0, path1 uint64
}

// RootIdentity is the identity of a record as it came from its source.
func RootIdentity(id ID) Identity { return Identity{root: id} }

// Root returns the ID of the source record.
func (i Identity) Root() ID { return i.root }

// Child is the identity of the ordinal-th record that the operator made from this one.
// op is the operator's [OperatorHash].
func (i Identity) Child(op uint64, ordinal uint32) Identity {
	// Two lanes of SplitMix64 with different constants. The input is not chosen by an attacker
	// (operator names and ordinals), so that a well-mixed 128-bit state is enough.
	x := op ^ (uint64(ordinal)+1)*0x9e3779b97f4a7c15
	i.path0 = mix(i.path0 ^ x)
	i.path1 = mix(i.path1 + x*0xd1342543de82ef95 + 1)
	return i
}

// ID resolves the identity: the root ID itself if no operator made a child, else a hash of root
// and path in 32 hexadecimal digits. Empty if the root has no ID.
func (i Identity) ID() ID {
	if i.path0|i.path1 == 0 || i.root == "" {
		return i.root
	}
	var out [2 * HashBytes]byte
	return ID(i.AppendID(out[:0]))
}

// AppendID appends the bytes of [Identity.ID] to dst: what a sink does for each record, without a
// string of its own.
func (i Identity) AppendID(dst []byte) []byte {
	if i.path0|i.path1 == 0 || i.root == "" {
		return append(dst, i.root...)
	}
	const digits = "0123456789abcdef"
	var buf [128]byte
	b := binary.BigEndian.AppendUint64(buf[:0], i.path0)
	b = binary.BigEndian.AppendUint64(b, i.path1)
	sum := sha256.Sum256(append(b, i.root...))
	for _, c := range sum[:HashBytes] {
		dst = append(dst, digits[c>>4], digits[c&15])
	}
	return dst
}

// OperatorHash turns an operator's name into what [Identity.Child] takes (FNV-1a, then mixed).
func OperatorHash(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return mix(h)
}

func mix(z uint64) uint64 {
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

// TimerRoot is the root ID of what an operator makes when time comes to it, and not a record: a window that closes, a
// timer. With the operator's name, which [Identity.Child] adds, it is H(operator, key, timer, fire time,
// ordinal): the same however often and wherever the timer fires again after a crash.
//
// key is the key's bytes, timer says which of the operator's timers it is, at is the time for which it was set. The
// parts are appended to dst, each with its length.
func TimerRoot(dst, key []byte, timer string, at time.Time) []byte {
	dst = append(binary.AppendUvarint(dst, uint64(len(key))), key...)
	dst = append(binary.AppendUvarint(dst, uint64(len(timer))), timer...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(at.Unix()))
	return binary.BigEndian.AppendUint32(dst, uint32(at.Nanosecond()))
}
