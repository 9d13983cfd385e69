//go:build sinks

package sinks

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamd/streamd/test/crash"
	"github.com/streamd/streamd/test/kafkaenv"
	"github.com/streamd/streamd/test/sinks/dbenv"
)

const (
	billPartitions = 4
	billsRate      = 1000 // a second, copies included
	accounts       = 25
)

// billsFile writes the same bills to a ledger and, where a target has such classes, to an idempotent, a plain and a prepared table,
// and their totals to a ledger with a key.
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
      TARGET ledger, columns: {bill_id: value.bill_id, account: value.account, amount: value.amount}}
OTHERS
  - name: totals
    from: unique
    aggregate:
      by: value.account
      fields: {total: {sum: value.amount}, bills: {count: true}}
  - name: account-totals
    to:
      TARGET account_totals, KEYED columns: {account: key, total: value.total, bills: value.bills}}
`

// otherClasses are the steps for targets that have more than ledgers.
const otherClasses = `
  - name: idempotent
    from: unique
    to:
      TARGET idempotent, class: idempotent, primary_key: [bill_id], columns: {bill_id: value.bill_id, account: value.account, amount: value.amount}}
  - name: plain
    from: unique
    to:
      TARGET plain, class: plain, columns: {bill_id: value.bill_id, account: value.account, amount: value.amount}}
`

// preparedClass is the step for targets that prepare transactions, to a table with a key: what is left prepared is in the way then.
const preparedClass = `
  - name: two-phase
    from: unique
    to:
      TARGET two_phase, class: two_phase, primary_key: [bill_id], columns: {bill_id: value.bill_id, account: value.account, amount: value.amount}}
`

// target is what is different between the targets.
type target struct {
	name string
	// step is the target in the pipeline file, with %s for the name of a table.
	step string
	// appends says that it has no tables with a key: each new total is one more row.
	appends bool
	// start starts a server, nil if there is none, and returns its address for the pipeline file.
	start func(t *testing.T) (s *dbenv.Server, address string, tables tables)
	// classes are the tables of bills.
	classes []string
}

func targets() []target {
	all := []string{"ledger", "idempotent", "plain"}
	prepares := append(slices.Clone(all), "two_phase")
	return []target{
		{"PostgreSQL", `postgres: {dsn: "${ADDRESS}", table: %s`, false, func(t *testing.T) (*dbenv.Server, string, tables) {
			s, db := started(t, dbenv.PostgreSQL, "pgx", "postgres")
			return s, s.DSN(database), &sqlTables{db, "decimal(20,2)", &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}}
		}, prepares},
		{"MariaDB", `mysql: {dsn: "${ADDRESS}", table: %s`, false, func(t *testing.T) (*dbenv.Server, string, tables) {
			s, db := started(t, dbenv.MariaDB, "mysql", "")
			return s, s.DSN(database), &sqlTables{db, "decimal(20,2)", &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}}
		}, prepares},
		{"SQLite", `sqlite: {file: "${ADDRESS}", table: %s`, false, func(t *testing.T) (*dbenv.Server, string, tables) {
			file := filepath.Join(t.TempDir(), "bills.db")
			u := url.URL{Scheme: "file", Opaque: url.PathEscape(file), RawQuery: "_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)"}
			db, err := sql.Open("sqlite", u.String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			return nil, file, &sqlTables{db, "text", nil}
		}, all},
		{"Redis", `redis: {url: "${ADDRESS}", table: %s`, false, func(t *testing.T) (*dbenv.Server, string, tables) {
			s := startedRedis(t)
			client := goredis.NewClient(&goredis.Options{Addr: s.Address})
			t.Cleanup(func() { _ = client.Close() })
			return s, s.DSN(""), &redisTables{client}
		}, all[:1]},
		{"Files", `files: {size: 50k, interval: 300ms, directory: "${ADDRESS}/%s"`, true, func(t *testing.T) (*dbenv.Server, string, tables) {
			dir := t.TempDir()
			return nil, dir, &fileTables{dir: dir, lines: map[string]int{}}
		}, all[:1]},
		// Its ledger is of class idempotent: the receiver keeps the keys.
		{"HTTP", `http: {class: idempotent, batch: 100, url: "${ADDRESS}/%s"`, true, httpTarget, all[:1]},
	}
}

// TestBills kills streamd and the database under load, with kill -9, while a reader polls. In the end each table is compared
// with what was sent. STREAMD_SOAK: 100 kills for each database, or as many as STREAMD_KILLS says; the server is killed
// with every tenth of them.
func TestBills(t *testing.T) {
	kills, limit := 20, 5*time.Minute
	if os.Getenv("STREAMD_SOAK") != "" {
		kills, limit = 100, 40*time.Minute
	}
	if n, err := strconv.Atoi(os.Getenv("STREAMD_KILLS")); err == nil {
		kills, limit = n, 40*time.Minute
	}
	serverKills := kills / 10
	program := build(t)
	for _, x := range targets() {
		t.Run(x.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			w := newBillsWorld(ctx, t, x, program)
			w.killAll(kills, serverKills)
			w.settle()
			w.compare()
		})
	}
}

// build builds streamd.
func build(t *testing.T) string {
	program, err := crash.BuildDaemon(t.Context(), "../..", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// killAll kills streamd again and again, and some times the server before it.
func (w *billsWorld) killAll(kills, serverKills int) {
	d := w.daemons[0]
	w.start(d)
	var seed [32]byte
	random := rand.New(rand.NewChaCha8(seed))
	for i := range kills {
		w.pause(time.Duration(200+random.IntN(800)) * time.Millisecond)
		if !d.Running() {
			w.Fatalf("streamd has ended by itself:\n%s", d.Tail())
		}
		if w.server != nil && i*serverKills/kills != (i+1)*serverKills/kills {
			if err := w.server.Kill(); err != nil {
				w.Fatal(err)
			}
			if err := w.server.Start(w.ctx); err != nil {
				w.Fatal(err)
			}
			w.serverKills++
			w.pause(time.Second)
		}
		d.Kill()
		w.kills++
		w.countBehind()
		w.start(d)
	}
}

// start starts a streamd and waits until rows are written.
func (w *billsWorld) start(d *crash.Daemon) {
	w.Helper()
	before := w.rows("ledger")
	if err := d.Start(); err != nil {
		w.Fatal(err)
	}
	w.until("rows are written", func() bool {
		if !d.Running() {
			w.Fatalf("streamd has ended by itself:\n%s", d.Tail())
		}
		return w.rows("ledger") > max(0, before)
	})
}

// billsWorld is a pipeline between a real Kafka and a real database, and what must come out of it.
type billsWorld struct {
	*testing.T
	target
	tables
	ctx     context.Context
	stop    context.CancelFunc // of the reader
	brokers []string
	client  *kgo.Client
	server  *dbenv.Server
	program string
	file    string
	dir     string
	env     []string
	daemons []*crash.Daemon
	stopGen context.CancelFunc
	sender  sync.WaitGroup
	reader  sync.WaitGroup

	mu    sync.Mutex // guards want, sent and views while they are made
	want  map[string]int64
	sent  int
	views []view

	kills, serverKills int
	// behind is how many rows the ledger had at the kills beyond the group's offsets: who goes by these writes them again.
	behind int64
}

func newBillsWorld(ctx context.Context, t *testing.T, x target, program string) *billsWorld {
	k := kafkaenv.Start(t)
	s, address, tables := x.start(t)
	ctx, stop := context.WithCancel(ctx)
	w := &billsWorld{T: t, target: x, tables: tables, ctx: ctx, stop: stop, server: s, program: program, brokers: k.Addresses(), dir: t.TempDir(), env: []string{"ADDRESS=" + address}, want: map[string]int64{}}
	t.Cleanup(stop)
	if err := w.create(ctx); err != nil {
		t.Fatal(err)
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
	others := ""
	if len(x.classes) > 1 {
		others = otherClasses
	}
	if slices.Contains(x.classes, "two_phase") {
		others += preparedClass
	}
	keyed := "primary_key: [account],"
	if x.appends {
		keyed = ""
	}
	pairs := []string{"BROKERS", strings.Join(k.Addresses(), `", "`), "KEYED", keyed}
	for _, table := range []string{"ledger", "idempotent", "plain", "two_phase", "account_totals"} {
		pairs = append(pairs, "TARGET "+table, fmt.Sprintf(x.step, table))
	}
	text := strings.NewReplacer(pairs...).Replace(strings.Replace(billsFile, "OTHERS", others, 1))
	w.file = filepath.Join(w.dir, "bills.yaml")
	if err := os.WriteFile(w.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.daemon("one")
	gen, stopGen := context.WithCancel(ctx)
	w.stopGen = stopGen
	w.sender.Go(func() { w.generate(gen) })
	w.reader.Go(func() { w.watch(ctx) })
	return w
}

// daemon prepares a streamd.
func (w *billsWorld) daemon(instance string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	_ = l.Close() // the daemon takes the port
	d := &crash.Daemon{
		Program: w.program, File: w.file, Dir: filepath.Join(w.dir, "data-"+instance), HTTP: l.Addr().String(), Log: filepath.Join(w.dir, "log-"+instance),
		Args: []string{"--instance-id", instance, "--admin", "off"}, Env: w.env,
	}
	w.daemons = append(w.daemons, d)
	w.Cleanup(func() {
		d.Kill()
		if w.Failed() {
			w.Logf("the end of the log of %s:\n%s", instance, d.Tail())
		}
	})
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
				Value: fmt.Appendf(nil, `{"bill_id":"b%d","account":"a%d","amount":"%d.%02d"}`, id, id%accounts, cents/100, cents%100),
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
func (w *billsWorld) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if v, err := w.look(ctx); err == nil {
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

// rows is how many rows a table has; -1 if the server does not answer.
func (w *billsWorld) rows(table string) int {
	n, err := w.tables.rows(w.ctx, table)
	if err != nil {
		return -1
	}
	return n
}

// lookNow is a look that a server which is still starting does not refuse.
func (w *billsWorld) lookNow() (v view) {
	w.until("the server answers", func() (ok bool) {
		var err error
		v, err = w.look(w.ctx)
		return err == nil
	})
	return v
}

// countBehind notes, while streamd is dead, how far the target is ahead of the group.
func (w *billsWorld) countBehind() {
	v := w.lookNow()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = "bills"
	topic := kmsg.NewOffsetFetchRequestTopic()
	topic.Topic = "bills-ledger-sink"
	for i := range billPartitions {
		topic.Partitions = append(topic.Partitions, int32(i))
	}
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(w.ctx, w.client)
	if err != nil {
		w.Fatal(err)
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			w.behind += max(0, v.next[p.Partition]-max(0, p.Offset))
		}
	}
}

// settle waits until all that was sent is everywhere, and stops.
func (w *billsWorld) settle() {
	w.stopGen()
	w.sender.Wait()
	want := len(w.want)
	for _, table := range w.classes {
		w.until("every bill is in "+table, func() bool {
			if w.rows(table) < want {
				return false
			}
			seen := map[string]bool{}
			err := w.bills(w.ctx, table, func(id, _ string) { seen[id] = true })
			return err == nil && len(seen) >= want
		})
	}
	w.until("every bill is in the totals", func() bool {
		sum := int64(0)
		err := w.totals(w.ctx, func(_, _ string, bills int64) { sum += bills })
		return err == nil && sum >= int64(want)
	})
	for _, d := range w.daemons {
		if code, err := d.Stop(time.Minute); err != nil || code != 0 {
			w.Errorf("the last stop: exit %d, %v\n%s", code, err, d.Tail())
		}
	}
	w.stop()
	w.reader.Wait()
	w.ctx = w.Context()
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
			w.ctx = context.WithoutCancel(w.ctx)
			w.Fatalf("%s: not in time; ledger %d rows, %d bills sent", what, w.rows("ledger"), len(w.want))
		}
		w.pause(100 * time.Millisecond)
	}
}

// compare holds the tables, and each moment that the reader saw, to what was sent.
func (w *billsWorld) compare() {
	wrong := map[string]int{"totals": w.wrongTotals()}
	for _, table := range w.classes {
		wrong[table] = w.wrongBills(table)
	}
	partial := w.partial()
	report := fmt.Sprintf("%d records of %d bills; %d kills of streamd, %d of the server; %d looks of the reader\n| class | wrong |\n|---|---|\n", w.sent, len(w.want), w.kills, w.serverKills, len(w.views))
	for _, table := range w.classes {
		report += fmt.Sprintf("| %s | %d |\n", table, wrong[table])
	}
	w.Logf("%s| ledger with a key (totals) | %d |\n| partial batches seen | %d |\n| rows beyond the group's offset | %d |", report, wrong["totals"], partial, w.behind)
	if wrong["ledger"]+wrong["totals"]+wrong["idempotent"]+wrong["two_phase"]+partial != 0 {
		w.Error("a promise is broken")
	}
	if w.kills > 0 && w.behind == 0 {
		w.Error("the group's offsets were as good as the target's at each kill: the run shows nothing")
	}
	if w.kills > 0 && slices.Contains(w.classes, "plain") && wrong["plain"] == 0 {
		w.Error("the plain table is right, too: no kill has met a write, the run shows nothing")
	}
	if len(w.views) < 20 {
		w.Errorf("the reader looked only %d times", len(w.views))
	}
}

// wrongBills counts the bills that are missing, doubled or foreign in a table, or of another amount.
func (w *billsWorld) wrongBills(table string) (wrong int) {
	seen := map[string]int{}
	err := w.bills(w.ctx, table, func(id, amount string) {
		seen[id]++
		if got, err := cents(amount); err != nil || got != w.want[id] {
			wrong++
		}
	})
	if err != nil {
		w.Fatal(err)
	}
	for id := range w.want {
		if seen[id] != 1 {
			wrong++
		}
	}
	return wrong
}

// wrongTotals counts the accounts whose total is not that of their bills.
func (w *billsWorld) wrongTotals() (wrong int) {
	type total struct{ cents, bills int64 }
	want := map[string]total{}
	for id, c := range w.want {
		var n int
		if _, err := fmt.Sscanf(id, "b%d", &n); err != nil {
			w.Fatal(err)
		}
		account := fmt.Sprintf("a%d", n%accounts)
		want[account] = total{want[account].cents + c, want[account].bills + 1}
	}
	err := w.totals(w.ctx, func(account, sum string, bills int64) {
		if got, err := cents(sum); err != nil || want[account] != (total{got, bills}) {
			wrong++
		}
		delete(want, account)
	})
	if err != nil {
		w.Fatal(err)
	}
	return wrong + len(want)
}

// partial counts the moments at which the rows in the table were not those before the offsets beside them.
func (w *billsWorld) partial() (n int) {
	read, err := kgo.NewClient(kgo.SeedBrokers(w.brokers...), kgo.ConsumeTopics("bills-ledger-sink"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		w.Fatal(err)
	}
	defer read.Close()
	var offsets [billPartitions][]int64 // rising
	ctx, cancel := context.WithTimeout(w.ctx, 2*time.Minute)
	defer cancel()
	all := 0
	for all < len(w.want) {
		f := read.PollFetches(ctx)
		if err := f.Err(); err != nil && !errors.Is(err, context.Canceled) {
			w.Fatalf("%d of %d records of the sink's topic: %v", all, len(w.want), err)
		}
		f.EachRecord(func(r *kgo.Record) {
			offsets[r.Partition] = append(offsets[r.Partition], r.Offset)
			all++
		})
	}
	if all != len(w.want) {
		w.Errorf("the sink's topic holds %d records, want %d", all, len(w.want))
	}
	for _, v := range w.views {
		before := 0
		for i, next := range v.next {
			at, _ := slices.BinarySearch(offsets[i], next)
			before += at
		}
		if v.rows != before {
			if n++; n < 4 {
				w.Errorf("a reader saw %d rows beside offsets that stand for %d", v.rows, before)
			}
		}
	}
	return n
}
