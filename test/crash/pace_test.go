package crash

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// What takes longer than the bound is an error; the load of the machine stretches the bound, and never shrinks it.
func TestTheBoundHolds(t *testing.T) {
	if _, err := Within(t.Context(), 0, time.Minute, func(context.Context) error {
		time.Sleep(time.Millisecond)
		return nil
	}); err == nil || !strings.Contains(err.Error(), "C9") {
		t.Errorf("too late: %v", err)
	}
	if _, err := Within(t.Context(), time.Hour, time.Minute, func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	broken := errors.New("broken")
	if _, err := Within(t.Context(), 0, time.Minute, func(context.Context) error { return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	// At the limit it is given up.
	if _, err := Within(t.Context(), time.Hour, time.Millisecond, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	for _, c := range []struct {
		load float64
		want time.Duration
	}{{0.1, time.Second}, {1, time.Second}, {2.5, 2500 * time.Millisecond}} {
		p := &Pace{load: func() float64 { return c.load }, stop: make(chan struct{}), done: make(chan struct{})}
		close(p.done)
		if got := p.Bound(time.Second); got != c.want {
			t.Errorf("at load %v: %v, want %v", c.load, got, c.want)
		}
	}
}
