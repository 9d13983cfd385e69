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

func TestSessions(t *testing.T) {
	topo, err := build()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	click := func(user string, minute int) *kgo.Record {
		return &kgo.Record{Topic: "clicks", Key: []byte(user), Value: []byte("/"), Timestamp: begin.Add(time.Duration(minute) * time.Minute)}
	}
	out := exampletest.Run(t, topo, []*kgo.Record{
		click("ann", 0), click("bob", 5), click("ann", 20), click("ann", 49), click("ann", 120), click("bob", 180),
	}, 3, "visits")
	var got []string
	for _, r := range out["visits"] {
		k, err := window.KeySerde(serde.String()).Decode(r.Key)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %s-%s %d", k.Key, k.Start.Format("15:04"), k.End.Format("15:04"), binary.BigEndian.Uint64(r.Value)))
	}
	if s := fmt.Sprint(got); s != "[bob 12:05-12:35 1 ann 12:00-13:19 3 ann 14:00-14:30 1]" {
		t.Error(s)
	}
}
