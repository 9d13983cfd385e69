// Package settle kills the commands that change a cluster by hand, dlq retry, dlq drop, inspect transactions --abort and reset,
// at each step and at any moment, on a real Kafka: run again, each completes what the killed one has begun, and nothing is
// lost or done twice.
//
//	go test -tags kafka ./test/kafka/settle
package settle
