package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/sink/internal/sqldb"
)

// prepareRemedy is what a server needs whose administrator has never prepared a transaction.
const prepareRemedy = "set max_prepared_transactions, 0 as it is shipped, to at least the number of partitions of all sinks of this class, and some more, and restart the server; or use class ledger"

// twoPhase prepares with PREPARE TRANSACTION. The IDs need no quoting: see sink.TransactionID.
func twoPhase() *sqldb.TwoPhase {
	return &sqldb.TwoPhase{
		Begin:    func(sink.TransactionID) []string { return []string{"BEGIN"} },
		Prepare:  func(id sink.TransactionID) []string { return []string{"PREPARE TRANSACTION '" + string(id) + "'"} },
		Rollback: func(sink.TransactionID) []string { return []string{"ROLLBACK"} },
		Commit:   func(id sink.TransactionID) string { return "COMMIT PREPARED '" + string(id) + "'" },
		Abort:    func(id sink.TransactionID) string { return "ROLLBACK PREPARED '" + string(id) + "'" },
		// One of another database cannot be ended in this one.
		List: func(ctx context.Context, db sqldb.Querier) ([]sink.TransactionID, error) {
			return sqldb.ScanTransactions(db.QueryContext(ctx, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared"))
		},
		Unknown: func(err error) bool { return hasCode(err, "42704") },
		Settings: func(ctx context.Context, db sqldb.Querier) error {
			var most int
			if err := db.QueryRowContext(ctx, "SELECT current_setting('max_prepared_transactions')::int").Scan(&most); err != nil || most > 0 {
				return err
			}
			return &sink.SetupError{Err: fmt.Errorf("postgres: max_prepared_transactions is 0: the server prepares no transactions, as class %s needs", sink.TwoPhase), Remedy: prepareRemedy}
		},
		Refused: func(err error) string {
			if hasCode(err, "53200") || hasCode(err, "55000") { // all are in use; switched off
				return prepareRemedy
			}
			return ""
		},
	}
}

func hasCode(err error, code string) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == code
}
