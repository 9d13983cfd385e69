package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/internal/verify/rawstore"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/topology"
)

// LocalTask is what a task has in the local store of a process that has ended.
type LocalTask struct {
	Name       string    `json:"name"`
	Complete   bool      `json:"complete"` // false: a restore was under way
	Sequence   uint64    `json:"sequence"` // of the last commit that it holds
	StreamTime time.Time `json:"stream_time"`
	Inputs     []string  `json:"inputs"` // TOPIC/PARTITION@NEXT
	IDs        uint64    `json:"ids"`
	Keys       int64     `json:"keys"`
	Bytes      int64     `json:"bytes"` // of keys and values
}

// LocalEntry is one key of a state store.
type LocalEntry struct {
	Task  string `json:"task"`
	Key   Bytes  `json:"key"`
	Value Bytes  `json:"value"`
}

// openLocal opens the local store of a pipeline whose process has ended.
func openLocal(p *pipeline.Pipeline, dir string) (*rawstore.Store, error) {
	key, old, unread := daemon.StateKeys(p)
	s, err := rawstore.Open(dir, key, old)
	if errors.Is(err, rawstore.ErrKey) {
		if unread != nil {
			return nil, unread
		}
		return nil, fmt.Errorf("%s: state.key_file: %w: %w", p.File, daemon.ErrConfig, err)
	}
	if errors.Is(err, rawstore.ErrInUse) {
		return nil, fmt.Errorf("%w: %w: stop it, or look into its changelog (a key, streamd inspect id), or at streamd inspect tasks", daemon.ErrInUse, err)
	}
	return s, err
}

// InspectLocal lists what the tasks have in the local store. daemon.ErrInUse: a process runs on it.
func InspectLocal(p *pipeline.Pipeline, dir string) (out []LocalTask, err error) {
	s, err := openLocal(p, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	out = []LocalTask{}
	for _, t := range s.Tasks() {
		x := LocalTask{Name: t.Name, Complete: t.Complete, Sequence: t.Sequence, StreamTime: t.StreamTime, Inputs: []string{}}
		for _, in := range t.Inputs {
			x.Inputs = append(x.Inputs, rawlog.At(in.Partition, in.Next))
		}
		for _, g := range t.Generations {
			x.IDs += g.IDs
		}
		for _, name := range t.Stores() {
			err := t.State(name, func(key, value []byte) error {
				x.Keys++
				x.Bytes += int64(len(key) + len(value))
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
		out = append(out, x)
	}
	return out, nil
}

// errEnough ends a walk through a store.
var errEnough = errors.New("enough")

// ListLocal lists the first keys of a state store in the local store, task by task; limit 0: all.
func ListLocal(p *pipeline.Pipeline, dir, store string, limit int) (out []LocalEntry, err error) {
	s, err := openLocal(p, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	out = []LocalEntry{}
	for _, t := range s.Tasks() {
		if !slices.Contains(t.Stores(), store) {
			continue
		}
		err := t.State(store, func(key, value []byte) error {
			if limit > 0 && len(out) == limit {
				return errEnough
			}
			out = append(out, LocalEntry{t.Name, slices.Clone(key), slices.Clone(value)})
			return nil
		})
		if errors.Is(err, errEnough) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Stored is a key in the committed changelog of a state store.
type Stored struct {
	Partition int32     `json:"partition"` // that of the task
	Offset    int64     `json:"offset"`    // of the last change that compaction has left
	Time      time.Time `json:"time"`
	Changes   int64     `json:"changes"` // that are still there
	Value     Bytes     `json:"value"`   // nil: deleted
}

// Changelog reads the changelog of a state store.
type Changelog struct {
	Topic string
	c     *client
}

// OpenChangelog prepares to read the changelog of a pipeline's state store. A wrong name is a usage error that says which there are.
func OpenChangelog(p *pipeline.Pipeline, store string) (*Changelog, error) {
	topo, err := p.Topology()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", daemon.ErrConfig, err)
	}
	if err := HasStore(topo, store); err != nil {
		return nil, err
	}
	c, err := connect(p.Kafka)
	if err != nil {
		return nil, err
	}
	return &Changelog{topo.StoreTopic(store), c}, nil
}

// HasStore is a usage error unless the topology has a state store of that name.
func HasStore(topo *topology.Topology, store string) error {
	var names []string
	for _, s := range topo.Subtopologies() {
		for _, st := range s.Stores {
			names = append(names, st.Name)
		}
	}
	if slices.Contains(names, store) {
		return nil
	}
	return daemon.Usagef("no state store is called %q; there are: %s", store, orNone(names))
}

// Close ends the connections.
func (l *Changelog) Close() { l.c.close() }

// Progress is how many offsets were read so far.
func (l *Changelog) Progress() int64 { return l.c.Progress() }

// Find returns what the changelog says of a key, by partition; only those that have it.
func (l *Changelog) Find(ctx context.Context, key []byte) ([]Stored, error) {
	b, err := l.c.Bounds(ctx, l.Topic)
	if err != nil {
		return nil, err
	}
	out := []Stored{}
	err = l.c.Read(ctx, rawlog.Spans(b), func(r rawlog.Record) error {
		if string(r.Key) != string(key) {
			return nil
		}
		if n := len(out); n == 0 || out[n-1].Partition != r.Number {
			out = append(out, Stored{Partition: r.Number})
		}
		s := &out[len(out)-1]
		s.Offset, s.Time, s.Value = r.Offset, r.Time.UTC(), r.Value
		s.Changes++
		return nil
	})
	return out, err
}
