// Command bills is the Go form of postgres.yaml beside it: bills from Kafka, each counted once however often it is
// sent, become rows of a ledger in PostgreSQL. The README has the commands.
package main
