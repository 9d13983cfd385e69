//go:build sinks

package sinks

import (
	"testing"
	"time"

	"github.com/streamd/streamd/internal/ingress"
	source "github.com/streamd/streamd/internal/ingress/tables"
)

// TestTableSourceGiven: a sequence that was told to go on behind a number has given out all below it, before it gives out the next one.
func TestTableSourceGiven(t *testing.T) {
	for _, k := range sourceKinds() {
		t.Run(k.name, func(t *testing.T) {
			server, db := started(t, k.server, k.driver, k.admin)
			do := func(s string) {
				t.Helper()
				if _, err := db.ExecContext(t.Context(), s); err != nil {
					t.Fatal(err)
				}
			}
			do("CREATE TABLE t (id " + k.id + ", a int)")
			rows, err := k.open(source.Config{DSN: server.DSN(database), Table: "t", Column: "id", Lock: "test", Settle: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			if mine, err := rows.Begin(t.Context()); err != nil || !mine {
				t.Fatal(mine, err)
			}
			given := func(want int64) {
				t.Helper()
				var d ingress.Decision
				var err error
				if d, err = rows.Decided(t.Context(), 0); err != nil || d.Given != want {
					t.Errorf("%+v, %v; want %d given", d, err, want)
				}
			}
			given(0)
			do("INSERT INTO t (a) VALUES (1)")
			given(1)
			if k.prepares {
				do("ALTER TABLE t ALTER id RESTART WITH 501")
			} else {
				do("ALTER TABLE t AUTO_INCREMENT = 501")
			}
			given(500)
			do("INSERT INTO t (a) VALUES (1)")
			given(501)
		})
	}
}
