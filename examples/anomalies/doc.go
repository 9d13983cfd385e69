// Command anomalies finds users who click too often: three clicks or more within a minute.
//
//	go run ./cmd/streamd dev --topic user-clicks:4 --topic anomalous-users:4
//	go run ./examples/anomalies localhost:9092
package main
