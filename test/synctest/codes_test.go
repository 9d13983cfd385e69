//go:build bubble

package synctest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/processor"
)

// codesOf is what a broker may answer to each request, from the handlers of Apache Kafka 4.4 (KafkaApis,
// GroupCoordinatorService, TransactionCoordinator, ReplicaManager). A code maps to nil if the application
// must live through it, once and three times in a row; else to the kind of error with which it must end.
// Either way the result must be exact in the end, after a new start if it ended.
var codesOf = map[string]map[int16]error{
	"Produce": {
		-1: nil, 2: nil, 3: nil, 6: nil, 7: nil, 13: nil, 14: nil, 15: nil, 16: nil, 19: nil, 20: nil, 45: nil, 47: nil, 48: nil, 49: nil, 51: nil, 56: nil, 59: nil, 90: nil, 120: nil,
		10: broker.ErrRecordTooLarge, 18: broker.ErrRecordTooLarge, // unless the batch can be split
		17: broker.ErrConfig, 21: broker.ErrConfig, 29: broker.ErrAuthorization, 31: broker.ErrAuthorization, 32: broker.ErrConfig, 43: broker.ErrUnsupported,
		44: broker.ErrConfig, 53: broker.ErrAuthorization, 76: broker.ErrUnsupported, 87: broker.ErrConfig,
	},
	"AddPartitionsToTxn": {-1: nil, 3: nil, 14: nil, 15: nil, 16: nil, 47: nil, 48: nil, 49: nil, 51: nil, 55: nil, 90: nil, 120: nil, 29: broker.ErrAuthorization, 53: broker.ErrAuthorization},
	"AddOffsetsToTxn":    {-1: nil, 14: nil, 15: nil, 16: nil, 47: nil, 48: nil, 49: nil, 51: nil, 90: nil, 120: nil, 24: broker.ErrConfig, 30: broker.ErrAuthorization, 53: broker.ErrAuthorization},
	"TxnOffsetCommit": {
		-1: nil, 3: nil, 7: nil, 14: nil, 15: nil, 16: nil, 22: nil, 25: nil, 27: nil, 47: nil, 48: nil, 49: nil, 51: nil, 82: nil, 90: nil, 120: nil,
		12: broker.ErrConfig, 24: broker.ErrConfig, 28: broker.ErrConfig, 29: broker.ErrAuthorization, 30: broker.ErrAuthorization, 53: broker.ErrAuthorization,
	},
	// Whatever EndTxn answers, the outcome is unknown, and only the producer's new start decides it.
	"EndTxn":         {-1: nil, 7: nil, 14: nil, 15: nil, 16: nil, 47: nil, 48: nil, 49: nil, 51: nil, 53: nil, 90: nil, 120: nil},
	"InitProducerId": {-1: nil, 7: nil, 14: nil, 15: nil, 16: nil, 49: nil, 51: nil, 47: broker.ErrFenced, 90: broker.ErrFenced, 50: broker.ErrConfig, 31: broker.ErrAuthorization, 53: broker.ErrAuthorization},
	"OffsetFetch":    {-1: nil, 14: nil, 15: nil, 16: nil, 88: nil, 24: broker.ErrConfig, 29: broker.ErrAuthorization, 30: broker.ErrAuthorization},
	"Fetch": {
		-1: nil, 3: nil, 6: nil, 56: nil, 70: nil, 71: nil, 74: nil, 75: nil, 78: nil, 100: nil, 103: nil,
		1:  nil,               // the committed state is read again, and shows that nothing is missing
		2:  broker.ErrCorrupt, // of the same partition three times in a row
		29: broker.ErrAuthorization,
	},
	"ListOffsets":     {-1: nil, 3: nil, 5: nil, 6: nil, 56: nil, 74: nil, 75: nil, 78: nil, 29: broker.ErrAuthorization, 43: broker.ErrUnsupported},
	"Metadata":        {-1: nil, 5: nil, 17: broker.ErrConfig, 29: broker.ErrAuthorization},
	"FindCoordinator": {-1: nil, 14: nil, 15: nil, 30: broker.ErrAuthorization, 53: broker.ErrAuthorization},
	"JoinGroup": {
		-1: nil, 14: nil, 15: nil, 16: nil, 25: nil, 27: nil, 79: nil,
		23: broker.ErrConfig, 24: broker.ErrConfig, 26: broker.ErrConfig, 30: broker.ErrAuthorization, 81: broker.ErrConfig, 82: broker.ErrFenced,
	},
	"SyncGroup": {-1: nil, 14: nil, 15: nil, 16: nil, 22: nil, 25: nil, 27: nil, 30: broker.ErrAuthorization, 82: broker.ErrFenced},
	"Heartbeat": {-1: nil, 14: nil, 15: nil, 16: nil, 22: nil, 25: nil, 27: nil, 30: broker.ErrAuthorization, 82: broker.ErrFenced},
}

// small is a run with given faults of client a, and little else.
func small(events ...event) config {
	return config{seed: 1, clients: 1, workers: 1, bills: 60, accounts: 10, gap: 300 * time.Millisecond, interval: 100 * time.Millisecond, wait: 2 * time.Second, events: events}
}

// causeOf is what makes a client send a request that no transaction has.
func causeOf(key string, code int16) (event, bool) {
	e := event{at: time.Second, after: -1}
	switch key {
	case "InitProducerId":
		if code == 49 { // only to a producer that has had an ID
			e.what, e.key = "lose answer", "Produce"
			return e, true
		}
	}
	switch key {
	case "InitProducerId", "OffsetFetch", "ListOffsets", "FindCoordinator", "Metadata", "JoinGroup", "SyncGroup":
		e.what = "restart"
		return e, true
	}
	return e, false
}

// withCause makes the events of a fault: first it is armed, then something leads to it.
func withCause(e event) []event {
	out := []event{e}
	if cause, ok := causeOf(e.key, e.code); ok {
		out = append(out, cause)
	}
	return out
}

// TestCodes answers each request with each code that a broker may answer, once and three times in a row.
func TestCodes(t *testing.T) {
	runs := 0
	for _, key := range slices.Sorted(maps.Keys(codesOf)) {
		for i, code := range slices.Sorted(maps.Keys(codesOf[key])) {
			for _, times := range []int{1, 3} {
				if testing.Short() && i%4 != 0 || key == "InitProducerId" && code == 49 && times > 1 { // the second Init has no ID to doubt
					continue
				}
				runs++
				conf := small(withCause(event{at: 900 * time.Millisecond, after: -1, what: "refuse", key: key, code: code, times: times})...)
				r := run(t, conf)
				judge(&r, key, codesOf[key][code])
				if len(r.errors) > 0 {
					show(t, fmt.Sprintf("%s answered with code %d, %d times", key, code, times), conf, r)
				}
			}
		}
	}
	t.Logf("%d runs", runs)
}

// judge adds what is wrong with the way in which a run met its code.
func judge(r *result, key string, want error) {
	bad := func(format string, args ...any) { r.errors = append(r.errors, fmt.Sprintf(format, args...)) }
	if r.hits["refuse "+key] == 0 {
		bad("the fault was never met")
	}
	for _, err := range r.stops {
		if want == nil {
			bad("stopped with %v, want it to go on", err)
		} else if !errors.Is(err, want) && !errors.Is(err, processor.ErrOffsets) {
			bad("stopped with %v, want %v", err, want)
		}
	}
	depends := want == broker.ErrRecordTooLarge || want == broker.ErrCorrupt // on the batch, on the partition
	if want != nil && !depends && len(r.stops) == 0 {
		bad("went on, want it to stop with %v", want)
	}
}

// TestFrames does each thing that a network does to each request.
func TestFrames(t *testing.T) {
	runs := 0
	for _, key := range slices.Sorted(maps.Keys(codesOf)) {
		for i, e := range []event{
			{what: "lose request"},
			{what: "lose answer"},
			{what: "hold", txns: 1},
			{what: "hold", txns: 2},
			{what: "hold", txns: 3},
			{what: "slow", wait: 100 * time.Millisecond},
			{what: "slow", wait: 7 * time.Second},
			{what: "slow", wait: 15 * time.Second},
		} {
			if testing.Short() && i > 2 {
				continue
			}
			e.at, e.after, e.key = 900*time.Millisecond, -1, key
			conf := small(withCause(e)...)
			r := run(t, conf)
			runs++
			if r.hits[e.what+" "+key] == 0 {
				r.errors = append(r.errors, "the fault was never met")
			}
			for _, err := range r.stops {
				if !legal(err) {
					r.errors = append(r.errors, fmt.Sprintf("stopped with %v", err))
				}
			}
			if len(r.errors) > 0 {
				show(t, e.String(), conf, r)
			}
		}
	}
	t.Logf("%d runs", runs)
}
