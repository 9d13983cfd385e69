package proof

import (
	"fmt"

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
	result *Result
}

// NewTotals makes a checker of the totals per account, NewRegions of those per region.
func (o *Oracle) NewTotals(s TotalScheme) *Totals {
	return &Totals{o: o, scheme: s, last: map[int32]running{}, result: NewResult("C2", "the i-th total is what i bills come to")}
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
	cents, err := t.step(&r, n, before)
	if err != nil {
		t.result.Differ(r.Where(), "%s: %v", name, err)
		return nil
	}
	if cents < 0 { // not known which bill it was
		if got.count != before.count+1 {
			t.result.Differ(r.Where(), "%s went from %d bills to %d", name, before.count, got.count)
		}
		return nil
	}
	if want := before.with(cents); !t.same(got, want) {
		t.result.Differ(r.Where(), "%s: total %d is %s, want %s", name, before.count+1, t.text(got), t.text(want))
	}
	return nil
}

// step is the amount of the bill that made a total; negative: it cannot be known.
func (t *Totals) step(r *rawlog.Record, n int32, before running) (int64, error) {
	if t.scheme.IDHeader != "" {
		if v, ok := r.Header(t.scheme.IDHeader); ok {
			return t.byID(string(v), n)
		}
	}
	if t.region || t.o.spread[n] {
		return -1, nil
	}
	bills := t.o.accounts[n]
	if before.count >= int64(len(bills)) {
		return 0, fmt.Errorf("total %d, it has %d bills", before.count+1, len(bills))
	}
	return t.o.list[bills[before.count]].cents, nil
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
