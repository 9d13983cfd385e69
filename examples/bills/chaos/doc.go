// Command chaos shows what the classes of sinks are worth. It sends bills with copies, conflicts, late and broken ones, runs two streamd
// on them, kills one of the two with kill -9 every few seconds, computes in the end from the topic what has to be in each
// table, and prints how many rows are wrong:
//
//	go run ./examples/bills/chaos                       30 seconds, a broker in memory, SQLite: nothing to install
//	go run ./examples/bills/chaos -for 10m
//	go run ./examples/bills/chaos -brokers localhost:9092 -database postgres -address postgres://localhost/bills
//
// Kill the broker and the database meanwhile, where they are servers: nothing changes. TestBillsChaos of test/sinks does so.
package main
