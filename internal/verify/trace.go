package verify

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// TraceConfig says which ID is traced.
type TraceConfig struct {
	Pipeline *pipeline.Pipeline
	// Step is the dedup step; empty: the only one.
	Step string
	ID   record.ID
	// Inputs says whether the records with the ID are looked for, which takes as long as reading the inputs.
	Inputs bool
}

// Trace is what is known of an ID.
type Trace struct {
	Pipeline  string        `json:"pipeline"`
	Step      string        `json:"step"`
	Hash      string        `json:"hash"` // as it stands in the ID log
	Retention time.Duration `json:"retention_ns"`
	// Sightings are each time that the ID was new, by task and time. With scope partition each task has IDs of its own.
	Sightings []Sighting `json:"sightings"`
	// Notes say what could not be found out.
	Notes []string `json:"notes,omitempty"`
}

// Sighting is one time that an ID was new to a task.
type Sighting struct {
	Task       string    `json:"task"`
	Seen       time.Time `json:"seen"`   // stream time of the task at the commit
	Logged     string    `json:"logged"` // where it stands in the ID log
	Generation uint64    `json:"generation"`
	// First is the record that was let through. Empty: it was not found; Within says where it stood.
	First     string    `json:"first,omitempty"`
	FirstTime time.Time `json:"first_time"`
	Within    []string  `json:"within"` // offsets of the transaction's inputs, TOPIC/PARTITION@FROM..TO
	// Copies are the records that were dropped on account of it, the first few of them.
	Copies      []Copy `json:"copies"`
	CopiesCount int64  `json:"copies_count"`
	// Forgets is the stream time of the task at which it is forgotten, at the earliest if the generation is Open.
	Forgets   time.Time `json:"forgets"`
	Open      bool      `json:"open"` // later IDs may still keep it for a while: an eighth of the retention at most
	Forgotten bool      `json:"forgotten"`
	// StreamTime is the task's.
	StreamTime time.Time `json:"stream_time"`

	from, to map[rawlog.Partition]int64
}

// Copy is a record with an ID that was known.
type Copy struct {
	Place string    `json:"place"`
	Time  time.Time `json:"time"`
}

// maxCopies is how many a sighting names.
const maxCopies = 20

// Tracer looks for an ID. It is run once; Progress may be asked from anywhere.
type Tracer struct {
	TraceConfig
	c       *rawlog.Cluster
	topo    *topology.Topology
	sub     *topology.Subtopology
	spec    topology.DedupSpec
	cluster string
	hash    record.Hash
}

// NewTracer prepares a trace. daemon.ErrConfig: there is no such step, or its log is left out.
func NewTracer(c TraceConfig) (*Tracer, error) {
	topo, err := c.Pipeline.Topology()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", daemon.ErrConfig, err)
	}
	if err := c.ID.Check(); err != nil {
		return nil, daemon.Usagef("the ID: %w", err)
	}
	t := &Tracer{TraceConfig: c, topo: topo, hash: c.ID.Hash()}
	if err := t.find(); err != nil {
		return nil, err
	}
	reach, err := Reach(c.Pipeline.Kafka)
	if err != nil {
		return nil, err
	}
	t.c, err = rawlog.Open(reach)
	return t, err
}

// find finds the step.
func (t *Tracer) find() error {
	var names []string
	for _, s := range t.topo.Subtopologies() {
		for _, d := range s.LeftOut {
			if d.Name == t.Step {
				return fmt.Errorf("%w: step %q has no log of its own, since a step before it has dropped all that it could find: look there", daemon.ErrConfig, t.Step)
			}
		}
		for _, d := range s.Dedups {
			names = append(names, d.Name)
			if d.Name == t.Step || t.Step == "" {
				t.sub, t.spec = s, d
			}
		}
	}
	switch {
	case len(names) == 0:
		return fmt.Errorf("%w: pipeline %q has no dedup step", daemon.ErrConfig, t.topo.Name())
	case t.sub == nil:
		return daemon.Usagef("no dedup step is called %q; there are: %s", t.Step, strings.Join(names, ", "))
	case t.Step == "" && len(names) > 1:
		return daemon.Usagef("which step? --step is one of: %s", strings.Join(names, ", "))
	}
	t.Step = t.spec.Name
	return nil
}

// Close ends the connections.
func (t *Tracer) Close() { t.c.Close() }

// Progress is how many offsets were read so far.
func (t *Tracer) Progress() int64 { return t.c.Progress() }

// Run reads the committed ID log and, if asked to, the inputs. What is not committed yet is not seen.
func (t *Tracer) Run(ctx context.Context) (*Trace, error) {
	out := &Trace{
		Pipeline: t.topo.Name(), Step: t.Step, Hash: hex.EncodeToString(t.hash[:]), Retention: t.spec.Config.Retention, Sightings: []Sighting{},
	}
	var err error
	if t.cluster, err = t.c.ID(ctx); err != nil {
		return nil, err
	}
	bounds, err := t.c.Bounds(ctx, t.topo.IDLogTopic(t.sub))
	if errors.Is(err, broker.ErrUnknownTopic) {
		return nil, fmt.Errorf("%w: has the pipeline run on this cluster?: %w", daemon.ErrConfig, err)
	} else if err != nil {
		return nil, err
	}
	for _, p := range rawlog.Sorted(bounds) {
		found, last, err := t.log(ctx, p, bounds[p])
		if err != nil {
			return nil, err
		}
		// A copy needs somebody who was there before it: a task without the ID has none.
		if len(found) > 0 && t.Inputs {
			if err := t.records(ctx, p.Number, last, found); errors.Is(err, errNotReplayable) {
				out.Notes = append(out.Notes, fmt.Sprintf("task %s: its records were not looked for: %v", found[0].Task, err))
			} else if err != nil {
				return nil, err
			}
		}
		out.Sightings = append(out.Sightings, found...)
	}
	return out, nil
}

// log reads one task's ID log: when the ID was new, and the last commit.
func (t *Tracer) log(ctx context.Context, p rawlog.Partition, b rawlog.Bounds) ([]Sighting, *rawlog.Commit, error) {
	var found, pending []Sighting
	var last *rawlog.Commit
	newest := map[uint64]time.Time{} // time of the last block, by generation
	top := uint64(0)
	err := t.c.Read(ctx, map[rawlog.Partition]rawlog.Span{p: {From: b.Start, To: b.Stable}}, func(r rawlog.Record) error {
		block, commit, err := rawlog.DecodeIDLog(r.Key, r.Value)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", r.Where(), err)
		case block != nil:
			if block.Operator != t.Step {
				return nil
			}
			newest[block.Generation], top = block.Time, block.Generation
			block.IDs(func(id [rawlog.HashBytes]byte) {
				if id == t.hash {
					pending = append(pending, Sighting{
						Task: fmt.Sprintf("%s/%d", t.sub.Name, p.Number), Seen: block.Time, Logged: r.Where(), Generation: block.Generation,
						Copies: []Copy{}, Within: []string{}, from: map[rawlog.Partition]int64{}, to: map[rawlog.Partition]int64{},
					})
				}
			})
			return nil
		}
		if last != nil && commit.Incarnation != last.Incarnation {
			found, last = nil, nil // a reset: what was before no longer counts
		}
		for i := range pending {
			pending[i].within(last, commit)
		}
		found, pending, last = append(found, pending...), nil, commit
		return nil
	})
	for i := range found {
		s := &found[i]
		s.Open, s.StreamTime = s.Generation == top, last.Time
		s.Forgets = newest[s.Generation].Add(t.spec.Config.Retention)
		s.Forgotten = last.Time.After(s.Forgets)
	}
	return found, last, err
}

// within notes which offsets the transaction of a commit has processed.
func (s *Sighting) within(before, commit *rawlog.Commit) {
	for _, in := range commit.Inputs {
		s.to[in.Partition] = in.Next
		if before != nil {
			for _, x := range before.Inputs {
				if x.Partition == in.Partition {
					s.from[in.Partition] = x.Next
				}
			}
		}
		if from := s.from[in.Partition]; from < in.Next {
			s.Within = append(s.Within, fmt.Sprintf("%s@%d..%d", in.Partition, from, in.Next))
		}
	}
}

// records runs the task's inputs through the steps before the dedup step, and notes those whose ID is the one.
func (t *Tracer) records(ctx context.Context, partition int32, last *rawlog.Commit, found []Sighting) error {
	spy := newSpy(t.cluster, t.sub, t.Step)
	for i, x := range t.sub.Sources {
		p := rawlog.Partition{Topic: t.topo.SourceTopic(x), Number: partition}
		at := slices.IndexFunc(last.Inputs, func(in rawlog.Input) bool { return in.Partition == p })
		if at < 0 {
			continue // it has no such partition
		}
		// IDs by position need the topic's ID as it was when they were made.
		spy.topicID = last.Inputs[at].TopicID
		chain, err := spy.chain(t.sub)
		if err != nil {
			return err
		}
		bounds, err := t.c.Bounds(ctx, p.Topic)
		if err != nil {
			return err
		}
		err = t.c.Read(ctx, map[rawlog.Partition]rawlog.Span{p: {From: bounds[p].Start, To: last.Inputs[at].Next}}, func(r rawlog.Record) error {
			return t.note(spy, &r, chain.Sources[i], found)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// note shows a record to the spy, and notes it if it has the ID.
func (t *Tracer) note(s *spy, r *rawlog.Record, source func(*broker.Record) error, found []Sighting) error {
	hit, seen := false, time.Time{}
	s.asked = func(h record.Hash, at time.Time) {
		if h == t.hash {
			hit, seen = true, at
		}
	}
	if err := s.show(r, source); err != nil || !hit {
		return err
	}
	// The last time that it was new before the record, or in its transaction.
	var of *Sighting
	for i := range found {
		if found[i].from[r.Partition] <= r.Offset {
			of = &found[i]
		}
	}
	switch {
	case of == nil: // it was seen, and forgotten, before the ID log begins
	case of.First == "" && r.Offset < of.to[r.Partition]:
		of.First, of.FirstTime = r.Where(), seen
	default:
		if of.CopiesCount++; len(of.Copies) < maxCopies {
			of.Copies = append(of.Copies, Copy{r.Where(), seen})
		}
	}
	return nil
}
