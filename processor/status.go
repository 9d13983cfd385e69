package processor

import (
	"time"

	"github.com/streamd/streamd/record"
)

// State is the state of an App.
type State string

// The states. Created -> Rebalancing -> Restoring -> Running -> Stopping; Running <-> Blocked; Failed from each.
const (
	Created     State = "created"
	Rebalancing State = "rebalancing"
	Restoring   State = "restoring"
	Running     State = "running"
	// Blocked: all is set, but something outside keeps records from being processed or their results from
	// being committed: an output topic that is missing, a transaction in the input that nobody ends.
	Blocked  State = "blocked"
	Stopping State = "stopping"
	Failed   State = "error"
)

// States lists all states in their order, for metrics.
var states = [...]State{Created, Rebalancing, Restoring, Running, Blocked, Stopping, Failed}

// TaskState is the state of a task; ARCHITECTURE.md has the transitions.
type TaskState string

// The states of a task.
const (
	TaskCreated    TaskState = "created"
	TaskRestoring  TaskState = "restoring"
	TaskRunning    TaskState = "running"
	TaskPaused     TaskState = "paused" // state disk full
	TaskRecovering TaskState = "recovering"
	TaskClosed     TaskState = "closed"
)

var taskStates = [...]TaskState{TaskCreated, TaskRestoring, TaskRunning, TaskPaused, TaskRecovering, TaskClosed}

// Status is what an App says of itself. All counts are of committed work.
type Status struct {
	Pipeline  string           `json:"pipeline"`
	State     State            `json:"state"`
	Reason    string           `json:"reason,omitempty"` // of Failed and Blocked, or why it waits
	Instance  string           `json:"instance"`
	Started   time.Time        `json:"started"`
	Tasks     []TaskStatus     `json:"tasks"`
	Operators []OperatorStatus `json:"operators"`
	Globals   []GlobalStatus   `json:"globals,omitempty"` // the global tables
	// Instances are those of the whole application. Asked for every ten seconds; nil: not known yet. Not to be changed.
	Instances    *InstancesStatus    `json:"instances,omitempty"`
	Transactions TransactionStatus   `json:"transactions"`
	Errors       []RecordErrorStatus `json:"errors,omitempty"` // the last ones, oldest first
}

// Ready says whether all owned tasks run and nothing holds them up.
func (s Status) Ready() bool { return s.State == Running }

// TaskStatus is one task that this process owns.
type TaskStatus struct {
	Name        string        `json:"name"` // sub-topology/partition
	Partition   int32         `json:"partition"`
	State       TaskState     `json:"state"`
	Reason      string        `json:"reason,omitempty"`
	Inputs      []InputStatus `json:"inputs"`
	StreamTime  time.Time     `json:"stream_time"`
	Sequence    uint64        `json:"sequence"`
	RestoreMode string        `json:"restore_mode,omitempty"` // none, tail or full
	Remaining   int64         `json:"restore_remaining"`
}

// InputStatus is the position in one input partition.
type InputStatus struct {
	Topic     string        `json:"topic"`
	Partition int32         `json:"partition"`
	Next      record.Offset `json:"next"`   // committed
	Stable    record.Offset `json:"stable"` // last stable offset
	Lag       int64         `json:"lag"`
}

// OperatorStatus sums an operator's counters over the tasks of this process.
type OperatorStatus struct {
	Name     string            `json:"name"`
	Kind     string            `json:"kind"`
	Counters map[string]uint64 `json:"counters"` // by topology.CounterKind
	Dedup    *DedupStatus      `json:"dedup,omitempty"`
	Effect   *EffectStatus     `json:"effect,omitempty"`
}

// EffectStatus counts the calls of an effect that are not settled, over the tasks of this process.
type EffectStatus struct {
	Waiting   int `json:"waiting"`   // to be made
	Running   int `json:"running"`   // being made
	Uncertain int `json:"uncertain"` // of both: an earlier process may have made them
	Hanging   int `json:"hanging"`   // given up, but their functions have not returned
}

// DedupStatus describes the ID log of a dedup operator, over the tasks of this process.
type DedupStatus struct {
	IDs               uint64        `json:"ids"`
	Retention         time.Duration `json:"retention_ns"`
	Oldest            time.Time     `json:"oldest"`
	BloomBytes        uint64        `json:"bloom_bytes"`
	BloomFill         float64       `json:"bloom_fill"`           // the highest
	FalsePositiveRate float64       `json:"false_positive_ratio"` // estimated, the highest
	Expired           uint64        `json:"expired"`
	// Rebuilds counts filters rebuilt, by reason.
	Rebuilds map[string]uint64 `json:"rebuilds,omitempty"`
	// Last are the last duplicates since the tasks came to this process, oldest first, at most 20.
	Last []DuplicateStatus `json:"last_duplicates,omitempty"`
}

// DuplicateStatus is one record that a dedup operator found to be a duplicate. It says where the record is, and nothing of what is in it.
type DuplicateStatus struct {
	Time     time.Time `json:"time"`     // of the commit
	Position string    `json:"position"` // topic/partition@offset of the record; empty: it is of a timer
	// Timestamp is the record's own, zero if it lies outside of the years 1 to 9999; FirstSeen is about the stream time at which the first one with the ID was processed: see dedup.Answer. Where
	// that one is, nothing keeps.
	Timestamp time.Time `json:"timestamp"`
	FirstSeen time.Time `json:"first_seen"`
	// Seen is where it was found: committed or open_transaction.
	Seen string `json:"seen"`
	// ID is a keyed hash of the ID, equal for equal IDs. The key is this process's and known to nobody, so that IDs cannot be guessed from it.
	ID string `json:"id_hash"`
}

// TransactionStatus sums the transactions of this process since its start.
type TransactionStatus struct {
	Committed  uint64            `json:"committed"`
	Aborted    map[string]uint64 `json:"aborted,omitempty"` // by reason
	LastCommit time.Time         `json:"last_commit"`
	OldestOpen time.Time         `json:"oldest_open"` // zero: none is open
	// Recent are the outcomes of the last transactions, oldest first, at most 50: why one was aborted, empty if it was committed.
	Recent []string `json:"recent,omitempty"`
}

// RecordErrorStatus is one record that an operator could not handle.
type RecordErrorStatus struct {
	Time     time.Time `json:"time"`
	Operator string    `json:"operator"`
	Stage    string    `json:"stage"`
	Action   string    `json:"action"`
	Position string    `json:"position"` // topic/partition@offset
	Error    string    `json:"error"`
}
