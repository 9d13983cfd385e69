package ingress

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/fault"
)

// Errors that a sender gets. All of them say whether the records may have been written.
var (
	// ErrBusy: too much waits already. Nothing was written; come again.
	ErrBusy = errors.New("ingress: too much is waiting already")
	// ErrUnavailable: Kafka takes nothing. Nothing was written; come again.
	ErrUnavailable = errors.New("ingress: Kafka takes nothing at the moment")
	// ErrStopping: the process ends. Nothing was written; come again.
	ErrStopping = errors.New("ingress: the process is stopping")
	// ErrDoubt: nobody waited for the end. The records may have been written; send them again under the same IDs.
	ErrDoubt = errors.New("ingress: it is not known whether the records were written")
)

// TooLargeError names a record that the topic does not take.
type TooLargeError struct {
	Index       int // of the record in its request
	Bytes, Most int
}

// Error says which one, and how large it may be.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("record %d has %d bytes, at most %d are taken", e.Index, e.Bytes, e.Most)
}

// Bounds of one transaction: what is waiting comes in as many as are needed.
const (
	maxBatchRecords = 10_000
	maxBatchBytes   = 8 << 20
)

// recordCost is about what the memory of one record takes besides its bytes. Without it a request of ten thousand small ones would count for
// a hundredth of what it holds.
const recordCost = 512

// Queue lets many senders wait together for one transaction. What they send, from the moment on at which it is read, is bounded.
// Reserve and Append may be called from any goroutine.
type Queue struct {
	log   *Log
	limit int64
	drain time.Duration
	wake  chan struct{} // one token: something is waiting, or the end has come

	mu       sync.Mutex // guards the fields below
	used     int64      // bytes reserved
	waiting  []*entry
	stopping bool
	failed   error     // why nothing is taken any more
	until    time.Time // when the end must be over, whatever drain is; zero: drain says it
}

// NewQueue makes a queue that holds at most limit bytes. drain is how long the end may take.
func NewQueue(log *Log, limit int64, drain time.Duration) *Queue {
	return &Queue{log: log, limit: limit, drain: drain, wake: make(chan struct{}, 1)}
}

// Reservation is room in a queue. It is given back once, by Release or by what becomes of its records.
type Reservation struct {
	q     *Queue
	bytes int64
}

// entry is what one sender waits for.
type entry struct {
	outs  []broker.Output
	bytes int
	room  *Reservation
	done  chan error // has room for the one answer
	taken bool       // by the writer; guarded by Queue.mu
}

// Reserve takes room for n bytes before they are read. Errors: ErrBusy, ErrUnavailable, ErrStopping.
func (q *Queue) Reserve(n int64) (*Reservation, error) {
	failing := q.log.Failing()
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.failed != nil, q.stopping:
		return nil, ErrStopping
	case !q.fits(q.used, n):
		return nil, full(failing)
	}
	q.used += n
	q.log.cfg.Metrics.Queued(q.log.cfg.Source, q.used)
	return &Reservation{q, n}, nil
}

// fits says whether n bytes go in beside others. One that is larger than all there is comes alone.
func (q *Queue) fits(others, n int64) bool { return others == 0 || others+n <= q.limit }

// full is why there is no room.
func full(failing string) error {
	if failing != "" {
		return ErrUnavailable
	}
	return ErrBusy
}

// Resize changes what is reserved to n bytes, when more is known of what they are for. Errors: ErrBusy, ErrUnavailable; then it is as it was.
func (r *Reservation) Resize(n int64) error {
	failing := r.q.log.Failing()
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	if n > r.bytes && !r.q.fits(r.q.used-r.bytes, n) {
		return full(failing)
	}
	r.q.used += n - r.bytes
	r.bytes = n
	r.q.log.cfg.Metrics.Queued(r.q.log.cfg.Source, r.q.used)
	return nil
}

// Release gives all of it back.
func (r *Reservation) Release() { _ = r.Resize(0) } // less is always granted

// Append hands records over and waits until Kafka has all of them, in one transaction. It takes over the reservation.
// Errors: *TooLargeError, ErrUnavailable, ErrStopping (nothing was written), ErrDoubt.
func (q *Queue) Append(ctx context.Context, recs []Record, room *Reservation) error {
	e := &entry{room: room, done: make(chan error, 1), outs: make([]broker.Output, len(recs))}
	most := q.log.MaxRecord()
	for i := range recs {
		n := recs[i].size()
		if n > most {
			room.Release()
			return &TooLargeError{i, n, most}
		}
		e.bytes += n
		e.outs[i] = q.log.output(&recs[i])
	}
	if len(recs) == 0 {
		room.Release()
		return nil
	}
	q.mu.Lock()
	if q.stopping || q.failed != nil {
		q.mu.Unlock()
		room.Release()
		return ErrStopping
	}
	q.waiting = append(q.waiting, e)
	q.mu.Unlock()
	q.signal()
	select {
	case err := <-e.done:
		return err
	case <-ctx.Done():
		return q.withdraw(e)
	}
}

// withdraw takes back what nobody has begun with; for the rest it is too late.
func (q *Queue) withdraw(e *entry) error {
	q.mu.Lock()
	if e.taken {
		q.mu.Unlock()
		select {
		case err := <-e.done:
			return err
		default:
			return ErrDoubt
		}
	}
	for i, w := range q.waiting {
		if w == e {
			q.waiting = append(q.waiting[:i], q.waiting[i+1:]...)
			break
		}
	}
	q.mu.Unlock()
	e.room.Release()
	return ErrUnavailable
}

func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default: // there is a token
	}
}

// Run writes until ctx ends, then what is waiting still, and returns nil. An error ends it earlier: those of Log that no retry heals.
func (q *Queue) Run(ctx context.Context) error {
	defer q.log.Close()
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		q.mu.Lock()
		q.stopping = true
		patience := q.drain
		if !q.until.IsZero() {
			patience = min(patience, time.Until(q.until))
		}
		q.mu.Unlock()
		q.signal()
		time.AfterFunc(patience, cancel)
	})
	defer stop()
	for {
		batch, done := q.take()
		if done {
			return nil
		}
		if len(batch) == 0 {
			<-q.wake
			continue
		}
		fault.Point("ingress.taken")
		if err := q.write(work, batch); err != nil {
			q.fail(err)
			if work.Err() != nil {
				return nil // the end took too long: whoever waited has been told
			}
			return err
		}
	}
}

// ending says that the end has begun, though the queue still takes what was accepted: drain counts from now on, and not from when the last sender
// was waited for.
func (q *Queue) ending() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.until = time.Now().Add(q.drain)
}

// take takes what fits into one transaction. done: nothing is left, and nothing will come.
func (q *Queue) take() (batch []*entry, done bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	records, bytes := 0, 0
	for len(batch) < len(q.waiting) {
		e := q.waiting[len(batch)]
		if records, bytes = records+len(e.outs), bytes+e.bytes; len(batch) > 0 && (records > maxBatchRecords || bytes > maxBatchBytes) {
			break
		}
		e.taken = true
		batch = append(batch, e)
	}
	q.waiting = append([]*entry(nil), q.waiting[len(batch):]...)
	return batch, len(batch) == 0 && q.stopping
}

// write commits a batch and answers. A record that the topic does not take costs its own request only.
func (q *Queue) write(ctx context.Context, batch []*entry) error {
	for len(batch) > 0 {
		var outs []broker.Output
		for _, e := range batch {
			outs = append(outs, e.outs...)
		}
		err := q.log.commit(ctx, outs, nil)
		var large *broker.TooLargeError
		if !errors.As(err, &large) {
			if err == nil {
				fault.Point("ingress.answering")
			} else {
				err = doubtful(err)
			}
			for _, e := range batch {
				e.answer(err)
			}
			return cause(err)
		}
		i, index := 0, large.Index
		for i < len(batch)-1 && index >= len(batch[i].outs) {
			index -= len(batch[i].outs)
			i++
		}
		batch[i].answer(&TooLargeError{index, large.Bytes, q.log.MaxRecord()})
		batch = append(batch[:i:i], batch[i+1:]...)
	}
	return nil
}

// answer ends the waiting. The memory of the records is free when nobody writes them any more.
func (e *entry) answer(err error) {
	e.room.Release()
	e.done <- err
}

// doubtError says to a sender that the outcome is not known, and to the operator why.
type doubtError struct{ cause error }

func (e doubtError) Error() string { return ErrDoubt.Error() + ": " + e.cause.Error() }

func (e doubtError) Unwrap() []error { return []error{ErrDoubt, e.cause} }

func doubtful(err error) error { return doubtError{err} }

// cause is the error behind a doubt.
func cause(err error) error {
	var d doubtError
	if errors.As(err, &d) {
		return d.cause
	}
	return err
}

// fail answers all that wait, and lets nobody in any more.
func (q *Queue) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failed = err
	for _, e := range q.waiting {
		e.done <- ErrStopping
		q.used -= e.room.bytes
		e.room.bytes = 0
	}
	q.waiting = nil
}
