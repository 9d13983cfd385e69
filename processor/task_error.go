package processor

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/invariant"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// keptErrors is how many failed records Status shows per task.
const keptErrors = 20

// maxErrorText bounds what an error's text takes of a dead letter's headers.
const maxErrorText = 4 << 10

// RecordError is an error that stops the application at a record.
type RecordError struct {
	Task     string
	Operator string
	Stage    topology.Stage
	Position record.Position
	Err      error
}

// Error names pipeline step and position, so that the record can be looked at.
func (e *RecordError) Error() string {
	return fmt.Sprintf("operator %q cannot %s record %s: %v (error policy: stop)", e.Operator, e.Stage, e.Position, e.Err)
}

// Unwrap returns the cause.
func (e *RecordError) Unwrap() error { return e.Err }

// failed does with a record what the policy says. All its effects are undone already.
func (t *Task) failed(in *input, r *broker.Record, err error, now time.Time) error {
	var v invariant.Violation
	if errors.As(err, &v) {
		return err
	}
	var oe *topology.OperatorError
	if !errors.As(err, &oe) || errors.Is(err, serde.ErrUnavailable) {
		return fmt.Errorf("processor: task %s: record %s: %w", t.name, t.current, err)
	}
	action := t.action(oe)
	t.note(RecordErrorStatus{Time: now, Operator: oe.Operator, Stage: string(oe.Stage), Action: action, Position: t.current.String(), Error: cut(oe.Err.Error())})
	if action == actionStop {
		return &RecordError{Task: t.name, Operator: oe.Operator, Stage: oe.Stage, Position: t.current, Err: oe.Err}
	}
	t.counters.add(topology.CounterID{Kind: topology.CounterKind(metric.ErrorCounter(string(oe.Stage), action)), Of: oe.Operator}, 1)
	if action == actionSkip {
		return nil
	}
	return t.deadLetter(in, r, oe)
}

// What is done about a failure, as it stands in metrics and in the status.
const (
	actionStop       = "stop"
	actionSkip       = "skip"
	actionDeadLetter = "dead_letter"
)

// action is what the operator's policy, or the application's, says.
func (t *Task) action(oe *topology.OperatorError) string {
	return policyAction(oe.Policy, t.cfg.policy)
}

// policyAction is what a policy says, or else the application's.
func policyAction(policy, ofApp topology.Policy) string {
	if policy == topology.PolicyDefault {
		policy = ofApp
	}
	switch policy {
	case topology.PolicySkip:
		return actionSkip
	case topology.PolicyDeadLetter:
		return actionDeadLetter
	}
	return actionStop
}

// deadLetter puts the record, as it came, into the transaction's outputs.
//
// The headers are those of KIP-1034, so that existing tools read them, and our own. They replace
// those of an earlier failure: a record that is sent again and fails again must not grow.
func (t *Task) deadLetter(in *input, r *broker.Record, oe *topology.OperatorError) error {
	size, err := t.sendDeadLetter(deadLetterOf(in.tp, r, oe), in.tp.Partition)
	if err != nil {
		if size == 0 {
			return fmt.Errorf("processor: record %s %w: %w", t.current, err, oe)
		}
		return &RecordError{Task: t.name, Operator: oe.Operator, Stage: topology.StageProduce, Position: t.current, Err: fmt.Errorf("%w; it failed with: %w", err, oe.Err)}
	}
	t.outBytes += size
	return nil
}

// deadLetterOf is the record of a partition as a dead letter, but for where it goes.
func deadLetterOf(tp record.TopicPartition, r *broker.Record, oe *topology.OperatorError) broker.Output {
	attempt := 1
	if v, ok := r.Headers.Get("__streamd.errors.attempt"); ok {
		if n, err := strconv.Atoi(string(v)); err == nil && n > 0 {
			attempt = n + 1
		}
	}
	h := errorHeaders(r.Headers, oe, attempt)
	add := func(k, v string) { h = append(h, record.Header{Key: k, Value: []byte(v)}) }
	add("__streams.errors.topic", tp.Topic)
	add("__streams.errors.partition", strconv.Itoa(int(tp.Partition)))
	add("__streams.errors.offset", strconv.FormatInt(int64(r.Offset), 10))
	return broker.Output{Timestamp: r.Timestamp, Key: r.Key, Value: r.Value, Headers: h}
}

// errorHeaders are the headers of a dead letter that say what failed; those of from that are not ours come first.
func errorHeaders(from record.Headers, oe *topology.OperatorError, attempt int) record.Headers {
	h := make(record.Headers, 0, len(from)+9)
	for _, x := range from {
		if !ownErrorHeader(x.Key) {
			h = append(h, x)
		}
	}
	add := func(k, v string) { h = append(h, record.Header{Key: k, Value: []byte(v)}) }
	add("__streams.errors.exception", fmt.Sprintf("%T", root(oe.Err)))
	add("__streams.errors.message", cut(oe.Err.Error()))
	add("__streamd.errors.step", oe.Operator)
	add("__streamd.errors.stage", string(oe.Stage))
	add("__streamd.errors.attempt", strconv.Itoa(attempt))
	return h
}

// sendDeadLetter puts a dead letter into the transaction's outputs and returns its size; with an error nothing was put. Size 0: there
// is no dead letter topic.
func (t *Task) sendDeadLetter(o broker.Output, p record.Partition) (size int, err error) {
	target := &t.cfg.deadLetter
	if target.topic == "" || target.partitions == 0 {
		return 0, errors.New("is to go to the dead letter topic, but none is set")
	}
	o.TopicPartition = record.TopicPartition{Topic: target.topic, Partition: p % record.Partition(target.partitions)}
	if size = outputSize(&o) + batchOverhead; size > target.maxBytes {
		return size, fmt.Errorf("its dead letter of about %d bytes is larger than max.message.bytes (%d) of topic %q", size, target.maxBytes, target.topic)
	}
	t.out = append(t.out, o)
	return size, nil
}

func (t *Task) note(e RecordErrorStatus) { t.errors = noteError(t.errors, e) }

// noteError keeps the last errors.
func noteError(kept []RecordErrorStatus, e RecordErrorStatus) []RecordErrorStatus {
	if len(kept) == keptErrors {
		kept = append(kept[:0], kept[1:]...)
	}
	return append(kept, e)
}

func ownErrorHeader(key string) bool {
	const a, b = "__streams.errors.", "__streamd.errors."
	return len(key) > len(a) && (key[:len(a)] == a || key[:len(b)] == b)
}

// root returns the innermost error, whose type says most.
func root(err error) error {
	for {
		u := errors.Unwrap(err)
		if u == nil {
			return err
		}
		err = u
	}
}

func cut(s string) string {
	if len(s) > maxErrorText {
		return s[:maxErrorText] + "..."
	}
	return s
}
