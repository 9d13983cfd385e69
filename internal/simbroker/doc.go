// Package simbroker is a Kafka cluster as a value: a deterministic, in-memory model behind
// internal/broker, for simulations and tests. It has no goroutine, no timer and no randomness of its
// own. What a run does is a function of the calls, of the [Fault] hook and of the virtual clock, so a
// seed replays it.
//
// # Parts
//
//   - [Broker] is the cluster: topics and their logs with offsets, control markers and transactions,
//     the transaction coordinator (protocols V1 and V2), the group coordinator with __consumer_offsets. Its
//     methods are what a simulation does to a cluster: Advance the clock, ReleaseMarkers, ElectLeader,
//     Truncate, DeleteTopic, Compact, ...
//   - [Client] is one process's connection: a broker.Cluster. Its producer and reader follow the same
//     rules as internal/kafka. A request without an answer is never sent again, Init comes first.
//   - [Group] is a consumer group whose membership the simulation drives.
//
// # Time
//
// A call returns at once. Where a real client waits (a backoff, an empty poll) the virtual clock moves
// on, and with it whatever waited for it: markers, transaction timeouts.
//
// # Faults, interleaving, crashes
//
// Every request passes two hooks before it is handled. [Client.Yield] lets a harness run somebody else
// in between: with coroutines (iter.Pull), several owners of one task are interleaved between any two
// requests, and a paused one is a zombie. [Fault] decides what becomes of the request: handled,
// refused with an error code, lost, answered into the void, held and delivered late, or the end of the
// process. A process ends by a panic with [Crash], the only panic here: it unwinds the caller's stack
// as a kill does (no code after the request runs), and the harness, nobody else, recovers it.
//
// # What is modelled, and what not
//
// Modelled, each with its test: commit markers that reach each partition at its own time, the last
// stable offset, fencing by producer epoch and by generation, sequence numbers, KIP-890's check that a
// partition belongs to the transaction, pending offsets and RequireStable, late requests (accepted
// while the epoch is the same, refused after Init), leader epochs, retention, truncation, compaction,
// topics made again under another ID, transactional IDs and offsets that expire.
//
// Not modelled: replicas and ISR (Truncate is the outcome of an unclean election), quotas, sizes on
// the wire, JoinGroup and SyncGroup as requests. Readers get a transaction's status from the log
// itself, not as a list of aborted transactions: how a client decodes that list is for internal/kafka
// to prove.
package simbroker
