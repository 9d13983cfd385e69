//go:build sinks

package sinks

import (
	"errors"
	"strings"
	"testing"

	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/sink/mysql"
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
