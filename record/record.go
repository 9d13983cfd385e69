package record

import (
	"fmt"
	"strconv"
	"time"
)

// Partition is the number of a partition of a topic, from 0.
type Partition int32

// Offset is a position in a partition. Ranges are half-open: "next" offsets name the
// record after the last one meant.
type Offset int64

// NoOffset is the absence of an offset: Kafka's answer for a group that has committed none.
const NoOffset Offset = -1

// TopicPartition names one partition of one topic.
type TopicPartition struct {
	Topic     string
	Partition Partition
}

// String returns "topic/partition".
func (tp TopicPartition) String() string { return tp.Topic + "/" + strconv.Itoa(int(tp.Partition)) }

// Position names one record in Kafka.
type Position struct {
	TopicPartition
	Offset Offset
}

// String returns "topic/partition@offset".
func (p Position) String() string { return fmt.Sprintf("%s@%d", p.TopicPartition, p.Offset) }

// Header is one header of a record. The value belongs to the record and must not be changed.
type Header struct {
	Key   string
	Value []byte
}

// Headers are the headers of a record in their order. Kafka allows a key more than once.
type Headers []Header

// Get returns the value of the last header with that key: later ones win, as in Kafka's lastHeader.
func (h Headers) Get(key string) (value []byte, ok bool) {
	for i := len(h) - 1; i >= 0; i-- {
		if h[i].Key == key {
			return h[i].Value, true
		}
	}
	return nil, false
}

// With returns headers in which key has exactly this one value. h is not changed.
func (h Headers) With(key string, value []byte) Headers {
	out := make(Headers, 0, len(h)+1)
	for _, x := range h {
		if x.Key != key {
			out = append(out, x)
		}
	}
	return append(out, Header{Key: key, Value: value})
}

// Record is a record between two operators.
//
// Headers and whatever the serde took from the fetched bytes without copying alias the
// fetch buffer: they stay valid, but must not be changed.
type Record[K, V any] struct {
	Key       K
	Value     V
	Timestamp time.Time // event time
	Headers   Headers
	Identity  Identity
}

// ID returns the record's ID, empty if its source found none.
func (r Record[K, V]) ID() ID { return r.Identity.ID() }
