package topology

import (
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/serde"
)

func TestOrphans(t *testing.T) {
	text := serde.String()
	type version struct {
		app, source, first, by, totals string
		second                         []DedupOption
	}
	build := func(v version) *Topology {
		t.Helper()
		b := New(v.app)
		s := From(b, "in", text, text, Name(v.source))
		if v.first != "" {
			s = Dedup(s, v.first, Retention(time.Hour))
		}
		s = Dedup(s, "second", append([]DedupOption{Retention(time.Hour)}, v.second...)...)
		toText(s)
		To(Aggregate(KeyBy(s, v.by, text, keyOf), v.totals, serde.Int64(), count), "totals", text, serde.Int64())
		topo, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		return topo
	}
	old := version{app: "app", source: "in", first: "first", by: "by", totals: "totals", second: []DedupOption{Always()}}
	with := func(change func(*version)) version {
		v := old
		change(&v)
		return v
	}
	tests := map[string]struct {
		to   version
		want []string // "operator: word"
	}{
		"nothing":             {old, nil},
		"application renamed": {with(func(v *version) { v.app = "other" }), []string{"app: begins with empty state"}},
		"source renamed":      {with(func(v *version) { v.source = "input" }), []string{"in: app-in-ids-changelog"}},
		"dedup renamed":       {with(func(v *version) { v.first = "one" }), []string{"first: gone or has another name"}},
		"dedup removed":       {with(func(v *version) { v.first = "" }), []string{"first: gone or has another name"}},
		"store renamed":       {with(func(v *version) { v.totals = "sums" }), []string{"totals: app-totals-changelog"}},
		"repartition renamed": {with(func(v *version) { v.by = "per" }), []string{"by: app-by-repartition", "by-repartition: its state"}},
		"log left out":        {with(func(v *version) { v.second = nil }), []string{"second: left out"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := build(old).Orphans(build(test.to))
			if len(got) != len(test.want) {
				t.Fatalf("%+v, want %v", got, test.want)
			}
			for i, w := range test.want {
				operator, word, _ := strings.Cut(w, ": ")
				if got[i].Operator != operator || !strings.Contains(got[i].What, word) || got[i].Remedy == "" {
					t.Errorf("%+v, want %s", got[i], w)
				}
			}
			if back := build(test.to).Orphans(build(test.to)); len(back) != 0 {
				t.Errorf("against itself: %+v", back)
			}
		})
	}
}
