package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/topology"
)

// Limits of a sink's batch, and how long what went wrong waits. A slow target makes batches larger by itself: while one is
// written the next one is fetched.
const (
	sinkRows    = 5_000
	sinkBytes   = 4 << 20
	sinkLinger  = 50 * time.Millisecond // how long a row waits for others
	sinkIdle    = 250 * time.Millisecond
	sinkBackoff = 100 * time.Millisecond // before the first retry; doubled up to sinkPatience
	// sinkPatience also bounds how often two processes that each believe to own a partition disturb each other: no row
	// is doubled by it.
	sinkPatience = 5 * time.Second
)

// external is a task of a sink outside of Kafka: one partition of its topic, one writer. It reads with
// read_committed, makes rows and writes them in batches; the target says where to go on.
//
//	claim    the writer of the partition from here on; whoever was before can write no more
//	start    the target's next offset, or the group's if it keeps none
//	pump     fetch, make rows, write, until something fails; progress is what the target has made durable
//	         -> the writer is closed, and it begins again with a claim: after a failed write only the target knows
//
// The group's offsets follow, for whoever looks at the lag; those of class two_phase decide (external_decide.go). All fields belong to the goroutine of run.
type external struct {
	*externals
	plan *subPlan
	spec *topology.External
	name string
	in   sink.Partition
	row  func(*broker.Record) (sink.Row, error)

	soft context.Context // ends: begin nothing new
	hard context.Context // ends: give up also what is under way
	stop context.CancelFunc
	kill context.CancelFunc
	done chan struct{}

	next, stable record.Offset // next is the target's
	open         taken         // what the target has been given beyond next
	written      bool          // in this session
	marked       bool          // see begun
	replaces     bool          // the group's offset is a decision, and the sink is of another class now
	said         string        // the failure that was logged last
	counters     map[string]uint64
	errors       []RecordErrorStatus
}

// run works until it is told to stop, or until something ends the application.
func (x *external) run(before <-chan struct{}) {
	defer close(x.done)
	if before != nil {
		<-before // the same partition's last task: what it has committed in the group is to be seen
	}
	x.confirm.own(x.in.TopicPartition)
	defer x.leave()
	for failures := 0; x.soft.Err() == nil; failures++ {
		x.written, x.open = false, taken{}
		err := x.session()
		if err == nil || x.soft.Err() != nil {
			return
		}
		if x.fatal(err) {
			x.metrics.SinkFailed(x.spec.Name, metric.SinkFatal)
			x.end(fmt.Errorf("processor: sink %q, %s: %w", x.spec.Name, x.in.TopicPartition, err))
			return
		}
		if x.written {
			failures = 0
		}
		x.metrics.SinkFailed(x.spec.Name, metric.SinkRetryable)
		x.failing(err)
		wait := min(sinkPatience, sinkBackoff<<min(failures, 10))
		if errors.Is(err, sink.ErrFenced) {
			wait = sinkPatience // who has it now may be right
		}
		if x.sleep(x.soft, wait) != nil {
			return
		}
	}
}

// leave ends the task: the group's offset is committed, if it can be, for whoever goes on with the partition.
func (x *external) leave() {
	x.kill()
	ctx, cancel := context.WithTimeout(x.ctx, x.cfg.txnTimeout/2)
	defer cancel()
	if err := x.confirm.offsets(ctx); err != nil {
		x.log.Debug("sink: the group's offset stays behind the target's", "task", x.name, "err", err)
	}
	x.confirm.forget(x.in.TopicPartition)
	x.stats.down(x.name, nil)
	x.stats.remove(x.name)
}

// fatal says whether trying again cannot help.
func (x *external) fatal(err error) bool {
	var setup *sink.SetupError
	var rec *RecordError
	if errors.As(err, &setup) || errors.As(err, &rec) {
		return true
	}
	for _, kind := range []error{ErrOffsets, ErrDataLost, broker.ErrAuthentication, broker.ErrAuthorization, broker.ErrUnsupported, broker.ErrFenced} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// failing shows why rows are not written, in the log once for each reason.
func (x *external) failing(err error) {
	x.stats.down(x.name, err)
	if text := err.Error(); text != x.said {
		x.said = text
		x.log.Warn("sink: rows are not written; trying again", "task", x.name, "err", err)
	}
	x.publish(TaskRecovering, err.Error())
}

// session is one claim. It returns nil when the task is to stop.
func (x *external) session() error {
	x.publish(TaskRestoring, "")
	w, err := x.claim()
	if err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			x.log.Debug("sink: close the writer", "task", x.name, "err", err)
		}
	}()
	x.point("sink.claimed")
	if x.next, err = x.start(w); err != nil {
		return err
	}
	r := x.cluster.NewReader(broker.ReaderConfig{Isolation: broker.ReadCommitted, MaxBytes: fetchBytes, Buffer: fetchBuffer, Pace: fetchPace})
	defer r.Close()
	r.Seek(x.in.TopicPartition, x.next, 1)
	x.publish(TaskRunning, x.said)
	return x.pump(w, r)
}

// goesOn takes the reason back: rows were written, or there are none. That the target was claimed says little, as of an HTTP address.
func (x *external) goesOn() {
	if x.said == "" {
		return
	}
	x.said = ""
	x.stats.down(x.name, nil)
	x.log.Info("sink: goes on", "task", x.name, "offset", x.next)
	x.publish(TaskRunning, "")
}

// start finds the first record that the target does not have.
func (x *external) start(w sink.Writer) (record.Offset, error) {
	tp := x.in.TopicPartition
	tps := []record.TopicPartition{tp}
	c, err := x.committed(tps)
	if err != nil {
		return 0, err
	}
	group := c.Next
	_, decided := sink.ParseDecision(c.Next, c.Metadata)
	x.replaces = decided && !x.decides()
	first, err := x.cluster.StartOffsets(x.soft, tps)
	if err != nil {
		return 0, fmt.Errorf("ask for the topic's start: %w", err)
	}
	high, err := x.cluster.HighWatermarks(x.soft, tps)
	if err != nil {
		return 0, fmt.Errorf("ask for the topic's end: %w", err)
	}
	next, known := w.Next()
	switch {
	case known && group != record.NoOffset && next > group:
		x.metrics.SinkSkipped(x.spec.Name, int(next-group))
	case known:
	case group == record.NoOffset && first[tp] > 0:
		return 0, x.noProgress(first[tp])
	case group == record.NoOffset:
		return first[tp], nil
	case x.spec.Target.Class() == sink.Ledger:
		// The group's offset follows the target's: that one was there.
		return 0, &sink.SetupError{
			Err:    fmt.Errorf("the target has no progress of sink %q, partition %d, though the consumer group has %d: the table of progress was lost or emptied", x.in.Sink, tp.Partition, group),
			Remedy: fmt.Sprintf("restore it; or, if the rows up to there are in the target, set next_offset to %d in it", group),
		}
	default:
		next = group
	}
	switch {
	case next < first[tp]:
		return 0, fmt.Errorf("%w: %s is to be read from offset %d, but begins at %d: %d records that the target does not have were deleted. "+
			"If the target was restored from a backup, restore one that is not older; or give the sink another name and write everything anew",
			ErrOffsets, tp, next, first[tp], first[tp]-next)
	case next > high[tp]:
		return 0, fmt.Errorf("%w: the target has the records of %s up to offset %d, but the topic ends at %d: the cluster has lost what was committed", ErrDataLost, tp, next, high[tp])
	}
	return next, nil
}

// committed is what the consumer group has committed. It waits while a transaction with it is undecided.
func (x *external) committed(tps []record.TopicPartition) (broker.CommittedOffset, error) {
	for {
		c, err := x.cluster.CommittedOffsets(x.soft, x.group(), tps)
		if err == nil {
			return c[tps[0]], nil
		}
		if !errors.Is(err, broker.ErrUnstableOffsets) {
			return broker.CommittedOffset{}, fmt.Errorf("ask for the committed offset: %w", err)
		}
		if err := x.sleep(x.soft, sinkIdle); err != nil {
			return broker.CommittedOffset{}, err
		}
	}
}

// pending is a batch that is being gathered. from are the records of its rows.
type pending struct {
	sink.Batch
	from  []*broker.Record
	taken int // records, also those that made no row
	bytes int
	since time.Time // of the first record
}

func (p *pending) full() bool { return len(p.Rows) >= sinkRows || p.bytes >= sinkBytes }

// pump writes what comes.
func (x *external) pump(w sink.Writer, r broker.Reader) error {
	b := pending{Batch: sink.Batch{First: x.next, Next: x.next}}
	flush := func() error {
		if b.Next == b.First {
			return nil
		}
		if err := x.write(w, b); err != nil {
			return err
		}
		b = pending{Batch: sink.Batch{First: b.Next, Next: b.Next}}
		return nil
	}
	for x.soft.Err() == nil {
		wait := sinkIdle
		if b.taken > 0 {
			wait = max(0, sinkLinger-x.now().Sub(b.since))
		}
		for _, in := range r.Poll(x.soft, wait) {
			if in.Err != nil {
				return fmt.Errorf("read %s: %w", x.in.TopicPartition, in.Err)
			}
			x.stable = in.LastStable
			for i := range in.Records {
				if err := x.take(&b, &in.Records[i]); err != nil {
					return err
				}
				if b.full() {
					if err := flush(); err != nil {
						return err
					}
				}
			}
			b.Next = max(b.Next, in.Next)
		}
		if b.taken == 0 && b.Next >= x.stable {
			x.goesOn()
		}
		// Markers alone are no reason for a transaction of the target.
		if b.taken > 0 && x.now().Sub(b.since) >= sinkLinger {
			if err := flush(); err != nil {
				return err
			}
		}
		if g, ok := w.(sink.Gatherer); ok {
			if err := g.Settle(x.hard, x.now()); err != nil {
				return fmt.Errorf("make durable the offsets from %d: %w", x.next, err)
			}
			x.moved(w)
		}
	}
	return nil // what was gathered is read again by the next owner
}

// take puts one record into the batch. One that makes no row leaves only its offset there.
func (x *external) take(b *pending, r *broker.Record) error {
	if r.Offset < b.Next {
		return nil // before the position that was asked for
	}
	if b.taken == 0 {
		b.since = x.now()
	}
	b.taken++
	b.Next = r.Offset + 1
	x.counters["in"]++
	row, err := x.row(r)
	if err != nil {
		var oe *topology.OperatorError
		if !errors.As(err, &oe) {
			return err
		}
		return x.reject(r, oe)
	}
	b.Rows, b.from = append(b.Rows, row), append(b.from, r)
	b.bytes += r.Size()
	return nil
}
