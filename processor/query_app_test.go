package processor_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// TestQueryOfAnApp: the state of a running App, on a Kafka in memory, with the real local store. Each question asks Kafka.
func TestQueryOfAnApp(t *testing.T) {
	b, err := embedded.Start(embedded.Config{Topics: []embedded.Topic{{Name: "words", Partitions: 2}, {Name: "counts", Partitions: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	tb := topology.New("querying")
	words := topology.From(tb, "words", serde.String(), serde.String())
	by := topology.KeyBy(words, "by-word", serde.String(), func(r record.Record[string, string]) (string, error) { return r.Value, nil })
	topology.To(topology.Count(by, "count"), "counts", serde.String(), serde.Int64())
	topo, err := tb.Build()
	if err != nil {
		t.Fatal(err)
	}
	app, err := processor.New(topo, processor.WithBrokers(b.Address()), processor.WithStateDir(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	counts := processor.Query(app, "count", serde.String(), serde.Int64(), processor.MaxStaleness(0))
	if _, err := counts.Get(t.Context(), "kafka"); !errors.Is(err, processor.ErrNotReady) {
		t.Errorf("before it runs: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	running, stop := context.WithCancel(ctx)
	var ended error
	var run sync.WaitGroup
	run.Go(func() { ended = app.Run(running) })
	defer run.Wait()
	defer stop()
	c, err := kgo.NewClient(kgo.SeedBrokers(b.Address()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const n = 20
	var last uint64
	for i := range int64(n) {
		if err := c.ProduceSync(ctx, &kgo.Record{Topic: "words", Key: []byte("k"), Value: []byte("kafka")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		for {
			a, err := counts.Get(ctx, "kafka")
			if ctx.Err() != nil {
				t.Fatalf("after %d words: %+v, %v", i+1, a, err)
			}
			if err == nil && a.Value > i+1 || a.Sequence < last && err == nil {
				t.Fatalf("after %d words: %+v, before it commit %d", i+1, a, last)
			}
			if err == nil && a.Value == i+1 {
				last = a.Sequence
				break
			}
		}
	}
	stop()
	run.Wait()
	if ended != nil {
		t.Errorf("the application ended with: %v", ended)
	}
	if _, err := counts.Get(ctx, "kafka"); !errors.Is(err, processor.ErrNotHere) {
		t.Errorf("after it has stopped: %v", err)
	}
}
