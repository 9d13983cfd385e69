package sinktest

import (
	"context"
	"errors"
	"sync"

	"github.com/streamd/streamd/sink"
)

// decided is where the decisions of a partition stand, as the consumer group does in truth: one offset with its metadata, and one owner who may set it.
type decided struct {
	mu     sync.Mutex // guards all below
	owners int        // the last one is the owner
	last   sink.Decision
	byHand bool // the offset is no decision
}

func (s *suite) decisions(p sink.Partition) *decided {
	if s.decided[p] == nil {
		s.decided[p] = &decided{}
	}
	return s.decided[p]
}

// owner makes a new owner, and shuts out the one before.
func (d *decided) owner() *owner {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.owners++
	return &owner{d: d, number: d.owners}
}

// owner is sink.Decisions of one claim.
type owner struct {
	d      *decided
	number int
	// before and after are called around each decision that is not a claim's; an error of before leaves it unmade, one of after is an answer that was lost.
	before, after func() error
	// read is called between the last decision and what the claim makes of it.
	read func()
}

// Last implements sink.Decisions.
func (o *owner) Last(context.Context) (sink.Decision, bool, error) {
	o.d.mu.Lock()
	last, ours := o.d.last, !o.d.byHand
	o.d.mu.Unlock()
	if o.read != nil {
		o.read()
	}
	return last, ours, nil
}

// Decide implements sink.Decisions.
func (o *owner) Decide(_ context.Context, x sink.Decision) error {
	o.d.mu.Lock()
	claim := x == o.d.last
	o.d.mu.Unlock()
	if o.before != nil && !claim {
		if err := o.before(); err != nil {
			return err
		}
	}
	o.d.mu.Lock()
	if o.number != o.d.owners {
		o.d.mu.Unlock()
		return &sink.UndecidedError{Err: sink.ErrFenced}
	}
	o.d.last, o.d.byHand = x, false
	o.d.mu.Unlock()
	if o.after != nil && !claim {
		return o.after()
	}
	return nil
}

// errGone is what a process sees of a coordinator that does not answer, shortly before it dies.
var errGone = errors.New("sinktest: no answer to a decision")
