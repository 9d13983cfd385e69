package pipeline

import (
	"slices"
	"strings"
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
