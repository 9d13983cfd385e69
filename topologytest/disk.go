package topologytest

import (
	"bytes"
	"maps"
	"slices"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/dedup/deduptest"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
)

// disk is the state directory of an instance. It outlives its processes.
type disk struct{ tasks map[string]*diskTask }

func newDisk() *disk { return &disk{tasks: map[string]*diskTask{}} }

// DiskLow implements processor.LocalLog.
func (d *disk) DiskLow() bool { return false }

// Compact implements processor.LocalLog.
func (d *disk) Compact() error { return nil }

// Task implements processor.LocalLog.
func (d *disk) Task(name string) (processor.LocalStore, error) {
	t := d.tasks[name]
	if t == nil {
		t = &diskTask{}
		d.tasks[name] = t
		return t, t.Reset()
	}
	return t, nil
}

// diskTask is one task's part, with the atomicity of the real one: a batch is there with its position, or not at all.
type diskTask struct {
	position record.LocalPosition
	found    bool
	state    map[string]map[string][]byte
	ids      map[string]*deduptest.Log
}

// Position implements processor.LocalStore.
func (t *diskTask) Position() (record.LocalPosition, bool) { return t.position, t.found }

// Apply implements processor.LocalStore.
func (t *diskTask) Apply(b *record.Batch) error {
	for _, x := range b.Blocks {
		if err := t.log(x.Operator).Apply([]record.IDBlock{x.IDBlock}, nil); err != nil {
			return err
		}
	}
	for _, x := range b.Drops {
		if err := t.log(x.Operator).Apply(nil, []uint64{x.Generation}); err != nil {
			return err
		}
	}
	for _, c := range b.State {
		if t.state[c.Store] == nil {
			t.state[c.Store] = map[string][]byte{}
		}
		if c.Value == nil {
			delete(t.state[c.Store], string(c.Key))
		} else {
			t.state[c.Store][string(c.Key)] = bytes.Clone(c.Value)
		}
	}
	t.position, t.found = b.Position, true
	t.position.Changelogs = slices.Clone(b.Position.Changelogs)
	return nil
}

// Get implements processor.LocalStore.
func (t *diskTask) Get(store string, key []byte) ([]byte, error) {
	return t.state[store][string(key)], nil
}

// Range implements processor.LocalStore.
func (t *diskTask) Range(store string, from, to []byte, fn func(k, v []byte) bool) error {
	for _, k := range slices.Sorted(maps.Keys(t.state[store])) {
		if k >= string(from) && (to == nil || k < string(to)) && !fn([]byte(k), t.state[store][k]) {
			return nil
		}
	}
	return nil
}

// IDs implements processor.LocalStore.
func (t *diskTask) IDs(operator string) dedup.Log { return t.log(operator) }

func (t *diskTask) log(operator string) *deduptest.Log {
	if t.ids[operator] == nil {
		t.ids[operator] = &deduptest.Log{}
	}
	return t.ids[operator]
}

// Reset implements processor.LocalStore.
func (t *diskTask) Reset() error {
	t.position, t.found = record.LocalPosition{}, false
	t.state, t.ids = map[string]map[string][]byte{}, map[string]*deduptest.Log{}
	return nil
}
