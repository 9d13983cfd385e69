package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/embedded"
)

// TestWindowedCounts runs the example of windows, CloudEvents and all, on a broker: each minute of a page comes out once, though an event
// was sent twice and another one came out of order.
func TestWindowedCounts(t *testing.T) {
	b, err := embedded.Start(embedded.Config{Topics: []embedded.Topic{
		{Name: "clicks", Partitions: 2}, {Name: "clicks.per-minute", Partitions: 2}, {Name: "clicks-per-minute.dlq", Partitions: 1},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ps, err := daemon.Load([]string{"../../pipeline/testdata/pipelines/3-windowed-counts.yaml"}, daemon.LoadConfig{Brokers: []string{b.Address()}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	runCtx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- daemon.Run(runCtx, daemon.RunConfig{
			Pipelines: ps, DataDir: t.TempDir(), HTTP: daemon.Off, Admin: daemon.Off, Instance: "test",
			Startup: time.Minute, Shutdown: time.Minute, Log: slog.New(slog.DiscardHandler),
		})
	}()
	c, err := kgo.NewClient(kgo.SeedBrokers(b.Address()), kgo.ConsumeTopics("clicks.per-minute"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const day = "2026-01-01T"
	for _, e := range []struct {
		id, user, at string
		structured   bool
	}{
		{"1", "ann", "00:00:10Z", false},
		{"1", "ann", "00:00:10Z", true},
		{"2", "bob", "00:01:05Z", true},
		{"3", "ann", "00:00:50Z", false},
		{"4", "cid", "00:05:00Z", false},
	} {
		data := `{"user":"` + e.user + `","page":"/","at":"` + day + e.at + `"}`
		r := &kgo.Record{Topic: "clicks", Key: []byte(e.id), Value: []byte(data), Headers: []kgo.RecordHeader{{Key: "ce_id", Value: []byte(e.id)}, {Key: "ce_source", Value: []byte("web")}}}
		if e.structured {
			r.Value = []byte(`{"specversion":"1.0","id":"` + e.id + `","source":"web","type":"click","data":` + data + `}`)
			r.Headers = []kgo.RecordHeader{{Key: "content-type", Value: []byte("application/cloudevents+json")}}
		}
		if err := c.ProduceSync(ctx, r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	type minute struct {
		Page, From, To string
		Clicks, Users  int
	}
	got := map[string]minute{}
	for len(got) < 2 {
		fetches := c.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			t.Fatalf("%v: came out: %v", err, got)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			var m minute
			if err := json.Unmarshal(r.Value, &m); err != nil || string(r.Key) != "/" || got[m.From] != (minute{}) {
				t.Errorf("record %q = %s: %v", r.Key, r.Value, err)
			}
			got[m.From] = m
		})
	}
	for _, want := range []minute{
		{"/", day + "00:00:00Z", day + "00:01:00Z", 2, 1},
		{"/", day + "00:01:00Z", day + "00:02:00Z", 1, 1},
	} {
		if got[want.From] != want {
			t.Errorf("got %+v, want %+v", got[want.From], want)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
