package topology

import (
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// TestElision has a line for each condition under which a log may be left out, and for each that forbids it. The operator in
// question is "second".
func TestElision(t *testing.T) {
	text := serde.String()
	hour := Retention(time.Hour)
	whole := Retention(time.Hour + time.Hour/8)
	first := func(in *Stream[string, string], opts ...DedupOption) *Stream[string, string] {
		return Dedup(in, "first", append([]DedupOption{whole}, opts...)...)
	}
	second := func(in *Stream[string, string], opts ...DedupOption) *Stream[string, string] {
		return Dedup(in, "second", append([]DedupOption{hour}, opts...)...)
	}
	upper := func(r textRecord) (string, error) { return strings.ToUpper(r.Value), nil }
	byValue := ID(func(r textRecord) record.ID { return record.StringID(r.Value) })
	child := func(r textRecord, emit Emit[string, string]) error { emit(r); return nil }
	type stream = *Stream[string, string]
	tests := map[string]struct {
		build func(b *Builder, in stream) stream
		by    string // empty: the log is kept
		why   string // a part of the reason
	}{
		"directly behind":     {func(_ *Builder, in stream) stream { return second(first(in)) }, "first", "no repeat"},
		"behind a filter":     {func(_ *Builder, in stream) stream { return second(Filter(first(in), keyIs("a"))) }, "first", ""},
		"behind a case":       {func(_ *Builder, in stream) stream { return second(Branch(first(in), "b", keyIs("a"))[0]) }, "first", ""},
		"behind a map":        {func(_ *Builder, in stream) stream { return second(Map(first(in), swap)) }, "first", ""},
		"behind other values": {func(_ *Builder, in stream) stream { return second(MapValues(first(in), upper)) }, "first", ""},
		"by the same header":  {func(_ *Builder, in stream) stream { return second(first(in, IDHeader("h")), IDHeader("h")) }, "first", ""},
		"by the same function": {func(_ *Builder, in stream) stream {
			return second(Filter(first(in, byValue, SameID("v")), keyIs("a")), byValue, SameID("v"))
		}, "first", ""},
		"equal, nothing dropped": {func(_ *Builder, in stream) stream { return second(MapValues(first(in, hour), upper)) }, "first", "for 1h"},
		"the guard is farther up": {func(_ *Builder, in stream) stream {
			return second(Dedup(first(in), "between", Retention(time.Minute), IDHeader("h")))
		}, "first", ""},
		"behind one that is left out": {func(_ *Builder, in stream) stream {
			return second(Dedup(first(in), "between", Retention(time.Minute)))
		}, "first", ""},
		"a merge before the guard": {func(b *Builder, in stream) stream {
			return second(first(Merge("m", in, From(b, "in2", text, text))))
		}, "first", ""},

		"alone":                    {func(_ *Builder, in stream) stream { return second(in) }, "", "no dedup operator comes before"},
		"asked for":                {func(_ *Builder, in stream) stream { return second(first(in), Always()) }, "", "asked for"},
		"shorter":                  {func(_ *Builder, in stream) stream { return second(first(in, Retention(time.Minute))) }, "", "remembers for 1m only, this one for 1h"},
		"equal, but dropped":       {func(_ *Builder, in stream) stream { return second(Filter(first(in, hour), keyIs("a"))) }, "", "a little earlier"},
		"just too short":           {func(_ *Builder, in stream) stream { return second(first(in, Retention(time.Hour+time.Hour/8-1))) }, "", "a little earlier"},
		"equal, other generations": {func(_ *Builder, in stream) stream { return second(first(in, hour, ExpectedIDs(10))) }, "", "other generations"},
		"own behind another's":     {func(_ *Builder, in stream) stream { return second(first(in, IDHeader("h"))) }, "", "other IDs"},
		"another header":           {func(_ *Builder, in stream) stream { return second(first(in, IDHeader("h")), IDHeader("i")) }, "", "other IDs"},
		"functions":                {func(_ *Builder, in stream) stream { return second(first(in, byValue), byValue) }, "", "not known before it runs"},
		"other functions": {func(_ *Builder, in stream) stream {
			return second(first(in, byValue, SameID("v")), byValue, SameID("w"))
		}, "", "other IDs"},
		"a function of another one": {func(_ *Builder, in stream) stream {
			return second(MapValues(first(in, byValue, SameID("v")), upper), byValue, SameID("v"))
		}, "", "may find other IDs"},
		"duplicates pass":       {func(_ *Builder, in stream) stream { return second(first(in, OnDuplicate(Forward))) }, "", "forwards"},
		"late ones pass":        {func(_ *Builder, in stream) stream { return second(first(in, OnTooLate(Forward))) }, "", "forwards"},
		"those without ID pass": {func(_ *Builder, in stream) stream { return second(first(in, OnMissingID(Forward))) }, "", "forwards"},
		"duplicates pass in between": {func(_ *Builder, in stream) stream {
			return second(Dedup(first(in), "between", Retention(time.Minute), OnDuplicate(Forward), Always()))
		}, "", "forwards"},
		"a side output":    {func(_ *Builder, in stream) stream { return second(DedupSplit(in, "first", whole).Duplicate) }, "", "side output"},
		"several children": {func(_ *Builder, in stream) stream { return second(FlatMap(first(in), child)) }, "", "(flat_map) may give"},
		"user code":        {func(_ *Builder, in stream) stream { return second(Process(first(in), "p", nothing)) }, "", "(process) may give"},
		"by two ways": {func(_ *Builder, in stream) stream {
			u := first(in)
			return second(Merge("m", Filter(u, keyIs("a")), Filter(u, keyIs("b"))))
		}, "", "two ways"},
		"another task":      {func(_ *Builder, in stream) stream { return second(KeyBy(first(in), "k", text, keyOf)) }, "", "through the topic"},
		"another partition": {func(_ *Builder, in stream) stream { return second(first(in), ScopeStream()) }, "", "through the topic"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := New("app")
			out := test.build(b, From(b, "in", text, text))
			toText(out)
			topo, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			var got Elision
			for _, e := range topo.Explain().Dedups {
				if e.Operator == "second" {
					got = e
				}
			}
			if got.By != test.by || got.LeftOut != (test.by != "") || !strings.Contains(got.Reason, test.why) {
				t.Errorf("got %+v, want it guarded by %q because %q", got, test.by, test.why)
			}
			logs := 0
			for _, s := range topo.Subtopologies() {
				for _, d := range s.Dedups {
					if d.Name == "second" {
						logs++
					}
				}
			}
			if (logs == 0) != got.LeftOut {
				t.Errorf("%d logs are planned, decided was %+v", logs, got)
			}
		})
	}
}

// TestSideOutputsKeepTheLog: a stream of duplicates that is always empty is not what somebody asks for who reads it.
func TestSideOutputsKeepTheLog(t *testing.T) {
	text := serde.String()
	b := New("app")
	in := From(b, "in", text, text)
	d := DedupSplit(Dedup(in, "first", Retention(2*time.Hour)), "second", Retention(time.Hour))
	toText(d.Unique)
	To(d.Duplicate, "duplicates", text, text)
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	if e := topo.Explain().Dedups[1]; e.LeftOut || !strings.Contains(e.Reason, "side outputs") {
		t.Errorf("%+v", e)
	}
}

// TestWithoutLog: an operator without a log judges what is too late, and what has no ID, as one with a log.
func TestWithoutLog(t *testing.T) {
	now := time.UnixMilli(10_000_000)
	rt := newFakeRuntime()
	ix, err := dedup.Open(dedup.Config{Retention: time.Minute}, &emptyLog{})
	if err != nil {
		t.Fatal(err)
	}
	l := newNoLog(rt, time.Minute)
	ids := byte(0)
	check := func(at time.Time) {
		t.Helper()
		ids++
		want, err := ix.Check(record.Hash{ids}, 0, at)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := l.Check(record.Hash{ids}, 0, at); err != nil || got.Verdict != want.Verdict {
			t.Errorf("at %v of %v: %v %v, with a log %v", at, rt.streamTime, got.Verdict, err, want.Verdict)
		}
	}
	check(time.Time{})
	check(now)
	rt.streamTime = now
	ix.Advance(now)
	for _, d := range []time.Duration{0, time.Hour, -time.Minute, -time.Minute - time.Microsecond, -time.Minute - time.Millisecond, -time.Hour} {
		check(now.Add(d))
	}
}

// emptyLog holds nothing.
type emptyLog struct{ dedup.Log }

func (emptyLog) Generations() ([]record.Generation, error) { return nil, nil }
