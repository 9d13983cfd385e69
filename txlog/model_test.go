package txlog

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/streamd/streamd/record"
)

// modelTask is what a task should hold, in maps.
type modelTask struct {
	position *record.LocalPosition
	state    map[string]map[string]string
	gens     map[string]map[uint64]*modelGen
}

type modelGen struct {
	entryBytes int
	entries    []byte
	sealed     bool
}

func newModelTask() *modelTask {
	return &modelTask{state: map[string]map[string]string{}, gens: map[string]map[uint64]*modelGen{}}
}

func (m *modelTask) apply(b *record.Batch) {
	for _, x := range b.Blocks {
		if len(x.Entries) == 0 {
			continue
		}
		if m.gens[x.Operator] == nil {
			m.gens[x.Operator] = map[uint64]*modelGen{}
		}
		g := m.gens[x.Operator][x.Generation]
		if g == nil {
			g = &modelGen{entryBytes: x.EntryBytes}
			m.gens[x.Operator][x.Generation] = g
		}
		g.entries = append(g.entries, x.Entries...)
	}
	for _, d := range b.Drops {
		delete(m.gens[d.Operator], d.Generation)
	}
	for _, c := range b.State {
		if m.state[c.Store] == nil {
			m.state[c.Store] = map[string]string{}
		}
		if c.Value == nil {
			delete(m.state[c.Store], string(c.Key))
		} else {
			m.state[c.Store][string(c.Key)] = string(c.Value)
		}
	}
	p := b.Position
	m.position = &p
}

func (m *modelTask) compare(task *Task) error {
	p, ok := task.Position()
	if ok != (m.position != nil) || ok && fmt.Sprint(p) != fmt.Sprint(*m.position) {
		return fmt.Errorf("position %v %v, want %v", ok, p, m.position)
	}
	if err := task.Check(); err != nil {
		return err
	}
	for _, store := range modelStores {
		got := map[string]string{}
		absent := false
		see := func(k, v []byte) bool {
			absent = absent || k == nil || v == nil // an empty one is not
			got[string(k)] = string(v)
			return true
		}
		if err := task.Range(store, nil, nil, see); err != nil {
			return err
		}
		if absent {
			return fmt.Errorf("store %q: a range tells nil of what is empty", store)
		}
		if !maps.Equal(got, m.state[store]) {
			return fmt.Errorf("store %q is %v, want %v", store, got, m.state[store])
		}
		for key, want := range got {
			if v, err := task.Get(store, []byte(key)); err != nil || string(v) != want {
				return fmt.Errorf("get %q %q is %q, %v", store, key, v, err)
			}
		}
	}
	for _, name := range modelOperators {
		op := task.Operator(name)
		gens, err := op.Generations()
		if err != nil {
			return err
		}
		var numbers []uint64
		for _, g := range gens {
			numbers = append(numbers, g.Number)
			want := m.gens[name][g.Number]
			if want == nil || want.sealed != g.Sealed || uint64(len(want.entries)/want.entryBytes) != g.IDs {
				return fmt.Errorf("operator %q generation %+v, want %+v", name, g, want)
			}
			var content []byte
			entries := want.entries
			if g.Sealed {
				entries = bytes.Join(sortIntoRuns(entries, want.entryBytes, 1), nil)
				for slot := range g.Slots {
					run, err := op.Run(g.Number, slot)
					if err != nil {
						return err
					}
					content = append(content, run...)
				}
				if f, err := op.Filter(g.Number); err != nil || string(f) != fmt.Sprint(g.Number) {
					return fmt.Errorf("filter %q, %v", f, err)
				}
			} else if err := op.Blocks(g.Number, func(b record.IDBlock) error {
				content = append(content, b.Entries...)
				return nil
			}); err != nil {
				return err
			}
			if !bytes.Equal(content, entries) {
				return fmt.Errorf("operator %q generation %d sealed %v has %d bytes, want %d", name, g.Number, g.Sealed, len(content), len(entries))
			}
		}
		if want := slices.Sorted(maps.Keys(m.gens[name])); !slices.Equal(numbers, want) {
			return fmt.Errorf("operator %q has generations %v, want %v", name, numbers, want)
		}
	}
	return nil
}

var (
	modelStores    = []string{"totals", "names"}
	modelOperators = []string{"dedup", "by region"}
	modelTasks     = []string{"a/0", "a/1", "b/0"}
)

// Random sequences of all operations, against maps, with clean restarts, kills and flattening.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir := t.TempDir()
		key := rapid.SampledFrom([]Key{nil, nil, testKey}).Draw(rt, "key")
		options := func(dir string) Options {
			o := testOptions(dir)
			o.Key = key
			return o
		}
		l, err := Open(options(dir))
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		model := map[string]*modelTask{}
		for _, name := range modelTasks {
			model[name] = newModelTask()
		}
		seq := uint64(0)
		task := func(rt *rapid.T) (*Task, *modelTask) {
			name := rapid.SampledFrom(modelTasks).Draw(rt, "task")
			task, err := l.Task(name)
			if err != nil {
				rt.Fatal(err)
			}
			return task, model[name]
		}
		restart := func(rt *rapid.T, from string) {
			if l, err = Open(options(from)); err != nil {
				rt.Fatal(err)
			}
			if reason, ok := l.SetAside(); ok {
				rt.Fatalf("set aside: %s", reason)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"apply": func(rt *rapid.T) {
				task, m := task(rt)
				seq++
				b := drawBatch(rt, m, seq)
				if err := task.Apply(b); err != nil {
					rt.Fatal(err)
				}
				m.apply(b)
			},
			"seal": func(rt *rapid.T) {
				task, m := task(rt)
				name := rapid.SampledFrom(modelOperators).Draw(rt, "operator")
				gen := rapid.Uint64Range(0, 5).Draw(rt, "generation")
				g := m.gens[name][gen]
				if g == nil {
					return
				}
				slots := uint32(1) << rapid.IntRange(0, 4).Draw(rt, "slots")
				runs := sortIntoRuns(g.entries, g.entryBytes, slots)
				err := task.Operator(name).Seal(record.Generation{
					Number: gen, IDs: uint64(len(g.entries) / g.entryBytes), EntryBytes: g.entryBytes, Slots: slots,
				}, func(slot uint32) []byte { return runs[slot] }, fmt.Append(nil, gen))
				if err != nil {
					rt.Fatal(err)
				}
				g.sealed = true
			},
			"drop": func(rt *rapid.T) {
				task, m := task(rt)
				name := rapid.SampledFrom(modelOperators).Draw(rt, "operator")
				gen := rapid.Uint64Range(0, 5).Draw(rt, "generation")
				if err := task.Operator(name).Drop(gen); err != nil {
					rt.Fatal(err)
				}
				delete(m.gens[name], gen)
			},
			"reset": func(rt *rapid.T) {
				task, m := task(rt)
				if err := task.Reset(); err != nil {
					rt.Fatal(err)
				}
				*m = *newModelTask()
			},
			"forget": func(rt *rapid.T) {
				name := rapid.SampledFrom(modelTasks).Draw(rt, "task")
				if err := l.Forget(name); err != nil {
					rt.Fatal(err)
				}
				model[name] = newModelTask()
			},
			"sweep": func(rt *rapid.T) {
				if _, err := l.Sweep(rapid.IntRange(1, 50).Draw(rt, "limit")); err != nil {
					rt.Fatal(err)
				}
			},
			"restart": func(rt *rapid.T) {
				if err := l.Close(); err != nil {
					rt.Fatal(err)
				}
				restart(rt, dir)
			},
			"kill": func(rt *rapid.T) {
				to := t.TempDir()
				snapshot(t, dir, to)
				_ = l.Close()
				dir = to
				restart(rt, dir)
			},
			"": func(rt *rapid.T) {
				for _, name := range modelTasks {
					task, err := l.Task(name)
					if err != nil {
						rt.Fatal(err)
					}
					if err := model[name].compare(task); err != nil {
						rt.Fatalf("task %q: %v", name, err)
					}
				}
			},
		})
	})
}

func drawBatch(rt *rapid.T, m *modelTask, seq uint64) *record.Batch {
	b := &record.Batch{Position: position(seq)}
	for i := range rapid.IntRange(0, 3).Draw(rt, "blocks") {
		name := rapid.SampledFrom(modelOperators).Draw(rt, "operator")
		gen := rapid.Uint64Range(0, 5).Draw(rt, "generation")
		if g := m.gens[name][gen]; g != nil && g.sealed {
			continue
		}
		// One operator has hashes of the payload beside the IDs.
		size := record.HashBytes
		if name == modelOperators[1] {
			size = hashedEntryBytes
		}
		entries := bytes.Repeat(ids(seq*10+uint64(i), 3), rapid.IntRange(0, 6).Draw(rt, "IDs"))
		x := block(name, gen, int(seq), entries[:len(entries)/size*size])
		x.EntryBytes = size
		b.Blocks = append(b.Blocks, x)
	}
	for range rapid.IntRange(0, 6).Draw(rt, "changes") {
		c := record.StateChange{
			Store: rapid.SampledFrom(modelStores).Draw(rt, "store"),
			Key:   rapid.SliceOfN(rapid.ByteRange(0, 3), 0, 2).Draw(rt, "key"),
		}
		if rapid.Bool().Draw(rt, "put") {
			c.Value = append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(rt, "value")...)
		}
		b.State = append(b.State, c)
	}
	if rapid.IntRange(0, 4).Draw(rt, "drop") == 0 {
		b.Drops = append(b.Drops, record.GenerationDrop{
			Operator: rapid.SampledFrom(modelOperators).Draw(rt, "operator"), Generation: rapid.Uint64Range(0, 5).Draw(rt, "generation"),
		})
	}
	return b
}

// A batch over the limit of a transaction goes in several, with the same result; one value over the
// limit is refused before anything is written.
func TestLargeBatch(t *testing.T) {
	l := openTest(t, testOptions(t.TempDir()))
	task := mustTask(t, l, "t")
	m := newModelTask()
	for i, size := range []struct{ keys, value, ids int }{
		{30_000, 10, 10},
		{10, MaxValueBytes, 10},
		{1, 1, 200_000},
		{3000, 500, 90_000},
		{int(l.kv.maxCount) - 3, 1, 0},
		{int(l.kv.maxCount) - 2, 1, 1},
		{0, 0, int(l.kv.maxBytes)/16 - 10},
	} {
		version := l.kv.version
		b := &record.Batch{Position: position(uint64(i + 1))}
		b.Blocks = append(b.Blocks, block("dedup", uint64(i), 1, ids(uint64(i), size.ids)))
		for k := range size.keys {
			b.State = append(b.State, record.StateChange{Store: "totals", Key: fmt.Append(nil, k%40_000), Value: bytes.Repeat([]byte{byte(i)}, size.value)})
		}
		b.Drops = []record.GenerationDrop{{Operator: "dedup", Generation: uint64(i) - 2}}
		must(t, task.Apply(b))
		m.apply(b)
		must(t, m.compare(task))
		t.Logf("%+v: %d transactions", size, l.kv.version-version)
	}
	version := l.kv.version
	for _, b := range []*record.Batch{
		{State: []record.StateChange{{Store: "s", Key: []byte("k"), Value: make([]byte, MaxValueBytes+1)}}},
		{State: []record.StateChange{{Store: "s", Key: make([]byte, MaxKeyBytes+1), Value: []byte("v")}}},
		{State: []record.StateChange{{Store: string(make([]byte, maxNameBytes+1)), Key: []byte("k"), Value: []byte("v")}}},
		{Blocks: []record.OperatorBlock{block("", 1, 1, ids(1, 1))}},
		{Position: record.LocalPosition{CommitPoint: record.CommitPoint{Counters: make([]record.Counter, 100_000)}}},
	} {
		wantErr(t, task.Apply(b), ErrTooLarge)
	}
	for _, b := range []*record.Batch{
		{Blocks: []record.OperatorBlock{{Operator: "d", IDBlock: record.IDBlock{EntryBytes: 16, Entries: make([]byte, 15)}}}},
		{Blocks: []record.OperatorBlock{{Operator: "d", IDBlock: record.IDBlock{EntryBytes: 0, Entries: make([]byte, 15)}}}},
		{Blocks: []record.OperatorBlock{{Operator: "dedup", IDBlock: record.IDBlock{Generation: 5, EntryBytes: 24, Entries: make([]byte, 24)}}}},
	} {
		if err := task.Apply(b); err == nil {
			t.Errorf("batch %+v is accepted", b)
		}
	}
	if l.kv.version != version {
		t.Error("a refused batch was written in part")
	}
	must(t, m.compare(task))
	if _, err := l.Task(string(make([]byte, maxNameBytes+1))); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a long task name: %v", err)
	}
	reopen(t, l)
}

// Chunks of a batch that did not come to its end are ahead of the position, and healed by the
// batch.
func TestTornBatch(t *testing.T) {
	l := openTest(t, testOptions(t.TempDir()))
	task := mustTask(t, l, "t")
	m := newModelTask()
	first := &record.Batch{
		Blocks:   []record.OperatorBlock{block("dedup", 1, 1, ids(1, 5))},
		State:    []record.StateChange{{Store: "totals", Key: []byte("a"), Value: []byte("1")}},
		Position: position(1),
	}
	must(t, task.Apply(first))
	m.apply(first)
	before := &record.Batch{Blocks: []record.OperatorBlock{block("dedup", 0, 1, ids(7, 5))}, Position: position(1)}
	must(t, task.Apply(before))
	m.apply(before)
	must(t, sealAll(task.Operator("dedup"), 0, 1, []byte("0")))
	m.gens["dedup"][0].sealed = true
	torn := &record.Batch{
		Blocks: []record.OperatorBlock{
			block("dedup", 1, 2, ids(2, 100_000)), block("dedup", 2, 2, ids(3, 5)), block("by region", 1, 2, ids(3, 5)),
		},
		State:    []record.StateChange{{Store: "totals", Key: []byte("a"), Value: []byte("2")}, {Store: "names", Key: []byte("b"), Value: []byte("2")}},
		Drops:    []record.GenerationDrop{{Operator: "dedup", Generation: 0}},
		Position: position(2),
	}
	p := &plan{task: task.number(), gens: map[genID]*generation{}}
	must(t, task.plan(p, torn))
	must(t, l.kv.commitAll(p.body, nil)) // and here the process dies
	l = reopen(t, l)
	task = mustTask(t, l, "t")
	if got := blocksOf(t, task.Operator("dedup"), 1); !bytes.Equal(got, ids(1, 5)) {
		t.Errorf("blocks of a torn batch are served: %d bytes", len(got))
	}
	if got := runsOf(t, task.Operator("dedup"), 0, 1); !bytes.Equal(got, sorted(ids(7, 5))) {
		t.Errorf("a generation that a torn batch drops has %d bytes", len(got))
	}
	if p, _ := task.Position(); p.Sequence != 1 {
		t.Errorf("position %d", p.Sequence)
	}
	// The replay may come in other portions.
	rest := torn.Blocks[0].Entries[3200:]
	torn.Blocks[0].Entries = torn.Blocks[0].Entries[:3200:3200]
	for _, b := range []*record.Batch{torn, {Blocks: []record.OperatorBlock{block("dedup", 1, 2, rest)}, Position: position(3)}} {
		must(t, task.Apply(b))
		m.apply(b)
		must(t, m.compare(task))
	}
	must(t, l.Flatten())
	must(t, m.compare(task))
	l = reopen(t, l)
	must(t, m.compare(mustTask(t, l, "t")))
}

// A seal that was interrupted leaves the blocks, and is done again, also with other slots.
func TestInterruptedSeal(t *testing.T) {
	l := openTest(t, testOptions(t.TempDir()))
	task := mustTask(t, l, "t")
	all := ids(1, 100_000)
	must(t, task.Apply(&record.Batch{Blocks: []record.OperatorBlock{block("d", 1, 1, all)}, Position: position(1)}))
	op := task.Operator("d")
	runs := sortIntoRuns(all, record.HashBytes, 64)
	g := record.Generation{Number: 1, IDs: 100_000, EntryBytes: record.HashBytes, Slots: 64}
	// In the process: the run function gives nonsense after a part was written.
	err := op.Seal(g, func(slot uint32) []byte {
		if slot == 60 {
			return []byte("nonsense")
		}
		return runs[slot]
	}, nil)
	if err == nil {
		t.Fatal("nonsense is sealed")
	}
	if got := blocksOf(t, op, 1); !bytes.Equal(got, all) {
		t.Fatalf("after an interrupted seal %d bytes of blocks", len(got))
	}
	must(t, task.Apply(&record.Batch{Blocks: []record.OperatorBlock{block("d", 1, 1, ids(2, 1))}, Position: position(2)}))
	all = append(all, ids(2, 1)...)
	// By the death of the process: runs are there, the marker is not.
	must(t, l.kv.commit([]write{{partKey(kindRun, task.number(), op.name.number, 1, 63), []byte("half of a seal's")}}))
	l = reopen(t, l)
	task = mustTask(t, l, "t")
	op = task.Operator("d")
	if got := blocksOf(t, op, 1); !bytes.Equal(got, all) {
		t.Fatalf("after a restart %d bytes of blocks", len(got))
	}
	must(t, sealAll(op, 1, 8, []byte("f")))
	if got := runsOf(t, op, 1, 8); !bytes.Equal(got, sorted(all)) {
		t.Errorf("runs of %d bytes, want %d", len(got), len(all))
	}
	must(t, l.Flatten())
	must(t, task.Check())
	l = reopen(t, l)
	if got := runsOf(t, mustTask(t, l, "t").Operator("d"), 1, 8); !bytes.Equal(got, sorted(all)) {
		t.Errorf("after a restart runs of %d bytes", len(got))
	}
	// By a drop or a reset meanwhile: nothing is left of it.
	for i, stop := range []func() error{func() error { return op.Drop(2) }, func() error { return task.Reset() }} {
		task = mustTask(t, l, "t")
		op = task.Operator("d")
		must(t, task.Apply(&record.Batch{Blocks: []record.OperatorBlock{block("d", 2, 1, all)}, Position: position(3)}))
		task := mustTask(t, l, "t")
		runs := sortIntoRuns(all, record.HashBytes, 64)
		err := op.Seal(record.Generation{Number: 2, IDs: uint64(len(all) / 16), EntryBytes: record.HashBytes, Slots: 64},
			func(slot uint32) []byte {
				if slot == 50 {
					must(t, stop())
					must(t, l.Flatten()) // all of it is swept: what is written now would stay
				}
				return runs[slot]
			}, make([]byte, 1<<20))
		wantErr(t, err, ErrUnknownGeneration)
		must(t, l.Flatten())
		want := map[byte]int{kindRun: 8, kindFilter: 1, kindSeal: 1, kindBlock: 0}
		if i == 1 {
			want = map[byte]int{kindRun: 0, kindFilter: 0, kindSeal: 0, kindBlock: 0}
			for number := range uint16(5) { // the numbers that the task had before
				other := &Task{log: l}
				other.name.Store(&name{nameNumber: nameNumber{nameTask, number}})
				countKeys(t, l, other, want)
			}
		}
		countKeys(t, l, task, want)
	}
	for _, bad := range []record.Generation{
		{Number: 9, Slots: 1, EntryBytes: 16}, {Number: 1, Slots: 3, EntryBytes: 16}, {Number: 1, Slots: 0, EntryBytes: 16},
	} {
		task := mustTask(t, l, "t")
		if err := task.Operator("d").Seal(bad, func(uint32) []byte { return nil }, nil); err == nil {
			t.Errorf("seal of %+v is accepted", bad)
		}
	}
}

// Tasks apply, seal, drop, reset and read at the same time, while the log is flattened and closed.
func TestConcurrency(t *testing.T) {
	l := openTest(t, testOptions(t.TempDir()))
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			task := mustTask(t, l, fmt.Sprintf("t/%d", w))
			op, store := task.Operator("d"), task.Store("s")
			var inner sync.WaitGroup
			defer inner.Wait()
			for seq := uint64(1); seq <= 120; seq++ {
				gen := seq / 10
				b := &record.Batch{
					Blocks:   []record.OperatorBlock{block("d", gen, int(seq), ids(seq, 300))},
					State:    []record.StateChange{{Store: "s", Key: []byte("seq"), Value: fmt.Append(nil, seq)}},
					Position: position(seq),
				}
				if gen >= 4 && seq%10 == 0 {
					b.Drops = []record.GenerationDrop{{Operator: "d", Generation: gen - 4}}
				}
				if err := task.Apply(b); err != nil {
					t.Error(err)
					return
				}
				switch {
				case seq%10 == 0 && gen > 0:
					inner.Go(func() {
						if err := sealAll(op, gen-1, 4, []byte("f")); err != nil && !errors.Is(err, ErrUnknownGeneration) {
							t.Error(err)
						}
					})
				case seq%10 == 5:
					inner.Go(func() {
						_ = store.Range(nil, nil, func(_, _ []byte) bool { return true })
						gens, _ := op.Generations()
						for _, g := range gens {
							if _, err := op.Filter(g.Number); err != nil && !errors.Is(err, ErrUnknownGeneration) {
								t.Error(err)
							}
						}
					})
				case seq == 60 && w == 3:
					if err := task.Reset(); err != nil {
						t.Error(err)
					}
				}
				if v, err := store.Get([]byte("seq")); err != nil || seq != 60 && string(v) != fmt.Sprint(seq) {
					t.Errorf("get %q, %v", v, err)
				}
			}
		})
	}
	all.Go(func() {
		for range 3 {
			if err := l.Flatten(); err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()
	for _, name := range l.Tasks() {
		must(t, mustTask(t, l, name).Check())
	}
	l = reopen(t, l)
	for _, name := range l.Tasks() {
		must(t, mustTask(t, l, name).Check())
	}
}

// Close waits for calls, and calls after it are refused instead of touching unmapped memory.
func TestCloseWhileInUse(t *testing.T) {
	for range 5 {
		l := openTest(t, testOptions(t.TempDir()))
		task := mustTask(t, l, "t")
		var all sync.WaitGroup
		started := make(chan struct{}, 8)
		for w := range 4 {
			all.Go(func() {
				for seq := uint64(1); ; seq++ {
					var err error
					if w == 0 {
						err = task.Apply(&record.Batch{
							State:    []record.StateChange{{Store: "s", Key: fmt.Append(nil, seq%100), Value: []byte("v")}},
							Position: position(seq),
						})
					} else if _, err = task.Get("s", []byte("1")); err == nil {
						err = task.Range("s", nil, nil, func(k, _ []byte) bool {
							_, _ = task.Get("s", k) // from within: no deadlock with Close
							return true
						})
					}
					if seq == 20 {
						started <- struct{}{}
					}
					if err != nil {
						if !errors.Is(err, ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		for range 4 {
			<-started
		}
		must(t, l.Close())
		all.Wait()
		l = openTest(t, l.o)
		if reason, ok := l.SetAside(); ok {
			t.Errorf("set aside: %s", reason)
		}
	}
}
