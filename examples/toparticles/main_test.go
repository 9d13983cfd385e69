package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/test/exampletest"
	"github.com/streamd/streamd/window"
)

func TestTopArticles(t *testing.T) {
	topo, err := build()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var send []*kgo.Record
	view := func(industry, title string, n int, after time.Duration) {
		for range n {
			send = append(send, &kgo.Record{Topic: "article-views", Key: []byte("k"), Value: fmt.Appendf(nil, `{"Industry":%q,"Title":%q}`, industry, title), Timestamp: begin.Add(after)})
		}
	}
	view("news", "a", 2, time.Minute)
	view("news", "b", 5, 2*time.Minute)
	view("sports", "x", 1, 3*time.Minute)
	view("news", "c", 1, 4*time.Minute)
	view("news", "d", 3, 5*time.Minute)
	view("news", "a", 1, 3*time.Hour) // closes the windows of the first hour
	view("news", "a", 1, 6*time.Hour) // and that of the third
	out := exampletest.Run(t, topo, send, 3, "top-articles")
	got := map[string]string{}
	for _, r := range out["top-articles"] {
		k, err := window.KeySerde(serde.String()).Decode(r.Key)
		if err != nil {
			t.Fatal(err)
		}
		got[k.Key+" from "+k.Start.Format(time.TimeOnly)] = string(r.Value)
	}
	want := map[string]string{
		"news from 12:00:00":   `[{"Title":"b","Count":5},{"Title":"d","Count":3},{"Title":"a","Count":2}]`,
		"sports from 12:00:00": `[{"Title":"x","Count":1}]`,
		"news from 15:00:00":   `[{"Title":"a","Count":1}]`,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
