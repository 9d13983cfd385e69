// Package sqldb writes sinks into SQL databases over database/sql: the claim, the batch in one
// transaction and the checks before it. What differs between databases is a Dialect; the packages
// postgres, mysql and sqlite have one each.
package sqldb
