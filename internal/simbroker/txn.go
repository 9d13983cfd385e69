package simbroker

import (
	"sort"
	"time"

	"github.com/streamd/streamd/record"
)

// txnState is a state of the transaction coordinator.
type txnState uint8

// empty/complete --AddPartitions, with V2 the first Produce--> ongoing --EndTxn--> prepareX --all markers written--> completeX
// ongoing --timeout or InitProducerId--> prepareAbort, with the epoch raised
const (
	txnEmpty txnState = iota
	txnOngoing
	txnPrepareCommit
	txnPrepareAbort
	txnCompleteCommit
	txnCompleteAbort
)

// Protocol is the version of the transaction protocol that a client speaks; the coordinator answers each
// in its own.
type Protocol uint8

const (
	// V1 is what sarama's requests speak: partitions are added by AddPartitionsToTxn and
	// AddOffsetsToTxn, and all transactions of a producer have one epoch until Init raises it.
	V1 Protocol = iota
	// V2 is the second part of KIP-890: Produce and TxnOffsetCommit add their partition by themselves, and
	// each EndTxn raises the epoch, so that no late request of a transaction acts on the next one.
	V2
)

// maxEpoch is the last epoch that a client gets; then the producer ID changes.
const maxEpoch = 32766

// transaction is what the coordinator knows of one transactional ID.
type transaction struct {
	id        string
	pid       int64
	epoch     int16
	lastEpoch int16 // the epoch before the last raise, -1: none. With it, InitProducerId may be repeated (KIP-360).
	lastPID   int64 // the producer ID before the last change, -1: none
	timeout   time.Duration
	state     txnState
	started   time.Time
	parts     []record.TopicPartition // in the order in which they were added; offsetsPartition is one of them
	markers   int                     // still to be written
}

func (t *transaction) has(tp record.TopicPartition) bool {
	for _, p := range t.parts {
		if p == tp {
			return true
		}
	}
	return false
}

func (t *transaction) deciding() bool {
	return t.state == txnPrepareCommit || t.state == txnPrepareAbort
}

// marker is a commit or abort marker on its way to a partition.
type marker struct {
	due    time.Time
	held   bool // waits for ReleaseMarkers
	tp     record.TopicPartition
	txn    *transaction
	pid    int64
	epoch  int16
	commit bool
}

// initProducer is InitProducerId. pid and epoch are -1 for a process that has none yet.
func (b *Broker) initProducer(id string, timeout time.Duration, pid int64, epoch int16) (int64, int16, Code) {
	if timeout <= 0 || timeout > maxTransactionTimeoutMillis*time.Millisecond {
		return -1, -1, InvalidTransactionTimeout
	}
	t := b.txns[id]
	if t == nil {
		b.nextPID++
		t = &transaction{id: id, pid: b.nextPID, epoch: -1, lastEpoch: -1, lastPID: -1}
		b.txns[id] = t
		pid, epoch = -1, -1 // an expired ID: nobody can be fenced by it
	}
	rotated := pid == t.lastPID && epoch >= maxEpoch
	if pid >= 0 && pid != t.pid && !rotated {
		return -1, -1, ProducerFenced
	}
	switch {
	case t.deciding():
		return -1, -1, ConcurrentTransactions
	case t.state == txnOngoing:
		// The epoch that is asked with is looked at only after the abort: this is why a zombie's
		// InitProducerId, itself refused, ends the new owner's open transaction.
		b.fence(t)
		return -1, -1, ConcurrentTransactions
	}
	switch {
	case t.epoch > maxEpoch:
		// A fence used the last epoch up. Real Kafka hands it out once more to who asks with the one before, and
		// cannot fence it then: what becomes of that is not modelled.
		b.raise(t)
	case pid >= 0 && !rotated && epoch == t.lastEpoch && epoch != t.epoch:
		// The raise has happened (a repeated request, or the coordinator fenced us by a timeout).
	case pid >= 0 && !rotated && epoch != t.epoch:
		return -1, -1, ProducerFenced
	case rotated:
	case t.epoch >= maxEpoch:
		b.raise(t)
	default:
		t.lastEpoch = epoch
		if pid < 0 {
			t.lastEpoch = -1
		}
		t.epoch++
	}
	t.timeout, t.state, t.parts = timeout, txnEmpty, nil
	return t.pid, t.epoch, None
}

// fence raises the epoch and aborts: the transaction's producer is refused from now on.
func (b *Broker) fence(t *transaction) {
	t.lastEpoch = t.epoch
	t.epoch++
	b.decide(t, t.pid, t.epoch, false)
}

// find returns the transaction that a request means, if its producer is the current one.
func (b *Broker) find(id string, pid int64, epoch int16) (*transaction, Code) {
	t := b.txns[id]
	switch {
	case t == nil || t.pid != pid:
		return nil, InvalidProducerIDMapping
	case t.epoch != epoch:
		return nil, ProducerFenced
	}
	return t, None
}

// addPartitions is AddPartitionsToTxn and, with the offsets partition, AddOffsetsToTxn.
func (b *Broker) addPartitions(id string, pid int64, epoch int16, tps []record.TopicPartition) Code {
	t, code := b.find(id, pid, epoch)
	if code != None {
		return code
	}
	if t.deciding() {
		return ConcurrentTransactions
	}
	for _, tp := range tps {
		if tp != offsetsPartition && b.log(tp) == nil {
			return UnknownTopicOrPartition // nothing is added if one is wrong
		}
	}
	if t.state != txnOngoing {
		t.state, t.started, t.parts = txnOngoing, b.now, nil
		b.ongoing++
	}
	for _, tp := range tps {
		if !t.has(tp) {
			t.parts = append(t.parts, tp)
		}
	}
	return None
}

// join is what Produce and TxnOffsetCommit do about a partition that the log does not know to be in the
// producer's transaction: with V1 it must have been added before, with V2 they add it.
func (b *Broker) join(v Protocol, id string, pid int64, epoch int16, tp record.TopicPartition) Code {
	if v == V1 {
		return b.verify(id, pid, epoch, tp)
	}
	switch code := b.addPartitions(id, pid, epoch, []record.TopicPartition{tp}); code {
	case ProducerFenced:
		return InvalidProducerEpoch
	case ConcurrentTransactions:
		return NotEnoughReplicas
	default:
		return code
	}
}

// verify is KIP-890's check, for protocol V1, that a partition is in the producer's open transaction.
// It knows the transaction by producer ID and epoch only: a late request of an older transaction with
// the same epoch passes.
func (b *Broker) verify(id string, pid int64, epoch int16, tp record.TopicPartition) Code {
	t, code := b.find(id, pid, epoch)
	switch {
	case code == ProducerFenced:
		return InvalidProducerEpoch
	case code != None:
		return code
	case t.deciding():
		return NotEnoughReplicas // how CONCURRENT_TRANSACTIONS arrives at a producer (KAFKA.md section 2)
	case t.state != txnOngoing || !t.has(tp):
		return InvalidTxnState
	}
	return None
}

// produce is Produce for one partition.
func (b *Broker) produce(v Protocol, id string, pid int64, epoch int16, seq int32, out outBatch) (record.Offset, Code) {
	l := b.log(out.tp)
	if l == nil {
		return record.NoOffset, UnknownTopicOrPartition
	}
	if ps := l.producers[pid]; ps == nil || ps.open == nil || ps.epoch != epoch {
		if ps != nil && epoch < ps.epoch {
			return record.NoOffset, InvalidProducerEpoch
		}
		if code := b.join(v, id, pid, epoch, out.tp); code != None {
			return record.NoOffset, code
		}
	}
	return b.append(l, pid, epoch, seq, out, true)
}

// produceAlone is Produce for one partition of a producer without transactions.
func (b *Broker) produceAlone(pid int64, epoch int16, seq int32, out outBatch) (record.Offset, Code) {
	l := b.log(out.tp)
	if l == nil {
		return record.NoOffset, UnknownTopicOrPartition
	}
	return b.append(l, pid, epoch, seq, out, false)
}

// append is what both do with a batch that may be written.
func (b *Broker) append(l *partitionLog, pid int64, epoch int16, seq int32, out outBatch, transactional bool) (record.Offset, Code) {
	top := b.topics[out.tp.Topic]
	if out.bytes > top.MaxMessageBytes {
		return record.NoOffset, MessageTooLarge
	}
	recs := out.records
	if top.LogAppendTime {
		recs = stamped(recs, b.now)
	}
	return l.produce(pid, epoch, seq, recs, transactional)
}

// endTxn is EndTxn of protocol V1. It answers before any marker is written.
func (b *Broker) endTxn(id string, pid int64, epoch int16, commit bool) Code {
	t, code := b.find(id, pid, epoch)
	if code != None {
		return code
	}
	preparing, complete := txnPrepareAbort, txnCompleteAbort
	if commit {
		preparing, complete = txnPrepareCommit, txnCompleteCommit
	}
	switch t.state {
	case txnOngoing:
		b.decide(t, t.pid, t.epoch, commit)
		return None
	case preparing:
		return ConcurrentTransactions
	case complete:
		return None
	}
	return InvalidTxnState
}

// endTxnV2 is EndTxn of protocol V2. It answers with the producer ID and epoch of the next transaction: the
// epoch is raised at once, and the markers carry the raised one, so that the logs refuse what comes late.
// A request that is sent again, with the epoch from before, is known by that and answered as the first one
// (KIP-890: "retries of EndTxn").
func (b *Broker) endTxnV2(id string, pid int64, epoch int16, commit bool) (int64, int16, Code) {
	preparing, complete := txnPrepareAbort, txnCompleteAbort
	if commit {
		preparing, complete = txnPrepareCommit, txnCompleteCommit
	}
	t := b.txns[id]
	again := t != nil && t.state != txnOngoing && (t.pid == pid && t.epoch == epoch+1 || t.lastPID == pid && epoch >= maxEpoch)
	if !again {
		var code Code
		if t, code = b.find(id, pid, epoch); code != None {
			return -1, -1, code
		}
	}
	switch {
	case t.state == txnOngoing:
		b.raise(t)
		b.decide(t, pid, epoch+1, commit)
	case again && t.state == preparing:
		return -1, -1, ConcurrentTransactions
	case again && t.state == complete:
	case !again && !commit && !t.deciding():
		// An abort of nothing: a producer that wants a new epoch.
		b.raise(t)
		t.state = txnCompleteAbort
	default:
		return -1, -1, InvalidTxnState
	}
	return t.pid, t.epoch, None
}

// raise gives the producer its next epoch, or when these are used up another producer ID.
func (b *Broker) raise(t *transaction) {
	if t.epoch >= maxEpoch {
		b.nextPID++
		t.lastPID, t.pid, t.epoch, t.lastEpoch = t.pid, b.nextPID, 0, -1
		return
	}
	t.lastEpoch = t.epoch
	t.epoch++
}

// decide moves a transaction to its prepare state and sends its markers, with the given epoch.
func (b *Broker) decide(t *transaction, pid int64, epoch int16, commit bool) {
	b.ongoing--
	t.state = txnPrepareAbort
	if commit {
		t.state = txnPrepareCommit
	}
	if b.Decided != nil {
		b.Decided(t.id, commit)
	}
	t.markers = len(t.parts)
	for _, tp := range t.parts {
		m := marker{due: b.now, tp: tp, txn: t, pid: pid, epoch: epoch, commit: commit}
		if b.MarkerDelay != nil {
			d := b.MarkerDelay(tp, t.id)
			m.held = d < 0
			m.due = b.now.Add(max(d, 0))
		}
		b.markers = append(b.markers, m)
	}
	sort.SliceStable(b.markers, func(i, j int) bool { return b.markers[i].due.Before(b.markers[j].due) })
}

// settle does what is due at the present time: markers, then transactions that are too old.
func (b *Broker) settle() {
	for {
		b.writeMarkers()
		if !b.expireTransactions() {
			return
		}
	}
}

func (b *Broker) writeMarkers() {
	keep := b.markers[:0]
	for _, m := range b.markers {
		if m.held || m.due.After(b.now) {
			keep = append(keep, m)
			continue
		}
		if m.tp == offsetsPartition {
			b.offsets.mark(m.pid, m.epoch, m.commit)
		} else if l := b.log(m.tp); l != nil { // a deleted topic needs no marker
			l.mark(m.pid, m.epoch, m.commit)
		}
		if m.txn.markers--; m.txn.markers == 0 {
			m.txn.state = txnCompleteAbort
			if m.commit {
				m.txn.state = txnCompleteCommit
			}
			m.txn.parts = nil
		}
	}
	b.markers = keep
}

func (b *Broker) expireTransactions() bool {
	if b.ongoing == 0 {
		return false
	}
	var old []string
	for id, t := range b.txns {
		if t.state == txnOngoing && b.now.Sub(t.started) >= t.timeout {
			old = append(old, id)
		}
	}
	sort.Strings(old) // the order of the map must not reach the logs
	for _, id := range old {
		b.fence(b.txns[id])
	}
	return len(old) > 0
}
