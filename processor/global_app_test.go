package processor_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// TestGlobalTableOfAnApp: the reader beside the workers of a running App, on a Kafka in memory; the second life begins with what is there.
func TestGlobalTableOfAnApp(t *testing.T) {
	b, err := embedded.Start(embedded.Config{Topics: []embedded.Topic{{Name: "orders", Partitions: 2}, {Name: "countries", Partitions: 3}, {Name: "named", Partitions: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	tb := topology.New("shipping")
	countries := topology.GlobalTable(tb, "countries", serde.String(), serde.String())
	orders := topology.From(tb, "orders", serde.String(), serde.String())
	named := topology.LeftJoinGlobal(orders, countries, "named", func(_, order string) (string, error) { return order, nil }, func(_, _ string, name *string) (string, error) {
		if name == nil {
			return "nowhere", nil
		}
		return *name, nil
	})
	topology.To(named, "named", serde.String(), serde.String())
	topo, err := tb.Build()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, err := kgo.NewClient(kgo.SeedBrokers(b.Address()), kgo.ConsumeTopics("named"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	put := func(topic, key, value string) {
		t.Helper()
		if err := c.ProduceSync(ctx, &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte(value)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	results := map[string]string{}
	result := func(key string) string { // of the order with that key, of which there is one
		t.Helper()
		for results[key] == "" {
			for _, r := range c.PollRecords(ctx, 10).Records() {
				results[string(r.Key)] = string(r.Value)
			}
			if ctx.Err() != nil {
				t.Fatalf("no result of %q: %v", key, ctx.Err())
			}
		}
		return results[key]
	}
	dir := t.TempDir()
	for life := range 2 {
		put("countries", "no", fmt.Sprint("Norway ", life))
		first := fmt.Sprint("ann ", life)
		put("orders", first, "no")
		registry := prometheus.NewRegistry()
		app, err := processor.New(topo, processor.WithBrokers(b.Address()), processor.WithStateDir(dir), processor.WithRegisterer(registry))
		if err != nil {
			t.Fatal(err)
		}
		running, stop := context.WithCancel(ctx)
		var ended error
		var run sync.WaitGroup
		run.Go(func() { ended = app.Run(running) })
		if got, want := result(first), fmt.Sprint("Norway ", life); got != want {
			t.Errorf("life %d: the first order went to %q, want %q", life, got, want)
		}
		put("countries", "ch", fmt.Sprint("Switzerland ", life))
		want := fmt.Sprint("Switzerland ", life)
		for n, got := 0, ""; got != want; n++ { // the first ones may come before the row
			key := fmt.Sprint("bob ", life, " ", n)
			put("orders", key, "ch")
			got = result(key)
		}
		if g := app.Status().Globals; len(g) != 1 || g[0].State != processor.GlobalCurrent || g[0].Rows != 2 || g[0].Reads != 1 {
			t.Errorf("%+v", g)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]float64{}
		for _, f := range families {
			for _, m := range f.Metric {
				seen[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		if seen["streamd_global_table_rows"] != 2 || seen["streamd_global_table_as_of_timestamp_seconds"] == 0 || seen["streamd_global_table_size_bytes"] == 0 {
			t.Errorf("metrics %v", seen)
		}
		stop()
		run.Wait()
		if ended != nil {
			t.Fatalf("the application ended with: %v", ended)
		}
	}
}
