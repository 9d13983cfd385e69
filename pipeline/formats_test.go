package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cel.dev/cel-go/common/types"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/serde/registry/registrytest"
)

const billAvro = `{"type":"record","name":"Bill","fields":[{"name":"bill_id","type":"string"},{"name":"account","type":"string"},
	{"name":"amount","type":{"type":"bytes","logicalType":"decimal","precision":20,"scale":2}},{"name":"at","type":{"type":"long","logicalType":"timestamp-micros"}}]}`

const totalAvro = `{"type":"record","name":"Total","fields":[{"name":"account","type":"string"},
	{"name":"total","type":{"type":"bytes","logicalType":"decimal","precision":20,"scale":2}},{"name":"n","type":"long"}]}`

// inRegistry is a value of a schema.
func inRegistry(id int, value string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(id)), value...)
}

// avroBill is a bill of account a, as Avro.
func avroBill(id int, bill string, cents byte) []byte {
	return inRegistry(id, string([]byte{byte(2 * len(bill))})+bill+"\x02a"+"\x02"+string([]byte{cents})+"\x02")
}

// withRegistry is the start of a pipeline whose schemas are in r.
func withRegistry(r *registrytest.Registry, text string) string {
	return "version: 1\nname: test\nkafka: {brokers: [\"localhost:9092\"], schema_registry: {url: \"" + r.URL + "\"}}\n" + text
}

// TestAvroPipeline: what comes as Avro is deduplicated and summed up like JSON, with exact decimals, through a repartition topic, and is written as Avro.
func TestAvroPipeline(t *testing.T) {
	r := registrytest.New(t)
	id := r.Add("bills-value", "AVRO", billAvro)
	out := r.Add("sums", "AVRO", totalAvro)
	const steps = `
steps:
  - {name: unique, dedup: {id: value.bill_id, retention: 1d, scope: partition}}
  - {name: total, aggregate: {by: value.account, fields: {total: {sum: value.amount}, n: {count: true}, last: {last: value.at}}}}
  - {name: out, to: {topic: totals, format: avro, subject: sums, value: {account: key, total: value.total, n: value.n}}}
  - {name: plain, from: total, to: {topic: plain}}
`
	for _, types := range []string{"", "types: {Bill: {bill_id: string, account: string, amount: decimal, at: timestamp}}\n"} {
		source := "sources: {bills: {topic: bills, format: avro}}"
		if types != "" {
			source = types + "sources: {bills: {topic: bills, format: avro, type: Bill, timestamp: value.at}}"
		}
		h := run(t, withRegistry(r, source+steps))
		for _, b := range []struct {
			id    string
			cents byte
		}{{"b1", 10}, {"b1", 10}, {"b2", 20}} {
			if err := h.send("bills", nil, avroBill(id, b.id, b.cents)); err != nil {
				t.Fatal(err)
			}
		}
		want := []string{string(inRegistry(out, "\x02a\x02\x0a\x02")), string(inRegistry(out, "\x02a\x02\x1e\x04"))}
		if got := h.values("totals"); !slices.Equal(got, want) {
			t.Errorf("types %q: totals %q, want %q", types, got, want)
		}
		const last = `{"total":"0.30","n":2,"last":"1970-01-01T00:00:00.000001Z"}`
		if got := h.values("plain"); len(got) != 2 || got[1] != last {
			t.Errorf("types %q: %q, want %s", types, got, last)
		}
	}
}

// TestRegistryAway: a pipeline waits for its registry, whatever on_error says, and takes bytes of no schema for what they are.
func TestRegistryAway(t *testing.T) {
	r := registrytest.New(t)
	id := r.Add("bills-value", "AVRO", billAvro)
	r.Down(true)
	h := run(t, withRegistry(r, `
sources: {bills: {topic: bills, format: avro, timestamp: value.at, on_error: skip}}
steps: [{name: out, to: {topic: out}}]
`))
	if err := h.send("bills", nil, avroBill(id, "b1", 10)); !errors.Is(err, serde.ErrUnavailable) {
		t.Errorf("while the registry is away: %v", err)
	}
	r.Down(false)
	for _, bad := range [][]byte{[]byte("{}"), inRegistry(77, "x"), inRegistry(id, "\xff\xff")} {
		h = run(t, withRegistry(r, "sources: {bills: {topic: bills, format: avro}}\nsteps: [{name: out, to: {topic: out}}]\n"))
		err := h.send("bills", nil, bad)
		// A schema that is not known is asked for some times before the value is to blame.
		for deadline := time.Now().Add(time.Minute); errors.Is(err, serde.ErrUnavailable) && time.Now().Before(deadline); {
			time.Sleep(100 * time.Millisecond)
			err = h.send("bills", nil, bad)
		}
		if err == nil || errors.Is(err, serde.ErrUnavailable) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := h.send("bills", []byte("k"), nil); err != nil || !slices.Equal(h.values("out"), []string{"<null>"}) {
		t.Errorf("a tombstone: %q, %v", h.values("out"), err)
	}
}

// TestSchemaFiles: an output's schema is a file beside the pipeline; the start finds out whether the registry knows it.
func TestSchemaFiles(t *testing.T) {
	r := registrytest.New(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("total.avsc", totalAvro)
	write("total.proto", "syntax = \"proto3\"; package x; message Other {} message Total { string account = 1; string total = 2; }")
	load := func(to string) *Pipeline {
		t.Helper()
		p, err := LoadFile(write("p.yaml", withRegistry(r, "sources: {in: {topic: in}}\nsteps: [{name: out, to: {topic: totals, "+to+"}}]\n")), Options{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct{ to, words string }{
		{"format: avro", "no such subject"},
		{"format: avro, schema: total.avsc", "not registered"},
		{"format: avro, schema: total.avsc, register: true", ""},
		{"format: avro, schema: total.avsc", ""},
		{"format: avro", ""},
		{"format: protobuf, subject: p, schema: total.proto, message: x.Total, register: true", ""},
	} {
		err := load(c.to).ResolveSchemas(context.Background())
		if (err == nil) != (c.words == "") || err != nil && (!strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), `step "out"`) || errors.Is(err, serde.ErrUnavailable)) {
			t.Errorf("%s: %v, want %q", c.to, err, c.words)
		}
	}
	topo, err := load("format: protobuf, subject: p, message: x.Total").Topology()
	if err != nil {
		t.Fatal(err)
	}
	h := newHarness(t, topo)
	if err := h.send("in", nil, []byte(`{"account":"a","total":"10.10"}`)); err != nil {
		t.Fatal(err)
	}
	if got := h.values("totals"); !slices.Equal(got, []string{string(inRegistry(2, "\x02\x02\x0a\x01a\x12\x0510.10"))}) {
		t.Errorf("totals %q", got)
	}
}

// TestTestsNeedNoRegistry: the tests of a file have JSON on both sides.
func TestTestsNeedNoRegistry(t *testing.T) {
	r := registrytest.New(t)
	p := mustLoad(t, withRegistry(r, "sources: {in: {topic: in, format: avro}}\nsteps: [{name: out, to: {topic: totals, format: protobuf, value: {a: value.a}}}]\n"), Options{})
	topo, outputs, err := p.TestTopology()
	if err != nil {
		t.Fatal(err)
	}
	h := newHarness(t, topo)
	if err := h.send("in", nil, []byte(`{"a":1}`)); err != nil || !slices.Equal(h.values(outputs[0].Topic), []string{`{"a":1}`}) || len(r.Requests()) > 0 {
		t.Errorf("%q, %v, requests %q", h.values(outputs[0].Topic), err, r.Requests())
	}
}

// change is an envelope of the PostgreSQL connector.
func change(op, before, after, source string) string {
	return `{"before":` + before + `,"after":` + after + `,"source":{"version":"3.0","connector":"postgresql","name":"shop","ts_ms":1,"db":"d","schema":"public","table":"bills",` + source + `},"op":"` + op + `","ts_ms":7}`
}

const debeziumSteps = `
steps:
  - {name: unique, dedup: {id: debezium_id(), retention: 1d, scope: partition}}
  - {name: out, to: {topic: out, value: {op: value.op, id: 'value.op == "d" ? value.before.id : value.after.id', lsn: value.source.lsn}}}
`

// TestDebezium: copies of an event are found though what changes from one sending to the next differs, rows that share a position are not copies, and a
// tombstone is no event.
func TestDebezium(t *testing.T) {
	h := run(t, head(`types: {Bill: {id: int, amount: decimal}}
sources: {bills: {topic: bills, format: debezium, type: Bill, timestamp: value.ts_ms}}`+debeziumSteps))
	send := func(key, value string) {
		t.Helper()
		var v []byte
		if value != "" {
			v = []byte(value)
		}
		if err := h.send("bills", []byte(key), v); err != nil {
			t.Fatalf("%s: %v", value, err)
		}
	}
	one := change("c", "null", `{"id":1,"amount":"10.10"}`, `"snapshot":"false","txId":5,"lsn":100,"sequence":"[null,\"100\"]"`)
	send(`{"id":1}`, one)
	send(`{"id":1}`, strings.NewReplacer(`"ts_ms":7`, `"ts_ms":9`, `"3.0"`, `"3.1"`, `[null`, `[\"99\"`, `"false"`, `"last"`).Replace(one)) // sent again by a newer connector
	send(`{"schema":{"version":2},"payload":{"id":1}}`, `{"schema":{"type":"struct"},"payload":`+one+`}`)                                   // with schemas
	send(`{"id":2}`, change("c", "null", `{"id":2,"amount":"1"}`, `"txId":5,"lsn":100`))                                                    // of one COPY
	send(`{"id":1}`, change("u", `{"id":1,"amount":"10.10"}`, `{"id":1,"amount":"2"}`, `"txId":6,"lsn":101`))
	send(`{"id":1}`, change("d", `{"id":1,"amount":"2"}`, "null", `"txId":7,"lsn":102`))
	send(`{"id":1}`, "")
	send(`{"id":1}`, `{"schema":{},"payload":null}`)
	want := []string{`{"op":"c","id":1,"lsn":100}`, `{"op":"c","id":2,"lsn":100}`, `{"op":"u","id":1,"lsn":101}`, `{"op":"d","id":1,"lsn":102}`}
	if got := h.values("out"); !slices.Equal(got, want) {
		t.Errorf("out:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, bad := range []string{`{}`, `[]`, `{"op":1,"source":{}}`, `{"payload":1}`, `{"payload":{"op":null}}`, `{"op":"c"`} {
		if err := h.send("bills", []byte("k"), []byte(bad)); err == nil {
			t.Errorf("%s was taken for a change", bad)
		}
	}
}

// TestDebeziumIDs: which fields make the ID, by connector.
func TestDebeziumIDs(t *testing.T) {
	id := func(key, source string) string {
		r := event{Key: recKey{raw: []byte(key)}, Value: recValue{raw: []byte(`{"op":"u","source":` + source + `}`)}}
		got, err := debeziumID(&r)
		if err != nil {
			return "error: " + err.Error()
		}
		return string(got)
	}
	for _, c := range []struct {
		source string
		differ []string // another event, each
		same   []string // the same one
	}{
		{
			`{"connector":"mysql","name":"s","db":"d","table":"t","server_id":1,"file":"f1","pos":4,"row":0,"gtid":"g:1","ts_ms":1}`,
			[]string{`"row":0`, `"row":1`, `"pos":4`, `"pos":5`, `"f1"`, `"f2"`, `"t"`, `"u"`, `"s"`, `"z"`},
			[]string{`"ts_ms":1`, `"ts_ms":2`},
		},
		{
			`{"connector":"sqlserver","name":"s","db":"d","schema":"x","table":"t","change_lsn":"1","commit_lsn":"2","event_serial_no":1,"ts_ms":1}`,
			[]string{`"change_lsn":"1"`, `"change_lsn":"9"`, `"commit_lsn":"2"`, `"commit_lsn":"9"`, `_no":1`, `_no":2`},
			[]string{`"ts_ms":1`, `"ts_ms":2`},
		},
		{`{"connector":"mongodb","name":"s","db":"d","collection":"c","ord":1,"ts_ms":1000,"lsid":null}`, []string{`"ord":1`, `"ord":2`, `1000`, `2000`, `"c"`, `"e"`}, nil},
		{`{"connector":"oracle","name":"s","db":"d","schema":"x","table":"t","scn":"1","commit_scn":"2","ssn":0,"ts_ms":1}`, []string{`"scn":"1"`, `"scn":"2"`, `"ssn":0`, `"ssn":1`}, []string{`"ts_ms":1`, `"ts_ms":2`}},
	} {
		first := id("k", c.source)
		if strings.HasPrefix(first, "error") || first == id("other", c.source) {
			t.Errorf("%s: ID %q, with another key %q", c.source, first, id("other", c.source))
		}
		for i := 0; i < len(c.differ); i += 2 {
			if second := strings.Replace(c.source, c.differ[i], c.differ[i+1], 1); id("k", second) == first {
				t.Errorf("%s has the ID of %s", second, c.source)
			}
		}
		for i := 0; i < len(c.same); i += 2 {
			if second := strings.Replace(c.source, c.same[i], c.same[i+1], 1); id("k", second) != first {
				t.Errorf("%s has another ID than %s", second, c.source)
			}
		}
	}
	for source, words := range map[string]string{
		`{"connector":"vitess","vgtid":"x"}`:    "not known what identifies",
		`{}`:                                    "not known what identifies",
		`{"connector":"postgresql","lsn":null}`: "source.lsn",
		`{"connector":"mysql","file":"f","gtid":"g"}`: "source.pos",
		`7`: "not the envelope",
	} {
		if got := id("k", source); !strings.HasPrefix(got, "error") || !strings.Contains(got, words) {
			t.Errorf("%s: %q, want an error with %q", source, got, words)
		}
	}
}

// TestDebeziumWithoutKey: rows of a table without a primary key share a position, in a snapshot all of them, and nothing tells them apart.
func TestDebeziumWithoutKey(t *testing.T) {
	for _, c := range []struct {
		key  recKey
		op   string
		fine bool
	}{
		{recKey{}, "r", false},
		{recKey{}, "c", false},
		{recKey{raw: []byte("null")}, "r", false},
		{recKey{raw: []byte(`{"schema":null,"payload":null}`)}, "r", false},
		{recKey{val: types.Double(1)}, "c", false},
		{recKey{raw: []byte(`{"id":1}`)}, "r", true},
		{recKey{}, "t", true}, // of the whole table
	} {
		r := event{Key: c.key, Value: recValue{raw: []byte(`{"op":"` + c.op + `","source":{"connector":"postgresql","name":"s","db":"d","schema":"x","table":"t","lsn":100,"txId":5}}`)}}
		if id, err := debeziumID(&r); (err == nil) != c.fine {
			t.Errorf("key %s, op %s: ID %q, %v", c.key.raw, c.op, id, err)
		}
	}
}

// TestDebeziumTable: a table is of the rows; a deletion deletes, also under a key that is made of the row.
func TestDebeziumTable(t *testing.T) {
	r := registrytest.New(t)
	const row = `{"type":"record","name":"V","fields":[{"name":"id","type":"string"},{"name":"tier","type":"string","default":""}]}`
	id := r.Add("c", "AVRO", `{"type":"record","name":"E","fields":[{"name":"op","type":"string"},{"name":"before","type":["null",`+row+`]},{"name":"after","type":["null","V"]}]}`)
	for _, key := range []string{"", "key: value.id, "} {
		h := run(t, withRegistry(r, `types: {Customer: {id: string, tier: string}}
sources: {orders: {topic: orders, type: Customer}}
tables: {customers: {topic: customers, format: debezium, encoding: avro, `+key+`type: Customer}}
steps:
  - {name: joined, from: orders, join: {table: customers, kind: left, value: {tier: table.tier}}}
  - {name: out, to: {topic: out}}
`))
		order := func() {
			if err := h.send("orders", []byte("c1"), []byte(`{"tier":"x"}`)); err != nil {
				t.Fatal(err)
			}
		}
		order()
		for _, v := range []string{"\x02c\x00\x02\x04c1\x08gold", "\x02u\x00\x02\x04c1\x0csilver", "\x02d\x02\x04c1\x00\x00", ""} {
			value := inRegistry(id, v)
			if v == "" {
				value = nil // behind a deletion
			}
			if err := h.send("customers", []byte("c1"), value); err != nil {
				t.Fatal(err)
			}
			order()
		}
		want := []string{`{"tier":null}`, `{"tier":"gold"}`, `{"tier":"silver"}`, `{"tier":null}`, `{"tier":null}`}
		if got := h.values("out"); !slices.Equal(got, want) {
			t.Errorf("key %q: out %q, want %q", key, got, want)
		}
		if err := h.send("customers", []byte("c1"), inRegistry(id, "\x02t\x00\x00")); err == nil {
			t.Error("an op without a row was taken")
		}
	}
}

func FuzzOpenChange(f *testing.F) {
	f.Add([]byte(change("c", "null", `{"id":1}`, `"lsn":1`)), []byte(`{"payload":1}`))
	f.Add([]byte(`{"schema":{},"payload":{"op":"d","after":null,"source":{"connector":"mysql","file":"f","pos":1}}}`), []byte("k"))
	f.Fuzz(func(t *testing.T, b, key []byte) {
		for _, row := range []bool{false, true} {
			v, _, err := openChange(b, row)
			if err != nil || v == nil || row {
				continue
			}
			r := event{Key: recKey{raw: key}, Value: recValue{raw: v}}
			if id, err := debeziumID(&r); err == nil && record.ID(id).Empty() {
				t.Fatalf("%q has an empty ID", b)
			}
		}
	})
}
