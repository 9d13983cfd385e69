package simbroker

import (
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// Entry is one offset of a log, for checkers.
type Entry struct {
	broker.Record
	Status   Status
	Control  bool // a marker: no record
	Producer int64
}

// Log returns everything that stands in a partition, as it is now.
func (b *Broker) Log(tp record.TopicPartition) []Entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.log(tp)
	if l == nil {
		return nil
	}
	var out []Entry
	for i := range l.batches {
		bt := &l.batches[i]
		e := Entry{Status: Committed, Control: bt.control}
		if bt.txn != nil {
			e.Status, e.Producer = bt.txn.status, bt.txn.pid
		}
		if bt.control {
			e.Offset = bt.base
			out = append(out, e)
		}
		for k := range bt.records {
			if e.Record = bt.records[k]; e.Offset >= l.start {
				out = append(out, e)
			}
		}
	}
	return out
}

// Committed returns a partition's committed records in order.
func (b *Broker) Committed(tp record.TopicPartition) []broker.Record {
	var out []broker.Record
	for _, e := range b.Log(tp) {
		if !e.Control && e.Status == Committed {
			out = append(out, e.Record)
		}
	}
	return out
}

// Offsets are a partition's log start, last stable offset and end. All are -1 if it does not exist.
func (b *Broker) Offsets(tp record.TopicPartition) (start, stable, end record.Offset) {
	start, stable, end = -1, -1, -1
	b.withLog(tp, func(l *partitionLog) { start, stable, end = l.start, l.stable(), l.end })
	return start, stable, end
}

// Position is a group's committed offset as it is now, whatever is pending.
func (b *Broker) Position(group string, tp record.TopicPartition) broker.CommittedOffset {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c, ok := b.offsets.committed[offsetKey{group, tp}]; ok {
		return c.CommittedOffset
	}
	return broker.CommittedOffset{Next: record.NoOffset, LeaderEpoch: -1}
}

// Undecided returns the transactional IDs with a transaction that is open or whose markers are not all written, sorted.
func (b *Broker) Undecided() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for _, id := range sortedKeys(b.txns) {
		if t := b.txns[id]; t.state == txnOngoing || t.deciding() {
			out = append(out, id)
		}
	}
	return out
}

// Pending says whether the group has offsets of an undecided transaction.
func (b *Broker) Pending(group string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.offsets.pending {
		if b.offsets.pending[i].group == group {
			return true
		}
	}
	return false
}
