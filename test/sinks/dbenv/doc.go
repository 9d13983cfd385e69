// Package dbenv starts real database servers of Debian's packages in a temporary directory, listening on
// 127.0.0.1, and can kill them: PostgreSQL, MariaDB, Redis. A missing program is an error that says how to
// get it.
package dbenv
