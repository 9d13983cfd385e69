package main

import (
	"fmt"
	"testing"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topologytest"
)

func TestWordCount(t *testing.T) {
	topo, err := build()
	if err != nil {
		t.Fatal(err)
	}
	d := topologytest.New(t, topo, topologytest.Partitions("streams-plaintext-input", 4), topologytest.Partitions("streams-wordcount-output", 4))
	lines := topologytest.Input(d, "streams-plaintext-input", serde.String(), serde.String())
	counts := topologytest.Output(d, "streams-wordcount-output", serde.String(), serde.Int64())
	lines.Send("a", "all streams lead to kafka")
	d.CrashAt(topologytest.BeforeEndTxn)
	lines.Send("b", "hello Kafka Streams")
	if s := fmt.Sprint(topologytest.Table(counts)); s != "map[all:1 hello:1 kafka:2 lead:1 streams:2 to:1]" {
		t.Error(s)
	}
}
