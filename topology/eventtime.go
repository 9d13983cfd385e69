package topology

import (
	"fmt"
	"strconv"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// DefaultIdleness is WithIdleness where it is not given.
const DefaultIdleness = 30 * time.Second

// Timestamp takes the event time from the decoded record. Default: the record's timestamp in Kafka.
func Timestamp[K, V any](fn func(record.Record[K, V]) (time.Time, error)) SourceSetting {
	return SourceSetting{func(o *options) { o.timestamp, o.timestampHeader = fn, nil }}
}

// TimestampHeader takes the event time from a header (the last one with that key): milliseconds since 1970 as a decimal
// number, or RFC 3339. A record without it, or with another text, cannot be decoded: OnError decides.
func TimestampHeader(key string) SourceSetting {
	return SourceSetting{func(o *options) { o.timestamp, o.timestampHeader = nil, &key }}
}

// OutOfOrderness is how much later than the newest record of the input another one may come without being late: the
// watermark stays that far behind. Default 0. It delays all windows of the task; the grace of a window is for that window
// alone. Given to a KeyBy it is how far to stay behind what the tasks before it tell, which stay behind their inputs
// already. (Flink: forBoundedOutOfOrderness.)
func OutOfOrderness(d time.Duration) TimeOption {
	return TimeOption{func(o *options) { o.outOfOrderness = &d }}
}

// WithIdleness is how long an input partition may have nothing to read before it no longer holds up the event time of
// its task. If all of them are idle, time goes on by itself, as fast as the host's clock: so that windows are closed
// also if no record comes any more. Default 30 s; at least 1 ms; negative: never, then an input without records holds the
// others up and time stops with them. (Flink: withIdleness.) A repartition topic holds nobody up once all tasks that write there are
// idle; given to a KeyBy, also if nothing has come for so long, whatever they are.
//
// An input is idle only while all of it that is committed was read, and only time in which the task runs counts: a
// backlog, a restore or a pause make none idle.
func WithIdleness(d time.Duration) TimeOption {
	return TimeOption{func(o *options) { o.idleness = &d }}
}

// timeOptions puts what the options say of time into the source.
func (b *Builder) timeOptions(n *node, s *Source, o options) {
	if d := o.outOfOrderness; d != nil {
		s.OutOfOrderness = *d
		b.require(*d >= 0 && *d%time.Millisecond == 0, n, "option", "OutOfOrderness must be whole milliseconds, not below 0")
	}
	s.Idleness = DefaultIdleness
	if d := o.idleness; d != nil {
		s.Idleness = *d
		b.require(*d < 0 || *d >= time.Millisecond, n, "option", "WithIdleness must be at least a millisecond, or negative for never")
	}
}

// inheritTime gives the sources of repartition topics what the inputs have that lead to them, unless an option says it. The
// nodes are in topological order.
func inheritTime(parts [][]*node) {
	type reach struct {
		disorder, idleness time.Duration
		never              bool
	}
	topics := map[string]reach{} // by the name of an internal topic
	for _, part := range parts {
		var all reach
		for _, n := range part {
			if n.source == nil {
				continue
			}
			if from, ok := topics[n.source.Topic]; ok && n.source.Internal {
				if n.opts.outOfOrderness == nil {
					n.source.OutOfOrderness = from.disorder
				}
				if n.opts.idleness == nil {
					if n.source.Idleness = from.idleness; from.never {
						n.source.Idleness = -1
					}
				}
			}
			all.disorder = max(all.disorder, n.source.OutOfOrderness)
			all.idleness = max(all.idleness, n.source.Idleness)
			all.never = all.never || n.source.Idleness < 0
		}
		for _, n := range part {
			if n.sink != nil && n.sink.Internal {
				topics[n.sink.Topic] = all
			}
		}
	}
}

// timestampOf is the function that the options give, and its form for the task. Nil: the record's own time.
func timestampOf[K, V any](b *Builder, n *node, keys serde.Serde[K], values serde.Serde[V]) (at func(record.Record[K, V]) (time.Time, error), early func(*broker.Record) (time.Time, error)) {
	if h := n.opts.timestampHeader; h != nil {
		b.require(*h != "", n, "option", "TimestampHeader is empty")
		at = func(r record.Record[K, V]) (time.Time, error) { return headerTime(r.Headers, *h) }
		return at, func(in *broker.Record) (time.Time, error) { return headerTime(in.Headers, *h) }
	}
	if n.opts.timestamp == nil {
		return nil, nil
	}
	at, ok := n.opts.timestamp.(func(record.Record[K, V]) (time.Time, error))
	if !ok || at == nil {
		b.problem(n, "option", fmt.Sprintf("Timestamp's function is a %T, the records are %T", n.opts.timestamp, record.Record[K, V]{}))
		return nil, nil
	}
	return at, eventTime(keys, values, at)
}

// maxTimeText bounds what an error shows of a header.
const maxTimeText = 64

// headerTime reads a time out of a header.
func headerTime(h record.Headers, key string) (time.Time, error) {
	v, ok := h.Get(key)
	if !ok {
		return time.Time{}, fmt.Errorf("there is no header %q", key)
	}
	if ms, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return time.UnixMilli(ms), nil
	}
	t, err := time.Parse(time.RFC3339Nano, string(v))
	if err != nil {
		return time.Time{}, fmt.Errorf("header %q is %q, want milliseconds since 1970 or RFC 3339", key, v[:min(len(v), maxTimeText)])
	}
	return t, nil
}

// eventTime is what Source.Timestamp does: decode, ask, and let no panic through, since it runs
// outside of the chain.
func eventTime[K, V any](keys serde.Serde[K], values serde.Serde[V], at func(record.Record[K, V]) (time.Time, error)) func(*broker.Record) (time.Time, error) {
	return func(in *broker.Record) (t time.Time, err error) {
		defer func() {
			if v := recover(); v != nil {
				err = &PanicError{Value: v}
			}
		}()
		r := record.Record[K, V]{Timestamp: in.Timestamp, Headers: in.Headers}
		if r.Key, err = keys.Decode(in.Key); err != nil {
			return t, err
		}
		if r.Value, err = values.Decode(in.Value); err != nil {
			return t, err
		}
		return at(r)
	}
}
