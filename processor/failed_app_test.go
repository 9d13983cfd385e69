package processor_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// TestThatItFailedIsScraped: a program may go on without its pipeline. Then its metrics say that it failed, and the next App of the name has its own.
func TestThatItFailedIsScraped(t *testing.T) {
	b, err := embedded.Start(embedded.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	build := topology.New("app")
	topology.To(topology.From(build, "missing", serde.String(), serde.String()), "out", serde.String(), serde.String())
	topo, err := build.Build()
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	for range 2 {
		app, err := processor.New(topo, processor.WithBrokers(b.Address()), processor.WithStateDir(t.TempDir()), processor.WithRegisterer(registry))
		if err != nil {
			t.Fatal(err)
		}
		if err := app.Run(t.Context()); err == nil {
			t.Fatal("it runs without its input")
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		failed := 0.0
		for _, f := range families {
			for _, m := range f.Metric {
				if f.GetName() == "streamd_pipeline_state" && m.GetLabel()[1].GetValue() == string(processor.Failed) {
					failed = m.GetGauge().GetValue()
				}
			}
		}
		if failed != 1 || len(families) != 2 {
			t.Errorf("%d families, the state error is %v", len(families), failed)
		}
	}
}
