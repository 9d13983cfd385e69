package changelog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

// ResetsTopic is the name of the topic in which the resets of an application leave their marks: <app>-resets. It outlives what they
// delete (docs/adr/0028).
func ResetsTopic(app string) string { return app + "-resets" }

// ResetMetadata stands with the offsets that a reset has set.
const ResetMetadata = "reset by streamd"

// The values of marks. What is planned proves nothing: the reset may have died, and somebody else may delete the topic later.
const (
	resetPlanned = "streamd/1 planned"
	resetDone    = "streamd/1 done"
)

// resetsWait bounds one wait for marks.
const resetsWait = time.Second

// Resets are the ID logs that resets of an application have deleted, or meant to, by topic ID: true once a reset was completed.
type Resets map[string]bool

// Deleted says that a reset, and nobody else, has deleted the ID log with this topic ID.
func (r Resets) Deleted(topicID string) bool { return topicID != "" && r[topicID] }

// ReadResets reads the marks. There are none as long as nothing was reset.
func ReadResets(ctx context.Context, c broker.Cluster, app string) (Resets, error) {
	name, marks := ResetsTopic(app), Resets{}
	failed := func(err error) (Resets, error) {
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
				// What is unknown is of a newer version or of nobody: it proves nothing.
				marks[string(b.Records[i].Key)] = string(b.Records[i].Value) == resetDone
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
func PlanReset(ctx context.Context, c broker.Cluster, app string, topicIDs []string) (planned []string, err error) {
	marks, err := ReadResets(ctx, c, app)
	if err != nil {
		return nil, err
	}
	for id, done := range marks {
		if !done {
			planned = append(planned, id)
		}
	}
	if len(topicIDs) == 0 {
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
	return append(planned, topicIDs...), writeMarks(ctx, c, app, topicIDs, resetPlanned)
}

// CompleteReset notes that the ID logs are gone, and that it was a reset: whatever state was made of them counts no more.
func CompleteReset(ctx context.Context, c broker.Cluster, app string, planned []string) error {
	return writeMarks(ctx, c, app, planned, resetDone)
}

func writeMarks(ctx context.Context, c broker.Cluster, app string, topicIDs []string, value string) error {
	if len(topicIDs) == 0 {
		return nil
	}
	s := c.NewSender(broker.SenderConfig{})
	defer s.Close()
	for _, id := range topicIDs {
		s.Add(broker.Output{TopicPartition: record.TopicPartition{Topic: ResetsTopic(app)}, Key: []byte(id), Value: []byte(value)})
	}
	if err := s.Send(ctx); err != nil {
		return fmt.Errorf("changelog: mark a reset in %q: %w", ResetsTopic(app), err)
	}
	return nil
}
