package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/test/exampletest"
)

func TestTimers(t *testing.T) {
	topo, err := build()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	order := func(key, what string, minute int) *kgo.Record {
		return &kgo.Record{Topic: "orders", Key: []byte(key), Value: []byte(what), Timestamp: begin.Add(time.Duration(minute) * time.Minute)}
	}
	out := exampletest.Run(t, topo, []*kgo.Record{
		order("book", "placed", 0), order("pen", "placed", 10), order("book", "paid", 29), order("ink", "placed", 45), order("pen", "paid", 50), order("map", "placed", 75),
	}, 3, "unpaid")
	var got []string
	for _, r := range out["unpaid"] {
		got = append(got, fmt.Sprintf("%s: %s", r.Key, r.Value))
	}
	if s := fmt.Sprint(got); s != "[pen: not paid by 12:40:00 pen: paid after all ink: not paid by 13:15:00]" {
		t.Error(s)
	}
}
