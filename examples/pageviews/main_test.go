package main

import (
	"testing"
	"time"

	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topologytest"
	"github.com/streamd/streamd/window"
)

func TestPageViewsByRegion(t *testing.T) {
	topo, err := build()
	if err != nil {
		t.Fatal(err)
	}
	d := topologytest.New(t, topo)
	views := topologytest.Input(d, "pageviews", serde.String(), serde.JSON[view]())
	profiles := topologytest.Input(d, "user-profiles", serde.String(), serde.JSON[profile]())
	counts := topologytest.Output(d, "pageviews-by-region", window.KeySerde(serde.String()), serde.Int64())
	begin := d.Now().Add(-time.Hour)
	for _, region := range []string{"europe", "asia"} {
		profiles.Send("somebody in "+region, profile{Region: region}, topologytest.At(begin))
	}
	d.Run()
	see := func(region string, after time.Duration) {
		views.Send("page", view{User: "somebody in " + region}, topologytest.At(begin.Add(after)))
	}
	see("europe", 10*time.Second)
	see("asia", 20*time.Second)
	see("europe", 65*time.Second)
	see("europe", 50*time.Second) // late, within the grace
	see("asia", 3*time.Minute)    // closes the windows that end up to the second minute
	d.Advance(35 * time.Second)   // no profile has come for so long that the views no longer wait for one
	got := map[string]int64{}
	for _, r := range counts.Records() {
		got[r.Key.Key+r.Key.End.Sub(begin).String()] = r.Value
	}
	want := map[string]int64{"asia1m0s": 1, "asia2m0s": 1, "europe1m0s": 2, "europe2m0s": 3}
	for k, n := range want {
		if got[k] != n {
			t.Errorf("%s: %d, want %d", k, got[k], n)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%v, want %v", got, want)
	}
	d.Advance(10 * time.Minute) // the input stops: the other windows close all the same
	if n := len(counts.Records()); n <= len(want) {
		t.Errorf("still %d results after the input stopped", n)
	}
}
