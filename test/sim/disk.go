package sim

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/dedup/deduptest"
	"github.com/streamd/streamd/internal/ordered"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/txlog"
)

// disk is the state directory of one instance. It outlives the processes. Everything that was written
// is kept in a journal, so that it can be put back to an earlier moment.
type disk struct {
	tasks   map[string]*diskTask
	journal []written
	full    int  // how many of the next writes fail for lack of space
	spoil   bool // when the process dies, the filters of its sealed IDs are damaged
	low     int  // how often the next looks at the free space see too little
	// refused are the tasks whose last write found no space: what memory holds of them is still to come.
	refused map[string]bool
}

// written is one write: a batch, or a reset if there is none.
type written struct {
	task  string
	batch *record.Batch
	torn  bool // only a part of its state got there, and not the position
}

func newDisk() *disk { return &disk{tasks: map[string]*diskTask{}, refused: map[string]bool{}} }

func (d *disk) task(name string) *diskTask {
	t := d.tasks[name]
	if t == nil {
		t = &diskTask{name: name}
		t.reset()
		d.tasks[name] = t
	}
	return t
}

// rollback undoes the last n writes: a power loss, or an older snapshot of the directory.
func (d *disk) rollback(n int) {
	keep := d.journal[:max(0, len(d.journal)-n)]
	d.journal, d.tasks = nil, map[string]*diskTask{}
	for _, w := range keep {
		d.write(w)
	}
}

func (d *disk) wipe() {
	d.journal, d.tasks = nil, map[string]*diskTask{}
	clear(d.refused)
}

func (d *disk) write(w written) {
	d.journal = append(d.journal, w)
	delete(d.refused, w.task)
	switch t := d.task(w.task); {
	case w.batch == nil:
		t.reset()
	case w.torn:
		t.change(w.batch.State[:(1+len(w.batch.State))/2])
	default:
		t.apply(w.batch)
	}
}

// damage makes one task's part unreadable: the local log finds that out and begins it anew.
func (d *disk) damage(n int) {
	names := slices.Sorted(maps.Keys(d.tasks))
	if len(names) > 0 {
		d.write(written{task: names[n%len(names)]})
	}
}

// spoilFilters damages the snapshots of all filters: one in three is gone, one cut short, one has a bit flipped.
func (d *disk) spoilFilters() {
	n := 0
	for _, name := range slices.Sorted(maps.Keys(d.tasks)) {
		for _, op := range slices.Sorted(maps.Keys(d.tasks[name].ids)) {
			log := d.tasks[name].ids[op]
			gens, err := log.Generations()
			if err != nil {
				panic(err)
			}
			for _, g := range gens {
				b, _ := log.Filter(g.Number)
				if b = bytes.Clone(b); len(b) == 0 {
					continue
				}
				n++
				switch n % 3 {
				case 0:
					b = nil
				case 1:
					b = b[:len(b)/2]
				default: // as if the first half had not been written
					clear(b[len(b)/2:])
				}
				log.SetFilter(g.Number, b)
			}
		}
	}
}

// diskTask is one task's content.
type diskTask struct {
	name     string
	position record.LocalPosition
	found    bool
	state    map[string]*ordered.Map
	ids      map[string]*deduptest.Log
}

func (t *diskTask) reset() {
	t.position, t.found = record.LocalPosition{}, false
	t.state, t.ids = map[string]*ordered.Map{}, map[string]*deduptest.Log{}
}

func (t *diskTask) log(op string) *deduptest.Log {
	if t.ids[op] == nil {
		t.ids[op] = &deduptest.Log{}
	}
	return t.ids[op]
}

func (t *diskTask) apply(b *record.Batch) {
	for _, x := range b.Blocks {
		if err := t.log(x.Operator).Apply([]record.IDBlock{x.IDBlock}, nil); err != nil {
			panic(fmt.Sprintf("disk: %s: %v", t.name, err))
		}
	}
	for _, x := range b.Drops {
		if err := t.log(x.Operator).Apply(nil, []uint64{x.Generation}); err != nil {
			panic(fmt.Sprintf("disk: %s: %v", t.name, err))
		}
	}
	t.change(b.State)
	t.position, t.found = b.Position, true
}

func (t *diskTask) change(state []record.StateChange) {
	for _, c := range state {
		if m := t.store(c.Store); c.Value == nil {
			m.Delete(c.Key)
		} else {
			m.Put(string(c.Key), c.Value)
		}
	}
}

func (t *diskTask) store(name string) *ordered.Map {
	m := t.state[name]
	if m == nil {
		m = &ordered.Map{}
		t.state[name] = m
	}
	return m
}

// content is what a checker compares: all state, and all IDs by operator, each sorted as text.
func (t *diskTask) content() (state, ids []string) {
	for _, store := range slices.Sorted(maps.Keys(t.state)) {
		for k, v := range t.state[store].All() {
			state = append(state, fmt.Sprintf("%s %q=%q", store, k, v))
		}
	}
	for _, op := range slices.Sorted(maps.Keys(t.ids)) {
		more, err := remembers(op, t.ids[op])
		if err != nil {
			panic(err)
		}
		ids = append(ids, more...)
	}
	slices.Sort(state)
	slices.Sort(ids)
	return state, ids
}

// remembers lists the IDs of an operator's log: those in blocks, and those in the runs of sealed generations.
func remembers(op string, log dedup.Log) (ids []string, err error) {
	gens, err := log.Generations()
	if err != nil {
		return nil, err
	}
	for _, g := range gens {
		for slot := uint32(0); g.Sealed && slot < g.Slots; slot++ {
			run, err := log.Run(g.Number, slot)
			if err != nil {
				return nil, err
			}
			ids = append(ids, idsOf(op, record.IDBlock{EntryBytes: g.EntryBytes, Entries: run})...)
		}
		if g.Sealed {
			continue
		}
		err := log.Blocks(g.Number, func(b record.IDBlock) error {
			ids = append(ids, idsOf(op, b)...)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return ids, nil
}

func idsOf(op string, b record.IDBlock) (ids []string) {
	for i := 0; i < len(b.Entries); i += b.EntryBytes {
		ids = append(ids, op+" "+hex.EncodeToString(b.Entries[i:i+b.EntryBytes]))
	}
	return ids
}

// diskView is the disk as one process has it open: with places to die before and after each write.
type diskView struct {
	d *disk
	o *owner
}

// DiskLow implements processor.LocalLog.
func (v diskView) DiskLow() bool {
	if v.d.low > 0 {
		v.d.low--
		return true
	}
	return false
}

// Compact implements processor.LocalLog.
func (v diskView) Compact() error { return nil }

// Task implements processor.LocalLog.
func (v diskView) Task(name string) (processor.LocalStore, error) { return taskView{v, name}, nil }

type taskView struct {
	diskView
	name string
}

// Position implements processor.LocalStore.
func (v taskView) Position() (record.LocalPosition, bool) {
	t := v.d.task(v.name)
	p := t.position
	p.Changelogs, p.Inputs = slices.Clone(p.Changelogs), slices.Clone(p.Inputs)
	return p, t.found
}

// Apply implements processor.LocalStore.
func (v taskView) Apply(b *record.Batch) error {
	v.o.stop("disk.before")
	if v.d.full > 0 {
		v.d.full--
		v.d.refused[v.name] = true
		return fmt.Errorf("disk: %w", txlog.ErrDiskFull)
	}
	c := copied(b)
	if v.o.w.trapped("disk.mid") && len(c.State) > 0 {
		// A batch over the local log's limit goes in several parts, the position last: what is there after a
		// death in between is ahead of the position, never behind it.
		v.d.write(written{v.name, c, true})
		v.o.stop("disk.mid")
	}
	v.d.write(written{v.name, c, false})
	v.o.stop("disk.after")
	return nil
}

// copied is a batch that no longer shares memory with the engine.
func copied(b *record.Batch) *record.Batch {
	c := &record.Batch{Drops: slices.Clone(b.Drops), Position: b.Position}
	c.Position.Inputs, c.Position.Counters = slices.Clone(b.Position.Inputs), slices.Clone(b.Position.Counters)
	c.Position.Changelogs = slices.Clone(b.Position.Changelogs)
	for _, x := range b.Blocks {
		x.Entries = bytes.Clone(x.Entries)
		c.Blocks = append(c.Blocks, x)
	}
	for _, s := range b.State {
		s.Key = bytes.Clone(s.Key)
		if s.Value != nil {
			s.Value = append([]byte{}, s.Value...)
		}
		c.State = append(c.State, s)
	}
	return c
}

// Get implements processor.LocalStore.
func (v taskView) Get(store string, key []byte) ([]byte, error) {
	return v.d.task(v.name).store(store).Get(key), nil
}

// Range implements processor.LocalStore.
func (v taskView) Range(store string, from, to []byte, fn func(k, v []byte) bool) error {
	v.d.task(v.name).store(store).Range(from, to, func(k string, value []byte) bool { return fn([]byte(k), value) })
	return nil
}

// IDs implements processor.LocalStore.
func (v taskView) IDs(op string) dedup.Log {
	l := v.d.task(v.name).log(op)
	l.SealStep = func() error { v.o.stop("seal.step"); return nil }
	return l
}

// Reset implements processor.LocalStore.
func (v taskView) Reset() error {
	v.o.stop("disk.reset")
	v.d.write(written{task: v.name})
	return nil
}
