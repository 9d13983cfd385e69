package processor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/topology"
)

// makeOne makes one call as an App does, on the clock of a bubble, and returns what was said of it and how long that took.
func makeOne(t *testing.T, spec topology.EffectSpec, attempt func(ctx context.Context, n int) ([]byte, error), stop time.Duration) (said []topology.Outcome, took time.Duration) {
	t.Helper()
	m, err := metric.New(nil, "app")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		e := &engine{now: time.Now, sleep: sleep, limit: limitCall, metrics: m, point: func(string) {}, log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if stop > 0 {
			time.AfterFunc(stop, cancel)
		}
		begun := time.Now()
		var mu sync.Mutex // guards said
		c := &callers{}
		spec.Name = "charge"
		c.group(ctx).run(func(ctx context.Context) {
			e.makeCall(ctx, topology.EffectCall{EffectSpec: spec, Seq: 7, Attempt: attempt}, func(o topology.Outcome) {
				mu.Lock()
				defer mu.Unlock()
				said = append(said, o)
				took = time.Since(begun)
			})
		})
		c.running.Wait()
	})
	for _, o := range said {
		if o.Seq != 7 {
			t.Errorf("outcome of call %d", o.Seq)
		}
	}
	return said, took
}

func TestMakeCall(t *testing.T) {
	broken := errors.New("broken")
	spec := topology.EffectSpec{Timeout: time.Second, Retries: 3, Backoff: 100 * time.Millisecond}
	endless := spec
	endless.Retries = -1
	obey := func(ctx context.Context) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() }
	for _, c := range []struct {
		name    string
		spec    topology.EffectSpec
		attempt func(ctx context.Context, n int) ([]byte, error)
		stop    time.Duration
		want    []topology.Outcome // of errors only that there is one
		is      error
		words   string
		took    time.Duration
	}{
		{name: "at once", spec: spec, attempt: func(context.Context, int) ([]byte, error) { return []byte("ok"), nil }, want: []topology.Outcome{{Value: []byte("ok")}}},
		{
			name: "the third time", spec: spec,
			attempt: func(_ context.Context, n int) ([]byte, error) {
				if n < 3 {
					return nil, broken
				}
				return []byte("ok"), nil
			}, want: []topology.Outcome{{Value: []byte("ok")}}, took: 300 * time.Millisecond,
		},
		{
			name: "never", spec: spec, attempt: func(context.Context, int) ([]byte, error) { return nil, broken },
			want: []topology.Outcome{{Err: broken}}, is: broken, words: "after 4 attempts: broken", took: 700 * time.Millisecond,
		},
		{
			name: "permanent", spec: endless, attempt: func(context.Context, int) ([]byte, error) { return nil, topology.Permanent(broken) },
			want: []topology.Outcome{{Err: broken}}, is: broken, words: "broken",
		},
		{
			name: "too slow", spec: spec, attempt: func(ctx context.Context, _ int) ([]byte, error) { return obey(ctx) },
			want: []topology.Outcome{{Err: broken}}, is: topology.ErrCallTimeout, words: "after 4 attempts", took: 4*time.Second + 700*time.Millisecond,
		},
		{
			name: "too slow, but in the end", spec: spec,
			attempt: func(ctx context.Context, _ int) ([]byte, error) { _, _ = obey(ctx); return []byte("ok"), nil },
			want:    []topology.Outcome{{Value: []byte("ok")}}, took: time.Second,
		},
		{
			name: "without end, until the task is closed", spec: endless, attempt: func(context.Context, int) ([]byte, error) { return nil, broken },
			stop: time.Hour,
		},
		{
			name: "the task is closed meanwhile", spec: spec, attempt: func(ctx context.Context, _ int) ([]byte, error) { return obey(ctx) },
			stop: 100 * time.Millisecond,
		},
		{
			name: "hangs, and returns much later", spec: spec, attempt: func(context.Context, int) ([]byte, error) { time.Sleep(time.Minute); return []byte("ok"), nil },
			want: []topology.Outcome{{Hangs: true, Err: broken}, {Returned: true}}, is: topology.ErrCallHangs, took: time.Minute,
		},
		{
			name: "ends its goroutine", spec: spec, attempt: func(context.Context, int) ([]byte, error) { runtime.Goexit(); return nil, nil },
			want: []topology.Outcome{{Err: broken}}, is: errGoexit,
		},
		{
			name: "hangs, and ends its goroutine", spec: spec, attempt: func(context.Context, int) ([]byte, error) { time.Sleep(time.Minute); runtime.Goexit(); return nil, nil },
			want: []topology.Outcome{{Hangs: true, Err: broken}, {Returned: true}}, is: topology.ErrCallHangs, took: time.Minute,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			said, took := makeOne(t, c.spec, c.attempt, c.stop)
			if !slices.EqualFunc(said, c.want, func(a, b topology.Outcome) bool {
				return string(a.Value) == string(b.Value) && (a.Err != nil) == (b.Err != nil) && a.Hangs == b.Hangs && a.Returned == b.Returned
			}) {
				t.Fatalf("said %+v, want %+v", said, c.want)
			}
			if took != c.took {
				t.Errorf("after %v, want %v", took, c.took)
			}
			if c.is == nil {
				return
			}
			if err := said[0].Err; !errors.Is(err, c.is) || !strings.Contains(fmt.Sprint(err), c.words) {
				t.Errorf("error %v, want %v", err, c.is)
			}
		})
	}
}

// TestCallersAreLeftBehind: a function that does not return holds the end of the application up for a moment only.
func TestCallersAreLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &callers{}
		g := c.group(context.Background())
		release := make(chan struct{})
		g.run(func(context.Context) { <-release })
		g.end()
		begun := time.Now()
		if c.wait() || time.Since(begun) != hangGrace {
			t.Errorf("waited %v", time.Since(begun))
		}
		close(release)
		if !c.wait() {
			t.Error("it has returned")
		}
	})
}

// TestCallBackoff: the wait grows to its bound and stays there, whatever it began with.
func TestCallBackoff(t *testing.T) {
	for _, first := range []time.Duration{time.Microsecond, 100 * time.Millisecond, 10 * time.Second, time.Hour} {
		before := time.Duration(0)
		for n := 1; n < 100; n++ {
			d := callBackoff(first, n)
			if d < before || d > longestBackoff || d < min(first, longestBackoff) {
				t.Fatalf("%v, attempt %d: %v after %v", first, n, d, before)
			}
			before = d
		}
		if before != longestBackoff {
			t.Errorf("%v: the longest wait is %v", first, before)
		}
	}
}
