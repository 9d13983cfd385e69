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

type (
	view    struct{ User, Page string }
	profile struct{ Region string }
)

func build() (*topology.Topology, error) {
	b := topology.New("pageviews")
	views := topology.From(b, "pageviews", serde.String(), serde.JSON[view]())
	byUser := topology.KeyBy(views, "by-user", serde.String(), func(r record.Record[string, view]) (string, error) { return r.Value.User, nil })
	profiles := topology.Table(b, "user-profiles", serde.String(), serde.JSON[profile]())
	regions := topology.JoinTable(byUser, profiles, "regions", func(_ string, _ view, p profile) (string, error) { return p.Region, nil })
	byRegion := topology.KeyBy(regions.WithValues(serde.String()), "by-region", serde.String(), func(r record.Record[string, string]) (string, error) { return r.Value, nil })
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
