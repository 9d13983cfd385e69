// Package broker is what the runtime needs from a partitioned, replicated log with transactions:
// a few interfaces and value types, and nothing of any client library. It has two implementations:
// internal/kafka (real Kafka through sarama's requests) and internal/simbroker (a deterministic
// model for simulations). internal/brokertest is the suite that both must pass.
//
// # The transaction, seen from here
//
// A [Producer] buffers records. [Producer.Commit] sends them with the input offsets in one Kafka
// transaction and says how it ended:
//
//   - [Committed]: readers will see all of it. The buffer is cleared.
//   - [NotCommitted]: the transaction had not been asked to commit. Nothing of it will ever be
//     visible. The buffer is kept: after [Producer.Init] the same Commit may be called again.
//   - [Unknown]: it was asked to commit and no clear answer came. The buffer is worthless: the
//     caller drops what it did, calls Init (which returns when the old transaction is decided) and
//     reads the truth ([Cluster.CommittedOffsets], the commit record). It never guesses.
//
// After any error of Commit only Init, Reset and Close are allowed. A request that got no answer is
// never sent again: Init gives a new epoch, with which the broker refuses it should it arrive late.
//
// # Without a transaction
//
// A [Sender] is for records that may be repeated and must not wait. It has no transactional ID, so that nothing fences it, and
// it is the one exception from the rule about requests without an answer: its sequence numbers are never given to other
// records, so that a batch that is sent again is known by them. What it cannot send within its deadline it gives up under
// these numbers, and a late request may then still act.
//
// # Time and concurrency
//
// Calls block until done or until ctx ends. One goroutine uses a Producer, a Sender or a Reader at a
// time, except Reader.Wake. Cluster is safe for concurrent use. Bytes given to Producer.Add must stay
// unchanged until Commit has returned Committed or Reset was called, those given to Sender.Add until Send has returned nil or
// Reset was called. Bytes returned by a Reader
// belong to the caller and are never reused by the reader.
package broker
