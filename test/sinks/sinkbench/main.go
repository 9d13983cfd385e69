package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/sink/mysql"
	"github.com/streamd/streamd/sink/postgres"
	"github.com/streamd/streamd/test/sinks/dbenv"
)

const database = "bench"

// config is what is measured.
type config struct {
	rows, batch, writers, repeat int
	only                         string // name of a server; empty: all
}

// kind is a server.
type kind struct {
	name          string
	make          func(context.Context) (*dbenv.Server, error)
	driver, admin string
	text          string // type of a short text
	open          func(dsn string, t sink.Table) (sink.Target, error)
	placeholder   func(i int) string
	// dsn adds what the sink's own connections have to the plain ones.
	dsn func(string) string
}

func kinds() []kind {
	return []kind{
		{
			"PostgreSQL", dbenv.PostgreSQL, "pgx", "postgres", "text",
			func(dsn string, t sink.Table) (sink.Target, error) {
				return postgres.Open(postgres.Config{DSN: dsn, Table: t})
			},
			func(i int) string { return "$" + strconv.Itoa(i) },
			func(dsn string) string { return dsn },
		},
		{
			"MariaDB", dbenv.MariaDB, "mysql", "", "varchar(40)",
			func(dsn string, t sink.Table) (sink.Target, error) {
				return mysql.Open(mysql.Config{DSN: dsn, Table: t})
			},
			func(int) string { return "?" },
			// Without it each INSERT is prepared first, in a round trip of its own.
			func(dsn string) string { return dsn + "&interpolateParams=true" },
		},
	}
}

func main() {
	var c config
	flag.IntVar(&c.rows, "rows", 400_000, "rows of each run")
	flag.IntVar(&c.batch, "batch", 1000, "rows of a transaction")
	flag.IntVar(&c.writers, "writers", 4, "connections, and partitions of the sink")
	flag.IntVar(&c.repeat, "repeat", 3, "runs of each, by turns")
	flag.StringVar(&c.only, "only", "", "PostgreSQL or MariaDB")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, c); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, c config) error {
	fmt.Printf("%d rows, %d in a transaction, %d connections; medians of %d runs, by turns\n\n| server | rows | plain, rows/s | ledger, rows/s | ratio |\n|---|---|---:|---:|---:|\n", c.rows, c.batch, c.writers, c.repeat)
	for _, k := range kinds() {
		if c.only != "" && c.only != k.name {
			continue
		}
		if err := k.measure(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
	}
	return nil
}

// measure starts the server and measures both forms of a table: rows that are appended, and rows with a key.
func (k kind) measure(ctx context.Context, c config) (err error) {
	s, err := k.make(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Remove()) }()
	if err := s.Start(ctx); err != nil {
		return err
	}
	first, err := sql.Open(k.driver, s.DSN(k.admin))
	if err != nil {
		return err
	}
	defer func() { _ = first.Close() }() // its work is done
	if _, err := first.ExecContext(ctx, "CREATE DATABASE "+database); err != nil {
		return err
	}
	db, err := sql.Open(k.driver, k.dsn(s.DSN(database)))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // as above
	for _, keyed := range []bool{false, true} {
		var plain, ledger []float64
		for i := range c.repeat {
			// Who is first changes: the server of a first run is colder.
			for turn := range 2 {
				var rate float64
				if (i+turn)%2 == 0 {
					rate, err = k.timed(ctx, c, db, keyed, func(n int) error { return k.plain(ctx, c, db, n) })
					plain = append(plain, rate)
				} else {
					rate, err = k.ledger(ctx, c, db, s.DSN(database), keyed, i)
					ledger = append(ledger, rate)
				}
				if err != nil {
					return err
				}
			}
		}
		form := "appended"
		if keyed {
			form = "with a key"
		}
		p, l := median(plain), median(ledger)
		fmt.Printf("| %s | %s | %.0f | %.0f | %.2f |\n", k.name, form, p, l, l/p)
	}
	return nil
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}

// table is what both write.
func table(keyed bool) sink.Table {
	t := sink.Table{Name: "bills", Columns: []sink.Column{
		{Name: "bill_id", Kind: sink.Text}, {Name: "account", Kind: sink.Text}, {Name: "amount", Kind: sink.Decimal}, {Name: "issued_at", Kind: sink.Timestamp},
	}}
	if keyed {
		t.Key = []string{"bill_id"}
	}
	return t
}

// timed makes the table anew, lets each writer work, checks that all rows are there, and returns rows a second.
func (k kind) timed(ctx context.Context, c config, db *sql.DB, keyed bool, write func(writer int) error) (float64, error) {
	key, at := "", "timestamptz"
	if keyed {
		key = " PRIMARY KEY"
	}
	if k.driver == "mysql" {
		at = "datetime(6)"
	}
	for _, statement := range []string{
		"DROP TABLE IF EXISTS bills",
		fmt.Sprintf("CREATE TABLE bills (bill_id %s NOT NULL%s, account %[1]s NOT NULL, amount decimal(20,2) NOT NULL, issued_at %[3]s)", k.text, key, at),
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return 0, err
		}
	}
	errs := make([]error, c.writers)
	var all sync.WaitGroup
	began := time.Now()
	for n := range c.writers {
		all.Go(func() { errs[n] = write(n) })
	}
	all.Wait()
	took := time.Since(began)
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	var rows int
	if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM bills").Scan(&rows); err != nil {
		return 0, err
	}
	if want := c.batches() * c.batch * c.writers; rows != want {
		return 0, fmt.Errorf("%d rows, want %d", rows, want)
	}
	return float64(rows) / took.Seconds(), nil
}

// batches is how many each writer writes.
func (c config) batches() int { return max(1, c.rows/c.batch/c.writers) }

// values are those of a writer's row.
func values(writer, row int) []any {
	return []any{
		fmt.Sprintf("b-%d-%d", writer, row), fmt.Sprintf("a%d", row%1000), fmt.Sprintf("%d.%02d", row%5000, row%100),
		time.Unix(1_700_000_000+int64(row), 0).UTC(),
	}
}

// plain inserts a writer's rows, a transaction for each batch.
func (k kind) plain(ctx context.Context, c config, db *sql.DB, writer int) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // it goes back to the pool
	var statement strings.Builder
	statement.WriteString("INSERT INTO bills (bill_id, account, amount, issued_at) VALUES ")
	for i := range c.batch {
		if i > 0 {
			statement.WriteByte(',')
		}
		fmt.Fprintf(&statement, "(%s,%s,%s,%s)", k.placeholder(4*i+1), k.placeholder(4*i+2), k.placeholder(4*i+3), k.placeholder(4*i+4))
	}
	for b := range c.batches() {
		args := make([]any, 0, 4*c.batch)
		for i := range c.batch {
			args = append(args, values(writer, b*c.batch+i)...)
		}
		if _, err := conn.ExecContext(ctx, statement.String(), args...); err != nil {
			return err
		}
	}
	return nil
}

// ledger writes the same rows through the sink.
func (k kind) ledger(ctx context.Context, c config, db *sql.DB, dsn string, keyed bool, run int) (rate float64, err error) {
	target, err := k.open(dsn, table(keyed))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	return k.timed(ctx, c, db, keyed, func(n int) error {
		p := sink.Partition{Sink: fmt.Sprintf("bench-%t-%d", keyed, run), TopicPartition: record.TopicPartition{Topic: "bills", Partition: record.Partition(n)}, TopicID: "1"}
		w, err := target.Claim(ctx, p)
		if err != nil {
			return err
		}
		defer func() { _ = w.Close() }() // all is written
		for b := range c.batches() {
			batch := sink.Batch{First: record.Offset(b * c.batch), Next: record.Offset((b + 1) * c.batch)}
			for i := range c.batch {
				row := b*c.batch + i
				batch.Rows = append(batch.Rows, sink.Row{ID: record.StringID(strconv.Itoa(row)), Offset: record.Offset(row), Values: values(n, row)})
			}
			if err := w.Write(ctx, batch); err != nil {
				return err
			}
		}
		return nil
	})
}
