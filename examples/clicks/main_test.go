package main

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/test/exampletest"
)

func TestImpressionsAndClicks(t *testing.T) {
	topo, err := build()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	send := func(topic, ad, value string, after time.Duration) *kgo.Record {
		return &kgo.Record{Topic: topic, Key: []byte(ad), Value: []byte(value), Timestamp: begin.Add(after)}
	}
	out := exampletest.Run(t, topo, []*kgo.Record{
		send("impressions", "shoes", "banner", 0), send("impressions", "books", "footer", time.Second),
		send("clicks", "books", "a click before", 0), // before its impression
		send("clicks", "shoes", "ann", 3*time.Second), send("clicks", "shoes", "bob", 9*time.Second),
	}, 2, "ads-seen")
	var got []string
	for _, r := range out["ads-seen"] {
		got = append(got, fmt.Sprintf("%s: %s", r.Key, r.Value))
	}
	if want := []string{"shoes: banner, clicked: true", "books: footer, clicked: false"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
