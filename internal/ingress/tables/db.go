package tables

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/ingress"
)

// Config says which table is read.
type Config struct {
	// DSN is how to reach the database, as the sinks have it.
	DSN string
	// Table is NAME or SCHEMA.NAME.
	Table string
	// Column holds the numbers.
	Column string
	// Columns are those that a record has; empty: all.
	Columns []string
	// Key is the field that becomes the record's key; empty: none.
	Key string
	// Lock is a name that all who read for the same source share.
	Lock string
	// Settle is how long a number must have been seen before all lower ones are taken for decided; MySQL only, default DefaultSettle.
	Settle time.Duration
	// Timeout bounds each question; default 1 minute.
	Timeout time.Duration
}

// DefaultSettle is longer than a transaction should ever take from its INSERT to its COMMIT.
const DefaultSettle = 30 * time.Second

// readRows bounds one answer.
const readRows = 2000

// Validate says what is wrong with the names.
func (c Config) Validate() error {
	names := append([]string{c.Column}, c.Columns...)
	switch {
	case c.Table == "" || strings.Count(c.Table, ".") > 1 || strings.HasPrefix(c.Table, ".") || strings.HasSuffix(c.Table, "."):
		return fmt.Errorf("table %q: want NAME or SCHEMA.NAME", c.Table)
	}
	for _, n := range append(names, c.Table) {
		if n == "" || strings.ContainsRune(n, 0) {
			return fmt.Errorf("the name %q of a column or table is none", n)
		}
	}
	return nil
}

// schema returns the schema, empty for the connection's own, and the table.
func (c Config) schema() (schema, name string) {
	if s, n, ok := strings.Cut(c.Table, "."); ok {
		return s, n
	}
	return "", c.Table
}

// lockName is short enough for every database.
func (c Config) lockName() (name string, number int64) {
	sum := sha256.Sum256([]byte(c.Lock))
	return fmt.Sprintf("streamd-%x", sum[:16]), int64(binary.BigEndian.Uint64(sum[:8]))
}

// meaning is what an error of the database comes to.
type meaning uint8

const (
	temporary meaning = iota
	setup
	rights
	login
)

// base is what the databases have in common: one connection, on which the lock is held.
type base struct {
	cfg     Config
	name    string // of the database, in messages
	db      *sql.DB
	conn    *sql.Conn // nil: not begun
	session []string  // of each connection
	means   func(error) meaning
	grant   string                                       // what the reader needs
	lookAt  func(context.Context, *sql.Conn) error       // holds the table to what a position needs
	lock    func(context.Context) (mine bool, err error) // tries to take the lock on conn, and begins anew
	limit   int                                          // of the next answer; 0: readRows
}

// rows is how many rows the next answer may have.
func (b *base) rows() int {
	if b.limit == 0 {
		return readRows
	}
	return b.limit
}

// answered says whether there may be more behind an answer of which n rows were taken. full: no more of them were wanted; the others of the answer came for nothing.
func (b *base) answered(n int, full bool) (more bool) {
	asked := b.rows()
	switch {
	case full:
		b.limit = n
	case n == asked:
		b.limit = min(readRows, 2*asked)
	}
	return full || n == asked
}

// Check implements ingress.Rows.
func (b *base) Check(ctx context.Context) error {
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // what matters has been said
	return b.lookAt(ctx, conn)
}

// Begin implements ingress.Rows.
func (b *base) Begin(ctx context.Context) (mine bool, err error) {
	b.End()
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	if b.conn, err = b.connect(ctx); err != nil {
		return false, err
	}
	mine, err = b.lock(ctx)
	if err == nil && mine {
		// As it is now: it may be another table than it was.
		err = b.lookAt(ctx, b.conn)
	}
	if err != nil || !mine {
		b.End()
	}
	if err != nil {
		return false, b.failed("take the lock", err)
	}
	return mine, nil
}

// bounded bounds one question.
func (b *base) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout := b.cfg.Timeout
	if timeout <= 0 {
		timeout = time.Minute
	}
	return context.WithTimeout(ctx, timeout)
}

// connect opens a connection of its own.
func (b *base) connect(ctx context.Context) (*sql.Conn, error) {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return nil, b.failed("connect", err)
	}
	for _, s := range b.session {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			_ = conn.Close() // the first error counts
			return nil, b.failed(s, err)
		}
	}
	return conn, nil
}

// failed says what an error means.
func (b *base) failed(what string, err error) error {
	var known *ingress.SetupError
	if errors.As(err, &known) {
		return err
	}
	wrapped := fmt.Errorf("%s: %s: %w", b.name, what, err)
	switch b.means(err) {
	case setup:
		return &ingress.SetupError{Err: wrapped, Remedy: "look at the address, the database's name, the table and its columns"}
	case rights:
		return &ingress.SetupError{Err: wrapped, Rights: true, Remedy: b.grant}
	case login:
		return &ingress.SetupError{Err: wrapped, Rights: true, Remedy: "look at the user and the password of the DSN, and at whom the server lets in from here"}
	}
	return wrapped
}

// keyed holds the fields of a record to its key: without it all records would have none, and nobody would notice.
func (b *base) keyed(fields []string) error {
	if b.cfg.Key == "" || slices.Contains(fields, b.cfg.Key) {
		return nil
	}
	return b.refuse("name one that is there, in its own letters: "+strings.Join(fields, ", "), "the rows of table %q have no field %q, the key_field", b.cfg.Table, b.cfg.Key)
}

// refuse says why a table is no source.
func (b *base) refuse(remedy, format string, args ...any) error {
	return &ingress.SetupError{Err: fmt.Errorf(b.name+": "+format, args...), Remedy: remedy}
}

// End lets go of the lock with its connection.
func (b *base) End() {
	if b.conn == nil {
		return
	}
	// The lock ends with the session, so that the connection must not go back to the pool.
	_ = b.conn.Raw(func(any) error { return errEnd })
	_ = b.conn.Close()
	b.conn = nil
}

// Close gives everything back.
func (b *base) Close() error {
	b.End()
	return b.db.Close()
}

// errEnd is of a connection that is to be closed, or that is.
var errEnd = fmt.Errorf("the connection has ended: %w", driver.ErrBadConn)

// sortedSome are a few names for a message.
func sortedSome(set map[string]bool) []string {
	names := slices.Sorted(maps.Keys(set))
	if len(names) > 5 {
		names = append(names[:5:5], fmt.Sprintf("%d more", len(set)-5))
	}
	return names
}
