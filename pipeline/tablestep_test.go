package pipeline

import (
	"strings"
	"testing"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topologytest"
)

const tablesHead = `version: 1
name: profiles
kafka: {brokers: ["localhost:9092"]}
types:
  User: {name: string, age: int}
  Address: {city: string}
  Click: {user: string}
sources:
  clicks: {topic: clicks, type: Click, idleness: 1s}
tables:
  users: {topic: users, type: User, idleness: 1s}
  addresses: {topic: addresses, type: Address, idleness: 1s}
`

// changesOf are the records of a topic, with their keys; a tombstone is -.
func changesOf(d driven, topic string) string {
	var out []string
	for _, r := range topologytest.Output(d.Driver, topic, serde.String(), serde.Optional(serde.String())).Records() {
		v := "-"
		if r.Value != nil {
			v = *r.Value
		}
		out = append(out, r.Key+"="+v)
	}
	return strings.Join(out, " ")
}

// TestTablesOfTables: rows come, change and go on both sides, and so do those of what is made of them.
func TestTablesOfTables(t *testing.T) {
	join := func(kind string) string {
		return `{name: made, from: users, join: {table: addresses, kind: ` + kind + `, value: {n: value.name, c: table.city}}}`
	}
	for _, c := range []struct {
		name, steps, want string
	}{
		{"changes", ``, `a={"name":"Ann","age":17} b={"name":"Bob","age":40} a={"name":"Ann","age":18} b=- a={"name":"Anne","age":17}`},
		{"filter", `{name: made, from: users, filter: value.age >= 18}`, `b={"name":"Bob","age":40} a={"name":"Ann","age":18} b=- a=-`},
		{"map", `{name: made, from: users, map: {key: key, n: value.name}}`, `a={"key":"a","n":"Ann"} b={"key":"b","n":"Bob"} a={"key":"a","n":"Ann"} b=- a={"key":"a","n":"Anne"}`},
		{"inner", join("inner"), `b={"n":"Bob","c":"Rome"} a={"n":"Ann","c":"Oslo"} a={"n":"Ann","c":"Bern"} b=- a={"n":"Anne","c":"Bern"} a=-`},
		{"left", join("left"), `a={"n":"Ann","c":null} b={"n":"Bob","c":null} b={"n":"Bob","c":"Rome"} a={"n":"Ann","c":null} a={"n":"Ann","c":"Oslo"} a={"n":"Ann","c":"Bern"} b=- a={"n":"Anne","c":"Bern"} a={"n":"Anne","c":null}`},
		{"outer", join("outer"), `a={"n":"Ann","c":null} b={"n":"Bob","c":null} b={"n":"Bob","c":"Rome"} a={"n":"Ann","c":null} a={"n":"Ann","c":"Oslo"} a={"n":"Ann","c":"Bern"} b={"n":null,"c":"Rome"} a={"n":"Anne","c":"Bern"} a={"n":"Anne","c":null}`},
		{"one behind the other", `{name: grown, from: users, filter: value.age >= 18}
  - {name: named, map: {name: value.name}}
  - {name: made, join: {table: addresses, value: value.name + " of " + table.city}}`, `b="Bob of Rome" a="Ann of Oslo" a="Ann of Bern" b=- a=-`},
	} {
		t.Run(c.name, func(t *testing.T) {
			steps, from := "  - "+c.steps+"\n", "made"
			if c.steps == "" {
				steps, from = "", "users"
			}
			if !strings.Contains(c.steps, "addresses") {
				steps += "  - {name: towns, from: addresses, to: {topic: towns}}\n"
			}
			d := drive(t, tablesHead+"steps:\n"+steps+"  - {name: out, from: "+from+", to: {topic: out}}\n")
			d.send("users", "a", `{"name":"Ann","age":17}`, 1)
			d.send("users", "b", `{"name":"Bob","age":40}`, 2)
			d.send("addresses", "b", `{"city":"Rome"}`, 3)
			d.send("users", "a", `{"name":"Ann","age":18}`, 4)
			d.send("addresses", "a", `{"city":"Oslo"}`, 5)
			d.send("addresses", "a", `{"city":"Bern"}`, 6)
			d.delete("users", "users", "b", 7)
			d.send("users", "a", `{"name":"Anne","age":17}`, 8)
			d.delete("addresses", "addresses", "a", 9)
			d.Run()
			if got := changesOf(d, "out"); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestTablesOfAggregates: the other side may be an aggregate, and what is made of tables is looked up by a stream.
func TestTablesOfAggregates(t *testing.T) {
	d := drive(t, tablesHead+`steps:
  - {name: per-user, from: clicks, aggregate: {by: value.user, fields: {n: {count: true}}}}
  - {name: active, from: users, join: {table: per-user, kind: left, value: {name: value.name, clicks: "has(table.n) ? table.n : 0"}}}
  - {name: changes, to: {topic: changes}}
  - {name: seen, from: clicks, join: {table: active, on: value.user, value: table.name}}
  - {name: out, to: {topic: out}}
`)
	d.send("users", "a", `{"name":"Ann","age":17}`, 1)
	d.send("clicks", "x", `{"user":"a"}`, 2)
	d.send("clicks", "y", `{"user":"b"}`, 3)
	d.send("clicks", "z", `{"user":"a"}`, 4)
	d.Run()
	if got, want := changesOf(d, "changes"), `a={"name":"Ann","clicks":0} a={"name":"Ann","clicks":1} a={"name":"Ann","clicks":2}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := changesOf(d, "out"), `a="Ann" a="Ann"`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestTablesByKeysOfParts: tables whose keys are made of several values are joined by all of them, also with an aggregate by as many.
func TestTablesByKeysOfParts(t *testing.T) {
	d := drive(t, `version: 1
name: profiles
kafka: {brokers: ["localhost:9092"]}
types: {User: {name: string, age: int}, Visit: {who: string, at: int, n: int}}
sources:
  visits: {topic: visits, type: Visit, idleness: 1s}
tables:
  users: {topic: users, type: User, key: [value.name, value.age], idleness: 1s}
  last: {topic: last, type: Visit, key: [value.who, value.at], idleness: 1s}
steps:
  - {name: both, from: users, join: {table: last, kind: outer, value: {who: "key[0]", age: value.age, n: table.n}}}
  - {name: out, to: {topic: out}}
  - {name: counts, from: visits, aggregate: {by: [value.who, value.at], fields: {n: {count: true}}}}
  - {name: counted, from: users, join: {table: counts, value: table.n}}
  - {name: counted-out, to: {topic: counted}}
`)
	d.send("users", "x", `{"name":"Ann","age":17}`, 1)
	d.send("last", "y", `{"who":"Ann","at":17,"n":5}`, 2)
	d.send("last", "y", `{"who":"Ann","at":18,"n":6}`, 3)
	d.send("visits", "z", `{"who":"Ann","at":17,"n":1}`, 4)
	d.send("visits", "z", `{"who":"Bob","at":17,"n":1}`, 5)
	d.Run()
	for topic, want := range map[string]string{
		"out":     `["Ann",17]={"who":"Ann","age":17,"n":null} ["Ann",17]={"who":"Ann","age":17,"n":5} ["Ann",18]={"who":"Ann","age":null,"n":6}`,
		"counted": `["Ann",17]=1`,
	} {
		if got := changesOf(d, topic); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", topic, got, want)
		}
	}
}
