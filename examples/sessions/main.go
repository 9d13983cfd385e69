package main

import (
	"context"
	"log"
	"os"
	"time"

	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

func build() (*topology.Topology, error) {
	b := topology.New("sessions")
	clicks := topology.From(b, "clicks", serde.String(), serde.String()) // user: page
	visits := topology.Count(topology.WindowedBy(clicks, window.Session(30*time.Minute).Grace(time.Minute)), "visits", topology.EmitOnClose())
	topology.To(visits, "visits", window.KeySerde(serde.String()), serde.Int64())
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
