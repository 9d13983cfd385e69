//go:build sinks

package sinks

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// tables are a target's tables as the tests of bills see them.
type tables interface {
	// create makes them.
	create(ctx context.Context) error
	// rows is how many rows a table has.
	rows(ctx context.Context, table string) (int, error)
	// bills hands over each row of a table of bills.
	bills(ctx context.Context, table string, fn func(id, amount string)) error
	// totals hands over each row of the table of totals.
	totals(ctx context.Context, fn func(account, total string, bills int64)) error
	// look reads the ledger's rows and the offsets beside them at one moment.
	look(ctx context.Context) (view, error)
}

// view is what a reader has seen at one moment: how many rows the ledger has, and the offsets beside them.
type view struct {
	rows int
	next [billPartitions]int64
}

// sqlTables are those of a database.
type sqlTables struct {
	db *sql.DB
	// money is the type of amounts.
	money string
	// snapshot are options of a transaction in which all statements see one moment.
	snapshot *sql.TxOptions
}

func (s *sqlTables) create(ctx context.Context) error {
	bill := "account varchar(40) NOT NULL, amount " + s.money + " NOT NULL"
	for _, statement := range []string{
		"CREATE TABLE ledger (bill_id varchar(40) NOT NULL, " + bill + ")",
		"CREATE TABLE idempotent (bill_id varchar(40) PRIMARY KEY, " + bill + ", streamd_version bigint)",
		"CREATE TABLE two_phase (bill_id varchar(40) PRIMARY KEY, " + bill + ")",
		"CREATE TABLE plain (bill_id varchar(40) NOT NULL, " + bill + ")",
		"CREATE TABLE account_totals (account varchar(40) PRIMARY KEY, total " + s.money + " NOT NULL, bills bigint NOT NULL)",
	} {
		if _, err := s.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func (s *sqlTables) rows(ctx context.Context, table string) (n int, err error) {
	return n, s.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+table).Scan(&n)
}

func (s *sqlTables) bills(ctx context.Context, table string, fn func(id, amount string)) error {
	return scan(ctx, s.db, "SELECT bill_id, amount FROM "+table, func(r *sql.Rows) error {
		var id, amount string
		err := r.Scan(&id, &amount)
		fn(id, amount)
		return err
	})
}

func (s *sqlTables) totals(ctx context.Context, fn func(account, total string, bills int64)) error {
	return scan(ctx, s.db, "SELECT account, total, bills FROM account_totals", func(r *sql.Rows) error {
		var account, total string
		var bills int64
		err := r.Scan(&account, &total, &bills)
		fn(account, total, bills)
		return err
	})
}

func (s *sqlTables) look(ctx context.Context) (v view, err error) {
	tx, err := s.db.BeginTx(ctx, s.snapshot)
	if err != nil {
		return v, err
	}
	defer func() { _ = tx.Rollback() }() // it only reads
	if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM ledger").Scan(&v.rows); err != nil {
		return v, err
	}
	return v, scan(ctx, tx, "SELECT part, next_offset FROM streamd_progress WHERE sink = 'bills/ledger'", func(r *sql.Rows) error {
		var part, next int64
		if err := r.Scan(&part, &next); err != nil {
			return err
		}
		v.next[part] = next
		return nil
	})
}

// scan calls fn for each row.
func scan(ctx context.Context, db interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, query string, fn func(*sql.Rows) error,
) error {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // rows.Err says more
	for rows.Next() {
		if err := fn(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// redisTables are a stream, and hashes by account.
type redisTables struct{ c *goredis.Client }

func (*redisTables) create(context.Context) error { return nil } // there is nothing to make

func (r *redisTables) rows(ctx context.Context, table string) (int, error) {
	n, err := r.c.XLen(ctx, table).Result()
	return int(n), err
}

func (r *redisTables) bills(ctx context.Context, table string, fn func(id, amount string)) error {
	const page = 10_000
	for from := "-"; ; {
		entries, err := r.c.XRangeN(ctx, table, from, "+", page).Result()
		if err != nil {
			return err
		}
		for _, e := range entries {
			id, _ := e.Values["bill_id"].(string)
			amount, _ := e.Values["amount"].(string)
			fn(id, amount)
			from = "(" + e.ID
		}
		if len(entries) < page {
			return nil
		}
	}
}

func (r *redisTables) totals(ctx context.Context, fn func(account, total string, bills int64)) error {
	keys, err := r.c.Keys(ctx, "account_totals:*").Result()
	if err != nil {
		return err
	}
	for _, k := range keys {
		row, err := r.c.HGetAll(ctx, k).Result()
		if err != nil {
			return err
		}
		bills, err := strconv.ParseInt(row["bills"], 10, 64)
		if err != nil {
			return fmt.Errorf("%s: %w", k, err)
		}
		fn(row["account"], row["total"], bills)
	}
	return nil
}

// look asks in one MULTI.
func (r *redisTables) look(ctx context.Context) (v view, err error) {
	var rows *goredis.IntCmd
	var next [billPartitions]*goredis.StringCmd
	_, err = r.c.TxPipelined(ctx, func(p goredis.Pipeliner) error {
		rows = p.XLen(ctx, "ledger")
		for i := range next {
			next[i] = p.HGet(ctx, "streamd_progress:bills/ledger:"+strconv.Itoa(i), "next")
		}
		return nil
	})
	if err != nil {
		return v, err
	}
	v.rows = int(rows.Val())
	for i, s := range next {
		n, err := s.Int64()
		if err != nil {
			return v, err
		}
		v.next[i] = max(0, n)
	}
	return v, nil
}

// cents reads an amount of money.
func cents(s string) (int64, error) {
	whole, part, _ := strings.Cut(s, ".")
	return strconv.ParseInt(whole+(part + "00")[:2], 10, 64)
}
