//go:build sinks

package sinks

import (
	"errors"
	"strings"
	"testing"

	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/sink/mysql"
	"github.com/streamd/streamd/sink/postgres"
	"github.com/streamd/streamd/test/sinks/dbenv"
)

// TestStorageThatTakesNothingBack: an engine without transactions keeps the rows of a batch that failed, and each try would add them again. A view has no
// engine, and is left to whoever made it.
func TestStorageThatTakesNothingBack(t *testing.T) {
	m, db := started(t, dbenv.MariaDB, "mysql", "")
	for _, s := range []string{
		"CREATE TABLE lasting (n bigint) ENGINE=MyISAM", "CREATE TABLE aria (n bigint) ENGINE=Aria",
		"CREATE TABLE good (n bigint) ENGINE=InnoDB", "CREATE VIEW seen AS SELECT n FROM good",
	} {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	for _, x := range []struct {
		table string
		class sink.Class
		want  string // empty: it is taken
	}{
		{"lasting", sink.Ledger, "MyISAM"},
		{"lasting", sink.TwoPhase, "MyISAM"},
		{"aria", sink.Ledger, "Aria"},
		{database + ".aria", sink.TwoPhase, "Aria"},
		{"lasting", sink.Plain, ""},
		{"good", sink.Ledger, ""},
		{"good", sink.TwoPhase, ""},
		{"seen", sink.Ledger, ""},
	} {
		target, err := mysql.Open(mysql.Config{DSN: m.DSN(database), Class: x.class, Table: sink.Table{Name: x.table, Columns: []sink.Column{{Name: "n", Kind: sink.Integer}}}})
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(target.Check(t.Context()), target.Close())
		var setup *sink.SetupError
		switch {
		case x.want == "" && err != nil:
			t.Errorf("%s, %s: %v", x.table, x.class, err)
		case x.want != "" && (!errors.As(err, &setup) || !strings.Contains(err.Error(), x.want) || !strings.Contains(setup.Remedy, "InnoDB")):
			t.Errorf("%s, %s: %v, want %q", x.table, x.class, err, x.want)
		}
	}
}

// TestStorageThatIsElsewhere: rows that a crash takes away, or that another server commits, are not where what says how far they go is.
func TestStorageThatIsElsewhere(t *testing.T) {
	p, db := started(t, dbenv.PostgreSQL, "pgx", "postgres")
	for _, s := range []string{
		"CREATE UNLOGGED TABLE volatile (n bigint)", "CREATE FOREIGN DATA WRAPPER away", "CREATE SERVER away FOREIGN DATA WRAPPER away",
		"CREATE FOREIGN TABLE distant (n bigint) SERVER away", "CREATE TABLE good (n bigint)", "CREATE VIEW seen AS SELECT n FROM good",
		"CREATE TABLE parts (n bigint) PARTITION BY RANGE (n)",
	} {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	for table, want := range map[string]string{"volatile": "UNLOGGED", "distant": "foreign", "good": "", "seen": "", "parts": ""} {
		for _, class := range []sink.Class{sink.Ledger, sink.TwoPhase} {
			target, err := postgres.Open(postgres.Config{DSN: p.DSN(database), Class: class, Table: sink.Table{Name: table, Columns: []sink.Column{{Name: "n", Kind: sink.Integer}}}})
			if err != nil {
				t.Fatal(err)
			}
			err = errors.Join(target.Check(t.Context()), target.Close())
			var setup *sink.SetupError
			if want == "" && err != nil || want != "" && (!errors.As(err, &setup) || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s, %s: %v, want %q", table, class, err, want)
			}
		}
	}
}
