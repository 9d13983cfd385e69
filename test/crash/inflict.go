package crash

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/streamd/streamd/internal/fault"
)

// reachLimit is how long a point may take to be reached, before the fault comes from outside instead.
const reachLimit = 4 * time.Second

// Inflict carries out one fault: when it returns, it has happened and the host lives again, though it may not have
// recovered yet. It returns how many processes were killed.
func (m *Campaign) Inflict(f Fault) (kills int, err error) {
	m.config.Log("%s", f)
	h := m.Hosts[f.Host]
	if f.Pause > 0 {
		if err := m.pause(h, f); err != nil || f.Again == "" {
			return 0, err
		}
		return m.again(h, f)
	}
	if err := m.kill(h, f); err != nil {
		return 0, err
	}
	kills++
	if f.Dir != "" {
		switch err := m.damage(h, f.Dir); {
		case errors.Is(err, ErrNoFilter), errors.Is(err, ErrNoFile):
		case err != nil:
			return kills, err
		default:
			m.Counts["directory "+string(f.Dir)]++
		}
	}
	if err := m.wait(f.Away); err != nil {
		return kills, err
	}
	witness := m.Hosts[f.Witness]
	if f.Again != "" {
		witness.Table.Arm(f.Again, f.AgainN, fault.Kill)
	}
	if err := h.Start(); err != nil {
		return kills, err
	}
	if f.Again == "" {
		return kills, nil
	}
	more, err := m.again(witness, f)
	return kills + more, err
}

// again waits for the second fault, for which the host is armed, and starts the host once more.
func (m *Campaign) again(h *Host, f Fault) (kills int, err error) {
	dead, err := h.AwaitDeath(m.ctx, reachLimit)
	h.Table.Disarm(f.Again)
	if err != nil {
		return 0, err
	}
	if !dead { // nothing to restore, nothing to give up
		m.Counts[missedCount(f.Again)]++
		return 0, nil
	}
	m.Counts["again at "+f.Again]++
	return 1, h.Start()
}

// missedCount is what a fault is counted as whose second point was not reached.
func missedCount(point string) string { return "recovery without " + point }

// endTxnCount is what a kill is counted as that came when EndTxn was sent: the outcome was unknown to the process.
func endTxnCount(handled bool) string { return fmt.Sprintf("EndTxn sent, handled %v", handled) }

// kill ends the host's process.
func (m *Campaign) kill(h *Host, f Fault) error {
	reached := false
	var err error
	switch {
	case f.EndTxn:
		done := m.KillAtEndTxn(h, f.Handled)
		reached, err = h.AwaitDeath(m.ctx, reachLimit)
		m.ForgetEndTxn(h)
		if reached {
			<-done
			m.Counts[endTxnCount(f.Handled)]++
		}
	case f.Point != "":
		h.Table.Arm(f.Point, f.N, fault.Kill)
		reached, err = h.AwaitDeath(m.ctx, reachLimit)
		h.Table.Disarm(f.Point)
		if reached {
			m.Counts["at "+f.Point]++
		}
	default:
		err = m.wait(f.After)
	}
	if err == nil && !reached {
		if f.Point != "" || f.EndTxn {
			m.Counts["not reached "+f.Point]++
		}
		err = h.KilledOnly()
		h.Kill()
		m.Counts["from outside"]++
	}
	return err
}

// pause stops the host's process and lets it go on after a while.
func (m *Campaign) pause(h *Host, f Fault) (err error) {
	what := "pause at " + f.Point
	switch f.Point {
	case "":
		what = "pause from outside"
		err = h.Pause()
	case "restore.done": // a start is needed
		h.Kill()
		h.Table.Arm(f.Point, f.N, fault.Stop)
		err = errors.Join(h.Start(), m.awaitStop(h, f))
	default:
		h.Table.Arm(f.Point, f.N, fault.Stop)
		err = m.awaitStop(h, f)
	}
	if err != nil {
		return err
	}
	m.Counts[what]++
	if err := m.wait(f.Pause); err != nil {
		return err
	}
	if f.Again != "" {
		h.Table.Arm(f.Again, f.AgainN, fault.Kill)
	}
	return h.Continue()
}

// awaitStop waits until the process has stopped itself; if it never comes there, it is stopped from outside.
func (m *Campaign) awaitStop(h *Host, f Fault) error {
	before := h.Table.Fired(f.Point)
	limit := time.Now().Add(reachLimit)
	err := poll(m.ctx, func() (string, error) {
		if h.Table.Fired(f.Point) > before || time.Now().After(limit) {
			return "", nil
		}
		return f.Point + " is not reached", h.KilledOnly()
	})
	if err == nil && h.Table.Fired(f.Point) == before {
		h.Table.Disarm(f.Point)
		m.Counts["not reached "+f.Point]++
		return h.Pause()
	}
	return err
}

func (m *Campaign) wait(d time.Duration) error { return sleepUntil(m.ctx, time.Now().Add(d)) }

// damage does something to the state directory of a host whose process is dead.
func (m *Campaign) damage(h *Host, d Damage) error {
	if d != RolledBack {
		return d.Do(m.StateDir(h), m.random)
	}
	if _, err := os.Stat(m.StateDir(h)); err != nil { // killed before it had made one
		return fmt.Errorf("%w: %w", ErrNoFile, err)
	}
	// Put the last copy back, and make the next one of what is there now.
	older := m.SnapshotDir(h)
	newer := older + ".next"
	if err := CopyDir(m.StateDir(h), newer); err != nil {
		return err
	}
	if _, err := os.Stat(older); err == nil {
		if err := errors.Join(os.RemoveAll(m.StateDir(h)), CopyDir(older, m.StateDir(h)), os.RemoveAll(older)); err != nil {
			return err
		}
	}
	if err := os.Rename(newer, older); err != nil {
		return fmt.Errorf("crash: %w", err)
	}
	return nil
}
