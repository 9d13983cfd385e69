// Command eventdedup passes on each event once, and writes its repeats into a topic of their own.
//
//	go run ./cmd/streamd dev --topic events:4 --topic events-once:4 --topic events-again:4
//	go run ./examples/eventdedup localhost:9092
package main
