// Command effects charges each order once, at a bank that takes an idempotency key, and says what came of it.
//
//	go run ./cmd/streamd dev --topic orders:4 --topic receipts:4
//	go run ./examples/effects localhost:9092 https://bank.example/charge
package main
