package daemon

import (
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// tryout runs a topology in memory for the tests of a pipeline file: the operators that run uses, one partition for each topic, maps for
// stores, every record at once and to its end. There is no broker, no transaction and no crash in it: those are the engine's
// to test, not a pipeline file's. TestTestsAgreeWithTheEngine holds it against the engine.
type tryout struct {
	topo   *topology.Topology
	policy topology.Policy
	tasks  []*tryTask
	// out has what was written, by topic; dead what the policy dead_letter took, with the reason.
	out  map[string][]topology.SinkRecord
	dead []deadRecord
	// globals are the rows of the global tables.
	globals map[string]tryGlobal
}

// tryGlobal is a global table.
type tryGlobal map[string][]byte

// Get implements topology.GlobalStore.
func (g tryGlobal) Get(key []byte) []byte { return g[string(key)] }

type deadRecord struct {
	key, value []byte
	err        error
}

// tryTask is the one task of a sub-topology.
type tryTask struct {
	sub        *topology.Subtopology
	chain      *topology.Chain
	memory     *tryMemory
	newest     []window.Millis // by source; of one with marks: what was told
	began      window.Millis   // the time of the first record
	watermark  window.Millis
	fired      window.Millis // the watermark up to which all that was due is done: what is told
	streamTime time.Time
	started    bool // it has had a record
}

func newTryout(topo *topology.Topology, policy topology.Policy) (*tryout, error) {
	x := &tryout{topo: topo, policy: policy, out: map[string][]topology.SinkRecord{}, globals: map[string]tryGlobal{}}
	for _, g := range topo.Globals() {
		x.globals[g.Name] = tryGlobal{}
	}
	for _, s := range topo.Subtopologies() {
		t := &tryTask{sub: s, watermark: window.NoTime, fired: window.NoTime, began: window.NoTime}
		t.memory = newTryMemory(t)
		t.memory.globals = x.globals
		for range s.Sources {
			t.newest = append(t.newest, window.NoTime)
		}
		var err error
		if t.chain, err = s.NewChain(t.memory); err != nil {
			return nil, err
		}
		for _, timed := range t.chain.Timed {
			timed.Reset(topology.Moment{Watermark: window.NoTime})
		}
		x.tasks = append(x.tasks, t)
	}
	return x, nil
}

// send hands a record to whoever reads the topic, and does all that follows. An error is one with which the pipeline would stop.
func (x *tryout) send(topic string, r broker.Record) error {
	for _, g := range x.topo.Globals() {
		if g.Topic != topic {
			continue
		}
		key, value, err := g.Row(&r)
		switch rows := x.globals[g.Name]; {
		case err != nil && g.Policy == topology.PolicySkip || err == nil && key == nil:
		case err != nil:
			return fmt.Errorf("the pipeline stops: global table %q: %w", g.Name, err)
		case value == nil:
			delete(rows, string(key))
		default:
			rows[string(key)] = value
		}
	}
	for _, t := range x.tasks {
		for i, src := range t.sub.Sources {
			if x.topo.SourceTopic(src) != topic {
				continue
			}
			if err := x.process(t, i, r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *tryout) process(t *tryTask, source int, r broker.Record) error {
	src, m := &t.sub.Sources[source], t.memory
	m.position = record.Position{TopicPartition: record.TopicPartition{Topic: x.topo.SourceTopic(*src)}, Offset: m.offset}
	r.Offset = m.offset
	m.offset++
	at := r.Timestamp
	if src.Timestamp != nil {
		if own, err := src.Timestamp(&r); err == nil { // else the chain fails for it, too
			at = own
		}
	}
	if !t.started || at.After(t.streamTime) {
		t.streamTime, t.started = at, true
	}
	if ms, ok := window.Of(at); ok {
		if !src.Marks {
			t.newest[source] = max(t.newest[source], ms)
		}
		if t.began == window.NoTime {
			t.began = ms
		}
	}
	if err := x.advance(t, t.lowest()); err != nil {
		return err
	}
	m.begin()
	if err := t.chain.Sources[source](&r); err != nil {
		m.undo()
		return x.failed(err, r.Key, r.Value)
	}
	if err := x.deliver(t); err != nil {
		return err
	}
	return x.tell(t)
}

// tell lets the tasks behind know how far the task has come, as marks do.
func (x *tryout) tell(t *tryTask) error {
	for _, s := range t.sub.Sinks {
		for _, behind := range x.told(t, s) {
			if err := x.advance(behind, behind.lowest()); err != nil {
				return err
			}
			if err := x.tell(behind); err != nil {
				return err
			}
		}
	}
	return nil
}

// told notes what a task tells in a topic, and returns who has heard it.
func (x *tryout) told(t *tryTask, s topology.Sink) (behind []*tryTask) {
	if !s.Marks || t.fired == window.NoTime {
		return nil
	}
	for _, b := range x.tasks {
		for i, src := range b.sub.Sources {
			if src.Marks && src.Topic == s.Topic {
				b.newest[i] = max(b.newest[i], t.fired.Add(-s.Lag))
				behind = append(behind, b)
			}
		}
	}
	return behind
}

// lowest is how far all inputs have come. Between two records as much time passes as their timestamps are apart: an input that
// was idle for so long does not hold up the others.
func (t *tryTask) lowest() window.Millis {
	now, ok := window.Of(t.streamTime)
	if !ok {
		return window.NoTime
	}
	lowest := window.MaxMillis
	for i, newest := range t.newest {
		src := &t.sub.Sources[i]
		if src.Marks {
			lowest = min(lowest, newest.Add(-src.MarkDelay))
			continue
		}
		if src.Idleness >= 0 && max(newest, t.began).Add(src.Idleness) <= now {
			continue
		}
		if newest == window.NoTime {
			return window.NoTime
		}
		lowest = min(lowest, newest.Add(-src.OutOfOrderness))
	}
	if lowest == window.MaxMillis {
		return window.NoTime
	}
	return lowest
}

// advance moves a task's watermark and does what is due by then.
func (x *tryout) advance(t *tryTask, to window.Millis) error {
	if to <= t.watermark {
		return nil
	}
	t.watermark = to
	moment := topology.Moment{Watermark: to, Wall: t.streamTime}
	if at := to.Time(); at.After(moment.Wall) {
		moment.Wall = at
	}
	for _, timed := range t.chain.Timed {
		if !timed.Advance(moment) {
			continue
		}
		for {
			t.memory.begin()
			did, err := timed.Fire(false)
			if err != nil {
				t.memory.undo()
				piece := timed.Pending()
				if err := x.failed(err, piece.Key, piece.Value); err != nil {
					return err
				}
				t.memory.begin()
				if did, err = timed.Fire(true); err != nil {
					return err
				}
			}
			if err := x.deliver(t); err != nil {
				return err
			}
			if !did {
				break
			}
		}
	}
	t.fired = to
	return nil
}

// settle lets so much time pass for every task, those that get the results of others last.
func (x *tryout) settle(by time.Duration) error {
	for _, t := range x.tasks {
		at, ok := window.Of(t.streamTime.Add(by))
		if len(t.chain.Timed) == 0 || !t.started || !ok {
			continue
		}
		if err := x.advance(t, at); err != nil {
			return err
		}
	}
	return nil
}

// deliver writes what a record has come to, and lets the tasks behind have it.
func (x *tryout) deliver(t *tryTask) error {
	out := t.memory.out
	t.memory.out = nil
	for _, e := range out {
		s := t.sub.Sinks[e.sink]
		topic := x.topo.SinkTopic(s)
		if !s.Internal {
			x.out[topic] = append(x.out[topic], e.SinkRecord)
			continue
		}
		x.told(t, s)
		if err := x.send(topic, broker.Record{Key: e.Key, Value: e.Value, Headers: e.Headers, Timestamp: e.Timestamp}); err != nil {
			return err
		}
	}
	return nil
}

// failed does with a record what its policy says.
func (x *tryout) failed(err error, key, value []byte) error {
	var oe *topology.OperatorError
	if !errors.As(err, &oe) {
		return err
	}
	policy := oe.Policy
	if policy == topology.PolicyDefault {
		policy = x.policy
	}
	switch policy {
	case topology.PolicySkip:
		return nil
	case topology.PolicyDeadLetter:
		x.dead = append(x.dead, deadRecord{key, value, oe})
		return nil
	}
	return fmt.Errorf("the pipeline stops: %w", err)
}

// tryMemory is the topology.Runtime of a task.
type tryMemory struct {
	t        *tryTask
	stores   map[string]*tryStore
	logs     map[string]*tryLog
	counters map[topology.CounterID]*uint64
	globals  map[string]tryGlobal
	out      []tryEmit
	position record.Position
	offset   record.Offset
	undos    []func() // of the record in hand, the newest last
}

type tryEmit struct {
	sink int
	topology.SinkRecord
}

var (
	_ topology.Environment   = (*tryMemory)(nil)
	_ topology.GlobalRuntime = (*tryMemory)(nil)
)

func newTryMemory(t *tryTask) *tryMemory {
	m := &tryMemory{t: t, stores: map[string]*tryStore{}, logs: map[string]*tryLog{}, counters: map[topology.CounterID]*uint64{}}
	for _, s := range t.sub.Stores {
		m.stores[s.Name] = &tryStore{m: m, values: map[string][]byte{}}
	}
	for _, d := range t.sub.Dedups {
		m.logs[d.Name] = &tryLog{m: m, cfg: d.Config, seen: map[record.Hash]trySeen{}}
	}
	return m
}

func (m *tryMemory) begin() { m.out, m.undos = nil, nil }

func (m *tryMemory) undo() {
	for i := len(m.undos) - 1; i >= 0; i-- {
		m.undos[i]()
	}
	m.begin()
}

func (m *tryMemory) Store(name string) topology.Store        { return m.stores[name] }
func (m *tryMemory) Dedup(name string) topology.IDLog        { return m.logs[name] }
func (m *tryMemory) Global(name string) topology.GlobalStore { return m.globals[name] }
func (m *tryMemory) Alloc(n int) []byte                      { return make([]byte, 0, n) }
func (m *tryMemory) Keep(int)                                {}
func (m *tryMemory) StreamTime() time.Time                   { return m.t.streamTime }
func (m *tryMemory) Position() record.Position               { return m.position }
func (m *tryMemory) ClusterID() string                       { return "test" }
func (m *tryMemory) TopicID(string) string                   { return "00000000-0000-0000-0000-000000000001" }
func (m *tryMemory) Partitions(int) int32                    { return 1 }
func (m *tryMemory) Emit(sink int, r topology.SinkRecord)    { m.out = append(m.out, tryEmit{sink, r}) }

func (m *tryMemory) Counter(c topology.CounterID) *uint64 {
	if m.counters[c] == nil {
		m.counters[c] = new(uint64)
	}
	return m.counters[c]
}

// tryStore is a state store.
type tryStore struct {
	m      *tryMemory
	values map[string][]byte
}

func (s *tryStore) Get(key []byte) ([]byte, error) { return s.values[string(key)], nil }

func (s *tryStore) Put(key, value []byte) error {
	k := string(key)
	before, was := s.values[k]
	s.m.undos = append(s.m.undos, func() {
		if was {
			s.values[k] = before
		} else {
			delete(s.values, k)
		}
	})
	if value == nil {
		delete(s.values, k)
		return nil
	}
	s.values[k] = append([]byte{}, value...)
	return nil
}

func (s *tryStore) Range(from, to []byte, fn func(key, value []byte) bool) error {
	for _, k := range sortedKeys(s.values) {
		if k < string(from) || to != nil && k >= string(to) {
			continue
		}
		if v, ok := s.values[k]; ok && !fn([]byte(k), v) {
			break
		}
	}
	return nil
}

// tryLog is a log of IDs that remembers each for exactly its retention.
type tryLog struct {
	m    *tryMemory
	cfg  dedup.Config
	seen map[record.Hash]trySeen
}

type trySeen struct {
	at      time.Time
	payload uint64
}

// Check implements topology.IDLog.
func (l *tryLog) Check(h record.Hash, payload uint64, at time.Time) (dedup.Answer, error) {
	now := l.m.t.streamTime
	oldest := now.Add(-l.cfg.Retention)
	old, known := l.seen[h]
	switch {
	case known && !old.at.Before(oldest) && l.cfg.Payload && old.payload != payload:
		return dedup.Answer{Verdict: dedup.Conflict, SeenAt: old.at}, nil
	case known && !old.at.Before(oldest):
		return dedup.Answer{Verdict: dedup.Duplicate, SeenAt: old.at}, nil
	case at.Before(oldest):
		return dedup.Answer{Verdict: dedup.TooLate}, nil
	}
	l.m.undos = append(l.m.undos, func() {
		if known {
			l.seen[h] = old
		} else {
			delete(l.seen, h)
		}
	})
	l.seen[h] = trySeen{now, payload}
	return dedup.Answer{Verdict: dedup.New}, nil
}
