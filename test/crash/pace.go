package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
)

// HealLimit is C9: how long after the last fault everything may take until it is through. It is what the brokers wait for,
// the session and the transaction timeout, and 10 s. A machine that has n times the work that it has cores for takes n
// times as long, so that the bound grows by the load that [Pace] has seen; on an idle one it is as it stands here.
const HealLimit = SessionTimeout + TransactionTimeout + 10*time.Second

// Pace follows how much work the machine has while something is waited for.
type Pace struct {
	load func() float64
	most float64
	stop chan struct{}
	done chan struct{}
}

// NewPace begins to look at the load. End it with Bound.
func NewPace() *Pace {
	p := &Pace{load: loadPerCore, stop: make(chan struct{}), done: make(chan struct{})}
	p.most = p.load()
	go func() {
		defer close(p.done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-p.stop:
				return
			case <-tick.C:
				p.most = max(p.most, p.load())
			}
		}
	}()
	return p
}

// Bound ends it, and returns what has become of a bound for an idle machine.
func (p *Pace) Bound(idle time.Duration) time.Duration {
	close(p.stop)
	<-p.done
	return time.Duration(float64(idle) * max(1, max(p.most, p.load())))
}

// ErrLate: what was waited for came, but not within its bound.
var ErrLate = errors.New("crash: C9: too late")

// Within does something that must be done within a bound of an idle machine, and says how long it took. A machine with
// much other work gets more time, but never more than the limit, at which do is given up.
func Within(ctx context.Context, idle, limit time.Duration, do func(ctx context.Context) error) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	pace, begin := NewPace(), time.Now()
	err = do(ctx)
	took = time.Since(begin)
	if bound := pace.Bound(idle); err == nil && took > bound {
		err = fmt.Errorf("%w: all was through %v after the last fault; the bound is %v, for the load of this machine %v", ErrLate, took, idle, bound)
	}
	return took, err
}

// loadPerCore is the number of threads that want to run, per core, over the last minute. A system that does not tell counts
// as a busy one.
func loadPerCore() float64 {
	const unknown = 8
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return unknown
	}
	var load float64
	if _, err := fmt.Sscan(string(data), &load); err != nil {
		return unknown
	}
	return load / float64(runtime.NumCPU())
}
