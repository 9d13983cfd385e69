package proof

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// LedgerRow is one line of a database's ledger, exported as JSON.
type LedgerRow struct {
	ID      string `json:"id"`
	Account string `json:"account"`
	Cents   int64  `json:"cents"`
}

// TotalRow is one line of its totals.
type TotalRow struct {
	Account string `json:"account"`
	Count   int64  `json:"count"`
	Cents   int64  `json:"cents"`
}

// CheckLedger is C11: the ledger holds each accepted ID once and no other one, and the totals are the
// sums over it. Both come as lines of JSON.
func (o *Oracle) CheckLedger(ledger, totals io.Reader) (*Result, error) {
	r := NewResult("C11", "the database holds each effect once")
	sums := map[string]TotalRow{}
	seen := map[id]int{}
	err := lines(ledger, func(n int, row LedgerRow) {
		r.Compared++
		where := fmt.Sprintf("ledger line %d", n)
		k := idOf(row.ID)
		of := o.byID[k]
		if len(of) == 0 {
			r.Differ(where, "ID %q is not in the input", row.ID)
		} else if x := o.list[of[0]]; row.Cents != x.cents || row.Account != o.names[x.account] {
			r.Differ(where, "ID %q is %d cents of %q, the input has %d of %q", row.ID, row.Cents, row.Account, x.cents, o.names[x.account])
		}
		if seen[k]++; seen[k] > max(1, len(of)) {
			r.Differ(where, "ID %q stands there again", row.ID)
		}
		t := sums[row.Account]
		sums[row.Account] = TotalRow{row.Account, t.Count + 1, t.Cents + row.Cents}
	})
	if err != nil {
		return nil, fmt.Errorf("proof: ledger: %w", err)
	}
	for k, of := range o.byID {
		if x := o.list[of[0]]; seen[k] == 0 && !x.maybe {
			r.Differ(fmt.Sprintf("input partition %d, accepted record %d", x.partition, x.place), "an ID of account %q is not in the ledger", o.names[x.account])
		}
	}
	err = lines(totals, func(n int, row TotalRow) {
		r.Compared++
		if want := sums[row.Account]; row.Count != want.Count || row.Cents != want.Cents {
			r.Differ(fmt.Sprintf("totals line %d", n), "%q has %d, %d cents, its ledger %d, %d", row.Account, row.Count, row.Cents, want.Count, want.Cents)
		}
		delete(sums, row.Account)
	})
	if err != nil {
		return nil, fmt.Errorf("proof: totals: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		r.Differ("totals", "%q is missing, its ledger has %d bills", name, sums[name].Count)
	}
	return r, nil
}

// lines decodes one JSON value a line.
func lines[T any](in io.Reader, fn func(n int, row T)) error {
	s := bufio.NewScanner(in)
	s.Buffer(nil, 1<<20)
	for n := 1; s.Scan(); n++ {
		var row T
		if err := json.Unmarshal(s.Bytes(), &row); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		fn(n, row)
	}
	return s.Err()
}

// Coverage is what a run of the harness says of itself, as JSON.
type Coverage struct {
	Seeds     int64            `json:"seeds"`
	Points    map[string]int64 `json:"points"` // hits of each fault point
	Committed int64            `json:"unknown_committed"`
	Aborted   int64            `json:"unknown_aborted"` // how unknown outcomes were resolved
}

// CheckCoverage is C12: each fault point was hit at least 20 times in 1,000 seeds, and unknown outcomes
// were resolved both ways. Otherwise a run that found nothing is worth nothing.
func CheckCoverage(in io.Reader) (*Result, error) {
	const perThousand = 20
	r := NewResult("C12", "the faults were really tried")
	var c Coverage
	if err := json.NewDecoder(in).Decode(&c); err != nil {
		return nil, fmt.Errorf("proof: coverage: %w", err)
	}
	if c.Seeds <= 0 || len(c.Points) == 0 {
		return nil, errors.New("proof: coverage: no seeds or no points")
	}
	least := (c.Seeds*perThousand + 999) / 1000
	for _, p := range slices.Sorted(maps.Keys(c.Points)) {
		r.Compared++
		if n := c.Points[p]; n < least {
			r.Differ("point "+p, "hit %d times in %d seeds, at least %d are wanted", n, c.Seeds, least)
		}
	}
	r.Compared += 2
	if c.Committed == 0 || c.Aborted == 0 {
		r.Differ("unknown outcomes", "%d turned out committed, %d aborted: both ways are wanted", c.Committed, c.Aborted)
	}
	return r, nil
}
