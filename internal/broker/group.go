package broker

import (
	"math"
	"unicode/utf16"
)

// Kafka's own topics: of the offsets of groups, and of what coordinators have decided about transactions.
const (
	OffsetsTopic      = "__consumer_offsets"
	TransactionsTopic = "__transaction_state"
)

// OffsetsPartition is the partition of OffsetsTopic that a group is in, of n: the absolute value of Java's hash of its name, as in Kafka's
// GroupCoordinatorService.
func OffsetsPartition(group string, n int) int32 {
	var h int32
	for _, c := range utf16.Encode([]rune(group)) {
		h = 31*h + int32(c)
	}
	if h == math.MinInt32 { // it has no absolute value: Kafka takes 0
		return 0
	}
	return max(h, -h) % int32(max(n, 1))
}
