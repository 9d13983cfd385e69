package sqldb

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
)

// copyRows is from how many rows on an append is copied instead of inserted.
const copyRows = 16

// writer is one claim, with a connection of its own: what it holds in the database ends with it.
type writer struct {
	t    *Target
	conn *sql.Conn
	p    sink.Partition

	fence int64
	next  record.Offset
	known bool
	done  bool // failed: the connection's transaction may be in any state

	args   []any
	keys   map[string]bool
	key    []byte // of the row in hand
	scales []int
	// statement is the last INSERT, of so many rows: batches of a busy sink are mostly full ones.
	statement     string
	statementRows int
}

func (w *writer) Next() (record.Offset, bool) { return w.next, w.known }

func (w *writer) Close() error {
	if err := w.conn.Close(); err != nil && !errors.Is(err, sql.ErrConnDone) {
		return fmt.Errorf("%s: close: %w", w.t.d.Name, err)
	}
	return nil
}

// claim makes sure that there is a progress row, bumps its fence and reads it, in one transaction. A
// predecessor that is in the middle of a batch holds the row: then this waits for its end, up to the
// session's lock timeout. If its COMMIT comes first, what it wrote is read here; if this one comes
// first, its next UPDATE finds another fence.
func (w *writer) claim(ctx context.Context) error {
	t, ph := w.t, w.t.d.Placeholder
	if err := t.createProgress(ctx, w.conn); err != nil {
		return err
	}
	tx, err := w.conn.BeginTx(ctx, nil)
	if err != nil {
		return t.setup("begin", err)
	}
	defer func() { _ = tx.Rollback() }() // nothing to undo after a commit
	_, err = tx.ExecContext(ctx, "INSERT INTO "+t.progress+" (sink, part, topic_id, next_offset, fence, commits) VALUES ("+
		strings.Join([]string{ph(1), ph(2), ph(3), "-1", "0", "0"}, ", ")+") "+t.d.IgnoreConflict([]string{"sink", "part"}),
		w.p.Sink, int64(w.p.Partition), w.p.TopicID)
	if err != nil {
		return w.blocked(ctx, "claim", err)
	}
	_, err = tx.ExecContext(ctx, "UPDATE "+t.progress+" SET fence = fence + 1, updated_at = "+t.d.Clock+" WHERE sink = "+ph(1)+" AND part = "+ph(2),
		w.p.Sink, int64(w.p.Partition))
	if err != nil {
		return w.blocked(ctx, "claim", err)
	}
	var topicID string
	var next int64
	err = tx.QueryRowContext(ctx, "SELECT topic_id, next_offset, fence FROM "+t.progress+" WHERE sink = "+ph(1)+" AND part = "+ph(2),
		w.p.Sink, int64(w.p.Partition)).Scan(&topicID, &next, &w.fence)
	if err != nil {
		return t.setup("read the progress", err)
	}
	if topicID != w.p.TopicID {
		return t.otherTopic(w.p, topicID, record.Offset(next))
	}
	if err := tx.Commit(); err != nil {
		return t.setup("commit the claim", err)
	}
	w.next, w.known = record.Offset(next), next >= 0
	return nil
}

// blocked adds to a lock timeout who holds the lock.
func (w *writer) blocked(ctx context.Context, what string, err error) error {
	if w.t.d.Classify(err) != FaultLocked || w.t.d.Holders == nil {
		return w.t.setup(what, err)
	}
	who, failed := w.t.d.Holders(ctx, w.t.db, w.t.cfg.Progress)
	switch {
	case failed != nil:
		who = "who holds it could not be read: " + failed.Error()
	case who == "":
		who = "nobody holds it any more"
	}
	return fmt.Errorf("%s: %s: the row of sink %q, partition %d, is locked: %s: %w", w.t.d.Name, what, w.p.Sink, w.p.Partition, who, err)
}

// Write writes the batch, for a ledger in one transaction with the offset.
func (w *writer) Write(ctx context.Context, b sink.Batch) error {
	if w.done {
		return fmt.Errorf("%s: the writer has failed before: claim the partition again", w.t.d.Name)
	}
	for i, r := range b.Rows {
		if err := w.check(r); err != nil {
			return &sink.RowError{Index: i, Err: err}
		}
	}
	if w.t.cfg.Class == sink.Ledger && w.known && b.First < w.next {
		return fmt.Errorf("%s: a batch from offset %d, the target has all up to %d", w.t.d.Name, b.First, w.next)
	}
	err := w.write(ctx, b)
	if err == nil {
		w.next, w.known = b.Next, w.t.cfg.Class == sink.Ledger
		return nil
	}
	var row *sink.RowError
	if !errors.As(err, &row) { // what a row is to blame for was rolled back: the writer is as before
		w.done = true
	}
	return err
}

func (w *writer) write(ctx context.Context, b sink.Batch) error {
	t := w.t
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	tx, err := w.conn.BeginTx(ctx, nil)
	if err != nil {
		return t.setup("begin", err)
	}
	defer func() { _ = tx.Rollback() }() // nothing to undo after a commit
	if t.cfg.Class == sink.Ledger {
		if err := w.advance(ctx, tx, b); err != nil {
			return err
		}
	}
	if err := w.rows(ctx, tx, b.Rows); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		// Whether it happened is not known, also where the server answered an error: only the row tells.
		return fmt.Errorf("%s: commit: %w", t.d.Name, err)
	}
	return nil
}

// advance moves the progress, first: its row is the lock that keeps two owners apart. It moves from where this writer
// left it only: behind a proxy a connection may go on at a replica that has lost the last commits, and rows of a later
// batch would then cover a gap. commits makes it a change in any case, since MySQL counts only rows that did change.
func (w *writer) advance(ctx context.Context, tx *sql.Tx, b sink.Batch) error {
	t, ph := w.t, w.t.d.Placeholder
	before := int64(-1) // as a claim makes it
	if w.known {
		before = int64(w.next)
	}
	res, err := tx.ExecContext(ctx, "UPDATE "+t.progress+" SET next_offset = "+ph(1)+", commits = commits + 1, updated_at = "+t.d.Clock+
		" WHERE sink = "+ph(2)+" AND part = "+ph(3)+" AND fence = "+ph(4)+" AND next_offset = "+ph(5),
		int64(b.Next), w.p.Sink, int64(w.p.Partition), w.fence, before)
	if err != nil {
		return w.blocked(ctx, "move the offset", err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return t.setup("move the offset", err)
	}
	if n == 0 {
		return w.overtaken(ctx, tx, before)
	}
	return nil
}

// overtaken says why the progress is not what this writer left: another fence, or another offset.
func (w *writer) overtaken(ctx context.Context, tx *sql.Tx, before int64) error {
	t, ph := w.t, w.t.d.Placeholder
	var fence, next int64
	err := tx.QueryRowContext(ctx, "SELECT fence, next_offset FROM "+t.progress+" WHERE sink = "+ph(1)+" AND part = "+ph(2), w.p.Sink, int64(w.p.Partition)).Scan(&fence, &next)
	if err == nil && fence == w.fence && next != before {
		return fmt.Errorf("%s: sink %q, partition %d: the target has all up to offset %d, not %d as after the last batch: it has lost commits, or somebody else wrote", t.d.Name, w.p.Sink, w.p.Partition, next, before)
	}
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return t.setup("read the progress", err)
	}
	return fmt.Errorf("%s: sink %q, partition %d: %w", t.d.Name, w.p.Sink, w.p.Partition, sink.ErrFenced)
}

// check holds a row to the table, and its decimals to the digits that their columns keep.
func (w *writer) check(r sink.Row) error {
	if err := w.t.cfg.Table.Check(r); err != nil {
		return err
	}
	for i, scale := range w.scales {
		s, ok := r.Values[i].(string)
		if !ok || scale < 0 || r.Delete {
			continue
		}
		if _, fraction, _ := strings.Cut(s, "."); len(strings.TrimRight(fraction, "0")) > scale {
			return fmt.Errorf("column %q keeps %d digits behind the point, the value has %d", w.t.columns[i].Name, scale, len(fraction))
		}
	}
	return nil
}

// rows writes the rows in the order of the topic. With a key only the last change of each key is written: the
// others would not be seen by anybody, and one statement cannot change a row twice. Puts and deletes keep their order
// also among keys that differ here and are one for the database's collation.
func (w *writer) rows(ctx context.Context, tx Querier, rows []sink.Row) error {
	t := w.t
	if len(t.key) == 0 {
		return w.insertAll(ctx, tx, rows, indexes(len(rows)))
	}
	if w.keys == nil {
		w.keys = map[string]bool{}
	}
	clear(w.keys)
	var last []int
	for i := len(rows) - 1; i >= 0; i-- {
		w.key = appendKey(w.key[:0], t.keyAt, rows[i].Values)
		if !w.keys[string(w.key)] {
			w.keys[string(w.key)] = true
			last = append(last, i)
		}
	}
	slices.Reverse(last) // the order is that of the topic
	for len(last) > 0 {
		run := 1
		for run < len(last) && rows[last[run]].Delete == rows[last[0]].Delete {
			run++
		}
		some := w.insertAll
		if rows[last[0]].Delete {
			some = w.deleteAll
		}
		if err := some(ctx, tx, rows, last[:run]); err != nil {
			return err
		}
		last = last[run:]
	}
	return nil
}

// appendKey tells keys apart: each value with its length in front. Times are as far apart as they are in the database.
func appendKey(b []byte, at []int, values []any) []byte {
	for _, i := range at {
		from := len(b)
		b = append(b, 0, 0, 0, 0)
		switch v := values[i].(type) {
		case string:
			b = append(b, v...)
		case []byte:
			b = append(b, v...)
		case int64:
			b = strconv.AppendInt(b, v, 10)
		case float64:
			b = strconv.AppendFloat(b, v, 'g', -1, 64)
		case bool:
			b = strconv.AppendBool(b, v)
		case time.Time:
			v = v.Truncate(time.Microsecond)
			b = strconv.AppendInt(append(strconv.AppendInt(b, v.Unix(), 10), '.'), int64(v.Nanosecond()), 10)
		}
		binary.BigEndian.PutUint32(b[from:], uint32(len(b)-from))
	}
	return b
}

func indexes(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// width is the number of parameters of a row.
func (t *Target) width() int {
	if t.guarded() {
		return len(t.columns) + 1
	}
	return len(t.columns)
}

func (w *writer) insertAll(ctx context.Context, tx Querier, rows []sink.Row, which []int) error {
	t := w.t
	if t.d.Copy != nil && t.tail == "" && len(which) >= copyRows {
		return w.copyAll(ctx, rows, which)
	}
	most := max(1, t.d.MaxParameters/t.width())
	for len(which) > 0 {
		part := which[:min(most, len(which))]
		which = which[len(part):]
		w.args = w.args[:0]
		for _, i := range part {
			w.args = t.append(w.args, rows[i])
		}
		if _, err := tx.ExecContext(ctx, w.insert(len(part)), w.args...); err != nil {
			return w.refused(err, part)
		}
	}
	return nil
}

// insert is the statement for so many rows.
func (w *writer) insert(rows int) string {
	if rows != w.statementRows {
		w.statement, w.statementRows = w.t.insert+w.t.groups(rows)+" "+w.t.tail, rows
	}
	return w.statement
}

// groups is (?, ?), (?, ?), ...
func (t *Target) groups(rows int) string {
	var b strings.Builder
	n := 0
	for r := range rows {
		if r > 0 {
			b.WriteString(", ")
		}
		for c := range t.width() {
			n++
			if c == 0 {
				b.WriteString("(")
			} else {
				b.WriteString(", ")
			}
			b.WriteString(t.d.Placeholder(n))
		}
		b.WriteString(")")
	}
	return b.String()
}

func (t *Target) append(args []any, r sink.Row) []any {
	for i, v := range r.Values {
		args = append(args, t.arg(i, v))
	}
	if t.guarded() {
		args = append(args, int64(r.Offset))
	}
	return args
}

func (t *Target) arg(column int, v any) any {
	if v == nil {
		return nil
	}
	return t.d.Arg(t.columns[column].Kind, v)
}

func (w *writer) copyAll(ctx context.Context, rows []sink.Row, which []int) error {
	t := w.t
	values := make([][]any, 0, len(which))
	for _, i := range which {
		values = append(values, t.append(make([]any, 0, t.width()), rows[i]))
	}
	names := make([]string, len(t.columns))
	for i, c := range t.columns {
		names[i] = c.Name
	}
	if err := t.d.Copy(ctx, w.conn, t.cfg.Table.Name, names, values); err != nil {
		return w.refused(err, which)
	}
	return nil
}

func (w *writer) deleteAll(ctx context.Context, tx Querier, rows []sink.Row, which []int) error {
	t := w.t
	width := len(t.keyAt)
	if t.guarded() {
		width++
	}
	most := max(1, min(t.d.MaxParameters/width, 500)) // a condition each: parsers have limits too
	for len(which) > 0 {
		part := which[:min(most, len(which))]
		which = which[len(part):]
		w.args = w.args[:0]
		var b strings.Builder
		b.WriteString(t.deletes)
		for n, i := range part {
			if n > 0 {
				b.WriteString(" OR ")
			}
			b.WriteString("(")
			for k, at := range t.keyAt {
				if k > 0 {
					b.WriteString(" AND ")
				}
				w.args = append(w.args, t.arg(at, rows[i].Values[at]))
				b.WriteString(t.names[at] + " = " + t.d.Placeholder(len(w.args)))
			}
			if t.guarded() { // an older change must not take a newer row away
				w.args = append(w.args, int64(rows[i].Offset))
				b.WriteString(" AND " + t.d.Quote(t.cfg.Version) + " <= " + t.d.Placeholder(len(w.args)))
			}
			b.WriteString(")")
		}
		if _, err := tx.ExecContext(ctx, b.String(), w.args...); err != nil {
			return w.refused(err, part)
		}
	}
	return nil
}

// refused turns an error of a statement with rows into what it means. Where one row of many is to
// blame the index is left open: whoever wants to know halves the batch.
func (w *writer) refused(err error, part []int) error {
	t := w.t
	if t.d.Classify(err) == FaultRow {
		at := -1
		if len(part) == 1 {
			at = part[0]
		}
		return &sink.RowError{Index: at, Err: fmt.Errorf("%s: %w", t.d.Name, err)}
	}
	return t.setup("write rows", err)
}
