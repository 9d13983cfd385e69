// Package mysql is the MySQL and MariaDB target of a sink: a table (InnoDB) that is written exactly once, with
// the offset and a fence in the same transaction.
package mysql
