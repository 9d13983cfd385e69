package processor

import (
	"context"
	"testing"

	"github.com/streamd/streamd/internal/broker"
)

// TestTopicMadeAnewEndsARunningApplication: its requests name the topics, so that it would go on with the new ones.
func TestTopicMadeAnewEndsARunningApplication(t *testing.T) {
	for _, topic := range []string{"in", "app-in-ids-changelog", "app-totals-changelog"} {
		t.Run(topic, func(t *testing.T) {
			w := newWorld(t, totals(t))
			s := w.live()
			w.send(0, "k", "1", 1)
			w.settle(s)
			if err := s.engine.checkIdentities(context.Background()); err != nil {
				t.Fatalf("nothing has happened: %v", err)
			}
			c := w.b.Client("operator")
			was, err := c.Topics(context.Background(), topic)
			if err != nil || was[topic].ID == "" {
				t.Fatal(was, err)
			}
			w.b.DeleteTopic(topic)
			if err := s.engine.checkIdentities(context.Background()); err != nil {
				t.Fatalf("a topic that is not there may be one that this broker has not heard of: %v", err)
			}
			again := was[topic]
			if err := c.CreateTopic(context.Background(), broker.Topic{Name: topic, Partitions: again.Partitions, Replicas: 1, Cleanup: again.Cleanup}); err != nil {
				t.Fatal(err)
			}
			wantError(t, s.engine.checkIdentities(context.Background()), ErrDataLost, topic, "deleted and made again", again.ID)
		})
	}
}
