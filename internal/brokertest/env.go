package brokertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// Env is a cluster under test and what a test may do to it. Cluster is required. A hook that is nil
// cannot be had: every fact that needs it must be listed in differences.go.
type Env struct {
	Cluster broker.Cluster

	// Pass lets time go by; nil: the test sleeps. A model moves its clock.
	Pass func(d time.Duration)
	// Limit is how long, in the cluster's time, a condition is waited for. Default 30 s.
	Limit time.Duration
	// ReaderConfig is added to by the facts. Its MaxWait should be short. Default 20 ms.
	MaxWait time.Duration

	// The faults below concern the next request of that kind (Kafka's names: Produce, EndTxn,
	// AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, InitProducerId, Fetch) of any client.

	// Refuse makes the next times requests be answered with this error code instead of being handled.
	Refuse func(api string, code int16, times int)
	// LoseRequest drops the next request: it is not handled and gets no answer.
	LoseRequest func(api string)
	// LoseAnswer lets the next request be handled, and drops its answer.
	LoseAnswer func(api string)
	// Hold keeps the next request back without an answer. deliver hands it to the broker.
	Hold func(api string) (deliver func())
	// HoldMarkers keeps transaction markers from the partitions that match, until release.
	HoldMarkers func(match func(record.TopicPartition) bool) (release func())
	// DeleteTopic deletes a topic and returns when it is gone.
	DeleteTopic func(name string)
	// ElectLeader moves a partition's leadership.
	ElectLeader func(tp record.TopicPartition)
	// TimesOut says that transactions end by their timeout within Limit (real Kafka looks every 10 s).
	TimesOut bool
	// Implicit says that the client speaks transaction protocol V2 (KIP-890): partitions are added to a transaction by
	// what is written to them, so that AddPartitionsToTxn and AddOffsetsToTxn are never sent.
	Implicit bool
}

// sends says whether the client sends a request of this kind at all.
func (e *Env) sends(api string) bool {
	return !e.Implicit || api != "AddPartitionsToTxn" && api != "AddOffsetsToTxn"
}

// fact is one sentence about a cluster.
type fact struct {
	name  string // the sentence
	needs string // names of the Env fields that it needs, separated by spaces
	run   func(t *testing.T, s *suite)
}

// suite is a run of all facts on one cluster.
type suite struct {
	*Env
	impl   string
	prefix string
	n      int
	group  string

	joining sync.Once
	meta    broker.GroupMeta
}

// Run runs all facts. impl names the implementation in differences.go: simbroker, kfake or kafka.
// prefix makes topics and IDs unique on a cluster that other tests use too.
func Run(t *testing.T, impl, prefix string, env *Env) {
	if env.Limit == 0 {
		env.Limit = 30 * time.Second
	}
	if env.MaxWait == 0 {
		env.MaxWait = 20 * time.Millisecond
	}
	s := &suite{Env: env, impl: impl, prefix: prefix, group: prefix + "-group"}
	for _, f := range slices.Concat(transactionFacts, doubtFacts, senderFacts, readerFacts, topicFacts, groupFacts) {
		t.Run(strings.ReplaceAll(f.name, " ", "_"), func(t *testing.T) {
			if why, ok := differences[impl][f.name]; ok {
				t.Skip(why)
			}
			for _, need := range strings.Fields(f.needs) {
				if !s.has(need) {
					t.Fatalf("this needs Env.%s: set it, or say in differences.go why %s cannot show it", need, impl)
				}
			}
			s.n++
			f.run(t, s)
		})
	}
}

func (s *suite) has(field string) bool {
	switch field {
	case "Refuse":
		return s.Refuse != nil
	case "LoseRequest":
		return s.LoseRequest != nil
	case "LoseAnswer":
		return s.LoseAnswer != nil
	case "Hold":
		return s.Hold != nil
	case "HoldMarkers":
		return s.HoldMarkers != nil
	case "DeleteTopic":
		return s.DeleteTopic != nil
	case "ElectLeader":
		return s.ElectLeader != nil
	case "TimesOut":
		return s.TimesOut
	}
	return false
}

func (s *suite) pass(d time.Duration) {
	if s.Pass != nil {
		s.Pass(d)
		return
	}
	time.Sleep(d)
}

// eventually waits for a condition.
func (s *suite) eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	const step = 5 * time.Millisecond
	for range s.Limit / step {
		if cond() {
			return
		}
		s.pass(step)
	}
	t.Fatalf("not within %v: %s", s.Limit, what)
}

// ctx bounds a fact in real time: a call that hangs fails it.
func (s *suite) ctx(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// topic makes a topic and returns its name.
func (s *suite) topic(t *testing.T, partitions int32, more ...func(*broker.Topic)) string {
	t.Helper()
	s.n++
	top := broker.Topic{Name: fmt.Sprintf("%s-t%d", s.prefix, s.n), Partitions: partitions, Replicas: -1, Cleanup: broker.Delete, Retention: -1}
	for _, f := range more {
		f(&top)
	}
	if err := s.Cluster.CreateTopic(s.ctx(t), top); err != nil {
		t.Fatalf("create topic %s: %v", top.Name, err)
	}
	return top.Name
}

func tp(topic string, p int) record.TopicPartition {
	return record.TopicPartition{Topic: topic, Partition: record.Partition(p)}
}

// id makes a transactional ID.
func (s *suite) id() string {
	s.n++
	return fmt.Sprintf("%s-x%d", s.prefix, s.n)
}

// producer makes an initialised producer with its own transactional ID.
func (s *suite) producer(t *testing.T, more ...func(*broker.ProducerConfig)) broker.Producer {
	t.Helper()
	conf := broker.ProducerConfig{TransactionalID: s.id(), TransactionTimeout: 10 * time.Second}
	for _, f := range more {
		f(&conf)
	}
	p := s.Cluster.NewProducer(conf)
	t.Cleanup(p.Close)
	if err := p.Init(s.ctx(t)); err != nil {
		t.Fatalf("init: %v", err)
	}
	return p
}

func withID(id string) func(*broker.ProducerConfig) {
	return func(c *broker.ProducerConfig) { c.TransactionalID = id }
}

func add(p interface{ Add(broker.Output) }, at record.TopicPartition, values ...string) {
	for _, v := range values {
		p.Add(broker.Output{TopicPartition: at, Timestamp: time.UnixMilli(1_700_000_000_000), Key: []byte("k-" + v), Value: []byte(v)})
	}
}

// commit commits and wants it committed.
func (s *suite) commit(t *testing.T, p broker.Producer, offsets ...broker.OffsetCommit) broker.Receipt {
	t.Helper()
	r, out, err := p.Commit(s.ctx(t), s.member(t, len(offsets) > 0), offsets)
	if out != broker.Committed || err != nil {
		t.Fatalf("commit: %v, %v", out, err)
	}
	return r
}

// wantCommit runs a commit that must end with this outcome.
func (s *suite) wantCommit(t *testing.T, p broker.Producer, want broker.Outcome, offsets ...broker.OffsetCommit) error {
	t.Helper()
	_, out, err := p.Commit(s.ctx(t), s.member(t, len(offsets) > 0), offsets)
	if out != want || err == nil && want != broker.Committed {
		t.Fatalf("commit: %v, %v; want %v", out, err, want)
	}
	return err
}

func (s *suite) init(t *testing.T, p broker.Producer) {
	t.Helper()
	if err := p.Init(s.ctx(t)); err != nil {
		t.Fatalf("init: %v", err)
	}
}

func offset(at record.TopicPartition, next record.Offset) broker.OffsetCommit {
	return broker.OffsetCommit{TopicPartition: at, Next: next, Metadata: fmt.Sprintf("m%d", next)}
}

// member returns the shared membership, which is made when it is first needed.
func (s *suite) member(t *testing.T, needed bool) broker.GroupMeta {
	t.Helper()
	if !needed {
		return broker.GroupMeta{Generation: -1}
	}
	s.joining.Do(func() {
		name := s.topic(t, 1)
		m := s.join(t, s.group, s.prefix+"-member", [][]string{{name}}, nil)
		s.meta = m.wait(t, 1)
	})
	if s.meta.Generation < 0 {
		t.Fatal("the suite's member has no generation")
	}
	return s.meta
}

// committed asks for the group's offset of a partition until it is stable.
func (s *suite) committed(t *testing.T, at record.TopicPartition) broker.CommittedOffset {
	t.Helper()
	var got broker.CommittedOffset
	s.eventually(t, "stable offsets of "+at.String(), func() bool {
		m, err := s.Cluster.CommittedOffsets(s.ctx(t), s.group, []record.TopicPartition{at})
		if err != nil {
			return false
		}
		got = m[at]
		return true
	})
	return got
}

func (s *suite) wantOffset(t *testing.T, at record.TopicPartition, want record.Offset) {
	t.Helper()
	if got := s.committed(t, at); got.Next != want {
		t.Fatalf("committed offset of %s: %d, want %d", at, got.Next, want)
	}
}

type offsetsOf func(context.Context, []record.TopicPartition) (map[record.TopicPartition]record.Offset, error)

func (s *suite) offset(t *testing.T, of offsetsOf, at record.TopicPartition) record.Offset {
	t.Helper()
	m, err := of(s.ctx(t), []record.TopicPartition{at})
	if err != nil {
		t.Fatalf("offsets of %s: %v", at, err)
	}
	return m[at]
}

func (s *suite) high(t *testing.T, at record.TopicPartition) record.Offset {
	t.Helper()
	return s.offset(t, s.Cluster.HighWatermarks, at)
}

func (s *suite) stable(t *testing.T, at record.TopicPartition) record.Offset {
	t.Helper()
	return s.offset(t, s.Cluster.StableOffsets, at)
}

// settled waits until no transaction is undecided in a partition.
func (s *suite) settled(t *testing.T, at record.TopicPartition) {
	t.Helper()
	s.eventually(t, "no open transaction in "+at.String(), func() bool { return s.stable(t, at) == s.high(t, at) })
}

func (s *suite) reader(t *testing.T, iso broker.Isolation, more ...func(*broker.ReaderConfig)) broker.Reader {
	conf := broker.ReaderConfig{Isolation: iso, MaxWait: s.MaxWait}
	for _, f := range more {
		f(&conf)
	}
	r := s.Cluster.NewReader(conf)
	t.Cleanup(r.Close)
	return r
}

// poll polls until enough says so, and returns all batches of the partition. An error batch ends it.
func (s *suite) poll(t *testing.T, r broker.Reader, what string, enough func(broker.Batch) bool) []broker.Batch {
	t.Helper()
	var all []broker.Batch
	s.eventually(t, what, func() bool {
		for _, b := range r.Poll(s.ctx(t), 20*time.Millisecond) {
			all = append(all, b)
			if b.Err != nil || enough(b) {
				return true
			}
		}
		return false
	})
	return all
}

// readTo reads a partition until the position reaches the target, and returns records and position.
func (s *suite) readTo(t *testing.T, at record.TopicPartition, iso broker.Isolation, from, target record.Offset) ([]broker.Record, record.Offset) {
	t.Helper()
	if from >= target {
		return nil, from
	}
	r := s.reader(t, iso)
	r.Seek(at, from, 1)
	var recs []broker.Record
	next := from
	for _, b := range s.poll(t, r, fmt.Sprintf("position %d of %s", target, at), func(b broker.Batch) bool { return b.Next >= target }) {
		if b.Err != nil {
			t.Fatalf("read %s: %v", at, b.Err)
		}
		recs, next = append(recs, b.Records...), b.Next
	}
	return recs, next
}

// wantValues reads all that is committed in a partition, once nothing is undecided, and compares.
func (s *suite) wantValues(t *testing.T, at record.TopicPartition, want ...string) {
	t.Helper()
	s.settled(t, at)
	recs, _ := s.readTo(t, at, broker.ReadCommitted, 0, s.high(t, at))
	if got := values(recs); !slices.Equal(got, want) {
		t.Fatalf("committed values of %s: %q, want %q", at, got, want)
	}
}

func values(recs []broker.Record) []string {
	var out []string
	for _, r := range recs {
		out = append(out, string(r.Value))
	}
	return out
}
