// Package kafka is internal/broker on real Kafka. It is the only importer of sarama.
//
// # What is sarama's and what is ours
//
// sarama brings connections (SASL, ApiVersions, its request and response types), metadata and the
// consumer group protocol, which is used for membership only. Ours are the transactional producer,
// the reader and the bytes of the two requests that carry records, Produce and Fetch. The reasons:
//
//   - A transaction needs a strict order of requests, an explicit deadline and an outcome with three
//     values. A request that got no answer must never be sent again without a new producer epoch;
//     sarama's producers re-send on their own.
//   - A reader must know its position behind markers and aborted records, seek, and be paused for
//     one partition without blocking the others.
//   - sarama cannot decode a batch that compresses to fewer bytes than it has records, nor bound
//     what a batch inflates to (both are pinned by a test), and it allocates per record and header.
//
// # Files
//
//	config.go secure.go          settings, TLS and SASL; secrets are read again for each connection
//	conn.go                      one connection, and the link that finds and re-opens one
//	classify.go                  every Kafka error code: what it means and what is done
//	wire.go batch.go codec.go    bytes: primitives, record batches out, compression
//	decode.go                    bytes: fetch answers and record batches in
//	producer.go commit.go produce.go   the transaction
//	reader.go fetch.go           reading
//	group.go assign.go           membership and the assignment of partitions
//	cluster.go topics.go offsets.go explain.go   metadata, administration, error texts
//
// # Concurrency
//
// A Cluster is safe for concurrent use. A producer or a reader belongs to one goroutine (but for
// Reader.Wake). Each producer and each reader has its own connections: sarama holds a connection's
// lock from a request to its answer, so that a long poll would delay whatever queues behind it.
//
// # What it does not do
//
// It never commits offsets outside a transaction, never resets a position, never creates a topic
// that was not asked for, and speaks transaction protocol version 1 (Kafka 2.5 and later).
package kafka
