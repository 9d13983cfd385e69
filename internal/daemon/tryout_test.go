package daemon

import (
	"strings"
	"testing"
)

// In one task: orders, the table that they are joined with, and a timer behind the join.
const idleFile = `version: 1
name: idle
kafka: {brokers: ["localhost:9092"]}
types: {Order: {status: string}, Customer: {name: string}}
sources: {orders: {topic: orders, type: Order}}
tables: {customers: {topic: customers, type: Customer, idleness: IDLENESS}}
steps:
  - {name: named, join: {table: customers, value: {status: value.status, customer: table.name}}}
  - {name: unpaid, timer: {by: key, cancel: value.status == "paid", after: 30m, value: {customer: value.customer}}}
  - {name: out, to: {topic: out}}
tests:
  - name: paid after an hour
    input:
      - {source: customers, key: c, value: {name: Ann}, timestamp: 2026-01-01T12:00:00Z}
      - {source: orders, key: c, value: {status: placed}}
      - {source: orders, key: c, value: {status: paid}, timestamp: 2026-01-01T13:00:00Z}
    expect:
      out: [EXPECTED]
`

// TestIdleInputsInTests: between two records as much time passes as their timestamps are apart, so that a table without changes
// does not keep timers from going off; unless the file says that it does.
func TestIdleInputsInTests(t *testing.T) {
	for idleness, want := range map[string]string{
		"30s":   `{key: c, value: {customer: Ann}, timestamp: "2026-01-01T12:30:00Z"}`,
		"45m":   `{key: c, value: {customer: Ann}}`,
		"2h":    "", // the payment comes before anybody knows that the time is over
		"never": "",
	} {
		file := strings.NewReplacer("IDLENESS", idleness, "EXPECTED", want).Replace(idleFile)
		if out, err := runTests(t, file); err != nil {
			t.Errorf("idleness %s: %v\n%s", idleness, err, out)
		}
	}
}
