package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
)

// DefaultProgress is the name of the progress table.
const DefaultProgress = "streamd_progress"

// DefaultVersion is the name of the column that guards an idempotent upsert.
const DefaultVersion = "streamd_version"

// DefaultTimeout is long for a batch and short for whoever waits behind it.
const DefaultTimeout = time.Minute

// Config says what to write, and how.
type Config struct {
	Table sink.Table
	// Class is Ledger if empty.
	Class sink.Class
	// Progress is the progress table's name, SCHEMA.NAME or NAME. Default: DefaultProgress in the schema
	// of the table.
	Progress string
	// Version is the column, a 64-bit integer, that an idempotent upsert compares. Default: DefaultVersion.
	Version string
	// Timeout bounds each Check, Claim and Write: a server that went away without a word is given up, and
	// the outcome is open. Default: DefaultTimeout.
	Timeout time.Duration
}

// Target is a table in an SQL database.
type Target struct {
	db  *sql.DB
	d   *Dialect
	cfg Config

	table, progress string // quoted
	names           []string
	key             []string
	insert          string // up to VALUES
	tail            string // after the last row
	deletes         string // up to the conditions
	columns         []sink.Column
	keyAt           []int

	mu sync.Mutex // guards scales
	// scales is how many digits each column keeps behind the point, nil before it is known: databases round what
	// has more, without a word.
	scales []int
}

// Open makes a target of a database. It does not connect; the target closes db.
func Open(db *sql.DB, d *Dialect, cfg Config) (sink.Target, error) {
	t, err := open(db, d, cfg)
	if err != nil {
		return nil, err
	}
	if t.cfg.Class == sink.TwoPhase {
		return sink.NewTwoPhase(&preparer{t}, cfg.Table)
	}
	return t, nil
}

func open(db *sql.DB, d *Dialect, cfg Config) (*Target, error) {
	if cfg.Class == "" {
		cfg.Class = sink.Ledger
	}
	if cfg.Version == "" {
		cfg.Version = DefaultVersion
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Progress == "" {
		cfg.Progress = DefaultProgress
		if schema, _, ok := strings.Cut(cfg.Table.Name, "."); ok {
			cfg.Progress = schema + "." + DefaultProgress
		}
	}
	if err := cfg.validate(d); err != nil {
		return nil, err
	}
	t := &Target{db: db, d: d, cfg: cfg, table: d.quoteTable(cfg.Table.Name), progress: d.quoteTable(cfg.Progress), columns: cfg.Table.Columns, keyAt: cfg.Table.KeyColumns()}
	for _, c := range cfg.Table.Columns {
		t.names = append(t.names, d.Quote(c.Name))
	}
	for _, k := range cfg.Table.Key {
		t.key = append(t.key, d.Quote(k))
	}
	written := t.names
	version := ""
	if t.guarded() {
		version = d.Quote(cfg.Version)
		written = append(slices.Clone(t.names), version)
	}
	t.insert = "INSERT INTO " + t.table + " (" + strings.Join(written, ", ") + ") VALUES "
	if len(t.key) > 0 {
		t.tail = d.Upsert(t.key, t.names, t.table, version)
		t.deletes = "DELETE FROM " + t.table + " WHERE "
	}
	return t, nil
}

func (c Config) validate(d *Dialect) error {
	errs := []error{c.Table.Validate()}
	classes := []sink.Class{sink.Ledger, sink.Idempotent, sink.Plain}
	if d.TwoPhase != nil {
		classes = append(classes, sink.TwoPhase)
	}
	if !slices.Contains(classes, c.Class) {
		errs = append(errs, fmt.Errorf("sqldb: class %q of %s, want one of %v", c.Class, d.Name, classes))
	}
	if c.Class == sink.Idempotent && len(c.Table.Key) == 0 {
		errs = append(errs, errors.New("sqldb: an idempotent sink needs a key: a row without one cannot be told from its copy; name the column of the record's ID"))
	}
	if strings.Count(c.Progress, ".") > 1 {
		errs = append(errs, fmt.Errorf("sqldb: progress table %q: want NAME or SCHEMA.NAME", c.Progress))
	}
	return errors.Join(errs...)
}

// guarded says whether rows carry a version.
func (t *Target) guarded() bool { return t.cfg.Class == sink.Idempotent }

// quoteTable quotes NAME or SCHEMA.NAME.
func (d *Dialect) quoteTable(name string) string {
	parts := strings.Split(name, ".")
	for i, p := range parts {
		parts[i] = d.Quote(p)
	}
	return strings.Join(parts, ".")
}

// Class is the configured one.
func (t *Target) Class() sink.Class { return t.cfg.Class }

// Close closes the database.
func (t *Target) Close() error { return t.db.Close() }

// Check compares the table with what the sink writes, and tries the rights without changing a row.
func (t *Target) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	conn, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // what matters has been said
	have, err := t.look(ctx, conn)
	if err != nil {
		return err
	}
	if err := t.compare(have); err != nil {
		return err
	}
	if len(t.key) > 0 {
		unique, err := t.d.Unique(ctx, conn, t.cfg.Table.Name, t.cfg.Table.Key)
		if err != nil {
			return t.setup("look at the indexes", err)
		}
		if !unique {
			return &sink.SetupError{
				Err:    fmt.Errorf("table %q has no primary key or unique index of exactly %s", t.cfg.Table.Name, strings.Join(t.cfg.Table.Key, ", ")),
				Remedy: "create one, or name the columns of the one it has",
			}
		}
	}
	if err := t.storage(ctx, conn); err != nil {
		return err
	}
	if t.cfg.Class == sink.Ledger {
		if err := t.createProgress(ctx, conn); err != nil {
			return err
		}
	}
	return t.tryRights(ctx, conn)
}

// storage refuses a table that keeps the rows of a batch that was rolled back: with the classes that write a row once they would be there twice.
func (t *Target) storage(ctx context.Context, conn *sql.Conn) error {
	prepares := t.cfg.Class == sink.TwoPhase
	if t.d.Storage == nil || !prepares && t.cfg.Class != sink.Ledger {
		return nil
	}
	err := t.d.Storage(ctx, conn, t.cfg.Table.Name, prepares)
	var setup *sink.SetupError
	if err == nil || errors.As(err, &setup) {
		return err
	}
	return t.setup("look at the table's storage", err)
}

// look asks for the table's columns.
func (t *Target) look(ctx context.Context, conn *sql.Conn) (map[string]DBColumn, error) {
	have, err := t.d.Columns(ctx, conn, t.cfg.Table.Name)
	if err != nil {
		return nil, t.setup("look at the table", err)
	}
	if len(have) == 0 {
		return nil, &sink.SetupError{Err: fmt.Errorf("table %q is not there, or not to be seen with these rights", t.cfg.Table.Name), Remedy: "create it, or name its schema"}
	}
	scales := make([]int, len(t.columns))
	for i, c := range t.columns {
		scales[i] = -1
		if got, ok := have[strings.ToLower(c.Name)]; ok && c.Kind == sink.Decimal {
			scales[i] = got.Scale
		}
	}
	t.mu.Lock()
	t.scales = scales
	t.mu.Unlock()
	return have, nil
}

// known returns the scales, from the database if nobody has asked yet.
func (t *Target) known(ctx context.Context, conn *sql.Conn) ([]int, error) {
	t.mu.Lock()
	scales := t.scales
	t.mu.Unlock()
	if scales != nil {
		return scales, nil
	}
	if _, err := t.look(ctx, conn); err != nil {
		return nil, err
	}
	return t.known(ctx, conn)
}

// compare returns every difference between the table and what is to be written, at once.
func (t *Target) compare(have map[string]DBColumn) error {
	var wrong []string
	want := slices.Clone(t.columns)
	if t.guarded() {
		want = append(want, sink.Column{Name: t.cfg.Version, Kind: sink.Integer})
	}
	written := map[string]bool{}
	for _, c := range want {
		name := strings.ToLower(c.Name)
		written[name] = true
		got, ok := have[name]
		switch {
		case !ok:
			wrong = append(wrong, fmt.Sprintf("column %q is missing, it would hold %s", c.Name, c.Kind))
		case !t.d.Fits(c.Kind, got):
			wrong = append(wrong, fmt.Sprintf("column %q is %s, which cannot hold %s", c.Name, got.Type, c.Kind))
		}
	}
	for name, c := range have {
		if !written[name] && !c.Nullable && !c.Default {
			wrong = append(wrong, fmt.Sprintf("column %q must not be null, has no default, and is not written", name))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	sort.Strings(wrong)
	return &sink.SetupError{Err: fmt.Errorf("table %q: %s", t.cfg.Table.Name, strings.Join(wrong, "; ")), Remedy: "change the table or the sink's columns"}
}

// tryRights runs what Write would run, on no row, and takes it back.
func (t *Target) tryRights(ctx context.Context, conn *sql.Conn) error {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return t.setup("begin", err)
	}
	defer func() { _ = tx.Rollback() }() // nothing was changed
	var statements []string
	nulls := strings.TrimSuffix(strings.Repeat("NULL, ", len(t.names)), ", ")
	statements = append(statements, "INSERT INTO "+t.table+" ("+strings.Join(t.names, ", ")+") SELECT "+nulls+" FROM (SELECT 1 AS one) AS single WHERE 1 = 0")
	if len(t.key) > 0 {
		statements = append(statements,
			"UPDATE "+t.table+" SET "+t.names[0]+" = "+t.names[0]+" WHERE 1 = 0",
			"DELETE FROM "+t.table+" WHERE 1 = 0")
	}
	if t.cfg.Class == sink.Ledger {
		statements = append(statements, "UPDATE "+t.progress+" SET commits = commits WHERE 1 = 0")
	}
	for _, s := range statements {
		if _, err := tx.ExecContext(ctx, s); err != nil {
			return t.setup("try the rights", err)
		}
	}
	return nil
}

// createProgress makes the progress table unless it can be read already: whoever may not create
// tables can have it made by somebody who may.
func (t *Target) createProgress(ctx context.Context, conn *sql.Conn) error {
	var n sql.NullInt64
	err := conn.QueryRowContext(ctx, "SELECT MAX(fence) FROM "+t.progress).Scan(&n)
	if err == nil || t.d.Classify(err) == FaultRights {
		return nil // tryRights says the rest
	}
	statement := t.d.CreateProgress(t.progress)
	if _, err := conn.ExecContext(ctx, statement); err != nil {
		if again := conn.QueryRowContext(ctx, "SELECT MAX(fence) FROM "+t.progress).Scan(&n); again == nil {
			return nil // another process made it meanwhile
		}
		setup := t.setup("create the progress table", err)
		if se := (*sink.SetupError)(nil); errors.As(setup, &se) {
			se.Remedy = "run: " + statement
		}
		return setup
	}
	return nil
}

// connect takes a connection and prepares its session.
func (t *Target) connect(ctx context.Context) (*sql.Conn, error) {
	conn, err := t.db.Conn(ctx)
	if err != nil {
		return nil, t.setup("connect", err)
	}
	for _, s := range t.d.Session {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			_ = conn.Close() // the first error counts
			return nil, t.setup(s, err)
		}
	}
	return conn, nil
}

// setup turns an error of anything but a batch into what it means.
func (t *Target) setup(what string, err error) error {
	wrapped := fmt.Errorf("%s: %s: %w", t.d.Name, what, err)
	switch t.d.Classify(err) {
	case FaultRow, FaultSetup:
		return &sink.SetupError{Err: wrapped, Remedy: "look at the address, the database's name, the table and its columns"}
	case FaultRights:
		rights := "INSERT, and with a key UPDATE, DELETE and SELECT, on " + t.cfg.Table.Name
		if t.cfg.Class == sink.Ledger {
			rights += "; INSERT, UPDATE and SELECT on " + t.cfg.Progress
		}
		return &sink.SetupError{Err: wrapped, Rights: true, Remedy: rights}
	case FaultReadOnly:
		return &sink.SetupError{Err: wrapped, Remedy: "this server only reads: connect to the primary"}
	}
	return wrapped
}

// Claim bumps the fence of the partition and reads where its rows end.
func (t *Target) Claim(ctx context.Context, p sink.Partition) (sink.Writer, error) {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	conn, err := t.connect(ctx)
	if err != nil {
		return nil, err
	}
	w := &writer{t: t, conn: conn, p: p}
	if w.scales, err = t.known(ctx, conn); err != nil {
		_ = conn.Close() // the first error counts
		return nil, err
	}
	if t.cfg.Class != sink.Ledger {
		return w, nil
	}
	if err := w.claim(ctx); err != nil {
		_ = conn.Close() // the claim's error counts
		return nil, err
	}
	return w, nil
}

// otherTopic: the progress belongs to a topic of the same name that is no longer there.
func (t *Target) otherTopic(p sink.Partition, known string, next record.Offset) error {
	return &sink.SetupError{
		Err: fmt.Errorf("%s: the progress of sink %q, partition %d, is offset %d of topic %s with ID %s; the topic now has ID %s: it was deleted and made anew",
			t.d.Name, p.Sink, p.Partition, next, p.Topic, known, p.TopicID),
		Remedy: "if the rows of the old topic may stay, delete this sink's rows from " + t.cfg.Progress,
	}
}
