package tables

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"io"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/ingress"
)

// slowDB answers each question after a time of a clock.
type slowDB struct {
	now  *time.Time
	take func(query string) time.Duration
}

func (d slowDB) Connect(context.Context) (driver.Conn, error) { return slowConn{d}, nil }
func (d slowDB) Driver() driver.Driver                        { return nil }

type slowConn struct{ slowDB }

func (slowConn) Prepare(string) (driver.Stmt, error) { return nil, driver.ErrSkip }
func (slowConn) Close() error                        { return nil }
func (slowConn) Begin() (driver.Tx, error)           { return nil, driver.ErrSkip }

func (c slowConn) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	*c.now = c.now.Add(c.take(query))
	switch query[:10] {
	case "SELECT MAX":
		return &oneRow{row: []driver.Value{int64(6), false}}, nil
	case "SELECT aut":
		return &oneRow{row: []driver.Value{int64(7)}}, nil
	}
	return &oneRow{row: []driver.Value{int64(6), "x"}, took: func() { *c.now = c.now.Add(c.take("row")) }}, nil
}

type oneRow struct {
	row  []driver.Value
	done bool
	took func()
}

func (r *oneRow) Columns() []string { return make([]string, len(r.row)) }
func (*oneRow) Close() error        { return nil }
func (r *oneRow) Next(to []driver.Value) error {
	if r.done {
		return io.EOF
	}
	if r.done = true; r.took != nil {
		r.took()
	}
	copy(to, r.row)
	return nil
}

// Whichever question a server leaves unanswered while it stands still: that time does not settle a number.
func TestTimeOfNoAnswerDoesNotSettle(t *testing.T) {
	for _, stands := range []string{"SELECT MAX", "SELECT aut", "SELECT row", "row"} {
		now := time.Unix(1_700_000_000, 0)
		still := time.Duration(0)
		db := sql.OpenDB(slowDB{&now, func(query string) (d time.Duration) {
			if query[:min(10, len(query))] == stands {
				d, still = still, 0
			}
			return d
		}})
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m := &mysqlRows{now: func() time.Time { return now }, query: "SELECT row", base: base{cfg: Config{Table: "t", Column: "id", Settle: 30 * time.Second}, means: mysqlMeans, db: db, conn: conn}}
		ask := func(want int64) {
			t.Helper()
			d, err := m.Decided(t.Context(), 0)
			if err != nil || d.UpTo != want {
				t.Errorf("%s: %+v, %v; want %d", stands, d, err, want)
			}
		}
		ask(0)
		now = now.Add(29 * time.Second)
		still = 31 * time.Second
		ask(0)
		if _, err := m.Read(t.Context(), 0, 6, func(ingress.Row) bool { return true }); err != nil {
			t.Fatal(err)
		}
		ask(0)
		now = now.Add(time.Second)
		ask(6)
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}
