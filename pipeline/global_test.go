package pipeline

import (
	"strings"
	"testing"

	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/topology"
)

const countriesHead = `version: 1
name: shop
kafka: {brokers: ["localhost:9092"]}
types: {Order: {id: string, country: string}, Country: {name: string}}
sources: {orders: {topic: orders, type: Order}}
tables:
  countries: {topic: countries, type: Country, global: true, max_bytes: 1M, on_error: skip}
`

// TestJoinGlobal: rows are looked up by any key, and the record keeps its own: what is behind it needs no repartition to count by it.
func TestJoinGlobal(t *testing.T) {
	for _, c := range []struct {
		name, join string
		want       []string
	}{
		{"inner", `{table: countries, on: value.country, value: {id: value.id, key: key, to: table.name}}`, []string{
			`{"id":"2","key":"k","to":"Norway"}`, `{"id":"3","key":"k","to":"Norge"}`,
		}},
		{"left", `{table: countries, on: value.country, kind: left, value: {id: value.id, to: table.name, known: has(table.name)}}`, []string{
			`{"id":"1","to":null,"known":false}`, `{"id":"2","to":"Norway","known":true}`, `{"id":"3","to":"Norge","known":true}`, `{"id":"4","to":null,"known":false}`,
		}},
		{"by the key", `{table: countries, value: {id: value.id, to: table.name}}`, []string{
			`{"id":"2","to":"key k"}`, `{"id":"3","to":"key k"}`, `{"id":"4","to":"key k"}`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := countriesHead + "steps:\n  - {name: named, from: orders, join: " + c.join + "}\n  - {name: out, to: {topic: out}}\n" +
				"  - {name: counts, from: named, aggregate: {by: key, fields: {n: {count: true}}}}\n  - {name: totals, to: {topic: totals}}\n"
			topo, err := mustLoad(t, file, Options{}).Topology()
			if err != nil {
				t.Fatal(err)
			}
			if n := len(topo.Subtopologies()); n != 1 {
				t.Errorf("%d sub-topologies: something is repartitioned", n)
			}
			if g := topo.Globals(); len(g) != 1 || g[0].MaxBytes != 1e6 || g[0].Policy != topology.PolicySkip || g[0].Name != "countries" {
				t.Errorf("%+v", g)
			}
			d := drive(t, file)
			d.send("orders", "k", `{"id":"1","country":"no"}`, 1)
			d.send("countries", "no", `{"name":"Norway"}`, 9) // the time of a row does not matter
			d.send("countries", "k", `{"name":"key k"}`, 0)
			d.send("countries", "no", `{"name":`, 2)
			d.send("orders", "k", `{"id":"2","country":"no"}`, 3)
			d.send("countries", "no", `{"name":"Norge"}`, 0)
			d.send("orders", "k", `{"id":"3","country":"no"}`, 4)
			d.delete("countries", "countries", "no", 5)
			d.send("orders", "k", `{"id":"4","country":"no"}`, 6)
			d.wantRows("out", c.want...)
			if g := d.Status()[0].Globals; len(g) != 1 || g[0].State != processor.GlobalCurrent || g[0].Skipped != 1 || g[0].Rows != 1 {
				t.Errorf("%+v", g)
			}
		})
	}
}

// TestGlobalWithTheTopicOfASource: each process may read a topic whole that tasks read, too, or write.
func TestGlobalWithTheTopicOfASource(t *testing.T) {
	d := drive(t, countriesHead+`steps:
  - {name: named, from: orders, join: {table: countries, on: value.country, value: {id: value.id, name: table.name}}}
  - {name: out, to: {topic: out}}
  - {name: row, from: orders, map: {name: value.id}}
  - {name: rows, to: {topic: countries}}
`)
	d.send("orders", "no", `{"id":"1","country":"no"}`, 1)
	d.send("orders", "no", `{"id":"2","country":"no"}`, 2)
	d.wantRows("out", `{"id":"2","name":"1"}`)
}

// TestExplainGlobalFile: what such a join promises less is said of a file as of a program.
func TestExplainGlobalFile(t *testing.T) {
	topo, err := mustLoad(t, countriesHead+`steps:
  - {name: named, from: orders, join: {table: countries, on: value.country, value: {name: table.name}}}
  - {name: out, to: {topic: out}}
`, Options{}).Topology()
	if err != nil {
		t.Fatal(err)
	}
	e := topo.Explain()
	text := e.Text()
	for _, want := range []string{`named: rows of global table "countries" are not part of the transaction's cut`, `is not read yet is dropped`, "kind: left"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not said in\n%s", want, text)
		}
	}
	if e.Level != topology.ExactlyOnce {
		t.Errorf("level %s", e.Level)
	}
}

// TestGlobalMistakes: what a global table does not have is said, with place.
func TestGlobalMistakes(t *testing.T) {
	_, err := Load([]byte(`version: 1
name: shop
kafka: {brokers: ["localhost:9092"]}
types: {Country: {name: string}}
sources: {orders: {topic: orders}}
tables:
  a: {topic: a, type: Country, global: true, key: value.name, timestamp: value.at, out_of_orderness: 1s, idleness: 1s, on_error: dead_letter}
  b: {topic: b, type: Country, global: perhaps}
  c: {topic: c, global: false, max_bytes: 1M}
  d: {topic: d, global: true, max_bytes: 0}
  e: {topic: e, global: true, format: cloudevents}
steps:
  - {name: one, from: orders, join: {table: a, on: value.country, within: 1m, value: table.nam}}
  - {name: two, from: one, join: {table: d, kind: left, on: value.country, value: table.name}}
  - {name: three, from: orders, join: {table: b, value: table.name}}
  - {name: four, from: orders, join: {table: c, value: table.name}}
  - {name: five, from: orders, join: {table: e, value: table.name}}
`), testOptions("file.yaml"))
	if err == nil {
		t.Fatal("no mistake was found")
	}
	for _, want := range []string{
		"7:46: error: key has no meaning for a global table", "timestamp has no meaning", "out_of_orderness has no meaning", "idleness has no meaning", "a global table has no dead letters",
		"global must be true or false", "max_bytes has a meaning with global: true only", "max_bytes must be", `format "cloudevents" is not available for a global table`,
		"within has a meaning with stream only", `kind: left needs the type of table "d"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not said in:\n%v", want, err)
		}
	}
}
