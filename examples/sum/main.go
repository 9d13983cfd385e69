package main

import (
	"context"
	"log"
	"os"

	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

type number = record.Record[string, int64]

func build() (*topology.Topology, error) {
	b := topology.New("sum")
	numbers := topology.From(b, "numbers", serde.String(), serde.Int64())
	odd := topology.Filter(numbers, func(r number) (bool, error) { return r.Value%2 != 0, nil })
	together := topology.KeyBy(odd, "together", serde.String(), func(number) (string, error) { return "sum", nil })
	topology.To(topology.Sum(together, "total", func(r number) (int64, error) { return r.Value, nil }), "sum-of-odd-numbers", serde.String(), serde.Int64())
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
