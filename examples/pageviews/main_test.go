package main

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/test/exampletest"
	"github.com/streamd/streamd/window"
)

func TestPageViewsByRegion(t *testing.T) {
	topo, err := build()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	view := func(region string, after time.Duration) *kgo.Record {
		return &kgo.Record{Topic: "pageviews", Key: []byte("page"), Value: fmt.Appendf(nil, `{"Region":%q}`, region), Timestamp: begin.Add(after)}
	}
	out := exampletest.Run(t, topo, []*kgo.Record{
		view("europe", 10*time.Second), view("asia", 20*time.Second), view("europe", 65*time.Second),
		view("europe", 50*time.Second), // late, within the grace
		view("asia", 3*time.Minute),    // closes the windows that end up to 12:02
	}, 4, "pageviews-by-region")
	got := map[string]uint64{}
	for _, r := range out["pageviews-by-region"] {
		k, err := window.KeySerde(serde.String()).Decode(r.Key)
		if err != nil {
			t.Fatal(err)
		}
		got[fmt.Sprintf("%s until %s", k.Key, k.End.Format(time.TimeOnly))] = binary.BigEndian.Uint64(r.Value)
	}
	if s := fmt.Sprint(got); s != "map[asia until 12:01:00:1 asia until 12:02:00:1 europe until 12:01:00:2 europe until 12:02:00:3]" {
		t.Error(s)
	}
}
