package topology

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// byValue looks for the row whose key is the record's value; "none" has no key.
func byValue(_, v string) (*string, error) {
	switch v {
	case "none":
		return nil, nil
	case "bad":
		return nil, errors.New("no key in it")
	}
	return &v, nil
}

// put makes a record a row of the runtime's global table, as a runtime does.
func (d *driver) put(table string, in broker.Record) {
	d.t.Helper()
	for _, g := range d.topo.Globals() {
		if g.Name != table {
			continue
		}
		key, value, err := g.Row(&in)
		switch {
		case err != nil:
			d.t.Fatal(err)
		case key == nil:
		case value == nil:
			delete(d.rt.Global(g.Name).(fakeGlobal), string(key))
		default:
			d.rt.Global(g.Name).(fakeGlobal)[string(key)] = value
		}
	}
}

func globalJoins() *Builder {
	b := New("app")
	table := GlobalTable(b, "countries", optionalText(), serde.String(), Name("c"))
	in := From(b, "in", serde.String(), serde.String())
	inner := JoinGlobal(in, table, "inner", byValue, func(k, v, row string) (string, error) { return k + v + row, nil })
	left := LeftJoinGlobal(in, table, "left", byValue, func(k, v string, row *string) (string, error) { return k + v + maybe(row), nil })
	To(inner, "out", serde.String(), serde.String(), Name("o1"))
	To(left, "out", serde.String(), serde.String(), Name("o2"))
	return b
}

func TestJoinGlobal(t *testing.T) {
	d := drive(t, globalJoins())
	d.put("c", text("ch=Swiss"))
	d.sendText("a=ch#1", "b=de#2", "c=none")
	d.put("c", text("de=German"))
	d.put("c", tombstone("ch"))
	d.put("c", broker.Record{Value: []byte("of nobody")})
	d.sendText("a=ch", "b=de")
	d.expect("a=achSwiss a=achSwiss b=bde? c=cnone? a=ach? b=bdeGerman b=bdeGerman")
	d.expectCounter(CounterNoMatch, "inner", 3)
	d.expectCounter(CounterOut, "left", 5)
	if id := header(d.rt.out[0], DefaultIDHeader); id == "1" || len(id) != 32 {
		t.Errorf("the ID of a result is %q, want a child's", id)
	}
	failure(t, d.send(text("a=bad")), "inner", StageProcess, PolicyDefault)
	if s := d.sub; !slices.Equal(s.Globals, []string{"c"}) || s.Stateful() || len(s.Joins) != 0 || len(s.Sources) != 1 {
		t.Errorf("the sub-topology is %+v: a global table is none of its inputs and no state of it", s)
	}
}

// TestJoinGlobalAgainstAModel: whatever the order of rows and records, a record is joined with the newest row before it.
func TestJoinGlobalAgainstAModel(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 20))
		d := drive(t, globalJoins())
		rows, want := map[string]string{}, []string{}
		for range 200 {
			k, v := string(rune('a'+r.IntN(3))), string(rune('p'+r.IntN(4)))
			switch r.IntN(4) {
			case 0:
				rows[v] = k
				d.put("c", text(v+"="+k))
			case 1:
				delete(rows, v)
				d.put("c", tombstone(v))
			default:
				d.sendText(k + "=" + v)
				row, ok := rows[v]
				if ok {
					want = append(want, k+"="+k+v+row)
				} else {
					row = "?"
				}
				want = append(want, k+"="+k+v+row)
			}
		}
		if got := d.outputs(); got != strings.Join(want, " ") {
			t.Fatalf("seed %d: %s, want %s (rows %v)", seed, got, want, slices.Sorted(maps.Keys(rows)))
		}
	}
}

// boom is a serde that panics where it decodes.
type boom struct{ serde.Serde[string] }

func (boom) Decode([]byte) (string, error) { panic("boom") }

func TestGlobalRows(t *testing.T) {
	b := New("app")
	type price struct{ Cents int }
	table := GlobalTable(b, "prices", serde.Int64(), serde.JSON[price](), OnError(PolicySkip), MaxBytes(1000))
	bad := GlobalTable[string, string](b, "bad", serde.String(), boom{serde.String()})
	in := From(b, "in", serde.Int64(), serde.String())
	one := JoinGlobal(in, table, "one", func(k int64, _ string) (int64, error) { return k, nil }, func(_ int64, v string, p price) (string, error) { return v, nil }).WithValues(serde.String())
	To(JoinGlobal(one, bad, "two", func(int64, string) (string, error) { return "", nil }, func(_ int64, v, _ string) (string, error) { return v, nil }), "out", serde.Int64(), serde.String())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	g := topo.Globals()
	if len(g) != 2 || g[0].Name != "prices-table" || g[0].Policy != PolicySkip || g[0].MaxBytes != 1000 || g[1].Policy != PolicyStop || g[1].MaxBytes != DefaultGlobalBytes {
		t.Fatalf("%+v", g)
	}
	if _, _, err := g[0].Row(&broker.Record{Key: []byte("short"), Value: []byte("{}")}); err == nil || !strings.Contains(err.Error(), "key: ") {
		t.Errorf("key: %v", err)
	}
	if _, _, err := g[0].Row(&broker.Record{Key: make([]byte, 8), Value: []byte("{")}); err == nil || !strings.Contains(err.Error(), "value: ") {
		t.Errorf("value: %v", err)
	}
	var pe *PanicError
	if _, _, err := g[1].Row(&broker.Record{Key: []byte("k"), Value: []byte("v")}); !errors.As(err, &pe) || len(pe.Stack) == 0 {
		t.Errorf("a panic of a serde: %v", err)
	}
	in1 := broker.Record{Key: make([]byte, 8), Value: []byte("{}")}
	key, value, err := g[0].Row(&in1)
	if err != nil || string(value) != "{}" {
		t.Fatal(key, value, err)
	}
	in1.Key[0], in1.Value[0] = 7, 7
	if key[0] == 7 || value[0] == 7 {
		t.Error("the row shares the memory of the record")
	}
}

func TestGlobalMistakes(t *testing.T) {
	b, other := New("app"), New("other")
	s := From(b, "s", serde.String(), serde.String())
	text := serde.String()
	good := GlobalTable(b, "good", text, text)
	GlobalTable(b, "good", text, text, Name("again"))
	GlobalTable(b, "unused", text, text)
	GlobalTable(b, "s", text, text, Name("s"))
	GlobalTable(b, "dead", text, text, Name("dead"), OnError(PolicyDeadLetter))
	GlobalTable[string, string](b, "nil", text, nil, Name("nil"), MaxBytes(0))
	GlobalTable(b, "x y", text, text, Name("bad/name"))
	foreign := GlobalTable(other, "foreign", text, text)
	by := func(k, v string) (string, error) { return v, nil }
	To(JoinGlobal(s, foreign, "foreign", by, joinText3), "o1", text, text)
	To(JoinGlobal[string, string, string, string, string](s, good, "no-function", by, nil), "o2", text, text)
	To(JoinGlobal(s, good, "no-key", nil, joinText3), "o3", text, text)
	To(JoinGlobal(s, good, "late", by, joinText3, OnLate(Drop)), "o4", text, text)
	To(JoinGlobal(s, good, "", by, joinText3), "o5", text, text)
	_, err := b.Build()
	found := map[string]bool{}
	for _, p := range Problems(err) {
		found[p.Operator+" "+p.Rule] = true
	}
	for _, want := range []string{
		"again duplicate-topic", "unused-table unused", "s duplicate-name", "dead option", "nil serde", "nil option", "bad/name name", "bad/name topic",
		"foreign builder", "no-function function", "no-key function", "late option", "join-1 name",
	} {
		if !found[want] {
			t.Errorf("no problem %q in:\n%v", want, err)
		}
	}
}

func joinText3(_, l, r string) (string, error) { return l + "+" + r, nil }

// TestGlobalNeedsARuntime: a runtime that has no global tables is refused, and does not find them empty.
func TestGlobalNeedsARuntime(t *testing.T) {
	topo, err := globalJoins().Build()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topo.Subtopologies()[0].NewChain(plainRuntime{newFakeRuntime()}); err == nil || !strings.Contains(err.Error(), `looks into global table "c"`) {
		t.Error(err)
	}
}

// TestExplainGlobals: a global table lowers no level, since nothing is lost or repeated by it; that its rows are not of the cut is said, for each
// join, with the remedy.
func TestExplainGlobals(t *testing.T) {
	b := New("app")
	text := serde.String()
	table := GlobalTable(b, "countries", text, text, OnError(PolicySkip))
	by := func(_, v string) (string, error) { return v, nil }
	in := From(b, "in", text, text, IDHeader("id"))
	once := Dedup(in, "once", Retention(1<<40))
	inner := JoinGlobal(once, table, "inner", by, joinText3).WithValues(text)
	left := LeftJoinGlobal(inner, table, "left", by, func(_, v string, row *string) (string, error) { return v, nil }).WithValues(text)
	To(KeyBy(left, "by", text, func(r record.Record[string, string]) (string, error) { return r.Value, nil }), "out", text, text)
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	e := topo.Explain()
	if e.Level != ExactlyOnce || len(e.Lowered) != 0 {
		t.Errorf("level %s, lowered %v", e.Level, e.Lowered)
	}
	classes := map[string]string{}
	for _, d := range e.Edges {
		classes[d.To] = d.ToClass
	}
	if classes["inner"] != "lookup" || classes["left"] != "lookup" || classes["by"] != "pure" {
		t.Errorf("classes %v", classes)
	}
	said := map[string]int{}
	for _, f := range e.Bounds {
		for word, what := range map[string]string{"cut": "not part of the transaction's cut", "late": "is not read yet is dropped", "skip": "is no row is passed over"} {
			if strings.Contains(f.What, what) && strings.Contains(f.What, "countries") && f.Remedy != "" {
				said[f.Operator+" "+word]++
			}
		}
	}
	if want := map[string]int{"inner cut": 1, "inner late": 1, "inner skip": 1, "left cut": 1, "left skip": 1}; !maps.Equal(said, want) {
		t.Errorf("said %v, want %v", said, want)
	}
}

// TestDescribeGlobals: the form is that of Kafka Streams.
func TestDescribeGlobals(t *testing.T) {
	topo, err := globalJoins().Build()
	if err != nil {
		t.Fatal(err)
	}
	const want = `  Sub-topology: 1 for global store (will not generate tasks)
    Source: c-source (topics: [countries])
      --> c
    Processor: c (stores: [c])
      --> none
      <-- c-source
`
	if got := topo.Describe(); !strings.Contains(got, want) || !strings.Contains(got, "Processor: left (stores: [c])") {
		t.Error(got)
	}
	edges := map[string]bool{}
	for _, e := range topo.Graph().Edges {
		edges[e.From+" "+e.To] = true
	}
	if !edges["topic:countries store:c"] || !edges["operator:left store:c"] || !edges["operator:inner store:c"] {
		t.Errorf("%v", edges)
	}
}
