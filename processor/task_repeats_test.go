package processor

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

// What is kept of duplicates is the end of those that were committed, whatever is undone, aborted or too much, and takes no more memory than that.
func TestRepeatsAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r repeatLog
		var committed, open []record.Offset
		var shown []repeat // what a status holds on to
		var was []record.Offset
		next := record.Offset(0)
		offsets := func(all []repeat) (out []record.Offset) {
			for _, x := range all {
				out = append(out, x.at.Offset)
			}
			return out
		}
		t.Repeat(map[string]func(*rapid.T){
			"record": func(t *rapid.T) {
				n, undone := rapid.IntRange(0, keptDuplicates).Draw(t, "n"), rapid.Bool().Draw(t, "undone")
				r.begin()
				for range n {
					next++
					r.note(repeat{at: record.Position{Offset: next}})
					if !undone {
						open = append(open, next)
					}
				}
				if undone {
					r.undo()
				}
			},
			"commit": func(*rapid.T) {
				now := time.Unix(int64(next), 0)
				r.commit(now)
				committed, open = append(committed, open...), nil
				for _, x := range r.last {
					if x.time.IsZero() {
						t.Fatal("one without the time of its commit")
					}
				}
			},
			"abort": func(*rapid.T) { r.abort(); open = nil },
			"look":  func(*rapid.T) { shown, was = r.last, offsets(r.last) },
			"": func(t *rapid.T) {
				want := committed[max(0, len(committed)-keptDuplicates):]
				if got := offsets(r.last); !slices.Equal(got, want) {
					t.Fatalf("%v, want %v", got, want)
				}
				if !slices.Equal(offsets(shown), was) {
					t.Fatal("what somebody reads has changed")
				}
				if cap(r.open) > 4*keptDuplicates || cap(r.last) > 4*keptDuplicates {
					t.Fatalf("room for %d and %d", cap(r.open), cap(r.last))
				}
			},
		})
	})
}

// TestLastDuplicatesAreShown: as JSON, whatever time a record has, and in one order.
func TestLastDuplicatesAreShown(t *testing.T) {
	s := newStats(time.Now())
	var all []repeat
	for i, ms := range []int64{1_700_000_000_000_000, math.MinInt64 / 2, 0} {
		at := record.Position{TopicPartition: record.TopicPartition{Topic: "in", Partition: record.Partition(i % 2)}, Offset: record.Offset(i)}
		all = append(all, repeat{at: at, timestamp: time.UnixMilli(ms), time: time.Unix(1, 0)})
	}
	shown := s.duplicates(slices.Clone(all))
	if b, err := json.Marshal(shown); err != nil {
		t.Fatalf("%v, %s", err, b)
	}
	slices.Reverse(all)
	if again := s.duplicates(all); !slices.Equal(shown, again) {
		t.Errorf("%v, then %v", shown, again)
	}
}

// TestLastDuplicates: where the last duplicates of two tasks are, and when the first ones came. Not those of a record that failed elsewhere, nor those of a
// transaction that was not committed.
func TestLastDuplicates(t *testing.T) {
	b := topology.New("app")
	in := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"))
	topology.To(topology.Dedup(in, "unique", topology.Retention(time.Hour)), "out", serde.String(), serde.Int64())
	topology.To(topology.Filter(in, func(r record.Record[string, int64]) (bool, error) {
		if r.Value == 13 {
			return false, errors.New("thirteen")
		}
		return true, nil
	}), "echo", serde.String(), serde.Int64())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, topo)
	w.opts = append(w.opts, WithErrorPolicy(topology.PolicySkip, ""))
	s := w.live()
	last := func() []DuplicateStatus { return s.Status().Operators[1].Dedup.Last }
	w.send(0, "k", "x", 1)
	w.until("the first one", w.quiet(2, s), s)
	first := w.b.Now()
	w.b.Advance(time.Minute)
	w.send(0, "k", "x", 1)  // @1
	w.send(0, "k", "x", 13) // @2
	w.send(1, "k", "z", 1)
	w.until("a duplicate", w.quiet(2, s), s)
	w.b.Advance(time.Minute)
	w.send(1, "k", "z", 1) // @1
	w.send(1, "k", "y", 1)
	w.send(1, "k", "y", 1) // @3
	w.until("the others", w.quiet(2, s), s)
	got := last()
	var at []string
	for _, d := range got {
		at = append(at, d.Position+" "+d.Seen)
	}
	if want := []string{"in/0@1 committed", "in/1@1 committed", "in/1@3 open_transaction"}; !slices.Equal(at, want) {
		t.Fatalf("duplicates at %q, want %q", at, want)
	}
	if d := got[0]; d.FirstSeen.Sub(first).Abs() > 5*time.Second || d.Timestamp.Sub(first) < time.Minute || d.Time.Sub(d.Timestamp).Abs() > time.Second || got[1].Time.Sub(d.Time) < time.Minute {
		t.Errorf("the first one came at %v: %+v", first, got)
	}
	if got[0].ID == got[1].ID || got[1].ID == got[2].ID || len(got[0].ID) != 8 || strings.Contains(fmt.Sprintf("%x", record.ID("x").Hash()), got[0].ID) {
		t.Errorf("IDs %+v", got)
	}
	// The same ID again has the same hash in this process, and another one in another.
	w.send(0, "k", "x", 1) // @3
	w.until("once more", w.quiet(2, s), s)
	if again := last(); len(again) != 4 || again[3].Position != "in/0@3" || again[3].ID != got[0].ID || newStats(w.b.Now()).idHash(record.ID("x").Hash()) == got[0].ID {
		t.Errorf("once more: %+v", again)
	}
	// What is not committed is not shown, and once only when it is.
	refused := 0
	w.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if c.API != simbroker.EndTxn || refused > 0 {
			return simbroker.Action{}
		}
		refused++
		if n := len(last()); n != 4 {
			t.Errorf("%d duplicates, one of them not committed", n)
		}
		return simbroker.Action{Verdict: simbroker.Refuse, Code: simbroker.InvalidTxnState}
	})
	w.send(0, "k", "x", 1) // @4
	w.until("the one that is run again", func() bool { return refused > 0 && w.quiet(2, s)() }, s)
	n := 0
	for _, d := range last() {
		if d.Position == "in/0@4" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d times: %+v", n, last())
	}
	// Of many the last ones remain.
	for range 50 {
		w.send(0, "k", "x", 1)
	}
	w.until("many", w.quiet(2, s), s)
	if all := last(); len(all) != keptDuplicates || all[keptDuplicates-1].Position != "in/0@54" || all[0].Position != "in/0@35" {
		t.Errorf("of many: %+v", all)
	}
}
