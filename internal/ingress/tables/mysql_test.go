package tables

import (
	"database/sql"
	"testing"
	"time"
)

// A number counts when it has been seen for settle, less the time in which the server did not answer: its transactions may have stood still, too.
func TestNumbersSettle(t *testing.T) {
	m := &mysqlRows{base: base{cfg: Config{Settle: 30 * time.Second}}}
	start := time.Unix(1_700_000_000, 0)
	for i, c := range []struct {
		began, answered int // seconds
		high, want      int64
	}{
		{0, 0, 6, 0},
		{10, 10, 9, 0},
		{29, 29, 0, 0},
		{29, 60, 0, 0}, // it stood still
		{61, 61, 0, 6},
		{70, 70, 0, 6},
		{71, 71, 0, 9},
	} {
		m.settle(sql.NullInt64{Int64: c.high, Valid: c.high > 0}, start.Add(time.Duration(c.began)*time.Second), start.Add(time.Duration(c.answered)*time.Second))
		if m.decided != c.want {
			t.Errorf("answer %d: decided up to %d, want %d", i+1, m.decided, c.want)
		}
	}
}
