package topology

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

func TestBuildFindsMistakes(t *testing.T) {
	type other struct{ ID string }
	text := serde.String()
	longName := strings.Repeat("y", 235) // fits as a name, but not with what is put around it
	tests := map[string]struct {
		app   string
		build func(b *Builder, in *Stream[string, string])
		want  []string // "operator rule", in order
	}{
		"application name":    {app: "a b", build: func(_ *Builder, in *Stream[string, string]) { toText(in) }, want: []string{"a b name", "in topic"}},
		"no application name": {app: " ", build: func(_ *Builder, in *Stream[string, string]) { toText(in) }, want: []string{"  name", "in topic"}},
		"topic characters":    {build: func(_ *Builder, in *Stream[string, string]) { To(in, "o/ut", text, text, Name("x")) }, want: []string{"x topic"}},
		"topic empty":         {build: func(_ *Builder, in *Stream[string, string]) { To(in, "", text, text, Name("x")) }, want: []string{"x topic"}},
		"source topic empty":  {build: func(b *Builder, in *Stream[string, string]) { toText(Merge("m", in, From(b, "", text, text))) }, want: []string{"source-1 topic"}},
		"topic too long":      {build: func(_ *Builder, in *Stream[string, string]) { To(in, strings.Repeat("x", 250), text, text, Name("x")) }, want: []string{"x topic"}},
		"internal topic too long": {
			build: func(_ *Builder, in *Stream[string, string]) { toText(KeyBy(in, longName, text, keyOf)) },
			want:  []string{longName + "-repartition topic", longName + "-repartition topic"},
		},
		"topic is a dot":           {build: func(_ *Builder, in *Stream[string, string]) { To(in, "..", text, text, Name("x")) }, want: []string{"x topic"}},
		"operator name characters": {build: func(_ *Builder, in *Stream[string, string]) { toText(dedupText(in, "Ü")) }, want: []string{"Ü name"}},
		"same name":                {build: func(_ *Builder, in *Stream[string, string]) { toText(dedupText(dedupText(in, "x"), "x")) }, want: []string{"x duplicate-name"}},
		"same name of other kinds": {build: func(_ *Builder, in *Stream[string, string]) { toText(dedupText(in, "in")) }, want: []string{"in duplicate-name"}},
		"no name": {build: func(_ *Builder, in *Stream[string, string]) {
			toText(dedupText(in, ""))
			Aggregate(in, "", serde.Int64(), count)
			Process(in, "", nothing)
			Branch(in, "", keyIs("a"))
		}, want: []string{"dedup-1 name", "aggregate-1 name", "process-1 name", "branch-1 name", "branch-1 unused"}},
		"topic read twice": {build: func(b *Builder, in *Stream[string, string]) {
			toText(in)
			toText(From(b, "in", text, text, Name("again")), Name("to2"))
		}, want: []string{"again duplicate-topic"}},
		"output that is read": {build: func(b *Builder, in *Stream[string, string]) {
			toText(in)
			To(From(b, "other", text, text), "in", text, text, Name("back"))
		}, want: []string{"back loop"}},
		"no source":          {build: func(b *Builder, _ *Stream[string, string]) { b.nodes = nil }, want: []string{"app empty"}},
		"unused source":      {build: func(*Builder, *Stream[string, string]) {}, want: []string{"in unused"}},
		"unused filter":      {build: func(_ *Builder, in *Stream[string, string]) { Filter(in, keyIs("a")) }, want: []string{"filter-1 unused"}},
		"unused dedup":       {build: func(_ *Builder, in *Stream[string, string]) { dedupText(in, "x") }, want: []string{"x unused"}},
		"unused repartition": {build: func(_ *Builder, in *Stream[string, string]) { KeyBy(in, "x", text, keyOf) }, want: []string{"x-repartition unused"}},
		"unused case":        {build: func(_ *Builder, in *Stream[string, string]) { toText(Branch(in, "x", keyIs("a"), keyIs("b"))[0]) }, want: []string{"x unused"}},
		"no case":            {build: func(_ *Builder, in *Stream[string, string]) { toText(Branch(in, "x")[0]) }, want: []string{"x empty"}},
		"nil functions": {build: func(_ *Builder, in *Stream[string, string]) {
			toText(Filter(in, nil))
			toText(Map[string, string, string, string](in, nil), Name("to2"))
			toText(Branch(in, "b", nil)[0], Name("to3"))
			Aggregate[string, string, string, int64](in, "a", serde.Int64(), nil)
			Process[string, string, string, string](in, "p", nil)
			toText(KeyBy[string, string, string](in, "k", text, nil), Name("to4"))
			toText(Dedup(in, "d", Retention(time.Hour), ID[string, string](nil)), Name("to5"))
		}, want: []string{"filter-1 function", "map-1 function", "b function", "a function", "p function", "k function", "d option"}},
		"nil serdes": {build: func(b *Builder, in *Stream[string, string]) {
			From[string, string](b, "in2", nil, text)
			To[string, string](in, "out", text, nil)
			KeyBy[string, string, string](in, "k", nil, keyOf)
			Aggregate[string, string, string, int64](in, "a", nil, count)
		}, want: []string{"in2 serde", "to-out serde", "k serde", "a serde", "in2 unused", "k-repartition unused"}},
		"unknown serdes": {build: func(_ *Builder, in *Stream[string, string]) {
			x := Map(in, func(r textRecord) (other, other, error) { return other{}, other{}, nil })
			k := KeyBy(x, "k", text, func(record.Record[other, other]) (string, error) { return "", nil })
			Process(k, "end1", func(Context, record.Record[string, other], Emit[int, int]) error { return nil })
			d := Dedup(x, "d", Retention(time.Hour), ComparePayload())
			Process(d, "end2", func(Context, record.Record[other, other], Emit[int, int]) error { return nil })
			s := Dedup(x, "s", Retention(time.Hour), ScopeStream())
			Process(s, "end3", func(Context, record.Record[other, other], Emit[int, int]) error { return nil })
		}, want: []string{"k serde", "d serde", "s-by-id serde", "s-by-id serde"}},
		"retention": {build: func(_ *Builder, in *Stream[string, string]) {
			toText(Dedup(in, "none"))
			toText(Dedup(in, "negative", Retention(-time.Hour)), Name("to2"))
		}, want: []string{"none retention", "negative retention"}},
		"dedup configuration": {build: func(_ *Builder, in *Stream[string, string]) {
			toText(Dedup(in, "x", Retention(0), ExpectedIDs(-1), FalsePositiveRate(2)))
		}, want: []string{"x retention", "x retention", "x retention"}},
		"impossible actions": {build: func(_ *Builder, in *Stream[string, string]) {
			toText(Dedup(in, "x", Retention(time.Hour), OnMissingID(Drop), OnTooLate(9), OnDuplicate(Stop), OnConflict(Forward), Partitions(3)))
		}, want: []string{"x option", "x option", "x option", "x option", "x option", "x option"}},
		"functions of other types": {build: func(b *Builder, _ *Stream[string, string]) {
			wrong := From(b, "wrong", text, text, ID(func(record.Record[string, other]) record.ID { return "" }),
				Timestamp(func(record.Record[other, string]) (time.Time, error) { return time.Time{}, nil }))
			To(wrong, "out", text, text, Partition(func(record.Record[int, int], int32) record.Partition { return 0 }))
		}, want: []string{"wrong option", "wrong option", "to-out option", "in unused"}},
		"empty header": {build: func(_ *Builder, in *Stream[string, string]) { toText(in, IDHeader("")) }, want: []string{"to-out option"}},
		"partitions":   {build: func(_ *Builder, in *Stream[string, string]) { toText(KeyBy(in, "k", text, keyOf, Partitions(0))) }, want: []string{"k option"}},
		"aggregate after map": {build: func(_ *Builder, in *Stream[string, string]) {
			Aggregate(Filter(Map(in, swap), keyIs("a")), "totals", serde.Int64(), count)
		}, want: []string{"totals unkeyed"}},
		"aggregate after dedup by ID": {build: func(_ *Builder, in *Stream[string, string]) {
			Aggregate(Dedup(in, "x", Retention(time.Hour), ScopeStream()), "totals", serde.Int64(), count)
		}, want: []string{"totals unkeyed"}},
		"aggregate after a merge of a mapped stream": {build: func(_ *Builder, in *Stream[string, string]) {
			Aggregate(Merge("m", in, Map(in, swap)), "totals", serde.Int64(), count)
		}, want: []string{"totals unkeyed"}},
		"stream merged with itself": {build: func(_ *Builder, in *Stream[string, string]) { toText(Merge("m", in, in)) }, want: []string{"m duplicate-name"}},
		"streams of two builders": {build: func(_ *Builder, in *Stream[string, string]) {
			toText(Merge("m", in, From(New("other"), "in", text, text)))
		}, want: []string{"m builder"}},
		"two stores of one name": {build: func(_ *Builder, in *Stream[string, string]) {
			Process(in, "p1", nothing, WithStore(KeyValue("s", text, text)))
			Process(in, "p2", nothing, WithStore(KeyValue("s", text, serde.Int64())))
		}, want: []string{"p2 store"}},
		"store in two sub-topologies": {build: func(_ *Builder, in *Stream[string, string]) {
			s := KeyValue("s", text, text)
			Process(in, "p1", nothing, WithStore(s))
			Process(KeyBy(in, "k", text, keyOf), "p2", nothing, WithStore(s))
		}, want: []string{"p2 store"}},
		"store without serde": {build: func(_ *Builder, in *Stream[string, string]) {
			Process(in, "p", nothing, WithStore(KeyValue[string, string]("s", nil, text)))
		}, want: []string{"p serde"}},
		"store name": {build: func(_ *Builder, in *Stream[string, string]) {
			Process(in, "p", nothing, WithStore(KeyValue("s s", text, text)))
		}, want: []string{"p store"}},
		"changelog that is an ID log": {build: func(_ *Builder, in *Stream[string, string]) {
			Process(in, "p", nothing, WithStore(KeyValue("in-ids", text, text)))
		}, want: []string{"in-ids duplicate-topic"}},
		"output into an internal topic": {build: func(_ *Builder, in *Stream[string, string]) {
			Aggregate(in, "totals", serde.Int64(), count)
			To(in, "app-totals-changelog", text, text)
		}, want: []string{"to-app-totals-changelog duplicate-topic"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, topic := New("app"), "in"
			if tt.app != "" {
				// A problem of an operator beside that of the application: all come at once.
				b, topic = New(tt.app), "i n"
			}
			in := From(b, topic, text, text, Name("in"))
			tt.build(b, in)
			topo, err := b.Build()
			if err == nil || topo != nil {
				t.Fatalf("built %v, %v", topo, err)
			}
			var got []string
			for _, p := range Problems(err) {
				got = append(got, p.Operator+" "+p.Rule)
			}
			slices.Sort(got)
			slices.Sort(tt.want)
			if !slices.Equal(got, tt.want) {
				t.Errorf("problems are %q, want %q\n%v", got, tt.want, err)
			}
		})
	}
}

func keyOf(r textRecord) (string, error)                      { return r.Value, nil }
func swap(r textRecord) (string, string, error)               { return r.Value, r.Key, nil }
func count(n int64, _ textRecord) (int64, error)              { return n + 1, nil }
func nothing(Context, textRecord, Emit[string, string]) error { return nil }
func dedupText(s *Stream[string, string], name string) *Stream[string, string] {
	return Dedup(s, name, Retention(time.Hour))
}

// TestFeedback: what is written comes back as input where that is asked for.
func TestFeedback(t *testing.T) {
	b := textSource()
	To(Filter(b.in, keyIs("again")), "in", serde.String(), serde.String(), Feedback())
	if _, err := b.Build(); err != nil {
		t.Error(err)
	}
}

func TestAggregateBehindOperatorsThatKeepKeys(t *testing.T) {
	b := textSource()
	s := MapValues(Filter(b.in, keyIs("a")), keyOf)
	s = Map(s, swap, PreserveKey())
	s = Process(s, "p", nothing, PreserveKey())
	Aggregate(dedupText(s, "x"), "totals", serde.Int64(), count)
	k := KeyBy(Map(b.in, swap), "k", serde.String(), keyOf)
	Aggregate(k, "totals2", serde.Int64(), count)
	if _, err := b.Build(); err != nil {
		t.Error(err)
	}
}

func TestBuiltTopologyDoesNotChange(t *testing.T) {
	b := textSource()
	toText(b.in)
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	toText(b.in, Name("late"))
	d := driveSub(t, topo, 0)
	d.sendText("a=1")
	d.expect("a=1")
	if _, err := b.Build(); err == nil || Problems(err)[0].Rule != "builder" {
		t.Errorf("an operator after Build: %v", err)
	}
}

func TestNames(t *testing.T) {
	b := New("app")
	in := From(b, "in", serde.String(), serde.String())
	two := From(b, "two", serde.String(), serde.String(), Name("second"))
	both := dedupText(Merge("both", in, two), "unique")
	k := KeyBy(both, "by", serde.String(), keyOf, Partitions(12))
	Process(k, "p", nothing, WithStore(KeyValue("s", serde.String(), serde.String())))
	toText(Dedup(k, "again", Retention(time.Hour), ScopeStream(), Partitions(5)))
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	subs := topo.Subtopologies()
	if len(subs) != 3 || subs[0].Name != "in" || subs[1].Name != "by-repartition" || subs[2].Name != "again-repartition" {
		t.Fatalf("sub-topologies %+v", subs)
	}
	var got []string
	for _, set := range topo.CoPartitioned() {
		got = append(got, strings.Join(set, "+"))
	}
	for _, s := range subs {
		for _, k := range s.Sinks {
			got = append(got, topo.SinkTopic(k))
			if k.Internal && topo.RepartitionTopic(k.Topic) != topo.SinkTopic(k) {
				t.Errorf("RepartitionTopic(%q) = %q", k.Topic, topo.RepartitionTopic(k.Topic))
			}
		}
		got = append(got, topo.IDLogTopic(s))
		for _, st := range s.Stores {
			got = append(got, topo.StoreTopic(st.Name))
		}
	}
	want := []string{
		"in+two", "app-by-repartition", "app-again-repartition",
		"app-by-repartition", "app-in-ids-changelog",
		"app-again-repartition", "app-by-repartition-ids-changelog", "app-s-changelog",
		"out", "app-again-repartition-ids-changelog",
	}
	if !slices.Equal(got, want) {
		t.Errorf("topics\n %q, want\n %q", got, want)
	}
	if subs[0].Sinks[0].Partitions != 12 || subs[1].Sinks[0].Partitions != 5 {
		t.Error("the number of partitions was lost")
	}
	if !subs[0].Stateful() || subs[0].Dedups[0].Config.Retention != time.Hour || topo.Name() != "app" {
		t.Error("the plan lost something")
	}
}
