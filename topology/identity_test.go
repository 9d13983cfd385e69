package topology

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// ids are the ID headers of the outputs.
func (d *driver) ids() string {
	var all []string
	for _, o := range d.rt.out {
		all = append(all, header(o, DefaultIDHeader))
	}
	return strings.Join(all, " ")
}

func TestSourceOfIDs(t *testing.T) {
	field := ID(func(r textRecord) record.ID { return record.StringID(r.Value) })
	position := string(record.PositionID("cluster", "uuid-of-in", 3, 0))
	long := strings.Repeat("x", record.MaxIDBytes+1)
	tests := map[string]struct {
		opts    []SourceOption
		in      broker.Record
		want    string // the ID in the output
		failure Policy // of an error, PolicyDefault: none
	}{
		"default, header":          {in: text("a=v#id1"), want: "id1"},
		"default, position":        {in: text("a=v"), want: position},
		"default, empty header":    {in: text("a=v#"), failure: PolicyStop},
		"default, long header":     {in: text("a=v#" + long), failure: PolicyStop},
		"header":                   {opts: []SourceOption{IDHeader("x")}, in: broker.Record{Key: []byte{}, Value: []byte{}, Headers: record.Headers{{Key: "x", Value: []byte("1")}, {Key: "x", Value: []byte("2")}}}, want: "2"},
		"header missing":           {opts: []SourceOption{IDHeader("x")}, in: text("a=v#id1"), failure: PolicyStop},
		"header missing, dead":     {opts: []SourceOption{IDHeader("x"), OnMissingID(DeadLetter)}, in: text("a=v#id1"), failure: PolicyDeadLetter},
		"header missing, forward":  {opts: []SourceOption{IDHeader("x"), OnMissingID(Forward)}, in: text("a=v#id1"), want: "(none)"},
		"field":                    {opts: []SourceOption{field}, in: text("a=v#id1"), want: "v"},
		"field empty":              {opts: []SourceOption{field, OnMissingID(Stop)}, in: text("a=#id1"), failure: PolicyStop},
		"field too long, forward":  {opts: []SourceOption{field, OnMissingID(Forward)}, in: text("a=" + long), want: "(none)"},
		"position over the header": {opts: []SourceOption{IDPosition()}, in: text("a=v#id1"), want: position},
		"the last option counts":   {opts: []SourceOption{IDPosition(), field, IDHeader("x"), field}, in: text("a=v#id1"), want: "v"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := textSource(tt.opts...)
			toText(b.in)
			d := drive(t, b.Builder)
			err := d.send(tt.in)
			if tt.failure != PolicyDefault {
				failure(t, err, "in", StageID, tt.failure)
				d.expect("")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := d.ids(); got != tt.want {
				t.Errorf("ID %q, want %q", got, tt.want)
			}
		})
	}
}

func TestPositionIDs(t *testing.T) {
	b := textSource()
	toText(b.in)
	d := drive(t, b.Builder)
	var want []string
	// So many that the room for IDs is exchanged, with offsets of all lengths, and in another partition half-way.
	for i := range 3000 {
		d.next = record.Offset(i) * record.Offset(i) * record.Offset(i) * 1e6
		if i == 1500 {
			d.rt.partition = 11
		}
		want = append(want, string(record.PositionID("cluster", "uuid-of-in", d.rt.partition, d.next)))
		d.sendText("a=b")
	}
	if d.ids() != strings.Join(want, " ") {
		t.Error("the IDs differ from record.PositionID")
	}
}

// TestPathOfIdentity follows the ID through each operator.
func TestPathOfIdentity(t *testing.T) {
	root := record.RootIdentity("id1")
	op := record.OperatorHash
	two := func(r textRecord, emit Emit[string, string]) error {
		emit(textRecord{Key: "x", Identity: record.RootIdentity("forged")})
		emit(textRecord{Key: "y"})
		return nil
	}
	tests := map[string]struct {
		build func(in *Stream[string, string])
		want  []record.Identity
	}{
		"filter, branch, merge and dedup keep it": {
			func(in *Stream[string, string]) {
				s := Branch(Filter(in, keyIs("a")), "b", keyIs("z"))
				toText(dedupText(Merge("m", s[0], s[1]), "d"))
			},
			[]record.Identity{root},
		},
		"map": {func(in *Stream[string, string]) { toText(Map(in, swap, Name("m"))) }, []record.Identity{root.Child(op("m"), 0)}},
		"map values": {
			func(in *Stream[string, string]) { toText(MapValues(in, keyOf, Name("m"))) },
			[]record.Identity{root.Child(op("m"), 0)},
		},
		"flat map numbers its outputs": {
			func(in *Stream[string, string]) { toText(FlatMap(in, two, Name("f"))) },
			[]record.Identity{root.Child(op("f"), 0), root.Child(op("f"), 1)},
		},
		"process numbers its outputs": {
			func(in *Stream[string, string]) {
				toText(Process(in, "p", func(_ Context, r textRecord, emit Emit[string, string]) error { return two(r, emit) }))
			},
			[]record.Identity{root.Child(op("p"), 0), root.Child(op("p"), 1)},
		},
		"aggregate": {
			func(in *Stream[string, string]) {
				To(Aggregate(in, "a", serde.Int64(), count), "out", serde.String(), serde.Int64())
			},
			[]record.Identity{root.Child(op("a"), 0)},
		},
		"a path of three": {
			func(in *Stream[string, string]) {
				toText(MapValues(FlatMap(Map(in, swap, Name("m")), two, Name("f")), keyOf, Name("v")))
			},
			[]record.Identity{
				root.Child(op("m"), 0).Child(op("f"), 0).Child(op("v"), 0),
				root.Child(op("m"), 0).Child(op("f"), 1).Child(op("v"), 0),
			},
		},
		"a split and a merge": {
			func(in *Stream[string, string]) {
				toText(Merge("both", Map(in, swap, Name("left")), Map(in, swap, Name("right"))))
			},
			[]record.Identity{root.Child(op("left"), 0), root.Child(op("right"), 0)},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := textSource()
			tt.build(b.in)
			topo, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, i := range tt.want {
				want = append(want, string(i.ID()))
			}
			// In another task, and for the same record again, the IDs are the same.
			for range 2 {
				d := driveSub(t, topo, 0)
				d.sendText("a=1#id1")
				if got := d.ids(); got != strings.Join(want, " ") {
					t.Errorf("IDs %s, want %s", got, want)
				}
			}
		})
	}
}

// TestIDsAreDurable holds an ID by its bytes: what is written today must be recognised by every later version.
func TestIDsAreDurable(t *testing.T) {
	b := textSource()
	toText(MapValues(Map(b.in, swap, Name("m")), keyOf, Name("v")))
	d := drive(t, b.Builder)
	d.sendText("a=1#b1")
	const want = "0d54ead7652d8aec36ac3064e6e7d1ac"
	if got := d.ids(); got != want {
		t.Errorf("the ID is %s, it was %s", got, want)
	}
}

func TestIDHeaderOfOutputs(t *testing.T) {
	in := func(h ...string) broker.Record {
		r := broker.Record{Key: []byte("k"), Value: []byte("v")}
		for i := 0; i < len(h); i += 2 {
			r.Headers = append(r.Headers, record.Header{Key: h[i], Value: []byte(h[i+1])})
		}
		return r
	}
	position := fmt.Sprintf("%q", record.PositionID("cluster", "uuid-of-in", 3, 0))
	tests := map[string]struct {
		source []SourceOption
		sink   []SinkOption
		in     broker.Record
		want   string
		same   bool // the very headers of the input
	}{
		"the same already":       {in: in("a", "1", "record-id", "x", "b", "2"), want: `a="1" record-id="x" b="2"`, same: true},
		"added":                  {in: in("a", "1"), want: `a="1" record-id=` + position},
		"replaced":               {source: []SourceOption{IDPosition()}, in: in("record-id", "x", "a", "1", "record-id", "y"), want: `a="1" record-id=` + position},
		"twice the same":         {in: in("record-id", "x", "record-id", "x"), want: `record-id="x"`},
		"its own and another":    {in: in("record-id", "y", "record-id", "x"), want: `record-id="x"`},
		"another name":           {sink: []SinkOption{IDHeader("msg")}, in: in("record-id", "x"), want: `record-id="x" msg="x"`},
		"left out":               {sink: []SinkOption{WithoutID()}, in: in("a", "1"), want: `a="1"`, same: true},
		"no ID, no header":       {source: []SourceOption{IDHeader("none"), OnMissingID(Forward)}, in: in("a", "1"), want: `a="1"`, same: true},
		"no ID, foreign removed": {source: []SourceOption{IDHeader("none"), OnMissingID(Forward)}, in: in("record-id", "x", "a", "1", "record-id", "y"), want: `a="1"`},
		"no ID, last removed":    {source: []SourceOption{IDHeader("none"), OnMissingID(Forward)}, in: in("a", "1", "record-id", "x"), want: `a="1"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := textSource(tt.source...)
			toText(b.in, tt.sink...)
			d := drive(t, b.Builder)
			before := fmt.Sprintf("%q", tt.in.Headers)
			if err := d.send(tt.in); err != nil {
				t.Fatal(err)
			}
			out := d.rt.out[0].Headers
			var got []string
			for _, h := range out {
				got = append(got, fmt.Sprintf("%s=%q", h.Key, h.Value))
			}
			if s := strings.Join(got, " "); s != tt.want {
				t.Errorf("headers %s, want %s", s, tt.want)
			}
			if after := fmt.Sprintf("%q", tt.in.Headers); after != before {
				t.Errorf("the input's headers became %s", after)
			}
			if tt.same && &out[0] != &tt.in.Headers[0] {
				t.Error("the headers were copied without need")
			}
		})
	}
}

func TestRepartition(t *testing.T) {
	b := textSource()
	k := KeyBy(b.in, "by", serde.String(), keyOf)
	toText(MapValues(k, func(r textRecord) (string, error) { return r.Key + "/" + r.Value, nil }, Name("v")))
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	first, second := driveSub(t, topo, 0), driveSub(t, topo, 1)
	in := text("a=1")
	in.Timestamp = testTime.Add(time.Hour)
	in.Headers = record.Headers{{Key: "h", Value: []byte("x")}, {Key: DefaultIDHeader, Value: []byte("id1")}}
	if err := first.send(in); err != nil {
		t.Fatal(err)
	}
	first.sendText("b=#id2")
	first.expect("1=1 =")
	if p := first.rt.out[0].Partition; p >= 0 {
		t.Errorf("partition %d was chosen, it is the key's", p)
	}
	first.forward(second)
	second.expect("1=1/1 =/")
	out := second.rt.out[0]
	// On the other side the ID is a root: its children's differ from those of a path without a topic.
	child := record.RootIdentity("id1").Child(record.OperatorHash("by"), 0).ID()
	want := string(record.RootIdentity(child).Child(record.OperatorHash("v"), 0).ID())
	if got := header(out, DefaultIDHeader); got != want {
		t.Errorf("the ID is %s, want %s", got, want)
	}
	if !out.Timestamp.Equal(in.Timestamp) {
		t.Errorf("the time is %v, want %v", out.Timestamp, in.Timestamp)
	}
	if len(out.Headers) != 2 || header(out, "h") != "x" {
		t.Errorf("headers are %q: the internal ones must not come out", out.Headers)
	}
}

func TestScopeStream(t *testing.T) {
	b := New("app")
	in := From(b, "in", serde.Optional(serde.String()), serde.Bytes(), IDHeader("none"), OnMissingID(Forward))
	unique := Dedup(in, "unique", ScopeStream(), Retention(time.Hour), ComparePayload(), OnMissingID(Forward), OnConflict(Drop),
		ID(func(r record.Record[*string, []byte]) record.ID {
			return record.BytesID(r.Value[:min(2, len(r.Value))])
		}))
	To(unique, "out", serde.Optional(serde.String()), serde.Bytes())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	first, second := driveSub(t, topo, 0), driveSub(t, topo, 1)
	first.sendText("a=x1", "b=x1", "=x2", "c=")
	if err := first.send(broker.Record{Value: []byte("x3")}); err != nil {
		t.Fatal(err)
	}
	if err := first.send(broker.Record{Key: []byte("d")}); err != nil { // a tombstone without an ID
		t.Fatal(err)
	}
	first.sendText("e=x1-other")
	// The key is the ID, so that equal IDs meet in one partition.
	first.expect("x1=x1 x1=x1 x2=x2 -= x3=x3 -=- x1=x1-other")
	first.forward(second)
	second.expect("a=x1 =x2 c= -=x3 d=-")
	second.expectCounter(CounterConflict, "unique", 1)
	second.expectCounter(CounterMissingForward, "unique", 2)
	second.expectCounter(CounterIn, "unique", 7)
	for _, o := range second.rt.out {
		if len(o.Headers) != 0 {
			t.Errorf("headers %q came out", o.Headers)
		}
	}
	if topo.Subtopologies()[1].Name != "unique-repartition" || topo.SinkTopic(topo.Subtopologies()[0].Sinks[0]) != "app-unique-repartition" {
		t.Error("the repartition topic has another name")
	}
}
