package serde_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/streamd/streamd/serde"
)

type hidden struct{ Name string }

type label string

func (l label) MarshalText() ([]byte, error) { return []byte(l), nil }

// document has a text in each place that encoding/json writes.
type document struct {
	hidden
	Text    string
	Pointer *string
	Any     any
	List    []string
	Map     map[string]string
	Label   label
	Raw     json.RawMessage
	Not     string `json:"-"`
}

// TestTextIsUnicode: encoding/json reads and writes these as U+FFFD, so that two IDs, or two keys, would be one.
func TestTextIsUnicode(t *testing.T) {
	refuses := func(doc string) {
		t.Helper()
		if v, err := serde.JSON[any]().Decode([]byte(doc)); !errors.Is(err, serde.ErrText) {
			t.Errorf("%q is read as %q, %v", doc, v, err)
		}
		if v, err := serde.JSON[*bill]().Decode([]byte(`{"id":` + doc + `}`)); !errors.Is(err, serde.ErrText) {
			t.Errorf("an ID of %q is read as %v, %v", doc, v, err)
		}
	}
	for _, text := range []string{
		"\xff", "\xfe", "a\x80", "\xc0\x80", "\xed\xa0\x80", `\ud800`, `\uDFFF`, `\ud800x`, `\ud800\n`, `\ud800\u0041`, `\ud800\ud800`, `\udc00\ud800`,
		`\\\ud800`, `\ud83d\ude00\ud83d`,
	} {
		refuses(`"` + text + `"`)
	}
	for text, want := range map[string]string{`\ufffd`: "\uFFFD", "\uFFFD": "\uFFFD", `\ud83d\ude00`: "\U0001F600", `\\ud800`: `\ud800`, `\u0000`: "\x00", `\"\u00e9`: `"é`} {
		if v, err := serde.JSON[string]().Decode([]byte(`"` + text + `"`)); err != nil || v != want {
			t.Errorf("%q is read as %q, %v", text, v, err)
		}
	}

	bad, good := "a\xff", "\uFFFD"
	for what, v := range map[string]document{
		"text": {Text: bad}, "pointer": {Pointer: &bad}, "interface": {Any: map[string]any{"x": []any{bad}}}, "list": {List: []string{"", bad}},
		"map key": {Map: map[string]string{bad: ""}}, "map value": {Map: map[string]string{"": bad}}, "TextMarshaler": {Label: label(bad)}, "embedded": {hidden: hidden{bad}},
	} {
		if b, err := serde.JSON[document]().Append([]byte("pre"), v); !errors.Is(err, serde.ErrText) {
			t.Errorf("%s: written as %q, %v", what, b, err)
		}
	}
	v := document{hidden{good}, good, &good, good, []string{good}, map[string]string{good: good}, label(good), json.RawMessage(`"\ufffd"`), bad}
	if _, err := serde.JSON[document]().Append([]byte(`\ufffd`), v); err != nil {
		t.Errorf("a text with U+FFFD: %v", err)
	}
}
