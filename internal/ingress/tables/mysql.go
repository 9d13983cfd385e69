package tables

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/streamd/streamd/internal/ingress"
)

// MySQL makes the rows of a table in MySQL or MariaDB. It does not connect.
//
// Nothing there says in a portable way who still writes a table. So all up to a number is taken for decided when that number has been seen for as long
// as Config.Settle: a transaction that takes longer from its INSERT to its COMMIT loses its rows here.
func MySQL(c Config) (ingress.Rows, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	mc, err := mysql.ParseDSN(c.DSN)
	if err != nil {
		return nil, errors.New("the DSN: want user:password@tcp(host:3306)/database") // the cause would show parts of it
	}
	if mc.DBName == "" && !strings.Contains(c.Table, ".") {
		return nil, errors.New("the DSN: the database's name is missing")
	}
	mc.InterpolateParams = true // values as text, so that no digit is lost
	mc.ParseTime, mc.MultiStatements = false, false
	if mc.Timeout == 0 {
		mc.Timeout = 10 * time.Second
	}
	if err := mc.Apply(mysql.Charset("utf8mb4", "")); err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(mc)
	if err != nil {
		return nil, errors.New("the DSN: want user:password@tcp(host:3306)/database")
	}
	if c.Settle <= 0 {
		c.Settle = DefaultSettle
	}
	m := &mysqlRows{now: time.Now, base: base{
		cfg: c, name: "mysql", db: sql.OpenDB(connector), means: mysqlMeans,
		session: []string{
			"SET SESSION time_zone = '+00:00'", "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "SET SESSION autocommit = 1",
			"/*!80000 SET SESSION information_schema_stats_expiry = 0 */", // MySQL only: else the last number is an old one
			// The lock of a host that vanished ends with its connection, and not after hours. A table is looked at more often than a number takes to settle.
			fmt.Sprintf("SET SESSION wait_timeout = %d", int(max(vanished, c.Settle).Seconds())),
		},
		grant: "GRANT SELECT ON " + c.Table + " to the user of the DSN",
	}}
	m.lookAt, m.lock = m.look, m.take
	return m, nil
}

// vanished is how long nothing must be heard of a host before its lock is another's.
const vanished = 30 * time.Second

type mysqlRows struct {
	base
	now   func() time.Time
	query string

	decided int64
	marks   []mark // rising
}

// onlyReads is whether the server is a replica.
const onlyReads = "CAST(@@GLOBAL.read_only AS CHAR) NOT IN ('0', 'OFF')"

// mark is a number and when it had been seen.
type mark struct {
	number int64
	at     time.Time
}

// mostMarks bounds them: so many steps has one settle time.
const mostMarks = 128

func mysqlMeans(err error) meaning {
	var e *mysql.MySQLError
	if !errors.As(err, &e) {
		return temporary
	}
	switch {
	case slices.Contains([]uint16{1045, 1698}, e.Number):
		return login
	case slices.Contains([]uint16{1044, 1142, 1143, 1227, 1370}, e.Number):
		return rights
	case slices.Contains([]uint16{1049, 1051, 1054, 1064, 1146, 1305, 1264, 1292, 1366}, e.Number):
		return setup
	}
	return temporary
}

// quoted quotes names, of a schema and a table in it for one.
func quoted(names ...string) string {
	for i, n := range names {
		names[i] = "`" + strings.ReplaceAll(n, "`", "``") + "`"
	}
	return strings.Join(names, ".")
}

func (m *mysqlRows) table() string { return quoted(strings.Split(m.cfg.Table, ".")...) }

// take tries to take the lock. What was seen under an earlier one says nothing about what happened meanwhile: the time begins again.
func (m *mysqlRows) take(ctx context.Context) (mine bool, err error) {
	m.decided, m.marks = 0, nil
	lock, _ := m.cfg.lockName()
	var got sql.NullInt64
	err = m.conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 0)", lock).Scan(&got)
	return got.Int64 == 1, err
}

// look holds the table to what a position needs.
func (m *mysqlRows) look(ctx context.Context, conn *sql.Conn) error {
	var readOnly bool
	var step int64
	if err := conn.QueryRowContext(ctx, "SELECT "+onlyReads+", @@GLOBAL.auto_increment_increment").Scan(&readOnly, &step); err != nil {
		return m.failed("look at the server", err)
	}
	switch {
	case readOnly:
		return m.refuse("connect to the primary", "this server only reads: on a replica rows come late by more than their transactions took")
	case step != 1:
		return m.refuse("set it to 1, or read a table that one server alone writes", "auto_increment_increment is %d: several servers give out numbers, and not in one order", step)
	}
	schema, name := m.cfg.schema()
	var engine sql.NullString
	var kind string
	err := conn.QueryRowContext(ctx, `SELECT table_type, engine FROM information_schema.tables WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?`, schema, name).Scan(&kind, &engine)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return m.refuse("create it, or name its schema", "table %q is not there, or not to be seen with these rights", m.cfg.Table)
	case err != nil:
		return m.failed("look at the table", err)
	case kind != "BASE TABLE" || !strings.EqualFold(engine.String, "InnoDB"):
		return m.refuse("read a table of InnoDB", "%q is a %s of engine %s", m.cfg.Table, strings.ToLower(kind), engine.String)
	}
	return m.lookColumns(ctx, conn, schema, name)
}

func (m *mysqlRows) lookColumns(ctx context.Context, conn *sql.Conn, schema, name string) error {
	rows, err := conn.QueryContext(ctx, `
		SELECT c.column_name, LOWER(c.data_type), c.is_nullable = 'NO', c.extra LIKE '%auto_increment%',
		       EXISTS (SELECT 1 FROM information_schema.statistics s WHERE s.table_schema = c.table_schema AND s.table_name = c.table_name AND s.non_unique = 0
		               GROUP BY s.index_name HAVING COUNT(*) = 1 AND MAX(s.column_name) = c.column_name AND MAX(s.sub_part) IS NULL)
		FROM information_schema.columns c WHERE c.table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND c.table_name = ? ORDER BY c.ordinal_position`, schema, name)
	if err != nil {
		return m.failed("look at the columns", err)
	}
	defer func() { _ = rows.Close() }() // Err says what matters
	var names []string
	found := false
	for rows.Next() {
		var column, typ string
		var filled, counted, unique bool
		if err := rows.Scan(&column, &typ, &filled, &counted, &unique); err != nil {
			return m.failed("look at the columns", err)
		}
		names = append(names, column)
		if !strings.EqualFold(column, m.cfg.Column) {
			continue
		}
		found = true
		if err := m.fits(typ, filled, unique, counted); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return m.failed("look at the columns", err)
	}
	wanted := m.cfg.Columns
	if len(wanted) == 0 {
		wanted = names
	}
	var list []string
	for _, w := range append([]string{m.cfg.Column}, wanted...) {
		if !found && w == m.cfg.Column || !slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, w) }) {
			return m.refuse("name one that is there: "+strings.Join(names, ", "), "table %q has no column %q", m.cfg.Table, w)
		}
		list = append(list, quoted(w))
	}
	m.query = "SELECT " + strings.Join(list, ", ") + " FROM " + m.table() + " WHERE " + list[0] + " > ? AND " + list[0] + " <= ? ORDER BY " + list[0] + " LIMIT ?"
	try, err := conn.QueryContext(ctx, m.query, 0, 0, 0)
	var fields []string
	if err == nil {
		fields, err = try.Columns()
		err = errors.Join(err, try.Close(), try.Err())
	}
	if err != nil {
		return m.failed("read the table", err)
	}
	return m.keyed(fields[1:])
}

// Decided implements ingress.Rows.
func (m *mysqlRows) Decided(ctx context.Context, after int64) (d ingress.Decision, err error) {
	if m.conn == nil {
		return d, errEnd
	}
	ctx, cancel := m.bounded(ctx)
	defer cancel()
	m.decided = max(m.decided, after)
	last := m.decided
	if len(m.marks) > 0 {
		last = m.marks[len(m.marks)-1].number
	}
	var high sql.NullInt64
	var readOnly bool
	began := m.now()
	column := quoted(m.cfg.Column)
	if err := m.conn.QueryRowContext(ctx, "SELECT MAX("+column+"), "+onlyReads+" FROM "+m.table()+" WHERE "+column+" > ?", last).Scan(&high, &readOnly); err != nil {
		return d, m.failed("ask what is new", err)
	}
	if readOnly { // temporary: the next Begin connects anew, and says what to do if it finds the same server
		return d, m.failed("ask what is new", errors.New("this server only reads now: it is no primary any more"))
	}
	m.settle(high, began, m.now())
	d.UpTo = m.decided
	began = m.now()
	schema, name := m.cfg.schema()
	var next sql.NullInt64
	if err := m.conn.QueryRowContext(ctx, "SELECT auto_increment FROM information_schema.tables WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?", schema, name).Scan(&next); err != nil {
		return d, m.failed("ask for the last number", err)
	}
	m.stood(m.now().Sub(began))
	d.Given = max(0, next.Int64-1)
	return d, nil
}

// stood takes off the time that a question took. A server that does not answer may have stood still, and with it the transactions whose end is waited for: that time does not count,
// whichever question it was.
func (m *mysqlRows) stood(d time.Duration) {
	for i := range m.marks {
		m.marks[i].at = m.marks[i].at.Add(d)
	}
}

// settle notes the highest number of an answer that came now, and what has been seen for long enough by then.
func (m *mysqlRows) settle(high sql.NullInt64, began, now time.Time) {
	m.stood(now.Sub(began))
	if high.Valid && (len(m.marks) == 0 || now.Sub(m.marks[len(m.marks)-1].at) >= m.cfg.Settle/mostMarks) {
		m.marks = append(m.marks, mark{high.Int64, now})
	}
	for len(m.marks) > 0 && now.Sub(m.marks[0].at) >= m.cfg.Settle {
		m.decided = m.marks[0].number
		m.marks = m.marks[1:]
	}
}

// Read implements ingress.Rows.
func (m *mysqlRows) Read(ctx context.Context, after, upTo int64, add func(ingress.Row) bool) (more bool, err error) {
	if m.conn == nil {
		return false, errEnd
	}
	ctx, cancel := m.bounded(ctx)
	defer cancel()
	began := m.now()
	rows, err := m.conn.QueryContext(ctx, m.query, after, upTo, m.rows())
	if err != nil {
		return false, m.failed("read rows", err)
	}
	defer func() { _ = rows.Close() }() // Err says what matters
	next := func() bool {
		there := rows.Next()
		m.stood(m.now().Sub(began))
		return there
	}
	types, err := rows.ColumnTypes()
	if err != nil {
		return false, m.failed("read rows", err)
	}
	n := 0
	for ; next(); began = m.now() {
		var r ingress.Row
		values := make([]sql.RawBytes, len(types)-1)
		into := []any{&r.Number}
		for i := range values {
			into = append(into, &values[i])
		}
		if err := rows.Scan(into...); err != nil {
			return false, m.failed("read rows", err)
		}
		if r.Value, err = rowJSON(types[1:], values); err != nil {
			return false, &ingress.SetupError{Err: fmt.Errorf("mysql: row %d of table %q: %w", r.Number, m.cfg.Table, err), Remedy: "leave the column out: columns names those that are read"}
		}
		n++
		if !add(r) {
			return m.answered(n, true), nil
		}
	}
	if err := rows.Err(); err != nil {
		return false, m.failed("read rows", err)
	}
	return m.answered(n, false), nil
}
