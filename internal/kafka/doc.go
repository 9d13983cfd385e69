// Package kafka is internal/broker on real Kafka. It is the only importer of sarama.
//
// # What is sarama's and what is ours
//
// sarama brings connections (SASL, ApiVersions), its request and response types, and the consumer
// group protocol, which is used for membership only. Ours are the transactional producer, the reader
// and the bytes of the two requests that carry records, Produce and Fetch. The reasons:
//
//   - A transaction needs a strict order of requests, an explicit deadline and an outcome with three
//     values. A request that got no answer must never be sent again without a new producer epoch;
//     sarama's producers re-send on their own.
//   - A reader must know its position behind markers and aborted records, seek, and be paused for
//     one partition without blocking the others.
//   - sarama cannot decode a batch that compresses to fewer bytes than it has records (pinned by
//     TestSaramaCannotDecodeDenseBatches), can bound what a batch inflates to only by a global
//     variable, and allocates for each record and each header.
//
// # The rule
//
// A request without an answer (I/O error, deadline, end of stream after the first byte was written)
// is never sent again: it may still act, on whatever is open when it arrives. Its connection is
// dropped, the transaction ends, and Init asks for a new epoch, with which the broker refuses the late
// request. Only answered errors are retried. [lostError] marks the first kind, [classify] decides
// about the second. TestHazardWithoutANewEpoch shows what happens otherwise.
//
// # Files
//
//	config.go secure.go sock_*.go    settings, TLS and SASL; secrets are read again for each connection
//	conn.go                      one connection, and the link that finds and re-opens one
//	classify.go                  every Kafka error code: what it means and what is done
//	wire.go batch.go codec.go    bytes: primitives, record batches out, compression
//	decode.go                    bytes: fetch answers and record batches in
//	producer.go commit.go produce.go   the transaction
//	reader.go fetch.go           reading
//	group.go assign.go           membership and the assignment of partitions
//	cluster.go topics.go offsets.go explain.go   metadata, administration, error texts
//	faultnet/                    a dialer for tests that loses, delays and refuses requests
//
// # Concurrency
//
// A Cluster is safe for concurrent use. A producer or a reader belongs to one goroutine (but for
// Reader.Wake). Each producer and each reader has its own connections: sarama holds a connection's
// lock from a request to its answer, so that a long poll would delay whatever queues behind it.
// Lock order: membership.calls before membership.mu; reader.mu and Cluster.mu are leaves, but that
// reader.mu may be held when Cluster.mu is taken.
//
// # Non-obvious
//
//   - Our frames and sarama's requests share a connection. It works since sarama reads only while one
//     of its own requests waits. Our correlation IDs are negative.
//   - TLS lies below sarama, in our dialer, or our frames would go around it.
//   - The SASL session is renewed by sarama, in front of one of its own requests: on connections that
//     carry our frames a small one is sent now and then (conn.beforeFrame).
//   - The claims of the consumer group are led by a broker that is never opened (memberClient): sarama
//     fetches nothing, and a committed offset that is out of range does not end the session.
//   - During a rebalance the handler hears of the new generation before it is asked to give partitions
//     back: it still owns them, and may finish their work under the new generation.
//   - DUPLICATE_SEQUENCE_NUMBER means success only because of the rule above.
//   - An answered error of EndTxn leaves the outcome unknown as well, but for four codes with which the
//     coordinator says that it has not looked at the request.
//   - Fetch asks for less per partition the more partitions there are, and for twice the sum in total:
//     kfake forgets the aborted transactions of a partition that it cuts off because of the total.
//
// # What it does not do
//
// It never commits offsets outside a transaction, never resets a position, never creates a topic
// that was not asked for, and speaks transaction protocol version 1 (Kafka 2.5 and later).
package kafka
