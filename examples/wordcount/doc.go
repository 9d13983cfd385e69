// Command wordcount counts words: Kafka Streams' first example.
//
//	go run ./cmd/streamd dev --topic streams-plaintext-input:4 --topic streams-wordcount-output:4
//	go run ./examples/wordcount localhost:9092
package main
