package pipeline

import (
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topologytest"
)

const shopHead = `version: 1
name: shop
kafka: {brokers: ["localhost:9092"]}
types:
  Order: {id: string, customer: string, status: string}
  Customer: {number: string, name: string}
sources:
  orders: {topic: orders, type: Order, idleness: 1s}
  payments: {topic: payments, type: Order, idleness: 1s}
tables:
  customers: {topic: customers, type: Customer, idleness: 1s}
  numbers: {topic: numbers, type: Customer, key: value.number, idleness: 1s}
  names: {topic: names, format: string, idleness: 1s}
`

// TestJoinTable: rows come, change and go; a left join says null where there is none.
func TestJoinTable(t *testing.T) {
	for _, c := range []struct {
		name, join string
		want       []string
	}{
		{"inner", `{table: customers, on: value.customer, value: {id: value.id, key: key, name: table.name}}`, []string{
			`{"id":"1","key":"c","name":"Ann"}`, `{"id":"2","key":"c","name":"Anne"}`,
		}},
		{"left", `{table: customers, on: value.customer, kind: left, value: {id: value.id, name: table.name, known: has(table.name)}}`, []string{
			`{"id":"0","name":null,"known":false}`, `{"id":"1","name":"Ann","known":true}`, `{"id":"2","name":"Anne","known":true}`, `{"id":"3","name":null,"known":false}`,
		}},
		{"by the key", `{table: customers, value: {id: value.id, name: table.name}}`, []string{
			`{"id":"1","name":"key k"}`, `{"id":"2","name":"key k"}`, `{"id":"3","name":"key k"}`,
		}},
		{"a text", `{table: names, kind: left, value: {id: value.id, name: table}}`, []string{
			`{"id":"0","name":null}`, `{"id":"1","name":"kay"}`, `{"id":"2","name":"kay"}`, `{"id":"3","name":"kay"}`,
		}},
		{"made of a text", `{table: names, kind: left, value: {id: value.id, name: '"Mr " + table', known: table != null}}`, []string{
			`{"id":"0","name":null,"known":false}`, `{"id":"1","name":"Mr kay","known":true}`, `{"id":"2","name":"Mr kay","known":true}`, `{"id":"3","name":"Mr kay","known":true}`,
		}},
		{"a table with a key", `{table: numbers, on: value.customer, value: {id: value.id, name: table.name}}`, []string{
			`{"id":"1","name":"number c"}`, `{"id":"2","name":"number c"}`, `{"id":"3","name":"number c"}`,
		}},
		{"one expression", `{table: customers, on: value.customer, kind: left, value: table.name}`, []string{"<nil>", `"Ann"`, `"Anne"`, "<nil>"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := drive(t, shopHead+`steps:
  - {name: named, from: orders, join: `+c.join+`}
  - {name: out, to: {topic: out}}
`)
			d.sendTo(c.join, "customers", "x", `{"name":"nobody"}`, 0)
			d.send("orders", "k", `{"id":"0","customer":"c"}`, 1)
			d.sendTo(c.join, "customers", "c", `{"name":"Ann"}`, 2)
			d.sendTo(c.join, "customers", "k", `{"name":"key k"}`, 2)
			d.sendTo(c.join, "numbers", "x", `{"number":"c","name":"number c"}`, 2)
			d.sendTo(c.join, "names", "k", `kay`, 2)
			d.send("orders", "k", `{"id":"1","customer":"c"}`, 3)
			d.sendTo(c.join, "customers", "c", `{"name":"Anne"}`, 4)
			d.send("orders", "k", `{"id":"2","customer":"c"}`, 5)
			d.delete(c.join, "customers", "c", 6)
			d.send("orders", "k", `{"id":"3","customer":"c"}`, 7)
			d.wantRows("out", c.want...)
		})
	}
}

// TestTableOfAStep: the newest result of an aggregate is looked up, by two joins, each of which sees what was there before.
func TestTableOfAStep(t *testing.T) {
	d := drive(t, shopHead+`steps:
  - {name: totals, from: payments, aggregate: {by: value.customer, fields: {n: {count: true}}}}
  - {name: known, from: orders, join: {table: totals, on: value.customer, value: {id: value.id, n: table.n}}}
  - {name: out, to: {topic: out}}
  - {name: all, from: orders, join: {table: totals, on: value.customer, kind: left, value: {id: value.id, n: table.n}}}
  - {name: out-all, to: {topic: all}}
`)
	d.send("orders", "k", `{"id":"1","customer":"c"}`, 1)
	d.send("payments", "x", `{"id":"p1","customer":"c"}`, 2)
	d.send("orders", "k", `{"id":"2","customer":"c"}`, 3)
	d.send("payments", "y", `{"id":"p2","customer":"c"}`, 4)
	d.send("orders", "k", `{"id":"3","customer":"c"}`, 5)
	d.wantRows("out", `{"id":"2","n":1}`, `{"id":"3","n":2}`)
	d.wantRows("all", `{"id":"1","n":null}`, `{"id":"2","n":1}`, `{"id":"3","n":2}`)
}

// TestTableKeyWithoutValue: a table with a key of its own cannot know which row a tombstone means. It says so.
func TestTableKeyWithoutValue(t *testing.T) {
	d := drive(t, shopHead+`steps:
  - {name: named, from: orders, join: {table: numbers, on: value.customer, value: table.name}}
  - {name: out, to: {topic: out}}
`)
	topologytest.Input(d.Driver, "numbers", serde.String(), serde.Optional(serde.String())).Send("x", nil)
	if err := d.ExpectStop(); err == nil || !strings.Contains(err.Error(), "does not say which") {
		t.Error(err)
	}
}

// TestJoinStream: pairs, and what has no match once none can come any more.
func TestJoinStream(t *testing.T) {
	value := `value: {key: key, order: value.id, payment: other.id}`
	for _, c := range []struct {
		name, join string
		want       []string
	}{
		{"inner", `{stream: payments, on: value.customer, other_on: value.customer, within: 10s, ` + value + `}`, []string{
			`{"key":"a","order":"1","payment":"p0"}`, `{"key":"a","order":"1","payment":"p1"}`,
		}},
		{"never before", `{stream: payments, on: value.customer, other_on: value.customer, within: 10s, before: 0s, ` + value + `}`, []string{
			`{"key":"a","order":"1","payment":"p1"}`,
		}},
		{"left", `{stream: payments, on: value.customer, other_on: value.customer, kind: left, after: 10s, before: 5s, grace: 1s, ` + value + `}`, []string{
			`{"key":"a","order":"1","payment":"p0"}`, `{"key":"a","order":"1","payment":"p1"}`, `{"key":"b","order":"2","payment":null}`,
		}},
		{"outer", `{stream: payments, on: value.customer, other_on: value.customer, kind: outer, within: 10s, ` + value + `}`, []string{
			`{"key":"a","order":"1","payment":"p0"}`, `{"key":"a","order":"1","payment":"p1"}`,
			`{"key":"b","order":"2","payment":null}`, `{"key":"c","order":null,"payment":"p3"}`,
		}},
		{"by the keys", `{stream: payments, within: 3s, ` + value + `}`, []string{
			`{"key":"k","order":"1","payment":"p0"}`, `{"key":"k","order":"2","payment":"p1"}`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := drive(t, shopHead+`steps:
  - {name: pairs, from: orders, join: `+c.join+`}
  - {name: out, to: {topic: out}}
`)
			d.send("payments", "k", `{"id":"p0","customer":"a"}`, 1)
			d.send("orders", "k", `{"id":"1","customer":"a"}`, 3)
			d.send("payments", "k", `{"id":"p1","customer":"a"}`, 9)
			d.send("orders", "k", `{"id":"2","customer":"b"}`, 10)
			d.send("payments", "k", `{"id":"p3","customer":"c"}`, 30)
			d.Advance(2 * time.Minute)
			d.wantRows("out", c.want...)
		})
	}
}

// TestTimer: a timer is set, put off and cancelled; it goes off once, with the value of the record that set it last.
func TestTimer(t *testing.T) {
	text := shopHead + `steps:
  - name: unpaid
    from: orders
    timer:
      by: value.id
      set: value.status == "placed"
      cancel: value.status == "paid"
      after: 10s
      value: {id: key, customer: value.customer, at: "string(timestamp).substring(17, 19)"}
  - {name: out, to: {topic: out}}
`
	d := drive(t, text)
	for _, r := range []struct {
		at   int
		text string
	}{
		{1, `{"id":"1","customer":"a","status":"placed"}`},
		{2, `{"id":"2","customer":"b","status":"placed"}`},
		{3, `{"id":"3","customer":"c","status":"placed"}`},
		{5, `{"id":"1","customer":"z","status":"placed"}`}, // put off
		{6, `{"id":"2","customer":"b","status":"paid"}`},   // in time
		{13, `{"id":"3","customer":"c","status":"paid"}`},  // a moment too late
		{14, `{"id":"4","customer":"d","status":"seen"}`},  // neither
	} {
		d.send("orders", "k", r.text, r.at)
	}
	d.Advance(time.Minute)
	d.wantRows("out", `{"id":"3","customer":"c","at":"03"}`, `{"id":"1","customer":"z","at":"05"}`)
}

// TestTimerWithoutKey: a record without a key is an error that says so.
func TestTimerWithoutKey(t *testing.T) {
	d := drive(t, shopHead+`steps:
  - {name: silent, from: orders, timer: {by: key, after: 10s, value: value.id}}
  - {name: out, to: {topic: out}}
`)
	topologytest.Input(d.Driver, "orders", serde.Optional(serde.String()), serde.String()).Send(nil, `{"id":"1"}`)
	if err := d.ExpectStop(); err == nil || !strings.Contains(err.Error(), "without a key has no timer") {
		t.Error(err)
	}
}

// TestWallTimer: by the host's clock the times of the records do not matter.
func TestWallTimer(t *testing.T) {
	d := drive(t, shopHead+`steps:
  - {name: silent, from: orders, timer: {by: key, after: 10s, clock: wall, value: value.id}}
  - {name: out, to: {topic: out}}
`)
	d.send("orders", "k", `{"id":"1"}`, 1)
	d.send("orders", "k", `{"id":"2"}`, 1000)
	d.Advance(5 * time.Second)
	d.send("orders", "k", `{"id":"3"}`, 2)
	d.Advance(7 * time.Second)
	d.wantRows("out")
	d.Advance(10 * time.Second)
	d.wantRows("out", `"3"`)
}

// TestJoinsUnderFaults: joins and timers of a file under crashes, duplicates and lost disks commit what they commit without.
func TestJoinsUnderFaults(t *testing.T) {
	o := testOptions("5-joins.yaml")
	o.Set = []string{"steps.paid.join.within=10s", "steps.unpaid.timer.after=8s"}
	p, err := LoadFile("testdata/pipelines/5-joins.yaml", o)
	if err != nil {
		t.Fatal(err)
	}
	topologytest.Fuzz(t, p.Topology, func(d *topologytest.Driver) {
		x := driven{d, t}
		x.put("shop.customers", "c1", `{"name":"Ann","tier":"gold"}`, 0)
		for i, s := range []string{"o1", "o2", "o3", "o4"} {
			x.put("shop.orders", s, `{"order_id":"`+s+`","customer_id":"c1","status":"placed","amount":"10.50"}`, 10*i)
			if i%2 == 0 {
				x.put("shop.payments", s, `{"order_id":"`+s+`","paid":"10.00"}`, 10*i+5)
				x.put("shop.orders", s, `{"order_id":"`+s+`","customer_id":"c1","status":"paid","amount":"10.50"}`, 10*i+5)
			}
		}
		// Time that passes without a record is not kept over a crash: enough for several attempts.
		d.Advance(5 * time.Minute)
	}, topologytest.Runs(10), topologytest.StartAt(at(3600)))
}
