package registry_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/serde/registry"
	"github.com/streamd/streamd/serde/registry/registrytest"
)

const moneyProto = `syntax = "proto3"; package x; message Money { string amount = 1; }`

const billProto = `syntax = "proto3";
package x;
import "money.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Bill {
  string bill_id = 1;
  int64 big = 2;
  uint64 unsigned = 3;
  optional int32 may = 4;
  Kind kind = 5;
  bytes raw = 6;
  double d = 7;
  repeated Line lines = 8;
  map<string, int32> counts = 9;
  oneof way { string card = 10; bool cash = 11; }
  google.protobuf.Timestamp at = 12;
  google.protobuf.Duration took = 13;
  google.protobuf.Int64Value wrapped = 14;
  google.protobuf.Value any = 15;
  Money money = 16;
  Bill parent = 17;
  enum Kind { NONE = 0; CREDIT = 1; }
  message Line { string text = 1; message Deep { int32 n = 1; } }
}
message Other { string name = 1; }
`

// protoRegistry has the schemas: x.Bill is in the second one.
func protoRegistry(t testing.TB) *registrytest.Registry {
	r := registrytest.New(t)
	r.Add("money", "PROTOBUF", moneyProto)
	r.Add("bill", "PROTOBUF", billProto, registrytest.Reference{Name: "money.proto", Subject: "money", Version: 1})
	return r
}

const zeroBill = `"big":0,"unsigned":0,"kind":"NONE","raw":"","d":0,"lines":[],"counts":{}`

func TestProtobufValues(t *testing.T) {
	r := protoRegistry(t)
	for _, c := range []struct {
		message, json, again string // again: what the JSON of the written value is; empty: json
		prefix               []byte // behind the ID
	}{
		{"", `{"bill_id":"a",` + zeroBill + `}`, "", []byte{0}},
		{"x.Bill", `{"bill_id":"","big":-9223372036854775808,"unsigned":18446744073709551615,"may":0,"kind":"CREDIT","raw":"AP8=","d":0.1,"lines":[{"text":"a"},{"text":""}],` +
			`"counts":{"a":1,"b":-1},"cash":false,"at":"2026-11-30T09:38:52.392000001Z","took":"-1.5s","wrapped":7,"any":{"x":[1,null,"t"]},"money":{"amount":"10.10"},"parent":{"bill_id":"p",` + zeroBill + `}}`, "", []byte{0}},
		{"x.Other", `{"name":"o"}`, "", []byte{2, 2}},
		{"x.Bill.Line.Deep", `{"n":5}`, "", []byte{6, 0, 0, 0}},
		{"x.Bill", `{"billId":"a","big":"7"}`, `{"bill_id":"a",` + strings.Replace(zeroBill, `"big":0`, `"big":7`, 1) + `}`, []byte{0}}, // the names of JSON, and numbers as texts
	} {
		codec := codecOf(t, r, registry.Output{Format: registry.Protobuf, Subject: "bill", Message: c.message})
		b, err := codec.AppendValue([]byte("x"), []byte(c.json))
		if err != nil || !strings.HasPrefix(string(b), "x"+string(wire(2, string(c.prefix)))) {
			t.Errorf("%s: written as %x, %v", c.json, b, err)
			continue
		}
		want := c.again
		if want == "" {
			want = c.json
		}
		reads(t, codec, b[1:], want)
	}
}

// TestProtobufBytes: the bytes are those of protoc, not only those of what wrote them here.
func TestProtobufBytes(t *testing.T) {
	codec := codecOf(t, protoRegistry(t), registry.Output{Format: registry.Protobuf})
	value := protowire.AppendTag([]byte{0}, 1, protowire.BytesType)
	value = protowire.AppendString(value, "a")
	value = protowire.AppendVarint(protowire.AppendTag(value, 5, protowire.VarintType), 9)   // an enum of a newer schema
	value = protowire.AppendVarint(protowire.AppendTag(value, 999, protowire.VarintType), 9) // a field of one
	want := `{"bill_id":"a",` + strings.Replace(zeroBill, `"NONE"`, `9`, 1) + `}`
	reads(t, codec, wire(2, string(value)), want)
	reads(t, codec, wire(2, "\x02\x00"+string(value[1:])), want) // the first message, written out
}

func TestBadProtobuf(t *testing.T) {
	r := protoRegistry(t)
	codec := codecOf(t, r, registry.Output{Format: registry.Protobuf, Subject: "bill"})
	double := protowire.AppendFixed64(protowire.AppendTag([]byte{0}, 7, protowire.Fixed64Type), math.Float64bits(math.Inf(1)))
	deep := []byte{}
	for range 200 {
		deep = protowire.AppendBytes(protowire.AppendTag(nil, 17, protowire.BytesType), deep)
	}
	for _, c := range []struct{ value, words string }{
		{"", "place of the message"},
		{"\xff", "place of the message"},
		{"\x80\x80\x04", "place of the message"},
		{"\x02\x08", "no message at [4]"},
		{"\x01", "place of the message"},
		{"\x00\x0a\x05a", "parse"},
		{"\x00\x0a\x01\xff", "UTF-8"},
		{string(double), "no form in JSON"},
		{"\x00" + string(deep), "recursion"},
		{"\x00\x62\x0c\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x10\x00", "years 1 and 9999"},
	} {
		_, err := codec.AppendJSON(nil, wire(2, c.value))
		fails(t, err, false, c.words)
	}
	for _, c := range []struct{ json, words string }{
		{`{"nobody":1}`, "nobody"},
		{`{"big":1.5}`, "big"},
		{`{"big":9223372036854775808}`, "big"},
		{`[]`, "x.Bill"},
		{`{"kind":"DEBIT"}`, "DEBIT"},
		{`{"bill_id":null} x`, "not JSON"},
	} {
		_, err := codec.AppendValue(nil, []byte(c.json))
		fails(t, err, false, c.words)
	}
	for _, o := range []registry.Output{{Message: "Bill"}, {Schema: "message"}, {Schema: `syntax = "proto3";`}, {Schema: `import "nobody.proto";`}} {
		o.Format, o.Subject = registry.Protobuf, "bill"
		if err := codecOf(t, r, o).Resolve(t.Context()); err == nil || errors.Is(err, serde.ErrUnavailable) {
			t.Errorf("%v: %v", o, err)
		}
	}
}

// FuzzProtobuf: no bytes make the reader panic; what was read is written as bytes that read the same.
func FuzzProtobuf(f *testing.F) {
	codec := codecOf(f, protoRegistry(f), registry.Output{Format: registry.Protobuf, Subject: "bill"})
	for _, doc := range []string{`{"bill_id":"a"}`, `{"at":"2026-11-30T09:38:52Z","any":[1,{"a":null}],"parent":{"counts":{"a":1}}}`} {
		b, err := codec.AppendValue(nil, []byte(doc))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(slices.Clone(b[5:]))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		doc, err := codec.AppendJSON(nil, wire(2, string(b)))
		if err != nil || len(b) == 0 || b[0] != 0 {
			return
		}
		back, err := codec.AppendValue(nil, doc)
		if err != nil {
			t.Fatalf("%x is read as %s, which cannot be written: %v", b, doc, err)
		}
		reads(t, codec, back, string(doc))
	})
}
