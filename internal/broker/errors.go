package broker

import (
	"errors"
	"fmt"
)

// The errors that the runtime tells apart. Implementations wrap them in an [Error] with place and code.
var (
	// ErrFenced: another live producer owns the transactional ID. Two processes share an instance ID.
	ErrFenced = errors.New("fenced: another process uses the same transactional ID")
	// ErrIllegalGeneration: the group has moved on since the records were read.
	ErrIllegalGeneration = errors.New("the consumer group has a newer generation")
	// ErrUnknownMember: the group does not know this member (any more), or another one took its instance ID.
	ErrUnknownMember = errors.New("the consumer group does not know this member")
	// ErrRebalancing: the group is between two generations, and nobody's partitions are known. Ask again.
	ErrRebalancing = errors.New("the consumer group is rebalancing")
	// ErrUnstableOffsets: a transaction that holds these offsets is not decided yet. Ask again.
	ErrUnstableOffsets = errors.New("committed offsets are not stable yet")
	// ErrOffsetOutOfRange: the position is before the log's start or behind its end.
	ErrOffsetOutOfRange = errors.New("offset out of range")
	// ErrUnknownTopic: the topic or partition does not exist.
	ErrUnknownTopic = errors.New("unknown topic or partition")
	// ErrTopicExists: there is a topic with that name already.
	ErrTopicExists = errors.New("topic exists")
	// ErrRecordTooLarge: a single record is larger than the topic's max.message.bytes. See [TooLargeError].
	ErrRecordTooLarge = errors.New("record too large")
	// ErrAuthentication: the credentials were refused.
	ErrAuthentication = errors.New("authentication failed")
	// ErrAuthorization: a right is missing. The Error names it.
	ErrAuthorization = errors.New("not authorized")
	// ErrUnsupported: the broker lacks a version or a feature that is needed.
	ErrUnsupported = errors.New("not supported by the broker")
	// ErrConfig: the broker refuses a setting (for example a transaction timeout above its maximum).
	ErrConfig = errors.New("the broker refuses the configuration")
	// ErrUnreachable: no broker answers.
	ErrUnreachable = errors.New("no broker reachable")
	// ErrCorrupt: bytes that cannot be decoded.
	ErrCorrupt = errors.New("corrupt data")
	// ErrLeftOpen: an older transaction of this producer is over for its coordinator, and its end was not marked in a partition. Another one
	// there would decide about both. An operator ends it, as it was decided.
	ErrLeftOpen = errors.New("an older transaction of this producer was left open")
	// ErrAbortable: anything else that ended a transaction before it was asked to commit. Init, then run it again.
	ErrAbortable = errors.New("transaction failed, may be run again")
)

// Error is an error with its place.
type Error struct {
	Op     string // the request: "produce", "end transaction", ...
	Where  string // topic/partition, group, transactional ID or address; may be empty
	Kind   error  // one of the errors above
	Code   int16  // Kafka's error code, 0 if there was no answer
	Cause  error  // the client's or the network's own error, may be nil
	Remedy string // what the operator can do, may be empty
}

// Error returns "op where: kind (code N: cause): remedy".
func (e *Error) Error() string {
	s := e.Op
	if e.Where != "" {
		s += " " + e.Where
	}
	s += ": " + e.Kind.Error()
	switch {
	case e.Code != 0 && e.Cause != nil:
		s += fmt.Sprintf(" (code %d: %v)", e.Code, e.Cause)
	case e.Code != 0:
		s += fmt.Sprintf(" (code %d)", e.Code)
	case e.Cause != nil:
		s += fmt.Sprintf(" (%v)", e.Cause)
	}
	if e.Remedy != "" {
		s += ": " + e.Remedy
	}
	return s
}

// Unwrap makes errors.Is find the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// TooLargeError names the record that no batch can carry, as its index in the order of Producer.Add since the last Reset or commit.
type TooLargeError struct {
	Index int
	Bytes int
	Topic string
}

// Error says which record is too large.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("a record of %d bytes is larger than max.message.bytes of topic %q", e.Bytes, e.Topic)
}

// Unwrap makes errors.Is(err, ErrRecordTooLarge) hold.
func (e *TooLargeError) Unwrap() error { return ErrRecordTooLarge }
