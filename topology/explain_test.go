package topology

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// explained is a topology with a bit of everything: two inputs, one of them without dedup, a repartition topic, policies.
func explained(t *testing.T) Explanation {
	t.Helper()
	text := serde.String()
	b := New("app")
	in := From(b, "in", text, text, IDHeader("id"))
	once := Dedup(in, "once", Retention(48*time.Hour), OnTooLate(Forward))
	again := Dedup(once, "again", Retention(time.Hour))
	other := Filter(From(b, "other", text, text), keyIs("a"), Name("some"), OnError(PolicySkip))
	all := Merge("all", again, other)
	sums := Aggregate(KeyBy(all, "by", text, keyOf), "sums", serde.Int64(), count)
	To(sums, "out", text, serde.Int64(), WithoutID())
	toText(again, Name("copy"))
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	e := topo.Explain()
	if again := topo.Explain(); !reflect.DeepEqual(e, again) {
		t.Errorf("a second answer differs:\n%+v\n%+v", e, again)
	}
	return e
}

func TestExplain(t *testing.T) {
	e := explained(t)
	if e.Name != "app" || e.Level != ExactlyOnce || len(e.Lowered) != 0 || len(e.Outputs) != 2 {
		t.Errorf("%+v", e)
	}
	edges := map[string]EdgeLevel{}
	for _, d := range e.Edges {
		edges[d.From+" "+d.To] = d
	}
	want := map[string]EdgeLevel{
		"in once":           {Level: ExactlyOnce, FromClass: "kafka", ToClass: "dedup", ID: `header "id"`, StableID: "producer"},
		"once again":        {Level: ExactlyOnce, FromClass: "dedup", ToClass: "dedup", ID: `header "id"`, StableID: "producer", Dedup: "once", Scope: "partition", Window: "2d"},
		"again copy":        {Level: ExactlyOnce, FromClass: "dedup", ToClass: "topic", ID: `header "id"`, StableID: "producer", Dedup: "again", Scope: "partition", Window: "1h"},
		"other some":        {Level: ExactlyOnce, FromClass: "kafka", ToClass: "pure", ID: `header "record-id", else its position`, StableID: "position"},
		"all by":            {Level: ExactlyOnce, FromClass: "pure", ToClass: "pure", ID: "different ones", StableID: "position"},
		"by by-repartition": {Level: ExactlyOnce, FromClass: "pure", ToClass: "repartition", ID: "different ones", StableID: "position", Topic: "app-by-repartition"},
		"sums to-out":       {Level: ExactlyOnce, FromClass: "strong", ToClass: "topic", ID: "different ones", StableID: "position"},
	}
	for name, w := range want {
		w.From, w.To, _ = strings.Cut(name, " ")
		if got := edges[name]; got != w {
			t.Errorf("edge %s:\n got %+v\nwant %+v", name, got, w)
		}
	}
	bounds := map[string]string{}
	for _, f := range e.Bounds {
		bounds[f.Operator] += f.What + "; "
		if f.Remedy == "" {
			t.Errorf("no remedy: %+v", f)
		}
	}
	for operator, words := range map[string][]string{
		"once":   {"remembered for 2d", "same partition", "too old to be judged passes"},
		"again":  {"remembered for 1h"},
		"other":  {"sends twice counts twice"},
		"some":   {"cannot handle is dropped"},
		"to-out": {"no ID"},
		"":       {"replication factor", "isolation.level"},
	} {
		for _, w := range words {
			if w == "replication factor" || w == "isolation.level" {
				continue // these are remedies, which the text shows
			}
			if !strings.Contains(bounds[operator], w) {
				t.Errorf("%q is not said of %q: %s", w, operator, bounds[operator])
			}
		}
	}
	if strings.Contains(bounds["in"], "twice") {
		t.Error("in has a dedup operator on each of its ways")
	}
}

func TestExplainAsTextAndJSON(t *testing.T) {
	e := explained(t)
	golden(t, "explain.txt", e.Text())
	out, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "explain.json", string(out)+"\n")
	var back Explanation
	if err := json.Unmarshal(out, &back); err != nil || !reflect.DeepEqual(back, e) {
		t.Errorf("%v: %+v", err, back)
	}
}

// TestExplainTable: nothing can be put between a topic and its table, so that this must not be what is advised.
func TestExplainTable(t *testing.T) {
	text := serde.String()
	b := New("app")
	To(ToStream(Table(b, "rows", text, text)), "out", text, serde.Optional(text))
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	got := topo.Explain().Text()
	for _, want := range []string{"replaces what came between", "make the table of that"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing:\n%s", want, got)
		}
	}
	if strings.Contains(got, "counts twice") {
		t.Errorf("a row does not count:\n%s", got)
	}
}

// TestExplainPositions: a dedup operator that goes by positions finds nothing that a producer repeats, and says so.
func TestExplainPositions(t *testing.T) {
	text := serde.String()
	b := New("app")
	toText(Dedup(From(b, "in", text, text, IDPosition()), "d", Retention(time.Hour)))
	toText(Dedup(From(b, "in2", text, text, IDPosition()), "e", Retention(time.Hour), ID(func(r textRecord) record.ID { return record.StringID(r.Value) })), Name("to2"))
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]bool{}
	for _, f := range topo.Explain().Bounds {
		if strings.Contains(f.What, "another position") {
			said[f.Operator] = true
		}
	}
	if !said["d"] || said["e"] {
		t.Errorf("%v", said)
	}
}

// TestExplainNamesTheWeakestFirst: an output that may repeat lowers the whole, comes first, and says why.
func TestExplainNamesTheWeakestFirst(t *testing.T) {
	text := serde.String()
	b := New("app")
	in := From(b, "in", text, text, IDHeader("id"))
	toText(in)
	To(in, "elsewhere", text, text, Name("weak"))
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	for class, want := range map[sinkClass]Level{sinkPlain: AtLeastOnce, sinkWAL: AtLeastOnce, sinkLedger: ExactlyOnce, sinkIdempotent: ExactlyOnce} {
		for _, n := range topo.nodes {
			if n.name == "weak" {
				n.ends = class
			}
		}
		e := topo.Explain()
		if e.Level != want || len(e.Outputs) != 2 {
			t.Fatalf("%s: %+v", class, e)
		}
		if want == ExactlyOnce {
			if len(e.Lowered) != 0 {
				t.Errorf("%s: %+v", class, e.Lowered)
			}
			continue
		}
		if e.Outputs[0].Operator != "weak" || e.Outputs[0].Class != string(class) || e.Outputs[1].Level != ExactlyOnce {
			t.Errorf("%s: %+v", class, e.Outputs)
		}
		if len(e.Lowered) != 1 || e.Lowered[0].Operator != "weak" || !strings.Contains(e.Text(), "weak: "+e.Lowered[0].What) {
			t.Errorf("%s: %+v\n%s", class, e.Lowered, e.Text())
		}
	}
}

// What stands in front of a topic counts: who may send again needs a dedup step that goes by the sender's own IDs.
func TestExplainEntrances(t *testing.T) {
	for _, c := range []struct {
		by         Entrance
		identified bool
		dedup      bool
		want       Level
		id         string // as edges say it
	}{
		{"", false, false, ExactlyOnce, "position"},
		{EnteredByFile, false, false, ExactlyOnce, "position"},
		{EnteredByTable, true, false, ExactlyOnce, "producer"},
		{EnteredByHTTP, true, false, AtLeastOnce, "producer"},
		{EnteredByHTTP, true, true, ExactlyOnce, "producer"},
		{EnteredByHTTP, false, true, AtLeastOnce, "none"},
		{EnteredByLines, true, true, ExactlyOnce, "producer"},
		{EnteredByLines, true, false, AtLeastOnce, "producer"},
		{EnteredBySocket, true, true, AtMostOnce, "none"},
	} {
		text := serde.String()
		b := New("app")
		var opts []SourceOption
		if c.by != "" {
			opts = append(opts, EnteredBy(c.by, c.identified, Finding{What: "what it rests on", Remedy: "hold to it"}))
		}
		in := From(b, "in", text, text, opts...)
		if c.dedup {
			in = Dedup(in, "once", Retention(time.Hour))
		}
		toText(in, Name("out"))
		topo, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		e := topo.Explain()
		class := string(c.by)
		if class == "" {
			class = "kafka"
		}
		if e.Level != c.want || e.Edges[0].FromClass != class || e.Edges[0].StableID != c.id {
			t.Errorf("%q, identified %v, dedup %v: %s, %+v; want %s", c.by, c.identified, c.dedup, e.Level, e.Edges[0], c.want)
		}
		if (len(e.Lowered) == 0) != (c.want == ExactlyOnce) {
			t.Errorf("%q: %+v", c.by, e.Lowered)
		}
		if bound := (Finding{Operator: "in", What: "what it rests on", Remedy: "hold to it"}); slices.Contains(e.Bounds, bound) != (c.by != "") {
			t.Errorf("%q: bounds %+v", c.by, e.Bounds)
		}
	}
}
