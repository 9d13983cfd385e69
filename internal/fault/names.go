package fault

import "slices"

// Variable is the environment variable that names the table's file.
const Variable = "STREAMD_FAULT_TABLE"

// Names returns every point: of a start, of a transaction in its order, and of a rebalance. A test
// holds that each of them stands in the source.
func Names() []string {
	return []string{
		// A start: the local log is being opened, then the tasks are restored.
		"store.opening",
		"restore.batch", // before one batch of the changelog is applied
		"restore.done",  // a task runs

		// Records, before anything is sent.
		"read.batch",      // a fetched batch is queued
		"dedup.checked",   // an ID was looked up, the record did not go on yet
		"user.done",       // a record is through the whole chain
		"commit.prepared", // everything is encoded and buffered

		// The Kafka transaction.
		"partitions.added",
		"offsets.added",
		"produce",           // one Produce request was answered
		"flush.done",        // all of them were
		"offsets.committed", // TxnOffsetCommit was answered, EndTxn is not sent
		"endtxn.acked",

		// The local log, and memory.
		"commit.acked",
		"badger.before",
		"badger.mid", // the Badger transaction is filled and not committed; again for each part of a large batch
		"badger.after",
		"commit.applied",
		"filter.added", // the pending IDs are the index's
		"seal.mid",     // the runs and the filter of a generation are written, its marker is not

		// A failed commit, and a rebalance.
		"recover.start",
		"revoke.start", // the partitions are to be given up, the last commit comes
		"revoke.done",
	}
}

// GuaranteeNames returns the points of commits with a guarantee below exactly once. They are apart since an application has one
// guarantee.
func GuaranteeNames() []string {
	return []string{
		// At most once, before "commit.prepared".
		"claim.prepared", // the positions are buffered, nothing is sent
		"claim.acked",    // they are committed: what follows from the records is not
		"claim.applied",  // the local log knows of it
		// At least once, behind "commit.prepared".
		"ahead.prepared", // the outputs are buffered, nothing is sent
		"ahead.acked",    // they are acknowledged, the transaction does not exist yet
	}
}

// SinkNames returns the points of a task that writes to a target outside of Kafka. They are apart since not
// every application has one.
func SinkNames() []string {
	return []string{
		"sink.claimed",     // the partition is claimed, nothing was written
		"sink.write",       // a batch is about to be written
		"sink.prepared",    // of class two_phase: the target has prepared it, it is not decided
		"sink.decided",     // it is, and not committed
		"sink.written",     // the target has it
		"sink.dead_letter", // what the target refused is about to be set aside
	}
}

// IngressNames returns the points of a source that brings records into Kafka.
func IngressNames() []string {
	return []string{
		"ingress.taken",     // records were accepted, nothing was sent to Kafka
		"ingress.committed", // Kafka has them, nobody was told
		"ingress.answering", // the senders are about to be told
	}
}

// EffectNames returns the points of a call of another system, apart for the same reason.
func EffectNames() []string {
	return []string{
		"effect.call",   // the intent is committed, the function is about to be called
		"effect.called", // it has returned, nobody has its outcome
	}
}

// ResetNames returns the points of streamd reset, in its order.
func ResetNames() []string {
	return []string{
		"reset.fenced",  // a transactional ID has a new epoch
		"reset.offsets", // the group is at the new offsets
		"reset.planned", // the ID logs that are to be deleted are marked, which proves nothing yet
		"reset.deleted", // topics are deleted, first those of stores and repartitions, then those of IDs; brokers may have them still
		"reset.gone",    // no broker knows them any more
		"reset.marked",  // the marks say that it was a reset that has deleted them
		"reset.file",    // before a store or a file of the local directory is removed
	}
}

// all are the points of a table, in its order.
func all() []string {
	return slices.Concat(Names(), GuaranteeNames(), SinkNames(), IngressNames(), EffectNames(), ResetNames())
}
