package sqldb

import (
	"context"
	"database/sql"

	"github.com/streamd/streamd/sink"
)

// Fault is what an error of a database means for whoever wrote.
type Fault uint8

// The faults.
const (
	FaultTemporary Fault = iota // the outcome is not known, or trying again helps
	FaultRow                    // what a row holds
	FaultSetup                  // a table or a column that is not there or is another
	FaultRights                 // credentials or rights
	FaultReadOnly               // a replica, or a database in maintenance
	FaultLocked                 // waited for somebody's lock for too long
)

// Dialect is what one database does in its own way.
type Dialect struct {
	// Name as users write it.
	Name string
	// Quote makes an identifier of a name.
	Quote func(name string) string
	// Placeholder is the i-th parameter of a statement, from 1.
	Placeholder func(i int) string
	// MaxParameters of a statement.
	MaxParameters int
	// CreateProgress makes the progress table if it is not there.
	CreateProgress func(table string) string
	// InsertIgnore and the like: the end of an INSERT that does nothing where the key is there.
	IgnoreConflict func(key []string) string
	// Upsert is the end of an INSERT that replaces the columns where the key is there. With a version
	// column it replaces only what is older.
	Upsert func(key, columns []string, table, version string) string
	// Session is run on each new connection. Lock waits are bounded, and the server ends a transaction
	// that its client forgot: a paused process must not hold a partition for ever.
	Session []string
	// Classify says what an error means.
	Classify func(error) Fault
	// Columns returns the table's columns by name in lower case, empty if there is no such table.
	Columns func(ctx context.Context, db Querier, table string) (map[string]DBColumn, error)
	// Unique says whether the columns are those of a primary key or of a unique index.
	Unique func(ctx context.Context, db Querier, table string, columns []string) (bool, error)
	// Storage looks whether what the table is stored in takes a transaction back, for prepares also a prepared one: an error of kind
	// *sink.SetupError if it does not. May be nil: all of the database's tables do.
	Storage func(ctx context.Context, db Querier, table string, prepares bool) error
	// Fits says whether a column of this type of the database can hold a kind.
	Fits func(k sink.Kind, t DBColumn) bool
	// Holders describes who holds locks on the progress table, for the message. May be nil.
	Holders func(ctx context.Context, db Querier, table string) (string, error)
	// Arg makes of a checked value what the driver wants.
	Arg func(k sink.Kind, v any) any
	// Copy appends rows to a table faster than INSERT does, in the connection's open transaction. May be nil.
	Copy func(ctx context.Context, conn *sql.Conn, table string, columns []string, rows [][]any) error
	// Clock is an expression for the present time.
	Clock string
	// TwoPhase is how transactions are prepared; nil if they cannot be.
	TwoPhase *TwoPhase
}

// TwoPhase is how one database prepares transactions and ends them later.
type TwoPhase struct {
	// Session is run on each connection, behind the dialect's.
	Session []string
	// Begin opens a transaction, Prepare prepares it, Rollback gives it up before that.
	Begin, Prepare, Rollback func(id sink.TransactionID) []string
	// Commit and Abort end a prepared one.
	Commit, Abort func(id sink.TransactionID) string
	// List is all that is prepared in this database.
	List func(ctx context.Context, db Querier) ([]sink.TransactionID, error)
	// Unknown says that Commit or Abort did not find the transaction.
	Unknown func(error) bool
	// Settings looks whether the server is configured for it.
	Settings func(ctx context.Context, db Querier) error
	// Refused is the remedy for an error of Prepare or List, empty if it is another one.
	Refused func(error) string
}

// DBColumn is a column as the database describes it.
type DBColumn struct {
	Type     string // in lower case, without length
	Nullable bool
	// Default says that the column need not be written.
	Default bool
	// Scale is how many digits a decimal keeps behind the point; negative: all.
	Scale int
}

// Querier is a connection, a transaction or the pool.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}
