package topology

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/window"
)

func TestIntentBytes(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_123).UTC()
	for _, in := range []intent{
		{id: []byte("x"), at: at},
		{id: []byte("x"), key: []byte{}, request: []byte{}, at: at},
		{id: []byte("x"), key: []byte("ann"), request: []byte("five"), at: time.UnixMilli(-1).UTC(), headers: record.Headers{{Key: "a", Value: []byte("1")}, {Key: "", Value: nil}, {Key: "a", Value: []byte{}}}},
		{id: []byte(strings.Repeat("x", 5000)), key: nil, request: []byte(strings.Repeat("y", 300))},
	} {
		b := in.append(nil)
		got, err := decodeIntent(b)
		if err != nil || !reflect.DeepEqual(*got, in) {
			t.Errorf("%+v became %+v, %v", in, got, err)
		}
		for n := range b {
			if cut, err := decodeIntent(b[:n:n]); err == nil && len(cut.headers) == len(in.headers) {
				t.Errorf("%d bytes of %d were read", n, len(b))
			}
		}
	}
	for _, b := range [][]byte{nil, {2}, append(make([]byte, 9), 1, 0, 0), append([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0}, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1)} {
		if _, err := decodeIntent(b); !errors.Is(err, errIntent) {
			t.Errorf("%x: %v", b, err)
		}
	}
}

func FuzzIntent(f *testing.F) {
	in := intent{id: []byte("x"), key: []byte("k"), request: []byte("v"), headers: record.Headers{{Key: "a", Value: []byte("1")}}}
	f.Add(in.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		in, err := decodeIntent(b)
		if err != nil {
			return
		}
		again, err := decodeIntent(in.append(nil))
		if err != nil || !reflect.DeepEqual(in, again) {
			t.Errorf("%+v became %+v, %v", in, again, err)
		}
	})
}

// echo is a function for an effect.
func echo(_ context.Context, c Call[string, string]) (string, error) { return c.Request + "!", nil }

func TestEffectRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		opts []EffectOption
		want string
	}{
		"places":    {[]EffectOption{Concurrency(0)}, "Concurrency is 0"},
		"backlog":   {[]EffectOption{Backlog(-1)}, "Backlog is -1"},
		"timeout":   {[]EffectOption{Timeout(0)}, "Timeout is 0s"},
		"backoff":   {[]EffectOption{Retries(1, -time.Second)}, "backoff of Retries is -1s"},
		"uncertain": {[]EffectOption{OnUncertain(7)}, "Retry or Fail"},
	} {
		b := New("app")
		in := From(b, "in", serde.String(), serde.String())
		To(Effect(in, "charge", serde.String(), serde.String(), echo, c.opts...), "out", serde.String(), serde.String())
		if _, err := b.Build(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := New("app")
	in := From(b, "in", serde.String(), serde.String())
	Effect(in, "a", nil, serde.String(), echo)
	Effect[string, string, string](in, "b", serde.String(), serde.String(), nil)
	Effect(in, "", serde.String(), serde.String(), echo)
	_, err := b.Build()
	for _, want := range []string{"serde of the requests", "the function is nil", "has no name"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no word of %q: %v", want, err)
		}
	}
}

// TestEffectIsExplained: what the other system gets is one of the outputs, and does not lower the others.
func TestEffectIsExplained(t *testing.T) {
	for _, c := range []struct {
		opts []EffectOption
		want Level
		why  []string
	}{
		{nil, AtLeastOnce, []string{"at least once"}},
		{[]EffectOption{Idempotent()}, ExactlyOnce, nil},
		{[]EffectOption{OnUncertain(Fail), Retries(0, 0)}, AtMostOnce, []string{"made or not"}},
		{[]EffectOption{OnUncertain(Fail)}, NoGuarantee, []string{"at least once", "made or not"}},
		{[]EffectOption{OnUncertain(Fail), Idempotent()}, AtMostOnce, []string{"made or not"}},
	} {
		b := New("app")
		in := From(b, "in", serde.String(), serde.String())
		To(Effect(in, "charge", serde.String(), serde.String(), echo, c.opts...), "out", serde.String(), serde.String())
		topo, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		e := topo.Explain()
		got := map[string]Level{}
		for _, o := range e.Outputs {
			got[o.Operator+" "+o.Class] = o.Level
		}
		if want := map[string]Level{"charge call": c.want, "to-out topic": ExactlyOnce}; !reflect.DeepEqual(got, want) || e.Level != c.want {
			t.Errorf("%v, as a whole %s, want %v", got, e.Level, want)
		}
		if len(e.Lowered) != len(c.why) {
			t.Errorf("lowered by %v, want %v", e.Lowered, c.why)
			continue
		}
		for i, f := range e.Lowered {
			if f.Operator != "charge" || !strings.Contains(f.What, c.why[i]) || f.Remedy == "" {
				t.Errorf("lowered by %+v, want %q", f, c.why[i])
			}
		}
	}
}

// TestEffectTime: an outcome has its record's time, or that of the watermark if that has passed: it is never late. Key, headers and null values come
// through; its ID is the key of the call.
func TestEffectTime(t *testing.T) {
	var called Call[string, string]
	b := New("app")
	in := From(b, "in", serde.String(), serde.String(), IDHeader("id"))
	To(Effect(in, "charge", serde.String(), serde.String(), func(ctx context.Context, c Call[string, string]) (string, error) {
		called = c
		return echo(ctx, c)
	}), "out", serde.String(), serde.String())
	d := drive(t, b)
	q := d.chain.Calls[0]
	for i, watermark := range []window.Millis{window.NoTime, 1_000, 9_000} {
		d.rt.out = nil
		r := at(5, "ann=5")
		r.Headers = record.Headers{{Key: "id", Value: []byte{'x', byte('0' + i)}}}
		if err := d.send(r); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := q.Next(); ok || err != nil {
			t.Fatalf("a call that is not committed: %v, %v", ok, err)
		}
		if err := q.Committed(); err != nil {
			t.Fatal(err)
		}
		c, ok, err := q.Next()
		if !ok || err != nil {
			t.Fatalf("no call: %v", err)
		}
		v, err := c.Attempt(context.Background(), 1)
		if err != nil {
			t.Fatal(err)
		}
		q.Done(Outcome{Seq: c.Seq, Value: v})
		q.Advance(Moment{Watermark: watermark})
		if did, err := q.Fire(false); !did || err != nil {
			t.Fatalf("%v, %v", did, err)
		}
		if err := q.Committed(); err != nil {
			t.Fatal(err)
		}
		want := max(window.Millis(5_000), watermark).Time()
		out := d.rt.out[0]
		id, _ := out.Headers.Get("record-id")
		if !out.Timestamp.Equal(want) || string(out.Key) != "ann" || !strings.HasSuffix(string(out.Value), "!") || string(id) != called.IdempotencyKey || called.IdempotencyKey != c.IdempotencyKey {
			t.Errorf("out %+v, want the time %v and the ID %s", out, want, called.IdempotencyKey)
		}
	}
	if s := q.Stats(); s != (EffectStats{}) {
		t.Errorf("left: %+v", s)
	}
}
