package txlog

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamd/streamd/record"
)

// Task is one task's part of the log. Batches are applied from one goroutine at a time; reads,
// and seals of its operators, may go on meanwhile from others.
type Task struct {
	log  *Log
	text string
	// name changes when the task is reset: its content is then under another number.
	name atomic.Pointer[name]

	// applying is held by whatever changes the position record or the set of generations, for the
	// whole change, and by each step of a seal. It is taken before mu and before Log.mu.
	applying sync.Mutex

	mu        sync.Mutex // guards the fields below; taken last, never held over I/O
	position  record.LocalPosition
	known     bool // there is a position record
	forgotten bool
	gens      map[genID]*generation
	stores    map[string]*Store
	operators map[string]*Operator
}

// generation is what a task knows about one generation of one operator.
type generation struct {
	logged
	from, to time.Time // stream time of its blocks
	seal     *seal     // nil: not sealed
	sealing  bool
}

// widen takes a block's stream time into the range.
func (g *generation) widen(t time.Time) {
	if t.IsZero() {
		return
	}
	if g.from.IsZero() || t.Before(g.from) {
		g.from = t
	}
	if t.After(g.to) {
		g.to = t
	}
}

func newTask(l *Log, text string, n *name) *Task {
	t := &Task{
		log: l, text: text, gens: map[genID]*generation{},
		stores: map[string]*Store{}, operators: map[string]*Operator{},
	}
	t.name.Store(n)
	return t
}

func (t *Task) number() uint16 { return t.name.Load().number }

// Name is the task's name.
func (t *Task) Name() string { return t.text }

// Position returns the position of the last batch. ok is false if there is none: then whatever
// the task holds is worthless, [Task.Reset] it and restore everything.
func (t *Task) Position() (p record.LocalPosition, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.position.Clone(), t.known
}

// survey is what a task's keys say.
type survey struct {
	position record.LocalPosition
	known    bool
	gens     map[genID]*generation
	// orphans are prefixes of keys that belong to no live generation.
	orphans [][]byte
}

// load reads the task from the store and checks it. What an interrupted seal or drop left behind is
// going to be deleted.
func (t *Task) load() error {
	s, err := t.survey()
	if err != nil {
		return err
	}
	if len(s.orphans) > 0 {
		t.log.trash.add(&waste{prefixes: s.orphans})
	}
	t.position, t.known, t.gens = s.position, s.known, s.gens
	return nil
}

// Check compares everything that the task holds with its position record, and that with what
// is in memory: the blocks of each open generation are contiguous and their IDs add up, each sealed
// one has its runs. [ErrDamaged] says that it does not hold. [Open] has done this already.
func (t *Task) Check() error {
	t.applying.Lock()
	defer t.applying.Unlock()
	if err := t.usable(); err != nil {
		return err
	}
	s, err := t.survey()
	if err != nil {
		return fmt.Errorf("txlog: task %q: %w", t.text, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.known != t.known || s.position.CommitPoint.Sequence != t.position.CommitPoint.Sequence {
		return fmt.Errorf("txlog: task %q: %w: position on disk is not the one in memory", t.text, ErrDamaged)
	}
	same := maps.EqualFunc(s.gens, t.gens, func(a, b *generation) bool {
		return a.logged == b.logged && (a.seal == nil) == (b.seal == nil)
	})
	if !same {
		return fmt.Errorf("txlog: task %q: %w: generations on disk are not those in memory", t.text, ErrDamaged)
	}
	return nil
}

// survey reads all keys of the task but those of the state stores.
func (t *Task) survey() (*survey, error) {
	s := &survey{gens: map[genID]*generation{}}
	number := t.number()
	value, err := t.log.kv.get(taskKey(kindPosition, number))
	if err != nil {
		return nil, err
	}
	if value != nil {
		s.known = true
		var list []logged
		if s.position, list, err = decodePosition(value); err != nil {
			return nil, err
		}
		for _, g := range list {
			s.gens[g.genID] = &generation{logged: g}
		}
	}
	for _, pass := range []func(*kv, uint16) error{s.readSeals, s.readBlocks, s.readRuns, s.readFilters} {
		if err := pass(t.log.kv, number); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// eachGeneration calls fn for the keys of a kind. A key whose generation is not wanted makes all
// keys of that generation orphans.
func (s *survey) eachGeneration(k *kv, kind byte, task uint16, wanted func(*generation) bool,
	fn func(*generation, parsedKey, entry) error,
) error {
	return k.each(taskKey(kind, task), nil, func(e entry) ([]byte, error) {
		key, err := parseGenerationKey(e.key)
		if err != nil {
			return nil, err
		}
		if g := s.gens[key.genID]; g != nil && wanted(g) {
			return nil, fn(g, key, e)
		}
		prefix := bytes.Clone(e.key[:generationKeyBytes])
		s.orphans = append(s.orphans, prefix)
		return after(prefix), nil
	})
}

func (s *survey) readSeals(k *kv, task uint16) error {
	always := func(*generation) bool { return true }
	return s.eachGeneration(k, kindSeal, task, always, func(g *generation, _ parsedKey, e entry) error {
		value, err := e.value()
		if err != nil {
			return err
		}
		if g.seal, err = decodeSeal(value); err != nil {
			return err
		}
		if g.seal.logged != g.ids || g.seal.entryBytes != g.entryBytes {
			return fmt.Errorf("%w: generation %d was sealed with %d IDs, its position record counts %d",
				ErrDamaged, g.gen, g.seal.logged, g.ids)
		}
		g.from, g.to = g.seal.from, g.seal.to
		return nil
	})
}

func (s *survey) readBlocks(k *kv, task uint16) error {
	type sum struct{ blocks, ids uint64 }
	sums := map[genID]*sum{}
	open := func(g *generation) bool { return g.seal == nil }
	err := s.eachGeneration(k, kindBlock, task, open, func(g *generation, key parsedKey, e entry) error {
		if key.n >= g.nextSeq {
			return nil // of a batch that did not finish: the next one writes over it
		}
		value, err := e.value()
		if err != nil {
			return err
		}
		block, err := decodeBlock(g.gen, value)
		if err != nil {
			return err
		}
		have := sums[g.genID]
		if have == nil {
			have = &sum{}
			sums[g.genID] = have
		}
		if key.n != have.blocks || block.EntryBytes != g.entryBytes {
			return fmt.Errorf("%w: generation %d: block %d where %d should be", ErrDamaged, g.gen, key.n, have.blocks)
		}
		have.blocks++
		have.ids += uint64(block.Len())
		g.widen(block.StreamTime)
		return nil
	})
	if err != nil {
		return err
	}
	for id, g := range s.gens {
		if g.seal != nil {
			continue
		}
		have := sums[id]
		if have == nil {
			have = &sum{}
		}
		if have.blocks != g.nextSeq || have.ids != g.ids {
			return fmt.Errorf("%w: generation %d has %d IDs in %d blocks, its position record counts %d in %d",
				ErrDamaged, g.gen, have.ids, have.blocks, g.ids, g.nextSeq)
		}
	}
	return nil
}

func (s *survey) readRuns(k *kv, task uint16) error {
	type sum struct{ runs, bytes uint64 }
	sums := map[genID]*sum{}
	err := s.eachGeneration(k, kindRun, task, isSealed, func(g *generation, key parsedKey, e entry) error {
		n := uint64(e.valueBytes())
		if key.n >= uint64(g.seal.slots) || n == 0 || n%uint64(g.entryBytes) != 0 {
			return fmt.Errorf("%w: generation %d: run of slot %d", ErrDamaged, g.gen, key.n)
		}
		have := sums[g.genID]
		if have == nil {
			have = &sum{}
			sums[g.genID] = have
		}
		have.runs++
		have.bytes += n
		return nil
	})
	if err != nil {
		return err
	}
	for id, g := range s.gens {
		if g.seal == nil {
			continue
		}
		have := sums[id]
		if have == nil {
			have = &sum{}
		}
		if have.runs != uint64(g.seal.runs) || have.bytes != g.seal.ids*uint64(g.entryBytes) {
			return fmt.Errorf("%w: generation %d has %d runs with %d IDs, its seal counts %d with %d",
				ErrDamaged, g.gen, have.runs, have.bytes/uint64(g.entryBytes), g.seal.runs, g.seal.ids)
		}
	}
	return nil
}

// readFilters only finds orphans: a filter that is missing or wrong is built again from the runs.
func (s *survey) readFilters(k *kv, task uint16) error {
	return s.eachGeneration(k, kindFilter, task, isSealed, func(g *generation, _ parsedKey, _ entry) error { return nil })
}

func isSealed(g *generation) bool { return g.seal != nil }

func (t *Task) usable() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.forgotten {
		return fmt.Errorf("txlog: task %q was forgotten: %w", t.text, ErrClosed)
	}
	return nil
}

// loggedList is the sorted list for the position record.
func loggedList(gens map[genID]*generation) []logged {
	list := make([]logged, 0, len(gens))
	for _, g := range gens {
		list = append(list, g.logged)
	}
	slices.SortFunc(list, func(a, b logged) int { return a.compare(b.genID) })
	return list
}

// Reset empties the task, before a full restore. It takes one commit, whatever the task holds: the
// old content is deleted little by little.
func (t *Task) Reset() error {
	t.applying.Lock()
	defer t.applying.Unlock()
	if err := t.usable(); err != nil {
		return err
	}
	old := t.name.Load()
	if !old.durable.Load() {
		t.clear()
		return nil
	}
	t.log.mu.Lock()
	fresh, err := t.log.newTaskName(t.text)
	t.log.mu.Unlock()
	if err != nil {
		return err
	}
	if err := t.abandon(old, fresh.writes()); err != nil {
		t.log.freeNumber(fresh.nameNumber)
		return err
	}
	fresh.durable.Store(true)
	t.name.Store(fresh)
	t.clear()
	return nil
}

// forget is [Log.Forget].
func (t *Task) forget() error {
	t.applying.Lock()
	defer t.applying.Unlock()
	if t.usable() != nil {
		return nil
	}
	if old := t.name.Load(); old.durable.Load() {
		if err := t.abandon(old, nil); err != nil {
			return err
		}
	} else {
		t.log.freeNumber(old.nameNumber)
	}
	t.clear()
	t.mu.Lock()
	t.forgotten = true
	t.mu.Unlock()
	t.log.mu.Lock()
	delete(t.log.tasks, t.text)
	t.log.mu.Unlock()
	return nil
}

// abandon takes the task's number away, in one commit with the other writes.
func (t *Task) abandon(old *name, writes []write) error {
	if err := t.log.kv.room(); err != nil {
		return err
	}
	writes = append(writes,
		write{key: nameKey(nameTask, old.number)},
		write{taskKey(kindForgotten, old.number), []byte{1}})
	if err := t.log.kv.commit(writes); err != nil {
		return err
	}
	t.log.trash.add(taskWaste(old.number))
	return nil
}

func (t *Task) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.position, t.known = record.LocalPosition{}, false
	t.gens = map[genID]*generation{}
}

// generations returns an operator's generations, oldest first.
func (t *Task) generations(op uint16) []*generation {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*generation
	for id, g := range t.gens {
		if id.op == op {
			c := *g
			out = append(out, &c)
		}
	}
	slices.SortFunc(out, func(a, b *generation) int { return cmp.Compare(a.gen, b.gen) })
	return out
}

// generation returns a copy of what is known about a generation, nil if there is none.
func (t *Task) generation(id genID) *generation {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.gens[id]
	if g == nil {
		return nil
	}
	c := *g
	return &c
}
