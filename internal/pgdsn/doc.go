// Package pgdsn reads the DSN of a PostgreSQL, and shows nothing of one that is wrong: where it would begin to be
// right, so where its password ends, is not known then.
package pgdsn
