package processor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/topology"
)

// This file makes the calls of effects (docs/adr/0014): beside the workers, each in a goroutine of its own. How many there are at a time is
// the task's decision (Task.NextCall). An outcome comes back to the worker as a record does, by a queue that wakes it.

const (
	// longestBackoff bounds the wait between two attempts.
	longestBackoff = 30 * time.Second
	// hangGrace is how long after the end of its context a function may take to return before it is given up.
	hangGrace = time.Second
	// drainPace is the wait between two looks for outcomes while a task is about to be closed.
	drainPace = 2 * time.Millisecond
	// drainRevoked bounds the wait for calls under way when a task is given to another member: what takes longer is called again by that.
	drainRevoked = time.Second
)

// errGoexit: as testing.T.FailNow does it.
var errGoexit = errors.New("processor: the function has ended its goroutine")

// besides runs things beside the workers, until its end: then their contexts end, and what they say is of no interest any more.
type besides struct {
	run func(func(ctx context.Context))
	end func()
}

// called is the outcome of a call on its way to the task.
type called struct {
	task     *Task // the very one that it was made for: another one has looked for its calls itself
	operator string
	outcome  topology.Outcome
}

// beginCalls has all calls made that are to be made now.
func (w *worker) beginCalls() error {
	for _, r := range w.runs {
		if r.state != TaskRunning {
			continue
		}
		begun := false
		for {
			c, ok, err := r.task.NextCall()
			if err != nil {
				return fmt.Errorf("processor: task %s: %w", r.name, err)
			}
			if !ok {
				break
			}
			begun = true
			task := r.task
			done := func(o topology.Outcome) { w.bring(called{task, c.Name, o}) }
			r.calls.run(func(ctx context.Context) { w.makeCall(ctx, c, done) })
		}
		if begun {
			w.publish(r)
		}
	}
	return nil
}

// bring takes an outcome from whichever goroutine and wakes the worker.
func (w *worker) bring(c called) {
	w.mu.Lock()
	w.outcomes = append(w.outcomes, c)
	w.mu.Unlock()
	w.reader.Wake()
}

// takeOutcomes hands what has come to the tasks. One of a task that was closed or made anew since is dropped: whoever has the task now calls again.
func (w *worker) takeOutcomes() {
	w.mu.Lock()
	all := w.outcomes
	w.outcomes = nil
	w.mu.Unlock()
	for _, c := range all {
		for _, r := range w.runs {
			if r.task == c.task {
				r.task.AddOutcome(c.operator, c.outcome)
			}
		}
	}
}

// drain lets the calls of tasks that are about to be closed end, for at most so long, and hands their outcomes on. No new one begins.
func (w *worker) drain(ctx context.Context, which func(*taskRun) bool, most time.Duration) error {
	until := w.now().Add(most)
	for {
		w.takeOutcomes()
		under := 0
		for _, r := range w.runs {
			if r.state != TaskRunning || !which(r) {
				continue
			}
			now := w.now()
			n, err := r.task.takeOutcomes(now)
			w.note(r, n, now)
			if err != nil {
				w.stats.recordError(r.name, r.task.errors)
				return err
			}
			under += n + r.task.calling()
		}
		if under == 0 || !w.now().Before(until) || w.sleep(ctx, drainPace) != nil {
			return nil
		}
	}
}

// verdict is what is said of one attempt: by its end, or by who gives it up, whichever comes first.
type verdict struct {
	mu    sync.Mutex // guards given; held while it is said, so that what is said later comes later
	given bool
}

// give says it, if nothing was said before.
func (v *verdict) give(say func()) (first bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.given {
		return false
	}
	v.given = true
	say()
	return true
}

// makeCall makes a call until it succeeds, or until there is nothing left to try, and says what came of it. Once ctx has ended nobody wants to
// know.
func (e *engine) makeCall(ctx context.Context, c topology.EffectCall, done func(topology.Outcome)) {
	say := func(o topology.Outcome) {
		o.Seq = c.Seq
		done(o)
	}
	v := &verdict{}
	ended := false
	defer func() {
		if !ended && ctx.Err() == nil && !v.give(func() { say(topology.Outcome{Err: errGoexit}) }) {
			say(topology.Outcome{Returned: true})
		}
	}()
	for n := 1; !ended; n++ {
		v = &verdict{} // an earlier one may still be given up late
		ended = e.attempt(ctx, c, n, v, say) || e.sleep(ctx, callBackoff(c.Backoff, n)) != nil
	}
}

// callBackoff is the wait behind attempt n: it doubles, up to the longest.
func callBackoff(first time.Duration, n int) time.Duration {
	// What is shifted is bounded first: a wait of many seconds would overflow, and then there was none.
	return min(longestBackoff, min(longestBackoff, first)<<min(n-1, 25))
}

// attempt makes one attempt. ended: it was the last one, and its outcome was said.
func (e *engine) attempt(ctx context.Context, c topology.EffectCall, n int, v *verdict, say func(topology.Outcome)) (ended bool) {
	limited, end := e.limit(ctx, c.Timeout, func() {
		v.give(func() {
			say(topology.Outcome{Hangs: true, Err: fmt.Errorf("%w (attempt %d, after %v)", topology.ErrCallHangs, n, c.Timeout)})
		})
	})
	defer end()
	start := e.now()
	e.point("effect.call")
	value, err := c.Attempt(limited, n)
	e.point("effect.called")
	if err != nil && ctx.Err() == nil && errors.Is(limited.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("%w (%v): %w", topology.ErrCallTimeout, c.Timeout, err)
	}
	e.metrics.Called(c.Name, attemptResult(err), e.now().Sub(start))
	last := err == nil || topology.IsPermanent(err) || c.Retries >= 0 && n > c.Retries
	if err != nil && n > 1 {
		err = fmt.Errorf("after %d attempts: %w", n, err)
	}
	inTime := v.give(func() {
		if last && ctx.Err() == nil { // else the error may be that alone
			say(topology.Outcome{Value: value, Err: err})
		}
	})
	switch {
	case !inTime:
		say(topology.Outcome{Returned: true})
		return true
	case last || ctx.Err() != nil:
		return true
	}
	e.log.Debug("a call has failed; it is tried again", "operator", c.Name, "call", c.IdempotencyKey, "attempt", n, "err", err)
	return false
}

func attemptResult(err error) metric.CallResult {
	var crash *topology.PanicError
	switch {
	case err == nil:
		return metric.CallOK
	case errors.Is(err, topology.ErrCallTimeout):
		return metric.CallTimeout
	case errors.As(err, &crash):
		return metric.CallPanic
	}
	return metric.CallError
}

// limitCall is engine.limit of an App: by the clock.
func limitCall(ctx context.Context, timeout time.Duration, giveUp func()) (limited context.Context, end func()) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	late := time.AfterFunc(timeout+hangGrace, giveUp)
	return limited, func() {
		late.Stop()
		cancel()
	}
}

// callers are the goroutines of an App that make calls.
type callers struct{ running sync.WaitGroup }

// group begins a group of calls that ends with ctx or by itself.
func (c *callers) group(ctx context.Context) besides {
	ctx, cancel := context.WithCancel(ctx)
	return besides{
		run: func(f func(context.Context)) { c.running.Go(func() { f(ctx) }) },
		end: cancel,
	}
}

// wait waits until all have ended, which their contexts have. Functions that do not return are not waited for, false.
func (c *callers) wait() bool {
	ended := make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Go(func() {
		c.running.Wait()
		close(ended)
	})
	late := time.NewTimer(hangGrace)
	defer late.Stop()
	select {
	case <-ended:
		return true
	case <-late.C:
		return false
	}
}
