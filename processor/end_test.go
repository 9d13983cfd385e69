package processor

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/topology"
)

// refusing is a target that fails all its partitions at once, for good.
type refusing struct{ all sync.WaitGroup }

func (*refusing) Class() sink.Class           { return sink.Ledger }
func (*refusing) Check(context.Context) error { return nil }
func (*refusing) Close() error                { return nil }

var errRefused = errors.New("refused")

func (r *refusing) Claim(context.Context, sink.Partition) (sink.Writer, error) {
	r.all.Done()
	r.all.Wait()
	return nil, &sink.SetupError{Err: errRefused}
}

// stuckCluster has no coordinator of transactions.
type stuckCluster struct{ broker.Cluster }

func (c stuckCluster) NewProducer(conf broker.ProducerConfig) broker.Producer {
	return stuckProducer{c.Cluster.NewProducer(conf)}
}

type stuckProducer struct{ broker.Producer }

func (stuckProducer) Init(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestRunEndsHoweverMuchFails: many parts of a process fail at once, and its worker when the time for the stop is over. Run ends
// with the first error.
func TestRunEndsHoweverMuchFails(t *testing.T) {
	const partitions = 64
	target := &refusing{}
	target.all.Add(partitions)
	b := topology.New("app")
	topology.Into(topology.From(b, "wide", serde.String(), serde.String()), "rows", serde.String(), serde.String(), target,
		func(record.Record[string, string]) (sink.Row, error) { return sink.Row{}, nil })
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, topo)
	if err := w.b.Client("setup").CreateTopic(t.Context(), broker.Topic{Name: "wide", Partitions: partitions, Replicas: 1}); err != nil {
		t.Fatal(err)
	}
	app, err := New(topo, WithStateDir(t.TempDir()), WithInstanceID("a"), WithWorkers(1), WithShutdownTimeout(100*time.Millisecond),
		optionFunc(func(c *config) { c.cluster = stuckCluster{w.b.Client("app")} }))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- app.Run(context.WithoutCancel(t.Context())) }()
	g := w.b.Group("app")
	deadline := time.Now().Add(20 * time.Second)
	for len(g.Instances()) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("no member")
		}
		time.Sleep(time.Millisecond)
	}
	go g.Rebalance(t.Context(), g.Spread())
	select {
	case err := <-ended:
		if !errors.Is(err, errRefused) {
			t.Errorf("error %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Run does not end")
	}
}
