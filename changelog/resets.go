package changelog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// ResetsTopic is the name of the topic in which the resets of an application leave their marks: <app>-resets. It outlives what they
// delete (docs/adr/0028).
func ResetsTopic(app string) string { return app + "-resets" }

// ResetMetadata stands with the offsets that a reset has set.
const ResetMetadata = "reset by streamd"

// The values of marks. What is planned proves nothing: the reset may have died, and somebody else may delete the topic later. The name of the
// topic stands behind resetPlanned.
const (
	resetPlanned = "streamd/1 planned "
	resetDone    = "streamd/1 done"
)

// resetsWait bounds one wait for marks.
const resetsWait = time.Second

// Resets are the ID logs that resets of an application have deleted, by topic ID; false: it was planned, and is not known to be done.
type Resets map[string]bool

// Begun says that a reset was begun and not completed.
func (r Resets) Begun() bool {
	for _, done := range r {
		if !done {
			return true
		}
	}
	return false
}

// PlannedLog is an ID log that a reset is about to delete, or has deleted.
type PlannedLog struct{ Topic, TopicID string }

// Deleted says that a reset, and nobody else, has deleted the ID log with this topic ID.
func (r Resets) Deleted(topicID string) bool { return topicID != "" && r[topicID] }

// ReadResets reads which resets were planned and completed. There are none as long as nothing was reset.
func ReadResets(ctx context.Context, c broker.Cluster, app string) (Resets, error) {
	marks, err := readMarks(ctx, c, app)
	if err != nil {
		return nil, err
	}
	resets := Resets{}
	for id, value := range marks {
		if value == resetDone || strings.HasPrefix(value, resetPlanned) {
			resets[id] = value == resetDone
		}
	}
	return resets, nil
}

// readMarks reads the newest mark of each topic ID. What is unknown is of a newer version or of nobody: it proves nothing.
func readMarks(ctx context.Context, c broker.Cluster, app string) (map[string]string, error) {
	name, marks := ResetsTopic(app), map[string]string{}
	failed := func(err error) (map[string]string, error) {
		return nil, fmt.Errorf("changelog: marks of resets in %q: %w", name, err)
	}
	there, err := c.Topics(ctx, name)
	if err != nil {
		return failed(err)
	}
	if _, ok := there[name]; !ok {
		return marks, nil
	}
	tp := record.TopicPartition{Topic: name}
	starts, err := c.StartOffsets(ctx, []record.TopicPartition{tp})
	if err != nil {
		return failed(err)
	}
	ends, err := c.HighWatermarks(ctx, []record.TopicPartition{tp})
	if err != nil {
		return failed(err)
	}
	r := c.NewReader(broker.ReaderConfig{Isolation: broker.ReadCommitted})
	defer r.Close()
	next := starts[tp]
	r.Seek(tp, next, 0)
	for next < ends[tp] {
		for _, b := range r.Poll(ctx, resetsWait) {
			if b.Err != nil {
				return failed(b.Err)
			}
			for i := range b.Records {
				marks[string(b.Records[i].Key)] = string(b.Records[i].Value)
			}
			next = b.Next
		}
		if err := ctx.Err(); err != nil {
			return failed(err)
		}
	}
	return marks, nil
}

// PlanReset notes that ID logs are about to be deleted by a reset, before the first of them is. It returns what [CompleteReset] has to
// make done: these, and those of resets that died before they were completed.
func PlanReset(ctx context.Context, c broker.Cluster, app string, logs []PlannedLog) (planned []PlannedLog, err error) {
	marks, err := readMarks(ctx, c, app)
	if err != nil {
		return nil, err
	}
	for id, value := range marks {
		if topic, ok := strings.CutPrefix(value, resetPlanned); ok {
			planned = append(planned, PlannedLog{topic, id})
		}
	}
	if len(logs) == 0 {
		return planned, nil
	}
	name := ResetsTopic(app)
	there, err := c.Topics(ctx, name)
	if _, ok := there[name]; err == nil && !ok { // who finds it needs no right to create it
		err = c.CreateTopic(ctx, broker.Topic{Name: name, Partitions: 1, Replicas: -1, Cleanup: broker.Compact})
	}
	if err != nil && !errors.Is(err, broker.ErrTopicExists) {
		return nil, fmt.Errorf("changelog: create %q: %w", name, err)
	}
	return append(planned, logs...), writeMarks(ctx, c, app, logs, func(l PlannedLog) string { return resetPlanned + l.Topic })
}

// CompleteReset notes that the ID logs are gone, and that it was a reset: whatever state was made of them counts no more. One that is there still,
// since a reset that died had planned it and the pipeline has it no more under that name, stays planned.
func CompleteReset(ctx context.Context, c broker.Cluster, app string, planned []PlannedLog) error {
	names := make([]string, len(planned))
	for i, l := range planned {
		names[i] = l.Topic
	}
	there, err := c.Topics(ctx, names...)
	if err != nil {
		return fmt.Errorf("changelog: are the deleted ID logs gone: %w", err)
	}
	gone := slices.DeleteFunc(slices.Clone(planned), func(l PlannedLog) bool { return there[l.Topic].ID == l.TopicID })
	return writeMarks(ctx, c, app, gone, func(PlannedLog) string { return resetDone })
}

func writeMarks(ctx context.Context, c broker.Cluster, app string, logs []PlannedLog, value func(PlannedLog) string) error {
	if len(logs) == 0 {
		return nil
	}
	s := c.NewSender(broker.SenderConfig{})
	defer s.Close()
	for _, l := range logs {
		s.Add(broker.Output{TopicPartition: record.TopicPartition{Topic: ResetsTopic(app)}, Key: []byte(l.TopicID), Value: []byte(value(l))})
	}
	if err := s.Send(ctx); err != nil {
		return fmt.Errorf("changelog: mark a reset in %q: %w", ResetsTopic(app), err)
	}
	return nil
}
