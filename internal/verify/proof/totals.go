package proof

import (
	"fmt"
	"slices"

	"github.com/streamd/streamd/internal/verify/rawlog"
)

// TotalScheme says where a record of a running total holds what. Values are JSON objects.
type TotalScheme struct {
	Key        string // field with the account or region; empty: the record's key
	Count, Sum string
	Min, Max   string // empty: there are none
	IDHeader   string // header with the ID of the bill that made it; empty: none
}

type running struct{ count, sum, low, high int64 }

func (t running) with(cents int64) running {
	if t.count == 0 {
		return running{1, cents, cents, cents}
	}
	return running{t.count + 1, t.sum + cents, min(t.low, cents), max(t.high, cents)}
}

// Totals checks running totals: C2 for those of accounts, C4 for those of regions.
type Totals struct {
	o      *Oracle
	scheme TotalScheme
	region bool
	last   map[int32]running
	places map[int32][]int // in the list of an account's bills, where the next one may be
	result *Result
}

// NewTotals makes a checker of the totals per account, NewRegions of those per region.
func (o *Oracle) NewTotals(s TotalScheme) *Totals {
	return &Totals{o: o, scheme: s, last: map[int32]running{}, places: map[int32][]int{}, result: NewResult("C2", "the i-th total is what i bills come to")}
}

// NewRegions makes a checker of the totals per region.
func (o *Oracle) NewRegions(s TotalScheme) *Totals {
	return &Totals{o: o, scheme: s, region: true, last: map[int32]running{}, result: NewResult("C4", "totals of regions = sum of their bills")}
}

// Add takes the next record of the totals; each partition in the order of its offsets.
func (t *Totals) Add(r rawlog.Record) error {
	name, got, err := t.parse(&r)
	if err != nil {
		t.result.Differ(r.Where(), "%v", err)
		return nil
	}
	t.result.Compared++
	n, ok := t.o.numbers[name]
	if !ok {
		t.result.Differ(r.Where(), "%q is not in the input", name)
		return nil
	}
	before := t.last[n]
	t.last[n] = got
	switch {
	case t.scheme.IDHeader != "":
		t.byHeader(&r, name, n, before, got)
	case t.region || t.o.spread[n]:
		// Which bill it was cannot be known: bills of several partitions mix as they come.
		if got.count != before.count+1 {
			t.result.Differ(r.Where(), "%s went from %d bills to %d", name, before.count, got.count)
		}
	default:
		t.inOrder(&r, name, n, before, got)
	}
	return nil
}

// inOrder expects the next bill of the account. One that may have been dropped as too late may be passed
// over, so that there can be several places where the account may be: two bills can have one amount. All
// of them are followed.
func (t *Totals) inOrder(r *rawlog.Record, name string, n int32, before, got running) {
	bills := t.o.accounts[n]
	places := t.places[n]
	if len(places) == 0 {
		places = []int{0}
	}
	var next []int
	want := before
	for _, from := range places {
		for i := from; i < len(bills); i++ {
			x := &t.o.list[bills[i]]
			sum := before.with(x.cents)
			if t.same(got, sum) && !slices.Contains(next, i+1) {
				next = append(next, i+1)
			}
			if !x.maybe {
				want = sum
				break
			}
		}
	}
	if len(next) == 0 {
		t.result.Differ(r.Where(), "%s: after %s comes %s, want %s", name, t.text(before), t.text(got), t.text(want))
		// From here on by what stands there, as if this one had been right: one mistake is told once.
		next = []int{min(slices.Min(places)+1, len(bills))}
	}
	t.places[n] = next
}

// byHeader expects the bill that the record names.
func (t *Totals) byHeader(r *rawlog.Record, name string, n int32, before, got running) {
	id, ok := r.Header(t.scheme.IDHeader)
	if !ok {
		t.result.Differ(r.Where(), "%s: no header %q", name, t.scheme.IDHeader)
		return
	}
	cents, err := t.byID(string(id), n)
	if err != nil {
		t.result.Differ(r.Where(), "%s: %v", name, err)
		return
	}
	if want := before.with(cents); !t.same(got, want) {
		t.result.Differ(r.Where(), "%s: total %d is %s, want %s", name, want.count, t.text(got), t.text(want))
	}
}

// byID finds the bill by its ID. Each counts once.
func (t *Totals) byID(name string, n int32) (int64, error) {
	of := t.o.byID[idOf(name)]
	if len(of) == 0 {
		return 0, fmt.Errorf("made by ID %q, which is not in the input", name)
	}
	for _, i := range of {
		x := &t.o.list[i]
		seen, whose := &x.totals, x.account
		if t.region {
			seen, whose = &x.regions, x.region
		}
		if whose == n && !*seen {
			*seen = true
			return x.cents, nil
		}
	}
	return 0, fmt.Errorf("ID %q counts again, or for another one", name)
}

func (t *Totals) parse(r *rawlog.Record) (name string, got running, err error) {
	f, err := fieldsOf(r.Value)
	if err != nil {
		return "", got, err
	}
	if name = string(r.Key); t.scheme.Key != "" {
		name, err = f.text(t.scheme.Key)
	}
	for _, x := range []struct {
		field string
		into  *int64
	}{{t.scheme.Count, &got.count}, {t.scheme.Sum, &got.sum}, {t.scheme.Min, &got.low}, {t.scheme.Max, &got.high}} {
		if err == nil && x.field != "" {
			*x.into, err = f.number(x.field)
		}
	}
	return name, got, err
}

func (t *Totals) same(a, b running) bool {
	return a.count == b.count && a.sum == b.sum && (t.scheme.Min == "" || a.low == b.low) && (t.scheme.Max == "" || a.high == b.high)
}

func (t *Totals) text(x running) string {
	s := fmt.Sprintf("%d bills, %d cents", x.count, x.sum)
	if t.scheme.Min != "" {
		s += fmt.Sprintf(", %d to %d", x.low, x.high)
	}
	return s
}

// Result ends the check: the last totals are those of the input.
func (t *Totals) Result() *Result {
	want, least := map[int32]running{}, map[int32]int64{} // without those that may be too late
	for i := range t.o.list {
		x := &t.o.list[i]
		n := x.account
		if t.region {
			n = x.region
		}
		want[n] = want[n].with(x.cents)
		if !x.maybe {
			least[n]++
		}
	}
	for n, w := range want {
		got := t.last[n]
		exact := least[n] == w.count
		if exact && !t.same(got, w) || got.count < least[n] || got.count > w.count {
			t.result.Differ(fmt.Sprintf("the end of %q", t.o.names[n]), "it ends with %s, want %s", t.text(got), t.text(w))
		}
	}
	return t.result
}
