package ingress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/record"
)

// IDHeader is the header of a record in the log that holds its ID: the one where a pipeline's source looks for it.
const IDHeader = "record-id"

// Record is a record on its way in.
type Record struct {
	// ID is the same each time this record is sent or read.
	ID record.ID
	// Key is the key in Kafka; nil: none, and the ID decides on the partition.
	Key     []byte
	Value   []byte
	Headers record.Headers // besides IDHeader
	// Timestamp is when it came in.
	Timestamp time.Time
	// Together: records without a key that share it go to one partition, in their order; "": each goes by its ID.
	Together string
}

// size is what a record counts for in limits.
func (r *Record) size() int {
	n := len(r.Key) + len(r.Value) + len(r.ID)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// LogConfig configures a Log.
type LogConfig struct {
	// Cluster is used by this Log alone, or safe for concurrent use.
	Cluster broker.Cluster
	// Topic is the ingress log as the cluster describes it.
	Topic broker.Topic
	// TransactionalID fences: of two Logs with one ID, the older one fails with broker.ErrFenced.
	TransactionalID string
	// Source is the name in metrics and messages.
	Source  string
	Logger  *slog.Logger
	Metrics *metric.Ingress
	// Watch is told what happens, by all Logs of one source; nil: nobody is.
	Watch *Watch
	// Retry is the first pause after a transaction that failed, doubled up to 64 times it; default 20 ms.
	Retry time.Duration
}

// Log appends to one topic, a transaction at a time. It belongs to one goroutine, but for Failing.
type Log struct {
	cfg      LogConfig
	producer broker.Producer
	ready    bool
	failing  atomic.Pointer[string] // why the last transaction failed; nil: it did not
}

// NewLog makes a Log. It connects with the first Append.
func NewLog(cfg LogConfig) *Log {
	if cfg.Retry <= 0 {
		cfg.Retry = 20 * time.Millisecond
	}
	if cfg.Watch == nil {
		cfg.Watch = NewWatch(metric.Source{Name: cfg.Source}, "", cfg.Topic.Name, "", cfg.Metrics)
	}
	return &Log{cfg: cfg, producer: cfg.Cluster.NewProducer(broker.ProducerConfig{TransactionalID: cfg.TransactionalID})}
}

// overhead bounds what Kafka's format adds to one record in a batch of its own.
const overhead = 512

// LeastMessageBytes is the least max.message.bytes of a source's topic: of less, the ID of a line, its path and the format would leave nothing for
// the line.
const LeastMessageBytes = 8 << 10

// MaxRecord is the most bytes that a record may have: key, value, headers and ID.
func (l *Log) MaxRecord() int {
	if n := l.cfg.Topic.MaxMessageBytes; n > overhead {
		return n - overhead
	}
	return 1<<20 - overhead // Kafka's default
}

// Failing says why Kafka takes nothing; "" if it does, as far as is known. Safe for concurrent use.
func (l *Log) Failing() string {
	if why := l.failing.Load(); why != nil {
		return *why
	}
	return ""
}

// Close ends the connections.
func (l *Log) Close() { l.producer.Close() }

// output is a record as it is written.
func (l *Log) output(r *Record) broker.Output {
	// Copies of a record have one ID, so that they meet where they are told from each other.
	by := r.Key
	switch {
	case by != nil:
	case r.Together != "":
		by = []byte(r.Together)
	default:
		by = []byte(r.ID)
	}
	return broker.Output{
		TopicPartition: record.TopicPartition{Topic: l.cfg.Topic.Name, Partition: record.PartitionForKey(by, l.cfg.Topic.Partitions)},
		Timestamp:      r.Timestamp, Key: r.Key, Value: r.Value,
		Headers: append(slices.Clone(r.Headers), record.Header{Key: IDHeader, Value: []byte(r.ID)}),
	}
}

// commit writes in one transaction, again as long as what hinders it may heal. It returns nil when Kafka has all of it. If nobody
// knows how a transaction ended, decided is asked, after older transactions have come to their end; nil: it is
// written again, under the same IDs. Errors: *broker.TooLargeError, those of [stops], and ctx's, after which it may have been written or not.
func (l *Log) commit(ctx context.Context, outs []broker.Output, decided func(context.Context) (bool, error)) error {
	for n := 0; ; n++ {
		began := time.Now()
		outcome, err := l.try(ctx, outs)
		if outcome == broker.Committed {
			l.committed(outs, time.Since(began))
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("ingress: append to %q: %w", l.cfg.Topic.Name, ctx.Err())
		}
		var large *broker.TooLargeError
		if errors.As(err, &large) || stops(err) {
			return err
		}
		l.note(err)
		if outcome == broker.Unknown && decided != nil {
			done, err := l.settle(ctx, decided)
			if err != nil {
				return err
			}
			if done {
				l.committed(outs, time.Since(began))
				return nil
			}
		}
		if err := sleep(ctx, l.cfg.Retry<<min(n, 6)); err != nil {
			return fmt.Errorf("ingress: append to %q: %w", l.cfg.Topic.Name, err)
		}
	}
}

// try runs the transaction once. Whatever an older one has left open is decided before.
func (l *Log) try(ctx context.Context, outs []broker.Output) (broker.Outcome, error) {
	if err := l.init(ctx); err != nil {
		return broker.NotCommitted, err
	}
	l.producer.Reset()
	for _, o := range outs {
		l.producer.Add(o)
	}
	_, outcome, err := l.producer.Commit(ctx, broker.GroupMeta{}, nil)
	l.ready = outcome == broker.Committed
	if outcome == broker.Committed {
		fault.Point("ingress.committed")
	}
	return outcome, err
}

// init takes the transactional ID, and with it the epoch away from whoever had it.
func (l *Log) init(ctx context.Context) error {
	if l.ready {
		return nil
	}
	if err := l.producer.Init(ctx); err != nil {
		return initError{fmt.Errorf("ingress: source %q: %w", l.cfg.Source, err)}
	}
	l.ready = true
	return nil
}

// settle finds out how a transaction has ended: Init returns when it is decided.
func (l *Log) settle(ctx context.Context, decided func(context.Context) (bool, error)) (bool, error) {
	if err := l.init(ctx); err != nil {
		return false, err
	}
	return decided(ctx)
}

// initError is the failure of an Init, which tries by itself what can heal.
type initError struct{ error }

func (e initError) Unwrap() error { return e.error }

// stops says whether no retry heals an error.
func stops(err error) bool {
	var ie initError
	if errors.As(err, &ie) {
		return true
	}
	for _, kind := range []error{broker.ErrAuthentication, broker.ErrAuthorization, broker.ErrUnsupported, broker.ErrConfig} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// note remembers why a transaction failed, and tells it when that begins or changes.
func (l *Log) note(err error) {
	why := err.Error()
	if old := l.failing.Swap(&why); old == nil {
		l.cfg.Logger.Warn("ingress: Kafka takes nothing; trying again", "source", l.cfg.Source, "topic", l.cfg.Topic.Name, "err", err)
	}
	l.cfg.Watch.kafkaFailed(err)
	l.cfg.Metrics.Failing(l.cfg.Source, true)
}

func (l *Log) committed(outs []broker.Output, took time.Duration) {
	if l.failing.Swap(nil) != nil {
		l.cfg.Logger.Info("ingress: Kafka takes records again", "source", l.cfg.Source, "topic", l.cfg.Topic.Name)
	}
	records, bytes := 0, 0
	for i := range outs {
		if outs[i].Topic == l.cfg.Topic.Name { // not the positions beside them
			records, bytes = records+1, bytes+len(outs[i].Value)
		}
	}
	l.cfg.Watch.kafkaFailed(nil)
	l.cfg.Metrics.Failing(l.cfg.Source, false)
	l.cfg.Metrics.Committed(l.cfg.Source, records, bytes, took)
}

// sleep waits, or returns ctx's error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
