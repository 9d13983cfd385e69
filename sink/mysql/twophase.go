package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/sink/internal/sqldb"
)

// xid is an ID as XA statements name it. It needs no quoting: see sink.TransactionID.
func xid(id sink.TransactionID) string {
	global, branch, _ := strings.Cut(string(id), ":")
	return "'" + global + "','" + branch + "'"
}

// twoPhase prepares with XA.
func twoPhase() *sqldb.TwoPhase {
	return &sqldb.TwoPhase{
		// What is prepared on a connection can be ended on no other one while that lives: a process that stands still loses it soon.
		Session:  []string{"SET SESSION wait_timeout = 20"},
		Begin:    func(id sink.TransactionID) []string { return []string{"XA START " + xid(id)} },
		Prepare:  func(id sink.TransactionID) []string { return []string{"XA END " + xid(id), "XA PREPARE " + xid(id)} },
		Rollback: func(id sink.TransactionID) []string { return []string{"XA END " + xid(id), "XA ROLLBACK " + xid(id)} },
		Commit:   func(id sink.TransactionID) string { return "XA COMMIT " + xid(id) },
		Abort:    func(id sink.TransactionID) string { return "XA ROLLBACK " + xid(id) },
		List:     list,
		// 1402: one that had changed nothing, which MariaDB takes back when its connection ends.
		Unknown: func(err error) bool { return hasNumber(err, 1397, 1402) },
		Settings: func(ctx context.Context, db sqldb.Querier) error {
			var flush int
			if err := db.QueryRowContext(ctx, "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit").Scan(&flush); err != nil || flush == 1 {
				return err
			}
			return &sink.SetupError{
				Err:    fmt.Errorf("mysql: innodb_flush_log_at_trx_commit is %d: the server may lose what it has prepared, which class %s does not bear", flush, sink.TwoPhase),
				Remedy: "set it to 1, or use class ledger",
			}
		},
		Refused: func(err error) string {
			if hasNumber(err, 1227, 1401) {
				return "XA RECOVER needs a right of its own: GRANT XA_RECOVER_ADMIN ON *.* TO the user; or use class ledger"
			}
			return ""
		},
	}
}

// list reads XA RECOVER: the two parts of each name stand in one column, without a mark between them.
func list(ctx context.Context, db sqldb.Querier) (all []sink.TransactionID, err error) {
	rows, err := db.QueryContext(ctx, "XA RECOVER")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err says what went wrong
	for rows.Next() {
		var format, global, branch int
		var data string
		if err := rows.Scan(&format, &global, &branch, &data); err != nil {
			return nil, err
		}
		if format != 1 || global+branch != len(data) {
			continue // not made by XA START as above
		}
		if id, ok := sink.ParseTransactionID(data[:global] + ":" + data[global:]); ok {
			all = append(all, id)
		}
	}
	return all, rows.Err()
}

func hasNumber(err error, numbers ...uint16) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && slices.Contains(numbers, e.Number)
}
