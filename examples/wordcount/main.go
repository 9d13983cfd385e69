package main

import (
	"context"
	"log"
	"os"
	"strings"

	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

type line = record.Record[string, string]

func build() (*topology.Topology, error) {
	b := topology.New("wordcount")
	lines := topology.From(b, "streams-plaintext-input", serde.String(), serde.String())
	words := topology.FlatMap(lines, func(r line, emit topology.Emit[string, string]) error {
		for _, w := range strings.Fields(strings.ToLower(r.Value)) {
			emit(line{Value: w})
		}
		return nil
	})
	byWord := topology.KeyBy(words, "by-word", serde.String(), func(r line) (string, error) { return r.Value, nil })
	topology.To(topology.Count(byWord, "counts"), "streams-wordcount-output", serde.String(), serde.Int64())
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
