package verify

import (
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// spy is a runtime in which a dedup step tells what it is asked, and lets nothing through.
type spy struct {
	*memory
	step  string
	asked func(h record.Hash, at time.Time)
}

func newSpy(cluster string, sub *topology.Subtopology, step string) *spy {
	s := &spy{memory: &memory{cluster: cluster, counters: map[topology.CounterID]*uint64{}}, step: step}
	for range sub.Sinks {
		s.partitions = append(s.partitions, 1)
	}
	return s
}

// chain makes the steps, with nothing in their stores.
func (s *spy) chain(sub *topology.Subtopology) (*topology.Chain, error) {
	s.stores, s.logs = map[string]*memoryStore{}, map[string]*memoryLog{}
	for _, st := range sub.Stores {
		s.stores[st.Name] = &memoryStore{values: map[string][]byte{}}
	}
	chain, err := sub.NewChain(s)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotReplayable, err)
	}
	return chain, nil
}

// Dedup implements topology.Runtime. Steps before the one that matters let everything through: what they drop, it does not
// see, but their memory is not here; so that a copy may be named that never came as far.
func (s *spy) Dedup(name string) topology.IDLog {
	if name == s.step {
		return watched{s}
	}
	return open{}
}

// Global implements topology.GlobalRuntime. As the stores of the steps before, the table is empty.
func (s *spy) Global(string) topology.GlobalStore { return noRows{} }

type noRows struct{}

func (noRows) Get([]byte) []byte { return nil }

type watched struct{ s *spy }

func (w watched) Check(h record.Hash, _ uint64, at time.Time) (dedup.Answer, error) {
	w.s.asked(h, at)
	return dedup.Answer{Verdict: dedup.Duplicate, SeenAt: at}, nil
}

type open struct{}

func (open) Check(record.Hash, uint64, time.Time) (dedup.Answer, error) {
	return dedup.Answer{Verdict: dedup.New}, nil
}

// show hands a record to the chain.
func (s *spy) show(r *rawlog.Record, source func(*broker.Record) error) error {
	in := &broker.Record{Offset: record.Offset(r.Offset), Timestamp: r.Time, Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		in.Headers = append(in.Headers, record.Header{Key: h.Key, Value: h.Value})
	}
	s.position = record.Position{TopicPartition: record.TopicPartition{Topic: r.Topic, Partition: record.Partition(r.Number)}, Offset: in.Offset}
	if r.Time.After(s.time) {
		s.time = r.Time
	}
	s.begin()
	err := source(in)
	var failed *topology.OperatorError
	switch {
	case errors.As(err, &failed):
		s.undo()
	case err != nil:
		return err
	default:
		s.keep()
	}
	return nil
}
