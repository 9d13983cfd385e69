package pipeline

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/sink"
)

const sinkFile = `version: 1
name: p
kafka: {brokers: ["localhost:9092"]}
types:
  Bill: {id: string, n: int, price: decimal, rate: float, paid: bool, at: timestamp, raw: bytes, tags: [string], note: string}
sources:
  bills: {topic: bills, type: Bill, format: json}
steps:
  - name: out
    to:
      sqlite:
        file: /nowhere/bills.db
        table: bills
        primary_key: [id, n]
        columns: {id: value.id, n: value.n, price: value.price, rate: value.rate, paid: value.paid, at: value.at, raw: value.raw, tags: value.tags, note: value.note, doubled: value.n * 2, key: key}
`

// Each kind of a column comes out behind the topic as it went in.
func TestRowsOfEachKind(t *testing.T) {
	p, err := Load([]byte(sinkFile), Options{})
	if err != nil {
		t.Fatal(err)
	}
	it := p.plan.steps[0].into
	row := func(value string) sink.Row {
		t.Helper()
		in := valueSerde{format: formatJSON, typ: p.plan.sources[0].out.value, dec: p.plan.dec}
		var b []byte
		if value != "" {
			b = []byte(value)
		}
		v, err := in.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		_, out, err := it.record(p.plan.dec, &event{Key: recKey{raw: []byte("k")}, Value: v})
		if err != nil {
			t.Fatal(err)
		}
		s := valueSerde{format: formatJSON, typ: it.row.celType, dec: p.plan.dec}
		bytes, err := s.Append(nil, out)
		if err != nil {
			t.Fatal(err)
		}
		if out, err = s.Decode(bytes); err != nil {
			t.Fatal(err)
		}
		r, err := it.decode(out)
		if err != nil {
			t.Fatal(err)
		}
		if err := it.table.Check(r); err != nil {
			t.Errorf("%s: %v", bytes, err)
		}
		return r
	}
	got := row(`{"id":"b1","n":9007199254740993,"price":"10.10","rate":0.5,"paid":true,"at":"2026-01-01T00:00:00.5Z","raw":"AAE=","tags":["a","b"]}`)
	want := []any{"b1", int64(9007199254740993), "10.10", 0.5, true, time.Date(2026, 1, 1, 0, 0, 0, 500_000_000, time.UTC), []byte{0, 1}, `["a","b"]`, nil, int64(18014398509481986), "k"}
	if len(got.Values) != len(want) || got.Delete {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if at, ok := got.Values[i].(time.Time); ok {
			got.Values[i] = at.UTC()
		}
		if !reflect.DeepEqual(got.Values[i], want[i]) {
			t.Errorf("column %q: %#v, want %#v", it.table.Columns[i].Name, got.Values[i], want[i])
		}
	}
	var kinds []string
	for _, c := range it.table.Columns {
		kinds = append(kinds, string(c.Kind))
	}
	if k := strings.Join(kinds, " "); k != "text integer decimal float bool timestamp bytes json text integer text" {
		t.Error(k)
	}
}

// A tombstone deletes the row of its key, if the key is the record's.
func TestTombstoneDeletesARow(t *testing.T) {
	p, err := Load([]byte(strings.Replace(sinkFile, "primary_key: [id, n]", "primary_key: key", 1)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	it := p.plan.steps[0].into
	key, out, err := it.record(p.plan.dec, &event{Key: recKey{raw: []byte("k")}})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := (keySerde{it.key.typ}).Append(nil, key); err != nil || string(b) != "k" {
		t.Errorf("key %q, %v", b, err)
	}
	s := valueSerde{format: formatJSON, typ: it.row.celType, dec: p.plan.dec}
	b, err := s.Append(nil, out)
	if err != nil {
		t.Fatal(err)
	}
	if out, err = s.Decode(b); err != nil {
		t.Fatal(err)
	}
	row, err := it.decode(out)
	if err != nil || !row.Delete || row.Values[10] != "k" || row.Values[0] != nil {
		t.Errorf("%+v, %v", row, err)
	}
	if err := it.table.Check(row); err != nil {
		t.Error(err)
	}
}

// Explain says what a target without transactions leaves to its receiver, and of others nothing of the kind.
func TestExplainNamesTheReceiver(t *testing.T) {
	const condition = "must change nothing when a row comes again"
	for target, want := range map[string]struct {
		level string
		told  bool
	}{
		`http: {url: "https://h/", class: idempotent, columns: {id: value.id}}`: {"exactly_once", true},
		`http: {url: "https://h/", columns: {id: value.id}}`:                    {"at_least_once", false},
		`files: {directory: /d, columns: {id: value.id}}`:                       {"exactly_once", false},
	} {
		head, _, _ := strings.Cut(sinkFile, "  - name: out")
		p, err := Load([]byte(head+"  - {name: unique, dedup: {id: value.id, retention: 1d, scope: partition}}\n  - name: out\n    to:\n      "+target+"\n"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		topo, err := p.Topology()
		if err != nil {
			t.Fatal(err)
		}
		e := topo.Explain()
		if text := fmt.Sprint(e.Bounds); strings.Contains(text, condition) != want.told {
			t.Errorf("%s:\n%s", target, text)
		}
		for _, o := range e.Outputs {
			if string(o.Level) != want.level {
				t.Errorf("%s: %s, want %s", target, o.Level, want.level)
			}
		}
	}
}

// Class two_phase must be chosen, and is there where a target prepares transactions; explain names what it stands on.
func TestTwoPhaseClass(t *testing.T) {
	for target, want := range map[string]string{ // what explain must say, or the error
		`postgres: {dsn: "postgres://h/d", table: t, class: two_phase, columns: {id: value.id}}`:              "must not lose what it has prepared",
		`mysql: {dsn: "u@tcp(h:3306)/d", table: t, class: two_phase, columns: {id: value.id}}`:                "must not lose what it has prepared",
		`sqlite: {file: /f, table: t, class: two_phase, columns: {id: value.id}}`:                             "error: two_phase",
		`postgres: {dsn: "postgres://h/d", table: t, class: two_phase, progress: p, columns: {id: value.id}}`: "error: progress has a meaning with class: ledger only",
		`postgres: {dsn: "postgres://h/d", table: t, columns: {id: value.id}}`:                                "",
	} {
		head, _, _ := strings.Cut(sinkFile, "  - name: out")
		p, err := Load([]byte(head+"  - {name: unique, dedup: {id: value.id, retention: 1d, scope: partition}}\n  - name: out\n    to:\n      "+target+"\n"), Options{})
		if says, refused := strings.CutPrefix(want, "error: "); refused {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v, want %q", target, err, says)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		topo, err := p.Topology()
		if err != nil {
			t.Fatal(err)
		}
		e := topo.Explain()
		if text := fmt.Sprint(e.Bounds); want != "" && !strings.Contains(text, want) || want == "" && strings.Contains(text, "prepared") {
			t.Errorf("%s:\n%s", target, text)
		}
		for _, o := range e.Outputs {
			if class := map[bool]string{true: "two_phase", false: "ledger"}[want != ""]; o.Level != "exactly_once" || o.Class != class {
				t.Errorf("%s: %s, class %s, want exactly_once by %s", target, o.Level, o.Class, class)
			}
		}
	}
}
