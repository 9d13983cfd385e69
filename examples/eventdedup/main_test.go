package main

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/test/exampletest"
)

func TestEachEventOnce(t *testing.T) {
	topo, err := build()
	if err != nil {
		t.Fatal(err)
	}
	event := func(id string) *kgo.Record {
		return &kgo.Record{Topic: "events", Key: []byte("k"), Value: fmt.Appendf(nil, `{"ID":%q}`, id)}
	}
	out := exampletest.Run(t, topo, []*kgo.Record{event("1"), event("2"), event("1"), event("3"), event("2")}, 5, "events-once", "events-again")
	for topic, want := range map[string]string{"events-once": "123", "events-again": "12"} {
		got := ""
		for _, r := range out[topic] {
			got += string(r.Value[7:8])
		}
		if got != want {
			t.Errorf("%s: %s, want %s", topic, got, want)
		}
	}
}
