// Package postgres is the PostgreSQL target of a sink: a table that is written exactly once, with the
// offset and a fence in the same transaction.
package postgres
