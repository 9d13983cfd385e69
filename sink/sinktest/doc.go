// Package sinktest is the suite that every target of package sink passes, with its real server: values of
// every kind, fencing, lost answers of COMMIT both ways, a server that is killed, a zombie in the middle of
// a transaction, tables and rights that do not fit. A target of one's own is put through it by a Harness.
package sinktest
