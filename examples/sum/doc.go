// Command sum adds up all odd numbers.
//
//	go run ./cmd/streamd dev --topic numbers:4 --topic sum-of-odd-numbers:1
//	go run ./examples/sum localhost:9092
package main
