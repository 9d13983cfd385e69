//go:build sinks

package sinks

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/ingress"
	source "github.com/streamd/streamd/internal/ingress/tables"
	"github.com/streamd/streamd/test/sinks/dbenv"
)

// refusal is a table that is no source, and what is said about it.
type refusal struct {
	make   string // statements
	config source.Config
	words  string
	rights bool
}

func postgresRefusals() []refusal {
	identity := "GENERATED ALWAYS AS IDENTITY"
	return []refusal{
		{"", source.Config{Table: "nowhere", Column: "id"}, "is not there", false},
		{"", source.Config{Table: "nowhere.t", Column: "id"}, "is not there", false},
		{"CREATE TABLE plain_id (id bigint PRIMARY KEY)", source.Config{Table: "plain_id", Column: "id"}, "IDENTITY", false},
		{"CREATE TABLE texts (id text PRIMARY KEY)", source.Config{Table: "texts", Column: "id"}, "of type text", false},
		{"CREATE TABLE times (id timestamptz PRIMARY KEY)", source.Config{Table: "times", Column: "id"}, "clocks go back", false},
		{"CREATE SEQUENCE free; CREATE TABLE nulls (id bigint UNIQUE DEFAULT nextval('free'))", source.Config{Table: "nulls", Column: "id"}, "NOT NULL", false},
		{"CREATE TABLE many (id bigint " + identity + ", a int, UNIQUE (id, a))", source.Config{Table: "many", Column: "id"}, "no unique index", false},
		{"CREATE TABLE part (id bigint " + identity + ", a int); CREATE UNIQUE INDEX ON part (id) WHERE a > 0", source.Config{Table: "part", Column: "id"}, "no unique index", false},
		{"CREATE TABLE cached (id bigint " + identity + " (CACHE 20) PRIMARY KEY)", source.Config{Table: "cached", Column: "id"}, "CACHE 20", false},
		{"CREATE TABLE falls (id bigint " + identity + " (INCREMENT -1) PRIMARY KEY)", source.Config{Table: "falls", Column: "id"}, "not only rise", false},
		{"CREATE TABLE circle (id bigint " + identity + " (CYCLE) PRIMARY KEY)", source.Config{Table: "circle", Column: "id"}, "not only rise", false},
		{"CREATE TABLE below (id bigint " + identity + " (MINVALUE -9 START -9) PRIMARY KEY)", source.Config{Table: "below", Column: "id"}, "below 1", false},
		{"CREATE SEQUENCE twice; CREATE TABLE computed (id bigint PRIMARY KEY DEFAULT nextval('twice') * 2)", source.Config{Table: "computed", Column: "id"}, "not filled", false},
		{"CREATE TABLE whole (id bigserial, a int, PRIMARY KEY (id)) PARTITION BY RANGE (id); CREATE TABLE leaf PARTITION OF whole FOR VALUES FROM (0) TO (1000)", source.Config{Table: "whole", Column: "id"}, "no ordinary table", false},
		{"", source.Config{Table: "leaf", Column: "id"}, "no ordinary table", false},
		{"CREATE TABLE mother (id bigserial PRIMARY KEY); CREATE TABLE child () INHERITS (mother)", source.Config{Table: "mother", Column: "id"}, "no ordinary table", false},
		{"CREATE VIEW shown AS SELECT * FROM good", source.Config{Table: "shown", Column: "id"}, "no ordinary table", false},
		{"", source.Config{Table: "good", Column: "ID"}, "id, a", false},
		{"", source.Config{Table: "good", Column: "id", Columns: []string{"id", "b"}}, `no column "b"`, false},
		{"", source.Config{Table: "good", Column: "id", Key: "A"}, `no field "A"`, false},
	}
}

func mariadbRefusals() []refusal {
	return []refusal{
		{"", source.Config{Table: "nowhere", Column: "id"}, "is not there", false},
		{"", source.Config{Table: "nowhere.t", Column: "id"}, "is not there", false},
		{"CREATE TABLE plain_id (id bigint PRIMARY KEY)", source.Config{Table: "plain_id", Column: "id"}, "AUTO_INCREMENT", false},
		{"CREATE TABLE texts (id varchar(20) PRIMARY KEY)", source.Config{Table: "texts", Column: "id"}, "of type varchar", false},
		{"CREATE TABLE times (id timestamp PRIMARY KEY)", source.Config{Table: "times", Column: "id"}, "clocks go back", false},
		{"CREATE TABLE many (id bigint AUTO_INCREMENT, a int, UNIQUE (id, a), KEY (id))", source.Config{Table: "many", Column: "id"}, "no unique index", false},
		{"CREATE TABLE isam (id bigint AUTO_INCREMENT PRIMARY KEY) ENGINE=MyISAM", source.Config{Table: "isam", Column: "id"}, "InnoDB", false},
		{"CREATE VIEW shown AS SELECT * FROM good", source.Config{Table: "shown", Column: "id"}, "InnoDB", false},
		{"", source.Config{Table: "good", Column: "nr"}, "id, a", false},
		{"", source.Config{Table: "good", Column: "id", Columns: []string{"id", "b"}}, `no column "b"`, false},
		{"", source.Config{Table: "good", Column: "id", Key: "A"}, `no field "A"`, false},
	}
}

// refused opens a source and says what is wrong with it.
func refused(t *testing.T, k sourceKind, c source.Config, dsn string) error {
	t.Helper()
	c.DSN, c.Lock, c.Timeout = dsn, "test", 10*time.Second
	rows, err := k.open(c)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	return rows.Check(t.Context())
}

// execute runs statements, one after the other.
func execute(t *testing.T, db *sql.DB, statements string) {
	t.Helper()
	for s := range strings.SplitSeq(statements, "; ") {
		if _, err := db.ExecContext(t.Context(), s); s != "" && err != nil {
			t.Fatal(err)
		}
	}
}

// must is a *ingress.SetupError that says the words.
func must(t *testing.T, what string, err error, rights bool, words string) {
	t.Helper()
	var s *ingress.SetupError
	if !errors.As(err, &s) || s.Rights != rights || s.Remedy == "" || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: %v, want a setup error (rights: %v) that says %q", what, err, rights, words)
	}
}

// TestTableSourceChecks: what is no source is refused, with the reason and the remedy, before a row is read.
func TestTableSourceChecks(t *testing.T) {
	for _, k := range sourceKinds() {
		t.Run(k.name, func(t *testing.T) {
			server, db := started(t, k.server, k.driver, k.admin)
			do := func(statements string) { t.Helper(); execute(t, db, statements) }
			do("CREATE TABLE good (id " + k.id + ", a int)")
			all := mariadbRefusals()
			if k.prepares {
				all = postgresRefusals()
			}
			for _, c := range all {
				do(c.make)
				must(t, c.config.Table, refused(t, k, c.config, server.DSN(database)), c.rights, c.words)
			}
			good := source.Config{Table: "good", Column: "id", Key: "a"}
			if err := refused(t, k, good, server.DSN(database)); err != nil {
				t.Error(err)
			}
			sourceUsers(t, k, server, db, do, good)
		})
	}
}

// sourceUsers is about who may read, and where.
func sourceUsers(t *testing.T, k sourceKind, server *dbenv.Server, db *sql.DB, do func(string), good source.Config) {
	must(t, "no database", refused(t, k, good, server.DSN("nowhere")), false, "nowhere")
	err := refused(t, k, good, server.As("", database, "ann", "x"))
	must(t, "a wrong password", err, true, "ann")
	if s := new(ingress.SetupError); errors.As(err, &s) && !strings.Contains(s.Remedy, "password") {
		t.Errorf("a wrong password: the remedy is %q, want one of the password", s.Remedy)
	}
	if err := refused(t, k, good, server.As("127.0.0.1:1", database, "", "")); err == nil || errors.As(err, new(*ingress.SetupError)) {
		t.Errorf("nobody answers: %v, want one that may heal", err)
	}
	if k.prepares {
		do("CREATE USER bob PASSWORD 'b'")
		must(t, "no rights", refused(t, k, good, server.As("", database, "bob", "b")), true, "sequence")
		do("GRANT SELECT ON SEQUENCE good_id_seq TO bob")
		must(t, "no right to read", refused(t, k, good, server.As("", database, "bob", "b")), true, "permission denied")
		do("GRANT SELECT ON good TO bob")
		if err := refused(t, k, good, server.As("", database, "bob", "b")); err != nil {
			t.Error(err)
		}
		do("ALTER TABLE good ENABLE ROW LEVEL SECURITY")
		must(t, "hidden rows", refused(t, k, good, server.As("", database, "bob", "b")), false, "row security")
		do("ALTER TABLE good DISABLE ROW LEVEL SECURITY; CREATE SCHEMA other; GRANT USAGE ON SCHEMA other TO bob; CREATE VIEW other.pg_locks AS SELECT * FROM pg_locks WHERE false; GRANT SELECT ON other.pg_locks TO bob")
		do("ALTER USER bob SET search_path = other, pg_catalog, public")
		must(t, "a server without these locks", refused(t, k, good, server.As("", database, "bob", "b")), false, "does not show")
		return
	}
	do("CREATE USER bob IDENTIFIED BY 'b'; CREATE DATABASE other; GRANT SELECT ON other.* TO bob")
	must(t, "no rights", refused(t, k, source.Config{Table: database + ".good", Column: "id"}, server.As("", "other", "bob", "b")), false, "not to be seen with these rights")
	do("GRANT SELECT ON " + database + ".good TO bob")
	if err := refused(t, k, good, server.As("", database, "bob", "b")); err != nil {
		t.Error(err)
	}
	do("SET GLOBAL auto_increment_increment = 2")
	must(t, "several servers", refused(t, k, good, server.DSN(database)), false, "auto_increment_increment is 2")
	do("SET GLOBAL auto_increment_increment = 1; SET GLOBAL read_only = 1")
	must(t, "a replica", refused(t, k, good, server.DSN(database)), false, "only reads")
}

// TestTableSourceValues: what a row becomes, with all digits and letters of it.
func TestTableSourceValues(t *testing.T) {
	for _, k := range sourceKinds() {
		t.Run(k.name, func(t *testing.T) {
			server, db := started(t, k.server, k.driver, k.admin)
			columns, values, want := "big bigint, money decimal(30,10), f double, t varchar(20) CHARACTER SET utf8mb4, at timestamp(6) NULL, dt datetime(6), d date, b blob, j json, n int, yes boolean",
				`-9223372036854775808, 12345678901234567890.1234567890, 1.5e300, 'é"😀', '2026-11-30 12:00:00.000001', '2026-11-30 12:00:00', '2026-11-30', x'00ff', '{"a": [1]}', NULL, true`,
				`{"id":1,"big":-9223372036854775808,"money":12345678901234567890.1234567890,"f":1.5e+300,"t":"é\"😀","at":"2026-11-30T12:00:00.000001Z","dt":"2026-11-30T12:00:00.000000Z","d":"2026-11-30","b":"AP8=","j":"{\"a\": [1]}","n":null,"yes":1}`
			if k.prepares {
				columns = "big bigint, money numeric, f double precision, t text, at timestamptz, dt timestamp, d date, b bytea, j jsonb, n int, yes boolean"
				values = `-9223372036854775808, 12345678901234567890.1234567890, 1.5e300, 'é"😀', '2026-11-30 13:00:00.000001+01', '2026-11-30 12:00:00', '2026-11-30', '\x00ff', '{"a": [1]}', NULL, true`
				want = `{"id":1,"big":-9223372036854775808,"money":12345678901234567890.1234567890,"f":1.5e+300,"t":"é\"😀","at":"2026-11-30T12:00:00.000001+00:00","dt":"2026-11-30T12:00:00+00:00","d":"2026-11-30","b":"AP8=","j":{"a": [1]},"n":null,"yes":true}`
			}
			for _, s := range []string{
				"CREATE TABLE t (id " + k.id + ", " + columns + ")",
				"INSERT INTO t (big, money, f, t, at, dt, d, b, j, n, yes) VALUES (" + values + ")",
			} {
				if _, err := db.ExecContext(t.Context(), s); err != nil {
					t.Fatal(err)
				}
			}
			rows, err := k.open(source.Config{DSN: server.DSN(database), Table: "t", Column: "id", Lock: "test", Settle: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			if mine, err := rows.Begin(t.Context()); err != nil || !mine {
				t.Fatal(mine, err)
			}
			var got string
			if _, err := rows.Read(t.Context(), 0, 10, func(r ingress.Row) bool { got += string(r.Value); return true }); err != nil || got != want {
				t.Errorf("%v\ngot  %s\nwant %s", err, got, want)
			}
			other, err := k.open(source.Config{DSN: server.DSN(database), Table: "t", Column: "id", Lock: "test"})
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			for _, want := range []bool{false, true} {
				// The server may take a moment to see that the session has ended.
				mine := !want
				for deadline := time.Now().Add(10 * time.Second); mine != want && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
					if mine, err = other.Begin(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if mine != want {
					t.Errorf("a second reader: %v, want %v", mine, want)
				}
				rows.End()
			}
		})
	}
}

// TestTableSourceWaits: a transaction has a lower number than one that is committed, and is not committed itself. Nothing is decided before it is, also if it
// is prepared meanwhile.
func TestTableSourceWaits(t *testing.T) {
	for _, k := range sourceKinds() {
		t.Run(k.name, func(t *testing.T) {
			server, db := started(t, k.server, k.driver, k.admin)
			if _, err := db.ExecContext(t.Context(), "CREATE TABLE t (id "+k.id+", a int)"); err != nil {
				t.Fatal(err)
			}
			const settle = 2 * time.Second
			rows, err := k.open(source.Config{DSN: server.DSN(database), Table: "t", Column: "id", Lock: "test", Settle: settle})
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			if mine, err := rows.Begin(t.Context()); err != nil || !mine {
				t.Fatal(mine, err)
			}
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			do := func(statement string) {
				t.Helper()
				if _, err := conn.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			decided := func() int64 {
				t.Helper()
				d, err := rows.Decided(t.Context(), 0)
				if err != nil || d.Given != 2 {
					t.Fatalf("%+v, %v", d, err)
				}
				return d.UpTo
			}
			do("BEGIN")
			do("INSERT INTO t (a) VALUES (1)")
			if _, err := db.ExecContext(t.Context(), "INSERT INTO t (a) VALUES (2)"); err != nil {
				t.Fatal(err)
			}
			until := time.Now().Add(settle / 2)
			for prepared := false; time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
				if n := decided(); n != 0 {
					t.Fatalf("decided up to %d while number 1 is open", n)
				}
				if k.prepares && !prepared {
					do("PREPARE TRANSACTION 'x'")
					prepared = true
				}
			}
			if k.prepares {
				do("COMMIT PREPARED 'x'")
			} else {
				do("COMMIT")
			}
			for deadline := time.Now().Add(30 * time.Second); decided() != 2; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("nothing is ever decided")
				}
			}
			n := 0
			if _, err := rows.Read(t.Context(), 0, 2, func(ingress.Row) bool { n++; return true }); err != nil || n != 2 {
				t.Errorf("%d rows, %v", n, err)
			}
		})
	}
}
