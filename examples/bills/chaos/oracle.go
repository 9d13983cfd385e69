package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// oracle is what has to come out, computed from the topic in the plainest way.
type oracle struct {
	amount map[string]int64 // cents, by bill
	totals map[string][2]int64
}

// ask reads the topic from its start until nothing comes any more.
func ask(ctx context.Context, brokers []string) (*oracle, error) {
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	o := &oracle{amount: map[string]int64{}, totals: map[string][2]int64{}}
	now := time.Now()
	for {
		wait, cancel := context.WithTimeout(ctx, 5*time.Second)
		f := c.PollFetches(wait)
		cancel()
		if err := f.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return nil, err
		}
		if f.NumRecords() == 0 {
			return o, nil
		}
		f.EachRecord(func(r *kgo.Record) { o.add(r.Value, now) })
	}
}

// add counts a bill once: what is no bill, what comes again with the same ID, and what is late does not count. A copy with another
// amount never comes before the first one, which another partition may hold.
func (o *oracle) add(value []byte, now time.Time) {
	var b bill
	if json.Unmarshal(value, &b) != nil || b.Amount == "0.01" || now.Sub(b.IssuedAt) > late {
		return
	}
	if _, known := o.amount[b.ID]; known {
		return
	}
	c, err := cents(b.Amount)
	if err != nil {
		return
	}
	o.amount[b.ID] = c
	t := o.totals[b.Account]
	o.totals[b.Account] = [2]int64{t[0] + c, t[1] + 1}
}

// cents reads an amount of money.
func cents(s string) (int64, error) {
	whole, part, _ := strings.Cut(s, ".")
	return strconv.ParseInt(whole+(part + "00")[:2], 10, 64)
}

// outcome is how a table compares.
type outcome struct{ rows, missing, doubled, other int }

func (r outcome) wrong() int { return r.missing + r.doubled + r.other }

// bills compares a table of bills.
func (o *oracle) bills(ctx context.Context, db *sql.DB, table string) (r outcome, err error) {
	seen := map[string]int{}
	rows, err := db.QueryContext(ctx, "SELECT bill_id, amount FROM "+table)
	if err != nil {
		return r, err
	}
	defer func() { _ = rows.Close() }() // rows.Err says more
	for rows.Next() {
		var id, amount string
		if err := rows.Scan(&id, &amount); err != nil {
			return r, err
		}
		r.rows++
		if seen[id]++; seen[id] > 1 {
			r.doubled++
		}
		if c, err := cents(amount); err != nil || c != o.amount[id] {
			r.other++ // also one that should not be there
		}
	}
	for id := range o.amount {
		if seen[id] == 0 {
			r.missing++
		}
	}
	return r, rows.Err()
}

// accounts compares the table of totals.
func (o *oracle) accounts(ctx context.Context, db *sql.DB) (r outcome, err error) {
	rows, err := db.QueryContext(ctx, "SELECT account, total, bills FROM chaos_totals")
	if err != nil {
		return r, err
	}
	defer func() { _ = rows.Close() }() // rows.Err says more
	for rows.Next() {
		var account, total string
		var bills int64
		if err := rows.Scan(&account, &total, &bills); err != nil {
			return r, err
		}
		r.rows++
		if c, err := cents(total); err != nil || o.totals[account] != [2]int64{c, bills} {
			r.other++
		}
	}
	r.missing = max(0, len(o.totals)-r.rows)
	return r, rows.Err()
}

// settled waits until the tables hold all that has to be there. What it has seen last is compared in any case.
func (o *oracle) settled(ctx context.Context, db *sql.DB, patience time.Duration) (bool, error) {
	for deadline := time.Now().Add(patience); ; {
		missing := 0
		for _, table := range []string{"chaos_ledger", "chaos_idempotent", "chaos_plain"} {
			r, err := o.bills(ctx, db, table)
			if err != nil {
				return false, fmt.Errorf("%s: %w", table, err)
			}
			missing += r.missing
		}
		r, err := o.accounts(ctx, db)
		if err != nil {
			return false, fmt.Errorf("totals: %w", err)
		}
		if missing+r.wrong() == 0 {
			return true, nil
		}
		if time.Now().After(deadline) {
			return false, nil
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}
