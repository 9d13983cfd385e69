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
)

type event struct{ ID, Text string }

func build() (*topology.Topology, error) {
	b := topology.New("eventdedup")
	events := topology.From(b, "events", serde.String(), serde.JSON[event]())
	out := topology.DedupSplit(events, "once", topology.Retention(24*time.Hour),
		topology.ID(func(r record.Record[string, event]) record.ID { return record.StringID(r.Value.ID) }))
	topology.To(out.Unique, "events-once", serde.String(), serde.JSON[event]())
	topology.To(out.Duplicate, "events-again", serde.String(), serde.JSON[event]())
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
