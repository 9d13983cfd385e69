//go:build sinks

package sinks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/sink/mysql"
	"github.com/streamd/streamd/sink/postgres"
	"github.com/streamd/streamd/sink/sinktest"
	"github.com/streamd/streamd/test/crash"
	"github.com/streamd/streamd/test/sinks/dbenv"
)

// commitPrepared is the second of the two phases on its way to a server.
const commitPrepared = `(?i)(commit prepared|xa commit) `

func TestTwoPhasePostgreSQL(t *testing.T) {
	h := postgresHarness(t)
	h.commit = commitPrepared
	sinktest.RunTwoPhase(t, h)
}

func TestTwoPhaseMariaDB(t *testing.T) {
	h := mariaHarness(t)
	h.commit = commitPrepared
	sinktest.RunTwoPhase(t, h)
}

// TestTwoPhaseSteps kills streamd with kill -9 at each step of a batch, on a real Kafka and a real server, and the server with each second one. In the end each
// table is compared with what was sent, and nothing is left prepared.
func TestTwoPhaseSteps(t *testing.T) {
	program, err := crash.BuildDaemon(t.Context(), "../..", t.TempDir(), "-tags", "faultpoints")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range targets()[:2] {
		t.Run(x.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
			defer cancel()
			file := filepath.Join(t.TempDir(), "points")
			table, err := fault.OpenTable(file)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = table.Close() }()
			x.classes = []string{"ledger", "two_phase"}
			w := newBillsWorld(ctx, t, x, program)
			d := w.daemons[0]
			d.Env = append(d.Env, fault.Variable+"="+file)
			w.start(d)
			random := rand.New(rand.NewPCG(5, 6))
			for i := range 2 {
				for _, point := range []string{"sink.claimed", "sink.write", "sink.prepared", "sink.decided", "sink.written"} {
					if point == "sink.claimed" { // that comes with a start
						d.Kill()
					}
					table.Arm(point, uint64(1+random.IntN(8)), fault.Kill)
					if point == "sink.claimed" {
						if err := d.Start(); err != nil {
							t.Fatal(err)
						}
					}
					w.until("it dies at "+point, func() bool { return !d.Running() })
					if i%2 == 1 {
						if err := errors.Join(w.server.Kill(), w.server.Start(ctx)); err != nil {
							t.Fatal(err)
						}
						w.serverKills++
					}
					w.start(d)
					t.Logf("died at %s %d times", point, table.Fired(point))
				}
			}
			w.settle()
			w.compare()
			w.nothingPrepared()
		})
	}
}

// nothingPrepared fails if the server has a transaction that is prepared and not ended.
func (w *billsWorld) nothingPrepared() {
	w.Helper()
	table := sink.Table{Name: "two_phase", Columns: []sink.Column{{Name: "bill_id", Kind: sink.Text}}}
	dsn := w.server.DSN(database)
	target, err := postgres.Open(postgres.Config{DSN: dsn, Table: table, Class: sink.TwoPhase})
	if w.server.Kind == "mariadb" {
		target, err = mysql.Open(mysql.Config{DSN: dsn, Table: table, Class: sink.TwoPhase})
	}
	if err != nil {
		w.Fatal(err)
	}
	defer func() { _ = target.Close() }()
	decided, ok := target.(sink.Decided)
	if !ok {
		w.Fatal("the target is no sink.Decided")
	}
	left, err := decided.Pending(w.ctx)
	if err != nil || len(left) > 0 {
		w.Errorf("%v are still prepared, %v", left, err)
	}
}

// TestTwoPhaseCheckLeavesOthersAlone: what another user left behind in the middle of a check is in nobody's way.
func TestTwoPhaseCheckLeavesOthersAlone(t *testing.T) {
	p, db := started(t, dbenv.PostgreSQL, "pgx", "postgres")
	left := sink.NewTransactionID(sink.Partition{Sink: "\x00check", TopicID: "check"}, 0, time.Now().Add(-time.Hour))
	for _, s := range []string{
		"CREATE TABLE rows (n bigint)", "CREATE USER other PASSWORD 'secret'", "GRANT INSERT ON rows TO other",
		"BEGIN; PREPARE TRANSACTION '" + string(left) + "'",
	} {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	target, err := postgres.Open(postgres.Config{
		DSN: p.As("", database, "other", "secret"), Class: sink.TwoPhase,
		Table: sink.Table{Name: "rows", Columns: []sink.Column{{Name: "n", Kind: sink.Integer}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(target.Check(t.Context()), target.Close()); err != nil {
		t.Error(err)
	}
}

// TestTwoPhaseSettings: a server that cannot do it says so at the start, with what to do.
func TestTwoPhaseSettings(t *testing.T) {
	table := sink.Table{Name: "rows", Columns: []sink.Column{{Name: "n", Kind: sink.Integer}}}
	refused := func(target sink.Target, err error, want string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = target.Close() }()
		var setup *sink.SetupError
		if err := target.Check(t.Context()); !errors.As(err, &setup) || setup.Remedy == "" || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	p, db := started(t, func(ctx context.Context) (*dbenv.Server, error) {
		return dbenv.PostgreSQLWith(ctx, "max_prepared_transactions=0")
	}, "pgx", "postgres")
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE rows (n bigint)"); err != nil {
		t.Fatal(err)
	}
	target, err := postgres.Open(postgres.Config{DSN: p.DSN(database), Table: table, Class: sink.TwoPhase})
	refused(target, err, "max_prepared_transactions is 0")

	m, db := started(t, dbenv.MariaDB, "mysql", "")
	for _, s := range []string{"CREATE TABLE `rows` (n bigint)", "SET GLOBAL innodb_flush_log_at_trx_commit = 2"} {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatal(fmt.Errorf("%s: %w", s, err))
		}
	}
	target, err = mysql.Open(mysql.Config{DSN: m.DSN(database), Table: table, Class: sink.TwoPhase})
	refused(target, err, "innodb_flush_log_at_trx_commit is 2")
}
