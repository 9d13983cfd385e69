package topology

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/serde"
)

// guaranteed is a topology with three topics: one for each thing that a Guarantee can say, and one behind a repartition topic.
func guaranteed(t *testing.T) *Topology {
	t.Helper()
	text := serde.String()
	b := New("app")
	in := Dedup(From(b, "in", text, text, IDHeader("id")), "once", Retention(time.Hour))
	To(in, "as-the-application", text, text)
	To(in, "exact", text, text, Guarantee(ExactlyOnce))
	To(in, "ahead", text, text, Guarantee(AtLeastOnce))
	To(Count(KeyBy(in, "by", text, keyOf), "sums"), "sums", text, serde.Int64())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// TestGuaranteesAreExplained: the level of each output for each guarantee, and what is said of it.
func TestGuaranteesAreExplained(t *testing.T) {
	topo := guaranteed(t)
	for guarantee, want := range map[Level]map[string]Level{
		ExactlyOnce: {"as-the-application": ExactlyOnce, "exact": ExactlyOnce, "ahead": AtLeastOnce, "sums": ExactlyOnce},
		AtLeastOnce: {"as-the-application": AtLeastOnce, "exact": ExactlyOnce, "ahead": AtLeastOnce, "sums": AtLeastOnce},
		// This one cannot run, since two topics ask for more: what it would come to is said all the same.
		AtMostOnce: {"as-the-application": AtMostOnce, "exact": AtMostOnce, "ahead": NoGuarantee, "sums": AtMostOnce},
	} {
		e := topo.ExplainAt(guarantee)
		weakest := ExactlyOnce.risks()
		for _, o := range e.Outputs {
			if o.Level != want[o.Topic] {
				t.Errorf("%s: topic %s is %s, want %s", guarantee, o.Topic, o.Level, want[o.Topic])
			}
			weakest |= o.Level.risks()
		}
		if len(e.Outputs) != len(want) || e.Level != weakest.level() || e.Guarantee != guarantee {
			t.Errorf("%s: %s, %d outputs", guarantee, e.Level, len(e.Outputs))
		}
		for _, d := range e.Edges { // what is sent ahead is so at the end only: state has the level of what comes in
			if inside := map[Level]Level{AtMostOnce: AtMostOnce}[guarantee]; d.Level != cmp.Or(inside, ExactlyOnce) {
				t.Errorf("%s: edge %s -> %s is %s", guarantee, d.From, d.To, d.Level)
			}
		}
		blamed := map[string]bool{}
		for _, f := range e.Lowered {
			blamed[f.Operator] = true
		}
		for _, o := range e.Outputs {
			if repeats := o.Level.risks()&mayRepeat != 0; blamed[o.Operator] != repeats {
				t.Errorf("%s: %s is blamed: %v", guarantee, o.Operator, !repeats)
			}
		}
		if blamed["in"] != (guarantee == AtMostOnce) {
			t.Errorf("%s: the positions are blamed: %v", guarantee, blamed["in"])
		}
		costs := fmt.Sprint(e.Costs)
		if strings.Contains(costs, "two transactions") != (guarantee == AtMostOnce) || strings.Contains(costs, "to-ahead") == (guarantee == AtMostOnce) || strings.Contains(costs, "to-exact") {
			t.Errorf("%s costs %s", guarantee, costs)
		}
	}
}

// TestGuaranteesThatAreRefused is the table of all combinations: with each guarantee of an application, each kind of end.
func TestGuaranteesThatAreRefused(t *testing.T) {
	const nothing = "no topic that at_least_once could change"
	text := serde.String()
	type end struct {
		opts  []SinkOption
		class sinkClass // of a sink outside of Kafka; empty: a topic
		topic string
	}
	for name, c := range map[string]struct {
		end
		refused map[Level]string // a part of the reason; not there: it can run
	}{
		"a topic":               {end: end{topic: "out"}},
		"a topic, exactly once": {end: end{topic: "out", opts: []SinkOption{Guarantee(ExactlyOnce)}}, refused: map[Level]string{AtLeastOnce: nothing, AtMostOnce: "guarantee of its own"}},
		"a topic, ahead":        {end: end{topic: "out", opts: []SinkOption{Guarantee(AtLeastOnce)}}, refused: map[Level]string{AtMostOnce: "guarantee of its own"}},
		"a loop":                {end: end{topic: "in", opts: []SinkOption{Feedback()}}, refused: map[Level]string{AtLeastOnce: "would come back and count again"}},
		"a loop, ahead": {end: end{topic: "in", opts: []SinkOption{Feedback(), Guarantee(AtLeastOnce)}}, refused: map[Level]string{
			ExactlyOnce: "would come back and count again", AtLeastOnce: "would come back and count again", AtMostOnce: "guarantee of its own",
		}},
		"a loop, exactly once": {end: end{topic: "in", opts: []SinkOption{Feedback(), Guarantee(ExactlyOnce)}}, refused: map[Level]string{AtLeastOnce: nothing, AtMostOnce: "guarantee of its own"}},
		"a ledger":             {end: end{class: sinkLedger}, refused: map[Level]string{AtLeastOnce: nothing, AtMostOnce: "so that nothing is lost"}},
		"an idempotent table":  {end: end{class: sinkIdempotent}, refused: map[Level]string{AtLeastOnce: nothing}},
		"a plain table":        {end: end{class: sinkPlain}, refused: map[Level]string{AtLeastOnce: nothing, AtMostOnce: "may write a row twice"}},
	} {
		b := New("app")
		To(From(b, "in", text, text), cmp.Or(c.topic, "stand-in"), text, text, append(c.opts, Name("end"))...)
		topo, err := b.Build()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if end := topo.nodes[1]; c.class != "" {
			end.ends, end.sink = c.class, nil
		}
		for _, l := range ProcessingLevels() {
			err := topo.CheckGuarantee(l)
			want := c.refused[l]
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s under %s: %v, want %q", name, l, err, want)
			}
			for _, p := range Problems(err) {
				if p.Rule != ruleGuarantee || p.Operator != "end" && p.Operator != "app" {
					t.Errorf("%s under %s: %+v", name, l, p)
				}
			}
		}
	}
	for _, l := range []Level{"", NoGuarantee, "twice"} {
		if err := guaranteed(t).CheckGuarantee(l); err == nil || !strings.Contains(err.Error(), "want one of") {
			t.Errorf("%q: %v", l, err)
		}
	}
}

// TestGuaranteeOfOneTopic: not every level is one topic's to choose.
func TestGuaranteeOfOneTopic(t *testing.T) {
	for l, ok := range map[Level]bool{ExactlyOnce: true, AtLeastOnce: true, AtMostOnce: false, NoGuarantee: false, "twice": false} {
		b := New("app")
		To(From(b, "in", serde.String(), serde.String()), "out", serde.String(), serde.String(), Guarantee(l))
		if _, err := b.Build(); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "not one topic's to choose") {
			t.Errorf("%s: %v", l, err)
		}
	}
}
