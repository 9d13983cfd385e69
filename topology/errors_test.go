package topology

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/invariant"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
)

// faultySerde fails or panics where it is told to.
type faultySerde struct{ onAppend, onDecode func() error }

func (s faultySerde) Append(dst []byte, v string) ([]byte, error) {
	if s.onAppend != nil {
		if err := s.onAppend(); err != nil {
			return nil, err
		}
	}
	return append(dst, v...), nil
}

func (s faultySerde) Decode(b []byte) (string, error) {
	if s.onDecode != nil {
		if err := s.onDecode(); err != nil {
			return "", err
		}
	}
	return string(b), nil
}

// TestFailures makes each operator fail in each way that user code can, and looks at who is said to have failed.
func TestFailures(t *testing.T) {
	text, in := serde.String(), text
	type build func(b *Builder, fail func() error)
	source := func(b *Builder) *Stream[string, string] { return From(b, "in", text, text) }
	onAppend := func(f func() error) faultySerde { return faultySerde{onAppend: f} }
	onDecode := func(f func() error) faultySerde { return faultySerde{onDecode: f} }
	tests := []struct {
		name      string
		build     build
		operator  string
		stage     Stage
		onlyPanic bool // the function has no error
	}{
		{"decode key", func(b *Builder, f func() error) { toText(From(b, "in", onDecode(f), text, OnError(PolicySkip))) }, "in", StageDecode, false},
		{"decode value", func(b *Builder, f func() error) { toText(From(b, "in", text, onDecode(f), OnError(PolicySkip))) }, "in", StageDecode, false},
		{"timestamp", func(b *Builder, f func() error) {
			toText(From(b, "in", text, text, OnError(PolicySkip), Timestamp(func(textRecord) (time.Time, error) { return testTime, f() })))
		}, "in", StageDecode, false},
		{"id", func(b *Builder, f func() error) {
			toText(From(b, "in", text, text, OnError(PolicySkip), ID(func(textRecord) record.ID { _ = f(); return "x" })))
		}, "in", StageID, true},
		{"filter", func(b *Builder, f func() error) {
			toText(Filter(source(b), func(textRecord) (bool, error) { return true, f() }, Name("x"), OnError(PolicySkip)))
		}, "x", StageProcess, false},
		{"map", func(b *Builder, f func() error) {
			toText(Map(source(b), func(textRecord) (string, string, error) { return "", "", f() }, Name("x"), OnError(PolicySkip)))
		}, "x", StageProcess, false},
		{"map values", func(b *Builder, f func() error) {
			toText(MapValues(source(b), func(textRecord) (string, error) { return "", f() }, Name("x"), OnError(PolicySkip)))
		}, "x", StageProcess, false},
		{"flat map", func(b *Builder, f func() error) {
			toText(FlatMap(source(b), func(r textRecord, emit Emit[string, string]) error { emit(r); return f() }, Name("x"), OnError(PolicySkip)))
		}, "x", StageProcess, false},
		{"process", func(b *Builder, f func() error) {
			s := KeyValue("s", text, text)
			toText(Process(source(b), "x", func(ctx Context, r textRecord, emit Emit[string, string]) error {
				if _, _, err := s.Get(ctx, "k"); err != nil {
					return err
				}
				emit(r)
				return f()
			}, WithStore(s), OnError(PolicySkip)))
		}, "x", StageProcess, false},
		{"key by", func(b *Builder, f func() error) {
			toText(KeyBy(source(b), "x", text, func(textRecord) (string, error) { return "", f() }, OnError(PolicySkip)))
		}, "x", StageProcess, false},
		{"key by, key", func(b *Builder, f func() error) {
			toText(KeyBy(source(b), "x", onAppend(f), keyOf, OnError(PolicySkip)))
		}, "x", StageEncode, false},
		{"key by, value", func(b *Builder, f func() error) {
			toText(KeyBy(source(b).WithValues(onAppend(f)), "x", text, keyOf, OnError(PolicySkip)))
		}, "x", StageEncode, false},
		{"aggregate", func(b *Builder, f func() error) {
			Aggregate(source(b), "x", serde.Int64(), func(n int64, _ textRecord) (int64, error) { return n, f() }, OnError(PolicySkip))
		}, "x", StageProcess, false},
		{"aggregate, key", func(b *Builder, f func() error) {
			Aggregate(source(b).WithKeys(onAppend(f)), "x", serde.Int64(), count, OnError(PolicySkip))
		}, "x", StageEncode, false},
		{"aggregate, value", func(b *Builder, f func() error) {
			Aggregate(source(b), "x", onAppend(f), func(string, textRecord) (string, error) { return "", nil }, OnError(PolicySkip))
		}, "x", StageEncode, false},
		{"store, key", func(b *Builder, f func() error) {
			s := KeyValue("s", onAppend(f), text)
			Process(source(b), "x", func(ctx Context, r textRecord, _ Emit[string, string]) error { return s.Put(ctx, "", "") }, WithStore(s), OnError(PolicySkip))
		}, "x", StageEncode, false},
		{"dedup, id", func(b *Builder, f func() error) {
			toText(Dedup(source(b), "x", Retention(hour), OnError(PolicySkip), ID(func(textRecord) record.ID { _ = f(); return "x" })))
		}, "x", StageID, true},
		{"dedup, payload", func(b *Builder, f func() error) {
			toText(Dedup(MapValues(source(b), keyOf).WithValues(onAppend(f)), "x", Retention(hour), OnError(PolicySkip), ComparePayload()))
		}, "x", StageEncode, false},
		{"dedup by id, key", func(b *Builder, f func() error) {
			toText(Dedup(source(b).WithKeys(onAppend(f)), "x", Retention(hour), OnError(PolicySkip), ScopeStream()))
		}, "x-by-id", StageEncode, false},
		{"to, key", func(b *Builder, f func() error) {
			To(source(b), "out", onAppend(f), text, Name("x"), OnError(PolicySkip))
		}, "x", StageEncode, false},
		{"to, value", func(b *Builder, f func() error) {
			To(source(b), "out", text, onAppend(f), Name("x"), OnError(PolicySkip))
		}, "x", StageEncode, false},
		{"to, partition", func(b *Builder, f func() error) {
			toText(source(b), Name("x"), OnError(PolicySkip), Partition(func(textRecord, int32) record.Partition { _ = f(); return 0 }))
		}, "x", StageProcess, true},
	}
	for _, tt := range tests {
		// The record fails once and would then pass: the chain must be fit for the next one.
		for _, panics := range []bool{false, true} {
			if tt.onlyPanic && !panics {
				continue
			}
			t.Run(fmt.Sprintf("%s, panic %v", tt.name, panics), func(t *testing.T) {
				bad := true
				b := New("app")
				tt.build(b, func() error {
					switch {
					case bad && panics:
						panic(errBad)
					case bad:
						return errBad
					}
					return nil
				})
				d := drive(t, b)
				oe := failure(t, d.send(in("a=1#id1")), tt.operator, tt.stage, PolicySkip)
				if !errors.Is(oe, errBad) {
					t.Errorf("the cause is lost: %v", oe)
				}
				var p *PanicError
				if errors.As(oe, &p) != panics || panics && (len(p.Stack) == 0 || len(p.Stack) > maxStack) {
					t.Errorf("panic error: %v", p)
				}
				bad = false
				d.rt.ids["x"] = nil
				if err := d.send(in("b=2#id2")); err != nil {
					t.Errorf("the next record: %v", err)
				}
			})
		}
	}
}

func TestPolicyOfTheApplication(t *testing.T) {
	b := textSource()
	toText(Filter(b.in, func(textRecord) (bool, error) { return false, errBad }))
	oe := failure(t, drive(t, b.Builder).send(text("a=1")), "filter-1", StageProcess, PolicyDefault)
	if got := oe.Error(); got != `operator "filter-1": process: bad` {
		t.Errorf("text: %s", got)
	}
}

// TestErrorsDownstreamAreTheirs says that an operator that emits does not take the blame, nor swallow it.
func TestErrorsDownstreamAreTheirs(t *testing.T) {
	b := textSource()
	calls, bad := 0, errBad
	s := FlatMap(b.in, func(r textRecord, emit Emit[string, string]) error {
		for range 3 {
			emit(r)
		}
		if bad != nil {
			return errors.New("made up after the failure")
		}
		return nil
	}, Name("many"))
	toText(Filter(s, func(textRecord) (bool, error) { calls++; return true, bad }, Name("bad")))
	d := drive(t, b.Builder)
	failure(t, d.send(text("a=1")), "bad", StageProcess, PolicyDefault)
	if calls != 1 {
		t.Errorf("the failed operator was called %d times for one record", calls)
	}
	bad = nil
	d.sendText("b=2")
	d.expect("b=2 b=2 b=2")
}

// TestPanicIsTheEmitters names the operator that goes on after emit, and not the one downstream.
func TestPanicIsTheEmitters(t *testing.T) {
	b := textSource()
	s := FlatMap(b.in, func(r textRecord, emit Emit[string, string]) error {
		emit(r)
		panic("after emit")
	}, Name("many"))
	toText(Filter(s, keyIs("a"), Name("quiet")))
	oe := failure(t, drive(t, b.Builder).send(text("a=1")), "many", StageProcess, PolicyDefault)
	if oe.Err.Error() != "panic: after emit" {
		t.Errorf("cause: %v", oe.Err)
	}
}

func TestStrayEmit(t *testing.T) {
	b := textSource()
	var kept Emit[string, string]
	toText(FlatMap(b.in, func(r textRecord, emit Emit[string, string]) error { kept = emit; return nil }))
	d := drive(t, b.Builder)
	d.sendText("a=1")
	kept(textRecord{Key: "stray"})
	d.expect("")
	if err := d.send(text("b=2")); !errors.Is(err, errStrayEmit) {
		t.Errorf("a stray emit went by: %v", err)
	}
}

// TestOurPanicsGoThrough: what is no user code's panic must stop the process.
func TestOurPanicsGoThrough(t *testing.T) {
	s := KeyValue("s", serde.String(), serde.String())
	tests := map[string]struct {
		build func(in *Stream[string, string])
		value any
	}{
		"a store's": {func(in *Stream[string, string]) {
			Process(in, "p", func(ctx Context, r textRecord, _ Emit[string, string]) error { return s.Put(ctx, "k", "v") }, WithStore(s))
		}, "index out of range"},
		"the runtime's, behind an operator that emits": {func(in *Stream[string, string]) {
			toText(FlatMap(in, func(r textRecord, emit Emit[string, string]) error { emit(r); return nil }), Name("to1"))
		}, "index out of range"},
		"an invariant": {func(in *Stream[string, string]) {
			Filter(in, func(textRecord) (bool, error) { panic(invariant.Violation("INV-2")) }, Name("f"))
		}, invariant.Violation("INV-2")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := textSource()
			tt.build(b.in)
			toText(b.in, Name("other"))
			for _, n := range b.nodes {
				if n.kind == kindFilter {
					toText(&Stream[string, string]{b: b.Builder, from: n})
				}
			}
			d := drive(t, b.Builder)
			d.rt.Store("s").(*fakeStore).panics, d.rt.badSink = true, true
			defer func() {
				if v := recover(); v != tt.value {
					t.Errorf("recovered %v, want %v", v, tt.value)
				}
			}()
			err := d.send(text("a=1"))
			t.Errorf("no panic, but %v", err)
		})
	}
}

// TestFaultsAreNotTheRecords: an error of the runtime must not be skipped under any policy.
func TestFaultsAreNotTheRecords(t *testing.T) {
	s := KeyValue("s", serde.String(), serde.Int64())
	get := func(ctx Context, _ textRecord, _ Emit[string, string]) error {
		_, _, err := s.Get(ctx, "k")
		_ = err // a function that does not care
		return nil
	}
	tests := map[string]struct {
		build func(in *Stream[string, string])
		spoil func(d *driver)
	}{
		"aggregate": {
			func(in *Stream[string, string]) { Aggregate(in, "s", serde.Int64(), count, OnError(PolicySkip)) },
			func(d *driver) { d.rt.stores["s"].err = errBad },
		},
		"process that swallows it": {
			func(in *Stream[string, string]) { Process(in, "p", get, WithStore(s), OnError(PolicySkip)) },
			func(d *driver) { d.rt.stores["s"].err = errBad },
		},
		"process that scans": {
			func(in *Stream[string, string]) {
				Process(in, "p", func(ctx Context, _ textRecord, _ Emit[string, string]) error {
					return fmt.Errorf("wrapped: %w", s.All(ctx, func(string, int64) bool { return true }))
				}, WithStore(s), OnError(PolicySkip))
			},
			func(d *driver) { d.rt.stores["s"].err = errBad },
		},
		"dedup": {
			func(in *Stream[string, string]) { toText(Dedup(in, "u", Retention(hour), OnError(PolicySkip))) },
			func(d *driver) { d.rt.ids["u"].err = errBad },
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := textSource()
			tt.build(b.in)
			d := drive(t, b.Builder)
			tt.spoil(d)
			err := d.send(text("a=1"))
			var oe *OperatorError
			if !errors.Is(err, errBad) || errors.As(err, &oe) {
				t.Errorf("error is %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), "operator") {
				t.Errorf("the operator is not named: %v", err)
			}
		})
	}
}

// TestUnreadableStateStops: bytes that the serde does not know are no fault of the record in hand either.
func TestUnreadableStateStops(t *testing.T) {
	s := KeyValue("s", serde.String(), serde.Int64())
	b := textSource()
	Process(b.in, "p", func(ctx Context, _ textRecord, _ Emit[string, string]) error {
		_, _, _ = s.Get(ctx, "k")
		return nil
	}, WithStore(s), OnError(PolicySkip))
	Aggregate(b.in, "a", serde.Int64(), count, OnError(PolicySkip))
	d := drive(t, b.Builder)
	d.rt.stores["a"].content["k"] = []byte("12345")
	failure(t, d.send(text("k=1")), "a", StageDecode, PolicyStop)
	d.rt.stores["s"].content["k"] = []byte("12345")
	failure(t, d.send(text("k=1")), "p", StageDecode, PolicyStop)
}

func TestGoexitIsNotSwallowed(t *testing.T) {
	b := textSource()
	toText(Filter(b.in, func(textRecord) (bool, error) { runtime.Goexit(); return true, nil }))
	d := drive(t, b.Builder)
	done := make(chan bool)
	go func() {
		defer close(done)
		_ = d.send(text("a=1"))
		t.Error("the goroutine went on")
	}()
	<-done
}

func TestWithPolicy(t *testing.T) {
	fails := func(textRecord) (bool, error) { return false, errBad }
	b := textSource()
	strict := b.in.WithPolicy(PolicySkip)
	toText(Branch(strict, "branch", fails)[0])
	toText(Filter(Filter(strict, keyIs("z")), fails, Name("behind")), Name("to2"))
	toText(Filter(strict, fails, Name("own"), OnError(PolicyStop)), Name("to3"))
	d := drive(t, b.Builder)
	failure(t, d.send(text("a=1")), "branch", StageProcess, PolicySkip)
	var got []string
	for _, o := range d.topo.Operators() {
		got = append(got, fmt.Sprint(o.Name, o.Policy))
	}
	// The policy does not reach beyond the next operator, and is not stronger than its own.
	if s := strings.Join(got, " "); s != "in0 branch3 to-out0 filter-13 behind0 to20 own1 to30" {
		t.Error(s)
	}
}
