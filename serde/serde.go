package serde

import (
	"errors"
	"fmt"
)

// Serde encodes and decodes one type. It must be safe for concurrent use, and must not panic on any
// input.
type Serde[T any] interface {
	// Append appends the encoding of v to dst and returns the extended slice, or returns nil, for
	// null, with nothing said about what stands behind dst's length. An encoding of no bytes is
	// not null: the result is then an empty slice and not nil, also if dst was nil.
	Append(dst []byte, v T) ([]byte, error)
	// Decode turns bytes into a value. b is nil for null. The value may share b's memory, which
	// nobody changes; whoever changes the value (a []byte) must copy it first.
	Decode(b []byte) (T, error)
}

// ErrNull is the answer of Decode(nil) for a type that has no value for null.
var ErrNull = errors.New("null, where the type has no value for it (serde.Optional gives it one)")

// ErrUnavailable marks an error of Append or Decode that is no fault of the value: what a Serde needs to know of it, such as a
// schema in a registry, cannot be asked for now. The processor applies no error policy to it: it keeps the record, commits
// what was done before, and asks again until there is an answer. A Serde must come back from such a question within
// seconds, since the worker that asks does nothing else.
var ErrUnavailable = errors.New("what the encoding depends on is not available at the moment")

// SizeError is the answer to an encoding that has the wrong length.
type SizeError struct {
	Type      string // the serde's name
	Got, Want int    // bytes
}

// Error returns "serde: type: got bytes, want bytes".
func (e *SizeError) Error() string {
	return fmt.Sprintf("serde: %s: %d bytes, want %d", e.Type, e.Got, e.Want)
}

// aliaser is implemented by a Serde that knows whether what it decodes shares memory with its input.
type aliaser interface{ AliasesInput() bool }

// Aliases says whether values that s decodes may share memory with the bytes they came from. A Serde
// of another package is taken to do so unless it has a method AliasesInput() bool that denies it.
func Aliases[T any](s Serde[T]) bool {
	if a, ok := s.(aliaser); ok {
		return a.AliasesInput()
	}
	return true
}

// extend makes sure that an encoding of no bytes is not taken for null.
func extend(dst []byte) []byte {
	if dst == nil {
		return []byte{}
	}
	return dst
}

func null(name string) error { return fmt.Errorf("serde: %s: %w", name, ErrNull) }
