package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/sink/internal/sqldb"
)

// Config says where and what to write.
type Config struct {
	// DSN as user:password@tcp(host:3306)/database. Character set, time zone, strict mode and bounded lock
	// waits are set by the sink.
	DSN string
	// Table, which must exist. Mind that MySQL replaces a row also where another unique index than the
	// key's has its values.
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
	mc, err := mysql.ParseDSN(c.DSN)
	if err != nil {
		return nil, errors.New("mysql: the DSN: want user:password@tcp(host:3306)/database") // the cause would show parts of it
	}
	mc.ParseTime, mc.Loc = true, time.UTC
	mc.InterpolateParams = true // one round trip a statement; safe with utf8mb4
	mc.MultiStatements = false
	if mc.Timeout == 0 {
		mc.Timeout = 10 * time.Second
	}
	if err := mc.Apply(mysql.Charset("utf8mb4", "")); err != nil {
		return nil, fmt.Errorf("mysql: %w", err)
	}
	connector, err := mysql.NewConnector(mc)
	if err != nil {
		return nil, fmt.Errorf("mysql: the DSN: %w", err)
	}
	return sqldb.Open(sql.OpenDB(connector), dialect(), sqldb.Config{Table: c.Table, Class: c.Class, Progress: c.Progress, Version: c.Version, Timeout: c.Timeout})
}

func dialect() *sqldb.Dialect {
	return &sqldb.Dialect{
		Name:          "mysql",
		Quote:         quote,
		Placeholder:   func(int) string { return "?" },
		MaxParameters: 16000, // no limit of the server's with interpolated ones; its max_allowed_packet is
		CreateProgress: func(table string) string {
			return "CREATE TABLE IF NOT EXISTS " + table + " (sink varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, part int NOT NULL, " +
				"topic_id varchar(64) NOT NULL, next_offset bigint NOT NULL, fence bigint NOT NULL, commits bigint NOT NULL, " +
				"updated_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), PRIMARY KEY (sink, part)) ENGINE=InnoDB"
		},
		// Not INSERT IGNORE, which turns every other error into a warning too.
		IgnoreConflict: func(key []string) string { return "ON DUPLICATE KEY UPDATE " + key[0] + " = " + key[0] },
		Upsert:         upsert,
		Session: []string{
			// MariaDB can end a transaction that its client forgot; MySQL only the whole idle connection.
			"SET SESSION innodb_lock_wait_timeout = 5, wait_timeout = 60, time_zone = '+00:00' /*M!100306 , idle_transaction_timeout = 20 */",
			// Without strict mode a value that does not fit is cut in silence.
			"SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')",
			"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
		},
		Classify: classify,
		Columns:  columns,
		Unique:   unique,
		Storage:  storage,
		Fits:     fits,
		Holders:  holders,
		Arg:      arg,
		Clock:    "CURRENT_TIMESTAMP(6)",
		TwoPhase: twoPhase(),
	}
}

func quote(s string) string { return "`" + strings.ReplaceAll(s, "`", "``") + "`" }

// upsert sets the version last: the assignments before it compare with the row's old one.
func upsert(key, columns []string, _, version string) string {
	var set []string
	for _, c := range columns {
		switch {
		case slices.Contains(key, c):
		case version == "":
			set = append(set, c+" = VALUES("+c+")")
		default:
			set = append(set, c+" = IF(VALUES("+version+") > COALESCE("+version+", -1), VALUES("+c+"), "+c+")")
		}
	}
	if version != "" {
		set = append(set, version+" = GREATEST(COALESCE("+version+", -1), VALUES("+version+"))")
	}
	if len(set) == 0 {
		set = append(set, key[0]+" = "+key[0])
	}
	return "ON DUPLICATE KEY UPDATE " + strings.Join(set, ", ")
}

// faults are the server's error numbers that mean more than "try again".
func faults() map[sqldb.Fault][]uint16 {
	return map[sqldb.Fault][]uint16{
		// null, duplicate, a trigger's SIGNAL, foreign keys, no default, range, truncated, wrong value, too long, JSON, CHECK (3819, MariaDB 4025)
		sqldb.FaultRow:      {1048, 1062, 1644, 1216, 1217, 1451, 1452, 1364, 1264, 1265, 1292, 1366, 1406, 1411, 3140, 3819, 4025},
		sqldb.FaultSetup:    {1049, 1051, 1054, 1064, 1072, 1136, 1146, 1305},
		sqldb.FaultRights:   {1044, 1045, 1142, 1143, 1227, 1370, 1698},
		sqldb.FaultReadOnly: {1290, 1792, 1836, 3989},
		sqldb.FaultLocked:   {1205},
	}
}

func classify(err error) sqldb.Fault {
	var e *mysql.MySQLError
	if !errors.As(err, &e) {
		return sqldb.FaultTemporary
	}
	for f, numbers := range faults() { // no number stands twice
		if slices.Contains(numbers, e.Number) {
			return f
		}
	}
	return sqldb.FaultTemporary
}

// split returns the schema, nil for the connection's own, and the table.
func split(table string) (schema any, name string) {
	if s, n, ok := strings.Cut(table, "."); ok {
		return s, n
	}
	return nil, table
}

func columns(ctx context.Context, db sqldb.Querier, table string) (map[string]sqldb.DBColumn, error) {
	schema, name := split(table)
	rows, err := db.QueryContext(ctx, `
		SELECT column_name, data_type, is_nullable = 'YES',
		       column_default IS NOT NULL OR extra LIKE '%auto_increment%' OR extra LIKE '%GENERATED%',
		       CASE data_type WHEN 'decimal' THEN numeric_scale END
		FROM information_schema.columns WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?`, schema, name)
	return sqldb.ScanColumns(rows, err)
}

func unique(ctx context.Context, db sqldb.Querier, table string, key []string) (bool, error) {
	schema, name := split(table)
	rows, err := db.QueryContext(ctx, `
		SELECT index_name, column_name, sub_part IS NOT NULL FROM information_schema.statistics
		WHERE non_unique = 0 AND table_schema = COALESCE(?, DATABASE()) AND table_name = ?`, schema, name)
	return sqldb.ScanUnique(rows, err, key)
}

// storage looks at the table's engine: MyISAM, Aria and others keep what was rolled back. A view has none, and is left to whoever made it.
func storage(ctx context.Context, db sqldb.Querier, table string, prepares bool) error {
	schema, name := split(table)
	var engine string
	var transactions, xa sql.NullString
	err := db.QueryRowContext(ctx, `
		SELECT e.engine, e.transactions, e.xa
		FROM information_schema.tables t JOIN information_schema.engines e ON e.engine = t.engine
		WHERE t.table_schema = COALESCE(?, DATABASE()) AND t.table_name = ?`, schema, name).Scan(&engine, &transactions, &xa)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	case transactions.String == "YES" && (!prepares || xa.String == "YES"):
		return nil
	}
	what := "takes no transaction back: rows of a batch that failed would stay, and be written again"
	if transactions.String == "YES" {
		what = "prepares no transactions"
	}
	return &sink.SetupError{
		Err:    fmt.Errorf("mysql: table %q is stored by %s, which %s", table, engine, what),
		Remedy: "ALTER TABLE " + table + " ENGINE=InnoDB",
	}
}

func fits(k sink.Kind, c sqldb.DBColumn) bool {
	types := map[sink.Kind][]string{
		sink.Text:      {"varchar", "char", "text", "tinytext", "mediumtext", "longtext", "enum", "uuid"},
		sink.Integer:   {"bigint", "int", "mediumint", "smallint", "tinyint", "decimal"},
		sink.Float:     {"double"},
		sink.Decimal:   {"decimal"},
		sink.Bool:      {"tinyint", "boolean"},
		sink.Timestamp: {"datetime", "timestamp"},
		sink.Bytes:     {"blob", "tinyblob", "mediumblob", "longblob", "varbinary", "binary"},
		sink.JSON:      {"json", "longtext"}, // MariaDB's JSON is a longtext with a check
	}
	return slices.Contains(types[k], c.Type)
}

// holders needs the PROCESS right; without it the message says so.
func holders(ctx context.Context, db sqldb.Querier, _ string) (string, error) {
	var who sql.NullString
	err := db.QueryRowContext(ctx, `
		SELECT GROUP_CONCAT(CONCAT('connection ', trx_mysql_thread_id, ', ', trx_state, ' since ', trx_started) SEPARATOR '; ')
		FROM information_schema.innodb_trx WHERE trx_rows_locked > 0 AND trx_mysql_thread_id <> CONNECTION_ID()`).Scan(&who)
	return who.String, err
}

func arg(k sink.Kind, v any) any {
	if t, ok := v.(time.Time); ok && k == sink.Timestamp {
		return t.UTC().Truncate(time.Microsecond)
	}
	return v
}
