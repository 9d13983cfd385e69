package topology

import (
	"slices"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/window"
)

// Moment is what the two clocks of a task show. Both come in as parameters: nothing in a chain reads a clock.
type Moment struct {
	// Watermark is how far event time has come: records below it are late. window.NoTime: nothing is known yet.
	// It never goes back but by Timed.Reset.
	Watermark window.Millis
	// Wall is the host's clock.
	Wall time.Time
}

// Timed is an operator that acts when time passes, and not only when a record comes: windows that close, timers,
// punctuators, the unmatched half of a join. Chain.Timed lists those of a chain.
//
// The task moves their clocks before it hands a record to the chain, and while there is none (see processor.Task): each one, in
// the order of the chain, gets the new moment by Advance and then does all that is due, by Fire, before the next one
// hears of it. So what an operator makes of closed windows reaches the operators behind it before the watermark does.
//
// Each Fire is a unit as a record is one: its effects go into the task's transaction, and if it fails nothing of it
// remains. What is due must follow from the state stores alone, so that it is found again after a crash; what an
// operator keeps in memory is only a memory of them, and Reset voids it. Outputs have IDs by record.TimerRoot.
type Timed interface {
	// Advance moves the operator's clocks and says whether anything may be due: cheap, asked for nearly every
	// record. It may be wrong in saying that something is.
	Advance(m Moment) (due bool)
	// Fire does one piece of what is due; false: nothing was left to do. A piece whose Fire failed is the one that the next
	// call does. With quiet it changes the state as always, but hands nothing on: this is how a piece that cannot
	// be handled is skipped. Errors are those of Chain.Sources.
	Fire(quiet bool) (did bool, err error)
	// Pending is the piece of the last Fire, for a dead letter if it failed.
	Pending() Piece
	// Reset puts the clocks to a moment that may lie before the last one. The state has gone back to
	// what was committed, or to what it was before the last Fire: that did its piece, but an output was refused.
	Reset(m Moment)
}

// Piece says what a Timed has done, or failed to do.
type Piece struct {
	What       string // for people: "timer", "call 3f2a..."
	Key, Value []byte // as they stand in the state
	// Of what was a record once: its headers and its time. Zero: it has none.
	Headers   record.Headers
	Timestamp time.Time
}

// timedEntry is a Timed with its place in the order of declaration, which is a topological one.
type timedEntry struct {
	index int
	timed Timed
}

// addTimed makes an operator known to the task.
func (c *instance) addTimed(n *node, t Timed) {
	c.timed = append(c.timed, timedEntry{n.index, t})
}

// timedInOrder lists them so that each stands before those that get its outputs.
func (c *instance) timedInOrder() []Timed {
	slices.SortStableFunc(c.timed, func(a, b timedEntry) int { return a.index - b.index })
	var all []Timed
	for _, e := range c.timed {
		all = append(all, e.timed)
	}
	return all
}

// timerIdentity is the identity of the ordinal-th record that an operator makes at a time for a key.
func (c *instance) timerIdentity(op *operator, key []byte, timer string, at time.Time, ordinal uint32) record.Identity {
	return c.timerRoot(key, timer, at, nil).Child(op.hash, ordinal)
}

// timerRoot is the identity of what happens at a time for a key; more is what else it depends on.
func (c *instance) timerRoot(key []byte, timer string, at time.Time, more []byte) record.Identity {
	b := c.roomForID(len(key) + len(timer) + len(more) + 32)
	return c.keepID(append(record.TimerRoot(b, key, timer, at), more...))
}

// roomForID returns an empty slice with room for an ID that stays valid: see keepID.
func (c *instance) roomForID(n int) []byte {
	if cap(c.ids)-len(c.ids) < n {
		c.ids = make([]byte, 0, max(n, idsChunk)) // what was handed out keeps the old room alive
	}
	return c.ids[len(c.ids):len(c.ids):cap(c.ids)]
}

// keepID makes a root of what was appended to a roomForID.
func (c *instance) keepID(b []byte) record.Identity {
	c.ids = c.ids[:len(c.ids)+len(b)]
	return record.RootIdentity(aliasID(b[:len(b):len(b)]))
}
