package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/window"
)

// explainedSource is a way into a topology, and what becomes of a record on it: by what a crash and a lost answer do, not by the classes of
// the analysis.
type explainedSource struct {
	name  string
	opts  []SourceOption
	lost  bool // what is under way at a crash is not sent again
	again bool // it may be sent again
	id    bool // and has the same ID then
	noID  bool // it has another ID each time that it comes in
	class string
}

func explainedSources() []explainedSource {
	return []explainedSource{
		{name: "topic with IDs", opts: []SourceOption{IDHeader("id")}, id: true, class: "kafka"},
		{name: "topic", class: "kafka"},
		{name: "topic by position", opts: []SourceOption{IDPosition()}, class: "kafka"},
		{name: "file", opts: []SourceOption{EnteredBy(EnteredByFile, false)}, class: "file"},
		{name: "table", opts: []SourceOption{EnteredBy(EnteredByTable, true)}, id: true, class: "table"},
		{name: "HTTP with IDs", opts: []SourceOption{EnteredBy(EnteredByHTTP, true)}, again: true, id: true, class: "http"},
		{name: "HTTP", opts: []SourceOption{EnteredBy(EnteredByHTTP, false)}, again: true, noID: true, class: "http"},
		{name: "acknowledged lines with IDs", opts: []SourceOption{EnteredBy(EnteredByLines, true)}, again: true, id: true, class: "lines"},
		{name: "acknowledged lines", opts: []SourceOption{EnteredBy(EnteredByLines, false)}, again: true, noID: true, class: "lines"},
		{name: "socket", opts: []SourceOption{EnteredBy(EnteredBySocket, true)}, lost: true, noID: true, class: "socket"},
	}
}

// explainedOperator is an operator that stands between source and sink.
type explainedOperator struct {
	functions []string // of the API that it shows
	class     string   // of the last operator in front of the sink
	dedup     bool     // a repeat with the same ID goes no further
	ownID     bool     // and is told by an ID that the dedup operator makes
	call      bool     // it is an output, too
	build     func(b *Builder, in *Stream[string, string]) *Stream[string, string]
}

type texts = *Stream[string, string]

// texted makes a stream of texts of any other: what is behind is the operator in front of it.
func texted[K, V any](s *Stream[K, V]) texts {
	return Map(s, func(r record.Record[K, V]) (string, string, error) {
		return fmt.Sprint(r.Key), fmt.Sprint(r.Value), nil
	}, Name("texted"))
}

func rowOf(b *Builder, name string) *KTable[string, string] {
	return Table(b, name, serde.String(), serde.String(), IDPosition())
}

// beside is a second stream of a topic, for joins: nothing of it may lower what is derived.
func beside(b *Builder) texts {
	return From(b, "beside", serde.String(), serde.String(), IDHeader("id"))
}

func both(_, a, b string) (string, error)              { return a + b, nil }
func bothOf(_, a string, b *string) (string, error)    { return a, nil }
func oneOfBoth(_ string, a, b *string) (string, error) { return "", nil }
func joinTexts(a, b string) (string, error)            { return a + b, nil }

func explainedOperators() []explainedOperator {
	s := serde.String()
	valueOf := func(r textRecord) (string, error) { return r.Value, nil }
	pure := func(f func(in texts) texts, functions ...string) explainedOperator {
		return explainedOperator{functions: functions, class: "pure", build: func(_ *Builder, in texts) texts { return f(in) }}
	}
	strong := func(f func(b *Builder, in texts) texts, functions ...string) explainedOperator {
		return explainedOperator{functions: functions, class: "strong", build: f}
	}
	aggregate := func(name string, f func(in Grouped[string, string, string]) texts) explainedOperator {
		return strong(func(_ *Builder, in texts) texts { return f(in) }, name)
	}
	near := JoinWithin(time.Minute)
	return []explainedOperator{
		{class: "", build: func(_ *Builder, in texts) texts { return in }},
		pure(func(in texts) texts { return Map(in, swap) }, "Map"),
		pure(func(in texts) texts { return MapValues(in, valueOf) }, "MapValues"),
		pure(func(in texts) texts { return Filter(in, keyIs("a")) }, "Filter"),
		pure(func(in texts) texts {
			return FlatMap(in, func(r textRecord, emit Emit[string, string]) error { emit(r); return nil })
		}, "FlatMap"),
		pure(func(in texts) texts { return Branch(in, "branch", keyIs("a"))[0] }, "Branch"),
		pure(func(in texts) texts { return Merge("merged", in, Filter(in, keyIs("a"))) }, "Merge"),
		{functions: []string{"KeyBy"}, class: "repartition", build: func(_ *Builder, in texts) texts { return KeyBy(in, "by", serde.String(), keyOf) }},
		{functions: []string{"Dedup"}, class: "dedup", dedup: true, build: func(_ *Builder, in texts) texts { return dedupText(in, "once") }},
		{functions: []string{"Dedup"}, class: "dedup", dedup: true, ownID: true, build: func(_ *Builder, in texts) texts {
			return Dedup(in, "once", Retention(time.Hour), ID(func(r textRecord) record.ID { return record.StringID(r.Value) }))
		}},
		{functions: []string{"DedupSplit"}, class: "dedup", dedup: true, build: func(_ *Builder, in texts) texts {
			return DedupSplit(in, "once", Retention(time.Hour)).Unique
		}},
		aggregate("Aggregate", func(in Grouped[string, string, string]) texts {
			return Aggregate(in, "n", s, func(a string, _ textRecord) (string, error) { return a, nil })
		}),
		aggregate("Reduce", func(in Grouped[string, string, string]) texts { return Reduce(in, "n", joinTexts) }),
		aggregate("First", func(in Grouped[string, string, string]) texts { return First(in, "n", s, valueOf) }),
		aggregate("Last", func(in Grouped[string, string, string]) texts { return Last(in, "n", s, valueOf) }),
		aggregate("Min", func(in Grouped[string, string, string]) texts { return Min(in, "n", s, valueOf) }),
		aggregate("Max", func(in Grouped[string, string, string]) texts { return Max(in, "n", s, valueOf) }),
		aggregate("KeepFirst", func(in Grouped[string, string, string]) texts { return KeepFirst(in, "n") }),
		aggregate("KeepLast", func(in Grouped[string, string, string]) texts { return KeepLast(in, "n") }),
		aggregate("KeepBySequence", func(in Grouped[string, string, string]) texts {
			return KeepBySequence(in, "n", func(textRecord) (int64, error) { return 0, nil })
		}),
		strong(func(_ *Builder, in texts) texts { return texted(Count(in, "n")) }, "Count"),
		strong(func(_ *Builder, in texts) texts {
			return texted(Sum(in, "n", func(textRecord) (int64, error) { return 1, nil }))
		}, "Sum"),
		strong(func(_ *Builder, in texts) texts {
			return texted(Avg(in, "n", func(textRecord) (float64, error) { return 1, nil }))
		}, "Avg"),
		strong(func(_ *Builder, in texts) texts { return texted(CountDistinct(in, "n", s, valueOf)) }, "CountDistinct"),
		strong(func(_ *Builder, in texts) texts {
			return texted(Count(WindowedBy(in, window.Tumbling(time.Minute)), "n", EmitOnClose()))
		}, "WindowedBy"),
		strong(func(_ *Builder, in texts) texts { return Process(in, "step", nothing) }, "Process"),
		strong(func(b *Builder, in texts) texts { return JoinTable(in, rowOf(b, "rows"), "joined", both) }, "JoinTable", "Table"),
		strong(func(b *Builder, in texts) texts { return LeftJoinTable(in, rowOf(b, "rows"), "joined", bothOf) }, "LeftJoinTable"),
		strong(func(b *Builder, in texts) texts { return Join(in, beside(b), "joined", near, both) }, "Join"),
		strong(func(b *Builder, in texts) texts { return LeftJoin(in, beside(b), "joined", near, bothOf) }, "LeftJoin"),
		strong(func(b *Builder, in texts) texts { return OuterJoin(in, beside(b), "joined", near, oneOfBoth) }, "OuterJoin"),
		strong(func(_ *Builder, in texts) texts { return texted(ToStream(ToTable(in, "rows", s))) }, "ToTable", "ToStream"),
		strong(func(_ *Builder, in texts) texts {
			rows := FilterTable(ToTable(in, "rows", s), func(_, _ string) (bool, error) { return true, nil })
			return texted(ToStream(MapTableValues(rows, joinTexts)))
		}, "FilterTable", "MapTableValues"),
		strong(func(b *Builder, in texts) texts {
			return texted(ToStream(JoinTables(ToTable(in, "rows", s), rowOf(b, "others"), "joined", both)))
		}, "JoinTables"),
		strong(func(b *Builder, in texts) texts {
			return texted(ToStream(LeftJoinTables(ToTable(in, "rows", s), rowOf(b, "others"), "joined", bothOf)))
		}, "LeftJoinTables"),
		strong(func(b *Builder, in texts) texts {
			return texted(ToStream(OuterJoinTables(ToTable(in, "rows", s), rowOf(b, "others"), "joined", oneOfBoth)))
		}, "OuterJoinTables"),
		{functions: []string{"JoinGlobal", "GlobalTable"}, class: "lookup", build: func(b *Builder, in texts) texts {
			return JoinGlobal(in, GlobalTable(b, "rows", s, s), "joined", joinTexts, both)
		}},
		{functions: []string{"LeftJoinGlobal"}, class: "lookup", build: func(b *Builder, in texts) texts {
			return LeftJoinGlobal(in, GlobalTable(b, "rows", s, s), "joined", joinTexts, bothOf)
		}},
		{functions: []string{"Effect"}, class: "strong", call: true, build: func(_ *Builder, in texts) texts {
			return Effect(in, "call", s, s, func(context.Context, Call[string, string]) (string, error) { return "", nil }, Idempotent())
		}},
	}
}

// explainedSink is an end.
type explainedSink struct {
	name, class string
	repeats     bool // a crash in the wrong moment makes it write again
	byID        bool // what it writes again is the same if the ID is
	end         func(s texts)
}

type classed sink.Class

func (c classed) Class() sink.Class         { return sink.Class(c) }
func (classed) Check(context.Context) error { return nil }
func (classed) Close() error                { return nil }
func (classed) Claim(context.Context, sink.Partition) (sink.Writer, error) {
	return nil, errors.New("only explained")
}

func explainedSinks() []explainedSink {
	s := serde.String()
	into := func(c sink.Class) func(texts) {
		return func(in texts) {
			Into(in, "end", s, s, classed(c), func(r textRecord) (sink.Row, error) { return sink.Row{}, nil })
		}
	}
	return []explainedSink{
		{name: "topic", class: "topic", end: func(in texts) { To(in, "out", s, s, Name("end")) }},
		{name: "topic ahead", class: "topic", repeats: true, end: func(in texts) { To(in, "out", s, s, Name("end"), Guarantee(AtLeastOnce)) }},
		{name: "ledger", class: "ledger", end: into(sink.Ledger)},
		{name: "idempotent", class: "idempotent", byID: true, end: into(sink.Idempotent)},
		{name: "plain", class: "plain", repeats: true, end: into(sink.Plain)},
	}
}

// level is what comes of a record on the way through all three, run with a guarantee.
func (s explainedSource) level(o explainedOperator, k explainedSink, guarantee Level) Level {
	lost := s.lost || guarantee == AtMostOnce
	repeated := s.again && !(o.dedup && (s.id || o.ownID))
	repeated = repeated || k.repeats || k.byID && s.noID
	return [...]Level{ExactlyOnce, AtLeastOnce, AtMostOnce, NoGuarantee}[map[bool]int{true: 1}[repeated]+map[bool]int{true: 2}[lost]]
}

// TestExplainOfEveryCombination builds a topology for each way in, each operator of the API and each way out, with each guarantee, and
// compares the level that is derived with what crashes, lost answers and repeated requests do to a record.
func TestExplainOfEveryCombination(t *testing.T) {
	seen := map[Level]int{}
	for _, s := range explainedSources() {
		for _, o := range explainedOperators() {
			for _, k := range explainedSinks() {
				b := New("app")
				in := From(b, "in", serde.String(), serde.String(), s.opts...)
				k.end(o.build(b, in))
				topo, err := b.Build()
				name := fmt.Sprintf("%s, %s, %s", s.name, strings.Join(o.functions, " and "), k.name)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				for _, guarantee := range []Level{ExactlyOnce, AtMostOnce} {
					e := topo.ExplainAt(guarantee)
					want := s.level(o, k, guarantee)
					seen[want]++
					checkExplained(t, fmt.Sprintf("%s, run %s", name, guarantee), e, s, o, k, want)
				}
			}
		}
	}
	for _, l := range Levels() {
		if seen[l] == 0 {
			t.Errorf("no combination is %s: the table is blind", l)
		}
	}
}

func checkExplained(t *testing.T, name string, e Explanation, s explainedSource, o explainedOperator, k explainedSink, want Level) {
	t.Helper()
	at := slices.IndexFunc(e.Outputs, func(x OutputLevel) bool { return x.Class == k.class })
	if at < 0 || e.Outputs[at].Level != want {
		t.Errorf("%s: want %s: %+v", name, want, e.Outputs)
		return
	}
	if outputs := 1 + map[bool]int{true: 1}[o.call]; len(e.Outputs) != outputs {
		t.Errorf("%s: %d outputs, want %d", name, len(e.Outputs), outputs)
	}
	if (len(e.Lowered) == 0) != (e.Level == ExactlyOnce) {
		t.Errorf("%s: it is %s and the reasons are %+v", name, e.Level, e.Lowered)
	}
	for _, f := range e.Lowered {
		if f.Operator == "" || f.What == "" || f.Remedy == "" {
			t.Errorf("%s: a reason without place or remedy: %+v", name, f)
		}
	}
	classes := map[string]bool{}
	for _, d := range e.Edges {
		classes[d.FromClass], classes[d.ToClass] = true, true
		if d.Level == "" || d.ID == "" || d.StableID == "" {
			t.Errorf("%s: %+v", name, d)
		}
	}
	if !classes[s.class] || o.class != "" && !classes[o.class] {
		t.Errorf("%s: no edge of the classes %s and %s: %v", name, s.class, o.class, classes)
	}
}

// ExplainedFunctions are the operators that the table above has.
func ExplainedFunctions() map[string]bool {
	shown := map[string]bool{"From": true, "To": true, "Into": true} // the ends of each row
	for _, o := range explainedOperators() {
		for _, f := range o.functions {
			shown[f] = true
		}
	}
	return shown
}
