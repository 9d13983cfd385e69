package processor_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// TestStoppedAtAnyRequest: an App that is told to stop returns nil, whichever request it was about to send: those of its start too.
func TestStoppedAtAnyRequest(t *testing.T) {
	b, err := embedded.Start(embedded.Config{Topics: []embedded.Topic{{Name: "in", Partitions: 1}, {Name: "out", Partitions: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	tb := topology.New("stopped")
	topology.To(topology.Dedup(topology.From(tb, "in", serde.String(), serde.String()), "dedup", topology.Retention(time.Hour)), "out", serde.String(), serde.String())
	topo, err := tb.Build()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir() // the same member of the group each time
	for n, running := int64(1), false; !running; n++ {
		ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
		var requests atomic.Int64
		dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return counted{c, func() {
				if requests.Add(1) == n {
					stop()
				}
			}}, err
		}
		app, err := processor.New(topo, processor.WithBrokers(b.Address()), processor.WithStateDir(dir), processor.WithKafka(processor.KafkaConfig{Dial: dial}))
		if err != nil {
			t.Fatal(err)
		}
		var watch sync.WaitGroup
		watch.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
				if app.Status().State == processor.Running {
					running = true
					stop()
				}
			}
		})
		if err := app.Run(ctx); err != nil {
			t.Errorf("stopped at request %d: %v", n, err)
		}
		stop()
		watch.Wait()
	}
}

// counted is a connection that tells of each write.
type counted struct {
	net.Conn
	write func()
}

func (c counted) Write(b []byte) (int, error) {
	c.write()
	return c.Conn.Write(b)
}
