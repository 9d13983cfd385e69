package proof

import (
	"fmt"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/verify/rawlog"
)

// TestTotalsWithLateBills: a late bill may be dropped or not, and it may have the amount of the next one. What
// cannot be is found all the same.
func TestTotalsWithLateBills(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	type in struct {
		cents int64
		late  bool
	}
	for name, c := range map[string]struct {
		in   []in
		sums []int64 // of the totals that came out
		ok   bool
	}{
		"dropped":                      {[]in{{5, false}, {1, true}, {7, false}}, []int64{5, 12}, true},
		"passed":                       {[]in{{5, false}, {1, true}, {7, false}}, []int64{5, 6, 13}, true},
		"dropped, the next is equal":   {[]in{{5, false}, {1, true}, {1, false}, {9, false}}, []int64{5, 6, 15}, true},
		"passed, the next is equal":    {[]in{{5, false}, {1, true}, {1, false}, {9, false}}, []int64{5, 6, 7, 16}, true},
		"a lost one":                   {[]in{{5, false}, {1, true}, {7, false}, {9, false}}, []int64{5, 14}, false},
		"one that counts twice":        {[]in{{5, false}, {7, false}}, []int64{5, 12, 19}, false},
		"the last one is lost":         {[]in{{5, false}, {7, false}}, []int64{5}, false},
		"the order is another":         {[]in{{5, false}, {7, false}}, []int64{7, 12}, false},
		"a late one that counts twice": {[]in{{5, false}, {1, true}, {7, false}}, []int64{5, 6, 7, 14}, false},
	} {
		o := &Oracle{Scheme: Scheme{ID: "id", Account: "account", Cents: "cents"}, Window: time.Hour}
		for i, x := range c.in {
			at := now
			if x.late {
				at = now.Add(-2 * time.Hour)
			}
			r := rawlog.Record{Offset: int64(i), Time: at, Value: fmt.Appendf(nil, `{"id":%d,"account":"a","cents":%d}`, i, x.cents)}
			if err := o.Add(r); err != nil {
				t.Fatal(err)
			}
		}
		totals := o.NewTotals(TotalScheme{Count: "n", Sum: "sum"})
		for i, s := range c.sums {
			r := rawlog.Record{Offset: int64(i), Key: []byte("a"), Value: fmt.Appendf(nil, `{"n":%d,"sum":%d}`, i+1, s)}
			if err := totals.Add(r); err != nil {
				t.Fatal(err)
			}
		}
		if r := totals.Result(); r.OK() != c.ok {
			t.Errorf("%s: %v", name, r.First)
		}
	}
}
