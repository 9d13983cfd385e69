// Package ingress kills a streamd that takes records from HTTP clients and files, at each step of it, on a real Kafka: what was
// acknowledged stands once behind the dedup step, and each line of the files exactly once.
//
//	go test -tags kafka ./test/kafka/ingress
package ingress
