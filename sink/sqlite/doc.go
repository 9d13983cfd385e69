// Package sqlite is the SQLite target of a sink, in pure Go: a table in a file that is written exactly once, with
// the offset and a fence in the same transaction.
package sqlite
