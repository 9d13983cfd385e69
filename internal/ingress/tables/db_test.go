package tables

import "testing"

// Of rows that are large few are asked for: the others would come over the wire each time, to be thrown away.
func TestFewLargeRowsAreAskedFor(t *testing.T) {
	var b base
	for i, c := range []struct {
		read int
		full bool
		want int
	}{{8, true, 8}, {8, false, 16}, {16, false, 32}, {3, false, 32}, {1, true, 1}, {1, false, 2}} {
		if b.answered(c.read, c.full); b.rows() != c.want {
			t.Errorf("answer %d: %d rows are asked for next, want %d", i+1, b.rows(), c.want)
		}
	}
	for range 20 {
		b.answered(b.rows(), false)
	}
	if b.rows() != readRows {
		t.Errorf("%d rows are asked for in the end, want %d", b.rows(), readRows)
	}
}
