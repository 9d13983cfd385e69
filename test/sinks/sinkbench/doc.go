// Command sinkbench compares the ledger sinks of PostgreSQL and MariaDB with plain batched inserts of the same rows: the same server
// in the same run, the two by turns. The plain ones are what a program would do that promises nothing: one INSERT of many rows for each
// batch, through the same driver, from as many connections as the sink has partitions. It prints a table for docs/benchmarks.md.
//
//	go run ./test/sinks/sinkbench
//	go run ./test/sinks/sinkbench -rows 1000000 -batch 5000 -repeat 5
package main
