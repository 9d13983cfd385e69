package registry_test

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/serde/registry"
	"github.com/streamd/streamd/serde/registry/registrytest"
)

// avroCodec is a codec that reads and writes a schema, which is put into a registry; value puts its ID in front of bytes.
func avroCodec(t testing.TB, r *registrytest.Registry, schema string) (c *registry.Codec, value func(string) []byte) {
	t.Helper()
	subject := fmt.Sprintf("s%d", len(r.Requests()))
	id := uint32(r.Add(subject, "AVRO", schema))
	return codecOf(t, r, registry.Output{Format: registry.Avro, Subject: subject}), func(s string) []byte { return wire(id, s) }
}

func codecOf(t testing.TB, r *registrytest.Registry, o registry.Output) *registry.Codec {
	t.Helper()
	c, err := registry.New(registry.Config{URLs: []string{r.URL}})
	if err != nil {
		t.Fatal(err)
	}
	return registry.NewCodec(c, o)
}

// wire is a value of schema id.
func wire(id uint32, value string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, id), value...)
}

// TestAvroValues: each type in both directions. The bytes are those of the specification (Avro 1.12, Binary Encoding and Logical Types).
func TestAvroValues(t *testing.T) {
	r := registrytest.New(t)
	const ymd = `{"type":"long","logicalType":"timestamp-`
	for _, c := range []struct{ schema, bytes, json string }{
		{`"null"`, "", `null`},
		{`"boolean"`, "01", `true`},
		{`"int"`, "01", `-1`},
		{`"int"`, "feffffff0f", `2147483647`},
		{`"long"`, "ffffffffffffffffff01", `-9223372036854775808`},
		{`"float"`, "cdcccc3d", `0.1`},
		{`"double"`, "9a9999999999b93f", `0.1`},
		{`"double"`, "0000000000000080", `-0`},
		{`"double"`, "59f3f8c21f6ea501", `1e-300`},
		{`"string"`, "06666f6f", `"foo"`},
		{`"string"`, "02" + "0a", `"\n"`},
		{`"bytes"`, "0400ff", `"AP8="`},
		{`{"type":"fixed","name":"f","size":2}`, "00ff", `"AP8="`},
		{`{"type":"enum","name":"e","symbols":["A","B"]}`, "02", `"B"`},
		{`{"type":"array","items":"int"}`, "04020400", `[1,2]`},
		{`{"type":"array","items":"int"}`, "00", `[]`},
		{`{"type":"map","values":"int"}`, "04" + "0261" + "02" + "0262" + "04" + "00", `{"a":1,"b":2}`},
		{`["null","string","int"]`, "00", `null`},
		{`["null","string","int"]`, "020266", `"f"`},
		{`["null","string","int"]`, "0402", `1`},
		{`["int","string"]`, "020231", `"1"`}, // a text of digits stays a text
		{`{"type":"record","name":"r","fields":[{"name":"b","type":"int"},{"name":"a","type":["null","string"]}]}`, "0200", `{"b":1,"a":null}`},
		{`{"type":"record","name":"n.list","fields":[{"name":"v","type":"int"},{"name":"next","type":["null","list"]}]}`, "0202" + "0400", `{"v":1,"next":{"v":2,"next":null}}`},

		{`{"type":"bytes","logicalType":"decimal","precision":30,"scale":2}`, "04" + "03f2", `10.10`},
		{`{"type":"bytes","logicalType":"decimal","precision":30,"scale":2}`, "02" + "ff", `-0.01`},
		{`{"type":"bytes","logicalType":"decimal","precision":30,"scale":2}`, "02" + "80", `-1.28`},
		{`{"type":"bytes","logicalType":"decimal","precision":30,"scale":2}`, "02" + "00", `0.00`},
		{`{"type":"bytes","logicalType":"decimal","precision":30,"scale":20}`, "1a" + "018ee90ff6c373e0ee4e3f0a0a", `1234567890.12345678901234567690`},
		{`{"type":"bytes","logicalType":"decimal","precision":5}`, "02" + "7f", `127`},
		{`{"type":"fixed","name":"d","size":4,"logicalType":"decimal","precision":9,"scale":3}`, "ffffffff", `-0.001`},
		{ymd + `millis"}`, "d0b592bdc568", `"2026-11-30T09:38:52.392Z"`},
		{ymd + `micros"}`, "01", `"1969-12-31T23:59:59.999999Z"`},
		{ymd + `nanos"}`, "02", `"1970-01-01T00:00:00.000000001Z"`},
		{`{"type":"long","logicalType":"local-timestamp-micros"}`, "02", `"1970-01-01T00:00:00.000001"`},
		{`{"type":"int","logicalType":"date"}`, "01", `"1969-12-31"`},
		{`{"type":"int","logicalType":"time-millis"}`, "feefb252", `"23:59:59.999"`},
		{`{"type":"long","logicalType":"time-micros"}`, "02", `"00:00:00.000001"`},
		{`{"type":"fixed","name":"u","size":16,"logicalType":"uuid"}`, "00112233445566778899aabbccddeeff", `"00112233-4455-6677-8899-aabbccddeeff"`},
		{`{"type":"string","logicalType":"uuid"}`, "0261", `"a"`},
		{`{"type":"fixed","name":"u","size":12,"logicalType":"duration"}`, "010000000200000003000000", `{"months":1,"days":2,"millis":3}`},
		{`{"type":"string","logicalType":"of nobody"}`, "0261", `"a"`},
	} {
		codec, value := avroCodec(t, r, c.schema)
		b, err := hex.DecodeString(c.bytes)
		if err != nil {
			t.Fatal(err)
		}
		got, err := codec.AppendJSON([]byte("x"), value(string(b)))
		if err != nil || string(got) != "x"+c.json {
			t.Errorf("%s: %s is read as %s, %v; want %s", c.schema, c.bytes, got, err, c.json)
		}
		back, err := codec.AppendValue([]byte("x"), []byte(c.json))
		if err != nil || string(back) != "x"+string(value(string(b))) {
			t.Errorf("%s: %s is written as %x, %v; want %s", c.schema, c.json, back, err, c.bytes)
		}
	}
}

// TestAvroWrites: what is taken beside the forms that are read.
func TestAvroWrites(t *testing.T) {
	r := registrytest.New(t)
	const dec = `{"type":"bytes","logicalType":"decimal","precision":4,"scale":2}`
	const rec = `{"type":"record","name":"r","fields":[{"name":"a","type":"int","default":7},{"name":"b","type":["null","string"],"default":null},
		{"name":"c","type":` + dec + `,"default":"\u0001"},{"name":"d","type":["null","int"]}]}`
	for _, c := range []struct{ schema, json, bytes, words string }{
		{dec, `"10.10"`, "0403f2", ""}, // as a pipeline writes decimals
		{dec, `10.1`, "0403f2", ""},
		{dec, `1e1`, "0403e8", ""},
		{dec, `10.100`, "0403f2", ""},
		{dec, `0.001`, "", "behind the point"},
		{dec, `100.00`, "", "more than 4 digits"},
		{dec, `1e999999999`, "", "digits"},
		{dec, `"x"`, "", "no number"},
		{dec, `null`, "", "want bytes, this is null"},
		{`"long"`, `1.0`, "02", ""},
		{`"long"`, `1.5`, "", "no long"},
		{`"long"`, `9223372036854775808`, "", "no long"},
		{`"int"`, `2147483648`, "", "no int"},
		{`"double"`, `"0.10"`, "9a9999999999b93f", ""},
		{`"double"`, `0.1234567890123456789`, "", "loses digits"},
		{`"double"`, `1e309`, "", "does not fit"},
		{`"string"`, `1`, "", "want string, this is the number 1"},
		{`"bytes"`, `"?"`, "", "base64"},
		{`{"type":"fixed","name":"f","size":2}`, `"AA=="`, "", "want 2 bytes"},
		{`{"type":"enum","name":"e","symbols":["A","B"]}`, `"C"`, "", "no symbol of e"},
		{`["null","int"]`, `"x"`, "", "no number"},
		{`["null","int","boolean"]`, `"x"`, "", "no branch"},
		{`["int","string"]`, `"12"`, "02043132", ""},
		{`["null",` + dec + `]`, `"1.00"`, "02" + "0264", ""},
		{rec, `{}`, "0e00020100", ""},
		{rec, `{"a":1,"x":2}`, "", `no field "x"`},
		{rec, `[]`, "", "want r, this is a list"},
		{`{"type":"record","name":"r","fields":[{"name":"a","type":"int"}]}`, `{}`, "", `field "a" is missing`},
		{`{"type":"long","logicalType":"timestamp-millis"}`, `"2026-01-01T00:00:00.0001Z"`, "", "finer"},
		{`{"type":"long","logicalType":"timestamp-millis"}`, `"2026-01-01T01:00:00+01:00"`, "80a0d5edee66", ""},
		{`{"type":"long","logicalType":"timestamp-millis"}`, `5`, "0a", ""},
		{`{"type":"long","logicalType":"timestamp-millis"}`, `"now"`, "", "no long"},
		{`{"type":"fixed","name":"u","size":16,"logicalType":"uuid"}`, `"00112233445566778899aabbccddeeff"`, "", "no UUID"},
	} {
		codec, _ := avroCodec(t, r, c.schema)
		got, err := codec.AppendValue(nil, []byte(c.json))
		if c.words != "" {
			if err == nil || !strings.Contains(err.Error(), c.words) || errors.Is(err, serde.ErrUnavailable) {
				t.Errorf("%s of %s: %x, %v; want an error with %q", c.schema, c.json, got, err, c.words)
			}
			continue
		}
		if err != nil || hex.EncodeToString(got[min(5, len(got)):]) != c.bytes {
			t.Errorf("%s of %s: %x, %v; want %s", c.schema, c.json, got, err, c.bytes)
		}
	}
}

// TestBadAvro: bytes that are not of the schema are an error of the record, and a few of them cannot ask for much memory.
func TestBadAvro(t *testing.T) {
	r := registrytest.New(t)
	for _, c := range []struct{ schema, bytes, words string }{
		{`"boolean"`, "02", "a boolean of 2"},
		{`"int"`, "", "too early"},
		{`"int"`, "feffffff1f", "is no int"},
		{`"long"`, "ffffffffffffffffffff01", "64 bits"},
		{`"int"`, "0202", "1 bytes behind"},
		{`"double"`, "000000000000f07f", "no form in JSON"},
		{`"string"`, "04c328", "not Unicode"},
		{`"string"`, "01", "negative"},
		{`"string"`, "feffffffffffffffff01", "too early"},
		{`["null","int"]`, "04", "branch 2"},
		{`{"type":"enum","name":"e","symbols":["A"]}`, "02", "symbol 1"},
		{`{"type":"array","items":"null"}`, "feffffffffffffffff01", "16 MiB"},
		{`{"type":"array","items":"null"}`, "ffffffffffffffffff0100", "too many"},
		{`{"type":"record","name":"l","fields":[{"name":"n","type":["null","l"]}]}`, strings.Repeat("02", 1000), "levels deep"},
		{`{"type":"int","logicalType":"date"}`, "feffffff0f", "years 1 and 9999"},
		{`{"type":"long","logicalType":"timestamp-millis"}`, "ffffffffffffffffff01", "years 1 and 9999"},
		{`{"type":"int","logicalType":"time-millis"}`, "01", "time of day"},
		{`{"type":"bytes","logicalType":"decimal","precision":4,"scale":2}`, "8201" + strings.Repeat("11", 65), "65 bytes"},
	} {
		b, err := hex.DecodeString(c.bytes)
		if err != nil {
			t.Fatal(err)
		}
		codec, value := avroCodec(t, r, c.schema)
		got, err := codec.AppendJSON(nil, value(string(b)))
		if err == nil || !strings.Contains(err.Error(), c.words) || errors.Is(err, serde.ErrUnavailable) {
			t.Errorf("%s: %s is read as %.60s, %v; want an error with %q", c.schema, c.bytes, got, err, c.words)
		}
	}
}

// FuzzAvro: no bytes make the reader panic, or write what is no JSON, and what was read is written as bytes that read the same.
func FuzzAvro(f *testing.F) {
	schema := `{"type":"record","name":"n.r","fields":[{"name":"i","type":"int"},{"name":"l","type":{"type":"array","items":["null","string","n.r"]}},
		{"name":"m","type":{"type":"map","values":{"type":"bytes","logicalType":"decimal","precision":60,"scale":5}}},{"name":"d","type":"double"},
		{"name":"t","type":{"type":"long","logicalType":"timestamp-micros"}},{"name":"e","type":{"type":"enum","name":"e","symbols":["A"]}}]}`
	codec, value := avroCodec(f, registrytest.New(f), schema)
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00"))
	f.Add([]byte("\x02\x02\x02\x02a\x00\x02\x02k\x04\x03\xf2\x00\x9a\x99\x99\x99\x99\x99\xb9\x3f\x01\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		doc, err := codec.AppendJSON(nil, value(string(b)))
		if err != nil {
			return
		}
		back, err := codec.AppendValue(nil, doc)
		if err != nil && strings.Contains(err.Error(), "digits") {
			return // more digits than the schema's precision: read, and not written
		}
		if err != nil {
			t.Fatalf("%x is read as %s, which cannot be written: %v", b, doc, err)
		}
		again, err := codec.AppendJSON(nil, back)
		// A map of which a name stands twice is written with the last one.
		if err != nil || string(again) != string(doc) && !strings.Contains(string(doc), `"m":{"`) {
			t.Fatalf("%x is read as %s, then as %s, %v", b, doc, again, err)
		}
	})
}
