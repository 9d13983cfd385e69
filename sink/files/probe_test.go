package files

import (
	"errors"
	"testing"

	"github.com/streamd/streamd/sink"
)

// A sink may be called as it likes: its folder is never taken for what a check has left.
func TestSinkWhoseNameIsThatOfAProbe(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"probe-1/bills", "probe;1/bills"} {
		made, err := Open(Config{Directory: dir, Table: table()})
		if err != nil {
			t.Fatal(err)
		}
		p := partition()
		p.Sink = name
		w, err := made.Claim(t.Context(), p)
		if name != "probe-1/bills" {
			if !errors.As(err, new(*sink.SetupError)) {
				t.Errorf("the directory of another sink is not refused: %v", err)
			}
			continue
		}
		if err == nil {
			err = errors.Join(w.Close(), made.Check(t.Context()))
		}
		if err != nil {
			t.Errorf("sink %q, at its second start: %v", name, err)
		}
	}
}
