package topology

import (
	"time"

	"github.com/streamd/streamd/record"
)

// options is what the options of all operators set. Each operator reads its own part.
type options struct {
	name        string
	policy      Policy
	preserveKey bool

	// Where a record's ID comes from.
	id         any // func(record.Record[K, V]) record.ID
	idHeader   *string
	idPosition bool
	onMissing  Action

	entrance   Entrance  // "": records are produced to the topic by others
	identified bool      // with entrance: the header record-id is the sender's
	bounds     []Finding // with entrance: what its class rests on

	timestamp       any // func(record.Record[K, V]) (time.Time, error)
	timestampHeader *string
	outOfOrderness  *time.Duration
	idleness        *time.Duration

	retention         time.Duration
	expectedIDs       int
	falsePositiveRate float64
	scopeStream       bool
	comparePayload    bool
	onConflict        Action
	onTooLate         Action
	onDuplicate       Action
	always            bool   // keep the log
	sameID            string // what the ID function computes, see SameID

	emit   emitMode
	onLate Action
	merge  any // func(A, A) (A, error)

	partitions *int32
	withoutID  bool
	feedback   bool  // the topic may be read, too
	guarantee  Level // empty: the application's
	partition  any   // func(record.Record[K, V], int32) record.Partition
	maxBytes   *int64
	stores     []StateStore
	timers     []timerHandler
	schedules  []scheduleHandler
	effect     EffectSpec
}

// setting is how an option changes the options; the types around it say where it may stand.
type setting func(*options)

func (f setting) apply(o *options) { f(o) }

type option interface{ apply(*options) }

// The options of each operator. Of an option that is given twice the last one counts.
type (
	// SourceOption is an option of From: Name, OnError, Timestamp, TimestampHeader, OutOfOrderness, WithIdleness, ID,
	// IDHeader, IDPosition, OnMissingID, EnteredBy.
	SourceOption interface {
		option
		source()
	}
	// StepOption is an option of the stateless operators: Name, OnError, PreserveKey (Map and FlatMap).
	StepOption interface {
		option
		step()
	}
	// KeyByOption is an option of KeyBy: Partitions, OnError, OutOfOrderness, WithIdleness.
	KeyByOption interface {
		option
		keyBy()
	}
	// DedupOption is an option of Dedup.
	DedupOption interface {
		option
		dedup()
	}
	// AggregateOption is an option of Aggregate, Count and the other aggregates: OnError; of windowed ones also
	// EmitOnUpdate, EmitOnClose, OnLate and MergeWith.
	AggregateOption interface {
		option
		aggregate()
	}
	// TableOption is an option of ToTable: OnError.
	TableOption interface {
		option
		table()
	}
	// GlobalTableOption is an option of GlobalTable: Name, OnError, MaxBytes.
	GlobalTableOption interface {
		option
		global()
	}
	// JoinOption is an option of the joins: OnError; of joins of two streams also OnLate.
	JoinOption interface {
		option
		join()
	}
	// ProcessOption is an option of Process: WithStore, OnTimer, Punctuate, PunctuateWall, PreserveKey, OnError.
	ProcessOption interface {
		option
		process()
	}
	// EffectOption is an option of Effect: Concurrency, Backlog, Timeout, Retries, OnUncertain, Idempotent, OnError.
	EffectOption interface {
		option
		calls()
	}
	// SinkOption is an option of To: Name, IDHeader, WithoutID, Partition, Feedback, Guarantee, OnError.
	SinkOption interface {
		option
		sink()
	}
)

// collect applies the options in their order.
func collect[O option](opts []O) options {
	var o options
	for _, x := range opts {
		x.apply(&o)
	}
	return o
}

// Option types; each says by its methods where it may be given.
type (
	// NameOption names a source, a stateless operator or a sink.
	NameOption struct{ setting }
	// PolicyOption is the error policy of an operator.
	PolicyOption struct{ setting }
	// IDOption says where an ID comes from.
	IDOption struct{ setting }
	// IDHeaderOption says which header holds the ID.
	IDHeaderOption struct{ setting }
	// MissingOption says what becomes of a record without an ID.
	MissingOption struct{ setting }
	// KeyOption is a promise about keys.
	KeyOption struct{ setting }
	// PartitionsOption is the number of partitions of a repartition topic.
	PartitionsOption struct{ setting }
	// TimeOption says how an input tells event time.
	TimeOption struct{ setting }
	// SourceSetting is an option of From alone.
	SourceSetting struct{ setting }
	// DedupSetting is an option of Dedup alone.
	DedupSetting struct{ setting }
	// AggregateSetting is an option of the aggregates alone.
	AggregateSetting struct{ setting }
	// LateOption says what becomes of late records.
	LateOption struct{ setting }
	// ProcessSetting is an option of Process alone.
	ProcessSetting struct{ setting }
	// EffectSetting is an option of Effect alone.
	EffectSetting struct{ setting }
	// SinkSetting is an option of To alone.
	SinkSetting struct{ setting }
	// GlobalSetting is an option of GlobalTable alone.
	GlobalSetting struct{ setting }
)

func (NameOption) source() {}
func (NameOption) step()   {}
func (NameOption) global() {}
func (NameOption) sink()   {}

func (PolicyOption) source()    {}
func (PolicyOption) step()      {}
func (PolicyOption) keyBy()     {}
func (PolicyOption) dedup()     {}
func (PolicyOption) aggregate() {}
func (PolicyOption) process()   {}
func (PolicyOption) calls()     {}
func (PolicyOption) table()     {}
func (PolicyOption) join()      {}
func (PolicyOption) global()    {}
func (PolicyOption) sink()      {}

func (IDOption) source() {}
func (IDOption) dedup()  {}

func (IDHeaderOption) source() {}
func (IDHeaderOption) dedup()  {}
func (IDHeaderOption) sink()   {}

func (MissingOption) source() {}
func (MissingOption) dedup()  {}

func (KeyOption) step()    {}
func (KeyOption) process() {}

func (PartitionsOption) keyBy() {}
func (PartitionsOption) dedup() {}

func (TimeOption) source() {}
func (TimeOption) keyBy()  {}
func (TimeOption) dedup()  {}

func (SourceSetting) source()       {}
func (DedupSetting) dedup()         {}
func (AggregateSetting) aggregate() {}
func (LateOption) aggregate()       {}
func (LateOption) join()            {}
func (ProcessSetting) process()     {}
func (EffectSetting) calls()        {}
func (SinkSetting) sink()           {}
func (GlobalSetting) global()       {}

// Name names a source (default: its topic), a stateless operator (default: kind and number, as
// "map-2") or a sink (default: "to-" and its topic). Letters, digits, '.', '_' and '-'.
//
// The name of an operator that makes new records (Map, MapValues, FlatMap) is a part of their IDs.
// Give one where a reader of the outputs drops duplicates by ID: an invented name shifts when
// operators are added before it.
func Name(name string) NameOption {
	return NameOption{func(o *options) { o.name = name }}
}

// OnError says what becomes of a record for which the operator fails. Default PolicyDefault: as the
// application says.
func OnError(p Policy) PolicyOption {
	return PolicyOption{func(o *options) { o.policy = p }}
}

// Action is what is done with a record that a dedup operator or a source does not simply let pass.
type Action uint8

// The actions. Which ones are allowed, and the default, stands at each option.
const (
	ActionDefault Action = iota
	Stop                 // the application stops at the record
	DeadLetter           // to the dead letter topic
	Drop                 // counted, nothing else
	Forward              // passed on
)

// String returns the action's name as it stands in pipeline files.
func (a Action) String() string {
	names := [...]string{"default", "stop", "dead_letter", "drop", "forward"}
	if int(a) < len(names) {
		return names[a]
	}
	return "unknown"
}

// policy is how an error with this action is to be handled.
func (a Action) policy(otherwise Policy) Policy {
	switch a {
	case Stop:
		return PolicyStop
	case DeadLetter:
		return PolicyDeadLetter
	}
	return otherwise
}

// ID takes the ID from the decoded record. For Dedup the default is the record's own ID.
// The function must give the same answer for the same record, always.
func ID[K, V any](fn func(record.Record[K, V]) record.ID) IDOption {
	return IDOption{func(o *options) { o.id, o.idHeader, o.idPosition = fn, nil, false }}
}

// IDHeader is, for From and Dedup, the header from which the ID is taken (the last one with that
// key). For To it is the header into which the ID is written, default "record-id".
func IDHeader(key string) IDHeaderOption {
	return IDHeaderOption{func(o *options) { o.id, o.idHeader, o.idPosition = nil, &key, false }}
}

// IDPosition makes the position (cluster, topic UUID, partition, offset) the ID, whatever headers a
// record has. It protects against our own re-delivery only: a record that a producer sent twice has
// two positions.
func IDPosition() SourceSetting {
	return SourceSetting{func(o *options) { o.id, o.idHeader, o.idPosition = nil, nil, true }}
}

// OnMissingID says what becomes of a record without a usable ID (none, empty, or longer than
// record.MaxIDBytes): Stop (default), DeadLetter or Forward. Forwarded, the record has no ID: a
// Dedup with ID still can give it one, its outputs carry none.
func OnMissingID(a Action) MissingOption {
	return MissingOption{func(o *options) { o.onMissing = a }}
}

// PreserveKey promises that the function gives its records the key of the input, so that they are
// still in their key's partition and Aggregate may follow without KeyBy. MapValues needs no
// promise. A broken one gives wrong totals.
func PreserveKey() KeyOption {
	return KeyOption{func(o *options) { o.preserveKey = true }}
}

// Partitions is the number of partitions of the repartition topic, at least 1. Default: the largest
// number of the sub-topology's inputs.
func Partitions(n int32) PartitionsOption {
	return PartitionsOption{func(o *options) { o.partitions = &n }}
}
