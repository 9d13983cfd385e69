package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrTap: a tap cannot be opened as it is asked for.
var ErrTap = errors.New("processor: tap")

// Tap calls fn for records that reach a step of this process, until ctx ends (nil) or fn returns an error, which comes back. It shows
// payloads: who may see them is the caller's matter.
//
// It holds up nobody: at most TapConfig.Rate records a second are copied, 128 wait for fn, and what is more is counted in Tapped.Missed. As long as
// nobody taps, a record costs one atomic load. What a window or a timer makes later is not shown, nor are sinks outside of Kafka.
//
// ErrTap: there is no such step, a number is out of range, or four taps are open already.
func (a *App) Tap(ctx context.Context, c TapConfig, fn func(*Tapped) error) error {
	if c.Rate == 0 {
		c.Rate = defaultRate
	}
	if c.Rate < 1 || c.Rate > maxTapRate {
		return fmt.Errorf("%w: a rate of %d, want 1 to %d records a second", ErrTap, c.Rate, maxTapRate)
	}
	if c.Every < 0 {
		return fmt.Errorf("%w: every %d. record, want 1 or more", ErrTap, c.Every)
	}
	if steps := a.tapSteps(); !slices.Contains(steps, c.Step) {
		return fmt.Errorf("%w: no step is called %q; there are: %s", ErrTap, c.Step, strings.Join(steps, ", "))
	}
	x := &tap{TapConfig: c, out: make(chan Tapped, tapQueue)}
	if c.ID != "" {
		x.hash = c.ID.Hash()
	}
	if err := a.cfg.taps.add(x); err != nil {
		return fmt.Errorf("%w: %w", ErrTap, err)
	}
	defer a.cfg.taps.remove(x)
	if c.Opened != nil {
		if err := c.Opened(); err != nil {
			return err
		}
	}
	for {
		var quiet <-chan time.Time
		if c.Quiet > 0 {
			quiet = time.After(c.Quiet)
		}
		var err error
		select {
		case <-ctx.Done():
			return nil
		case s := <-x.out:
			err = fn(&s)
		case <-quiet:
			err = fn(&Tapped{Missed: x.takeMissed()})
		}
		if err != nil {
			return err
		}
	}
}

// tapSteps are the steps that records pass in a chain.
func (a *App) tapSteps() []string {
	var out []string
	for _, s := range a.topo.Subtopologies() {
		if s.External != nil {
			continue
		}
		for _, o := range s.Operators {
			out = append(out, o.Name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
