// Package processor says how a topology runs: the App, its workers, and the Task that steps one
// partition of one sub-topology.
//
// A worker is one goroutine with one transactional producer that steps its tasks. A [Task] is pure:
// it does no I/O beyond its local store, has no goroutine and no clock, and returns what is to be
// published. So every point at which a process can die lies between two calls, and a simulation can
// step it.
//
// What it does not do: it never talks to a database, and it never retries a request by itself that
// got no answer (see internal/broker).
package processor
