package pipeline

import (
	"slices"
	"strings"
	"testing"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// sendAll sends values with the key k, and fails on the first error.
func sendAll(t *testing.T, h *harness, topic string, values ...string) {
	t.Helper()
	for _, v := range values {
		if err := h.send(topic, []byte("k"), []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
}

func wantValues(t *testing.T, h *harness, topic string, want ...string) {
	t.Helper()
	if got := h.values(topic); !slices.Equal(got, want) {
		t.Errorf("%s: got\n  %s\nwant\n  %s", topic, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestBranchAndMerge(t *testing.T) {
	h := run(t, head(`
sources: {in: {topic: in}}
steps:
  - name: split
    branch:
      rest: otherwise
      big: value.n > 10
      small: value.n > 5
  - {name: mark, from: split.big, map: {n: value.n, size: "'big'"}}
  - {name: again, merge: [mark, split.small]}
  - {name: out, to: {topic: out}}
  - {name: other, from: split.rest, to: {topic: other}}
`))
	sendAll(t, h, "in", `{"n":11}`, `{"n": 6}`, `{"n":1}`)
	wantValues(t, h, "out", `{"n":11,"size":"big"}`, `{"n": 6}`)
	wantValues(t, h, "other", `{"n":1}`)
}

func TestBranchWithoutOtherwiseDrops(t *testing.T) {
	h := run(t, head(`
sources: {in: {topic: in}}
steps:
  - {name: split, branch: {big: value.n > 10}}
  - {name: out, from: split.big, to: {topic: out}}
`))
	sendAll(t, h, "in", `{"n":11}`, `{"n":1}`)
	wantValues(t, h, "out", `{"n":11}`)
}

func TestFlatMap(t *testing.T) {
	h := run(t, head(`
types:
  Line: {sku: string, n: int}
  Order: {id: string, lines: [Line]}
sources: {in: {topic: in, type: Order}}
steps:
  - {name: lines, flat_map: value.lines}
  - {name: some, filter: value.n > 1}
  - {name: out, to: {topic: out, key: value.sku}}
  - {name: pairs, from: in, flat_map: "value.lines.map(l, {'order': value.id, 'sku': l.sku})"}
  - {name: out2, to: {topic: out2}}
`))
	sendAll(t, h, "in", `{"id":"o","lines":[{"sku":"a","n":1},{"sku":"b","n":2,"x":1.50},{"sku":"c","n":3}]}`, `{"id":"p","lines":[]}`)
	wantValues(t, h, "out", `{"sku":"b","n":2,"x":1.50}`, `{"sku":"c","n":3}`)
	wantValues(t, h, "out2", `{"order":"o","sku":"a"}`, `{"order":"o","sku":"b"}`, `{"order":"o","sku":"c"}`)
	ids := map[string]bool{}
	for i, r := range h.out["out"] {
		id, _ := r.Headers.Get("record-id")
		ids[string(id)] = true
		if key := string(r.Key); key != []string{"b", "c"}[i] {
			t.Errorf("key %q", key)
		}
	}
	if len(ids) != 2 {
		t.Errorf("children share an ID: %v", ids)
	}
}

// TestKeys: a key of each type goes through a repartition topic and comes back as what it was.
func TestKeys(t *testing.T) {
	for _, tc := range []struct{ expression, key, use, want string }{
		{"value.s", "x y", "key + '!'", `"x y!"`},
		{"value.i", "7", "key + 1", `8`},
		{"value.d", "10.1", "key + 1", `"11.1"`},
		{"value.b", "true", "!key", `false`},
		{"value.t", "2026-01-02T03:04:05Z", "key.getFullYear()", `2026`},
		{"value.o.n", "5", "key", `"5"`}, // not known before: a text
	} {
		h := run(t, head(`
types: {T: {s: string, i: int, d: decimal, b: bool, t: timestamp, o: any}}
sources: {in: {topic: in, type: T}}
steps:
  - {name: keyed, key_by: %q}
  - {name: out, to: {topic: out, value: {x: %q}}}
`, tc.expression, tc.use))
		sendAll(t, h, "in", `{"s":"x y","i":7,"d":"10.10","b":true,"t":"2026-01-02T03:04:05Z","o":{"n":5}}`)
		wantValues(t, h, "out", `{"x":`+tc.want+`}`)
		if got := string(h.out["out"][0].Key); got != tc.key {
			t.Errorf("%s: key %q, want %q", tc.expression, got, tc.key)
		}
	}
}

func TestCompositeKey(t *testing.T) {
	h := run(t, head(`
sources: {in: {topic: in}}
steps:
  - {name: n, aggregate: {by: [value.a, value.b], fields: {n: {count: true}}}}
  - {name: out, to: {topic: out, value: {a: "key[0]", n: value.n}}}
`))
	sendAll(t, h, "in", `{"a":"x","b":1}`, `{"a":"x","b":2}`, `{"a":"x","b":1}`)
	wantValues(t, h, "out", `{"a":"x","n":1}`, `{"a":"x","n":1}`, `{"a":"x","n":2}`)
	if got := string(h.out["out"][0].Key); got != `["x",1]` {
		t.Errorf("key %q", got)
	}
}

// TestAggregateByKey needs no topic when the records have the key already.
func TestAggregateByKey(t *testing.T) {
	text := head(`
sources: {in: {topic: in}}
steps:
  - {name: n, aggregate: {by: key, fields: {n: {count: true}, first: {first: value.v}, last: {last: value.v}, low: {min: value.v}, high: {max: value.v}}}}
  - {name: out, to: {topic: out}}
`)
	h := run(t, text)
	if n := len(h.topo.Subtopologies()); n != 1 {
		t.Errorf("%d sub-topologies", n)
	}
	sendAll(t, h, "in", `{"v":2.5}`, `{"v":10}`, `{"v":1.50}`)
	wantValues(t, h, "out",
		`{"n":1,"first":2.5,"last":2.5,"low":2.5,"high":2.5}`,
		`{"n":2,"first":2.5,"last":10,"low":2.5,"high":10}`,
		`{"n":3,"first":2.5,"last":1.50,"low":1.50,"high":10}`)
}

func TestScopeStream(t *testing.T) {
	h := run(t, head(`
sources: {in: {topic: in}}
steps:
  - {name: unique, dedup: {id: value.id, retention: 1h, scope: stream}}
  - {name: n, aggregate: {by: key, fields: {n: {count: true}}}}
  - {name: out, to: {topic: out}}
`))
	if n := len(h.topo.Subtopologies()); n != 3 {
		t.Errorf("%d sub-topologies, want 3: behind scope: stream the key must be brought together again", n)
	}
	sendAll(t, h, "in", `{"id":"a"}`, `{"id":"a"}`, `{"id":"b"}`)
	wantValues(t, h, "out", `{"n":1}`, `{"n":2}`)
}

func TestFormats(t *testing.T) {
	h := run(t, head(`
sources:
  text: {topic: text, format: string}
  raw: {topic: raw, format: bytes}
steps:
  - {name: up, from: text, map: value.upperAscii()}
  - {name: out, to: {topic: out}}
  - {name: wrap, from: text, map: {t: value}}
  - {name: out2, to: {topic: out2}}
  - {name: big, from: raw, filter: size(value) > 2}
  - {name: out3, to: {topic: out3}}
`))
	sendAll(t, h, "text", `ab"c`)
	sendAll(t, h, "raw", "\xff\x00\x01", "x")
	wantValues(t, h, "out", `AB"C`)
	wantValues(t, h, "out2", `{"t":"ab\"c"}`)
	wantValues(t, h, "out3", "\xff\x00\x01")
	if err := h.send("text", nil, []byte("\xff")); err == nil || !strings.Contains(err.Error(), "not UTF-8") {
		t.Errorf("got %v", err)
	}
}

func TestNullOfADeclaredType(t *testing.T) {
	h := run(t, head(`
types: {T: {n: int, s: T}}
sources: {in: {topic: in, type: T}}
steps:
  - {name: all, filter: "value == null || has(value.n) && value.n > 0 || has(value.s) && has(value.s.n)"}
  - {name: out, to: {topic: out}}
`))
	for _, v := range [][]byte{nil, []byte(`{"n":1}`), []byte(`{"n":null}`), []byte(`{}`), []byte(`{"s":{"n":5}}`), []byte(`{"s":{}}`), []byte(`null`)} {
		if err := h.send("in", []byte("k"), v); err != nil {
			t.Fatal(err)
		}
	}
	wantValues(t, h, "out", "<null>", `{"n":1}`, `{"s":{"n":5}}`, `null`)
}

func TestTombstones(t *testing.T) {
	h := run(t, head(`
sources: {in: {topic: in}}
steps:
  - {name: all, filter: "value == null || value.n > 0"}
  - {name: out, to: {topic: out}}
  - {name: gone, from: in, map: "null"}
  - {name: out2, to: {topic: out2}}
`))
	for _, v := range [][]byte{nil, []byte(`{"n":1}`)} {
		if err := h.send("in", []byte("k"), v); err != nil {
			t.Fatal(err)
		}
	}
	wantValues(t, h, "out", "<null>", `{"n":1}`)
	wantValues(t, h, "out2", "<null>", "<null>")
}

// TestIDs: which records count as the same one.
func TestIDs(t *testing.T) {
	for _, tc := range []struct {
		id     string
		values []string
		want   int
	}{
		{"value.id", []string{`{"id":"a"}`, `{"id":"a","x":1}`, `{"id":"b"}`}, 2},
		{"value.id", []string{`{"id":1}`, `{"id":1.0}`, `{"id":"1"}`, `{"id":2}`}, 2},
		{"[value.a, value.b]", []string{`{"a":"a","b":"bc"}`, `{"a":"ab","b":"c"}`, `{"a":"a","b":"bc"}`}, 2},
		{"[topic, value.id]", []string{`{"id":"a"}`, `{"id":"a"}`}, 1},
		{"record_position()", []string{`{}`, `{}`}, 2},
		{"[partition, offset]", []string{`{}`, `{}`}, 2},
		{"key", []string{`{}`, `{}`}, 1},
		{"headers.id", []string{`{}`, `{}`}, 1},
		{"cloudevent_id()", []string{`{}`, `{}`}, 1},
		{"string(hash64(value))", []string{`{"a":1}`, `{"a":1}`, `{"a":2}`}, 2},
	} {
		h := run(t, head(`
sources: {in: {topic: in}}
steps:
  - {name: unique, dedup: {id: %s, retention: 1h, scope: partition}}
  - {name: out, to: {topic: out}}
`, tc.id))
		for _, v := range tc.values {
			err := h.send("in", []byte("k"), []byte(v), record.Header{Key: "id", Value: []byte("h")},
				record.Header{Key: "ce_id", Value: []byte("1")}, record.Header{Key: "ce_source", Value: []byte("s")})
			if err != nil {
				t.Fatalf("%s: %v", tc.id, err)
			}
		}
		if got := len(h.out["out"]); got != tc.want {
			t.Errorf("%s: %d records, want %d", tc.id, got, tc.want)
		}
	}
}

// TestMissingIDs: no ID is never equal to no ID.
func TestMissingIDs(t *testing.T) {
	text := head(`
sources: {in: {topic: in}}
steps:
  - {name: unique, dedup: {id: [value.a, value.b], retention: 1h, scope: partition, on_missing_id: forward}}
  - {name: out, to: {topic: out}}
`)
	h := run(t, text)
	values := []string{`{"a":"x"}`, `{"a":"x"}`, `{"a":"x","b":null}`, `{"a":"x","b":""}`, `{"a":"x","b":{}}`, `{}`}
	sendAll(t, h, "in", values...)
	wantValues(t, h, "out", values...)
	for _, id := range []string{"value.id", "value.id.sub", "headers.nope", "key"} {
		h := run(t, strings.ReplaceAll(strings.ReplaceAll(text, "[value.a, value.b]", id), ", on_missing_id: forward", ""))
		if err := h.send("in", nil, []byte(`{"id":null}`)); err == nil {
			t.Errorf("%s: a record without an ID passed", id)
		}
	}
}

// TestBadRecords: each ends in an error that names the place, not in a wrong result.
func TestBadRecords(t *testing.T) {
	const text = `
types: {T: {d: decimal, i: int, s: string}}
sources: {in: {topic: in, type: T}}
steps:
  - {name: sum, aggregate: {by: value.s, fields: {d: {sum: value.d}, i: {sum: value.i}}}}
  - {name: out, to: {topic: out}}
`
	for _, tc := range []struct{ value, want string }{
		{`{`, "not JSON at byte"},
		{`{"d":1} x`, "more after the value"},
		{`[]`, "want T, this is a list"},
		{`{"d":1,"i":1}`, `field "s" is missing or null`},
		{`{"d":"1,5","i":1,"s":"a"}`, `"1,5" is not a decimal number`},
		{`{"d":"0.12345678901234567890123","i":1,"s":"a"}`, "more than 19 digits after the point"},
		{`{"d":1,"i":1.5,"s":"a"}`, "1.5 is not an integer"},
		{`{"d":1,"i":9223372036854775808,"s":"a"}`, "not an integer of 64 bits"},
		{`{"d":1,"i":"1","s":"a"}`, "want int, this is a string"},
		{`{"d":1,"i":1,"s":5}`, "want string, this is a number"},
		{`{"d":1e200,"i":1,"s":"a"}`, "not a decimal number of at most 100 digits"},
	} {
		h := run(t, head("%s", text))
		err := h.send("in", nil, []byte(tc.value))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.value, err, tc.want)
		}
	}
	h := run(t, head("%s", text))
	sendAll(t, h, "in", `{"d":1,"i":9223372036854775807,"s":"a"}`)
	err := h.send("in", nil, []byte(`{"d":1,"i":1,"s":"a"}`))
	if err == nil || !strings.Contains(err.Error(), "does not fit 64 bits") || !strings.Contains(err.Error(), `pipeline "test", step "sum" (pipeline.yaml:`) {
		t.Errorf("got %v", err)
	}
}

// TestCostLimit: a record cannot make an expression run for ever.
func TestCostLimit(t *testing.T) {
	h := run(t, head(`
sources: {in: {topic: in}}
steps:
  - {name: f, filter: "value.l.all(a, value.l.all(b, value.l.all(c, a + b + c >= 0)))"}
  - {name: out, to: {topic: out}}
`))
	for _, expression := range []string{"value.t.replace('', value.t)", "value.l.map(x, value.t)", "value.l.map(x, value.t).join()"} {
		h := run(t, head(`
sources: {in: {topic: in}}
steps:
  - {name: m, map: {x: "%s"}}
  - {name: out, to: {topic: out}}
`, expression))
		large := `{"t":"` + strings.Repeat("x", 500_000) + `","l":[` + strings.Repeat("1,", 999) + `1]}`
		if err := h.send("in", nil, []byte(large)); err == nil || !strings.Contains(err.Error(), "more than 16 MiB") && !strings.Contains(err.Error(), "costs more") {
			t.Errorf("%s: got %v", expression, err)
		}
	}
	list := `{"l":[` + strings.Repeat("1,", 999) + `1]}`
	if err := h.send("in", nil, []byte(list)); err == nil || !strings.Contains(err.Error(), "costs more than") {
		t.Errorf("got %v", err)
	}
}

// TestPolicies: what the file says reaches the topology.
func TestPolicies(t *testing.T) {
	p := mustLoad(t, head(`
sources: {in: {topic: in, on_error: skip}}
steps:
  - {name: unique, on_error: dead_letter, dedup: {id: value.id, retention: 1h, scope: partition}}
  - {name: f, on_error: stop, filter: value.n > 1}
  - {name: out, to: {topic: out}}
errors: {on_error: skip, dead_letter_topic: dead}
processing: {guarantee: exactly_once, commit_interval: 250ms, transaction_timeout: 20s}
state: {dir: /var/lib/x, key_file: /run/k, old_key_file: /run/o}
`), Options{})
	if p.Errors != (Errors{Policy: topology.PolicySkip, DeadLetterTopic: "dead"}) || p.StateDir != "/var/lib/x" || p.StateKeyFile != "/run/k" || p.StateOldKeyFile != "/run/o" ||
		p.Processing.CommitInterval.String() != "250ms" || p.Processing.TransactionTimeout.String() != "20s" {
		t.Errorf("got %+v", p)
	}
	if a := p.plan.steps[0].dedup.onTooLate; a != topology.DeadLetter {
		t.Errorf("on_too_late is %v although there is a dead letter topic", a)
	}
	topo, err := p.Topology()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]topology.Policy{"in": topology.PolicySkip, "unique": topology.PolicyDeadLetter, "f": topology.PolicyStop, "out": topology.PolicyDefault}
	for _, o := range topo.Operators() {
		if o.Policy != want[o.Name] {
			t.Errorf("%s: policy %v, want %v", o.Name, o.Policy, want[o.Name])
		}
	}
}
