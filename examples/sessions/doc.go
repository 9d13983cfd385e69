// Command sessions counts what a user does in one visit: a session ends when nothing comes for half an hour.
//
//	go run ./cmd/streamd dev --topic clicks:4 --topic visits:4
//	go run ./examples/sessions localhost:9092
package main
