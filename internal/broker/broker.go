package broker

import (
	"context"
	"time"

	"github.com/streamd/streamd/record"
)

// Cluster gives readers, producers, metadata and administration.
type Cluster interface {
	// ID is the cluster's ID.
	ID(ctx context.Context) (string, error)
	// Topics describes topics by name. A name that does not exist is missing from the answer.
	Topics(ctx context.Context, names ...string) (map[string]Topic, error)
	// CreateTopic makes a topic and returns when every broker asked knows it. ErrTopicExists if it is there.
	CreateTopic(ctx context.Context, t Topic) error
	// DeleteRecords moves the start of the partitions' logs up to before the given offsets.
	DeleteRecords(ctx context.Context, before map[record.TopicPartition]record.Offset) error

	// StartOffsets returns the log start of each partition.
	StartOffsets(ctx context.Context, tps []record.TopicPartition) (map[record.TopicPartition]record.Offset, error)
	// HighWatermarks returns the next offset of each partition, open transactions included.
	HighWatermarks(ctx context.Context, tps []record.TopicPartition) (map[record.TopicPartition]record.Offset, error)
	// StableOffsets returns the last stable offset of each partition: what read_committed readers can reach.
	StableOffsets(ctx context.Context, tps []record.TopicPartition) (map[record.TopicPartition]record.Offset, error)
	// CommittedOffsets asks the group coordinator with RequireStable: while a transaction that holds offsets
	// of these partitions is undecided it answers ErrUnstableOffsets, and the caller asks again.
	// A partition without a committed offset has Next == record.NoOffset.
	CommittedOffsets(ctx context.Context, group string, tps []record.TopicPartition) (map[record.TopicPartition]CommittedOffset, error)

	// NewReader makes a reader without partitions. It connects lazily.
	NewReader(ReaderConfig) Reader
	// NewProducer makes a transactional producer. It must be initialised with Init first.
	NewProducer(ProducerConfig) Producer
	// NewSender makes a producer without transactions. It connects lazily.
	NewSender(SenderConfig) Sender
	// Join runs this process's membership in a group until ctx ends or an error that only a stop can answer.
	Join(ctx context.Context, g GroupConfig, h GroupHandler) error
	// Members asks the coordinator who is in a group, sorted by instance. ErrRebalancing: the group is between two generations.
	// A group that does not exist has no members.
	Members(ctx context.Context, group string) ([]Member, error)
	// LeaveGroup removes a static member, so that its partitions move at once.
	LeaveGroup(ctx context.Context, group, instance string) error
	// Close ends all connections. Readers and producers are closed by their owners before.
	Close() error
}

// CleanupPolicy is a topic's cleanup.policy.
type CleanupPolicy string

// The policies of internal topics.
const (
	Compact CleanupPolicy = "compact"
	Delete  CleanupPolicy = "delete"
)

// Topic describes a topic, to create it or as it is.
type Topic struct {
	Name       string
	ID         string // UUID, 36 characters; empty when creating. Differs if a topic was deleted and made again.
	Partitions int32
	Replicas   int16 // -1: the cluster's default, when creating
	Cleanup    CleanupPolicy
	Retention  time.Duration // retention.ms for Delete; negative: for ever
	// DeleteRetention is delete.retention.ms: how long a tombstone outlives compaction.
	DeleteRetention time.Duration
	LogAppendTime   bool // message.timestamp.type=LogAppendTime
	MinInSync       int  // min.insync.replicas; 0 when creating: the cluster's default
	MaxMessageBytes int  // max.message.bytes; 0 when creating: the cluster's default
}

// Record is a record as it is read.
type Record struct {
	Offset    record.Offset
	Timestamp time.Time
	Key       []byte // nil: the record has no key
	Value     []byte // nil: a tombstone
	Headers   record.Headers
}

// Size is what the record counts for in limits and metrics: key, value and header bytes.
func (r *Record) Size() int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}

// Output is a record to be produced.
type Output struct {
	record.TopicPartition
	Timestamp time.Time
	Key       []byte
	Value     []byte
	Headers   record.Headers
}

// CommittedOffset is a committed position of a group and what was said with it.
type CommittedOffset struct {
	Next        record.Offset
	LeaderEpoch int32 // -1: unknown
	Metadata    string
}

// GroupMeta names the member and generation under which records were read. It is captured with the records
// and travels with their commit, so that the coordinator can refuse a member that lost them (KIP-447).
type GroupMeta struct {
	Group      string
	Member     string
	Instance   string // group.instance.id
	Generation int32  // < 0: none; a commit with it is refused before anything is sent
}

// OffsetCommit is one input position to commit.
type OffsetCommit struct {
	record.TopicPartition
	Next     record.Offset
	Metadata string
}

// Outcome is how a commit ended.
type Outcome uint8

// The three outcomes; see the package documentation.
const (
	NotCommitted Outcome = iota
	Committed
	Unknown
)

// String returns the outcome's name.
func (o Outcome) String() string { return [...]string{"not committed", "committed", "unknown"}[o] }

// Receipt is what a committed transaction leaves behind.
type Receipt struct {
	// Next is, for each partition written to, the offset after the transaction's last record there
	// (its commit marker stands at or after it).
	Next map[record.TopicPartition]record.Offset
	// Phases of the commit, for metrics. Flush: until every produce was acknowledged.
	Flush, Offsets, EndTxn time.Duration
}

// ProducerConfig is the configuration of one transactional producer.
type ProducerConfig struct {
	TransactionalID    string
	TransactionTimeout time.Duration // the broker aborts the transaction after this time; default 10 s
	CommitDeadline     time.Duration // for one Commit; default 8/10 of the transaction timeout
	Compression        string        // none (default), snappy, lz4, zstd, gzip
	MaxBatchBytes      int           // of one record batch, default 900 KiB: below max.message.bytes' default of 1 MiB
}

// Producer is a transactional producer.
type Producer interface {
	// Init gets a producer ID and epoch, the first time; a new epoch each later time. It returns when every
	// older transaction of this transactional ID is decided, waiting without limit but for ctx, and clears
	// neither the buffer nor anything that was committed. ErrFenced: another live producer owns the ID.
	Init(ctx context.Context) error
	// Add buffers one record of the current transaction. Nothing is sent.
	Add(Output)
	// Buffered returns how many records and bytes (as by Record.Size plus framing) are buffered.
	Buffered() (records, bytes int)
	// Commit runs the transaction: the buffered records and these offsets. Either may be empty, not both.
	Commit(ctx context.Context, meta GroupMeta, offsets []OffsetCommit) (Receipt, Outcome, error)
	// Reset drops the buffer. It does not touch the broker: nothing of the buffer was sent or Init follows.
	Reset()
	// Close ends the producer's connections.
	Close()
}

// SenderConfig is the configuration of one Sender.
type SenderConfig struct {
	Deadline      time.Duration // for one Send; default 8 s
	Compression   string        // as of a ProducerConfig
	MaxBatchBytes int           // as of a ProducerConfig
}

// Sender is a producer without transactions: what it sends is seen at once, and never taken back. Nothing fences it.
type Sender interface {
	// Add buffers one record. Nothing is sent.
	Add(Output)
	// Send sends what is buffered, in the order of Add within a partition, and returns once all of it is acknowledged by
	// all replicas in sync. A request without an answer is sent again under its sequence numbers, so that the broker takes it
	// once. After an error what was not acknowledged is buffered still, and may stand in the topics all the same:
	// another Send then writes it once more. The errors are those of Producer.Commit.
	Send(ctx context.Context) error
	// Reset drops the buffer: what an error has left in doubt stays so.
	Reset()
	// Close ends the sender's connections.
	Close()
}

// Isolation is a reader's isolation level.
type Isolation uint8

// The isolation levels.
const (
	ReadCommitted Isolation = iota
	ReadUncommitted
)

// ReaderConfig is the configuration of a reader.
type ReaderConfig struct {
	Isolation Isolation
	MaxWait   time.Duration // of one fetch at the broker; default 250 ms
	MaxBytes  int32         // per partition and fetch, default 1 MiB. A batch larger than this is still read.
	// Buffer is how many fetched batches wait for Poll at most, per reader; default 8.
	Buffer int
	// Pace is the least time from one fetch of a broker to the next while they bring little, so that a trickle
	// of records does not cost the broker a request for each. The first record after a silence is not held up.
	// Default 0.
	Pace time.Duration
	// Answers hands on answers that brought nothing, too, as a Batch with Nothing set. Only they tell an input in which
	// nothing is from one of which nothing is heard. Default false.
	Answers bool
}

// Batch is what one fetch brought for one partition.
type Batch struct {
	record.TopicPartition
	// Tag is the value given to Seek. A batch whose tag is not the current one belongs to an assignment or a
	// position that is gone: drop it.
	Tag uint64
	// Records are the visible ones, in offset order. It may be empty: a batch of markers or aborted records
	// still moves Next.
	Records []Record
	// Next is the position behind everything that was fetched, markers and aborted records included.
	Next record.Offset
	// HighWatermark and LastStable are the broker's at the time of the fetch.
	HighWatermark, LastStable record.Offset
	// Nothing says that the answer had neither records nor markers: Next is the position that was asked for.
	Nothing bool
	// Asked is when the fetch was sent, by this host's clock: the answer is of then or later. Zero with Err.
	Asked time.Time
	// Err ends this partition's reading until the next Seek. errors.Is: ErrOffsetOutOfRange,
	// ErrUnknownTopic, ErrAuthorization, ErrCorrupt. What heals by itself is retried inside.
	Err error
}

// Reader reads partitions from given positions.
type Reader interface {
	// Seek starts, or moves, the reading of a partition at next. Batches carry tag.
	Seek(tp record.TopicPartition, next record.Offset, tag uint64)
	// Pause leaves a partition out of the next fetches, or takes it in again. Data in flight still arrives.
	Pause(tp record.TopicPartition, paused bool)
	// Remove ends the reading of a partition.
	Remove(tp record.TopicPartition)
	// Poll returns what has arrived, waiting up to wait for the first batch. It returns early, maybe empty,
	// after Wake and when ctx ends.
	Poll(ctx context.Context, wait time.Duration) []Batch
	// Wake makes a Poll that waits, or the next one, return at once. Safe from any goroutine.
	Wake()
	// Close ends the reader.
	Close()
}

// GroupConfig is the configuration of a membership.
type GroupConfig struct {
	Group    string
	Instance string // static membership; never empty
	// CoPartitioned are the topic sets of the sub-topologies: partition p of all topics of a set goes to one member.
	CoPartitioned [][]string
	// UserData travels with each JoinGroup to the leader of the group: what this member owns and where its
	// page is. Called from the membership's goroutine.
	UserData          func() []byte
	SessionTimeout    time.Duration // default 45 s
	HeartbeatInterval time.Duration // default session timeout / 15
	RebalanceTimeout  time.Duration // default 60 s: how long a revoke may take
}

// GroupHandler is told of assignments. Calls come one at a time.
type GroupHandler interface {
	// Assigned is called after each completed join, with everything this member now owns. meta is to be
	// captured with each record that is read from now on. It must return soon (start work, do not wait for it).
	Assigned(meta GroupMeta, owned []record.TopicPartition)
	// Revoked is called before partitions are given back (cooperative: only those). It returns when their
	// work is committed or dropped; ctx ends at the rebalance timeout.
	Revoked(ctx context.Context, gone []record.TopicPartition)
	// Lost is called when the membership ended without a chance to commit (session timeout, fenced).
	// Whatever is in flight under the old meta will be refused.
	Lost(gone []record.TopicPartition)
}

// Member is what a group's coordinator knows of one of its members.
type Member struct {
	Instance string // group.instance.id, empty for a member without one
	UserData []byte // as of its last JoinGroup; see GroupConfig
	// Owned is what the last assignment gave it. What it gives back for another member is not in it any more, and is
	// nobody's until the next assignment.
	Owned []record.TopicPartition
}
