package simbroker

import (
	"fmt"
	"maps"
	"sort"
	"sync"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// Broker is the cluster. Its methods may be called from any goroutine, and from the hooks.
type Broker struct {
	// MarkerDelay says how long a transaction's marker takes to reach a partition (offsetsPartition is
	// Topic "__consumer_offsets"). Nil or 0: written when EndTxn is handled. Negative: held until
	// ReleaseMarkers. Called under the lock: it must not use the Broker. Set before use.
	MarkerDelay func(tp record.TopicPartition, transactionalID string) time.Duration

	// Decided, if set, is told of each decision about a transaction: by EndTxn, by Init or by its timeout.
	// Called under the lock: it must not use the Broker. Set before use.
	Decided func(transactionalID string, commit bool)

	mu         sync.Mutex // guards all below
	id         string
	now        time.Time
	calls      int
	counts     map[API]int
	fault      Fault
	held       []heldRequest
	topics     map[string]*topic
	topicsEver int
	txns       map[string]*transaction
	ongoing    int // how many of them are open
	nextPID    int64
	markers    []marker // in order of due
	offsets    *offsetsLog
	groups     map[string]*Group
}

type topic struct {
	broker.Topic
	logs []*partitionLog
}

// offsetsPartition is the one partition of __consumer_offsets here, for all groups.
var offsetsPartition = OffsetsPartition()

// OffsetsPartition is the partition of __consumer_offsets that holds all groups' offsets.
func OffsetsPartition() record.TopicPartition {
	return record.TopicPartition{Topic: "__consumer_offsets"}
}

// New makes an empty cluster. Its clock stands at start and moves by Advance and by clients' waits only.
func New(start time.Time) *Broker {
	return &Broker{
		id:      "simulated-cluster",
		now:     start,
		counts:  map[API]int{},
		topics:  map[string]*topic{},
		txns:    map[string]*transaction{},
		nextPID: 1000,
		offsets: newOffsetsLog(),
		groups:  map[string]*Group{},
	}
}

// SetFault sets the hook that decides the fate of each request; nil: all are handled.
func (b *Broker) SetFault(f Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = f
}

// Now is the virtual time.
func (b *Broker) Now() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

// Advance moves the clock and does what became due.
func (b *Broker) Advance(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = b.now.Add(d)
	b.settle()
}

// Calls is the number of requests so far.
func (b *Broker) Calls() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls
}

// Counts returns how often each request was sent.
func (b *Broker) Counts() map[API]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.counts)
}

// ReleaseMarkers writes the markers that are held or on their way to the partitions that match.
func (b *Broker) ReleaseMarkers(match func(record.TopicPartition) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.markers {
		if match(b.markers[i].tp) {
			b.markers[i].held, b.markers[i].due = false, b.now
		}
	}
	b.settle()
}

// DeliverHeld delivers all held requests, in the order in which they were sent. Nobody sees the answers.
func (b *Broker) DeliverHeld() {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.held
	b.held = nil
	for _, h := range held {
		h.handle()
		b.settle()
	}
}

// ExpireTransactionalID forgets a transactional ID, as transactional.id.expiration.ms does. It must have no open transaction.
func (b *Broker) ExpireTransactionalID(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.txns[id]; t != nil && t.state == txnOngoing {
		b.ongoing--
	}
	delete(b.txns, id)
}

// ExhaustEpochs raises a transactional ID's epoch so far that n more raises exhaust it. The present
// producer of the ID is fenced by that.
func (b *Broker) ExhaustEpochs(id string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.txns[id]; t != nil {
		t.epoch = maxEpoch - int16(n)
	}
}

// DeleteTopic deletes a topic with its records and, as Kafka does, the offsets committed for it.
func (b *Broker) DeleteTopic(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.topics, name)
	b.offsets.forget(func(_ string, tp record.TopicPartition) bool { return tp.Topic == name })
}

// AddPartitions raises a topic's number of partitions to n.
func (b *Broker) AddPartitions(name string, n int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.topics[name]; t != nil {
		t.grow(n)
	}
}

// ElectLeader moves a partition's leadership: clients learn it from an error to their next request.
func (b *Broker) ElectLeader(tp record.TopicPartition) {
	b.withLog(tp, func(l *partitionLog) { l.leaderEpoch++ })
}

// Truncate cuts a log's end, as an unclean leader election does: committed data is lost.
func (b *Broker) Truncate(tp record.TopicPartition, end record.Offset) {
	b.withLog(tp, func(l *partitionLog) { l.truncate(end) })
}

// MoveStart moves a log's start, as retention does.
func (b *Broker) MoveStart(tp record.TopicPartition, start record.Offset) {
	b.withLog(tp, func(l *partitionLog) { l.moveStart(start) })
}

// Compact runs the log cleaner on a partition once.
func (b *Broker) Compact(tp record.TopicPartition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.log(tp); l != nil {
		l.compact(b.now, b.topics[tp.Topic].DeleteRetention)
	}
}

// Append writes records as a producer outside of any transaction does, one batch, and returns the first one's offset.
// The partition must exist.
func (b *Broker) Append(tp record.TopicPartition, recs ...broker.Record) record.Offset {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.log(tp)
	if l == nil || len(recs) == 0 {
		return record.NoOffset
	}
	if b.topics[tp.Topic].LogAppendTime {
		recs = stamped(recs, b.now)
	}
	return l.add(recs, nil)
}

func (b *Broker) withLog(tp record.TopicPartition, f func(*partitionLog)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.log(tp); l != nil {
		f(l)
	}
}

// log returns a partition's log, nil if there is none.
func (b *Broker) log(tp record.TopicPartition) *partitionLog {
	t := b.topics[tp.Topic]
	if t == nil || tp.Partition < 0 || int(tp.Partition) >= len(t.logs) {
		return nil
	}
	return t.logs[tp.Partition]
}

// createTopic fills in what a broker's defaults are.
func (b *Broker) createTopic(t broker.Topic) Code {
	switch {
	case b.topics[t.Name] != nil:
		return TopicAlreadyExists
	case t.Partitions < 1:
		return InvalidPartitions
	}
	b.topicsEver++
	t.ID = fmt.Sprintf("%08x-0000-4000-8000-%012x", b.topicsEver, b.topicsEver)
	if t.Replicas < 1 {
		t.Replicas = 1
	}
	if t.Cleanup == "" {
		t.Cleanup = broker.Delete
	}
	if t.MinInSync == 0 {
		t.MinInSync = 1
	}
	if t.MaxMessageBytes == 0 {
		t.MaxMessageBytes = defaultMaxMessageBytes
	}
	if t.Retention == 0 {
		t.Retention = 7 * 24 * time.Hour
	}
	if t.DeleteRetention == 0 {
		t.DeleteRetention = 24 * time.Hour
	}
	n := t.Partitions
	t.Partitions = 0
	top := &topic{Topic: t}
	top.grow(n)
	b.topics[t.Name] = top
	return None
}

func (t *topic) grow(n int32) {
	for ; t.Partitions < n; t.Partitions++ {
		t.logs = append(t.logs, newPartitionLog(record.TopicPartition{Topic: t.Name, Partition: record.Partition(t.Partitions)}))
	}
}

// stamped is LogAppendTime: the broker's clock replaces the producer's.
func stamped(recs []broker.Record, now time.Time) []broker.Record {
	out := make([]broker.Record, len(recs))
	copy(out, recs)
	for i := range out {
		out[i].Timestamp = now.Truncate(time.Millisecond)
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
