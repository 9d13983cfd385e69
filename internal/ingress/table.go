package ingress

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/record"
)

// Rows is a table of a database from which rows are read by a column of numbers that rise. It belongs to one goroutine, but for Close. Errors
// are a *SetupError for what a restart cannot mend; any other one is temporary, and what was begun has ended with it.
type Rows interface {
	// Check looks whether the table can be read as a source.
	Check(ctx context.Context) error
	// Begin makes the caller the one who reads, until End. False: somebody else is.
	Begin(ctx context.Context) (bool, error)
	// Decided says how far the table may be read, where after was read already. It does not wait.
	Decided(ctx context.Context, after int64) (Decision, error)
	// Read hands over rows whose numbers are above after and at most upTo, by their numbers, until add says that it wants no more. more: there may be
	// others.
	Read(ctx context.Context, after, upTo int64, add func(Row) bool) (more bool, err error)
	// End lets another one read.
	End()
	// Close gives everything back.
	Close() error
}

// Decision is what is known of the numbers of a table.
type Decision struct {
	// UpTo is a number up to which all is decided: no row that is not there now will ever have one that is as low.
	UpTo int64
	// Given is the highest number that was given out. It never goes back but in a table that began anew.
	Given int64
	// Undecided says what rows above UpTo wait for; empty: there are none.
	Undecided string
}

// Row is one row of a table, as JSON.
type Row struct {
	Number int64
	Value  []byte
}

// SetupError is what no restart mends: a table, a column, a right that is missing. Err says what, and Remedy what to do.
type SetupError struct {
	Err    error
	Remedy string
	// Rights says that credentials or rights are the matter.
	Rights bool
}

// Error returns "cause (remedy)".
func (e *SetupError) Error() string { return "ingress: " + e.Err.Error() + " (" + e.Remedy + ")" }

// Unwrap returns the cause.
func (e *SetupError) Unwrap() error { return e.Err }

// TableConfig says how a table is read. Zero values stand for the defaults.
type TableConfig struct {
	// Table is its name, as the file has it.
	Table string
	// Column holds the numbers: what was read by one says nothing of another one.
	Column string
	// KeyField is the field of a row that becomes the record's key; empty: the ID decides on the partition.
	KeyField string
	// After is the number behind which a table is read that was never read before.
	After int64
	// Positions is the topic of positions; it must be there.
	Positions string
	// Poll is how long to wait when nothing is new; default 500 ms.
	Poll time.Duration
}

const (
	// undecidedPoll is how often it is asked whether writers have ended.
	undecidedPoll = 50 * time.Millisecond
	// undecidedFor is how long rows may wait before the log says for what.
	undecidedFor = 30 * time.Second
	// tableRetry is the first pause after the database failed, doubled up to tablePatience, and standBy how often one who does not read asks
	// whether he may.
	tableRetry, tablePatience = 250 * time.Millisecond, 10 * time.Second
	standBy                   = 2 * time.Second
)

// Table appends the rows of a table. It belongs to one goroutine.
//
// Two things keep two processes apart. A lock of the database's session lets one of them read, so that the others need not try. What makes it safe is
// the transactional ID: whoever begins to read takes it away from the one before, whose position can then not be committed any more.
type Table struct {
	cfg    TableConfig
	rows   Rows
	newLog func() *Log
	now    func() time.Time
	pause  func(context.Context, time.Duration) error

	log  *Log // of this tenure, or of the last one; before the first it has no connection
	pos  *positions
	at   place // committed
	any  bool  // something was read, now or earlier
	read int64 // up to which nothing is left to read: at, or beyond it where there are no rows
	upTo int64 // up to which all is decided
	said bool  // that rows wait
	wait time.Time
	idle bool   // that another one reads was logged
	why  string // the failure that was logged last
}

// NewTable makes a reader of a table. newLog makes a Log of the source, with the same transactional ID each time.
func NewTable(cfg TableConfig, rows Rows, newLog func() *Log) *Table {
	if cfg.Poll <= 0 {
		cfg.Poll = 500 * time.Millisecond
	}
	return &Table{cfg: cfg, rows: rows, newLog: newLog, now: time.Now, pause: sleep, log: newLog()}
}

// Run reads until ctx ends, and returns nil then. Errors: *SetupError, and those of [Log] that no retry heals. That another process took over, or that
// the database is away, is none: it stands by, or tries again.
func (x *Table) Run(ctx context.Context) error {
	defer func() { _ = x.rows.Close() }() // it only read
	for failures := 0; ; {
		err := x.tenure(ctx)
		if ctx.Err() != nil {
			return nil // a transaction that nobody knows the end of is found out at the next start
		}
		wait := standBy
		var setup *SetupError
		switch {
		case errors.As(err, &setup):
			return err
		case errors.Is(err, broker.ErrFenced):
			x.log.cfg.Logger.Info("ingress: another process has taken over the table", "source", x.log.cfg.Source, "table", x.cfg.Table)
			failures = 0
		case err != nil && stops(err):
			return err
		case err != nil:
			if x.why == "" { // it was read since
				failures = 0
			}
			x.failed(err)
			wait = min(tablePatience, tableRetry<<min(failures, 10))
			failures++
		default: // another one reads: the database answers
			failures, x.why = 0, ""
			x.log.cfg.Watch.waits("another process reads the table")
			x.log.cfg.Metrics.TableFailing(x.log.cfg.Source, false)
		}
		if x.pause(ctx, wait) != nil {
			return nil
		}
	}
}

// failed says once for each reason why the table is not read.
func (x *Table) failed(err error) {
	x.log.cfg.Watch.failed(err)
	x.log.cfg.Metrics.TableFailing(x.log.cfg.Source, true)
	if why := err.Error(); why != x.why {
		x.why = why
		x.log.cfg.Logger.Warn("ingress: the table cannot be read; trying again", "source", x.log.cfg.Source, "table", x.cfg.Table, "err", err)
	}
}

// tenure reads for as long as this process may. It returns nil at once if another one reads.
func (x *Table) tenure(ctx context.Context) error {
	if err := x.begin(ctx); err != nil || x.pos == nil {
		return err
	}
	defer x.end()
	for {
		more, err := x.step(ctx)
		if err != nil {
			return err
		}
		wait := x.cfg.Poll
		switch {
		case more:
			continue
		case !x.wait.IsZero():
			wait = min(wait, undecidedPoll)
		}
		if err := x.pause(ctx, wait); err != nil {
			return err
		}
	}
}

// begin takes the table, and then the place of whoever read it before; with pos nil, somebody else reads.
func (x *Table) begin(ctx context.Context) error {
	mine, err := x.rows.Begin(ctx)
	if err == nil && !mine && !x.idle {
		x.idle = true
		x.log.cfg.Logger.Info("ingress: another process reads the table; standing by", "source", x.log.cfg.Source, "table", x.cfg.Table)
	}
	if err != nil || !mine {
		return err
	}
	x.idle = false
	x.log = x.newLog() // what is fenced stays so
	// Whoever may read has that ID, and no other source does, though another one's topic of positions may have the same name.
	pos := &positions{cluster: x.log.cfg.Cluster, topic: x.cfg.Positions, owner: x.log.cfg.TransactionalID}
	err = x.log.init(ctx)
	var places map[string]place
	if err == nil {
		places, err = pos.read(ctx)
	}
	fresh := place{ID: x.cfg.Table, Path: placeName(x.cfg.Column + " of " + x.cfg.Table), Offset: x.cfg.After}
	at, known := places[fresh.ID]
	switch {
	case err != nil:
	case !known:
		at = fresh
	case at.Path != fresh.Path:
		err = &SetupError{
			Err:    fmt.Errorf("the source was read by column %s up to %d, which says nothing of column %s", at.Path, at.Offset, fresh.Path),
			Remedy: "set column to what it was; or give the source another name and another topic, and the dedup step behind it too",
		}
	}
	if err != nil {
		x.rows.End()
		x.log.Close()
		return err
	}
	x.log.cfg.Watch.row(at.Offset, time.Time{})
	x.pos, x.at, x.any, x.read, x.upTo, x.wait, x.said = pos, at, known, at.Offset, at.Offset, time.Time{}, false
	x.log.cfg.Logger.Info("ingress: reading the table", "source", x.log.cfg.Source, "table", x.cfg.Table, "after", at.Offset)
	return nil
}

func (x *Table) end() {
	x.pos = nil
	x.rows.End()
	x.log.Close()
	x.log.cfg.Metrics.Table(x.log.cfg.Source, false, 0, 0)
}

// step appends what is decided and was not read. more: there is more to read at once.
func (x *Table) step(ctx context.Context) (more bool, err error) {
	d, err := x.rows.Decided(ctx, x.read)
	if err != nil {
		return false, err
	}
	switch {
	case d.Given < x.read && x.any:
		return false, x.begunAnew(d.Given)
	case d.UpTo > max(x.read, d.Given):
		return false, &SetupError{
			Err:    fmt.Errorf("table %q has a row of number %d, and has given out %d only: lower numbers that it gives out later would be passed over", x.cfg.Table, d.UpTo, d.Given),
			Remedy: fmt.Sprintf("set its numbers to go on behind %d, and let no program write its own", d.UpTo),
		}
	}
	x.upTo = max(x.upTo, d.UpTo)
	x.undecided(d)
	x.log.cfg.Watch.undecided(d.Undecided)
	x.log.cfg.Watch.waits("")
	if x.why != "" {
		x.why = ""
		x.log.cfg.Logger.Info("ingress: the table is read again", "source", x.log.cfg.Source, "table", x.cfg.Table)
	}
	x.log.cfg.Metrics.TableFailing(x.log.cfg.Source, false)
	if x.upTo > x.read {
		if more, err = x.append(ctx); err != nil {
			return false, err
		}
	}
	waited := time.Duration(0)
	if !x.wait.IsZero() {
		waited = x.now().Sub(x.wait)
	}
	x.log.cfg.Metrics.Table(x.log.cfg.Source, true, max(0, d.Given-x.read), waited)
	return more, nil
}

// begunAnew: rows of numbers that were read once already would never be read. Nobody can tell them from those.
func (x *Table) begunAnew(given int64) error {
	return &SetupError{
		Err: fmt.Errorf("table %q was read up to number %d, but has given out %d only: it was truncated, restored or made anew, and new rows would be taken for those that were read", x.cfg.Table, x.read, given),
		Remedy: fmt.Sprintf("set its numbers to go on behind %d; or, to read it from its start, give the source another name and another topic, and the dedup step behind it too",
			x.read),
	}
}

// undecided tells when rows wait for long.
func (x *Table) undecided(d Decision) {
	switch {
	case d.Undecided == "":
		if x.said {
			x.log.cfg.Logger.Info("ingress: rows of the table wait no more", "source", x.log.cfg.Source, "table", x.cfg.Table)
		}
		x.wait, x.said = time.Time{}, false
	case x.wait.IsZero():
		x.wait = x.now()
	case !x.said && x.now().Sub(x.wait) >= undecidedFor:
		x.said = true
		x.log.cfg.Logger.Warn("ingress: rows of the table wait to be read", "source", x.log.cfg.Source, "table", x.cfg.Table, "for", d.Undecided)
	}
}

// append reads what is decided, as much as goes into one transaction, and commits it with the position behind it.
func (x *Table) append(ctx context.Context) (more bool, err error) {
	var outs []broker.Output
	var bad error
	at, bytes, now := x.at, 0, x.now()
	more, err = x.rows.Read(ctx, x.read, x.upTo, func(r Row) bool {
		out, size, err := x.output(r, now)
		if err != nil {
			bad = err
			return false
		}
		outs, bytes, at.Offset = append(outs, out), bytes+size, r.Number
		return bytes < stepBytes && len(outs) < maxBatchRecords
	})
	if err != nil {
		return false, err
	}
	if len(outs) == 0 {
		if bad == nil {
			x.read = x.upTo
		}
		return false, bad
	}
	out, err := x.pos.output(at, now)
	if err != nil {
		return false, fmt.Errorf("ingress: position of %q: %w", x.cfg.Table, err)
	}
	fault.Point("ingress.taken")
	err = x.log.commit(ctx, append(outs, out), func(ctx context.Context) (bool, error) {
		places, err := x.pos.read(ctx)
		return places[at.ID] == at, err
	})
	var large *broker.TooLargeError
	if errors.As(err, &large) {
		return false, &SetupError{Err: fmt.Errorf("table %q: rows up to %d: %w", x.cfg.Table, at.Offset, err), Remedy: "raise max.message.bytes of the topic, or leave out columns"}
	}
	if err != nil {
		return false, err
	}
	x.at, x.any, x.read = at, true, at.Offset
	x.log.cfg.Watch.row(at.Offset, now)
	if !more && bad == nil {
		x.read = x.upTo
	}
	return more || bad != nil, nil // a bad row is met again, and alone then
}

// output is the record of a row. Its ID stays the same if the position is lost, and is not that of a row in another database.
func (x *Table) output(r Row, now time.Time) (broker.Output, int, error) {
	rec := Record{ID: record.ID(fmt.Sprintf("%s/%s/%d", x.log.cfg.Source, x.cfg.Table, r.Number)), Value: r.Value, Timestamp: now}
	_, key, err := fields{key: x.cfg.KeyField}.find(r.Value)
	if err != nil {
		return broker.Output{}, 0, &SetupError{Err: fmt.Errorf("row %d of table %q: %w", r.Number, x.cfg.Table, err), Remedy: "use another column as key_field"}
	}
	rec.Key = key
	size := rec.size()
	if most := x.log.MaxRecord(); size > most {
		return broker.Output{}, 0, &SetupError{
			Err:    fmt.Errorf("row %d of table %q has %d bytes, and the topic takes %d", r.Number, x.cfg.Table, size, most),
			Remedy: "raise max.message.bytes of the topic, or leave out columns",
		}
	}
	return x.log.output(&rec), size, nil
}
