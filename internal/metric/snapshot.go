package metric

import "time"

// Snapshot is what a pipeline says of itself at one scrape. It is read by one goroutine and must not be
// changed after it was handed out. Of lists with equal names the counters are summed.
type Snapshot struct {
	// State is the current state; States are all there are, so that the others show 0.
	State   string
	States  []string
	Started time.Time
	// Tasks counts this process's tasks by state. Include the states that no task is in.
	Tasks map[string]int
	// StreamTime is the lowest of the tasks; zero: no record yet.
	StreamTime time.Time
	// OldestOpen is when the oldest open transaction began; zero: none is open.
	OldestOpen time.Time
	// LastCommit is the time of the last commit that covered a record; zero: none yet.
	LastCommit time.Time
	// Unknown says that the counters of records are left out, since a task whose part of them is not known yet will move them by
	// it: a counter that begins at 0 and then is what it was before looks like one that was reset.
	Unknown bool

	Inputs    []Input
	Topics    []Topic
	Operators []Operator
	Stores    []Store
	Globals   []Global
}

// Global holds the figures of a global table of this process.
type Global struct {
	Name    string
	Rows    int
	Bytes   int64
	Lag     int64     // offsets that are known to be committed and not in the rows
	AsOf    time.Time // the rows are those of the topic as of then; zero: not known yet
	Skipped uint64    // records that were no rows
}

// Input is an input partition that this process owns.
type Input struct {
	Topic     string
	Partition int32
	Lag       int64 // last stable offset minus next; negative (not known yet) shows 0
}

// Topic holds the counters of an input or output topic: list a topic once for each direction in which
// it is used, and a nil direction shows nothing.
type Topic struct {
	Name     string
	Consumed *Volume
	Produced *Volume
}

// Volume counts records and their key, value and header bytes.
type Volume struct{ Records, Bytes uint64 }

// Operator holds the counters of one node of the topology.
type Operator struct {
	Name string
	// Kind is the operator's kind as the topology names it: it decides which counters show 0 before
	// they first move.
	Kind string
	// Counters by topology.CounterKind, and by ErrorCounter. A kind that this package does not know is left out.
	Counters map[string]uint64
	Dedup    *Dedup // of a dedup operator
	Effect   *Effect
}

// Effect counts the calls of an effect that are not settled, over the tasks of this process.
type Effect struct{ Waiting, Running, Uncertain, Hanging int }

// Dedup describes the ID log of a dedup operator over the tasks of this process.
type Dedup struct {
	IDs                uint64
	Retention          time.Duration
	Oldest             time.Time // zero: no ID yet
	BloomBytes         uint64
	BloomFill          float64 // the highest, 0 to 1
	FalsePositiveRatio float64 // the highest estimate, 0 to 1
	Expired            uint64
	Rebuilds           map[string]uint64 // by reason: start, rotate, grow
}

// Store holds the figures of one state store or ID log.
type Store struct {
	Name             string
	LSM, ValueLog    uint64 // bytes on disk
	WrittenRecords   uint64 // to its changelog topic, committed
	WrittenBytes     uint64
	RestoredRecords  uint64 // since the start of the process
	RestoreRemaining int64
}

// ErrorCounter names the counter of an operator's failed records by stage (decode, id, process, encode,
// produce) and action (dead_letter, skip). Names are stored in commit records: never change them.
func ErrorCounter(stage, action string) string { return errorPrefix + stage + "/" + action }

const errorPrefix = "errors/"
