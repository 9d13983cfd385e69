package processor

import (
	"time"

	"github.com/streamd/streamd/topology"
)

// This file is the task's side of effects (docs/adr/0014): which calls are to be made, and what came of them. The task makes none: the
// worker takes them from NextCall, has them made beside it, and brings their outcomes back by AddOutcome. They are
// handed on by Process, as what is due by time is.

// openCalls looks for calls that the committed state has. The clocks are set.
func (t *Task) openCalls() error {
	for _, x := range t.chain.Calls {
		if err := x.Open(); err != nil {
			return err
		}
	}
	return nil
}

// committedCalls lets the calls of the committed transaction be made.
func (t *Task) committedCalls() error {
	for _, x := range t.chain.Calls {
		if err := x.Committed(); err != nil {
			return err
		}
	}
	return nil
}

// NextCall is a call that is to be made now, false if there is none. It names only calls whose intents are committed.
func (t *Task) NextCall() (topology.EffectCall, bool, error) {
	for _, x := range t.chain.Calls {
		if c, ok, err := x.Next(); ok || err != nil {
			return c, ok, err
		}
	}
	return topology.EffectCall{}, false, nil
}

// AddOutcome takes what came of a call of an operator.
func (t *Task) AddOutcome(operator string, o topology.Outcome) {
	for _, x := range t.chain.Calls {
		if x.Spec().Name == operator {
			x.Done(o)
		}
	}
}

// callsDue says whether an outcome is there that is not handed on.
func (t *Task) callsDue() bool {
	for _, x := range t.chain.Calls {
		if x.Due() {
			return true
		}
	}
	return false
}

// held says whether no record may be processed, since calls wait for their turn up to a backlog.
func (t *Task) held() bool {
	for _, x := range t.chain.Calls {
		if x.Full() {
			return true
		}
	}
	return false
}

// calling is the number of calls that are under way, but for those that were given up.
func (t *Task) calling() (n int) {
	for _, x := range t.chain.Calls {
		n += x.Stats().Running
	}
	return n
}

// takeOutcomes hands on what has come, without a record: for a task that is about to be closed. It returns how much it did.
func (t *Task) takeOutcomes(now time.Time) (int, error) {
	if !t.callsDue() {
		return 0, nil
	}
	return t.fire(now, quantum)
}
