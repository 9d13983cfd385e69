package crash

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var small = Workload{Seed: 7, Records: 5000, Accounts: 20, RepeatPercent: 20}

// outputs returns what a right pipeline makes of the small workload: the first of each bill, and the totals.
func outputs(t *testing.T) (bills, totals [][]byte, want Expectation) {
	t.Helper()
	seen := map[string]bool{}
	sums := map[string]Total{}
	want, err := small.Generate(func(b Bill) error {
		if seen[b.ID] {
			return nil
		}
		seen[b.ID] = true
		v, err := b.Encode()
		if err != nil {
			return err
		}
		bills = append(bills, v)
		s := sums[b.Account]
		s = Total{b.Account, s.Bills + 1, s.Cents + b.Cents}
		sums[b.Account] = s
		totals = append(totals, fmt.Appendf(nil, `{"account":%q,"bills":%d,"cents":%d}`, s.Account, s.Bills, s.Cents))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return bills, totals, want
}

// TestWorkload: the same seed gives the same records, and the share of repeats is about what was asked.
func TestWorkload(t *testing.T) {
	var first, second []Bill
	one, err1 := small.Generate(func(b Bill) error { first = append(first, b); return nil })
	two, err2 := small.Generate(func(b Bill) error { second = append(second, b); return nil })
	if err1 != nil || err2 != nil || !slices.Equal(first, second) || !reflect.DeepEqual(one, two) {
		t.Error("a seed does not repeat its workload")
	}
	if len(first) != small.Records || one.Distinct+one.Repeats != int64(small.Records) {
		t.Errorf("%d records, %d distinct, %d repeats", len(first), one.Distinct, one.Repeats)
	}
	if share := float64(one.Repeats) / float64(small.Records); share < .15 || share > .25 {
		t.Errorf("%.2f repeats", share)
	}
	stop := errors.New("stop")
	if _, err := small.Generate(func(Bill) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

// TestCheckersCanFail damages a right output in each way that a crash could.
func TestCheckersCanFail(t *testing.T) {
	bills, totals, want := outputs(t)
	damages := []struct {
		name string
		do   func([][]byte) [][]byte
	}{
		{"nothing", func(v [][]byte) [][]byte { return v }},
		{"one lost", func(v [][]byte) [][]byte { return slices.Delete(v, 100, 101) }},
		{"last lost", func(v [][]byte) [][]byte { return v[:len(v)-1] }},
		{"one twice in a row", func(v [][]byte) [][]byte { return slices.Insert(v, 100, v[100]) }},
		{"one twice, later", func(v [][]byte) [][]byte { return append(v, v[100]) }},
		{"a batch twice", func(v [][]byte) [][]byte { return slices.Insert(v, 500, v[300:400]...) }},
		{"reversed", func(v [][]byte) [][]byte { slices.Reverse(v); return v }},
		{"one replaced by another", func(v [][]byte) [][]byte { v[100] = v[1000]; return v }},
		{"all lost", func([][]byte) [][]byte { return nil }},
		{"one torn", func(v [][]byte) [][]byte { v[100] = v[100][:10]; return v }},
		{"one of a stranger", func(v [][]byte) [][]byte {
			v[100] = []byte(strings.Replace(string(v[100]), "account-", "account-9", 1))
			return v
		}},
	}
	for _, d := range damages {
		order := NewOrder(small.Accounts)
		for i, v := range d.do(slices.Clone(bills)) {
			order.Add(fmt.Sprint(i), v)
		}
		sums := NewTotals(small.Accounts)
		for i, v := range d.do(slices.Clone(totals)) {
			sums.Add(fmt.Sprint(i), v)
		}
		for name, err := range map[string]error{"order": order.Verify(want), "totals": sums.Verify(want)} {
			if (err == nil) != (d.name == "nothing") {
				t.Errorf("%s, %s: %v", d.name, name, err)
			}
		}
	}
}
