package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"modernc.org/sqlite" // registers itself with database/sql

	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/sink/internal/sqldb"
)

// Config says where and what to write.
type Config struct {
	// File is the path of the database, which must exist or whose folder must.
	File string
	// Table, which must exist.
	Table sink.Table
	// Class is sink.Ledger if empty.
	Class sink.Class
	// Progress is the name of the ledger's progress table, made if it is not there. Default: streamd_progress.
	Progress string
	// Version is the integer column by which an idempotent upsert tells old from new. Default: streamd_version.
	Version string
	// Timeout bounds each check, claim and batch. Default: 1 minute.
	Timeout time.Duration
}

// The primary result codes that mean more than "try again" (sqlite.org/rescode.html).
const (
	codeError      = 1
	codePerm       = 3
	codeBusy       = 5
	codeLocked     = 6
	codeReadOnly   = 8
	codeCantOpen   = 14
	codeTooBig     = 18
	codeConstraint = 19
	codeMismatch   = 20
	codeAuth       = 23
	codeNotADB     = 26
)

// Open makes a target. It does not open the file.
func Open(c Config) (sink.Target, error) {
	if c.File == "" {
		return nil, errors.New("sqlite: no file")
	}
	// A transaction takes the write lock at its start: one that begins as a reader cannot wait for it.
	// WAL lets readers go on meanwhile; full synchronisation keeps a commit through a power loss.
	dsn := url.URL{Scheme: "file", Opaque: url.PathEscape(c.File), RawQuery: "_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(ON)"}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, fmt.Errorf("sqlite: %q: %w", c.File, err)
	}
	return sqldb.Open(db, dialect(), sqldb.Config{Table: c.Table, Class: c.Class, Progress: c.Progress, Version: c.Version, Timeout: c.Timeout})
}

func dialect() *sqldb.Dialect {
	return &sqldb.Dialect{
		Name:          "sqlite",
		Quote:         func(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` },
		Placeholder:   func(int) string { return "?" },
		MaxParameters: 32766, // SQLITE_MAX_VARIABLE_NUMBER
		CreateProgress: func(table string) string {
			return "CREATE TABLE IF NOT EXISTS " + table + " (sink TEXT NOT NULL, part INTEGER NOT NULL, topic_id TEXT NOT NULL, " +
				"next_offset INTEGER NOT NULL, fence INTEGER NOT NULL, commits INTEGER NOT NULL, " +
				"updated_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (sink, part))"
		},
		IgnoreConflict: func([]string) string { return "ON CONFLICT DO NOTHING" },
		Upsert:         sqldb.UpsertOnConflict,
		Classify:       classify,
		Columns:        columns,
		Unique:         unique,
		Fits:           fits,
		Arg:            arg,
		Clock:          "CURRENT_TIMESTAMP",
	}
}

func classify(err error) sqldb.Fault {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return sqldb.FaultTemporary
	}
	switch e.Code() & 0xff {
	case codeConstraint, codeMismatch, codeTooBig:
		return sqldb.FaultRow
	case codeError, codeCantOpen, codeNotADB:
		return sqldb.FaultSetup
	case codePerm, codeAuth:
		return sqldb.FaultRights
	case codeReadOnly:
		return sqldb.FaultReadOnly
	case codeBusy, codeLocked:
		return sqldb.FaultLocked
	}
	return sqldb.FaultTemporary
}

func columns(ctx context.Context, db sqldb.Querier, table string) (map[string]sqldb.DBColumn, error) {
	rows, err := db.QueryContext(ctx, `SELECT name, type, "notnull" = 0, dflt_value IS NOT NULL OR (pk > 0 AND lower(type) = 'integer'), NULL FROM pragma_table_info(?)`, table)
	return sqldb.ScanColumns(rows, err)
}

func unique(ctx context.Context, db sqldb.Querier, table string, key []string) (bool, error) {
	rows, err := db.QueryContext(ctx, `
		SELECT 'primary key', name, 0 FROM pragma_table_info(?) WHERE pk > 0
		UNION ALL
		SELECT l.name, i.name, 0 FROM pragma_index_list(?) l, pragma_index_info(l.name) i WHERE l."unique" AND NOT l.partial`, table, table)
	return sqldb.ScanUnique(rows, err, key)
}

// fits goes by the declared type. A column with NUMERIC affinity would turn a decimal into a floating point
// number: money goes into TEXT.
func fits(k sink.Kind, c sqldb.DBColumn) bool {
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(c.Type, p) })
	}
	switch k {
	case sink.Text, sink.Decimal, sink.JSON:
		return has("char", "clob", "text") && !has("int")
	case sink.Integer:
		return has("int")
	case sink.Bool:
		return has("int", "bool")
	case sink.Float:
		return has("real", "floa", "doub")
	case sink.Timestamp:
		return has("text", "datetime", "timestamp")
	case sink.Bytes:
		return has("blob")
	}
	return false
}

func arg(k sink.Kind, v any) any {
	switch v := v.(type) {
	case time.Time:
		if k == sink.Timestamp { // sorts by time, and is what SQLite's own functions read
			return v.UTC().Format("2006-01-02T15:04:05.000000Z")
		}
	case bool:
		if v {
			return int64(1)
		}
		return int64(0)
	}
	return v
}
