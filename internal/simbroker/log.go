package simbroker

import (
	"sort"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// Status is a transaction's fate as one partition's log knows it.
type Status uint8

// The statuses. A record outside any transaction is Committed.
const (
	Open Status = iota
	Committed
	Aborted
)

// span is one transaction in one partition: from its first record to its marker.
type span struct {
	pid    int64
	first  record.Offset
	marker record.Offset // record.NoOffset while open
	status Status
}

// logBatch covers the offsets [base, next). Compaction may take records out of it.
type logBatch struct {
	base, next record.Offset
	records    []broker.Record // in offset order; nil for a control batch
	txn        *span           // nil: not transactional
	control    bool            // a commit or abort marker, one offset
	bytes      int
}

// appended remembers a batch by its sequence numbers, to recognise one that is sent again.
type appended struct {
	first, last int32
	base        record.Offset
}

// producerState is what a partition's log knows of one producer ID.
type producerState struct {
	epoch  int16
	last   int32      // last sequence number, -1: none in this epoch
	recent []appended // the newest five, as in Kafka
	open   *span
}

const rememberedBatches = 5

// partitionLog is one partition of one topic.
type partitionLog struct {
	tp          record.TopicPartition
	batches     []logBatch
	start, end  record.Offset // Invariant: start <= batches[0].next, end == the last batch's next
	leaderEpoch int32
	producers   map[int64]*producerState
	open        []*span                     // in order of first. Invariant: open[i].status == Open
	met         map[record.Offset]time.Time // tombstones, since the first compaction that met them
}

func newPartitionLog(tp record.TopicPartition) *partitionLog {
	return &partitionLog{tp: tp, producers: map[int64]*producerState{}}
}

// stable is the last stable offset: behind it stands an undecided transaction.
func (l *partitionLog) stable() record.Offset {
	if len(l.open) > 0 {
		return max(l.start, min(l.open[0].first, l.end))
	}
	return l.end
}

// add appends records as one batch and gives them their offsets. The caller's slice is not kept.
func (l *partitionLog) add(recs []broker.Record, txn *span) record.Offset {
	b := logBatch{base: l.end, next: l.end + record.Offset(len(recs)), txn: txn, bytes: batchOverhead}
	b.records = make([]broker.Record, len(recs))
	copy(b.records, recs)
	for i := range b.records {
		b.records[i].Offset = l.end + record.Offset(i)
		b.bytes += b.records[i].Size() + recordOverhead
	}
	l.batches = append(l.batches, b)
	l.end = b.next
	return b.base
}

// produce is Produce for one batch of a producer. The transaction itself, if there is one, was verified.
func (l *partitionLog) produce(pid int64, epoch int16, seq int32, recs []broker.Record, transactional bool) (record.Offset, Code) {
	ps := l.producers[pid]
	fresh := ps == nil
	if fresh {
		ps = &producerState{epoch: epoch, last: -1}
	}
	if epoch < ps.epoch {
		return record.NoOffset, InvalidProducerEpoch
	}
	last := addSequence(seq, int32(len(recs)-1))
	if epoch == ps.epoch {
		for _, a := range ps.recent {
			// The same sequence numbers are the same batch, whatever is in it: this is why a late
			// Produce of an older transaction can take the place of a new one's.
			if a.first == seq && a.last == last {
				return a.base, None
			}
		}
	}
	if epoch > ps.epoch {
		if seq != 0 {
			return record.NoOffset, OutOfOrderSequence
		}
		ps.epoch, ps.last, ps.recent = epoch, -1, nil
	}
	// A producer that the log does not know may start anywhere (its records were deleted).
	if !fresh && seq != addSequence(ps.last, 1) {
		return record.NoOffset, OutOfOrderSequence
	}
	l.producers[pid] = ps
	if transactional && ps.open == nil {
		ps.open = &span{pid: pid, first: l.end, marker: record.NoOffset}
		l.open = append(l.open, ps.open)
	}
	base := l.add(recs, ps.open)
	ps.last = last
	if ps.recent = append(ps.recent, appended{seq, last, base}); len(ps.recent) > rememberedBatches {
		ps.recent = ps.recent[1:]
	}
	return base, None
}

// addSequence adds within the 31 bits of a sequence number: after 2^31-1 comes 0.
func addSequence(seq, n int32) int32 { return int32((int64(seq) + int64(n)) & 0x7fffffff) }

// mark writes a transaction marker. It is written even where the transaction wrote no record.
func (l *partitionLog) mark(pid int64, epoch int16, commit bool) {
	ps := l.producers[pid]
	if ps == nil {
		ps = &producerState{epoch: epoch, last: -1}
		l.producers[pid] = ps
	}
	if epoch > ps.epoch {
		ps.epoch, ps.last, ps.recent = epoch, -1, nil
	}
	txn := ps.open
	if txn != nil {
		txn.marker, txn.status = l.end, Aborted
		if commit {
			txn.status = Committed
		}
		l.dropOpen(txn)
		ps.open = nil
	}
	l.batches = append(l.batches, logBatch{base: l.end, next: l.end + 1, control: true, txn: txn, bytes: batchOverhead})
	l.end++
}

func (l *partitionLog) dropOpen(txn *span) {
	for i, s := range l.open {
		if s == txn {
			l.open = append(l.open[:i], l.open[i+1:]...)
			return
		}
	}
}

// fetch reads whole batches from an offset on, at least one, and about maxBytes.
func (l *partitionLog) fetch(from record.Offset, maxBytes int, iso broker.Isolation) ([]broker.Record, record.Offset, Code) {
	if from < l.start || from > l.end {
		return nil, from, OffsetOutOfRange
	}
	limit := l.end
	if iso == broker.ReadCommitted {
		limit = l.stable()
	}
	i := sort.Search(len(l.batches), func(i int) bool { return l.batches[i].next > from })
	var out []broker.Record
	bytes := 0
	for ; i < len(l.batches); i++ {
		b := &l.batches[i]
		if b.base >= limit || (bytes > 0 && bytes+b.bytes > maxBytes) {
			break
		}
		bytes += b.bytes
		// Also where there is nothing to see the position moves: markers and aborted records have offsets.
		hidden := b.control || (iso == broker.ReadCommitted && b.txn != nil && b.txn.status != Committed)
		if !hidden {
			for k := range b.records {
				if b.records[k].Offset >= from {
					out = append(out, b.records[k])
				}
			}
		}
		from = b.next
	}
	return out, from, None
}

// moveStart drops what stands before an offset: retention or DeleteRecords.
func (l *partitionLog) moveStart(to record.Offset) {
	to = min(to, l.end)
	if to <= l.start {
		return
	}
	l.start = to
	n := 0
	for n < len(l.batches) && l.batches[n].next <= to {
		n++
	}
	l.batches = l.batches[n:]
}

// truncate cuts the log at an offset, as an unclean leader election does. A transaction whose marker
// is cut off is open again and nobody will close it: a hanging transaction.
func (l *partitionLog) truncate(to record.Offset) {
	if to >= l.end {
		return
	}
	to = max(to, l.start)
	n := len(l.batches)
	for n > 0 && l.batches[n-1].base >= to {
		n--
		if b := &l.batches[n]; b.control && b.txn != nil {
			b.txn.status, b.txn.marker = Open, record.NoOffset
			l.open = append(l.open, b.txn)
		}
	}
	l.batches = l.batches[:n]
	if n > 0 && l.batches[n-1].next > to {
		b := &l.batches[n-1]
		keep := sort.Search(len(b.records), func(i int) bool { return b.records[i].Offset >= to })
		b.records, b.next = b.records[:keep], to
	}
	l.end = to
	l.leaderEpoch++
	kept := l.open[:0]
	for _, s := range l.open {
		if s.first < to {
			kept = append(kept, s)
		}
	}
	l.open = kept
	sort.Slice(l.open, func(i, j int) bool { return l.open[i].first < l.open[j].first })
	// The new leader builds its producer states from the log that it has.
	l.producers = map[int64]*producerState{}
	for _, s := range l.open {
		l.producers[s.pid] = &producerState{epoch: -1, last: -1, open: s}
	}
}

// outlived says whether a tombstone may go: it stays for its retention from the first compaction on that meets it (KIP-534), so that
// who has read an older value has that long to read it.
func (l *partitionLog) outlived(o record.Offset, now time.Time, retention time.Duration) bool {
	since, ok := l.met[o]
	if !ok {
		if l.met == nil {
			l.met = map[record.Offset]time.Time{}
		}
		l.met[o] = now
	}
	return ok && now.Sub(since) > retention
}

// compact keeps the newest committed record of each key below the last stable offset, and drops aborted records and
// tombstones that have outlived deleteRetention. Offsets do not change.
func (l *partitionLog) compact(now time.Time, deleteRetention time.Duration) {
	limit := l.stable()
	newest := map[string]record.Offset{}
	for i := range l.batches {
		b := &l.batches[i]
		if b.next > limit || (b.txn != nil && b.txn.status != Committed) {
			continue
		}
		for k := range b.records {
			newest[string(b.records[k].Key)] = b.records[k].Offset
		}
	}
	for i := range l.batches {
		b := &l.batches[i]
		if b.next > limit {
			break
		}
		var kept []broker.Record
		for k := range b.records {
			r := &b.records[k]
			aborted := b.txn != nil && b.txn.status == Aborted
			old := r.Value == nil && l.outlived(r.Offset, now, deleteRetention)
			if !aborted && !old && newest[string(r.Key)] == r.Offset {
				kept = append(kept, *r)
			}
		}
		b.records = kept
	}
}

// Overheads of the record batch format, roughly: they matter only for limits.
const (
	batchOverhead  = 61
	recordOverhead = 12
)
