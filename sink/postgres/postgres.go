package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/streamd/streamd/internal/pgdsn"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/sink/internal/sqldb"
)

// Config says where and what to write.
type Config struct {
	// DSN is a connection URL (postgres://user:password@host/database) or key=value pairs, as libpq has
	// them. What it leaves out comes from the PG* environment variables.
	DSN string
	// Dial opens connections, the driver's own way if nil.
	Dial pgconn.DialFunc
	// Table, which must exist.
	Table sink.Table
	// Class is sink.Ledger if empty.
	Class sink.Class
	// Progress is the name of the ledger's progress table, made if it is not there. Default: streamd_progress,
	// in the schema of the table.
	Progress string
	// Version is the bigint column by which an idempotent upsert tells old from new. Default: streamd_version.
	Version string
	// Timeout bounds each check, claim and batch. Default: 1 minute.
	Timeout time.Duration
}

// Open makes a target. It does not connect.
func Open(c Config) (sink.Target, error) {
	pc, err := pgdsn.Parse(c.DSN)
	if err != nil {
		return nil, fmt.Errorf("postgres: the DSN: %w", err) // without anything of it
	}
	if c.Dial != nil {
		pc.DialFunc = c.Dial
	}
	if pc.ConnectTimeout == 0 {
		pc.ConnectTimeout = 10 * time.Second
	}
	return sqldb.Open(stdlib.OpenDB(*pc), dialect(), sqldb.Config{Table: c.Table, Class: c.Class, Progress: c.Progress, Version: c.Version, Timeout: c.Timeout})
}

func dialect() *sqldb.Dialect {
	return &sqldb.Dialect{
		Name: "postgres",
		// A name of its own case and with any letter; a quote in it is doubled.
		Quote:         func(s string) string { return pgx.Identifier{s}.Sanitize() },
		Placeholder:   func(i int) string { return "$" + strconv.Itoa(i) },
		MaxParameters: 65535, // the protocol counts them in 16 bits
		CreateProgress: func(table string) string {
			return "CREATE TABLE IF NOT EXISTS " + table + " (sink text NOT NULL, part integer NOT NULL, topic_id text NOT NULL, " +
				"next_offset bigint NOT NULL, fence bigint NOT NULL, commits bigint NOT NULL, " +
				"updated_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (sink, part))"
		},
		IgnoreConflict: func([]string) string { return "ON CONFLICT DO NOTHING" },
		Upsert:         sqldb.UpsertOnConflict,
		Session: []string{
			"SET application_name = 'streamd'",
			"SET lock_timeout = '5s'",
			"SET idle_in_transaction_session_timeout = '20s'",
			"SET default_transaction_isolation = 'read committed'",
		},
		Classify: classify,
		Columns:  columns,
		Unique:   unique,
		Storage:  storage,
		Fits:     fits,
		Holders:  holders,
		Arg:      arg,
		Copy:     copyRows,
		Clock:    "now()",
		TwoPhase: twoPhase(),
	}
}

// encodeFailed is how the driver says that a value does not fit the column's type. It has no type for this error; in a
// COPY the server sends its text back.
const encodeFailed = "unable to encode "

// classify goes by the class of the SQLSTATE (PostgreSQL manual, appendix A).
func classify(err error) sqldb.Fault {
	var e *pgconn.PgError
	switch {
	case strings.Contains(err.Error(), encodeFailed):
		return sqldb.FaultRow
	case !errors.As(err, &e) || len(e.Code) < 2:
		return sqldb.FaultTemporary
	}
	switch e.Code {
	case "42501":
		return sqldb.FaultRights
	case "25006":
		return sqldb.FaultReadOnly
	case "55P03":
		return sqldb.FaultLocked
	case "P0001", "54000": // a trigger's RAISE EXCEPTION; a value too large for an index
		return sqldb.FaultRow
	}
	switch e.Code[:2] {
	case "21", "22", "23": // 21: two keys of one statement that the column's collation holds for one
		return sqldb.FaultRow
	case "28":
		return sqldb.FaultRights
	case "42", "3D", "3F", "0A":
		return sqldb.FaultSetup
	}
	return sqldb.FaultTemporary
}

// columns goes by the search path, as a statement that names the table does.
func columns(ctx context.Context, db sqldb.Querier, table string) (map[string]sqldb.DBColumn, error) {
	rows, err := db.QueryContext(ctx, `
		SELECT a.attname, CASE t.typtype WHEN 'e' THEN 'enum' ELSE format_type(COALESCE(NULLIF(t.typbasetype, 0), t.oid), NULL) END,
		       NOT (a.attnotnull OR t.typnotnull), a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL,
		       CASE WHEN COALESCE(NULLIF(t.typbasetype, 0), t.oid) = 'numeric'::regtype AND a.atttypmod >= 4 THEN (((a.atttypmod - 4) & 2047) # 1024) - 1024 END
		FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
		WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped`, regclass(table))
	return sqldb.ScanColumns(rows, err)
}

// regclass is the table's name as to_regclass reads it.
func regclass(table string) string { return pgx.Identifier(strings.Split(table, ".")).Sanitize() }

// unique looks for an index that ON CONFLICT can use: over exactly these columns, without a condition, and
// checked at once.
func unique(ctx context.Context, db sqldb.Querier, table string, key []string) (bool, error) {
	key = slices.Sorted(slices.Values(key))
	var found bool
	err := db.QueryRowContext(ctx, `
		SELECT EXISTS (SELECT 1 FROM pg_index i
		WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
		AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text COLLATE "C") FROM pg_attribute a
		     WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])) = $2::text[])`,
		regclass(table), key).Scan(&found)
	return found, err
}

// storage looks at what the table is: one that is UNLOGGED is emptied by a crash of the server, beside progress that is not; a foreign one is committed by
// another server, which may have done so when this one has not.
func storage(ctx context.Context, db sqldb.Querier, table string, _ bool) error {
	var unlogged, foreign bool
	err := db.QueryRowContext(ctx, "SELECT relpersistence = 'u', relkind = 'f' FROM pg_class WHERE oid = to_regclass($1)", regclass(table)).Scan(&unlogged, &foreign)
	switch {
	case err != nil:
		return err
	case unlogged:
		return &sink.SetupError{
			Err:    fmt.Errorf("postgres: table %q is UNLOGGED: a crash of the server empties it, and what says how far it was written stays", table),
			Remedy: "ALTER TABLE " + table + " SET LOGGED",
		}
	case foreign:
		return &sink.SetupError{
			Err:    fmt.Errorf("postgres: table %q is a foreign one: its server commits rows for itself, before or without what says how far they go", table),
			Remedy: "connect to the server that has it",
		}
	}
	return nil
}

// fits lets a value into a type that can hold all or part of its range: what does not fit then is an error of
// the row, never a silent cut. So not into real, which makes 1e300 infinite.
func fits(k sink.Kind, c sqldb.DBColumn) bool {
	types := map[sink.Kind][]string{
		sink.Text:      {"text", "character varying", "character", "citext", "uuid", "enum"},
		sink.Integer:   {"bigint", "integer", "smallint", "numeric"},
		sink.Float:     {"double precision"},
		sink.Decimal:   {"numeric"},
		sink.Bool:      {"boolean"},
		sink.Timestamp: {"timestamp with time zone", "timestamp without time zone"},
		sink.Bytes:     {"bytea"},
		sink.JSON:      {"json", "jsonb"},
	}
	return slices.Contains(types[k], c.Type)
}

func holders(ctx context.Context, db sqldb.Querier, table string) (string, error) {
	var who sql.NullString
	err := db.QueryRowContext(ctx, `
		SELECT string_agg(format('pid %s (%s) from %s, %s for %s', a.pid, a.application_name, COALESCE(host(a.client_addr), 'a local socket'),
		       a.state, date_trunc('second', clock_timestamp() - a.xact_start)), '; ')
		FROM pg_stat_activity a
		WHERE a.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL
		AND EXISTS (SELECT 1 FROM pg_locks l WHERE l.pid = a.pid AND l.granted AND l.relation = to_regclass($1) AND l.mode LIKE 'RowExclusive%')`,
		regclass(table)).Scan(&who)
	return who.String, err
}

func arg(k sink.Kind, v any) any {
	if t, ok := v.(time.Time); ok && k == sink.Timestamp {
		return t.UTC().Truncate(time.Microsecond)
	}
	return v
}
