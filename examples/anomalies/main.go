package main

import (
	"context"
	"log"
	"os"
	"time"

	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

func build() (*topology.Topology, error) {
	b := topology.New("anomalies")
	clicks := topology.From(b, "user-clicks", serde.String(), serde.String())
	perMinute := topology.Count(topology.WindowedBy(clicks, window.Tumbling(time.Minute)), "clicks", topology.EmitOnClose())
	many := topology.Filter(perMinute, func(r record.Record[window.Key[string], int64]) (bool, error) { return r.Value >= 3, nil })
	topology.To(many, "anomalous-users", window.KeySerde(serde.String()), serde.Int64())
	return b.Build()
}

func main() {
	topo, err := build()
	if err != nil {
		log.Fatal(err)
	}
	app, err := processor.New(topo, processor.WithBrokers(os.Args[1:]...))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(app.Run(context.Background()))
}
