package kafka

import (
	"fmt"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
)

// request names the requests that this package sends, as they stand in errors.
type request string

const (
	reqInit            request = "init producer"
	reqAddPartitions   request = "add partitions to transaction"
	reqAddOffsets      request = "add offsets to transaction"
	reqProduce         request = "produce"
	reqTxnOffsetCommit request = "commit offsets in transaction"
	reqEndTxn          request = "end transaction"
	reqFetch           request = "fetch"
	reqListOffsets     request = "list offsets"
	reqOffsetFetch     request = "fetch committed offsets"
	reqMetadata        request = "describe topics"
	reqConfigs         request = "describe configs"
	reqCreateTopic     request = "create topic"
	reqDeleteRecords   request = "delete records"
	reqCoordinator     request = "find coordinator"
	reqJoin            request = "join group"
	reqLeave           request = "leave group"
	reqMembers         request = "describe group"
	reqHeartbeat       request = "heartbeat"
	reqConnect         request = "connect"
	reqProducers       request = "describe producers"
)

// reaction is what is done about an answered error.
type reaction uint8

const (
	// done: no error, or one that means success.
	done reaction = iota
	// again: the same request to the same broker, after a pause.
	again
	// elsewhere: find the leader or coordinator anew, then the same request.
	elsewhere
	// markers: the markers of the last transaction are not written yet; again, after about 1 ms.
	markers
	// halve: the batch is too large; split it. A single record is the operator's to decide.
	halve
	// rerun: the transaction is lost, nothing of it was committed. Init, then run it again.
	rerun
	// renew: as rerun, but the producer ID is gone: Init asks for a new one.
	renew
	// suspect: the epoch is old. Init once: it answers if it was only the transaction timeout, and is
	// refused if another producer owns the ID.
	suspect
	// regroup: generation or member are not the group's. Init, then look at the assignment.
	regroup
	// stop: only an operator or a new configuration helps.
	stop
)

// String returns the reaction's name.
func (r reaction) String() string {
	return [...]string{"done", "again", "elsewhere", "markers", "halve", "rerun", "renew", "suspect", "regroup", "stop"}[r]
}

// verdict is a row of the table.
type verdict struct {
	kind  error
	react reaction
}

// codes newer than sarama's list.
const (
	codeUnknownTopicID      sarama.KError = 100
	codeInconsistentTopicID sarama.KError = 103
	codeTransactionAbort    sarama.KError = 120 // TRANSACTION_ABORTABLE (KIP-890)
)

// classify says what an answered error code means for a request and what is done about it. It is the
// only place that decides. Codes that it does not know are ErrAbortable and rerun: nothing was
// committed, and Init leaves the broker in a known state.
//
//lint:ignore ST1008 the kind is what was asked for, not a failure of this function
func classify(req request, code sarama.KError) (kind error, react reaction) {
	if code == sarama.ErrNoError {
		return nil, done
	}
	v, special := bySpecialCase(req, code)
	if !special {
		v = byCode(code)
	}
	return v.kind, v.react
}

// bySpecialCase holds what depends on the request.
func bySpecialCase(req request, code sarama.KError) (verdict, bool) {
	switch req {
	case reqProduce:
		switch code {
		case sarama.ErrDuplicateSequenceNumber:
			// The batch is in the log already: an answered retry. It can be nothing else, since an
			// unanswered request is never sent again with the same epoch.
			return verdict{nil, done}, true
		case sarama.ErrInvalidMessage: // the batch was damaged on its way: it is good in memory
			return verdict{broker.ErrAbortable, rerun}, true
		}
	case reqTxnOffsetCommit:
		switch code {
		case sarama.ErrFencedInstancedId:
			return verdict{broker.ErrUnknownMember, regroup}, true
		case sarama.ErrUnknownTopicOrPartition: // a group keeps offsets of topics that are gone; refused once they are deleted
			return verdict{broker.ErrUnknownTopic, elsewhere}, true
		}
	case reqEndTxn:
		// Sent again only where the coordinator has plainly not looked at it. Everything else leaves
		// the outcome unknown, which only Init decides.
		if v := byCode(code); code != sarama.ErrConsumerCoordinatorNotAvailable && code != sarama.ErrNotCoordinatorForConsumer &&
			code != sarama.ErrOffsetsLoadInProgress && (v.react == again || v.react == elsewhere) {
			return verdict{v.kind, rerun}, true
		}
	case reqFetch, reqListOffsets, reqDeleteRecords, reqOffsetFetch, reqMetadata, reqConfigs, reqCoordinator, reqProducers, reqMembers:
		switch code {
		case sarama.ErrUnknown:
			return verdict{broker.ErrUnreachable, again}, true
		case sarama.ErrInvalidMessage:
			return verdict{broker.ErrCorrupt, elsewhere}, true
		}
	case reqCreateTopic:
		if code == sarama.ErrInvalidReplicationFactor {
			return verdict{broker.ErrConfig, stop}, true
		}
	}
	return verdict{}, false
}

// byCode holds what a code means everywhere else.
func byCode(code sarama.KError) verdict {
	switch code {
	case sarama.ErrOffsetOutOfRange:
		return verdict{broker.ErrOffsetOutOfRange, stop}
	case sarama.ErrInvalidMessage:
		return verdict{broker.ErrCorrupt, rerun}
	case sarama.ErrUnknownTopicOrPartition, codeUnknownTopicID, codeInconsistentTopicID:
		// Also answered while a new topic's metadata spreads: given up at the deadline only.
		return verdict{broker.ErrUnknownTopic, elsewhere}
	case sarama.ErrLeaderNotAvailable, sarama.ErrNotLeaderForPartition, sarama.ErrRequestTimedOut, sarama.ErrBrokerNotAvailable,
		sarama.ErrReplicaNotAvailable, sarama.ErrNetworkException, sarama.ErrConsumerCoordinatorNotAvailable,
		sarama.ErrNotCoordinatorForConsumer, sarama.ErrNotController, sarama.ErrKafkaStorageError, sarama.ErrFencedLeaderEpoch,
		sarama.ErrUnknownLeaderEpoch, sarama.ErrListenerNotFound, sarama.ErrStaleControllerEpochCode, sarama.ErrStaleBrokerEpoch,
		sarama.ErrPreferredLeaderNotAvailable, sarama.ErrEligibleLeadersNotAvailable:
		return verdict{broker.ErrUnreachable, elsewhere}
	case sarama.ErrNotEnoughReplicas, sarama.ErrNotEnoughReplicasAfterAppend, sarama.ErrOffsetsLoadInProgress,
		sarama.ErrOffsetNotAvailable, sarama.ErrThrottlingQuotaExceeded, sarama.ErrFetchSessionIDNotFound,
		sarama.ErrInvalidFetchSessionEpoch:
		// Also what Kafka 4 answers when two requests of one transaction are verified at once (KIP-890).
		return verdict{broker.ErrUnreachable, again}
	case sarama.ErrConcurrentTransactions:
		return verdict{broker.ErrAbortable, markers}
	case sarama.ErrMessageSizeTooLarge, sarama.ErrMessageSetSizeTooLarge:
		return verdict{broker.ErrRecordTooLarge, halve}
	case sarama.ErrIllegalGeneration, sarama.ErrRebalanceInProgress:
		return verdict{broker.ErrIllegalGeneration, regroup}
	case sarama.ErrUnknownMemberId, sarama.ErrMemberIdRequired:
		return verdict{broker.ErrUnknownMember, regroup}
	case sarama.ErrFencedInstancedId:
		return verdict{broker.ErrFenced, stop}
	case sarama.ErrProducerFenced, sarama.ErrInvalidProducerEpoch:
		return verdict{broker.ErrFenced, suspect}
	case sarama.ErrInvalidProducerIDMapping:
		return verdict{broker.ErrAbortable, renew}
	case sarama.ErrUnstableOffsetCommit:
		return verdict{broker.ErrUnstableOffsets, again}
	case sarama.ErrTopicAlreadyExists:
		return verdict{broker.ErrTopicExists, stop}
	}
	return byCodeForGood(code)
}

// byCodeForGood holds the codes that only an operator can heal, and the default.
func byCodeForGood(code sarama.KError) verdict {
	switch code {
	case sarama.ErrTopicAuthorizationFailed, sarama.ErrGroupAuthorizationFailed, sarama.ErrClusterAuthorizationFailed,
		sarama.ErrTransactionalIDAuthorizationFailed, sarama.ErrDelegationTokenAuthorizationFailed:
		return verdict{broker.ErrAuthorization, stop}
	case sarama.ErrUnsupportedSASLMechanism, sarama.ErrIllegalSASLState, sarama.ErrSASLAuthenticationFailed,
		sarama.ErrDelegationTokenAuthDisabled, sarama.ErrDelegationTokenNotFound, sarama.ErrDelegationTokenOwnerMismatch,
		sarama.ErrDelegationTokenRequestNotAllowed, sarama.ErrDelegationTokenExpired, sarama.ErrInvalidPrincipalType:
		return verdict{broker.ErrAuthentication, stop}
	case sarama.ErrUnsupportedVersion, sarama.ErrUnsupportedForMessageFormat, sarama.ErrUnsupportedCompressionType,
		sarama.ErrSecurityDisabled:
		return verdict{broker.ErrUnsupported, stop}
	case sarama.ErrOffsetMetadataTooLarge, sarama.ErrInvalidTopic, sarama.ErrInvalidRequiredAcks, sarama.ErrInconsistentGroupProtocol,
		sarama.ErrInvalidGroupId, sarama.ErrInvalidSessionTimeout, sarama.ErrInvalidCommitOffsetSize, sarama.ErrInvalidTimestamp,
		sarama.ErrInvalidPartitions, sarama.ErrInvalidReplicationFactor, sarama.ErrInvalidReplicaAssignment, sarama.ErrInvalidConfig,
		sarama.ErrPolicyViolation, sarama.ErrInvalidTransactionTimeout, sarama.ErrGroupMaxSizeReached, sarama.ErrInvalidRecord,
		sarama.ErrTopicDeletionDisabled, sarama.ErrLogDirNotFound:
		return verdict{broker.ErrConfig, stop}
	}
	return verdict{broker.ErrAbortable, rerun}
}

// codeError makes the error of an answered code.
func codeError(req request, where string, code sarama.KError) *broker.Error {
	kind, react := classify(req, code)
	if react == suspect && req != reqInit {
		// Only Init can tell a transaction timeout from another owner: until then it may be run again.
		kind = broker.ErrAbortable
	}
	return &broker.Error{Op: string(req), Where: where, Kind: kind, Code: int16(code), Cause: codeName(code), Remedy: remedy(req, where, code)}
}

// codeName gives the text of a code. sarama has none for some that Kafka has.
func codeName(code sarama.KError) error {
	switch code {
	case sarama.ErrProducerFenced:
		return fmt.Errorf("PRODUCER_FENCED: %w", code)
	case codeTransactionAbort:
		return fmt.Errorf("TRANSACTION_ABORTABLE: %w", code)
	}
	return code
}

// remedy says what an operator can do about a code. where is what the request was about.
func remedy(req request, where string, code sarama.KError) string {
	switch code {
	case sarama.ErrTopicAuthorizationFailed:
		switch req {
		case reqFetch, reqListOffsets, reqOffsetFetch, reqTxnOffsetCommit, reqProducers:
			return fmt.Sprintf("grant this principal Read on topic %s", where)
		case reqProduce, reqAddPartitions:
			return fmt.Sprintf("grant this principal Write on topic %s", where)
		case reqCreateTopic:
			return fmt.Sprintf("grant this principal Create on topic %s", where)
		case reqDeleteRecords:
			return fmt.Sprintf("grant this principal Delete on topic %s", where)
		}
		return fmt.Sprintf("grant this principal Describe on topic %s", where)
	case sarama.ErrGroupAuthorizationFailed:
		return fmt.Sprintf("grant this principal Read on group %s", where)
	case sarama.ErrTransactionalIDAuthorizationFailed:
		return fmt.Sprintf("grant this principal Write and Describe on transactional ID %s", where)
	case sarama.ErrClusterAuthorizationFailed:
		if req == reqCreateTopic {
			return fmt.Sprintf("grant this principal Create on topic %s or on the cluster", where)
		}
		return "grant this principal IdempotentWrite on the cluster"
	case sarama.ErrInvalidRecord:
		return "the topic refuses the record: a compacted topic takes no record without a key"
	case sarama.ErrInvalidTimestamp:
		return "the topic refuses the timestamp: see its message.timestamp.before.max.ms and message.timestamp.after.max.ms"
	case sarama.ErrFencedInstancedId:
		return "two live processes use one instance ID: give each its own"
	case sarama.ErrInvalidSessionTimeout:
		return "the session timeout is outside the broker's group.min.session.timeout.ms and group.max.session.timeout.ms"
	case sarama.ErrInconsistentGroupProtocol:
		return "another application uses this group: give this one its own application ID"
	case sarama.ErrInvalidReplicationFactor:
		return "there are fewer brokers than replicas: lower the replication factor or start more brokers"
	}
	return ""
}
