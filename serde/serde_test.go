package serde_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamd/streamd/serde"
)

type bill struct {
	ID     string  `json:"id"`
	Amount float64 `json:"amount"`
	Tags   []string
}

// check writes v behind a prefix, compares the bytes and reads them back.
func check[T any](t *testing.T, s serde.Serde[T], v T, want string, equal func(a, b T) bool) {
	t.Helper()
	got, err := s.Append([]byte("pre"), v)
	if err != nil || string(got) != "pre"+want {
		t.Fatalf("Append(%v) = %q, %v, want %q", v, got, err, "pre"+want)
	}
	alone, err := s.Append(nil, v)
	if err != nil || alone == nil || string(alone) != want {
		t.Fatalf("Append to nil of %v = %#v, %v: an encoding must not be null", v, alone, err)
	}
	back, err := s.Decode(alone)
	if err != nil || !equal(v, back) {
		t.Fatalf("Decode(%q) = %v, %v, want %v", alone, back, err, v)
	}
}

func same[T comparable](a, b T) bool { return a == b }

func TestRoundTrip(t *testing.T) {
	check(t, serde.String(), "", "", same)
	check(t, serde.String(), "añb", "añb", same)
	check(t, serde.Bytes(), []byte{}, "", bytes.Equal)
	check(t, serde.Bytes(), []byte{0, 255}, "\x00\xff", bytes.Equal)
	check(t, serde.Int64(), 1, "\x00\x00\x00\x00\x00\x00\x00\x01", same)
	check(t, serde.Int64(), -2, "\xff\xff\xff\xff\xff\xff\xff\xfe", same)
	check(t, serde.Float64(), 1.5, "\x3f\xf8\x00\x00\x00\x00\x00\x00", same)
	check(t, serde.Float64(), math.Inf(-1), "\xff\xf0\x00\x00\x00\x00\x00\x00", same)
	check(t, serde.JSON[int](), 7, "7", same)
	check(t, serde.JSON[string](), "<&>", `"<&>"`, same)
	check(t, serde.JSON[bill](), bill{ID: "b1", Amount: 2}, `{"id":"b1","amount":2,"Tags":null}`,
		func(a, b bill) bool { return a.ID == b.ID && a.Amount == b.Amount && slices.Equal(a.Tags, b.Tags) })
	check(t, serde.JSON[*bill](), &bill{ID: "b1"}, `{"id":"b1","amount":0,"Tags":null}`,
		func(a, b *bill) bool { return a.ID == b.ID })
	check(t, serde.JSON[[]int](), nil, "null", slices.Equal)
	check(t, serde.JSON[any](), any("x"), `"x"`, same)
	check(t, serde.Optional(serde.Int64()), new(int64), "\x00\x00\x00\x00\x00\x00\x00\x00",
		func(a, b *int64) bool { return *a == *b })
}

// nulls checks both directions of a type that has a null.
func nulls[T any](t *testing.T, s serde.Serde[T], isNull func(T) bool) {
	t.Helper()
	v, err := s.Decode(nil)
	if err != nil || !isNull(v) {
		t.Fatalf("Decode(nil) = %v, %v", v, err)
	}
	if b, err := s.Append([]byte("pre"), v); b != nil || err != nil {
		t.Fatalf("Append of null = %q, %v, want nil", b, err)
	}
}

// noNull checks that null is refused.
func noNull[T any](t *testing.T, s serde.Serde[T]) {
	t.Helper()
	if _, err := s.Decode(nil); !errors.Is(err, serde.ErrNull) {
		t.Fatalf("Decode(nil) of %T: %v, want ErrNull", s, err)
	}
}

func TestNull(t *testing.T) {
	nulls(t, serde.Bytes(), func(b []byte) bool { return b == nil })
	nulls(t, serde.JSON[*bill](), func(b *bill) bool { return b == nil })
	nulls(t, serde.JSON[any](), func(v any) bool { return v == nil })
	nulls(t, serde.Optional(serde.String()), func(v *string) bool { return v == nil })
	noNull(t, serde.String())
	noNull(t, serde.Int64())
	noNull(t, serde.Float64())
	noNull(t, serde.JSON[bill]())
	noNull(t, serde.JSON[[]int]())
	noNull(t, serde.JSON[map[string]int]())

	// The literal would otherwise become a zero bill without an error.
	if v, err := serde.JSON[bill]().Decode([]byte(" null\n")); !errors.Is(err, serde.ErrNull) {
		t.Errorf("the literal null became %v, %v", v, err)
	}
	if v, err := serde.JSON[[]int]().Decode([]byte("null")); err != nil || v != nil {
		t.Errorf("the literal null as a slice: %v, %v", v, err)
	}
	if v, err := serde.JSON[json.RawMessage]().Decode([]byte("null")); err != nil || string(v) != "null" {
		t.Errorf("the literal null for its own decoder: %q, %v", v, err)
	}
}

func TestBadInput(t *testing.T) {
	var size *serde.SizeError
	if _, err := serde.Int64().Decode([]byte("12345")); !errors.As(err, &size) || size.Got != 5 || size.Want != 8 {
		t.Errorf("int64 of 5 bytes: %v", err)
	}
	if _, err := serde.Float64().Decode([]byte{}); !errors.As(err, &size) {
		t.Errorf("float64 of no bytes: %v", err)
	}
	for _, text := range []string{"", "{", `{"id":"a"} x`, `{"id":"a"}{}`, `{"id":5}`, "\xff", strings.Repeat("[", 100_000)} {
		if v, err := serde.JSON[bill]().Decode([]byte(text)); err == nil || v.ID != "" {
			t.Errorf("json %.20q = %v, %v, want an error and a zero value", text, v, err)
		}
	}
	if _, err := serde.JSON[float64]().Append(nil, math.NaN()); err == nil {
		t.Error("NaN was encoded as JSON")
	}
	// An error must not spoil the pooled encoder for the next value.
	s := serde.JSON[float64]()
	for range 3 {
		if _, err := s.Append(nil, math.Inf(1)); err == nil {
			t.Fatal("Inf was encoded as JSON")
		}
		if b, err := s.Append(nil, 1); err != nil || string(b) != "1" {
			t.Fatalf("after an error: %q, %v", b, err)
		}
	}
	if v, err := serde.JSON[bill]().Decode([]byte(`{"id":"a","unknown":[1,{}]}`)); err != nil || v.ID != "a" {
		t.Errorf("an unknown field: %v, %v", v, err)
	}
}

func TestBytesCannotReachBeyondTheirRecord(t *testing.T) {
	batch := []byte("firstsecond")
	v, _ := serde.Bytes().Decode(batch[:5])
	_ = append(v, "XXX"...)
	if string(batch) != "firstsecond" {
		t.Fatalf("an append to one value changed the next record: %q", batch)
	}
}

func TestAliases(t *testing.T) {
	for name, got := range map[string]bool{
		"string":         serde.Aliases(serde.String()),
		"bytes":          serde.Aliases(serde.Bytes()),
		"optional bytes": serde.Aliases(serde.Optional(serde.Bytes())),
		"a foreign one":  serde.Aliases[int](foreign{}),
	} {
		if !got {
			t.Errorf("%s is said not to share memory", name)
		}
	}
	if serde.Aliases(serde.Int64()) || serde.Aliases(serde.JSON[bill]()) || serde.Aliases(serde.Optional(serde.Int64())) {
		t.Error("int64, json or an optional one of them is said to share memory")
	}
}

type foreign struct{}

func (foreign) Append(dst []byte, _ int) ([]byte, error) { return dst, nil }
func (foreign) Decode([]byte) (int, error)               { return 0, nil }

func TestNoAllocations(t *testing.T) {
	buf := make([]byte, 0, 64)
	in := []byte("12345678")
	n := testing.AllocsPerRun(100, func() {
		s, _ := serde.String().Decode(in)
		b, _ := serde.String().Append(buf, s)
		n, _ := serde.Int64().Decode(b)
		b, _ = serde.Int64().Append(buf, n)
		v, _ := serde.Bytes().Decode(b)
		_, _ = serde.Bytes().Append(buf, v)
	})
	if n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
