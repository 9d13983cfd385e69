package topology

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/window"
)

// pass lets event time come to a moment, as a task does.
func (d *driver) pass(to time.Time, quiet bool) error {
	at, _ := window.Of(to)
	at = max(at, d.passed)
	d.passed = at
	for _, x := range d.chain.Timed {
		fires := 0
		for due := x.Advance(Moment{Watermark: at}); due; fires++ {
			var err error
			if due, err = x.Fire(quiet); err != nil {
				return err
			}
			if fires > 100_000 {
				return errors.New("it fires for ever")
			}
		}
	}
	return nil
}

// at makes a "key=value" record of a time in seconds.
func at(seconds int, s string) broker.Record {
	in := text(s)
	in.Timestamp = time.Unix(int64(seconds), 0)
	return in
}

func (d *driver) sendAll(records ...broker.Record) {
	d.t.Helper()
	for _, r := range records {
		if err := d.pass(r.Timestamp, false); err != nil {
			d.t.Fatal(err)
		}
		if err := d.send(r); err != nil {
			d.t.Fatal(err)
		}
	}
}

// flat makes "key@start" of a windowed key, and text of the value.
func flat[A any](s *Stream[window.Key[string], A]) *Stream[string, string] {
	return Map(s, func(r record.Record[window.Key[string], A]) (string, string, error) {
		return fmt.Sprintf("%s@%d", r.Key.Key, r.Key.Start.Unix()), fmt.Sprint(r.Value), nil
	})
}

func plainSource(b *Builder) *Stream[string, string] {
	return From(b, "in", serde.String(), serde.String())
}

func TestLateRecords(t *testing.T) {
	minute := window.Tumbling(time.Minute)
	for _, c := range []struct {
		name   string
		side   bool
		opts   []AggregateOption
		policy Policy // of the error; PolicyDefault: none
		late   uint64
		want   string
	}{
		{name: "dropped by default", late: 1, want: "a@=1"},
		{name: "dropped", opts: []AggregateOption{OnLate(Drop)}, late: 1, want: "a@=1"},
		{name: "dead letter", opts: []AggregateOption{OnLate(DeadLetter)}, policy: PolicyDeadLetter, want: "a@=1"},
		{name: "stop", opts: []AggregateOption{OnLate(Stop)}, policy: PolicyStop, want: "a@=1"},
		{name: "stream", side: true, want: "a@=1 a=late"},
	} {
		for _, kind := range []window.Windows{minute, window.Hopping(time.Minute, time.Minute), window.Session(time.Minute), window.Sliding(time.Minute)} {
			t.Run(c.name+" "+kind.Kind().String(), func(t *testing.T) {
				b := New("app")
				w := WindowedBy(plainSource(b), kind)
				To(flat(Count(w, "n", append(c.opts, EmitOnClose())...)), "out", serde.String(), serde.String())
				if c.side {
					To(w.Late(), "late", serde.String(), serde.String())
				}
				d := drive(t, b)
				d.sendAll(at(60, "a=1"))
				if err := d.pass(time.Unix(300, 0), false); err != nil {
					t.Fatal(err)
				}
				err := d.send(at(61, "a=late"))
				if c.policy != PolicyDefault {
					if oe := failure(t, err, "n", StageProcess, c.policy); !errors.Is(oe, ErrLate) {
						t.Error(err)
					}
				} else if err != nil {
					t.Error(err)
				}
				begin := "@60"
				if kind.Kind() == window.KindSliding {
					begin = "@0"
				}
				d.expect(strings.Replace(c.want, "@", begin, 1))
				d.expectCounter(CounterLate, "n", c.late)
			})
		}
	}
}

// TestWindowsOfWindows: what waited for the grace of its window is not late for the next one, which closes at the same
// watermark.
func TestWindowsOfWindows(t *testing.T) {
	b := New("app")
	minutes := Count(WindowedBy(plainSource(b), window.Tumbling(time.Minute).Grace(10*time.Second)), "minutes", EmitOnClose())
	plain := Map(minutes, func(r record.Record[window.Key[string], int64]) (string, int64, error) {
		return r.Key.Key, r.Value, nil
	}, PreserveKey()).WithKeys(serde.String())
	hours := Sum(WindowedBy(plain, window.Tumbling(time.Hour)), "hours", func(r record.Record[string, int64]) (int64, error) { return r.Value, nil }, EmitOnClose())
	To(flat(hours), "out", serde.String(), serde.String())
	d := drive(t, b)
	d.sendAll(at(0, "a=1"), at(59, "a=1"), at(3599, "a=1"), at(3601, "a=1"), at(3598, "a=1"), at(3610, "a=1"))
	d.expect("a@0=4")
	d.expectCounter(CounterLate, "hours", 0)
}

// TestPieceThatFails: it remains, so that it can be done again, and quietly it is done without outputs.
func TestPieceThatFails(t *testing.T) {
	for _, kind := range []window.Windows{window.Tumbling(time.Minute), window.Session(time.Minute), window.Sliding(time.Minute)} {
		b := New("app")
		bad := true
		out := Map(Count(WindowedBy(plainSource(b), kind), "n", EmitOnClose()), func(r record.Record[window.Key[string], int64]) (string, int64, error) {
			if r.Key.Key == "bad" && bad {
				panic("no")
			}
			return r.Key.Key, r.Value, nil
		}, Name("map"))
		To(out, "out", serde.String(), serde.Int64())
		d := drive(t, b)
		d.sendAll(at(1, "a=1"), at(1, "bad=1"), at(1, "c=1"))
		x := d.chain.Timed[0]
		err := d.pass(time.Unix(1000, 0), false)
		failure(t, err, "map", StageProcess, PolicyDefault)
		if p := x.Pending(); !strings.HasSuffix(string(p.Key), "bad") {
			t.Errorf("pending is %q", p.Key)
		}
		if did, err := x.Fire(true); !did || err != nil {
			t.Errorf("quiet: %v, %v", did, err)
		}
		if err := d.pass(time.Unix(1000, 0), false); err != nil {
			t.Error(err)
		}
		var got []string
		for _, o := range d.rt.out {
			got = append(got, fmt.Sprintf("%s=%d", o.Key, binary.BigEndian.Uint64(o.Value)))
		}
		if s := strings.Join(got, " "); s != "a=1 c=1" {
			t.Errorf("%v: out %s", kind, s)
		}
		if n := len(d.rt.stores["n"].content); n != 0 {
			t.Errorf("%v: %d keys are left", kind, n)
		}
	}
}

// TestManyWindowsCloseInPieces: each Fire is one window of one key.
func TestManyWindowsCloseInPieces(t *testing.T) {
	b := New("app")
	To(flat(Count(WindowedBy(plainSource(b), window.Tumbling(time.Minute)), "n", EmitOnClose())), "out", serde.String(), serde.String())
	d := drive(t, b)
	const keys = 3*dueAtOnce + 7
	for i := range keys {
		d.sendAll(at(i%60, fmt.Sprintf("k%d=1", i)))
	}
	x := d.chain.Timed[0]
	if !x.Advance(Moment{Watermark: 60_000}) {
		t.Fatal("nothing is due")
	}
	for n := 0; ; n++ {
		if len(d.rt.out) != n {
			t.Fatalf("%d results after %d pieces", len(d.rt.out), n)
		}
		did, err := x.Fire(false)
		if err != nil {
			t.Fatal(err)
		}
		if !did {
			if n != keys {
				t.Fatalf("%d pieces, want %d", n, keys)
			}
			break
		}
	}
}

func TestDedupSplit(t *testing.T) {
	b := New("app")
	out := DedupSplit(plainSource(b), "u", Retention(time.Hour), ComparePayload())
	for name, s := range map[string]*Stream[string, string]{"unique": out.Unique, "duplicate": out.Duplicate, "conflict": out.Conflict, "toolate": out.TooLate} {
		To(s, name, serde.String(), serde.String())
	}
	d := drive(t, b)
	d.sendText("a=1#x", "a=1#x", "a=2#x", "b=1#y")
	got := map[string]string{}
	for _, o := range d.rt.out {
		got[d.sub.Sinks[o.sink].Topic] += string(o.Key) + string(o.Value) + " "
	}
	if s := fmt.Sprint(got); s != "map[conflict:a2  duplicate:a1  unique:a1 b1 ]" {
		t.Error(s)
	}
	d.expectCounter(CounterOut, "u", 4)
}

// TestWindowMistakes: Build finds them.
func TestWindowMistakes(t *testing.T) {
	minute := window.Tumbling(time.Minute)
	add := func(a string, r record.Record[string, string]) (string, error) { return a + r.Value, nil }
	for name, c := range map[string]struct {
		build func(in *Stream[string, string])
		rule  string
	}{
		"no windows": {func(in *Stream[string, string]) { Count(WindowedBy(in, window.Windows{}), "n") }, "window"},
		"session without merge": {func(in *Stream[string, string]) {
			Aggregate(WindowedBy(in, window.Session(time.Minute)), "n", serde.String(), add)
		}, "window"},
		"merge of another type": {func(in *Stream[string, string]) {
			Aggregate(WindowedBy(in, window.Session(time.Minute)), "n", serde.String(), add, MergeWith(func(a, b int) (int, error) { return a, nil }))
		}, "option"},
		"emit without windows": {func(in *Stream[string, string]) { Count(in, "n", EmitOnClose()) }, "option"},
		"late twice": {func(in *Stream[string, string]) {
			w := WindowedBy(in, minute)
			Count(w, "n", OnLate(Stop))
			To(w.Late(), "late", serde.String(), serde.String())
		}, "option"},
		"late before": {func(in *Stream[string, string]) {
			w := WindowedBy(in, minute)
			To(w.Late(), "late", serde.String(), serde.String())
			Count(w, "n")
		}, "window"},
		"late of two": {func(in *Stream[string, string]) {
			w := WindowedBy(in, minute)
			Count(w, "n")
			Count(w, "m")
			To(w.Late(), "late", serde.String(), serde.String())
		}, "window"},
		"rekeyed": {func(in *Stream[string, string]) {
			m := Map(in, func(r record.Record[string, string]) (string, string, error) { return r.Value, r.Key, nil })
			Count(WindowedBy(m, minute), "n")
		}, "unkeyed"},
		"duplicates twice": {func(in *Stream[string, string]) {
			out := DedupSplit(in, "u", Retention(time.Hour), OnDuplicate(Forward))
			To(out.Unique, "a", serde.String(), serde.String())
			To(out.Duplicate, "b", serde.String(), serde.String())
		}, "option"},
		"conflict without payload": {func(in *Stream[string, string]) {
			To(DedupSplit(in, "u", Retention(time.Hour)).Conflict, "b", serde.String(), serde.String())
		}, "option"},
	} {
		t.Run(name, func(t *testing.T) {
			b := New("app")
			c.build(plainSource(b))
			_, err := b.Build()
			found := Problems(err)
			if len(found) != 1 || found[0].Rule != c.rule {
				t.Errorf("%v, want one of rule %s", err, c.rule)
			}
		})
	}
}

func TestTimeOptions(t *testing.T) {
	b := New("app")
	in := From(b, "in", serde.String(), serde.String(), OutOfOrderness(5*time.Second), WithIdleness(time.Minute), TimestampHeader("at"))
	by := func(r record.Record[string, string]) (string, error) { return r.Value, nil }
	again := KeyBy(KeyBy(in, "one", serde.String(), by), "two", serde.String(), by, WithIdleness(-1))
	Count(again, "n")
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []time.Duration{time.Minute, time.Minute, -1} {
		s := topo.Subtopologies()[i].Sources[0]
		if s.Idleness != want || s.OutOfOrderness != 5*time.Second {
			t.Errorf("source %q: %v, %v", s.Name, s.Idleness, s.OutOfOrderness)
		}
	}
	timestamp := topo.Subtopologies()[0].Sources[0].Timestamp
	for v, want := range map[string]int64{"1700000000123": 1700000000123, "2026-01-02T03:04:05.5+01:00": 1767319445500, "-1": -1} {
		got, err := timestamp(&broker.Record{Headers: record.Headers{{Key: "at", Value: []byte(v)}}})
		if err != nil || got.UnixMilli() != want {
			t.Errorf("%s: %v, %v", v, got, err)
		}
	}
	for _, h := range []record.Headers{nil, {{Key: "at"}}, {{Key: "at", Value: []byte("yesterday")}}} {
		if _, err := timestamp(&broker.Record{Headers: h}); err == nil {
			t.Errorf("%v is a time", h)
		}
	}
}

func TestSumDoesNotWrapAround(t *testing.T) {
	for _, c := range []struct {
		a, b int64
		good bool
	}{{1<<63 - 1, 1, false}, {-1 << 63, -1, false}, {1<<63 - 1, -1, true}, {1<<63 - 2, 1, true}} {
		if _, err := plus(c.a, c.b); (err == nil) != c.good {
			t.Errorf("%d + %d: %v", c.a, c.b, err)
		}
	}
}

// FuzzWindowList: a list that is damaged is an error, and one that is read is written as it was.
func FuzzWindowList(f *testing.F) {
	f.Add((&list{due: 5, entries: []listEntry{{Span: window.Span{Start: 1, End: 2}, state: []byte("x")}, {handed: true}}}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var l list
		if b == nil || l.decode(b) != nil {
			return
		}
		var again list
		if err := again.decode(l.append(nil)); err != nil || len(again.entries) != len(l.entries) || again.due != l.due {
			t.Fatalf("%q: %v, %v", b, again, err)
		}
	})
}
