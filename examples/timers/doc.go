// Command timers says which orders were not paid in time: half an hour after an order, unless its payment has come. When one is
// paid after that, it says so, too.
//
//	go run ./cmd/streamd dev --topic orders:4 --topic unpaid:4
//	go run ./examples/timers localhost:9092
package main
