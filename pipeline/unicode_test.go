package pipeline

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"cel.dev/cel-go/common/types"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// noUnicode are texts, as they stand between the quotes, that are no text of Unicode characters: bytes that are not UTF-8, and
// halves of a pair of UTF-16. encoding/json reads all of them as U+FFFD, so that two of them are one.
func noUnicode() []string {
	return []string{
		"\xff", "\xfe", "a\x80", "\xc3", "\xc3(", "\xc0\x80", "\xe2\x82", "\xed\xa0\x80", "\xf4\x90\x80\x80", "01234567\xff89abcdef", "é\xff",
		`\ud800`, `\udc00`, `\uD83D`, `\ud800x`, `\ud800\n`, `\ud800\u0041`, `\ud800\ud800`, `\udc00\ud800`, `\ud83d\ude00\ud83d`, `01234567\udfff`,
	}
}

// strictText says, by other means than the scanner, whether JSON is all Unicode.
func strictText(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	for _, e := range anyEscape.FindAllString(string(b), -1) {
		if len(e) == 6 && strings.ContainsAny(e[2:3], "dD") && strings.ContainsAny(e[3:4], "89abcdefABCDEF") {
			return false
		}
	}
	return true
}

var anyEscape = regexp.MustCompile(`\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.`)

// TestTextThatIsNoUnicode: two IDs that differ in such bytes would be one, and a record would go as the repeat of another one.
func TestTextThatIsNoUnicode(t *testing.T) {
	for _, bad := range noUnicode() {
		for _, doc := range []string{`{"id":"%s"}`, `{"%s":1}`, `{"x":{"y":["%s"]},"id":"a"}`, `{"x":[{"%s":null}],"id":"a"}`, `["%s"]`, `"%s"`} {
			doc := fmt.Sprintf(doc, bad)
			if _, err := findField([]byte(doc), "id"); err == nil {
				t.Errorf("%q is searched", doc)
			}
			if _, err := (&decoder{adapter: types.DefaultTypeAdapter}).root([]byte(doc), types.DynType); err == nil {
				t.Errorf("%q is decoded", doc)
			}
			if v := fromJSON(types.Bytes(doc)); !types.IsError(v) {
				t.Errorf("json() takes %q", doc)
			}
		}
		if b, err := openEventErr(bad); err == nil {
			t.Errorf("a CloudEvent with %q became %q", bad, b)
		}
	}
	for _, good := range []string{"\uFFFD", `\ufffd`, `\ud83d\ude00`, `\uD83D\uDE00\ud83d\ude00`, "\U0001F600", `\\ud800`, `\\\\udc00`, `\u0000`, "\u07ff\u0800\uffff"} {
		if _, err := findField(fmt.Appendf(nil, `{"id":"%s"}`, good), "id"); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
}

func openEventErr(text string) ([]byte, error) {
	b, _, err := openEvent(fmt.Appendf(nil, `{"specversion":"1.0","id":"%s","source":"s","data":{}}`, text), nil)
	return b, err
}

// TestNoRecordIsLostToUnicode: of all such records none goes in silence: each is an error of the decoding.
func TestNoRecordIsLostToUnicode(t *testing.T) {
	for _, id := range []string{`"value.id"`, `["value.id", "value.n"]`, `"string(value.id)"`} {
		h := run(t, head(`
types: {T: {id: string, n: int}}
sources: {in: {topic: in, type: T}}
steps:
  - {name: only, dedup: {id: %s, retention: 1h, scope: partition}}
  - {name: out, to: {topic: out}}
`, id))
		for _, bad := range noUnicode() {
			err := h.send("in", nil, fmt.Appendf(nil, `{"n":1,"id":"%s"}`, bad))
			var oe *topology.OperatorError
			if !errors.As(err, &oe) || oe.Stage != topology.StageDecode {
				t.Errorf("id %s: %q: %v, want an error of the decoding", id, bad, err)
			}
		}
		if n := len(h.out["out"]); n != 0 {
			t.Errorf("id %s: %d of them came out", id, n)
		}
	}
}

// TestTextsAreWrittenAsTheyAre: a text that is not UTF-8 is not written as another one: the parts of a key would be equal.
func TestTextsAreWrittenAsTheyAre(t *testing.T) {
	for _, bad := range []string{"\xff", "a\xfe", "\xed\xa0\x80"} {
		list := types.DefaultTypeAdapter.NativeToValue([]string{"a", bad})
		object := &jsonObject{open: true, names: []string{bad}, fields: []jsonField{{val: types.True}}}
		dict := types.DefaultTypeAdapter.NativeToValue(map[string]int{bad: 1})
		for what, v := range map[string]any{"list": list, "object": object, "map": dict} {
			if b, err := appendJSON(nil, types.DefaultTypeAdapter.NativeToValue(v), 0); err == nil {
				t.Errorf("%s: %q is written as %q", what, bad, b)
			}
		}
	}
	h := record.Headers{{Key: "\xff", Value: []byte("1")}, {Key: "\xfe", Value: []byte("2")}, {Key: "ok", Value: []byte("\xfe")}, {Key: "é", Value: []byte("3")}}
	if b, err := appendJSON(nil, newHeaders(h, &decoder{adapter: types.DefaultTypeAdapter}), 0); err != nil || string(b) != `{"é":"3"}` {
		t.Errorf("headers: %s, %v", b, err)
	}
}

// TestLongCloudEventIDs: the ID of an event is a text, whatever the lengths of its parts: it can be a part of a key or go into the value.
func TestLongCloudEventIDs(t *testing.T) {
	seen := map[string]bool{}
	for _, n := range []int{1, 127, 128, 129, 200, 300, 20_000} {
		for _, swap := range []bool{false, true} {
			source, id := strings.Repeat("s", n), "i"
			if swap && n > 1 {
				source, id = id, source
			} else if swap {
				continue
			}
			r := event{Headers: record.Headers{{Key: "ce_source", Value: []byte(source)}, {Key: "ce_id", Value: []byte(id)}}}
			got, err := cloudEventID(&r)
			if err != nil || !utf8.ValidString(string(got)) || seen[string(got)] {
				t.Errorf("source of %d, id of %d bytes: %v, text %t, seen %t", len(source), len(id), err, utf8.ValidString(string(got)), seen[string(got)])
			}
			seen[string(got)] = true
		}
	}
}

// TestEqualKeysHaveEqualBytes: a decimal with other zeros at its end is the same part of a key.
func TestEqualKeysHaveEqualBytes(t *testing.T) {
	for _, typ := range []string{"decimal", "any"} {
		h := run(t, head(`
types: {T: {a: %s, b: string}}
sources: {in: {topic: in, type: T}}
steps:
  - {name: sums, aggregate: {by: [value.a, value.b], fields: {n: {count: "true"}}}}
  - {name: out, to: {topic: out}}
`, typ))
		for _, a := range []string{"1.5", "1.50", "15e-1", "1.500"} {
			if err := h.send("in", nil, fmt.Appendf(nil, `{"a":%s,"b":"x"}`, a)); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range h.out["out"] {
			if first := h.out["out"][0].Key; !bytes.Equal(r.Key, first) {
				t.Errorf("%s: keys %s and %s", typ, first, r.Key)
			}
		}
	}
}

// FuzzTextsStayApart: two texts that differ are never read as one, unless their escapes mean the same characters.
func FuzzTextsStayApart(f *testing.F) {
	for _, s := range noUnicode() {
		f.Add([]byte(s), []byte("\uFFFD"))
		f.Add([]byte(s), []byte("\xfd"))
	}
	f.Add([]byte("é"), []byte(`\u00e9`))
	f.Add([]byte("a"), []byte("b"))
	find := func(text []byte) (string, bool) {
		id := &expr{field: "id", typ: types.StringType}
		v, err := (valueSerde{format: formatJSON, field: "id", raw: true}).Decode(fmt.Appendf(nil, `{"id":"%s"}`, text))
		return string(id.id(&event{Value: v})), err == nil
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		x, ok := find(a)
		y, ok2 := find(b)
		if !ok || !ok2 || x == "" || x != y || bytes.Equal(a, b) {
			return
		}
		if !bytes.ContainsRune(a, '\\') && !bytes.ContainsRune(b, '\\') && !bytes.ContainsRune(a, '"') && !bytes.ContainsRune(b, '"') {
			t.Fatalf("%q and %q are one ID, %q", a, b, x)
		}
		// With escapes: what is written again is the text itself, which is read as the same ID.
		out, err := appendString(nil, x)
		if err != nil {
			t.Fatalf("%q was read from %q, and cannot be written: %v", x, a, err)
		}
		if z, ok := find(out[1 : len(out)-1]); !ok || z != x {
			t.Fatalf("%q of %q is written as %q and read as %q", x, a, out, z)
		}
		if strings.ContainsRune(x, utf8.RuneError) && !bytes.Contains(a, []byte("\uFFFD")) && !bytes.Contains(bytes.ToLower(a), []byte(`\ufffd`)) {
			t.Fatalf("%q was read as %q", a, x)
		}
	})
}
