package main

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/test/exampletest"
)

func TestWordCount(t *testing.T) {
	topo, err := build()
	if err != nil {
		t.Fatal(err)
	}
	line := func(s string) *kgo.Record {
		return &kgo.Record{Topic: "streams-plaintext-input", Key: []byte("k"), Value: []byte(s)}
	}
	out := exampletest.Run(t, topo, []*kgo.Record{line("all streams lead to kafka"), line("hello Kafka Streams")}, 8, "streams-wordcount-output")
	got := map[string]uint64{}
	for _, r := range out["streams-wordcount-output"] {
		got[string(r.Key)] = binary.BigEndian.Uint64(r.Value)
	}
	if s := fmt.Sprint(got); s != "map[all:1 hello:1 kafka:2 lead:1 streams:2 to:1]" {
		t.Error(s)
	}
}
