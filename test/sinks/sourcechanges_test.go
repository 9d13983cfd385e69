//go:build sinks

package sinks

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/ingress"
	source "github.com/streamd/streamd/internal/ingress/tables"
)

// TestTableSourceChanges: what the waiting rests on is changed while the table is read. Nothing is decided by it any more; the next look refuses the table, or takes the
// new one.
func TestTableSourceChanges(t *testing.T) {
	type change struct {
		name, change, undo string
		setup              string // what Begin says then; empty: it reads what is there now
	}
	postgres := []change{
		{"another table of the name", "ALTER TABLE t RENAME TO old; CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int)", "", ""},
		{"numbers held back", "ALTER SEQUENCE t_id_seq1 CACHE 20", "ALTER SEQUENCE t_id_seq1 CACHE 1", "CACHE 20"},
		{"a child", "CREATE TABLE child () INHERITS (t)", "DROP TABLE child", "no ordinary table"},
		{"hidden rows", "ALTER TABLE t ENABLE ROW LEVEL SECURITY", "ALTER TABLE t DISABLE ROW LEVEL SECURITY", "row security"},
		{"a part of a table", "CREATE TABLE whole (id bigint NOT NULL, a int) PARTITION BY RANGE (id); ALTER TABLE t ALTER id DROP IDENTITY; CREATE SEQUENCE free START 100; ALTER TABLE t ALTER id SET DEFAULT nextval('free'); ALTER TABLE whole ATTACH PARTITION t DEFAULT", "", "no ordinary table"},
	}
	mariadb := []change{{"a replica", "SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0", "only reads"}}
	for _, k := range sourceKinds() {
		t.Run(k.name, func(t *testing.T) {
			server, db := started(t, k.server, k.driver, k.admin)
			do := func(statements string) { t.Helper(); execute(t, db, statements) }
			do("CREATE TABLE t (id " + k.id + ", a int)")
			all, dsn := mariadb, server.DSN(database)
			if k.prepares {
				do("CREATE USER bob PASSWORD 'b'; GRANT SELECT ON t, t_id_seq TO bob")
				do("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO bob; ALTER DEFAULT PRIVILEGES GRANT SELECT ON SEQUENCES TO bob")
				all, dsn = postgres, server.As("", database, "bob", "b")
			}
			rows, err := k.open(source.Config{DSN: dsn, Table: "t", Column: "id", Lock: "test", Settle: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			begin := func() error {
				for {
					if mine, err := rows.Begin(t.Context()); mine || err != nil {
						return err
					}
					time.Sleep(20 * time.Millisecond) // the session before has not ended yet
				}
			}
			for _, c := range all {
				if err := begin(); err != nil {
					t.Fatal(c.name, err)
				}
				do(c.change + "; INSERT INTO t (a) VALUES (1)")
				d, err := rows.Decided(t.Context(), 0)
				if err == nil {
					t.Errorf("%s: %+v was decided", c.name, d)
				}
				var setup *ingress.SetupError
				if err := begin(); (c.setup == "" && err != nil) || (c.setup != "" && (!errors.As(err, &setup) || !strings.Contains(err.Error(), c.setup))) {
					t.Errorf("%s: the next look says %v, want %q", c.name, err, c.setup)
				}
				do(c.undo)
			}
		})
	}
}
