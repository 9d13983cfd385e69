package simbroker

import "github.com/streamd/streamd/internal/broker"

// Code is a Kafka error code, as answered by a broker.
type Code int16

// The codes that the model answers or that a simulation makes it answer.
const (
	UnknownServerError          Code = -1
	None                        Code = 0
	OffsetOutOfRange            Code = 1
	CorruptMessage              Code = 2
	UnknownTopicOrPartition     Code = 3
	LeaderNotAvailable          Code = 5
	NotLeaderOrFollower         Code = 6
	RequestTimedOut             Code = 7
	MessageTooLarge             Code = 10
	CoordinatorLoadInProgress   Code = 14
	CoordinatorNotAvailable     Code = 15
	NotCoordinator              Code = 16
	NotEnoughReplicas           Code = 19
	NotEnoughReplicasAfter      Code = 20
	IllegalGeneration           Code = 22
	UnknownMemberID             Code = 25
	RebalanceInProgress         Code = 27
	TopicAuthorizationFailed    Code = 29
	GroupAuthorizationFailed    Code = 30
	UnsupportedVersion          Code = 35
	TopicAlreadyExists          Code = 36
	InvalidPartitions           Code = 37
	OutOfOrderSequence          Code = 45
	DuplicateSequence           Code = 46
	InvalidProducerEpoch        Code = 47
	InvalidTxnState             Code = 48
	InvalidProducerIDMapping    Code = 49
	InvalidTransactionTimeout   Code = 50
	ConcurrentTransactions      Code = 51
	TransactionalIDAuthFailed   Code = 53
	KafkaStorageError           Code = 56
	UnknownProducerID           Code = 59
	FencedLeaderEpoch           Code = 74
	FencedInstanceID            Code = 82
	UnstableOffsetCommit        Code = 88
	ProducerFenced              Code = 90
	TransactionAbortable        Code = 120
	noAnswer                    Code = -100 // the client's own: nothing came back
	defaultMaxMessageBytes           = 1 << 20
	maxTransactionTimeoutMillis      = 15 * 60 * 1000
)

// kind is the error of internal/broker that a code means to a caller who cannot heal it.
// A fenced epoch is abortable here: only Init can tell another owner from a transaction timeout.
func (c Code) kind() error {
	switch c {
	case OffsetOutOfRange:
		return broker.ErrOffsetOutOfRange
	case CorruptMessage:
		return broker.ErrCorrupt
	case UnknownTopicOrPartition:
		return broker.ErrUnknownTopic
	case MessageTooLarge:
		return broker.ErrRecordTooLarge
	case IllegalGeneration, RebalanceInProgress:
		return broker.ErrIllegalGeneration
	case UnknownMemberID, FencedInstanceID:
		return broker.ErrUnknownMember
	case TopicAuthorizationFailed, GroupAuthorizationFailed, TransactionalIDAuthFailed:
		return broker.ErrAuthorization
	case UnsupportedVersion:
		return broker.ErrUnsupported
	case TopicAlreadyExists:
		return broker.ErrTopicExists
	case InvalidTransactionTimeout, InvalidPartitions:
		return broker.ErrConfig
	case UnstableOffsetCommit:
		return broker.ErrUnstableOffsets
	}
	return broker.ErrAbortable
}

// reaction is what the client does about an answer.
type reaction uint8

const (
	fail    reaction = iota // ends the operation
	again                   // answered: the same request may be sent again
	refresh                 // the same, after asking where the leader is
)

// coordinatorReaction is for requests to a coordinator (KAFKA.md section 3: 51, 14, 15 and 16).
func coordinatorReaction(c Code) reaction {
	switch c {
	case ConcurrentTransactions, CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator:
		return again
	}
	return fail
}

// addPartitionsReaction is the same, and an unknown topic may be metadata that lags.
func addPartitionsReaction(c Code) reaction {
	if c == UnknownTopicOrPartition {
		return again
	}
	return coordinatorReaction(c)
}

// produceReaction is for Produce. The batch that is sent again has the same sequence number, so that
// the broker recognises one that it has already appended.
func produceReaction(c Code) reaction {
	switch c {
	case NotEnoughReplicas, NotEnoughReplicasAfter:
		return again
	case UnknownTopicOrPartition, LeaderNotAvailable, NotLeaderOrFollower, RequestTimedOut, KafkaStorageError, FencedLeaderEpoch:
		return refresh
	}
	return fail
}
