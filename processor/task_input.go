package processor

import (
	"errors"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// input is the queue of one input partition.
type input struct {
	tp     record.TopicPartition
	source int
	queue  []broker.Batch
	at     int // record in queue[0]
	queued int // records
	// next is the position after the last processed record; committed the one of the last commit.
	// Invariant: committed <= next (INV-6).
	next, committed record.Offset
	stable          record.Offset // last stable offset as last heard
	records, bytes  *uint64       // counters

	// eventTime is the source's, nil: the record's own timestamp. timed says that headAt is the head's.
	eventTime func(*broker.Record) (time.Time, error)
	headAt    time.Time
	timed     bool

	newest   clock         // the highest event time; kept only if the task keeps time
	upstream *upstream     // not nil: the time of the input is what its writers tell
	idle     time.Duration // for how long nothing was there to read
	asked    time.Time     // when the brokers were asked last that said so; zero: not since there was something
	behind   time.Duration // for how long something was, and did not come
}

func (in *input) add(b broker.Batch) {
	in.stable = max(in.stable, b.LastStable)
	in.behind = 0
	if b.Nothing {
		in.rest(b)
		return
	}
	in.queue = append(in.queue, b)
	in.queued += len(b.Records)
}

// rest notes an answer that brought nothing. An input is idle for as long as has passed between two questions, if all that
// is committed was read at the second one. Silence says nothing: while no answer comes, idle does not grow.
func (in *input) rest(b broker.Batch) {
	if in.queued > 0 || b.Next != in.read() || b.Next < in.stable {
		return
	}
	if passed := b.Asked.Sub(in.asked); !in.asked.IsZero() && passed > 0 {
		in.idle += min(passed, maxTick)
	}
	in.asked = b.Asked
}

// busy says that there is, or was, something to read: what idle has counted is void.
func (in *input) busy() { in.idle, in.asked = 0, time.Time{} }

func (in *input) clear() {
	clear(in.queue)
	in.queue, in.at, in.queued, in.timed = in.queue[:0], 0, 0, false
	in.behind = 0
}

// empty says whether no record waits. It first lets go of batches without any.
func (in *input) empty() bool { return in.queued == 0 }

// read is the position behind all that has come.
func (in *input) read() record.Offset {
	if n := len(in.queue); n > 0 {
		return max(in.next, in.queue[n-1].Next)
	}
	return in.next
}

// head is the next record. The queue is not empty.
func (in *input) head() *broker.Record {
	for in.at >= len(in.queue[0].Records) {
		in.shift()
	}
	return &in.queue[0].Records[in.at]
}

// findTime finds the event time of the head. If the record is to blame that it cannot be found, the chain fails it by its policy; until
// then its own timestamp has to do. The error is serde.ErrUnavailable: nobody knows yet.
func (in *input) findTime() error {
	if in.eventTime == nil || in.timed {
		return nil
	}
	at, err := in.eventTime(in.head())
	switch {
	case errors.Is(err, serde.ErrUnavailable):
		return err
	case err != nil:
		at = in.head().Timestamp
	}
	in.headAt, in.timed = at, true
	return nil
}

// time is the event time of the head, which findTime has found.
func (in *input) time() time.Time {
	if in.eventTime == nil {
		return in.head().Timestamp
	}
	return in.headAt
}

// advance moves past the head.
func (in *input) advance() {
	in.timed = false
	in.next = in.queue[0].Records[in.at].Offset + 1
	in.at++
	in.queued--
	if in.at >= len(in.queue[0].Records) {
		in.shift()
	}
}

// shift moves past the first batch, its markers included.
func (in *input) shift() {
	in.next = max(in.next, in.queue[0].Next)
	in.queue[0] = broker.Batch{}
	in.queue = in.queue[1:]
	in.at = 0
	if len(in.queue) == 0 {
		in.queue = nil
	}
}

// skip moves past batches without records and says whether the position moved by that alone.
func (in *input) skip() bool {
	before := in.next
	for len(in.queue) > 0 && in.at >= len(in.queue[0].Records) {
		in.shift()
	}
	return in.next != before
}

// lag is the number of offsets up to the last stable one.
func (in *input) lag() int64 { return max(0, int64(in.stable-in.committed)) }
