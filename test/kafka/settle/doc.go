// Package settle kills the commands that change a cluster's records or transactions by hand, dlq retry, dlq drop and inspect transactions --abort,
// at each step and at any moment, on a real Kafka: run again, each completes what the killed one has begun, and nothing is
// lost or done twice.
//
//	go test -tags kafka ./test/kafka/settle
package settle
