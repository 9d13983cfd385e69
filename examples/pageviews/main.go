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

type view struct{ Page, User, Region string }

func build() (*topology.Topology, error) {
	b := topology.New("pageviews")
	views := topology.From(b, "pageviews", serde.String(), serde.JSON[view]())
	byRegion := topology.KeyBy(views, "by-region", serde.String(), func(r record.Record[string, view]) (string, error) { return r.Value.Region, nil })
	lastMinutes := topology.WindowedBy(byRegion, window.Hopping(5*time.Minute, time.Minute).Grace(10*time.Second))
	counts := topology.Count(lastMinutes, "views", topology.EmitOnClose())
	topology.To(counts, "pageviews-by-region", window.KeySerde(serde.String()), serde.Int64())
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
