package main

import (
	"bufio"
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/twmb/franz-go/pkg/kgo"
	_ "modernc.org/sqlite"
)

const (
	topic      = "chaos.raw"
	partitions = 4
)

//go:embed chaos.yaml
var pipelineFile string

// config is how it was called.
type config struct {
	length            time.Duration
	rate              int
	brokers           string
	database, address string
}

func main() {
	var c config
	flag.DurationVar(&c.length, "for", 30*time.Second, "how long to send, and to kill")
	flag.IntVar(&c.rate, "rate", 500, "records a second")
	flag.StringVar(&c.brokers, "brokers", "", "addresses of a Kafka with the topics chaos.raw, of 4 partitions, and chaos.dlq (default: one in memory)")
	flag.StringVar(&c.database, "database", "sqlite", "sqlite, postgres or mysql")
	flag.StringVar(&c.address, "address", "", "of the database: its file, or its DSN; tables chaos_* in it are made anew (default: a temporary file)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, c config) (err error) {
	dir, err := os.MkdirTemp("", "bills-chaos-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program := filepath.Join(dir, "streamd")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, "./cmd/streamd").CombinedOutput(); err != nil {
		return fmt.Errorf("build streamd (from the root of the sources): %w\n%s", err, out)
	}
	if c.address == "" && c.database == "sqlite" {
		c.address = filepath.Join(dir, "bills.db")
	}
	db, err := tables(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // it was read
	if c.brokers == "" {
		var broker *exec.Cmd
		if c.brokers, broker, err = inMemory(program); err != nil {
			return err
		}
		defer end(broker)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(c.brokers, ",")...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	file := filepath.Join(dir, "chaos.yaml")
	if err := os.WriteFile(file, []byte(c.pipeline()), 0o600); err != nil {
		return err
	}
	workers := []*worker{{program: program, file: file, dir: dir, name: "one", config: c}, {program: program, file: file, dir: dir, name: "two", config: c}}
	for _, w := range workers {
		if err := w.start(); err != nil {
			return err
		}
		defer w.kill()
	}
	fmt.Printf("two streamd, one of them is killed every few seconds, for %v; %s\n", c.length, c.database)
	kills, sent, err := chaos(ctx, c, client, workers)
	if err != nil {
		return err
	}
	fmt.Printf("%d kills; sent: %s\n", kills, sent)
	err = judge(ctx, c, db, workers)
	for _, w := range workers {
		if err != nil {
			err = fmt.Errorf("%w\n--- the last that streamd %q said:\n%s", err, w.name, w.last())
		}
	}
	return err
}

// pipeline is the file for the database.
func (c config) pipeline() string {
	if c.database == "sqlite" {
		return pipelineFile
	}
	return strings.NewReplacer("sqlite:", c.database+":", "file:", "dsn:").Replace(pipelineFile)
}

// tables makes the tables anew.
func tables(ctx context.Context, c config) (*sql.DB, error) {
	driver, source, money := c.database, c.address, "decimal(20,2)"
	switch c.database {
	case "sqlite":
		u := url.URL{Scheme: "file", Opaque: url.PathEscape(c.address), RawQuery: "_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)"}
		source, money = u.String(), "text"
	case "postgres":
		driver = "pgx"
	case "mysql":
	default:
		return nil, fmt.Errorf("-database %q is not one of sqlite, postgres, mysql", c.database)
	}
	db, err := sql.Open(driver, source)
	if err != nil {
		return nil, err
	}
	for _, statement := range []string{
		"DROP TABLE IF EXISTS chaos_ledger", "DROP TABLE IF EXISTS chaos_idempotent", "DROP TABLE IF EXISTS chaos_plain", "DROP TABLE IF EXISTS chaos_totals",
		"CREATE TABLE chaos_ledger (bill_id varchar(40) NOT NULL, amount " + money + " NOT NULL)",
		"CREATE TABLE chaos_idempotent (bill_id varchar(40) PRIMARY KEY, amount " + money + " NOT NULL, streamd_version bigint)",
		"CREATE TABLE chaos_plain (bill_id varchar(40) NOT NULL, amount " + money + " NOT NULL)",
		"CREATE TABLE chaos_totals (account varchar(40) PRIMARY KEY, total " + money + " NOT NULL, bills bigint NOT NULL)",
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return nil, errors.Join(fmt.Errorf("the database: %s: %w", statement, err), db.Close())
		}
	}
	return db, nil
}

// inMemory starts a broker and returns its address.
func inMemory(program string) (string, *exec.Cmd, error) {
	cmd := exec.Command(program, "dev", "--port", "0", "--topic", fmt.Sprintf("%s:%d", topic, partitions), "--topic", "chaos.dlq:1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), "broker in memory on "); ok {
			address, _, _ := strings.Cut(rest, " ")
			return address, cmd, nil
		}
	}
	end(cmd)
	return "", nil, errors.New("streamd dev did not say where it listens")
}

// end ends a process that was started here.
func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // killed
}

// worker is one streamd, which lives, is killed, and lives again.
type worker struct {
	config
	program, file, dir, name string
	cmd                      *exec.Cmd
}

func (w *worker) start() error {
	w.cmd = exec.Command(w.program, "run", w.file, "--data-dir", filepath.Join(w.dir, w.name), "--instance-id", w.name, "--http", "off", "--admin", "off", "--stop-on-eof")
	w.cmd.Env = w.environment()
	log, err := os.OpenFile(filepath.Join(w.dir, w.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own
	w.cmd.Stderr = log
	if _, err := w.cmd.StdinPipe(); err != nil { // it ends when this process does
		return err
	}
	return w.cmd.Start()
}

func (w *worker) environment() []string {
	return append(os.Environ(), "BROKERS="+w.brokers, "ADDRESS="+w.address)
}

func (w *worker) kill() { end(w.cmd) }

// endHanging does what the runbook of a pipeline that stands still says: a lone broker that goes away may leave a transaction open
// for good (KAFKA-20734), which holds up all its readers.
func endHanging(ctx context.Context, workers []*worker) error {
	w := workers[0]
	cmd := exec.CommandContext(ctx, w.program, "inspect", "transactions", w.file, "--end-hanging", "--execute")
	cmd.Env = w.environment()
	out, err := cmd.CombinedOutput()
	fmt.Printf("a minute later rows are missing; streamd inspect transactions --end-hanging --execute (%v):\n%s\n", err, out)
	for _, w := range workers { // one that met it has stopped
		w.kill()
		if err := w.start(); err != nil {
			return err
		}
	}
	return nil
}

// last is the end of the worker's log.
func (w *worker) last() string {
	text, err := os.ReadFile(filepath.Join(w.dir, w.name+".log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.SplitAfter(string(text), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "")
}

// chaos sends and kills until the time is over, and leaves both streamd running.
func chaos(ctx context.Context, c config, client *kgo.Client, workers []*worker) (kills int, s sent, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.length)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		var err error
		s, err = generate(ctx, client, c.rate)
		done <- err
	}()
	random := rand.New(rand.NewPCG(2, 2))
	for {
		select {
		case err := <-done:
			return kills, s, err
		case <-time.After(2*time.Second + time.Duration(random.IntN(2000))*time.Millisecond):
		}
		w := workers[random.IntN(len(workers))]
		w.kill()
		kills++
		if err := w.start(); err != nil {
			cancel()
			return kills, s, errors.Join(err, <-done)
		}
	}
}

// judge prints the table.
func judge(ctx context.Context, c config, db *sql.DB, workers []*worker) error {
	o, err := ask(ctx, strings.Split(c.brokers, ","))
	if err != nil {
		return err
	}
	all, err := o.settled(ctx, db, time.Minute)
	if err != nil {
		return err
	}
	if !all {
		if err := endHanging(ctx, workers); err != nil {
			return err
		}
		if _, err := o.settled(ctx, db, 2*time.Minute); err != nil {
			return err
		}
	}
	fmt.Printf("\n%-28s %8s %8s %8s %8s %8s\n", "CLASS", "WANT", "ROWS", "MISSING", "DOUBLED", "OTHER")
	broken := 0
	line := func(class string, want int, r outcome, promised bool) {
		fmt.Printf("%-28s %8d %8d %8d %8d %8d\n", class, want, r.rows, r.missing, r.doubled, r.other)
		if promised {
			broken += r.wrong()
		}
	}
	for _, table := range []string{"ledger", "idempotent", "plain"} {
		r, err := o.bills(ctx, db, "chaos_"+table)
		if err != nil {
			return err
		}
		line(table, len(o.amount), r, table != "plain")
	}
	r, err := o.accounts(ctx, db)
	if err != nil {
		return err
	}
	line("ledger with a key: totals", len(o.totals), r, true)
	if broken > 0 {
		return errors.New("a promise is broken")
	}
	return nil
}
