package topology

import (
	"strconv"
	"time"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/internal/broker"
)

// Subtopology is a connected part of a topology. Its tasks, one for each partition of its input, run
// independently of all others. It is a description: NewChain makes an instance for one task.
type Subtopology struct {
	// Index numbers the sub-topologies in the order of declaration, as Describe prints them.
	Index int
	// Name is the name of its first source. It is part of the names of internal topics and of the
	// task's local state, so that it must not change while there is state.
	Name    string
	Sources []Source
	Sinks   []Sink
	// Dedups are the dedup operators that have a log, LeftOut those that need none (see Topology.Explain).
	Dedups  []DedupSpec
	LeftOut []DedupSpec
	Stores  []StoreSpec
	Joins   []JoinSpec
	// Globals are the names of the global tables that its tasks look into (see Topology.Globals).
	Globals []string
	Effects []EffectSpec
	// Operators are the names of all its nodes in topological order, for metrics.
	Operators []OperatorSpec

	// External is not nil for the part that writes to a sink outside of Kafka. It has one source and no chain.
	External *External

	newChain func(Runtime) (*Chain, error)
}

// NewChain instantiates the sub-topology for one task: own closures, own stores.
func (s *Subtopology) NewChain(rt Runtime) (*Chain, error) { return s.newChain(rt) }

// Stateful says whether the tasks have anything to restore.
func (s *Subtopology) Stateful() bool { return len(s.Dedups)+len(s.Stores) > 0 }

// Source is an input topic.
type Source struct {
	Name string
	// Topic is the topic's name; for an Internal one the name that Topology.RepartitionTopic turns into the topic's.
	Topic    string
	Internal bool // a repartition topic, or External
	External bool // with Internal: the topic in front of a sink outside of Kafka
	// IDHeader is set for internal topics: the header that carries the record's ID.
	IDHeader string
	// Timestamp is nil, or the event time of a record of a source with a Timestamp option: what stream time
	// and the choice between inputs go by, instead of the record's own. An error means that the
	// record cannot be decoded (then the chain fails for it, too, and its policy decides).
	Timestamp func(in *broker.Record) (time.Time, error)
	// OutOfOrderness is how far the watermark stays behind the newest record.
	OutOfOrderness time.Duration
	// Idleness is after how long without a record the input no longer holds up the task's time; negative: never.
	Idleness time.Duration
	// Marks is set for internal topics in which the tasks that write tell their event time (record.Mark): then that is
	// what counts, and not the records'. MarkDelay is how far the watermark stays behind it, and MarkIdleness after how long
	// without anything the input holds nobody up, however the writers are; negative, as without an option: never.
	Marks        bool
	MarkDelay    time.Duration
	MarkIdleness time.Duration
}

// Sink is an output topic.
type Sink struct {
	Name     string
	Topic    string // as in Source
	Internal bool   // as in Source
	External bool   // as in Source
	// Partitions is the number of partitions of an internal topic; 0: the largest of the sub-topology's inputs.
	Partitions int32
	// Guarantee is the option of To; empty: the application's. See Ahead.
	Guarantee Level
	// Marks is as in Source. Lag is how far the records that come here may be behind the watermark without being late.
	Marks bool
	Lag   time.Duration
}

// JoinSpec is a join: partition p of all its inputs must hold the same keys.
type JoinSpec struct {
	Operator string
	// Sources are all inputs whose records meet there, as indices of Subtopology.Sources, ascending.
	Sources []int
}

// DedupSpec is a dedup operator's log.
type DedupSpec struct {
	Name   string
	Config dedup.Config
	// By is the operator on account of which the log is left out; empty: it has one.
	By string
	// Guards are the dedup operators before it in the same task that keep all repeats from it for at least its retention, nearest
	// first, whether its log is left out or not. While one of them does, a log that was left out can come back empty.
	Guards []string
}

// StoreSpec is a state store.
type StoreSpec struct {
	Name string
	// Retention is for stores that forget by time; 0 keeps a key until it is deleted.
	Retention time.Duration
}

// OperatorSpec is one node.
type OperatorSpec struct {
	Name string
	// Kind is source, map, map_values, filter, flat_map, key_by, dedup, aggregate, process, branch, merge, to, table, to_stream,
	// join or effect.
	Kind string
	// Policy is the operator's own error policy, or PolicyDefault.
	Policy Policy
}

func quote(s string) string { return strconv.Quote(s) }
