// Package changelog knows what stands in a task's changelog topics and what it means: the bytes of ID
// blocks and commit records, how to follow them, and what to do when they, the group's offsets and the
// local store do not say the same. It is pure: it reads and writes no topic, has no goroutine
// and no clock.
//
// # What a task writes
//
// A task with state has one partition of an ID log (cleanup.policy=delete) and one of each of its
// stores' topics (compacted). One transaction of the task is
//
//	store topics   key and value of each changed key as they are; a deleted key is a tombstone
//	ID log         the blocks of new IDs, and last of all the commit record
//
// Kafka makes the transaction whole or absent. The commit record holds the task's [record.CommitPoint];
// sequence and incarnation of it stand also in the committed offsets' metadata ([Metadata]), so
// that each can be checked against the others ([Compare]).
//
// # Following
//
// A [Follower] turns fetched records into batches for the local store. IDs of a transaction are
// handed over with their commit record, never before. State is handed over as it comes: the values
// are absolute, so a local store that is ahead of its position is healed by reading on.
//
//	f, err := changelog.NewFollower(logs, local)
//	for !f.Done() {
//		err = f.Add(tp, fetched.Records, fetched.Next)
//		for step, ok := f.Take(); ok; step, ok = f.Take() {
//			err = store.Apply(&step)
//		}
//	}
//
// # What it does not do
//
// It does not ask the cluster in the right order (committed offsets first, then high watermarks,
// then read: see the processor), and does not touch the local store.
//
// docs/format.md describes every byte.
package changelog
