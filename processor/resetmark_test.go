package processor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/changelog"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// TestStoreOlderThanAReset: behind a repartition topic the group's offsets go with that topic, so that nothing but its mark tells a reset
// from a loss. What was not completed, what somebody else deleted and what a reset has not seen stay refused.
func TestStoreOlderThanAReset(t *testing.T) {
	const repartition = "app-by-repartition"
	for _, c := range []struct {
		name    string
		reset   func(w *world, remove func(), mark func(planned []changelog.PlannedLog))
		refused bool
	}{
		{"completed", func(_ *world, remove func(), mark func([]changelog.PlannedLog)) { remove(); mark(nil) }, false},
		{"died before its mark", func(_ *world, remove func(), _ func([]changelog.PlannedLog)) { remove() }, true},
		{"of other topics", func(_ *world, remove func(), mark func([]changelog.PlannedLog)) {
			remove()
			mark([]changelog.PlannedLog{{Topic: "another", TopicID: "another"}})
		}, true},
		{"died before its mark, run again", func(w *world, remove func(), mark func([]changelog.PlannedLog)) {
			remove()
			planned, err := changelog.PlanReset(w.t.Context(), w.b.Client("reset"), "app", nil)
			if err != nil {
				w.t.Fatal(err)
			}
			mark(append([]changelog.PlannedLog{}, planned...))
		}, false},
		{"completed by one that does not know the topics, which somebody deletes later", func(_ *world, remove func(), mark func([]changelog.PlannedLog)) { mark(nil); remove() }, true},
		{"a mistake after it", func(w *world, remove func(), mark func([]changelog.PlannedLog)) {
			remove()
			mark(nil)
			w.send(0, "k", "2", 1)
			w.settle(w.live()) // the store is of new topics by now
			remove()
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := topology.New("app")
			in := topology.Dedup(topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id")), "unique", topology.Retention(time.Hour))
			by := topology.KeyBy(in, "by", serde.String(), func(r record.Record[string, int64]) (string, error) { return r.Key, nil })
			sum := topology.Aggregate(by, "totals", serde.Int64(), func(a int64, r record.Record[string, int64]) (int64, error) { return a + r.Value, nil })
			topology.To(sum, "out", serde.String(), serde.Int64())
			topo, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, topo)
			w.send(0, "k", "1", 1)
			w.settle(w.live())

			var logs []string
			for _, s := range topo.Subtopologies() {
				logs = append(logs, topo.IDLogTopic(s))
			}
			client := w.b.Client("reset")
			there, err := client.Topics(t.Context(), append(slices.Clone(logs), repartition)...)
			if err != nil || len(there) != 3 {
				t.Fatalf("topics %v, %v", there, err)
			}
			present := []changelog.PlannedLog{{Topic: logs[0], TopicID: there[logs[0]].ID}, {Topic: logs[1], TopicID: there[logs[1]].ID}}
			planned, err := changelog.PlanReset(t.Context(), client, "app", present)
			if err != nil || !slices.Equal(planned, present) {
				t.Fatalf("planned %v, %v", planned, err)
			}
			remove := func() {
				for p := range record.Partition(2) {
					w.b.Group("app").SetOffsets(broker.OffsetCommit{TopicPartition: record.TopicPartition{Topic: "in", Partition: p}, Metadata: "reset by streamd"})
				}
				for _, name := range append(slices.Clone(logs), "app-totals-changelog", repartition) {
					w.b.DeleteTopic(name)
				}
			}
			c.reset(w, remove, func(other []changelog.PlannedLog) {
				if other == nil {
					other = planned
				}
				if err := changelog.CompleteReset(t.Context(), client, "app", other); err != nil {
					t.Fatal(err)
				}
			})
			before := len(w.read("out"))
			s, err := w.start(topo, false)
			if c.refused {
				wantError(t, err, ErrDataLost, "the local store knows commit")
				if begun := c.name != "a mistake after it"; strings.Contains(err.Error(), "was begun and not completed") != begun {
					t.Errorf("a reset that was begun: %v; %v", begun, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			w.settle(s)
			if got := w.read("out")[before:]; !slices.Equal(got, []string{"k=1"}) {
				t.Errorf("a pipeline that begins anew has written %v", got)
			}
		})
	}
}
