// Package ingress lets records in that come from elsewhere than Kafka: over HTTP, from files, from TCP connections. Each way in
// appends to a Kafka topic first, the ingress log, and tells the sender only then that it has the record. Pipelines read that
// topic as any other.
//
//	sender ---> HTTP | Files | Lines ---> Log: one Kafka transaction ---> topic ---> pipeline
//	       <--- acknowledged, when that is committed
//
// # Invariants
//
//   - Nothing is acknowledged that Kafka has not committed (TestNothingIsAcknowledgedBeforeItIsCommitted).
//   - A record has an ID that stays the same when it is sent or read again; it is in the header record-id, and decides on the partition
//     of a record without a key, so that copies meet in one partition.
//   - A request is one transaction, so that all of its records are there or none.
//   - The position in a file is a record in the same transaction as the lines before it: neither can be there without the other.
//   - What waits is bounded in bytes. Beyond the bound the sender is told to come again; nothing is dropped.
//
// # Parts
//
//	log.go      the transaction, and what is done when it fails
//	queue.go    senders that wait together for one transaction, and the bound
//	http.go body.go     the HTTP endpoint; what a body holds
//	files.go scan.go   files: what is new in them, and which is which
//	positions.go content.go   where a file was, and what it held there
//	lines.go    connections whose lines are records
//	serve.go    listening, and the end that finishes what was accepted
//
// # What it does not do
//
// It drops no repeats: a request that is sent again is appended again, under the same IDs, and a dedup step behind it drops them. It
// decodes no record beyond what it needs to find an ID and a key. It asks nobody who he is: whoever serves a [HTTP] puts a guard in front.
package ingress
