// Package dedup answers one question for one operator of one task: has a record with this ID been
// processed within the retention? It is the only importer of the Bloom filter. It has no goroutine
// and reads no clock: stream time is told to it, so that a replay decides the same.
//
// # Three tiers
//
// IDs live in generations, each of which covers at most 1/8 of the retention and is forgotten as a
// whole. [Index.Check] asks, in this order,
//
//	pending            the IDs of the open transaction                 exact, in memory
//	open, closed       the newest generation; those not yet sealed     exact, in memory
//	sealed             older generations: a Bloom filter in memory, and behind a "maybe" one read of
//	                   about 256 entries from the [Log]
//
// Every tier takes its bits from the one hash that the ID has anyway. A filter only ever saves
// a read: it is never the answer (a filter alone as the truth drops unique records).
//
// # One transaction
//
//	Check*  ->  Prepare  ->  (the caller commits, then applies to the Log)  ->  Commit
//	                                          \ not committed               ->  Abort
//
// A new ID is pending from the Check that called it new. [Index.Mark] and [Index.Rollback] undo the
// records after a savepoint, [Index.Abort] the whole transaction; nothing pending survives it, and the
// stream time goes back to the one of the last commit, so that the same records get the same
// answers again.
//
// # Generations
//
// A generation ends when it has lasted 1/8 of the retention in stream time, or when it holds more
// than both 1/8 of [Config.ExpectedIDs] and a quarter of the other live generations together. The
// second rule bounds the share of IDs that is held exactly to a fifth (which bounds the memory, see
// below), and lets generations grow with a load that was underestimated: 8 of them at the expected
// number of IDs, about 12 at 3 times as many, 18 at 12 times. Numbers are given in Prepare from what is committed:
// a replay gives the same.
//
// A generation is forgotten when its newest block is older than the retention: an ID is remembered for at
// least the retention and at most 9/8 of it, plus the stream time of one transaction. Seeing a
// duplicate does not extend that. The newest generation is kept however old it is, since it holds
// the number to count on from; once too old its IDs count as forgotten all the same.
//
// # Memory
//
// Exact sets take 16 bytes (24 with payload hashes) plus 5 to 8 an ID, filters 1.8 at the default
// rate. While a generation is sealed its IDs are held once more, sorted.
//
// # Invariants
//
//   - INV-3: an ID for which Check said New is pending or recorded until it is rolled back or expires.
//   - INV-4: Open returns only when every live generation is answered for: by its filter, verified
//     by a checksum or rebuilt from the sealed runs, or by an exact set rebuilt from its blocks.
//
// # What it does not do
//
// It does not decide what happens to a duplicate, a conflict or a late record, and stores nothing
// itself. IDs are not shared between operators, nor between partitions.
package dedup
