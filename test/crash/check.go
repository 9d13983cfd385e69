package crash

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxProblems bounds what a checker remembers; it counts all.
const maxProblems = 10

// problems are the first faults that a checker found, and their number.
type problems struct {
	first []string
	count int
}

func (p *problems) add(format string, args ...any) {
	if p.count++; len(p.first) < maxProblems {
		p.first = append(p.first, fmt.Sprintf(format, args...))
	}
}

func (p *problems) err() error {
	if p.count == 0 {
		return nil
	}
	return fmt.Errorf("crash: %d faults in the output, the first ones:\n  %s", p.count, strings.Join(p.first, "\n  "))
}

// Order checks the output of a dedup: the bills of each account must come as 0, 1, 2, ... A number
// that came before is a duplicate; a larger one than the next is a loss or a change of order.
type Order struct {
	next []int64
	problems
	seen int64
}

// NewOrder makes a checker for so many accounts.
func NewOrder(accounts int) *Order { return &Order{next: make([]int64, accounts)} }

// Add takes the next record that a read_committed reader saw.
func (o *Order) Add(where string, value []byte) {
	o.seen++
	var b Bill
	if err := json.Unmarshal(value, &b); err != nil {
		o.add("%s: %v", where, err)
		return
	}
	a, err := accountNumber(b.Account, len(o.next))
	if err != nil {
		o.add("%s: %v", where, err)
		return
	}
	switch {
	case b.N < o.next[a]:
		o.add("%s: %s came again: the next of %s is %d", where, b.ID, b.Account, o.next[a])
	case b.N > o.next[a]:
		o.add("%s: %s came before %s's number %d", where, b.ID, b.Account, o.next[a])
		o.next[a] = b.N + 1
	default:
		o.next[a]++
	}
}

// Seen returns the number of records so far.
func (o *Order) Seen() int64 { return o.seen }

// Verify judges the whole output.
func (o *Order) Verify(want Expectation) error {
	err := o.err()
	if o.seen != want.Distinct {
		err = errors.Join(err, fmt.Errorf("crash: %d records came out, want %d", o.seen, want.Distinct))
	}
	for a, n := range o.next {
		if n != want.Bills[a] {
			return errors.Join(err, fmt.Errorf("crash: %s has %d bills, want %d", AccountName(a), n, want.Bills[a]))
		}
	}
	return err
}

// Total is a record of the totals pipeline.
type Total struct {
	Account string `json:"account"`
	Bills   int64  `json:"bills"`
	Cents   int64  `json:"cents"`
}

// Totals checks running totals: with each record of an account the number of bills grows by one and the sum by the
// amount of one bill; in the end both are the workload's.
type Totals struct {
	last []Total
	problems
	seen int64
}

// NewTotals makes a checker for so many accounts.
func NewTotals(accounts int) *Totals { return &Totals{last: make([]Total, accounts)} }

// Add takes the next record that a read_committed reader saw.
func (t *Totals) Add(where string, value []byte) {
	t.seen++
	var got Total
	if err := json.Unmarshal(value, &got); err != nil {
		t.add("%s: %v", where, err)
		return
	}
	a, err := accountNumber(got.Account, len(t.last))
	if err != nil {
		t.add("%s: %v", where, err)
		return
	}
	before := t.last[a]
	if step := got.Cents - before.Cents; got.Bills != before.Bills+1 || step < 1 || step > MaxCents {
		t.add("%s: %s went from %d bills, %d cents to %d, %d", where, got.Account, before.Bills, before.Cents, got.Bills, got.Cents)
	}
	t.last[a] = got
}

// Seen returns the number of records so far.
func (t *Totals) Seen() int64 { return t.seen }

// Verify judges the whole output.
func (t *Totals) Verify(want Expectation) error {
	err := t.err()
	if t.seen != want.Distinct {
		err = errors.Join(err, fmt.Errorf("crash: %d records came out, want %d", t.seen, want.Distinct))
	}
	wrong := slices.IndexFunc(t.last, func(x Total) bool {
		if x.Account == "" {
			return false
		}
		a, nameErr := accountNumber(x.Account, len(t.last))
		return nameErr != nil || x.Bills != want.Bills[a] || x.Cents != want.Cents[a]
	})
	if wrong >= 0 {
		err = errors.Join(err, fmt.Errorf("crash: %s ended at %d bills, %d cents, want %d, %d",
			AccountName(wrong), t.last[wrong].Bills, t.last[wrong].Cents, want.Bills[wrong], want.Cents[wrong]))
	}
	for a, x := range t.last {
		if x.Account == "" && want.Bills[a] > 0 {
			return errors.Join(err, fmt.Errorf("crash: %s never came", AccountName(a)))
		}
	}
	return err
}
