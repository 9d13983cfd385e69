package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/metric"
	"github.com/streamd/streamd/topology"
)

// GlobalState is the state of a global table.
type GlobalState string

// The states of a global table.
const (
	GlobalReading GlobalState = "reading" // it was not read yet, and tasks that look into it wait
	GlobalCurrent GlobalState = "current"
	// GlobalStale: for half a minute it was not known to be what its topic is. Joins go on with the rows as they were.
	GlobalStale GlobalState = "stale"
)

// GlobalStatus is a global table of this process.
type GlobalStatus struct {
	Name  string      `json:"name"`
	Topic string      `json:"topic"`
	State GlobalState `json:"state"`
	// Reason is why it is not read, or read anew.
	Reason   string `json:"reason,omitempty"`
	Rows     int    `json:"rows"`
	Bytes    int64  `json:"bytes"`     // by topology.GlobalRowBytes
	MaxBytes int64  `json:"max_bytes"` // its bound
	// AsOf is the moment as of which the rows are those of the topic, by the host's clock; zero: not known yet.
	AsOf      time.Time `json:"as_of"`
	Lag       int64     `json:"lag"`       // offsets that are known to be committed and not in the rows
	Remaining int64     `json:"remaining"` // offsets that a reading of the whole topic has left
	Skipped   uint64    `json:"skipped"`   // records that were no rows, since the start of the process
	Reads     uint64    `json:"reads"`     // of the whole topic, since the start of the process
}

// status says what the tables are. Safe for concurrent use.
func (g *globals) status() []GlobalStatus {
	if g == nil {
		return nil
	}
	out := make([]GlobalStatus, 0, len(g.tables))
	for _, t := range g.tables {
		out = append(out, t.status(g.now()))
	}
	return out
}

func (t *globalTable) status(now time.Time) GlobalStatus {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := GlobalStatus{
		Name: t.spec.Name, Topic: t.spec.Topic, State: GlobalCurrent, Reason: t.reason, Rows: len(t.rows), Bytes: t.bytes, MaxBytes: t.spec.MaxBytes,
		AsOf: t.oldest(), Skipped: t.skipped, Reads: t.loads,
	}
	for _, p := range t.parts {
		s.Lag += max(0, int64(max(p.now.stable, p.seen.stable)-p.seen.reach))
	}
	switch {
	case !t.loaded:
		s.State, s.Remaining = GlobalReading, t.remaining()
	case now.Sub(s.AsOf) >= globalStale:
		s.State = GlobalStale
	}
	return s
}

// metrics is what a scrape shows of a global table.
func (s GlobalStatus) metrics() metric.Global {
	return metric.Global{Name: s.Name, Rows: s.Rows, Bytes: s.Bytes, Lag: s.Lag, AsOf: s.AsOf, Skipped: s.Skipped}
}

// openGlobals finds the topics of the global tables, whose existence userTopics has checked.
func openGlobals(ctx context.Context, e *engine) error {
	var names []string
	for _, s := range e.topo.Globals() {
		names = append(names, s.Topic)
	}
	if names == nil {
		return nil
	}
	topics, err := e.cluster.Topics(ctx, names...)
	if err != nil {
		return fmt.Errorf("processor: describe the topics of global tables: %w", err)
	}
	for _, n := range names {
		if t, ok := topics[n]; ok && t.Cleanup == broker.Delete && t.Retention >= 0 {
			e.log.Warn("the topic of a global table is not compacted: rows that its retention has deleted are missing at the next start", "topic", n, "retention", t.Retention.String())
		}
	}
	e.globals = newGlobals(e, topics)
	e.stats.mu.Lock() // a page may ask already
	e.stats.globals = e.globals
	e.stats.mu.Unlock()
	return nil
}

// checkIdentity returns an error once the topic of a global table was deleted and made again: its rows are of the old one.
func (g *globals) checkIdentity(ctx context.Context) error {
	if g == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, identityInterval)
	defer cancel()
	var names []string
	for _, t := range g.tables {
		names = append(names, t.spec.Topic)
	}
	is, err := g.cluster.Topics(ctx, names...)
	if err != nil {
		return nil // no news: whoever reads it finds out
	}
	var remade []error
	for _, t := range g.tables {
		if x, ok := is[t.spec.Topic]; ok && x.ID != "" && t.topic.ID != "" && x.ID != t.topic.ID {
			remade = append(remade, fmt.Errorf("%w %q: topic %q was deleted and made again while this ran (ID %s, was %s): the rows are of the old one. Start again once the new one is filled: it is read whole then",
				ErrGlobalTable, t.spec.Name, t.spec.Topic, x.ID, t.topic.ID))
		}
		if x, ok := is[t.spec.Topic]; ok && x.Partitions > t.topic.Partitions {
			remade = append(remade, fmt.Errorf("%w %q: topic %q has %d partitions, at the start it had %d. Start again: all of them are read then",
				ErrGlobalTable, t.spec.Name, t.spec.Topic, x.Partitions, t.topic.Partitions))
		}
	}
	return errors.Join(remade...)
}

var _ topology.GlobalRuntime = (*Task)(nil)

// Global implements topology.GlobalRuntime.
func (t *Task) Global(name string) topology.GlobalStore { return t.cfg.globals.named(name) }
