package topology

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/window"
)

// TestMarksWhereTimeCounts: only topics have marks behind which an operator acts by event time, directly or further down.
func TestMarksWhereTimeCounts(t *testing.T) {
	type stream = *Stream[string, string]
	by := func(s stream, name string, opts ...KeyByOption) stream {
		return KeyBy(s, name, serde.String(), func(r record.Record[string, string]) (string, error) { return r.Key, nil }, opts...)
	}
	minute := window.Tumbling(time.Minute).Grace(3 * time.Second)
	pass := func(ctx Context, r record.Record[string, string], emit Emit[string, string]) error { return nil }
	tick := func(ctx Context, _ time.Time, emit Emit[string, string]) error { return nil }
	for name, c := range map[string]struct {
		build func(in stream)
		marks []string // the topics that have some
	}{
		"dedup and count": {func(in stream) { Count(Dedup(by(in, "one"), "unique", Retention(time.Hour)), "n") }, nil},
		"by the host's clock": {func(in stream) {
			To(Process(by(in, "one"), "p", pass, PunctuateWall(time.Second, tick)), "out", serde.String(), serde.String())
		}, nil},
		"schedule": {func(in stream) {
			To(Process(by(in, "one"), "p", pass, Punctuate(time.Second, tick)), "out", serde.String(), serde.String())
		}, []string{"one"}},
		"window": {func(in stream) { Count(WindowedBy(by(in, "one"), minute), "n") }, []string{"one"}},
		"further down": {func(in stream) {
			one := by(in, "one")
			Count(by(one, "aside"), "sums")
			Count(WindowedBy(by(Dedup(by(one, "two"), "unique", Retention(time.Hour)), "three"), minute), "n")
		}, []string{"one", "three", "two"}},
		"window before it": {func(in stream) {
			counts := Count(WindowedBy(in, minute), "n", EmitOnClose())
			Count(by(Map(counts, func(r record.Record[window.Key[string], int64]) (string, string, error) { return r.Key.Key, "", nil }).WithKeys(serde.String()).WithValues(serde.String()), "one"), "m")
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := New("app")
			c.build(From(b, "in", serde.String(), serde.String()))
			topo, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			var sinks, sources []string
			for _, s := range topo.Subtopologies() {
				for _, k := range s.Sinks {
					if k.Marks {
						sinks = append(sinks, k.Topic)
					}
				}
				for _, src := range s.Sources {
					if src.Marks {
						sources = append(sources, src.Topic)
					}
				}
			}
			slices.Sort(sinks)
			slices.Sort(sources)
			if !slices.Equal(sinks, c.marks) || !slices.Equal(sources, c.marks) {
				t.Errorf("written to %v, read from %v, want %v", sinks, sources, c.marks)
			}
		})
	}
}

// TestMarkDelays: a mark is less than the watermark by the grace that holds results back; options of inputs count before the topic.
func TestMarkDelays(t *testing.T) {
	b := New("app")
	in := From(b, "in", serde.String(), serde.String(), OutOfOrderness(time.Minute), WithIdleness(time.Hour))
	key := func(r record.Record[window.Key[string], int64]) (string, error) { return r.Key.Key, nil }
	counts := Count(WindowedBy(in, window.Tumbling(time.Minute).Grace(3*time.Second)), "n", EmitOnClose()).WithValues(serde.Int64())
	for i, opts := range [][]KeyByOption{nil, {OutOfOrderness(time.Second), WithIdleness(2 * time.Second)}} {
		s := KeyBy(counts, fmt.Sprint("by", i), serde.String(), key, opts...)
		Count(WindowedBy(s, window.Tumbling(time.Hour)), fmt.Sprint("hours", i))
	}
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	subs := topo.Subtopologies()
	for i, want := range [][2]time.Duration{{0, -1}, {time.Second, 2 * time.Second}} {
		if k := subs[0].Sinks[i]; !k.Marks || k.Lag != 3*time.Second {
			t.Errorf("sink %q: %v, %v", k.Name, k.Marks, k.Lag)
		}
		if s := subs[i+1].Sources[0]; s.MarkDelay != want[0] || s.MarkIdleness != want[1] {
			t.Errorf("source %q: %v, %v, want %v", s.Name, s.MarkDelay, s.MarkIdleness, want)
		}
	}
}
