package serde

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"
)

// JSON is the Serde of JSON by encoding/json and its struct tags. Fields that T does not know are
// ignored; bytes behind the value are an error. <, > and & are written as they are. Depth and size of what
// is decoded are bounded by the record (and by encoding/json's 10,000 levels).
//
// Text is Unicode, both ways: what encoding/json would quietly read or write as U+FFFD (bytes that are not UTF-8,
// halves of a UTF-16 pair) is refused with [ErrText], since two IDs or keys that differ there would be one.
//
// If T is a pointer or an interface, nil is null. For any other T null is refused with [ErrNull], and so is the
// literal null, which encoding/json would quietly take for a zero value; a slice, a map or a type
// with its own UnmarshalJSON may be the literal null. A nil slice or map is written as that literal: it
// is an empty collection far more often than it is meant as a tombstone.
func JSON[T any]() Serde[T] {
	t := reflect.TypeFor[T]()
	s := &jsonSerde[T]{}
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface:
		s.nullable, s.literal = true, true
	case reflect.Slice, reflect.Map:
		s.literal = true
	default:
		s.literal = reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
	}
	s.encoders.New = func() any {
		e := &encoder{}
		e.json = json.NewEncoder(e)
		e.json.SetEscapeHTML(false)
		return e
	}
	return s
}

type jsonSerde[T any] struct {
	nullable bool // nil is null
	literal  bool // T has a value for the literal null
	encoders sync.Pool
}

// encoder writes JSON behind the bytes that it is given.
type encoder struct {
	json *json.Encoder
	out  []byte
}

// Write implements io.Writer. It never fails, so that the json.Encoder stays usable.
func (e *encoder) Write(p []byte) (int, error) {
	e.out = append(e.out, p...)
	return len(p), nil
}

func (s *jsonSerde[T]) Append(dst []byte, v T) ([]byte, error) {
	if s.nullable && reflect.ValueOf(&v).Elem().IsNil() {
		return nil, nil
	}
	e := s.encoders.Get().(*encoder)
	defer s.encoders.Put(e)
	e.out = dst
	err := e.json.Encode(v)
	out := e.out
	e.out = nil // the pool must not keep the caller's memory
	if err == nil && bytes.Contains(out[len(dst):], []byte(replaced)) && hasInvalidText(reflect.ValueOf(&v).Elem()) {
		err = ErrText
	}
	if err != nil {
		return nil, fmt.Errorf("serde: json: %w", err)
	}
	return bytes.TrimSuffix(out, []byte("\n")), nil // which Encode adds
}

func (s *jsonSerde[T]) Decode(b []byte) (T, error) {
	var v T
	if b == nil {
		if s.nullable {
			return v, nil
		}
		return v, null("json")
	}
	if !s.literal && string(bytes.TrimSpace(b)) == "null" {
		return v, null("json")
	}
	err := json.Unmarshal(b, &v)
	if err == nil && !isUnicode(b) {
		err = ErrText
	}
	if err != nil {
		var zero T // not half a value
		return zero, fmt.Errorf("serde: json: %w", err)
	}
	return v, nil
}

func (s *jsonSerde[T]) AliasesInput() bool { return false }
