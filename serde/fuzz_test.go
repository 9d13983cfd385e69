package serde_test

import (
	"bytes"
	"testing"
	"unicode/utf8"

	"github.com/streamd/streamd/serde"
)

// again says that whatever is decoded is encoded and decoded to the same bytes.
func again[T any](t *testing.T, s serde.Serde[T], b []byte, exact bool) {
	v, err := s.Decode(b)
	if err != nil {
		return
	}
	first, err := s.Append(nil, v)
	if err != nil {
		t.Fatalf("what was decoded from %q cannot be encoded: %v", b, err)
	}
	if exact && !bytes.Equal(first, b) {
		t.Fatalf("%q came back as %q", b, first)
	}
	v2, err := s.Decode(first)
	if err != nil {
		t.Fatalf("what was encoded, %q, cannot be decoded: %v", first, err)
	}
	second, err := s.Append([]byte("p"), v2)
	if err != nil || first != nil && string(second) != "p"+string(first) || first == nil && second != nil {
		t.Fatalf("%q, %v after %q", second, err, first)
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{"", "12345678", "null", `"a"`, `{"id":"b1","amount":1e3,"Tags":["x"]}`, `[1,null,{"a":{}}]`, "{}x"} {
		f.Add([]byte(s))
	}
	f.Add([]byte("\"\xff\""))
	f.Add([]byte(`"\ud800"`))
	f.Fuzz(func(t *testing.T, b []byte) {
		again(t, serde.String(), b, true)
		again(t, serde.Bytes(), b, true)
		again(t, serde.Int64(), b, true)
		again(t, serde.Float64(), b, true)
		again(t, serde.Optional(serde.String()), b, true)
		again(t, serde.JSON[bill](), b, false)
		again(t, serde.JSON[*bill](), b, false)
		again(t, serde.JSON[any](), b, false)
		again(t, serde.JSON[map[string]any](), b, false)
	})
}

func FuzzString(f *testing.F) {
	f.Add("a<&>\u2028")
	f.Add("a\xff")
	f.Add("\uFFFD")
	f.Fuzz(func(t *testing.T, v string) {
		s := serde.JSON[string]()
		b, err := s.Append(nil, v)
		if (err == nil) != utf8.ValidString(v) {
			t.Fatalf("%q is written as %q, %v", v, b, err)
		}
		if err != nil {
			return
		}
		if back, err := s.Decode(b); err != nil || back != v {
			t.Fatalf("%q became %q, %v", v, back, err)
		}
	})
}
