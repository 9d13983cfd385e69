// Package txlog is the local transaction log: the IDs that each operator has processed, the state
// stores and the position of every task of a process, in one Badger store on disk. It is the only
// importer of Badger.
//
// A task applies one [record.Batch] per committed transaction:
//
//	log, err := txlog.Open(txlog.Options{Dir: dir, App: "bills"})
//	task, err := log.Task("bills/3")
//	position, ok := task.Position()    // not ok: restore everything from the changelog
//	err = task.Apply(&batch)           // after the Kafka transaction is known to be committed
//	value, err := task.Get("totals", key)
//	err = log.Close()
//
// The local log is a copy. The truth stands in the changelog topics, so whatever is in doubt here
// is set aside and restored from there; it is never repaired by guessing.
//
// # Invariants
//
//   - What a task's store holds is at or ahead of its position, never behind (INV-2, INV-5): a batch
//     is one Badger transaction, or several with the position in the last one. Every value is
//     absolute, so that applying the same batch again changes nothing.
//   - A position is served only together with all IDs at or below it: every start counts the IDs
//     of each generation and the sequence of its blocks against the position record.
//   - A commit that was acknowledged survives kill -9. It survives a crash of the machine only with
//     [Options.Power]; without it, another boot ID makes the store doubtful.
//
// # What it does not do
//
// It decides nothing about IDs (package dedup does), knows nothing of Kafka, starts no goroutine
// of its own and asks no clock. It authenticates nothing: [Options.Key] keeps a thief from reading, and
// nobody from writing. It does not survive a full disk inside Badger, which dies by SIGBUS:
// it refuses to write while less than a floor is free.
//
// docs/format.md describes every byte.
package txlog
