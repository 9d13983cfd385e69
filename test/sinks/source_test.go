//go:build sinks

package sinks

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/internal/ingress"
	source "github.com/streamd/streamd/internal/ingress/tables"
	"github.com/streamd/streamd/test/crash"
	"github.com/streamd/streamd/test/kafkaenv"
	"github.com/streamd/streamd/test/sinks/dbenv"
)

// sourceKind is a database whose table is a source.
type sourceKind struct {
	name          string
	server        func(context.Context) (*dbenv.Server, error)
	driver, admin string
	field         string // of the pipeline file
	own           string // what only this kind has there
	id            string // the type of the column
	prepares      bool   // some transactions are prepared before they commit
	hold          time.Duration
	open          func(source.Config) (ingress.Rows, error)
}

func sourceKinds() []sourceKind {
	return []sourceKind{
		{
			"PostgreSQL", dbenv.PostgreSQL, "pgx", "postgres", "postgres", "", "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
			true, 3 * time.Second, source.PostgreSQL,
		},
		// No transaction is open for longer than settle.
		{"MariaDB", dbenv.MariaDB, "mysql", "", "mysql", ", settle: 3s", "bigint AUTO_INCREMENT PRIMARY KEY", false, time.Second, source.MySQL},
	}
}

// sourceWriters are how many transactions are open at once.
const sourceWriters = 16

// sourceWorld is a table, those who write it, and the streamds that read it.
type sourceWorld struct {
	*testing.T
	sourceKind
	server  *dbenv.Server
	db      *sql.DB
	brokers []string
	daemons []*crash.Daemon

	committed, late atomic.Int64 // transactions; those with a lower number than one that was committed before
	highest         atomic.Int64 // number that was committed
}

func newSourceWorld(t *testing.T, k sourceKind, program string) *sourceWorld {
	w := &sourceWorld{T: t, sourceKind: k, brokers: kafkaenv.Start(t).Addresses()}
	w.server, w.db = started(t, k.server, k.driver, k.admin)
	w.db.SetMaxOpenConns(sourceWriters + 4)
	w.exec("CREATE TABLE orders (id " + k.id + ", account varchar(40) NOT NULL, amount decimal(20,2) NOT NULL)")
	if err := crash.CreateTopics(t.Context(), w.brokers, 3, "out-raw", "out"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "poll.yaml")
	text := fmt.Sprintf(`version: 1
name: poll
kafka: {brokers: [%q]}
sources:
  orders: {topic: orders.raw, %s: {dsn: "${ADDRESS}", table: orders, column: id, key_field: account, poll: 20ms%s}}
steps:
  - {name: out-raw, from: orders, to: {topic: out-raw}}
  - {name: unique, from: orders, dedup: {id: 'headers["record-id"]', retention: 1d, scope: partition}}
  - {name: out, to: {topic: out}}
`, strings.Join(w.brokers, ","), k.field, k.own)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close() // the daemon takes the port
		d := &crash.Daemon{
			Program: program, File: file, Dir: filepath.Join(dir, "data-"+name), HTTP: l.Addr().String(), Log: filepath.Join(dir, "log-"+name),
			Args: []string{"--instance-id", name, "--admin", "off"}, Env: []string{"ADDRESS=" + w.server.DSN(database)},
		}
		w.daemons = append(w.daemons, d)
		t.Cleanup(func() {
			d.Kill()
			if t.Failed() {
				t.Logf("the end of the log of %s:\n%s", name, d.Tail())
			}
		})
	}
	return w
}

func (w *sourceWorld) exec(statement string) {
	w.Helper()
	if _, err := w.db.ExecContext(w.Context(), statement); err != nil {
		w.Fatal(err)
	}
}

// write runs transactions until ctx ends: some rows each, committed late or at once, or rolled back. What fails with the server is no matter: the
// table says what is there.
func (w *sourceWorld) write(ctx context.Context, n int) {
	random := rand.New(rand.NewPCG(7, uint64(n)))
	for i := 0; ctx.Err() == nil; i++ {
		if err := w.transaction(random, fmt.Sprintf("w%d-%d", n, i)); err != nil {
			time.Sleep(50 * time.Millisecond)
		}
	}
}

func (w *sourceWorld) transaction(random *rand.Rand, name string) error {
	hold := time.Duration(random.IntN(30)) * time.Millisecond
	if random.IntN(20) == 0 {
		hold = time.Duration(random.Int64N(int64(w.hold)))
	}
	prepared := w.prepares && random.IntN(8) == 0
	kept := random.IntN(6) > 0
	ctx := context.Background()
	conn, err := w.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var errs []error
	do := func(statement string) {
		if errors.Join(errs...) == nil {
			_, err := conn.ExecContext(ctx, statement)
			errs = append(errs, err)
		}
	}
	do("BEGIN")
	for range 1 + random.IntN(4) {
		do(fmt.Sprintf("INSERT INTO orders (account, amount) VALUES ('%s', %d.%02d)", name, random.IntN(1000), random.IntN(100)))
		time.Sleep(hold / 8)
	}
	if errors.Join(errs...) != nil {
		_, _ = conn.ExecContext(ctx, "ROLLBACK") // the pool gets it back
		return errors.Join(errs...)
	}
	var first int64
	if err := conn.QueryRowContext(ctx, "SELECT MIN(id) FROM orders WHERE account = '"+name+"'").Scan(&first); err != nil {
		_, _ = conn.ExecContext(ctx, "ROLLBACK")
		return err
	}
	end := "COMMIT"
	if !kept {
		end = "ROLLBACK"
	}
	if prepared {
		time.Sleep(hold / 4)
		do("PREPARE TRANSACTION '" + name + "'")
		end += " PREPARED '" + name + "'"
	}
	time.Sleep(hold / 4)
	do(end)
	if err := errors.Join(errs...); err != nil {
		_, _ = conn.ExecContext(ctx, "ROLLBACK")
		return err
	}
	if kept {
		w.committed.Add(1)
		if first < w.highest.Load() {
			w.late.Add(1)
		}
		for h := w.highest.Load(); first > h && !w.highest.CompareAndSwap(h, first); h = w.highest.Load() {
		}
	}
	return nil
}

// settled ends what the server's death has left prepared.
func (w *sourceWorld) settled() {
	if !w.prepares {
		return
	}
	rows, err := w.db.QueryContext(w.Context(), "SELECT gid FROM pg_prepared_xacts")
	if err != nil {
		w.Fatal(err)
	}
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			w.Fatal(err)
		}
		names = append(names, name)
	}
	if err := errors.Join(rows.Close(), rows.Err()); err != nil {
		w.Fatal(err)
	}
	for _, name := range names {
		w.exec("COMMIT PREPARED '" + name + "'")
	}
}

// rows are those of the table, as they must come out.
func (w *sourceWorld) rows() map[string]bool {
	rows, err := w.db.QueryContext(w.Context(), "SELECT id, account, amount FROM orders")
	if err != nil {
		w.Fatal(err)
	}
	defer rows.Close()
	want := map[string]bool{}
	for rows.Next() {
		var id int64
		var account, amount string
		if err := rows.Scan(&id, &account, &amount); err != nil {
			w.Fatal(err)
		}
		want[fmt.Sprintf(`{"id":%d,"account":"%s","amount":%s}`, id, account, amount)] = true
	}
	if err := rows.Err(); err != nil {
		w.Fatal(err)
	}
	return want
}

// compare reads what came out until nothing comes for a while after all is there: each row once, in each topic.
func (w *sourceWorld) compare(want map[string]bool) {
	w.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(w.brokers...), kgo.ConsumeTopics("out-raw", "out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		w.Fatal(err)
	}
	defer c.Close()
	got := map[string]map[string]int{"out-raw": {}, "out": {}}
	quiet := time.Time{}
	for deadline := time.Now().Add(2 * time.Minute); ; {
		all := len(got["out"]) >= len(want) && len(got["out-raw"]) >= len(want)
		if all && !quiet.IsZero() && time.Since(quiet) > 3*time.Second || time.Now().After(deadline) {
			break
		}
		ctx, cancel := context.WithTimeout(w.Context(), 500*time.Millisecond)
		c.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			got[r.Topic][string(r.Value)]++
			quiet = time.Now()
		})
		cancel()
	}
	for topic, values := range got {
		lost, doubled, strange := 0, 0, 0
		for v := range want {
			if values[v] == 0 {
				lost++
			}
		}
		for v, n := range values {
			if n > 1 {
				doubled++
			}
			if !want[v] {
				strange++
				w.Logf("%s: %s is no row", topic, v)
			}
		}
		w.Logf("%s: %d of %d rows; %d lost, %d doubled, %d that are none", topic, len(values), len(want), lost, doubled, strange)
		if lost+doubled+strange > 0 {
			w.Errorf("%s: %d lost, %d doubled, %d that are none", topic, lost, doubled, strange)
		}
	}
}

// TestTableSource: two streamds read a table that many transactions write at once and commit out of order. One of the streamds is killed with kill -9
// again and again, the server twice. In the end each row of the table came out once; without a dedup step as well.
func TestTableSource(t *testing.T) {
	kills := 12
	if os.Getenv("STREAMD_SOAK") != "" {
		kills = 60
	}
	program := build(t)
	for _, k := range sourceKinds() {
		t.Run(k.name, func(t *testing.T) {
			w := newSourceWorld(t, k, program)
			ctx, stop := context.WithCancel(t.Context())
			var writers sync.WaitGroup
			for n := range sourceWriters {
				writers.Go(func() { w.write(ctx, n) })
			}
			ended := sync.OnceFunc(func() { stop(); writers.Wait() })
			defer ended()
			for _, d := range w.daemons {
				if err := d.Start(); err != nil {
					t.Fatal(err)
				}
			}
			random := rand.New(rand.NewPCG(1, 1))
			for i := range kills {
				time.Sleep(time.Duration(500+random.IntN(1500)) * time.Millisecond)
				for _, d := range w.daemons {
					if !d.Running() {
						t.Fatalf("streamd has ended by itself:\n%s", d.Tail())
					}
				}
				if i%6 == 3 {
					if err := errors.Join(w.server.Kill(), w.server.Start(t.Context())); err != nil {
						t.Fatal(err)
					}
					continue
				}
				d := w.daemons[i%2]
				d.Kill()
				if err := d.Start(); err != nil {
					t.Fatal(err)
				}
			}
			ended()
			w.settled()
			want := w.rows()
			t.Logf("%d transactions committed, %d of them behind one with higher numbers; %d rows", w.committed.Load(), w.late.Load(), len(want))
			if w.late.Load() < 10 || len(want) < 100 {
				t.Errorf("too few came out of order to show anything")
			}
			w.compare(want)
			for _, d := range w.daemons {
				if code, err := d.Stop(time.Minute); err != nil || code != 0 {
					t.Errorf("the last stop: exit %d, %v\n%s", code, err, d.Tail())
				}
			}
		})
	}
}
