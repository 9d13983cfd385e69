// Command embed shows streamd inside a Go program: bills that may come twice become totals per account.
//
//	go run ./cmd/streamd dev --topic bills:4 --topic bill-totals:4     # or a cluster of your own
//	go run ./examples/embed localhost:9092
//
// It dedups by the bill's ID, moves each bill to the partition of its account through a repartition
// topic, and writes each account's new total. Any number of these programs share the work, one of them
// may be killed at any time, and each bill counts once.
package main
