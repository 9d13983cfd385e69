package processor

import (
	"bytes"
	"maps"
	"slices"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/dedup/deduptest"
	"github.com/streamd/streamd/internal/ordered"
	"github.com/streamd/streamd/record"
)

// memoryLog is a LocalLog in memory that survives the process of a Stepper, as a disk does.
type memoryLog struct {
	tasks map[string]*memoryTask
	low   bool
}

func newMemoryLog() *memoryLog { return &memoryLog{tasks: map[string]*memoryTask{}} }

func (l *memoryLog) DiskLow() bool { return l.low }

func (l *memoryLog) Compact() error { return nil }

func (l *memoryLog) Task(name string) (LocalStore, error) {
	if l.tasks[name] == nil {
		l.tasks[name] = &memoryTask{}
		_ = l.tasks[name].Reset()
	}
	return l.tasks[name], nil
}

type memoryTask struct {
	position record.LocalPosition
	found    bool
	state    map[string]*ordered.Map
	ids      map[string]*deduptest.Log
	fail     error // of the next Apply
	// beforeReset, if set, is told of a Reset.
	beforeReset func()
	applied     int
}

func (t *memoryTask) Position() (record.LocalPosition, bool) { return t.position, t.found }

func (t *memoryTask) Apply(b *record.Batch) error {
	if err := t.fail; err != nil {
		t.fail = nil
		return err
	}
	by := map[string][]record.IDBlock{}
	drops := map[string][]uint64{}
	for _, x := range b.Blocks {
		by[x.Operator] = append(by[x.Operator], x.IDBlock)
	}
	for _, d := range b.Drops {
		drops[d.Operator] = append(drops[d.Operator], d.Generation)
	}
	for _, op := range slices.Sorted(maps.Keys(by)) {
		if err := t.log(op).Apply(by[op], nil); err != nil {
			return err
		}
	}
	for op, d := range drops {
		if err := t.log(op).Apply(nil, d); err != nil {
			return err
		}
	}
	for _, c := range b.State {
		if c.Value == nil {
			t.store(c.Store).Delete(c.Key)
		} else {
			t.store(c.Store).Put(string(c.Key), bytes.Clone(c.Value))
		}
	}
	t.position, t.found = b.Position, true
	t.position.Changelogs = slices.Clone(b.Position.Changelogs)
	t.applied++
	return nil
}

func (t *memoryTask) Get(store string, key []byte) ([]byte, error) {
	return t.store(store).Get(key), nil
}

func (t *memoryTask) Range(store string, from, to []byte, fn func(k, v []byte) bool) error {
	t.store(store).Range(from, to, func(k string, v []byte) bool { return fn([]byte(k), v) })
	return nil
}

func (t *memoryTask) store(name string) *ordered.Map {
	if t.state[name] == nil {
		t.state[name] = &ordered.Map{}
	}
	return t.state[name]
}

func (t *memoryTask) log(op string) *deduptest.Log {
	if t.ids[op] == nil {
		t.ids[op] = &deduptest.Log{}
	}
	return t.ids[op]
}

func (t *memoryTask) IDs(op string) dedup.Log { return t.log(op) }

func (t *memoryTask) Reset() error {
	if t.beforeReset != nil {
		t.beforeReset()
	}
	t.position, t.found = record.LocalPosition{}, false
	t.state, t.ids = map[string]*ordered.Map{}, map[string]*deduptest.Log{}
	return nil
}
