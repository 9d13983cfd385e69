package pipeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"cel.dev/cel-go/common/types"
)

// checkScan compares the scanner with encoding/json on one input.
func checkScan(t *testing.T, b []byte, name string) {
	t.Helper()
	before := bytes.Clone(b)
	found, err := findField(b, name)
	valid := json.Valid(b) && strictText(b)
	if (err == nil) != valid {
		t.Fatalf("%q: JSON and Unicode: %v, the scanner says %v", shorten(string(b)), valid, err)
	}
	if !bytes.Equal(before, b) {
		t.Fatalf("the input was changed")
	}
	if !valid {
		return
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(b, &fields) != nil {
		fields = nil // no object
	}
	want, ok := fields[strings.ToValidUTF8(name, "\uFFFD")]
	if name != strings.ToValidUTF8(name, "\uFFFD") {
		want, ok = nil, false // a name that no JSON has
	}
	if ok != (found != nil) || ok && !bytes.Equal(want, found) {
		t.Fatalf("%q: field %q is %q, want %q", shorten(string(b)), name, found, want)
	}
	// Whatever is found decodes to the same text as encoding/json's.
	if len(found) > 0 && found[0] == '"' {
		var text string
		if err := json.Unmarshal(found, &text); err != nil {
			t.Fatal(err)
		}
		if got := unquoteJSON(found[1 : len(found)-1]); got != text {
			t.Fatalf("%q: got %q, want %q", found, got, text)
		}
	}
}

func scanSeeds() []string {
	return []string{
		`{"id":"a"}`, `{"id":1,"id":2}`, `{"x":{"id":3},"id":null}`, ` { "id" : [1,2,{"id":"x"}] } `, `[]`, `{}`, `"id"`, `1`, `-0`, `01`, `1.`, `1e`, `1e+5`, `-`,
		`{"\u0069d":"escaped"}`, `{"id":"\ud83d\ude00\ud83d"}`, `{"id":"` + "\xff" + `"}`, `{"id":"é"}`, `{"id":"a",}`, `{"id" "a"}`, `{"id":}`, `{id:1}`, `{"id":tru}`, `nul`, ``, ` `,
		`{"id":"a"} x`, `{"id":"a\qb"}`, "{\"id\":\"a\nb\"}", `{"id":"\u12g4"}`, `[1,]`, `[,1]`, `[[[]]]`, `{"a":[{"b":[{}]}]}`, "\xef\xbb\xbf{}", `{"id":"12345678\"9"}`,
		`{"abcdefghijklmnop":1,"id":"abcdefghijklmnopqrstuvwxyz\\"}`, `{"id":"unclosed`, `{"id":"x\`, `tRue`, `truex`, `{"` + strings.Repeat("k", 100) + `":1}`,
		strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000), strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001), strings.Repeat(`{"a":`, 10_001),
	}
}

func TestScanAgreesWithEncodingJSON(t *testing.T) {
	for _, s := range scanSeeds() {
		checkScan(t, []byte(s), "id")
		checkScan(t, []byte(s), "a")
		for cut := range min(len(s), 64) {
			checkScan(t, []byte(s[:cut]), "id")
		}
	}
	// Every byte at every place of a text that is read eight bytes at once.
	for i := range 20 {
		for c := range 256 {
			b := []byte(`{"id":"abcdefghijklmnopqrst"}`)
			b[7+i] = byte(c)
			checkScan(t, b, "id")
		}
	}
}

func FuzzScan(f *testing.F) {
	for _, s := range scanSeeds() {
		f.Add([]byte(s), "id")
	}
	f.Fuzz(func(t *testing.T, b []byte, name string) { checkScan(t, b, name) })
}

// FuzzDecode: what is decoded and written again is JSON, and writing it twice gives the same.
func FuzzDecode(f *testing.F) {
	for _, s := range scanSeeds() {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d := &decoder{adapter: types.DefaultTypeAdapter}
		v, err := d.root(b, types.DynType)
		if err != nil {
			return
		}
		if !json.Valid(b) {
			t.Fatalf("%q was decoded", shorten(string(b)))
		}
		// Without the text that was read, each value must be written by itself.
		if o, ok := v.(*jsonObject); ok {
			o.raw = nil
			for i := range o.fields {
				if _, err := o.field(i); err == nil {
					o.fields[i].raw = nil
				}
			}
		}
		out, err := appendJSON(nil, v, 0)
		if err != nil {
			return
		}
		if !json.Valid(out) {
			t.Fatalf("%q became %q", b, out)
		}
		again, err := appendJSON(nil, v, 0)
		if err != nil || !bytes.Equal(out, again) {
			t.Fatalf("%q, then %q, %v", out, again, err)
		}
	})
}

// TestScannedIDIsTheDecodedID: the short way to an ID gives the same as the long one.
func TestScannedIDIsTheDecodedID(t *testing.T) {
	for _, field := range []string{`"a"`, `"\u0041"`, `""`, `5`, `5.0`, `5e0`, `-0`, `0`, `1.50`, `12345678901234567890`, `1e400`, `0.00000000000000000001`, `true`, `false`, `null`, `{}`, `[]`, `"é"`} {
		for _, typ := range []string{"any", "string", "int"} {
			value := fmt.Appendf(nil, `{"x":1,"id":%s}`, field)
			fast := valueSerde{format: formatJSON, field: "id", raw: true}
			v, err := fast.Decode(value)
			if err != nil {
				t.Fatal(err)
			}
			p := mustLoad(t, head("types: {T: {id: %s}}\nsources: {in: {topic: in, type: T}}\nsteps:\n  - {name: u, dedup: {id: value.id, retention: 1h, scope: partition}}\n  - {name: out, to: {topic: out}}\n", typ), Options{})
			id := p.plan.steps[0].dedup.id
			short := id.find(event{Value: v})
			slow := p.plan.values(p.plan.sources[0].out, nil)
			if !slow.raw || slow.field != "id" {
				t.Fatalf("the pipeline does not take the short way: %+v", slow)
			}
			slow.raw = false
			w, err := slow.Decode(value)
			if err != nil {
				t.Fatal(err)
			}
			if long := id.find(event{Value: w}); long != short {
				t.Errorf("id %s as %s: %q by the search, %q decoded", field, typ, short, long)
			}
		}
	}
}
