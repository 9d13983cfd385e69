package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

func build() (*topology.Topology, error) {
	b := topology.New("clicks")
	impressions := topology.From(b, "impressions", serde.String(), serde.String(), topology.WithIdleness(time.Second))
	clicks := topology.From(b, "clicks", serde.String(), serde.String(), topology.WithIdleness(time.Second))
	seen := topology.LeftJoin(impressions, clicks, "seen", topology.JoinWithin(5*time.Second).Before(0).Grace(time.Second), func(_, impression string, click *string) (string, error) {
		return fmt.Sprintf("%s, clicked: %t", impression, click != nil), nil
	})
	topology.To(seen, "ads-seen", serde.String(), serde.String())
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
