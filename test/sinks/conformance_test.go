//go:build sinks

package sinks

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/sink/mysql"
	"github.com/streamd/streamd/sink/postgres"
	"github.com/streamd/streamd/sink/sinktest"
	"github.com/streamd/streamd/sink/sqlite"
	"github.com/streamd/streamd/test/sinks/dbenv"
)

const database = "bills"

// harness is sinktest's view of an SQL server.
type harness struct {
	server  *dbenv.Server // nil: SQLite
	db      *sql.DB
	open    func(s sinktest.Spec) (sink.Target, error)
	types   map[sink.Kind]string
	leftOut map[string]string
	commit  string // empty: COMMIT
	narrow  string
	reader  func(user, password string) []string
	// appender are the statements that make a user who may only append.
	appender func(user, password, table string) []string
	// readOnly are the statements that switch it on and off.
	readOnly func(user string) (on, off []string)
}

func (h *harness) Open(s sinktest.Spec) (sink.Target, error) { return h.open(s) }

func (h *harness) Address() string {
	if h.server == nil {
		return ""
	}
	return h.server.Address
}

// Commit is the statement, and not a column or an isolation level.
func (h *harness) Commit() string             { return cmp.Or(h.commit, `(?i)\bcommit\b`) }
func (h *harness) LeftOut() map[string]string { return h.leftOut }
func (h *harness) Narrow() string             { return h.narrow }

func (h *harness) Exec(ctx context.Context, statement string) error {
	_, err := h.db.ExecContext(ctx, statement)
	return err
}

func (h *harness) Type(k sink.Kind) string         { return h.types[k] }
func (h *harness) Kill() error                     { return h.server.Kill() }
func (h *harness) Start(ctx context.Context) error { return h.server.Start(ctx) }

func (h *harness) Reader(ctx context.Context, user, password string) error {
	return h.all(ctx, h.reader(user, password))
}

func (h *harness) Appender(ctx context.Context, user, password string, table sink.Table) error {
	return h.all(ctx, h.appender(user, password, table.Name))
}

func (h *harness) Rewind(ctx context.Context, p sink.Partition, next record.Offset) error {
	return h.Exec(ctx, fmt.Sprintf("UPDATE streamd_progress SET next_offset = %d WHERE sink = '%s' AND part = %d", next, p.Sink, p.Partition))
}

func (h *harness) ReadOnly(ctx context.Context, user, _ string, on bool) (bool, error) {
	if h.readOnly == nil {
		return false, nil
	}
	statements, off := h.readOnly(user)
	if !on {
		statements = off
	}
	return true, h.all(ctx, statements)
}

func (h *harness) all(ctx context.Context, statements []string) error {
	for _, s := range statements {
		if err := h.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

func (h *harness) Rows(ctx context.Context, table sink.Table) ([][]string, error) {
	names := make([]string, len(table.Columns))
	for i, c := range table.Columns {
		names[i] = c.Name
	}
	rows, err := h.db.QueryContext(ctx, "SELECT "+strings.Join(names, ", ")+" FROM "+table.Name+" ORDER BY 1")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all [][]string
	for rows.Next() {
		values, targets := make([]any, len(names)), make([]any, len(names))
		for i := range values {
			targets[i] = &values[i]
		}
		if err := rows.Scan(targets...); err != nil {
			return nil, err
		}
		line := make([]string, len(names))
		for i, v := range values {
			if line[i], err = text(table.Columns[i].Kind, v); err != nil {
				return nil, err
			}
		}
		all = append(all, line)
	}
	return all, rows.Err()
}

// text is a value in the suite's form, whatever Go type the driver has for it.
func text(k sink.Kind, v any) (string, error) {
	if v == nil {
		return "NULL", nil
	}
	if b, ok := v.([]byte); ok {
		if k == sink.Bytes {
			return hex.EncodeToString(b), nil
		}
		v = string(b)
	}
	s := fmt.Sprint(v)
	switch k {
	case sink.Timestamp:
		at, ok := v.(time.Time)
		if !ok {
			return s, nil // SQLite's text is the suite's form
		}
		return at.UTC().Format("2006-01-02T15:04:05.000000Z"), nil
	case sink.Bool:
		b, err := strconv.ParseBool(s)
		return strconv.FormatBool(b), err
	case sink.Float:
		f, err := strconv.ParseFloat(s, 64)
		return strconv.FormatFloat(f, 'g', -1, 64), err
	}
	return s, nil
}

// started starts a server, with the database, and removes it with the test.
func started(t *testing.T, make func(context.Context) (*dbenv.Server, error), driver, admin string) (*dbenv.Server, *sql.DB) {
	t.Helper()
	s, err := make(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Remove(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, err := sql.Open(driver, s.DSN(admin))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	if _, err := first.ExecContext(t.Context(), "CREATE DATABASE "+database); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open(driver, s.DSN(database))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return s, db
}

func TestPostgreSQL(t *testing.T) { sinktest.Run(t, postgresHarness(t)) }

func postgresHarness(t *testing.T) *harness {
	s, db := started(t, dbenv.PostgreSQL, "pgx", "postgres")
	return &harness{
		server: s, db: db,
		open: func(spec sinktest.Spec) (sink.Target, error) {
			return postgres.Open(postgres.Config{DSN: s.As(spec.Address, database, spec.User, spec.Password), Table: spec.Table, Class: spec.Class})
		},
		types: map[sink.Kind]string{
			sink.Text: "text", sink.Integer: "bigint", sink.Float: "double precision", sink.Decimal: "numeric(40,2)", sink.Bool: "boolean",
			sink.Timestamp: "timestamptz", sink.Bytes: "bytea", sink.JSON: "jsonb",
		},
		reader: func(user, password string) []string {
			return []string{"CREATE USER " + user + " PASSWORD '" + password + "'", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO " + user}
		},
		narrow: "smallint",
		appender: func(user, password, table string) []string {
			return []string{
				"CREATE USER " + user + " PASSWORD '" + password + "'", "GRANT INSERT ON " + table + " TO " + user,
				"GRANT INSERT, UPDATE, SELECT ON streamd_progress TO " + user,
			}
		},
		readOnly: func(user string) (on, off []string) {
			grant := "GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO " + user
			return []string{grant, "ALTER USER " + user + " SET default_transaction_read_only = on"}, []string{"ALTER USER " + user + " SET default_transaction_read_only = off"}
		},
	}
}

func TestMariaDB(t *testing.T) { sinktest.Run(t, mariaHarness(t)) }

func mariaHarness(t *testing.T) *harness {
	s, db := started(t, dbenv.MariaDB, "mysql", "")
	return &harness{
		server: s, db: db,
		open: func(spec sinktest.Spec) (sink.Target, error) {
			return mysql.Open(mysql.Config{DSN: s.As(spec.Address, database, spec.User, spec.Password), Table: spec.Table, Class: spec.Class})
		},
		types: map[sink.Kind]string{
			sink.Text: "varchar(200) CHARACTER SET utf8mb4", sink.Integer: "bigint", sink.Float: "double", sink.Decimal: "decimal(40,2)", sink.Bool: "boolean",
			sink.Timestamp: "datetime(6)", sink.Bytes: "blob", sink.JSON: "json",
		},
		reader: func(user, password string) []string {
			return []string{"CREATE USER " + user + "@'%' IDENTIFIED BY '" + password + "'", "GRANT SELECT ON " + database + ".* TO " + user + "@'%'"}
		},
		narrow: "smallint",
		appender: func(user, password, table string) []string {
			return []string{
				"CREATE USER " + user + "@'%' IDENTIFIED BY '" + password + "'", "GRANT INSERT ON " + database + "." + table + " TO " + user + "@'%'",
				"GRANT INSERT, UPDATE, SELECT ON " + database + ".streamd_progress TO " + user + "@'%'",
			}
		},
		readOnly: func(user string) (on, off []string) {
			grant := "GRANT INSERT, UPDATE, DELETE ON " + database + ".* TO " + user + "@'%'"
			return []string{grant, "SET GLOBAL read_only = 1"}, []string{"SET GLOBAL read_only = 0"}
		},
	}
}

func TestSQLite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bills #1 %20.db") // a name that is no URL
	db, err := sql.Open("sqlite", "file:"+strings.NewReplacer("%", "%25", "#", "%23", " ", "%20").Replace(file)+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	sinktest.Run(t, &harness{
		db:      db,
		leftOut: map[string]string{"DecimalKeys": "decimals are text there, and their spellings are different keys"},
		open: func(spec sinktest.Spec) (sink.Target, error) {
			return sqlite.Open(sqlite.Config{File: file, Table: spec.Table, Class: spec.Class})
		},
		types: map[sink.Kind]string{
			sink.Text: "TEXT", sink.Integer: "INTEGER", sink.Float: "REAL", sink.Decimal: "TEXT", sink.Bool: "BOOLEAN",
			sink.Timestamp: "TEXT", sink.Bytes: "BLOB", sink.JSON: "TEXT",
		},
	})
}
