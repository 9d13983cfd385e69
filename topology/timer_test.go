package topology

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/window"
)

// alarms is an operator that does to its timers what the values of its records say, word by word: a number of seconds sets the
// timer of the key, "off" cancels it, "?" emits for when it is set, "no" fails.
func alarms(in *Stream[string, string], timers *TimerStore[string], onTimer func(ctx Context, t Timer[string], emit Emit[string, string]) error, opts ...ProcessOption) *Stream[string, string] {
	return Process(in, "alarms", func(ctx Context, r textRecord, emit Emit[string, string]) error {
		return obey(ctx, timers, r.Key, r.Value, emit)
	}, append(opts, OnTimer(timers, onTimer))...)
}

func obey(ctx Context, timers *TimerStore[string], key, words string, emit Emit[string, string]) error {
	for _, word := range strings.Fields(words) {
		var err error
		switch word {
		case "off":
			err = timers.Cancel(ctx, key)
		case "?":
			at, ok, e := timers.At(ctx, key)
			emit(textRecord{Key: key, Value: fmt.Sprintf("%v %d", ok, at.Unix())})
			err = e
		case "no":
			err = errors.New("no")
		default:
			s, e := strconv.ParseFloat(word, 64)
			err = errors.Join(e, timers.Set(ctx, key, time.Unix(int64(s), int64((s-math.Trunc(s))*1e9))))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ring emits the time of the timer, in seconds.
func ring(_ Context, t Timer[string], emit Emit[string, string]) error {
	emit(textRecord{Key: t.Key, Value: strconv.FormatFloat(float64(t.At.UnixMilli())/1000, 'g', -1, 64)})
	return nil
}

// passWall lets the host's clock come to a moment.
func (d *driver) passWall(wall time.Time) {
	d.t.Helper()
	for _, x := range d.chain.Timed {
		for due := x.Advance(Moment{Watermark: d.passed, Wall: wall}); due; {
			var err error
			if due, err = x.Fire(false); err != nil {
				d.t.Fatal(err)
			}
		}
	}
}

// TestTimers: what records say to timers, and what comes of it. A record "key=words@5" comes at 5 s.
func TestTimers(t *testing.T) {
	for name, c := range map[string]struct{ records, want string }{
		"fires once its time has come":         {"a=5@1 b=?@4 b=?@5 b=?@6 b=?@9", "b=false -62135596800 a=5 b=false -62135596800 b=false -62135596800 b=false -62135596800"},
		"not early by a part of a ms":          {"a=5.0001@1 b=?@5", "b=false -62135596800"},
		"whole ms later":                       {"a=5.0001@1 b=off@6", "a=5.001"},
		"once":                                 {"a=5@1 b=off@7 b=off@9 b=off@11", "a=5"},
		"put off":                              {"a=5@1 a=8@2 a=?@7 b=off@8", "a=true 8 a=8"},
		"put off after it was due at first":    {"a=5@1 a=8@2 b=off@6 a=9@7 b=off@8 b=off@9", "a=9"},
		"brought forward":                      {"a=9@1 a=5@2 b=off@5 b=off@10", "a=5"},
		"brought forward after it was put off": {"a=5@1 a=9@2 a=7@3 b=off@7 b=off@10", "a=7"},
		"to before its first time":             {"a=5@1 a=9@2 a=4@3 b=off@4 b=off@10", "a=4"},
		"the same again":                       {"a=5@1 a=5@2 b=off@10", "a=5"},
		"cancelled":                            {"a=5@1 a=off@2 a=?@3 b=off@10", "a=false -62135596800"},
		"cancelled after it was put off":       {"a=5@1 a=8@2 a=off@3 b=off@10", ""},
		"cancelled, set again":                 {"a=5@1 a=off@2 a=7@3 b=off@10", "a=7"},
		"cancelled, set again to the same":     {"a=5@1 a=off@2 a=5@3 b=off@10", "a=5"},
		"in one record":                        {"a=5_off_7_?_off_6@1 b=off@10", "a=true 7 a=6"},
		"set and cancelled in one":             {"a=5_off@1 b=off@10", ""},
		"cancelled, though there is none":      {"a=off@1", ""},
		"in the past":                          {"a=5@7 b=off@7", "a=5"},
		"just now":                             {"a=7@7 b=off@7", "a=7"},
		"long ago":                             {"b=5@1 b=off@6 a=-62135596799@7 b=off@7", "b=5 a=-6.2135596799e+10"},
		"far future":                           {"a=253402300799@1 b=5@1 b=off@1000", "b=5"},
		"in the order of time, then key":       {"c=5@1 b=5@1 a=6@1 d=4@1 e=5@1 x=off@10", "d=4 b=5 c=5 e=5 a=6"},
		"before the record that comes then":    {"a=5@1 b=?_5@5 b=off@5", "a=5 b=false -62135596800 b=5"},
	} {
		t.Run(name, func(t *testing.T) {
			b := New("app")
			To(alarms(plainSource(b), Timers("timers", serde.String()), ring), "out", serde.String(), serde.String())
			d := drive(t, b)
			for _, r := range strings.Fields(c.records) {
				r, s, _ := strings.Cut(strings.ReplaceAll(r, "_", " "), "@")
				seconds, _ := strconv.Atoi(s)
				d.sendAll(at(seconds, strings.ReplaceAll(r, "_", " ")))
			}
			if err := d.pass(time.Unix(int64(d.passed/1000), 0), false); err != nil {
				t.Fatal(err)
			}
			d.expect(c.want)
		})
	}
}

// TestTimerTimes: times that no timer can have are errors that the policy handles.
func TestTimerTimes(t *testing.T) {
	timers := Timers("timers", serde.String())
	var when time.Time
	b := New("app")
	Process(plainSource(b), "p", func(ctx Context, r textRecord, _ Emit[string, string]) error {
		return timers.Set(ctx, r.Key, when)
	}, OnTimer(timers, ring), OnError(PolicySkip))
	d := drive(t, b)
	for _, when = range []time.Time{{}, time.Unix(1<<60, 0), time.Unix(-1<<60, 0), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(0, 12, 31, 0, 0, 0, 0, time.UTC)} {
		failure(t, d.send(text("a=x")), "p", StageProcess, PolicySkip)
	}
	if n := len(d.rt.stores["timers"].content); n != 0 {
		t.Errorf("%d entries", n)
	}
}

// TestTimersInCallbacks: what a callback does to timers holds at once, also to those that are due with it.
func TestTimersInCallbacks(t *testing.T) {
	do := map[string]string{} // by "key@seconds": what the callback does, as "key words"
	timers := Timers("timers", serde.String())
	b := New("app")
	To(alarms(plainSource(b), timers, func(ctx Context, x Timer[string], emit Emit[string, string]) error {
		if err := ring(ctx, x, emit); err != nil {
			return err
		}
		key, words, _ := strings.Cut(do[fmt.Sprintf("%s@%d", x.Key, x.At.Unix())], " ")
		return obey(ctx, timers, key, words, emit)
	}), "out", serde.String(), serde.String())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		do   map[string]string
		want string
	}{
		"again later":             {map[string]string{"a@5": "a 8", "a@8": "a 11"}, "a=5 b=6 c=7 a=8"},
		"again at the same time":  {map[string]string{"b@6": "a 6"}, "a=5 b=6 a=6 c=7"},
		"one before those due":    {map[string]string{"a@5": "x 1"}, "a=5 x=1 b=6 c=7"},
		"cancels one that is due": {map[string]string{"a@5": "b off"}, "a=5 c=7"},
		"puts off one within":     {map[string]string{"a@5": "b 8"}, "a=5 c=7 b=8"},
		"puts off one beyond":     {map[string]string{"a@5": "b 20"}, "a=5 c=7"},
		"brings one forward":      {map[string]string{"a@5": "c 5"}, "a=5 c=5 b=6"},
		"cancels, sets again":     {map[string]string{"a@5": "b off 6"}, "a=5 b=6 c=7"},
		"its own is off":          {map[string]string{"a@5": "a ?"}, "a=5 a=false -62135596800 b=6 c=7"},
	} {
		do = c.do
		d := driveSub(t, topo, 0)
		d.sendAll(at(1, "a=5"), at(1, "b=6"), at(1, "c=7"))
		if err := d.pass(time.Unix(10, 0), false); err != nil {
			t.Fatal(err)
		}
		if got := d.outputs(); got != c.want {
			t.Errorf("%s:\n %s, want\n %s", name, got, c.want)
		}
	}
}

// TestTimersOfSeveralSets: of one operator they fire in the order of time, then of declaration; those of the host's clock by that,
// whatever event time says.
func TestTimersOfSeveralSets(t *testing.T) {
	one, two, wall := Timers("one", serde.String()), Timers("two", serde.String()), WallTimers("wall", serde.String())
	named := func(name string) func(Context, Timer[string], Emit[string, string]) error {
		return func(_ Context, t Timer[string], emit Emit[string, string]) error {
			emit(textRecord{Key: name, Value: fmt.Sprintf("%s%d", t.Key, t.At.Unix())})
			return nil
		}
	}
	b := New("app")
	out := Process(plainSource(b), "p", func(ctx Context, r textRecord, _ Emit[string, string]) error {
		s, err := strconv.Atoi(r.Value)
		to := map[byte]*TimerStore[string]{'1': one, '2': two, 'w': wall}[r.Key[0]]
		return errors.Join(err, to.Set(ctx, r.Key[1:], time.Unix(int64(s), 0)))
	}, OnTimer(one, named("one")), OnTimer(wall, named("wall")), OnTimer(two, named("two")))
	To(out, "out", serde.String(), serde.String())
	d := drive(t, b)
	d.sendAll(at(1, "1b=5"), at(1, "2a=5"), at(1, "2c=4"), at(1, "1d=6"), at(1, "wa=3"), at(1, "wb=100"))
	if err := d.pass(time.Unix(50, 0), false); err != nil {
		t.Fatal(err)
	}
	d.expect("two=c4 one=b5 two=a5 one=d6")
	d.rt.out = nil
	d.passWall(time.UnixMilli(2999))
	d.expect("")
	d.passWall(time.Unix(3, 0))
	d.passWall(time.Unix(2, 0)) // set back
	d.passWall(time.UnixMilli(99_999))
	d.expect("wall=a3")
	d.passWall(time.Unix(200, 0))
	d.expect("wall=a3 wall=b100")
	d.expectCounter(CounterTimers, "p", 6)
	d.expectCounter(CounterIn, "p", 6)
}

// TestTimersAreShared: another operator sets and cancels them, also while they are due.
func TestTimersAreShared(t *testing.T) {
	timers := Timers("timers", serde.String())
	b := New("app")
	other := From(b, "other", serde.String(), serde.String())
	setter := Process(other, "setter", func(ctx Context, r textRecord, emit Emit[string, string]) error {
		return obey(ctx, timers, r.Key, r.Value, emit)
	}, WithStore(timers))
	To(Merge("both", setter, alarms(plainSource(b), timers, ring)), "out", serde.String(), serde.String())
	d := drive(t, b)
	for _, r := range []string{"a=5", "b=6", "a=off", "c=7"} {
		if err := d.sendTo(0, at(1, r)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.sendTo(1, at(1, "c=8")); err != nil {
		t.Fatal(err)
	}
	if err := d.pass(time.Unix(10, 0), false); err != nil {
		t.Fatal(err)
	}
	d.expect("b=6 c=8")
}

func TestTimerMistakes(t *testing.T) {
	nothing := func(Context, textRecord, Emit[string, string]) error { return nil }
	timers := Timers("timers", serde.String())
	tick := func(Context, time.Time, Emit[string, string]) error { return nil }
	for name, c := range map[string]struct {
		build func(in *Stream[string, string])
		rule  string
	}{
		"no OnTimer": {func(in *Stream[string, string]) { Process(in, "p", nothing, WithStore(timers)) }, "store"},
		"two OnTimer": {func(in *Stream[string, string]) {
			Process(Process(in, "p", nothing, OnTimer(timers, ring), PreserveKey()), "q", nothing, OnTimer(timers, ring))
		}, "store"},
		"OnTimer twice": {func(in *Stream[string, string]) {
			Process(in, "p", nothing, OnTimer(timers, ring), OnTimer(timers, ring))
		}, "store"},
		"set behind": {func(in *Stream[string, string]) {
			Process(Process(in, "p", nothing, OnTimer(timers, ring), PreserveKey()), "q", nothing, WithStore(timers))
		}, "store"},
		"other types": {func(in *Stream[string, string]) {
			Process(in, "p", nothing, OnTimer(timers, func(Context, Timer[string], Emit[string, int]) error { return nil }))
		}, "option"},
		"no function": {func(in *Stream[string, string]) {
			Process(in, "p", nothing, OnTimer[string, string, string](timers, nil))
		}, "function"},
		"no timers":        {func(in *Stream[string, string]) { Process(in, "p", nothing, OnTimer(nil, ring)) }, "function"},
		"no serde":         {func(in *Stream[string, string]) { Process(in, "p", nothing, OnTimer(Timers[string]("x", nil), ring)) }, "serde"},
		"no tick function": {func(in *Stream[string, string]) { Process(in, "p", nothing, Punctuate[string, string](hour, nil)) }, "function"},
		"interval":         {func(in *Stream[string, string]) { Process(in, "p", nothing, Punctuate(time.Microsecond, tick)) }, "option"},
		"same interval": {func(in *Stream[string, string]) {
			Process(in, "p", nothing, Punctuate(hour, tick), PunctuateWall(hour, tick), Punctuate(hour, tick))
		}, "option"},
		"tick of other types": {func(in *Stream[string, string]) {
			Process(in, "p", nothing, Punctuate(hour, func(Context, time.Time, Emit[int, string]) error { return nil }))
		}, "option"},
	} {
		t.Run(name, func(t *testing.T) {
			b := New("app")
			c.build(plainSource(b))
			_, err := b.Build()
			if found := Problems(err); len(found) != 1 || found[0].Rule != c.rule {
				t.Errorf("%v, want one of rule %s", err, c.rule)
			}
		})
	}
}

func TestTimerMisuse(t *testing.T) {
	timers, other := Timers("timers", serde.Bytes()), Timers("other", serde.Bytes())
	b := New("app")
	var kept Context
	Process(plainSource(b), "p", func(ctx Context, r textRecord, _ Emit[string, string]) error {
		kept = ctx
		if err := other.Set(ctx, []byte("a"), r.Timestamp); !errors.Is(err, errMisused) {
			t.Errorf("timers that were not given: %v", err)
		}
		if err := timers.Set(ctx, nil, r.Timestamp); !errors.Is(err, ErrNullKey) {
			t.Errorf("a null key: %v", err)
		}
		if now, err := timers.Now(ctx); err != nil || !now.IsZero() {
			t.Errorf("now is %v, %v, and no time has passed", now, err)
		}
		return timers.Set(ctx, []byte{}, r.Timestamp) // an empty one is one
	}, OnTimer(timers, func(ctx Context, x Timer[[]byte], _ Emit[string, string]) error {
		now, err := timers.Now(ctx)
		if len(x.Key) != 0 || now.Before(x.At) {
			t.Errorf("key %q of %v at %v", x.Key, x.At, now)
		}
		return err
	}))
	d := drive(t, b)
	d.sendText("a=1")
	if err := timers.Cancel(kept, []byte("a")); !errors.Is(err, errMisused) {
		t.Errorf("a context after its function: %v", err)
	}
	if _, _, err := timers.At(Context{}, []byte("a")); !errors.Is(err, errMisused) {
		t.Errorf("a zero context: %v", err)
	}
	if err := d.pass(testTime.Add(hour), false); err != nil {
		t.Fatal(err)
	}
	d.expectCounter(CounterTimers, "p", 1)
}

// TestTimerThatFails: it is the one that is done again, and quietly it is off without a trace.
func TestTimerThatFails(t *testing.T) {
	for name, fail := range map[string]func() error{"error": func() error { return errors.New("no") }, "panic": func() error { panic("no") }} {
		timers := Timers("timers", serde.String())
		b := New("app")
		To(alarms(plainSource(b), timers, func(ctx Context, x Timer[string], emit Emit[string, string]) error {
			if x.Key == "bad" {
				if err := timers.Set(ctx, "bad", x.At.Add(-time.Second)); err != nil { // what it found is void
					return err
				}
				emit(textRecord{Key: "never"})
				return fail()
			}
			return ring(ctx, x, emit)
		}, OnError(PolicySkip)), "out", serde.String(), serde.String())
		d := drive(t, b)
		d.sendAll(at(1, "a=5"), at(1, "bad=5"), at(1, "c=6"))
		before := maps.Clone(d.rt.stores["timers"].content)
		x := d.chain.Timed[0]
		x.Advance(Moment{Watermark: 10_000})
		for range 3 {
			outputs := slices.Clone(d.rt.out)
			did, err := x.Fire(false)
			if err != nil {
				failure(t, err, "alarms", StageProcess, PolicySkip)
				if p := x.Pending(); string(p.Key) != "bad" || string(p.Value) != "timers 1970-01-01T00:00:05Z" {
					t.Errorf("%s: pending is %q, %q", name, p.Key, p.Value)
				}
				d.rt.out, d.rt.stores["timers"].content = outputs, maps.Clone(before) // what a task does
				did, err = x.Fire(true)
			}
			if !did || err != nil {
				t.Fatalf("%s: %v, %v", name, did, err)
			}
			before = maps.Clone(d.rt.stores["timers"].content)
		}
		if did, err := x.Fire(false); did || err != nil {
			t.Errorf("%s: there is more: %v", name, err)
		}
		d.expect("a=5 c=6")
		if n := len(before); n != 0 {
			t.Errorf("%s: %d entries are left", name, n)
		}
	}
}

// TestTimerIDs: they do not depend on when a timer fires, and tell apart what different records made of one timer.
func TestTimerIDs(t *testing.T) {
	run := func(records ...string) []string {
		b := New("app")
		To(alarms(plainSource(b), Timers("timers", serde.String()), func(ctx Context, x Timer[string], emit Emit[string, string]) error {
			return errors.Join(ring(ctx, x, emit), ring(ctx, x, emit))
		}), "out", serde.String(), serde.String())
		d := drive(t, b)
		for i, r := range records {
			d.sendAll(at(i, r))
		}
		if err := d.pass(time.Unix(1000, 0), false); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, o := range d.rt.out {
			ids = append(ids, header(o, DefaultIDHeader))
		}
		return ids
	}
	a := run("a=100#1")
	if b := run("x=off#0", "x=off#2", "a=100#1"); !slices.Equal(a, b) {
		t.Errorf("%v, %v", a, b)
	}
	all := append(a, run("a=100#2")...)
	all = append(all, run("a=101#1")...)
	all = append(all, run("b=100#1")...)
	slices.Sort(all)
	if n := len(slices.Compact(all)); n != 8 {
		t.Errorf("%d different IDs of 8: %v", n, all)
	}
	// In the past, it fires for each record that says so.
	if ids := run("a=off#0", "a=1#1", "a=1#2", "a=1#2"); len(ids) != 6 || ids[0] == ids[2] || ids[2] != ids[4] {
		t.Errorf("%v", ids)
	}
}

// TestTimersAgainstAModel: random timers, which are set, cancelled, put off and brought forward by records and callbacks, fire as
// those of a map, also if the operator forgets all that it has in memory; and nothing stays in the store.
func TestTimersAgainstAModel(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		model := map[string]int64{} // ms
		var got, want []string
		now := int64(0)
		timers := Timers("timers", serde.String())
		// act is what happens at a key: the same for the model and for the operator.
		act := func(r *rand.Rand) (key string, at int64, cancel bool) {
			return string(rune('a' + r.IntN(20))), now + r.Int64N(3000) - 300, r.IntN(6) == 0
		}
		apply := func(ctx Context, key string, at int64, cancel bool) error {
			if cancel {
				return timers.Cancel(ctx, key)
			}
			return timers.Set(ctx, key, time.UnixMilli(at))
		}
		callback := func(x Timer[string]) *rand.Rand {
			return rand.New(rand.NewPCG(uint64(x.At.UnixMilli()), uint64(x.Key[0])))
		}
		b := New("app")
		Process(plainSource(b), "p", func(ctx Context, _ textRecord, _ Emit[string, string]) error {
			key, at, cancel := act(r)
			if cancel {
				delete(model, key)
			} else {
				model[key] = at
			}
			return apply(ctx, key, at, cancel)
		}, OnTimer(timers, func(ctx Context, x Timer[string], _ Emit[string, string]) error {
			got = append(got, fmt.Sprint(x.Key, x.At.UnixMilli()))
			if c := callback(x); c.IntN(2) == 0 {
				key, at, cancel := act(c)
				if at <= x.At.UnixMilli() {
					return nil // or it might go on for ever
				}
				return apply(ctx, key, at, cancel)
			}
			return nil
		}))
		d := drive(t, b)
		fireModel := func() {
			for {
				first := ""
				for k, at := range model {
					if at <= now && (first == "" || at < model[first] || at == model[first] && k < first) {
						first = k
					}
				}
				if first == "" {
					return
				}
				x := Timer[string]{first, time.UnixMilli(model[first])}
				delete(model, first)
				want = append(want, fmt.Sprint(x.Key, x.At.UnixMilli()))
				if c := callback(x); c.IntN(2) == 0 {
					key, at, cancel := act(c)
					switch {
					case at <= x.At.UnixMilli():
					case cancel:
						delete(model, key)
					default:
						model[key] = at
					}
				}
			}
		}
		for range 200 {
			if r.IntN(5) == 0 {
				now += r.Int64N(1500)
			}
			if r.IntN(10) == 0 {
				for _, x := range d.chain.Timed {
					x.Reset(Moment{Watermark: d.passed})
				}
			}
			if err := d.pass(time.UnixMilli(now), false); err != nil {
				t.Fatal(err)
			}
			fireModel()
			if err := d.send(text("a=x")); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: fired\n %v, want\n %v", seed, got, want)
		}
		if n := len(d.rt.stores["timers"].content); n != 2*len(model) {
			t.Fatalf("seed %d: %d entries for %d timers", seed, n, len(model))
		}
	}
}

// TestTimersThatAreDamaged: what is not a timer is an error that no policy passes by.
func TestTimersThatAreDamaged(t *testing.T) {
	index := "\x01\x80\x00\x00\x00\x00\x00\x00\x05a"
	for name, content := range map[string]map[string]string{
		"short index":   {"\x01ab": ""},
		"no timer":      {index: ""},
		"another time":  {index: "", "\x02a": "\x80\x00\x00\x00\x00\x00\x00\x06\x80\x00\x00\x00\x00\x00\x00\x06"},
		"short timer":   {index: "", "\x02a": "\x80"},
		"a long setter": {index: "", "\x02a": strings.Repeat("\x80", 50)},
	} {
		b := New("app")
		alarms(plainSource(b), Timers("timers", serde.String()), ring, OnError(PolicySkip))
		d := drive(t, b)
		store := d.rt.Store("timers").(*fakeStore)
		for k, v := range content {
			store.content[k] = []byte(v)
		}
		err := d.pass(time.Unix(1000, 0), false)
		var oe *OperatorError
		if err == nil || errors.As(err, &oe) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSchedules: the first tick is the first one after the beginning, several that were missed are one, and a restart knows
// which was the last.
func TestSchedules(t *testing.T) {
	show := func(what string) func(Context, time.Time, Emit[string, string]) error {
		return func(_ Context, tick time.Time, emit Emit[string, string]) error {
			emit(textRecord{Key: what, Value: strconv.FormatInt(tick.Unix(), 10)})
			return nil
		}
	}
	timers := Timers("timers", serde.String())
	b := New("app")
	To(alarms(plainSource(b), timers, ring, Punctuate(10*time.Second, show("event")), PunctuateWall(10*time.Second, show("wall"))), "out", serde.String(), serde.String())
	d := drive(t, b)
	again := func() {
		var err error
		if d.chain, err = d.sub.NewChain(d.rt); err != nil {
			t.Fatal(err)
		}
		d.chain.Timed[0].Reset(Moment{Watermark: d.passed})
	}
	expect := func(want string) {
		t.Helper()
		if got := d.outputs(); got != want {
			t.Errorf("ticks are %q, want %q", got, want)
		}
		d.rt.out = nil
	}
	d.sendAll(at(25, "a=29"), at(29, "a=off"))
	expect("a=29")
	d.sendAll(at(30, "a=39"))
	expect("event=30")
	again()
	d.sendAll(at(31, "b=off"))
	expect("")
	d.sendAll(at(75, "b=off")) // 40 to 70, and a timer, which comes first
	expect("a=39 event=70")
	again()
	d.sendAll(at(79, "b=off"))
	expect("")
	d.sendAll(at(80, "b=off"))
	expect("event=80")

	d.passWall(time.Unix(1005, 0))
	d.passWall(time.Unix(1009, 0))
	expect("")
	d.passWall(time.Unix(1010, 0))
	expect("wall=1010")
	d.passWall(time.Unix(1009, 0)) // a little back
	d.passWall(time.Unix(1011, 0))
	expect("")
	again()
	d.passWall(time.Unix(1095, 0))
	expect("wall=1090")
	d.passWall(time.Unix(505, 0)) // the clock was wrong for long, and is right now
	expect("")
	d.passWall(time.Unix(510, 0))
	expect("wall=510")
	d.expectCounter(CounterTimers, "alarms", 8)
	if got := d.sub.Stores; len(got) != 2 || got[1].Name != "alarms-schedule" {
		t.Errorf("stores %v", got)
	}
}

// TestScheduleThatFails: quietly its tick is over.
func TestScheduleThatFails(t *testing.T) {
	b := New("app")
	Process(plainSource(b), "p", func(Context, textRecord, Emit[string, string]) error { return nil },
		Punctuate(time.Second, func(Context, time.Time, Emit[string, string]) error { panic("no") }), OnError(PolicySkip))
	d := drive(t, b)
	d.sendAll(at(1, "a=x"))
	x := d.chain.Timed[0]
	x.Advance(Moment{Watermark: 5_000})
	before := maps.Clone(d.rt.stores["p-schedule"].content)
	_, err := x.Fire(false)
	failure(t, err, "p", StageProcess, PolicySkip)
	if p := x.Pending(); string(p.Key) != "1s" || string(p.Value) != "@schedule 1970-01-01T00:00:05Z" {
		t.Errorf("pending is %q, %q", p.Key, p.Value)
	}
	d.rt.stores["p-schedule"].content = before
	if did, err := x.Fire(true); !did || err != nil {
		t.Errorf("quiet: %v, %v", did, err)
	}
	if did, err := x.Fire(false); did || err != nil {
		t.Errorf("there is more: %v, %v", did, err)
	}
}

// TestTimersBehindWindows: what waited for the grace of its window finds a clock that has waited, too.
func TestTimersBehindWindows(t *testing.T) {
	timers := Timers("timers", serde.String())
	b := New("app")
	minutes := Count(WindowedBy(plainSource(b), window.Tumbling(time.Minute).Grace(30*time.Second)), "minutes", EmitOnClose())
	out := Process(minutes, "p", func(ctx Context, r record.Record[window.Key[string], int64], emit Emit[string, string]) error {
		now, err := timers.Now(ctx)
		emit(textRecord{Key: r.Key.Key, Value: fmt.Sprint(now.Before(r.Timestamp))})
		return errors.Join(err, timers.Set(ctx, r.Key.Key, r.Timestamp.Add(10*time.Second)))
	}, OnTimer(timers, ring))
	To(out, "out", serde.String(), serde.String())
	d := drive(t, b)
	d.sendAll(at(1, "a=x"), at(90, "b=x"), at(99, "b=x"))
	d.expect("a=true")
	d.sendAll(at(100, "b=x"))
	d.expect("a=true a=69.999")
}
