package pipeline

import (
	"fmt"
	"slices"
	"time"

	"github.com/streamd/streamd/internal/ingress"
	"github.com/streamd/streamd/internal/ingress/tables"
	"github.com/streamd/streamd/topology"
)

// TableIngress reads new rows of a table in a database. Zero values stand for the defaults.
type TableIngress struct {
	DSN           string // may hold a password
	Table, Column string
	// Columns are those that a record has; empty: all.
	Columns  []string
	KeyField string
	// After is the number behind which a table is read that was never read before.
	After int64
	Poll  time.Duration
	// Settle is how long a number must have been seen before it counts; MySQL and MariaDB only.
	Settle time.Duration

	database string // as its field is called
	open     func(tables.Config) (ingress.Rows, error)
}

// Open makes the rows of the table. It does not connect.
func (t *TableIngress) Open(pipeline, source string) (ingress.Rows, error) {
	rows, err := t.open(tables.Config{
		DSN: t.DSN, Table: t.Table, Column: t.Column, Columns: t.Columns, Key: t.KeyField, Settle: t.Settle,
		Lock: IngressID(pipeline, source, t.Table),
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.database, err)
	}
	return rows, nil
}

// Where names the table and its server, without a secret.
func (t *TableIngress) Where() string {
	server := tables.PostgreSQLServer
	if t.database == "mysql" {
		server = tables.MySQLServer
	}
	return t.Table + " at " + t.database + "://" + server(t.DSN)
}

// postgresIngress reads a source that is a table of PostgreSQL.
func (r *planner) postgresIngress(s *sourcePlan, o *object, in *Ingress) topology.Entrance {
	r.tableIngress(s, o, in, "postgres", tables.PostgreSQL)
	s.bounds = append(s.bounds, topology.Finding{
		What:   fmt.Sprintf("the numbers in column %q of table %q come from the column's own sequence with each INSERT: a row whose number was fetched ahead by a program, or written by hand, may be passed over", in.Table.Column, in.Table.Table),
		Remedy: "GENERATED ALWAYS AS IDENTITY lets nobody else give numbers; without it, let no program give its own (pooled sequences of object mappers do)",
	}, tableBound(in.Table))
	return topology.EnteredByTable
}

// mysqlIngress reads a source that is a table of MySQL or MariaDB.
func (r *planner) mysqlIngress(s *sourcePlan, o *object, in *Ingress) topology.Entrance {
	settle := tables.DefaultSettle
	if n := o.get("settle"); n != nil {
		settle = r.d.duration(n, "settle")
	}
	r.tableIngress(s, o, in, "mysql", tables.MySQL)
	in.Table.Settle = settle
	if poll := o.get("poll"); poll != nil && in.Table.Poll > settle/2 {
		r.d.errorf(poll, RuleInvalidValue, "a poll each %v does not see a number settle for %v", in.Table.Poll, settle).hint("poll at least twice within settle: best each second or less")
	}
	s.bounds = append(s.bounds, topology.Finding{
		What:   fmt.Sprintf("no transaction takes longer than %v from its INSERT into table %q to its COMMIT: the rows of one that does may be lost", settle, in.Table.Table),
		Remedy: "raise settle above the longest one (each row comes in so much later), and end longer ones (idle_transaction_timeout of MariaDB ends those that idle); or read from PostgreSQL, which says who still writes",
	}, tableBound(in.Table))
	return topology.EnteredByTable
}

// tableBound is what holds for every table.
func tableBound(t *TableIngress) topology.Finding {
	return topology.Finding{
		What:   fmt.Sprintf("rows are only added to table %q, and stay until they are read: updates and deletes are not seen", t.Table),
		Remedy: "read a table of events, such as an outbox; whoever needs changes needs the database's log (format: debezium)",
	}
}

func (r *planner) tableIngress(s *sourcePlan, o *object, in *Ingress, database string, open func(tables.Config) (ingress.Rows, error)) {
	d, t := r.d, &TableIngress{database: database, open: open}
	in.Table = t
	// A slip in a name must not show the password.
	shown := []string{"table", "column", "columns", "key_field", "after", "poll", "settle", "partitions"}
	for _, m := range o.members {
		if !slices.Contains(shown, m.key.Value) {
			d.hide(m.value, 0)
		}
	}
	dsn := o.need("dsn")
	if dsn != nil {
		t.DSN = d.text(dsn, "dsn")
	}
	table := o.need("table")
	if table != nil {
		t.Table = d.text(table, "table")
	}
	if n := o.need("column"); n != nil {
		t.Column = d.text(n, "column")
	}
	if n := o.get("columns"); n != nil {
		for _, e := range d.list(n, "columns", true) {
			name := d.text(e, "columns")
			if name != "" && slices.Contains(t.Columns, name) {
				d.errorf(e, RuleInvalidValue, "columns names %q twice", name)
			}
			t.Columns = append(t.Columns, name)
		}
	}
	t.KeyField = r.fieldOf(o, s, "key_field")
	if n := o.get("key_field"); n != nil && len(t.Columns) > 0 && t.KeyField != "" && !slices.Contains(t.Columns, t.KeyField) {
		d.errorf(n, RuleUnknownName, "key_field %q is none of columns%s", t.KeyField, suggest(t.KeyField, t.Columns))
	}
	t.After = int64(o.counted("after"))
	if n := o.get("poll"); n != nil {
		t.Poll = d.duration(n, "poll")
	}
	s.identified = true
	if s.out.format != formatJSON {
		d.errorf(o.node, RuleInvalidValue, "%s takes values of format json: a row is an object", database)
	}
	if d.unset || t.DSN == "" || t.Table == "" || t.Column == "" {
		return
	}
	// Only whether it can be read: nothing connects before the pipeline runs.
	rows, err := t.Open(r.p.Name, s.out.name)
	if err != nil {
		n := dsn
		if (tables.Config{Table: t.Table, Column: t.Column, Columns: t.Columns}).Validate() != nil {
			n = table
		}
		d.errorf(n, RuleInvalidValue, "%v", err)
		return
	}
	if err := rows.Close(); err != nil {
		d.errorf(dsn, RuleInvalidValue, "%v", err)
	}
}

// tableFields are what both kinds have, with own between them.
func tableFields(dsn, also, column string, own ...Field) []Field {
	return slices.Concat([]Field{
		{Name: "dsn", Kind: KindText, Required: true, Doc: dsn},
		{Name: "table", Kind: KindText, Required: true, Doc: "The table, `NAME` or `SCHEMA.NAME`. The user needs SELECT on it" + also + "."},
		{Name: "column", Kind: KindText, Required: true, Doc: column},
		{Name: "columns", Kind: KindTexts, Doc: "The columns that a record has. Default: all that are there at the start."},
		{Name: "key_field", Kind: KindText, Doc: "The column, text or whole number, that becomes the record's key. A row in which it is NULL has none; one in which it is empty stops the source. Without it records have no key, and their IDs spread them over the partitions."},
		{Name: "after", Kind: KindCount, Default: "0", Doc: "Rows up to this number are left out, if the table was never read before."},
	}, own, []Field{
		{Name: "poll", Kind: KindDuration, Default: "500ms", Doc: "How often the table is looked at when nothing is new."},
		{Name: "partitions", Kind: KindCount, Default: "4", Doc: "How many the topic gets if it is not there yet."},
	})
}

func referenceOfPostgres() Section {
	return Section{
		Name: "postgres-source", Doc: "The new rows of a table, each once, as JSON objects: how far it was read is committed with them. Rows of transactions that commit late are waited for. See docs/concepts/sources.md.",
		Example: "dsn: ${DATABASE_URL}\ntable: outbox\ncolumn: id\nkey_field: account",
		Fields: tableFields("postgres://user:password@host:5432/database, or key=value pairs. The primary, not a replica.", ", and on the sequence of its column",
			"The column of rising numbers, filled by the database: best `bigint GENERATED ALWAYS AS IDENTITY`, with a unique index of its own."),
	}
}

func referenceOfMySQL() Section {
	return Section{
		Name: "mysql-source", Doc: "The new rows of a table, each once, as JSON objects: how far it was read is committed with them. A row is read when its number was seen for `settle`. See docs/concepts/sources.md.",
		Example: "dsn: ${DATABASE_DSN}\ntable: outbox\ncolumn: id\nkey_field: account\nsettle: 1m",
		Fields: tableFields("user:password@tcp(host:3306)/database. The primary, not a replica.", "",
			"The column of rising numbers: AUTO_INCREMENT, with a unique index of its own.",
			Field{Name: "settle", Kind: KindDuration, Default: "30s", Doc: "How long a number must have been seen before it counts; at least twice `poll`. Longer than any transaction takes from its INSERT to its COMMIT: else rows are lost."}),
	}
}
