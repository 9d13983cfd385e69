// Package sink is the contract between streamd and a place outside of Kafka that results are written
// to, so that "exactly once" reaches the table and does not end at the topic before it.
//
// A sink never runs inside the transaction that computes: results go to an internal topic, in that
// transaction, and a task of its own reads the topic with read_committed and writes to the target.
// What the target can do decides what is promised; Class has the kinds.
//
//	Ledger      rows, the next offset and a fence in one transaction of the target. The target is the
//	            authority for the offset: after any failure the owner reads it there.
//	TwoPhase    rows are prepared in the target, and committed when the group's offset names them. For
//	            targets without room for progress. To be chosen explicitly.
//	Idempotent  each write may be repeated without harm. The final state is exact.
//	Plain       rows may be written again after a failure. The name for what most sinks do.
//
// topology.Into and the pipeline file's "to" lead a stream into a target; package processor runs the tasks.
//
// A system without transactions becomes a target by one method: Applier, NewTarget. The topic in front of it is its write-ahead log. One that can prepare transactions
// becomes a target by six: Participant, NewTwoPhase.
//
// The packages below this one are the targets: postgres, mysql, sqlite, redis, files, webhook. sinktest is the suite that
// each of them passes with its real server, and that a target of one's own can be put through.
package sink
