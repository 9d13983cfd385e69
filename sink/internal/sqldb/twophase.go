package sqldb

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
)

// preparer is a table in a database that prepares transactions.
type preparer struct{ *Target }

// Capabilities implements sink.Preparer: a dialect that has TwoPhase has them all, on servers that pass Check.
func (p *preparer) Capabilities() sink.Capabilities {
	return sink.Capabilities{Transactions: true, Open: true, Pending: true, Recoverable: true, Repeatable: true}
}

// Check implements sink.Preparer. It prepares an empty transaction, breaks the connection, finds the transaction by another one and ends it.
func (p *preparer) Check(ctx context.Context) error {
	if err := p.Target.Check(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	// No partition of any sink is called so: what a check leaves behind when it dies is ended by the next one.
	probe := sink.Partition{Sink: "\x00check", TopicPartition: record.TopicPartition{Topic: p.d.Name}, TopicID: "check"}
	first := &participant{writer: writer{t: p.Target, p: probe}}
	defer first.drop()
	if err := first.connect(ctx); err != nil {
		return err
	}
	if err := p.d.TwoPhase.Settings(ctx, first.conn); err != nil {
		var setup *sink.SetupError
		if errors.As(err, &setup) {
			return err
		}
		return p.setup("look at the server's settings", err)
	}
	probe.TopicID += rand.Text() // processes that check at the same time leave each other's alone
	id := sink.NewTransactionID(probe, 0, time.Now())
	if err := first.Begin(ctx, id); err != nil {
		return err
	}
	if err := first.Prepare(ctx); err != nil {
		return err
	}
	first.drop()
	second := &participant{writer: writer{t: p.Target, p: probe}}
	defer second.drop()
	listed, err := second.Recover(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(listed, id) {
		return &sink.SetupError{
			Err:    fmt.Errorf("%s: a transaction that was prepared was lost with its connection: class %s cannot be kept", p.d.Name, sink.TwoPhase),
			Remedy: "use a newer server, connect without a pooler in between, or use class ledger",
		}
	}
	if err := second.end(ctx, id); err != nil {
		return err
	}
	for _, old := range listed {
		if old != id && old.OfSink(probe.Sink) && time.Since(old.Time()) > p.cfg.Timeout {
			_ = second.Abort(ctx, old) // another user's is not ended by this one, and in nobody's way
		}
	}
	return nil
}

// end aborts a transaction whose connection the server has yet to give up.
func (p *participant) end(ctx context.Context, id sink.TransactionID) error {
	for {
		err := p.Abort(ctx, id)
		if !errors.Is(err, sink.ErrHeld) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Participant implements sink.Preparer.
func (p *preparer) Participant(_ context.Context, part sink.Partition) (sink.Participant, error) {
	return &participant{writer: writer{t: p.Target, p: part}}, nil
}

// participant is one partition's connection. It is taken anew after a pause: servers give up connections that are idle.
type participant struct {
	writer
	open     sink.TransactionID // on this connection
	prepared bool               // the open one is
	used     time.Time
}

// keepIdle is how long a connection is kept without use, below what Session lets the server wait.
const keepIdle = 10 * time.Second

// connect makes sure that there is a connection.
func (p *participant) connect(ctx context.Context) error {
	if p.conn != nil && p.open == "" && time.Since(p.used) > keepIdle {
		p.drop()
	}
	p.used = time.Now()
	if p.conn != nil {
		return nil
	}
	conn, err := p.t.connect(ctx)
	if err != nil {
		return err
	}
	p.conn = conn
	for _, s := range p.t.d.TwoPhase.Session {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			p.drop()
			return p.t.setup(s, err)
		}
	}
	if p.scales, err = p.t.known(ctx, conn); err != nil {
		p.drop()
		return err
	}
	return nil
}

// drop breaks the connection, so that it is in no pool with whatever is open on it.
func (p *participant) drop() {
	if p.conn == nil {
		return
	}
	_ = p.conn.Raw(func(any) error { return driver.ErrBadConn }) // the pool closes it for that
	_ = p.conn.Close()                                           // it is gone
	p.conn, p.open, p.prepared = nil, "", false
}

// run executes statements, and breaks the connection if one fails.
func (p *participant) run(ctx context.Context, statements []string) error {
	ctx, cancel := context.WithTimeout(ctx, p.t.cfg.Timeout)
	defer cancel()
	if err := p.connect(ctx); err != nil {
		return err
	}
	for _, s := range statements {
		if _, err := p.conn.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// Begin implements sink.Participant.
func (p *participant) Begin(ctx context.Context, id sink.TransactionID) error {
	if p.open != "" {
		return fmt.Errorf("%s: transaction %s is not ended yet", p.t.d.Name, p.open)
	}
	if err := p.run(ctx, p.t.d.TwoPhase.Begin(id)); err != nil {
		p.drop()
		return p.t.setup("begin", err)
	}
	p.open = id
	return nil
}

// Write implements sink.Participant.
func (p *participant) Write(ctx context.Context, rows []sink.Row) error {
	if p.open == "" {
		return fmt.Errorf("%s: no transaction is open", p.t.d.Name)
	}
	for i, r := range rows {
		if err := p.check(r); err != nil {
			return &sink.RowError{Index: i, Err: err}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, p.t.cfg.Timeout)
	defer cancel()
	err := p.rows(ctx, p.conn, rows)
	if err != nil && p.t.d.Classify(err) == FaultLocked {
		return fmt.Errorf("%w; what holds the rows may be a transaction that is prepared and not ended: streamd doctor names those of pipelines", err)
	}
	return err
}

// Prepare implements sink.Participant.
func (p *participant) Prepare(ctx context.Context) error {
	if p.open == "" {
		return fmt.Errorf("%s: no transaction is open", p.t.d.Name)
	}
	err := p.run(ctx, p.t.d.TwoPhase.Prepare(p.open))
	switch {
	case err == nil:
		p.prepared = true
		return nil
	case p.t.d.Classify(err) == FaultRow: // a constraint that is checked at the end: the server has taken the transaction back
		return &sink.RowError{Index: -1, Err: fmt.Errorf("%s: prepare: %w", p.t.d.Name, err)}
	}
	p.drop()
	if remedy := p.t.d.TwoPhase.Refused(err); remedy != "" {
		return fmt.Errorf("%s: prepare: %w (%s)", p.t.d.Name, err, remedy)
	}
	return p.t.setup("prepare", err) // if the server said nothing, whether it happened is not known
}

// Commit implements sink.Participant.
func (p *participant) Commit(ctx context.Context, id sink.TransactionID) error {
	return p.finish(ctx, id, "commit", p.t.d.TwoPhase.Commit(id))
}

// Abort implements sink.Participant.
func (p *participant) Abort(ctx context.Context, id sink.TransactionID) error {
	if p.open == id && !p.prepared {
		if err := p.run(ctx, p.t.d.TwoPhase.Rollback(id)); err == nil {
			p.open = ""
			return nil
		}
		p.drop() // takes it back, unless a Prepare without an answer has come through
	}
	return p.finish(ctx, id, "abort", p.t.d.TwoPhase.Abort(id))
}

// finish ends a prepared transaction. That it is unknown says that it was ended; but some servers do not know on one connection what belongs to another.
func (p *participant) finish(ctx context.Context, id sink.TransactionID, what, statement string) error {
	if p.open != "" && p.open != id {
		p.drop()
	}
	err := p.run(ctx, []string{statement})
	if err == nil {
		p.open, p.prepared = "", false
		return nil
	}
	if !p.t.d.TwoPhase.Unknown(err) {
		p.drop()
		if p.t.d.Classify(err) == FaultRights {
			return &sink.SetupError{
				Err: fmt.Errorf("%s: %s %s: %w", p.t.d.Name, what, id, err), Rights: true,
				Remedy: "a prepared transaction is ended by the user who prepared it, or by a superuser: use that one, or end it by hand",
			}
		}
		return fmt.Errorf("%s: %s %s: %w", p.t.d.Name, what, id, err)
	}
	listed, err := p.Recover(ctx)
	if err != nil {
		return err
	}
	if slices.Contains(listed, id) {
		return fmt.Errorf("%s: %s %s: %w", p.t.d.Name, what, id, sink.ErrHeld)
	}
	p.open, p.prepared = "", false
	return nil
}

// Recover implements sink.Participant.
func (p *participant) Recover(ctx context.Context) ([]sink.TransactionID, error) {
	ctx, cancel := context.WithTimeout(ctx, p.t.cfg.Timeout)
	defer cancel()
	if err := p.connect(ctx); err != nil {
		return nil, err
	}
	listed, err := p.t.d.TwoPhase.List(ctx, p.conn)
	if err != nil {
		p.drop()
		if remedy := p.t.d.TwoPhase.Refused(err); remedy != "" {
			return nil, &sink.SetupError{Err: fmt.Errorf("%s: list what is prepared: %w", p.t.d.Name, err), Rights: true, Remedy: remedy}
		}
		return nil, p.t.setup("list what is prepared", err)
	}
	return listed, nil
}

// Close implements sink.Participant.
func (p *participant) Close() error {
	if p.conn == nil {
		return nil
	}
	if p.open != "" {
		p.drop()
		return nil
	}
	return p.writer.Close()
}

// ScanTransactions reads the IDs of streamd's transactions off a query that returns the name of each.
func ScanTransactions(rows *sql.Rows, err error) ([]sink.TransactionID, error) {
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err says what went wrong
	var all []sink.TransactionID
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		if id, ok := sink.ParseTransactionID(name); ok {
			all = append(all, id)
		}
	}
	return all, rows.Err()
}
