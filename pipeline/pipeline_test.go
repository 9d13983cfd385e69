package pipeline

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/streamd/streamd/record"
)

const billTypes = `
types:
  Bill: {bill_id: string, account: string, amount: decimal, issued_at: timestamp}
`

// TestTotals is the whole way of the bills example: a bill that comes twice counts once, sums are exact.
func TestTotals(t *testing.T) {
	h := run(t, head(`%s
sources: {bills: {topic: bills.raw, type: Bill, timestamp: value.issued_at}}
steps:
  - name: unique
    dedup: {id: value.bill_id, retention: 30d, scope: partition}
  - name: valid
    filter: value.amount > 0 && value.account != ""
  - name: totals
    aggregate:
      by: value.account
      fields:
        total: {sum: value.amount}
        bills: {count: true}
        large: {count: value.amount > 5}
        last_bill: {max: value.issued_at}
        mean: {avg: value.amount}
        different: {count_distinct: value.bill_id}
  - name: out
    to: {topic: totals}
`, billTypes))
	for _, v := range []string{
		`{"bill_id":"b1","account":"a","amount":"10.10","issued_at":"2026-01-01T00:00:00Z"}`,
		`{"bill_id":"b1","account":"a","amount":"10.10","issued_at":"2026-01-01T00:00:00Z"}`,
		`{"bill_id":"b2","account":"a","amount":0.05,"issued_at":"2026-01-01T00:00:01Z"}`,
		`{"bill_id":"b3","account":"a","amount":-1,"issued_at":"2026-01-01T00:00:01Z"}`,
	} {
		if err := h.send("bills.raw", nil, []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		`{"total":"10.10","bills":1,"large":1,"last_bill":"2026-01-01T00:00:00Z","mean":"10.10","different":1}`,
		`{"total":"10.15","bills":2,"large":1,"last_bill":"2026-01-01T00:00:01Z","mean":"5.075","different":2}`,
	}
	if got := h.values("totals"); !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if key := string(h.out["totals"][0].Key); key != "a" {
		t.Errorf("key is %q", key)
	}
}

// TestPassThrough: what no expression touches comes out byte by byte.
func TestPassThrough(t *testing.T) {
	h := run(t, head(`
sources: {in: {topic: in}}
steps:
  - {name: unique, dedup: {id: value.id, retention: 1h, scope: partition}}
  - {name: out, to: {topic: out}}
`))
	value := []byte(" {\"x\" : 1.000000000000000000000000001, \"id\":\"a\\u0041\",\n\"x\":2} ")
	key := []byte{0xff, 0}
	header := record.Header{Key: "h", Value: []byte{1, 2}}
	for range 2 {
		if err := h.send("in", key, value, header); err != nil {
			t.Fatal(err)
		}
	}
	got := h.out["out"]
	if len(got) != 1 || string(got[0].Value) != string(value) || string(got[0].Key) != string(key) {
		t.Fatalf("got %q", got)
	}
	if v, _ := got[0].Headers.Get("h"); string(v) != "\x01\x02" {
		t.Errorf("header is %q", v)
	}
}

// TestTasksShareNothing: tasks of one topology run at the same time and give the same. Run it with -race.
func TestTasksShareNothing(t *testing.T) {
	topo, err := mustLoad(t, head(`%s
sources: {in: {topic: in, type: Bill, timestamp: value.issued_at}}
steps:
  - {name: unique, dedup: {id: "[topic, value.bill_id].join('/')", retention: 1h, scope: partition}}
  - {name: f, filter: "value.amount * 2 > 1 && [1, 2].exists(x, decimal(x) < value.amount)"}
  - {name: m, map: {id: value.bill_id, amount: value.amount, account: value.account, h: "headers.size()"}}
  - {name: n, aggregate: {by: value.account, fields: {n: {count: true}, sum: {sum: value.amount}, ids: {count_distinct: value.id}}}}
  - {name: out, to: {topic: out, value: {k: key, v: value}}}
`, billTypes), Options{}).Topology()
	if err != nil {
		t.Fatal(err)
	}
	outputs := make([][]string, 4)
	var wg sync.WaitGroup
	for i := range outputs {
		h := newHarness(t, topo)
		wg.Go(func() {
			for n := range 100 {
				value := fmt.Sprintf(`{"bill_id":"b%d","account":"a%d","amount":"%d.50","issued_at":%d}`, n%60, n%7, n, 1_700_000_000_000+n)
				if err := h.send("in", nil, []byte(value)); err != nil {
					t.Error(err)
					return
				}
			}
			outputs[i] = h.values("out")
		})
	}
	wg.Wait()
	if len(outputs[0]) < 50 {
		t.Errorf("%d outputs", len(outputs[0]))
	}
	for _, o := range outputs {
		if !slices.Equal(o, outputs[0]) {
			t.Error("two tasks differ")
		}
	}
}
