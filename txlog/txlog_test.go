package txlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/streamd/streamd/record"
)

// testOptions are small and quick: the floor is out of the way.
func testOptions(dir string) Options {
	return Options{Dir: dir, App: "bills", Cluster: "c1", MinFreeBytes: 1, MemTableBytes: minMemTableBytes}
}

func openTest(t testing.TB, o Options) *Log {
	t.Helper()
	l, err := Open(o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func mustTask(t testing.TB, l *Log, name string) *Task {
	t.Helper()
	task, err := l.Task(name)
	if err != nil {
		t.Fatal(err)
	}
	return task
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("error is %v, want %v", got, want)
	}
}

// ids makes n entries that depend on seed.
func ids(seed uint64, n int) []byte {
	var b []byte
	for i := range n {
		h := xxh3.Hash128Seed(binary.BigEndian.AppendUint64(nil, uint64(i)), seed)
		b = binary.BigEndian.AppendUint64(b, h.Hi)
		b = binary.BigEndian.AppendUint64(b, h.Lo)
	}
	return b
}

func at(second int) time.Time { return time.Unix(int64(second), 5_000_000).UTC() }

func block(op string, gen uint64, second int, entries []byte) record.OperatorBlock {
	return record.OperatorBlock{Operator: op, IDBlock: record.IDBlock{
		Generation: gen, StreamTime: at(second), EntryBytes: record.HashBytes, Entries: entries,
	}}
}

func position(seq uint64) record.LocalPosition {
	return record.LocalPosition{
		CommitPoint: record.CommitPoint{
			Sequence: seq, Incarnation: 77, StreamTime: at(int(seq)),
			Inputs: []record.InputPosition{{
				TopicPartition: record.TopicPartition{Topic: "bills", Partition: 3}, Next: record.Offset(seq * 10),
			}},
			Counters: []record.Counter{{Name: "in", Value: seq * 9}},
		},
		Complete: true,
		Changelogs: []record.ChangelogPosition{{
			TopicPartition: record.TopicPartition{Topic: "bills-ids-changelog", Partition: 3},
			TopicID:        "u-u-i-d", Next: record.Offset(seq * 2),
		}},
		AppliedAt: at(1000 + int(seq)),
	}
}

// blocksOf returns all entries of a generation's blocks.
func blocksOf(t testing.TB, o *Operator, gen uint64) []byte {
	t.Helper()
	var out []byte
	must(t, o.Blocks(gen, func(b record.IDBlock) error {
		out = append(out, b.Entries...)
		return nil
	}))
	return out
}

// sortIntoRuns is what dedup does to seal a generation.
func sortIntoRuns(entries []byte, entryBytes int, slots uint32) [][]byte {
	var list [][]byte
	for e := range slices.Chunk(entries, entryBytes) {
		list = append(list, e)
	}
	slices.SortFunc(list, bytes.Compare)
	runs := make([][]byte, slots)
	for _, e := range list {
		slot := uint32(uint64(binary.BigEndian.Uint32(e)) * uint64(slots) >> 32)
		runs[slot] = append(runs[slot], e...)
	}
	return runs
}

// sealAll seals a generation from its blocks.
func sealAll(o *Operator, gen uint64, slots uint32, filter []byte) error {
	var entries []byte
	if err := o.Blocks(gen, func(b record.IDBlock) error {
		entries = append(entries, b.Entries...)
		return nil
	}); err != nil {
		return err
	}
	runs := sortIntoRuns(entries, record.HashBytes, slots)
	g := record.Generation{
		Number: gen, IDs: uint64(len(entries) / record.HashBytes), EntryBytes: record.HashBytes, Slots: slots,
		From: at(1), To: at(9),
	}
	return o.Seal(g, func(slot uint32) []byte { return runs[slot] }, filter)
}

func runsOf(t testing.TB, o *Operator, gen uint64, slots uint32) []byte {
	t.Helper()
	var out []byte
	for slot := range slots {
		run, err := o.Run(gen, slot)
		must(t, err)
		out = append(out, run...)
	}
	return out
}

func sorted(entries []byte) []byte {
	return bytes.Join(sortIntoRuns(entries, record.HashBytes, 1), nil)
}

// reopen closes the log cleanly and opens it again, and checks that nothing was set aside.
func reopen(t testing.TB, l *Log) *Log {
	t.Helper()
	must(t, l.Close())
	l = openTest(t, l.o)
	if reason, ok := l.SetAside(); ok {
		t.Fatalf("set aside: %s", reason)
	}
	return l
}

func TestEmptyLog(t *testing.T) {
	l := openTest(t, testOptions(t.TempDir()))
	if reason, ok := l.SetAside(); ok {
		t.Fatalf("a new log is set aside: %s", reason)
	}
	task := mustTask(t, l, "bills/0")
	if _, ok := task.Position(); ok {
		t.Fatal("a new task has a position")
	}
	v, err := task.Get("totals", []byte("k"))
	if v != nil || err != nil {
		t.Fatalf("get from a new task: %q, %v", v, err)
	}
	gens, err := task.Operator("dedup").Generations()
	if len(gens) != 0 || err != nil {
		t.Fatalf("generations of a new task: %v, %v", gens, err)
	}
	must(t, task.Check())
	if len(l.Tasks()) != 0 {
		t.Fatalf("tasks without content are listed: %q", l.Tasks())
	}
	l = reopen(t, l)
	if len(l.Tasks()) != 0 {
		t.Fatalf("a task that was only asked for is on disk: %q", l.Tasks())
	}
}

func TestBatchRoundTrip(t *testing.T) {
	l := openTest(t, testOptions(t.TempDir()))
	task := mustTask(t, l, "bills/3")
	first, second := ids(1, 100), ids(2, 50)
	must(t, task.Apply(&record.Batch{
		Blocks: []record.OperatorBlock{block("dedup", 7, 10, first), block("other", 1, 10, ids(9, 3))},
		State: []record.StateChange{
			{Store: "totals", Key: []byte("a"), Value: []byte("1")},
			{Store: "totals", Key: []byte("b"), Value: []byte{}},
			{Store: "totals", Key: nil, Value: []byte("empty key")},
			{Store: "names", Key: []byte("a"), Value: []byte("x")},
		},
		Position: position(1),
	}))
	must(t, task.Apply(&record.Batch{
		Blocks: []record.OperatorBlock{block("dedup", 7, 20, second)},
		State: []record.StateChange{
			{Store: "names", Key: []byte("a")},
			{Store: "totals", Key: []byte("a"), Value: []byte("2")},
		},
		Position: position(2),
	}))
	check := func(t *testing.T, l *Log) {
		t.Helper()
		task := mustTask(t, l, "bills/3")
		p, ok := task.Position()
		if !ok || fmt.Sprint(p) != fmt.Sprint(position(2)) {
			t.Errorf("position %v %v, want %v", ok, p, position(2))
		}
		for _, want := range []struct {
			store, key string
			value      []byte
		}{
			{"totals", "a", []byte("2")},
			{"totals", "b", []byte{}},
			{"totals", "", []byte("empty key")},
			{"names", "a", nil},
			{"totals", "c", nil},
			{"unknown", "a", nil},
		} {
			v, err := task.Get(want.store, []byte(want.key))
			if err != nil || !bytes.Equal(v, want.value) || (v == nil) != (want.value == nil) {
				t.Errorf("get %s/%s = %q, %v, want %q", want.store, want.key, v, err, want.value)
			}
		}
		op := task.Operator("dedup")
		if got := blocksOf(t, op, 7); !bytes.Equal(got, append(bytes.Clone(first), second...)) {
			t.Errorf("blocks have %d bytes, want the 150 IDs in their order", len(got))
		}
		gens, err := op.Generations()
		want := record.Generation{Number: 7, IDs: 150, EntryBytes: 16, From: at(10), To: at(20)}
		if err != nil || len(gens) != 1 || gens[0] != want {
			t.Errorf("generations %+v, %v, want %+v", gens, err, want)
		}
		if err := task.Check(); err != nil {
			t.Error(err)
		}
	}
	check(t, l)
	l = reopen(t, l)
	check(t, l)
	must(t, l.Flatten())
	check(t, l)
	l = reopen(t, l)
	check(t, l)
	if got := l.Tasks(); !slices.Equal(got, []string{"bills/3"}) {
		t.Errorf("tasks %q", got)
	}
}

func TestTasksDoNotMix(t *testing.T) {
	l := openTest(t, testOptions(t.TempDir()))
	for i := range 5 {
		task := mustTask(t, l, fmt.Sprintf("t/%d", i))
		must(t, task.Apply(&record.Batch{
			Blocks:   []record.OperatorBlock{block("d", 1, 1, ids(uint64(i), 10+i))},
			State:    []record.StateChange{{Store: "s", Key: []byte("k"), Value: fmt.Append(nil, i)}},
			Position: position(uint64(i + 1)),
		}))
	}
	l = reopen(t, l)
	for i := range 5 {
		task := mustTask(t, l, fmt.Sprintf("t/%d", i))
		v, err := task.Get("s", []byte("k"))
		if err != nil || string(v) != fmt.Sprint(i) {
			t.Errorf("task %d: %q %v", i, v, err)
		}
		if got := blocksOf(t, task.Operator("d"), 1); !bytes.Equal(got, ids(uint64(i), 10+i)) {
			t.Errorf("task %d: %d bytes of IDs", i, len(got))
		}
		if p, _ := task.Position(); p.Sequence != uint64(i+1) {
			t.Errorf("task %d: sequence %d", i, p.Sequence)
		}
	}
}

func TestRange(t *testing.T) {
	l := openTest(t, testOptions(t.TempDir()))
	task := mustTask(t, l, "t")
	b := record.Batch{Position: position(1)}
	for _, k := range []string{"a", "ab", "b", "c", "\xff", "\xff\xff"} {
		b.State = append(b.State, record.StateChange{Store: "s", Key: []byte(k), Value: []byte("v" + k)})
	}
	b.State = append(b.State, record.StateChange{Store: "t", Key: []byte("a"), Value: []byte("other store")})
	must(t, task.Apply(&b))
	for _, c := range []struct {
		from, to []byte
		limit    int
		want     []string
	}{
		{nil, nil, 99, []string{"a", "ab", "b", "c", "\xff", "\xff\xff"}},
		{[]byte("ab"), []byte("c"), 99, []string{"ab", "b"}},
		{[]byte("b"), nil, 2, []string{"b", "c"}},
		{nil, []byte{}, 99, nil},
		{[]byte("\xff\xff\xff"), nil, 99, nil},
	} {
		var got []string
		must(t, task.Range("s", c.from, c.to, func(k, v []byte) bool {
			if string(v) != "v"+string(k) {
				t.Errorf("value of %q is %q", k, v)
			}
			got = append(got, string(k))
			return len(got) < c.limit
		}))
		if !slices.Equal(got, c.want) {
			t.Errorf("range %q to %q: %q, want %q", c.from, c.to, got, c.want)
		}
	}
}

func TestSealAndDrop(t *testing.T) {
	for _, viaBatch := range []bool{false, true} {
		t.Run(fmt.Sprintf("drop in batch %v", viaBatch), func(t *testing.T) {
			l := openTest(t, testOptions(t.TempDir()))
			task := mustTask(t, l, "t")
			op := task.Operator("dedup")
			all := ids(1, 5000)
			for i := range 5 {
				must(t, task.Apply(&record.Batch{
					Blocks:   []record.OperatorBlock{block("dedup", 1, i, all[i*16000:(i+1)*16000])},
					Position: position(uint64(i + 1)),
				}))
			}
			filter := bytes.Repeat([]byte("filter"), 300_000) // several chunks
			must(t, sealAll(op, 1, 16, filter))
			must(t, sealAll(op, 1, 16, filter)) // again: nothing happens
			wantErr(t, task.Apply(&record.Batch{
				Blocks: []record.OperatorBlock{block("dedup", 1, 1, ids(5, 1))}, Position: position(6),
			}), ErrSealed)
			must(t, task.Apply(&record.Batch{
				Blocks: []record.OperatorBlock{block("dedup", 2, 7, ids(2, 10))}, Position: position(6),
			}))
			check := func() {
				t.Helper()
				op = task.Operator("dedup")
				if got := runsOf(t, op, 1, 16); !bytes.Equal(got, sorted(all)) {
					t.Fatalf("runs have %d bytes", len(got))
				}
				if got, err := op.Filter(1); err != nil || !bytes.Equal(got, filter) {
					t.Fatalf("filter of %d bytes, %v", len(got), err)
				}
				if got := blocksOf(t, op, 1); len(got) != 0 {
					t.Fatalf("a sealed generation has %d bytes of blocks", len(got))
				}
				gens, err := op.Generations()
				must(t, err)
				if len(gens) != 2 || !gens[0].Sealed || gens[0].Slots != 16 || gens[0].IDs != 5000 ||
					gens[0].From != at(1) || gens[0].To != at(9) || gens[1].Sealed || gens[1].IDs != 10 {
					t.Fatalf("generations %+v", gens)
				}
				must(t, task.Check())
			}
			check()
			l = reopen(t, l)
			task = mustTask(t, l, "t")
			check()
			must(t, l.Flatten())
			check()
			if viaBatch {
				must(t, task.Apply(&record.Batch{
					Drops:    []record.GenerationDrop{{Operator: "dedup", Generation: 1}, {Operator: "dedup", Generation: 44}},
					Position: position(7),
				}))
			} else {
				must(t, op.Drop(1))
				must(t, op.Drop(1))
			}
			if _, err := op.Run(1, 0); !errors.Is(err, ErrUnknownGeneration) {
				t.Fatalf("run of a dropped generation: %v", err)
			}
			for left := true; left; {
				var err error
				left, err = l.Sweep(7)
				must(t, err)
			}
			countKeys(t, l, task, map[byte]int{kindRun: 0, kindFilter: 0, kindSeal: 0, kindBlock: 1})
			l = reopen(t, l)
			task = mustTask(t, l, "t")
			if gens, _ := task.Operator("dedup").Generations(); len(gens) != 1 || gens[0].Number != 2 {
				t.Fatalf("generations after the drop: %+v", gens)
			}
		})
	}
}

// countKeys checks how many keys of a kind the task has on disk.
func countKeys(t testing.TB, l *Log, task *Task, want map[byte]int) {
	t.Helper()
	for _, kind := range slices.Sorted(maps.Keys(want)) {
		n := 0
		must(t, l.kv.each(taskKey(kind, task.number()), nil, func(entry) ([]byte, error) {
			n++
			return nil, nil
		}))
		if n != want[kind] {
			t.Errorf("%d keys of kind %c, want %d", n, kind, want[kind])
		}
	}
}

func TestResetAndForget(t *testing.T) {
	l := openTest(t, testOptions(t.TempDir()))
	task := mustTask(t, l, "t")
	store, op := task.Store("s"), task.Operator("d")
	fill := func(seq uint64) {
		t.Helper()
		b := record.Batch{Blocks: []record.OperatorBlock{block("d", 1, 1, ids(seq, 20))}, Position: position(seq)}
		for i := range 600 {
			b.State = append(b.State, record.StateChange{Store: "s", Key: fmt.Append(nil, seq, i), Value: []byte("v")})
		}
		must(t, task.Apply(&b))
	}
	fill(1)
	must(t, sealAll(op, 1, 1, nil))
	must(t, task.Reset())
	gone := func() {
		t.Helper()
		if _, ok := task.Position(); ok {
			t.Fatal("position after a reset")
		}
		if v, err := store.Get([]byte("1 0")); v != nil || err != nil {
			t.Fatalf("state after a reset: %q %v", v, err)
		}
		if gens, _ := op.Generations(); len(gens) != 0 {
			t.Fatalf("generations after a reset: %v", gens)
		}
	}
	gone()
	l = reopen(t, l)
	task = mustTask(t, l, "t")
	store, op = task.Store("s"), task.Operator("d")
	gone()
	fill(5) // the old content is swept meanwhile
	must(t, l.Flatten())
	if v, err := store.Get([]byte("5 7")); string(v) != "v" || err != nil {
		t.Fatalf("state of the new content: %q %v", v, err)
	}
	must(t, task.Check())
	must(t, l.Forget("t"))
	must(t, l.Forget("t"))
	wantErr(t, task.Apply(&record.Batch{Position: position(6)}), ErrClosed)
	must(t, l.Flatten())
	n := 0
	must(t, l.kv.each(nil, nil, func(e entry) ([]byte, error) {
		if e.key[0] != kindName && e.key[0] != kindVersion {
			t.Errorf("key %q is left", e.key)
		}
		n++
		return nil, nil
	}))
	if n > 3 { // the names of the operator and the store, and the version
		t.Errorf("%d keys are left", n)
	}
	l = reopen(t, l)
	if len(l.Tasks()) != 0 {
		t.Errorf("forgotten task is back: %q", l.Tasks())
	}
}

// Dropped generations leave the disk at Flatten, also when they were swept in an earlier session or
// stand in the memtable only.
func TestFlattenFreesSpace(t *testing.T) {
	for _, restart := range []bool{false, true} {
		l := openTest(t, testOptions(t.TempDir()))
		task := mustTask(t, l, "t")
		for gen := range uint64(3) {
			for i := range 200 {
				must(t, task.Apply(&record.Batch{
					Blocks:   []record.OperatorBlock{block("d", gen, 1, hashes(nil, i*5000, 5000))},
					Position: position(gen*200 + uint64(i) + 1),
				}))
			}
		}
		// Into the last level, where only a compaction frees them.
		waitFor(t, "the first tables", func() bool { z, err := l.Sizes(); return err == nil && z.TableFiles > 4 })
		must(t, l.Flatten())
		full, err := l.Sizes()
		must(t, err)
		must(t, task.Operator("d").Drop(0))
		must(t, task.Operator("d").Drop(1))
		for left := true; left; {
			left, err = l.Sweep(sweepAll)
			must(t, err)
		}
		if restart {
			l = reopen(t, l)
			task = mustTask(t, l, "t")
		}
		must(t, l.Flatten())
		after, err := l.Sizes()
		must(t, err)
		if full.Total < 40<<20 || after.Total > 24<<20 {
			t.Errorf("restart %v: %d MB before the drop, %d MB after it; 16 MB are alive", restart, full.Total>>20, after.Total>>20)
		}
		must(t, task.Check())
		// The newest commits were deletions, which a compaction drops: their version is still known.
		l = reopen(t, l)
		must(t, l.Close())
	}
}
