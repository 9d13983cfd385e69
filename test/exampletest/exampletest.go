package exampletest

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/topology"
)

// patience bounds a run: minutes, since the machine may be busy; it takes seconds.
const patience = 3 * time.Minute

// Run starts the application, sends the records, one after the other, and returns the first n committed records
// of the topics want, by topic in the order in which they came. All topics have one partition.
func Run(t *testing.T, topo *topology.Topology, send []*kgo.Record, n int, want ...string) map[string][]*kgo.Record {
	t.Helper()
	names := map[string]bool{}
	var topics []embedded.Topic
	for _, r := range append(send, topicsOf(want)...) {
		if !names[r.Topic] {
			names[r.Topic] = true
			topics = append(topics, embedded.Topic{Name: r.Topic, Partitions: 1})
		}
	}
	b, err := embedded.Start(embedded.Config{Topics: topics})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	app, err := processor.New(topo, processor.WithBrokers(b.Address()), processor.WithStateDir(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- app.Run(ctx) }()

	c, err := kgo.NewClient(kgo.SeedBrokers(b.Address()), kgo.ConsumeTopics(want...), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.ProduceSync(ctx, send...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	got := map[string][]*kgo.Record{}
	for seen := 0; seen < n; {
		f := c.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("only %d of %d records came", seen, n)
		}
		f.EachRecord(func(r *kgo.Record) {
			got[r.Topic] = append(got[r.Topic], r)
			seen++
		})
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the application ended with: %v", err)
	}
	return got
}

func topicsOf(names []string) (out []*kgo.Record) {
	for _, n := range names {
		out = append(out, &kgo.Record{Topic: n})
	}
	return out
}
