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
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/test/crash"
	"github.com/streamd/streamd/test/kafkaenv"
	"github.com/streamd/streamd/test/sinks/dbenv"
)

const (
	billPartitions = 4
	billsRate      = 1000 // a second, copies included
)

// billsFile writes the same bills to a ledger, an idempotent and a plain table, and their totals to a ledger with a key.
const billsFile = `version: 1
name: bills
kafka:
  brokers: ["BROKERS"]
types:
  Bill: {bill_id: string, account: string, amount: decimal}
sources:
  raw: {topic: bills.raw, format: json, type: Bill}
steps:
  - name: unique
    dedup: {id: value.bill_id, scope: partition, retention: 1d}
  - name: ledger
    to:
      KIND: {dsn: "${DSN}", table: ledger, columns: {bill_id: value.bill_id, account: value.account, amount: value.amount}}
  - name: idempotent
    from: unique
    to:
      KIND:
        dsn: ${DSN}
        table: idempotent
        class: idempotent
        primary_key: [bill_id]
        columns: {bill_id: value.bill_id, account: value.account, amount: value.amount}
  - name: plain
    from: unique
    to:
      KIND: {dsn: "${DSN}", table: plain, class: plain, columns: {bill_id: value.bill_id, account: value.account, amount: value.amount}}
  - name: totals
    from: unique
    aggregate:
      by: value.account
      fields: {total: {sum: value.amount}, bills: {count: true}}
  - name: account-totals
    to:
      KIND:
        dsn: ${DSN}
        table: account_totals
        primary_key: [account]
        columns: {account: key, total: value.total, bills: value.bills}
`

// billsWorld is a pipeline between a real Kafka and a real database, and what must come out of it.
type billsWorld struct {
	*testing.T
	ctx     context.Context
	brokers []string
	client  *kgo.Client
	server  *dbenv.Server
	db      *sql.DB
	daemon  *crash.Daemon
	mu      sync.Mutex // guards want, sent and views while they are made
	want    map[string]int64
	sent    int
	views   []view
	stopGen context.CancelFunc
	sender  sync.WaitGroup
	reader  sync.WaitGroup
}

// view is what a reader has seen at one moment: the rows of the ledger by account, and the offsets beside them.
type view struct {
	rows map[string]int
	next map[int32]int64
}

// chaos is what is different between the servers.
type chaos struct {
	kind   string // in the pipeline file
	make   func(context.Context) (*dbenv.Server, error)
	driver string
	admin  string
	// snapshot are options of a transaction in which all statements see one moment.
	snapshot *sql.TxOptions
}

func TestBillsPostgreSQL(t *testing.T) {
	runBills(t, chaos{kind: "postgres", make: dbenv.PostgreSQL, driver: "pgx", admin: "postgres", snapshot: &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}})
}

// runBills kills streamd and the database under load, with kill -9, while a reader polls. In the end each table is compared
// with what was sent.
func runBills(t *testing.T, c chaos) {
	kills, serverKills, limit := 10, 3, 8*time.Minute
	if os.Getenv("STREAMD_SOAK") != "" {
		kills, serverKills, limit = 200, 20, 60*time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	w := newBillsWorld(ctx, t, c)
	var seed [32]byte
	random := rand.New(rand.NewChaCha8(seed))
	if err := w.daemon.Start(); err != nil {
		t.Fatal(err)
	}
	w.until("the first rows are there", func() bool {
		return w.count("SELECT COUNT(*) FROM ledger") > 0 && w.count("SELECT COUNT(*) FROM plain") > 0
	})
	for i := range kills {
		w.pause(time.Duration(500+random.IntN(1500)) * time.Millisecond)
		if !w.daemon.Running() {
			t.Fatalf("streamd has ended by itself:\n%s", w.daemon.Tail())
		}
		if i*serverKills/kills != (i+1)*serverKills/kills {
			if err := w.server.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := w.server.Start(ctx); err != nil {
				t.Fatal(err)
			}
			w.pause(time.Second)
		}
		before := w.count("SELECT COUNT(*) FROM ledger")
		w.daemon.Kill()
		if err := w.daemon.Start(); err != nil {
			t.Fatal(err)
		}
		w.until("rows are written again", func() bool { return w.count("SELECT COUNT(*) FROM ledger") > before })
	}
	w.stopGen()
	w.sender.Wait()
	w.until("every bill is there", func() bool {
		want := w.wanted()
		return w.count("SELECT COUNT(*) FROM ledger") >= want && w.count("SELECT COUNT(*) FROM idempotent") >= want &&
			w.count("SELECT COUNT(DISTINCT bill_id) FROM plain") >= want && w.count("SELECT COALESCE(SUM(bills), 0) FROM account_totals") >= want
	})
	if code, err := w.daemon.Stop(time.Minute); err != nil || code != 0 {
		t.Errorf("the last stop: exit %d, %v\n%s", code, err, w.daemon.Tail())
	}
	cancel()
	w.reader.Wait()
	w.ctx = t.Context()
	w.compare(kills, serverKills)
}

func newBillsWorld(ctx context.Context, t *testing.T, c chaos) *billsWorld {
	k := kafkaenv.Start(t)
	s, db := started(t, c.make, c.driver, c.admin)
	w := &billsWorld{T: t, ctx: ctx, server: s, db: db, brokers: k.Addresses(), want: map[string]int64{}}
	for _, statement := range []string{
		"CREATE TABLE ledger (bill_id varchar(40) NOT NULL, account varchar(40) NOT NULL, amount decimal(20,2) NOT NULL)",
		"CREATE TABLE idempotent (bill_id varchar(40) PRIMARY KEY, account varchar(40) NOT NULL, amount decimal(20,2) NOT NULL, streamd_version bigint)",
		"CREATE TABLE plain (bill_id varchar(40) NOT NULL, account varchar(40) NOT NULL, amount decimal(20,2) NOT NULL)",
		"CREATE TABLE account_totals (account varchar(40) PRIMARY KEY, total decimal(20,2) NOT NULL, bills bigint NOT NULL)",
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			t.Fatal(err)
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Addresses()...), kgo.ProducerLinger(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	w.client = client
	if err := crash.CreateTopics(ctx, k.Addresses(), billPartitions, "bills.raw"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	text := strings.NewReplacer("BROKERS", strings.Join(k.Addresses(), `", "`), "KIND", c.kind).Replace(billsFile)
	file := filepath.Join(dir, "bills.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	program, err := crash.BuildDaemon(ctx, "../..", dir)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // the daemon takes the port
	w.daemon = &crash.Daemon{
		Program: program, File: file, Dir: filepath.Join(dir, "data"), HTTP: l.Addr().String(), Log: filepath.Join(dir, "log"),
		Args: []string{"--instance-id", "one", "--admin", "off"}, Env: []string{"DSN=" + s.DSN(database)},
	}
	t.Cleanup(func() {
		w.daemon.Kill()
		if t.Failed() {
			t.Logf("the end of streamd's log:\n%s", w.daemon.Tail())
		}
	})
	gen, stop := context.WithCancel(ctx)
	w.stopGen = stop
	w.sender.Go(func() { w.generate(gen) })
	w.reader.Go(func() { w.watch(ctx, c.snapshot) })
	return w
}

// generate sends bills until ctx ends: one in five is a copy.
func (w *billsWorld) generate(ctx context.Context) {
	random := rand.New(rand.NewPCG(1, 2))
	const perBatch = billsRate / 20
	tick := time.NewTicker(time.Second / 20)
	defer tick.Stop()
	n := 0
	for ctx.Err() == nil {
		var batch []*kgo.Record
		for range perBatch {
			id := n
			if n > 0 && random.IntN(5) == 0 {
				id = n - 1 - random.IntN(min(n, 2000))
			} else {
				n++
			}
			cents := int64(id%997 + 1)
			batch = append(batch, &kgo.Record{
				Topic: "bills.raw", Key: fmt.Appendf(nil, "b%d", id),
				Value: fmt.Appendf(nil, `{"bill_id":"b%d","account":"a%d","amount":"%d.%02d"}`, id, id%25, cents/100, cents%100),
			})
			w.mu.Lock()
			w.want[fmt.Sprintf("b%d", id)] = cents
			w.sent++
			w.mu.Unlock()
		}
		// Not ctx: what may or may not have been sent would make the comparison a guess.
		if err := w.client.ProduceSync(context.WithoutCancel(ctx), batch...).FirstErr(); err != nil {
			w.Errorf("send bills: %v", err)
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// watch is the reader that polls all the while. A server that is down is no news.
func (w *billsWorld) watch(ctx context.Context, o *sql.TxOptions) {
	for ctx.Err() == nil {
		if v, err := w.look(ctx, o); err == nil {
			w.mu.Lock()
			w.views = append(w.views, v)
			w.mu.Unlock()
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (w *billsWorld) look(ctx context.Context, o *sql.TxOptions) (v view, err error) {
	tx, err := w.db.BeginTx(ctx, o)
	if err != nil {
		return v, err
	}
	defer func() { _ = tx.Rollback() }() // it only reads
	v = view{rows: map[string]int{}, next: map[int32]int64{}}
	err = scan(ctx, tx, "SELECT account, COUNT(*) FROM ledger GROUP BY account", func(r *sql.Rows) error {
		var account string
		var n int
		err := r.Scan(&account, &n)
		v.rows[account] = n
		return err
	})
	if err != nil {
		return v, err
	}
	return v, scan(ctx, tx, "SELECT part, next_offset FROM streamd_progress WHERE sink = 'bills/ledger'", func(r *sql.Rows) error {
		var part int32
		var next int64
		err := r.Scan(&part, &next)
		v.next[part] = next
		return err
	})
}

// scan calls fn for each row.
func scan(ctx context.Context, db interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, query string, fn func(*sql.Rows) error,
) error {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // rows.Err says more
	for rows.Next() {
		if err := fn(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// count is a number from the database; -1 if it does not answer.
func (w *billsWorld) count(query string) int {
	var n int
	if err := w.db.QueryRowContext(w.ctx, query).Scan(&n); err != nil {
		return -1
	}
	return n
}

func (w *billsWorld) wanted() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.want)
}

func (w *billsWorld) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.ctx.Done():
		w.Fatal(w.ctx.Err())
	}
}

func (w *billsWorld) until(what string, ok func() bool) {
	w.Helper()
	for !ok() {
		if w.ctx.Err() != nil {
			w.Fatalf("%s: not in time; ledger %d, idempotent %d, plain %d, totals %d, want %d", what, w.count("SELECT COUNT(*) FROM ledger"), w.count("SELECT COUNT(*) FROM idempotent"),
				w.count("SELECT COUNT(*) FROM plain"), w.count("SELECT SUM(bills) FROM account_totals"), w.wanted())
		}
		w.pause(100 * time.Millisecond)
	}
}

// compare holds the tables, and each moment that the reader saw, to what was sent.
func (w *billsWorld) compare(kills, serverKills int) {
	wrong := map[string]int{}
	for _, table := range []string{"ledger", "idempotent", "plain"} {
		seen := map[string]int{}
		err := scan(w.ctx, w.db, "SELECT bill_id, amount FROM "+table, func(r *sql.Rows) error {
			var id, amount string
			if err := r.Scan(&id, &amount); err != nil {
				return err
			}
			seen[id]++
			if cents := w.want[id]; amount != fmt.Sprintf("%d.%02d", cents/100, cents%100) {
				wrong[table]++
			}
			return nil
		})
		if err != nil {
			w.Fatal(err)
		}
		for id := range w.want {
			if seen[id] != 1 {
				wrong[table]++
			}
		}
	}
	totals := map[string][2]int64{}
	for id, cents := range w.want {
		var n int
		if _, err := fmt.Sscanf(id, "b%d", &n); err != nil {
			w.Fatal(err)
		}
		account := fmt.Sprintf("a%d", n%25)
		totals[account] = [2]int64{totals[account][0] + cents, totals[account][1] + 1}
	}
	err := scan(w.ctx, w.db, "SELECT account, total, bills FROM account_totals", func(r *sql.Rows) error {
		var account, total string
		var bills int64
		if err := r.Scan(&account, &total, &bills); err != nil {
			return err
		}
		if want := totals[account]; total != fmt.Sprintf("%d.%02d", want[0]/100, want[0]%100) || bills != want[1] {
			wrong["totals"]++
		}
		delete(totals, account)
		return nil
	})
	if err != nil {
		w.Fatal(err)
	}
	wrong["totals"] += len(totals)
	partial := w.partial()
	w.Logf("%d records of %d bills; %d kills of streamd, %d of %s; %d looks of the reader\n| class | wrong |\n|---|---|\n| ledger | %d |\n| ledger with a key (totals) | %d |\n| idempotent | %d |\n| plain | %d |\n| partial batches seen | %d |",
		w.sent, len(w.want), kills, serverKills, w.server.Kind, len(w.views), wrong["ledger"], wrong["totals"], wrong["idempotent"], wrong["plain"], partial)
	if wrong["ledger"]+wrong["totals"]+wrong["idempotent"]+partial != 0 {
		w.Error("a promise is broken")
	}
	if wrong["plain"] == 0 {
		w.Error("the plain table is right, too: no kill has met a write, the run shows nothing")
	}
	if len(w.views) < 20 {
		w.Errorf("the reader looked only %d times", len(w.views))
	}
}

// partial counts the moments at which the rows in the table were not those before the offsets beside them.
func (w *billsWorld) partial() (n int) {
	read, err := kgo.NewClient(kgo.SeedBrokers(w.brokers...), kgo.ConsumeTopics("bills-ledger-sink"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		w.Fatal(err)
	}
	defer read.Close()
	type place struct {
		part   int32
		offset int64
	}
	var all []place
	ctx, cancel := context.WithTimeout(w.ctx, 2*time.Minute)
	defer cancel()
	for len(all) < len(w.want) {
		f := read.PollFetches(ctx)
		if err := f.Err(); err != nil && !errors.Is(err, context.Canceled) {
			w.Fatalf("%d of %d records of the sink's topic: %v", len(all), len(w.want), err)
		}
		f.EachRecord(func(r *kgo.Record) { all = append(all, place{r.Partition, r.Offset}) })
	}
	if len(all) != len(w.want) {
		w.Errorf("the sink's topic holds %d records, want %d", len(all), len(w.want))
	}
	for _, v := range w.views {
		rows, before := 0, 0
		for _, c := range v.rows {
			rows += c
		}
		for _, p := range all {
			if p.offset < v.next[p.part] {
				before++
			}
		}
		if rows != before {
			if n++; n < 4 {
				w.Errorf("a reader saw %d rows beside offsets that stand for %d", rows, before)
			}
		}
	}
	return n
}
