package tables

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/streamd/streamd/internal/ingress"
	"github.com/streamd/streamd/internal/pgdsn"
)

// PostgreSQL makes the rows of a table there. It does not connect.
//
// All up to the highest number that is to be seen, H, is decided when those who may have a lower one have ended. An INSERT takes a lock on the table
// (RowExclusiveLock) before its column's default takes a number from the sequence, and holds it to the end of its transaction. The sequence
// gives lower numbers out earlier: who got one below H had it before H was given out, so before H was committed and to be seen. Hence, whoever
// still writes with such a number holds that lock when H has been seen.
func PostgreSQL(c Config) (ingress.Rows, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	pc, err := pgdsn.Parse(c.DSN)
	if err != nil {
		return nil, fmt.Errorf("the DSN: %w", err) // without anything of it
	}
	if pc.ConnectTimeout == 0 {
		pc.ConnectTimeout = 10 * time.Second
	}
	p := &postgres{base: base{
		cfg: c, name: "postgres", db: stdlib.OpenDB(*pc), means: postgresMeans,
		session: []string{
			"SET application_name = 'streamd'", "SET TimeZone = 'UTC'", "SET DateStyle = 'ISO'", "SET IntervalStyle = 'iso_8601'", "SET extra_float_digits = 1",
			"SET default_transaction_isolation = 'read committed'", "SET default_transaction_read_only = on",
			"SET row_security = off", // rows that it would hide are an error then
			// The lock of a host that vanished ends with its connection: within half a minute, and not after hours.
			"SET tcp_keepalives_idle = 15", "SET tcp_keepalives_interval = 5", "SET tcp_keepalives_count = 3",
		},
		grant: "GRANT SELECT ON " + c.Table + " and on the sequence of its numbers, to the user of the DSN",
	}}
	p.lookAt, p.lock = p.look, p.take
	return p, nil
}

type postgres struct {
	base
	table    int64 // its OID
	sequence int64 // its OID
	query    string

	decided int64
	high    int64           // the number whose predecessors are waited for; not above decided: none is
	writers map[string]bool // whom that waits for: virtual transactions, and whether they are prepared
}

func postgresMeans(err error) meaning {
	var e *pgconn.PgError
	if !errors.As(err, &e) || len(e.Code) < 2 {
		return temporary
	}
	switch {
	case e.Code[:2] == "28":
		return login
	case e.Code == "42501":
		return rights
	case slices.Contains([]string{"42", "3D", "3F", "22"}, e.Code[:2]):
		return setup
	}
	return temporary
}

// take tries to take the lock, and forgets what was seen under an earlier one.
func (p *postgres) take(ctx context.Context) (mine bool, err error) {
	p.decided, p.high, p.writers = 0, 0, nil
	_, lock := p.cfg.lockName()
	err = p.conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1)", lock).Scan(&mine)
	return mine, err
}

// regclass is the table's name as to_regclass reads it.
func (p *postgres) regclass() string {
	return pgx.Identifier(strings.Split(p.cfg.Table, ".")).Sanitize()
}

// look holds the table to what the waiting for writers rests on.
func (p *postgres) look(ctx context.Context, conn *sql.Conn) error {
	var kind, persistence string
	var children, leaf, replica, hidden bool
	err := conn.QueryRowContext(ctx, `
		SELECT c.oid::bigint, c.relkind::text, c.relpersistence::text, c.relispartition, pg_is_in_recovery(), row_security_active(c.oid),
		       EXISTS (SELECT 1 FROM pg_inherits i WHERE i.inhparent = c.oid)
		FROM pg_class c WHERE c.oid = to_regclass($1)`, p.regclass()).
		Scan(&p.table, &kind, &persistence, &leaf, &replica, &hidden, &children)
	table := p.cfg.Table
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return p.refuse("create it, or name its schema", "table %q is not there, or not to be seen with these rights", table)
	case err != nil:
		return p.failed("look at the table", err)
	case replica:
		return p.refuse("connect to the primary", "this server is a replica: it does not know who writes on the primary")
	case kind != "r" || children || leaf:
		return p.refuse("read a table without partitions and children, such as an outbox", "%q is no ordinary table: who writes a part of it does not hold the lock that shows him before he has a number", table)
	case persistence == "t":
		return p.refuse("read an ordinary table", "%q is a temporary table", table)
	case hidden:
		return p.refuse("give the user BYPASSRLS, or read another table", "row security hides rows of %q from this user: they would never be read", table)
	}
	return p.lookColumns(ctx, conn)
}

type pgColumn struct{ name, typ string }

func (p *postgres) lookColumns(ctx context.Context, conn *sql.Conn) error {
	rows, err := conn.QueryContext(ctx, `
		SELECT a.attnum::int, a.attname::text, format_type(COALESCE(NULLIF(t.typbasetype, 0), t.oid), NULL), a.attnotnull OR t.typnotnull, a.attidentity::text,
		       COALESCE((SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.attgenerated = ''), ''),
		       EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
		               AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum)
		FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
		WHERE a.attrelid = $1::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`, p.table)
	if err != nil {
		return p.failed("look at the columns", err)
	}
	defer func() { _ = rows.Close() }() // Err says what matters
	var all []pgColumn
	var names []string
	number := 0
	for rows.Next() {
		var n int
		var c pgColumn
		var filled, unique bool
		var identity, def string
		if err := rows.Scan(&n, &c.name, &c.typ, &filled, &identity, &def, &unique); err != nil {
			return p.failed("look at the columns", err)
		}
		all, names = append(all, c), append(names, c.name)
		if c.name != p.cfg.Column {
			continue
		}
		number = n
		sequenced := identity != "" || strings.HasPrefix(def, "nextval(") && strings.HasSuffix(def, "::regclass)")
		if err := p.fits(c.typ, filled, unique, sequenced); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return p.failed("look at the columns", err)
	}
	if number == 0 {
		return p.refuse("name one that is there: "+strings.Join(names, ", "), "table %q has no column %q", p.cfg.Table, p.cfg.Column)
	}
	if err := p.lookSequence(ctx, conn, number); err != nil {
		return err
	}
	return p.prepare(ctx, conn, all, names)
}

// fits holds the column to what a position needs.
func (b *base) fits(typ string, filled, unique, sequenced bool) error {
	column := fmt.Sprintf("column %q of table %q", b.cfg.Column, b.cfg.Table)
	switch {
	case !slices.Contains([]string{"bigint", "integer", "smallint", "int", "mediumint"}, typ):
		return b.refuse("use a column of whole numbers, such as bigint; times can be equal, and clocks go back", "%s is of type %s", column, typ)
	case !filled:
		return b.refuse("make it NOT NULL", "%s may be NULL: such rows would never be read", column)
	case !unique:
		return b.refuse("create one", "%s has no unique index of its own", column)
	case !sequenced:
		return b.refuse("let the database give the numbers: GENERATED ALWAYS AS IDENTITY in PostgreSQL, AUTO_INCREMENT in MySQL and MariaDB", "%s is not filled with rising numbers by the database", column)
	}
	return nil
}

// lookSequence looks at what gives out the numbers.
func (p *postgres) lookSequence(ctx context.Context, conn *sql.Conn, number int) error {
	var cache, step, least int64
	var cycles, readable bool
	err := conn.QueryRowContext(ctx, `
		SELECT s.seqrelid::bigint, s.seqcache, s.seqincrement, s.seqmin, s.seqcycle, has_sequence_privilege(s.seqrelid, 'SELECT, USAGE')
		FROM pg_sequence s WHERE s.seqrelid IN (
			SELECT d.objid FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
			AND d.refobjid = $1::bigint::oid AND d.refobjsubid = $2 AND d.deptype = 'i'
			UNION SELECT d.refobjid FROM pg_depend d JOIN pg_attrdef a ON d.classid = 'pg_attrdef'::regclass AND d.objid = a.oid
			WHERE a.adrelid = $1::bigint::oid AND a.adnum = $2 AND d.refclassid = 'pg_class'::regclass AND d.refobjid <> a.adrelid)
		LIMIT 1`, p.table, number).Scan(&p.sequence, &cache, &step, &least, &cycles, &readable)
	column := fmt.Sprintf("the sequence of column %q", p.cfg.Column)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return p.fits("bigint", true, true, false)
	case err != nil:
		return p.failed("look at the sequence", err)
	case !readable:
		return &ingress.SetupError{Err: fmt.Errorf("postgres: %s may not be read", column), Rights: true, Remedy: p.grant}
	case cache != 1:
		return p.refuse("ALTER SEQUENCE ... CACHE 1", "%s has CACHE %d: sessions hold numbers back and give them out later", column, cache)
	case step < 1 || cycles:
		return p.refuse("ALTER SEQUENCE ... INCREMENT 1 NO CYCLE", "%s does not only rise", column)
	case least < 1:
		return p.refuse("ALTER SEQUENCE ... START 1 MINVALUE 1", "%s has MINVALUE %d: rows with numbers below 1 would never be read", column, least)
	}
	return nil
}

// prepare makes the statement that reads, and tries whether it may be run.
func (p *postgres) prepare(ctx context.Context, conn *sql.Conn, all []pgColumn, names []string) error {
	wanted := p.cfg.Columns
	if len(wanted) == 0 {
		wanted = names
	}
	if err := p.keyed(wanted); err != nil {
		return err
	}
	var list []string
	for _, name := range wanted {
		i := slices.Index(names, name)
		if i < 0 {
			return p.refuse("name one that is there: "+strings.Join(names, ", "), "table %q has no column %q", p.cfg.Table, name)
		}
		quoted := pgx.Identifier{name}.Sanitize()
		expr := "t." + quoted
		switch all[i].typ {
		case "bytea":
			expr = "translate(encode(" + expr + ", 'base64'), E'\\n', '')"
		case "timestamp without time zone": // taken for UTC, as the sinks write it
			expr = "(" + expr + " AT TIME ZONE 'UTC')"
		}
		list = append(list, expr+" AS "+quoted)
	}
	number := "t." + pgx.Identifier{p.cfg.Column}.Sanitize()
	p.query = "SELECT " + number + "::bigint, t.tableoid::bigint, (SELECT row_to_json(r)::text FROM (SELECT " + strings.Join(list, ", ") + ") r) FROM ONLY " + p.regclass() + " t WHERE " +
		number + " > $1 AND " + number + " <= $2 ORDER BY " + number + " LIMIT $3"
	rows, err := conn.QueryContext(ctx, p.query, 0, 0, 0)
	if err == nil {
		err = errors.Join(rows.Close(), rows.Err())
	}
	if err != nil {
		return p.failed("read the table", err)
	}
	return p.lookLocks(ctx, conn)
}

// lookLocks looks whether pg_locks shows who uses the table, which this statement does itself: servers that only speak the protocol have that view, too, and it is empty.
func (p *postgres) lookLocks(ctx context.Context, conn *sql.Conn) error {
	var shown bool
	err := conn.QueryRowContext(ctx, `
		SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'relation' AND mode = 'AccessShareLock' AND granted AND pid = pg_backend_pid() AND `+ofTable+`)
		       OR EXISTS (SELECT 1 FROM ONLY `+p.regclass()+` WHERE false)`, p.table).Scan(&shown)
	switch {
	case err != nil:
		return p.failed("look at the locks", err)
	case !shown:
		return p.refuse("read from PostgreSQL itself", "this server does not show in pg_locks who uses table %q: rows of transactions that commit late would be lost", p.cfg.Table)
	}
	return nil
}

// ofTable are the locks on the table $1.
const ofTable = "relation = $1::bigint::oid AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"

// Decided implements ingress.Rows.
func (p *postgres) Decided(ctx context.Context, after int64) (ingress.Decision, error) {
	ctx, cancel := p.bounded(ctx)
	defer cancel()
	d, err := p.decide(ctx, after)
	if err != nil {
		return d, p.failed("ask what is new", err)
	}
	return d, nil
}

func (p *postgres) decide(ctx context.Context, after int64) (d ingress.Decision, err error) {
	if p.conn == nil {
		return d, errEnd
	}
	p.decided = max(p.decided, after)
	if p.high <= p.decided {
		var high sql.NullInt64
		column := pgx.Identifier{p.cfg.Column}.Sanitize()
		if err := p.conn.QueryRowContext(ctx, "SELECT max("+column+")::bigint FROM ONLY "+p.regclass()+" WHERE "+column+" > $1", p.decided).Scan(&high); err != nil {
			return d, err
		}
		if high.Valid {
			// Only now that it has been seen: whoever comes later gets a higher number.
			if p.writers, err = p.holders(ctx); err != nil {
				return d, err
			}
			p.high = high.Int64
		}
	} else {
		now, err := p.holders(ctx)
		if err != nil {
			return d, err
		}
		await(p.writers, now)
	}
	if p.high > p.decided {
		if len(p.writers) == 0 {
			p.decided = p.high
		} else {
			d.Undecided = fmt.Sprintf("transactions that write the table: %s (pg_locks has them as virtualtransaction)", strings.Join(sortedSome(p.writers), ", "))
		}
	}
	d.UpTo = p.decided
	d.Given, err = p.given(ctx)
	return d, err
}

// given is the last number that was given out. It comes after what was seen of the table and its writers, and says whether that was of the table that was looked at.
func (p *postgres) given(ctx context.Context) (int64, error) {
	var last sql.NullInt64
	var same, readable bool
	var sequence string
	err := p.conn.QueryRowContext(ctx, `
		SELECT pg_sequence_last_value(s.seqrelid), COALESCE(to_regclass($1) = c.oid, false) AND NOT c.relispartition AND NOT pg_is_in_recovery()
		       AND s.seqcache = 1 AND s.seqincrement > 0 AND NOT s.seqcycle AND NOT EXISTS (SELECT 1 FROM pg_inherits i WHERE i.inhparent = c.oid),
		       s.seqrelid::regclass::text, has_sequence_privilege(s.seqrelid, 'SELECT')
		FROM pg_class c, pg_sequence s WHERE c.oid = $2::bigint::oid AND s.seqrelid = $3::bigint::oid`, p.regclass(), p.table, p.sequence).Scan(&last, &same, &sequence, &readable)
	switch {
	case errors.Is(err, sql.ErrNoRows) || err == nil && !same:
		return 0, p.changed()
	case err != nil || last.Valid || !readable:
		return last.Int64, err
	}
	// It has given out none since it was made, or told where to go on (RESTART WITH): all below its next one are behind it.
	var called bool
	switch err := p.conn.QueryRowContext(ctx, "SELECT last_value, is_called FROM "+sequence).Scan(&last, &called); {
	case err != nil && postgresMeans(err) == setup: // renamed just now
		return 0, p.changed()
	case err != nil:
		return 0, err
	case !called:
		last.Int64--
	}
	return last.Int64, nil
}

// changed is temporary: the next Begin looks at what is there now.
func (p *postgres) changed() error {
	return fmt.Errorf("table %q, or the sequence of its numbers, is not the one that was looked at", p.cfg.Table)
}

// await takes off the list who has ended. A transaction that is prepared may go on under another name (PostgreSQL before 14.1), so that all prepared ones
// are waited for when one that was not is gone. One that was ends under its name: else there would be a next one for ever where all are prepared.
func await(writers, now map[string]bool) {
	renamed := false
	for w, prepared := range writers {
		if is, there := now[w]; there {
			writers[w] = is
			continue
		}
		delete(writers, w)
		renamed = renamed || !prepared
	}
	for w, prepared := range now {
		if renamed && prepared {
			writers[w] = true
		}
	}
}

// holders are the transactions that hold the lock of a writer on the table, and whether they are prepared.
func (p *postgres) holders(ctx context.Context) (map[string]bool, error) {
	rows, err := p.conn.QueryContext(ctx, `
		SELECT virtualtransaction, pid IS NULL FROM pg_locks
		WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted AND `+ofTable, p.table)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err says what matters
	all := map[string]bool{}
	for rows.Next() {
		var who string
		var prepared bool
		if err := rows.Scan(&who, &prepared); err != nil {
			return nil, err
		}
		all[who] = prepared
	}
	return all, rows.Err()
}

// Read implements ingress.Rows.
func (p *postgres) Read(ctx context.Context, after, upTo int64, add func(ingress.Row) bool) (more bool, err error) {
	if p.conn == nil {
		return false, errEnd
	}
	ctx, cancel := p.bounded(ctx)
	defer cancel()
	rows, err := p.conn.QueryContext(ctx, p.query, after, upTo, p.rows())
	if err != nil {
		return false, p.failed("read rows", err)
	}
	defer func() { _ = rows.Close() }() // Err says what matters
	n := 0
	for rows.Next() {
		var r ingress.Row
		var table int64
		if err := rows.Scan(&r.Number, &table, &r.Value); err != nil {
			return false, p.failed("read rows", err)
		}
		if table != p.table { // what was decided was of another one
			return false, p.failed("read rows", p.changed())
		}
		n++
		if !add(r) {
			return p.answered(n, true), nil
		}
	}
	if err := rows.Err(); err != nil {
		return false, p.failed("read rows", err)
	}
	return p.answered(n, false), nil
}
