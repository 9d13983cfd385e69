// Package tables reads new rows of tables in PostgreSQL, MySQL and MariaDB, by a column of numbers that rise, for [ingress.Table].
//
// Numbers are given out in one order and committed in another: a reader that goes on behind the highest number that it has seen loses the rows that commit
// later with lower ones. So a row is read only when it is decided that none with a lower number will come (docs/adr/0023):
//
//	postgres.go   waits for the transactions that hold the lock of a writer on the table, as CREATE INDEX CONCURRENTLY does
//	mysql.go      waits for a time within which every transaction has ended
//	db.go         what both have: the connection, the lock of the one who reads, errors
package tables
