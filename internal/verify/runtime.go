package verify

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// errNotReplayable: what the task was made of is no longer there.
var errNotReplayable = errors.New("verify: cannot be replayed")

// memory is the runtime of a replayed task: maps instead of stores, the ID log's own answers instead of
// an index, no transaction, no fault. What a record did is undone if it fails.
type memory struct {
	cluster    string
	topicID    string
	partitions []int32 // by sink
	position   record.Position
	time       time.Time

	stores   map[string]*memoryStore
	logs     map[string]*memoryLog
	counters map[topology.CounterID]*uint64
	out      []emitted // of the record in hand
}

var _ topology.Environment = (*memory)(nil)

// emitted is one output.
type emitted struct {
	sink int
	topology.SinkRecord
}

func (m *memory) Store(name string) topology.Store     { return m.stores[name] }
func (m *memory) Dedup(name string) topology.IDLog     { return m.logs[name] }
func (m *memory) Alloc(n int) []byte                   { return make([]byte, 0, n) }
func (m *memory) Keep(int)                             {}
func (m *memory) StreamTime() time.Time                { return m.time }
func (m *memory) Position() record.Position            { return m.position }
func (m *memory) ClusterID() string                    { return m.cluster }
func (m *memory) TopicID(string) string                { return m.topicID }
func (m *memory) Partitions(sink int) int32            { return m.partitions[sink] }
func (m *memory) Emit(sink int, o topology.SinkRecord) { m.out = append(m.out, emitted{sink, o}) }

func (m *memory) Counter(c topology.CounterID) *uint64 {
	if m.counters[c] == nil {
		m.counters[c] = new(uint64)
	}
	return m.counters[c]
}

// begin, keep and undo frame a record.
func (m *memory) begin() {
	m.out = m.out[:0]
	for _, l := range m.logs {
		l.asked = l.asked[:0]
	}
}

func (m *memory) keep() {
	for _, s := range m.stores {
		s.journal = s.journal[:0]
	}
}

func (m *memory) undo() {
	for _, s := range m.stores {
		s.undo()
	}
	for _, l := range m.logs {
		l.undo()
	}
}

// memoryStore is a state store in a map.
type memoryStore struct {
	values  map[string][]byte
	journal []change // of the record in hand
}

type change struct {
	key    string
	before []byte // nil: there was none
}

func (s *memoryStore) Get(key []byte) ([]byte, error) { return s.values[string(key)], nil }

func (s *memoryStore) Put(key, value []byte) error {
	k := string(key)
	s.journal = append(s.journal, change{k, s.values[k]})
	if value == nil {
		delete(s.values, k)
		return nil
	}
	s.values[k] = append([]byte{}, value...)
	return nil
}

func (s *memoryStore) Range(from, to []byte, fn func(key, value []byte) bool) error {
	var keys []string
	for k := range s.values {
		if b := []byte(k); bytes.Compare(b, from) >= 0 && (to == nil || bytes.Compare(b, to) < 0) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if v, ok := s.values[k]; ok && !fn([]byte(k), v) {
			break
		}
	}
	return nil
}

func (s *memoryStore) undo() {
	for i := len(s.journal) - 1; i >= 0; i-- {
		if c := s.journal[i]; c.before == nil {
			delete(s.values, c.key)
		} else {
			s.values[c.key] = c.before
		}
	}
	s.journal = s.journal[:0]
}

// memoryLog answers a dedup operator from the committed ID log: an ID is new for the record of the
// transaction that logged it. Whether the log was right to do so is what is checked meanwhile.
type memoryLog struct {
	m         *memory
	name      string
	retention time.Duration
	payload   bool
	// logged are the IDs of the transaction in hand that no record has asked for yet; seen those before.
	logged map[record.Hash]uint64
	seen   map[record.Hash]first
	asked  []asked // by the record in hand
	differ func(format string, args ...any)
}

// first is when an ID was logged, in stream time.
type first struct {
	at      time.Time
	payload uint64
}

// asked is an answer that may have to be taken back.
type asked struct {
	hash     record.Hash
	logged   bool // it stood in the log
	payload  uint64
	before   first
	hadFirst bool
}

// Check implements topology.IDLog.
func (l *memoryLog) Check(h record.Hash, payload uint64, at time.Time) (dedup.Answer, error) {
	old, known := l.seen[h]
	logged, ok := l.logged[h]
	switch {
	case ok:
		// Remembered for at least the retention: a second time within it is a record that counts twice.
		if known && !old.at.Before(l.m.time.Add(-l.retention)) {
			l.differ("operator %q has accepted the same ID again within its retention of %v", l.name, l.retention)
		}
		l.asked = append(l.asked, asked{h, true, logged, old, known})
		delete(l.logged, h)
		l.seen[h] = first{l.m.time, logged}
		return dedup.Answer{}, nil
	case known:
		v := dedup.Duplicate
		if l.payload && old.payload != payload {
			v = dedup.Conflict
		}
		return dedup.Answer{Verdict: v, SeenAt: old.at}, nil
	case at.Before(l.m.time.Add(-l.retention)):
		return dedup.Answer{Verdict: dedup.TooLate}, nil
	}
	// A new ID that was not logged: right only if the record fails further on, which takes it back.
	l.asked = append(l.asked, asked{hash: h})
	l.seen[h] = first{l.m.time, payload}
	return dedup.Answer{}, nil
}

func (l *memoryLog) undo() {
	for i := len(l.asked) - 1; i >= 0; i-- {
		a := l.asked[i]
		if a.logged {
			l.logged[a.hash] = a.payload
		}
		if a.hadFirst {
			l.seen[a.hash] = a.before
		} else {
			delete(l.seen, a.hash)
		}
	}
	l.asked = l.asked[:0]
}

// unlogged says whether the record in hand passed with an ID that no transaction has logged.
func (l *memoryLog) unlogged() bool {
	return slices.ContainsFunc(l.asked, func(a asked) bool { return !a.logged })
}
