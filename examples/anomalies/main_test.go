package main

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/test/exampletest"
	"github.com/streamd/streamd/window"
)

func TestAnomalies(t *testing.T) {
	topo, err := build()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	click := func(user string, seconds int) *kgo.Record {
		return &kgo.Record{Topic: "user-clicks", Key: []byte(user), Value: []byte("/"), Timestamp: begin.Add(time.Duration(seconds) * time.Second)}
	}
	out := exampletest.Run(t, topo, []*kgo.Record{
		click("ann", 1), click("bob", 2), click("bob", 3), click("ann", 30), click("bob", 59), click("ann", 61), // ann's third is in the next minute
		click("eve", 121),
	}, 1, "anomalous-users")
	r := out["anomalous-users"][0]
	k, err := window.KeySerde(serde.String()).Decode(r.Key)
	if err != nil || k.Key != "bob" || !k.Start.Equal(begin) || binary.BigEndian.Uint64(r.Value) != 3 {
		t.Errorf("%v %v: %x", k, err, r.Value)
	}
}
