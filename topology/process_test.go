package topology

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

func TestProcessWithStores(t *testing.T) {
	counts := KeyValue("counts", serde.String(), serde.Int64())
	last := KeyValue("last", serde.Int64(), serde.Optional(serde.String()))
	b := textSource()
	out := Process(b.in, "p", func(ctx Context, r textRecord, emit Emit[string, string]) error {
		switch r.Key {
		case "del":
			return counts.Delete(ctx, r.Value)
		case "range":
			from, to, _ := strings.Cut(r.Value, "..")
			var seen []string
			err := counts.Range(ctx, from, to, func(k string, n int64) bool {
				seen = append(seen, fmt.Sprint(k, n))
				return len(seen) < 3
			})
			emit(textRecord{Key: "range", Value: strings.Join(seen, ",")})
			return err
		case "all":
			return last.All(ctx, func(n int64, s *string) bool {
				emit(textRecord{Key: strconv.FormatInt(n, 10), Value: *s})
				return true
			})
		}
		n, ok, err := counts.Get(ctx, r.Key)
		if err != nil {
			return err
		}
		if ok != (n > 0) {
			return fmt.Errorf("found %v with %d", ok, n)
		}
		if err := last.Put(ctx, n, &r.Key); err != nil {
			return err
		}
		if r.Value == "forget" {
			return last.Put(ctx, 0, nil) // null deletes
		}
		emit(textRecord{Key: r.Key, Value: fmt.Sprint(n, " ", ctx.StreamTime().Sub(testTime), " ", ctx.Position().Offset)})
		return counts.Put(ctx, r.Key, n+1)
	}, WithStore(counts, last))
	toText(out)
	d := drive(t, b.Builder)
	d.sendText("b=", "a=", "b=", "range=a..c", "range=a..b", "range=c..d", "all=", "del=b", "b=", "all=", "b=forget", "all=")
	d.expect("b=0 0s 0 a=0 1s 1 b=1 2s 2 range=a1,b2 range=a1 range= 0=a 1=b b=0 8s 8 0=b 1=b 1=b")
	if got := d.sub.Stores; len(got) != 2 || got[0].Name != "counts" || got[1].Name != "last" {
		t.Errorf("stores %v", got)
	}
}

func TestSharedStore(t *testing.T) {
	s := KeyValue("s", serde.String(), serde.String())
	b := textSource()
	put := Process(b.in, "put", func(ctx Context, r textRecord, emit Emit[string, string]) error {
		if err := s.Put(ctx, r.Key, r.Value); err != nil {
			return err
		}
		emit(r)
		return nil
	}, WithStore(s))
	toText(Process(put, "get", func(ctx Context, r textRecord, emit Emit[string, string]) error {
		v, _, err := s.Get(ctx, r.Key)
		emit(textRecord{Key: r.Key, Value: v + "!"})
		return err
	}, WithStore(s)))
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	d, other := driveSub(t, topo, 0), driveSub(t, topo, 0)
	d.sendText("a=1")
	d.expect("a=1!")
	if len(other.rt.stores["s"].content) != 0 || len(d.sub.Stores) != 1 {
		t.Error("two tasks share a store, or one has it twice")
	}
}

// TestValuesOfAStoreAreTheCallers: the runtime uses its memory again after the record.
func TestValuesOfAStoreAreTheCallers(t *testing.T) {
	s := KeyValue("s", serde.String(), serde.Bytes())
	b := textSource()
	var kept []byte
	var keys []string
	Process(b.in, "p", func(ctx Context, _ textRecord, _ Emit[string, string]) error {
		v, _, err := s.Get(ctx, "k")
		kept = v
		return errors.Join(err, s.All(ctx, func(k string, _ []byte) bool { keys = append(keys, k); return true }))
	}, WithStore(s))
	d := drive(t, b.Builder)
	d.rt.stores["s"].content["k"] = []byte("before")
	d.sendText("a=1")
	copy(d.rt.stores["s"].content["k"], "after!")
	if string(kept) != "before" || keys[0] != "k" {
		t.Errorf("the value became %q, the key %q", kept, keys[0])
	}
}

func TestStoreMisuse(t *testing.T) {
	given, other := KeyValue("given", serde.Bytes(), serde.String()), KeyValue("other", serde.Bytes(), serde.String())
	b := textSource()
	var kept Context
	Process(b.in, "p", func(ctx Context, _ textRecord, _ Emit[string, string]) error {
		kept = ctx
		if _, _, err := other.Get(ctx, []byte("k")); !errors.Is(err, errMisused) {
			t.Errorf("a store that was not given: %v", err)
		}
		if err := given.Put(ctx, nil, "v"); !errors.Is(err, ErrNullKey) {
			t.Errorf("a null key: %v", err)
		}
		if err := given.Range(ctx, nil, nil, nil); !errors.Is(err, ErrNullKey) {
			t.Errorf("a range from null: %v", err)
		}
		if err := given.Delete(ctx, []byte{}); err != nil {
			t.Errorf("an empty key: %v", err)
		}
		return nil
	}, WithStore(given))
	d := drive(t, b.Builder)
	d.sendText("a=1") // and none of these errors stays behind
	if err := given.Put(kept, []byte("k"), "v"); !errors.Is(err, errMisused) {
		t.Errorf("a context after its function: %v", err)
	}
	if _, _, err := given.Get(Context{}, []byte("k")); !errors.Is(err, errMisused) {
		t.Errorf("a zero context: %v", err)
	}
	if len(d.rt.stores["given"].content) != 0 {
		t.Error("something was stored")
	}
}

func TestEmit(t *testing.T) {
	b := textSource()
	toText(FlatMap(b.in, func(r textRecord, emit Emit[string, string]) error {
		emit(textRecord{Key: "inherits"})
		emit(textRecord{Key: "own", Timestamp: testTime.Add(-time.Hour), Headers: record.Headers{{Key: "x", Value: []byte("1")}}})
		emit(textRecord{Key: "none", Headers: record.Headers{}})
		return nil
	}), WithoutID())
	d := drive(t, b.Builder)
	d.sendText("a=1#id1")
	var got []string
	for _, o := range d.rt.out {
		got = append(got, fmt.Sprintf("%s %s %d", o.Key, o.Timestamp.Sub(testTime), len(o.Headers)))
	}
	if s := strings.Join(got, ", "); s != "inherits 0s 1, own -1h0m0s 1, none 0s 0" {
		t.Error(s)
	}
}

func TestAggregateNulls(t *testing.T) {
	b := New("app")
	in := From(b, "in", serde.Bytes(), serde.Optional(serde.String()))
	// A null value is a record like others; the function makes it delete the key.
	totals := Aggregate(in, "totals", serde.Optional(serde.Int64()), func(n *int64, r record.Record[[]byte, *string]) (*int64, error) {
		if r.Value == nil {
			return nil, nil
		}
		if n == nil {
			n = new(int64)
		}
		next := *n + 1
		return &next, nil
	})
	To(totals, "out", serde.Bytes(), serde.JSON[*int64]())
	d := drive(t, b)
	for _, in := range []broker.Record{text("a=1"), text("a=1"), {Key: []byte("a")}, text("a=1"), {Value: []byte("1")}, {Key: []byte{}, Value: []byte("1")}} {
		if err := d.send(in); err != nil {
			t.Fatal(err)
		}
	}
	d.expect("a=1 a=2 a=- a=1 =1")
	d.expectCounter(CounterNullKey, "totals", 1)
	d.expectCounter(CounterIn, "totals", 6)
	d.expectCounter(CounterOut, "totals", 5)
}

func TestNullsWhereTheTypeHasNone(t *testing.T) {
	b := textSource()
	toText(b.in)
	d := drive(t, b.Builder)
	for _, in := range []broker.Record{{Value: []byte("v")}, {Key: []byte("k")}} {
		if oe := failure(t, d.send(in), "in", StageDecode, PolicyDefault); !errors.Is(oe, serde.ErrNull) {
			t.Errorf("cause %v", oe.Err)
		}
	}
}

func TestSinkOfNullsAndSizes(t *testing.T) {
	b := New("app")
	in := From(b, "in", serde.Bytes(), serde.Bytes())
	To(in, "out", serde.Bytes(), serde.Bytes())
	d := drive(t, b)
	big := strings.Repeat("x", 3*leastRoom) // more than the room that is asked for
	var want []string
	for _, kv := range [][2][]byte{{nil, nil}, {{}, {}}, {nil, []byte("v")}, {[]byte("k"), nil}, {[]byte(big), nil}, {[]byte("k"), []byte(big + big)}, {[]byte("s"), []byte("t")}} {
		if err := d.send(broker.Record{Key: kv[0], Value: kv[1]}); err != nil {
			t.Fatal(err)
		}
		want = append(want, shown(kv[0])+"="+shown(kv[1]))
	}
	d.expect(strings.Join(want, " "))
	for _, o := range d.rt.out {
		if cap(o.Key) != len(o.Key) || cap(o.Value) != len(o.Value) {
			t.Fatal("an append to one output could reach into another")
		}
	}
	if most := len(d.rt.out[0].Headers[0].Value) * 7; d.rt.kept < 4 || d.rt.kept > 7*leastRoom+most {
		t.Errorf("%d bytes were kept", d.rt.kept)
	}
}

func TestSerdeThatDoesNotAppend(t *testing.T) {
	b := textSource()
	To(b.in, "out", serde.String(), forgetful{})
	failure(t, drive(t, b.Builder).send(text("key=v")), "to-out", StageEncode, PolicyDefault)
}

type forgetful struct{ faultySerde }

func (forgetful) Append([]byte, string) ([]byte, error) { return []byte("v"), nil }

func TestPartitionOption(t *testing.T) {
	b := textSource()
	toText(b.in, Partition(func(r textRecord, n int32) record.Partition {
		v, _ := strconv.Atoi(r.Value)
		return record.Partition(v) + record.Partition(n) - 4 // of the fake's 4
	}))
	d := drive(t, b.Builder)
	d.sendText("a=0", "b=3")
	for i, want := range []record.Partition{0, 3} {
		if got := d.rt.out[i].Partition; got != want {
			t.Errorf("partition %d, want %d", got, want)
		}
	}
	failure(t, d.send(text("a=4")), "to-out", StageProcess, PolicyDefault)
	failure(t, d.send(text("a=-1")), "to-out", StageProcess, PolicyDefault)
}

// plainRuntime hides what makes the fake an Environment.
type plainRuntime struct{ Runtime }

func TestWithoutEnvironment(t *testing.T) {
	tests := map[string]struct {
		b  textBuilder
		to []SinkOption
		ok bool
	}{
		"positions": {b: textSource()},
		"partition": {b: textSource(IDHeader("x")), to: []SinkOption{Partition(func(textRecord, int32) record.Partition { return 0 })}},
		"neither":   {b: textSource(IDHeader("x")), ok: true},
	}
	for name, tt := range tests {
		toText(tt.b.in, tt.to...)
		topo, err := tt.b.Build()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := topo.Subtopologies()[0].NewChain(plainRuntime{newFakeRuntime()}); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTwoSources(t *testing.T) {
	b := New("app")
	left := From(b, "left", serde.String(), serde.String())
	right := From(b, "right", serde.String(), serde.Int64())
	asText := MapValues(right, func(r record.Record[string, int64]) (string, error) { return strconv.FormatInt(r.Value, 10), nil })
	toText(Merge("both", left, asText))
	d := drive(t, b)
	if err := d.sendTo(1, broker.Record{Key: []byte("r"), Value: []byte{0, 0, 0, 0, 0, 0, 0, 7}}); err != nil {
		t.Fatal(err)
	}
	if err := d.sendTo(0, text("l=x")); err != nil {
		t.Fatal(err)
	}
	d.expect("r=7 l=x")
	d.expectCounter(CounterIn, "left", 1)
	d.expectCounter(CounterIn, "right", 1)
	if sets := d.topo.CoPartitioned(); len(sets) != 1 || strings.Join(sets[0], " ") != "left right" {
		t.Errorf("co-partitioned %v", sets)
	}
}

// TestTasksShareNothing runs tasks of one topology side by side; the race detector looks on.
func TestTasksShareNothing(t *testing.T) {
	s := KeyValue("s", serde.String(), serde.Int64())
	b := textSource()
	u := Dedup(b.in, "u", Retention(hour), ComparePayload())
	m := MapValues(FlatMap(u, func(r textRecord, emit Emit[string, string]) error { emit(r); emit(r); return nil }, PreserveKey()), keyOf)
	p := Process(m, "p", func(ctx Context, r textRecord, emit Emit[string, string]) error {
		n, _, err := s.Get(ctx, r.Key)
		emit(textRecord{Key: r.Key, Value: strconv.FormatInt(n, 10)})
		return errors.Join(err, s.Put(ctx, r.Key, n+1))
	}, WithStore(s), PreserveKey())
	To(Aggregate(p, "a", serde.JSON[int64](), count), "out", serde.String(), serde.JSON[int64]())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan string)
	for range 4 {
		go func() {
			d := driveSub(t, topo, 0)
			for i := range 200 {
				if err := d.send(text(fmt.Sprintf("k%d=v#id%d", i%7, i%150))); err != nil {
					t.Error(err)
				}
			}
			results <- d.outputs() + d.ids()
		}()
	}
	first := <-results
	for range 3 {
		if other := <-results; other != first {
			t.Error("two tasks made different outputs of the same records")
		}
	}
	if n := strings.Count(first, "="); n != 300 {
		t.Errorf("%d outputs, want two for each of 150 IDs", n)
	}
}
