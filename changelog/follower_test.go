package changelog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
)

var (
	idLog  = record.TopicPartition{Topic: "app-sub-ids-changelog", Partition: 2}
	totals = record.TopicPartition{Topic: "app-totals-changelog", Partition: 2}
)

// topic is a partition as a read_committed reader sees it: aborted records and markers leave holes.
type topic struct {
	records []broker.Record
	end     record.Offset
}

func (t *topic) put(key, value []byte, at time.Time) {
	t.records = append(t.records, broker.Record{Offset: t.end, Key: key, Value: value, Timestamp: at})
	t.end++
}

func (t *topic) hole() { t.end++ }

// ids appends a transaction to an ID log: blocks of the generations, then the commit record and its marker.
func (t *topic) ids(seq, incarnation uint64, generations ...uint64) {
	for _, g := range generations {
		b := someBlock()
		b.Generation = g
		b.Entries = binary.BigEndian.AppendUint64(make([]byte, 8), seq)
		t.put(both(EncodeBlock(b)))
	}
	t.put(both(EncodeCommit(record.CommitPoint{
		Sequence: seq, Incarnation: incarnation, StreamTime: noon.Add(time.Duration(seq)),
		Counters: []record.Counter{{Name: fmt.Sprint("c", seq%3), Value: seq}},
	})))
	t.hole()
}

func both(k, v []byte) ([]byte, []byte, time.Time) { return k, v, noon }

func logsOf(id, store *topic) []Log {
	return []Log{
		{TopicPartition: idLog, TopicID: "i", End: id.end, Retention: time.Hour},
		{TopicPartition: totals, TopicID: "t", Store: "totals", End: store.end, DeleteRetention: time.Hour},
	}
}

func mustFollow(t *testing.T, logs []Log, from record.LocalPosition) *Follower {
	t.Helper()
	f, err := NewFollower(logs, from)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func takeAll(f *Follower) (out []record.Batch) {
	for b, ok := f.Take(); ok; b, ok = f.Take() {
		out = append(out, b)
	}
	return out
}

func TestFollowOneTransaction(t *testing.T) {
	id, store := &topic{}, &topic{}
	store.put([]byte("ann"), []byte("5"), noon)
	store.put([]byte("bob"), nil, noon)
	store.hole()
	id.ids(1, 9, 1)
	f := mustFollow(t, logsOf(id, store), record.LocalPosition{AppliedAt: noon.Add(-time.Hour)})
	if f.Done() || f.Remaining() != 6 {
		t.Fatalf("remaining %d", f.Remaining())
	}
	if err := f.Add(totals, store.records, store.end); err != nil {
		t.Fatal(err)
	}
	at := map[record.TopicPartition]record.Offset{}
	for tp, next := range f.Positions() {
		at[tp] = next
	}
	if !reflect.DeepEqual(at, map[record.TopicPartition]record.Offset{idLog: 0}) {
		t.Errorf("left to read: %v", at)
	}
	steps := takeAll(f)
	if len(steps) != 1 || steps[0].Position.Complete || len(steps[0].State) != 2 || steps[0].Position.Sequence != 0 {
		t.Fatalf("%+v", steps)
	}
	if c := steps[0].Position.Changelogs; c[0].Next != 0 || c[1].Next != 3 || c[1].TopicID != "t" {
		t.Errorf("%+v", c)
	}
	// The block without its commit record is not handed over.
	if err := f.Add(idLog, id.records[:1], 1); err != nil {
		t.Fatal(err)
	}
	if steps := takeAll(f); steps != nil {
		t.Fatalf("%+v", steps)
	}
	if err := f.Add(idLog, id.records[1:], id.end); err != nil {
		t.Fatal(err)
	}
	steps = takeAll(f)
	if len(steps) != 1 {
		t.Fatalf("%+v", steps)
	}
	p := steps[0].Position
	if !p.Complete || p.Sequence != 1 || p.Incarnation != 9 || !p.AppliedAt.Equal(noon) || len(steps[0].Blocks) != 1 {
		t.Errorf("%+v", steps[0])
	}
	// Behind the commit record, not the end: markers are no business of a position.
	if p.Changelogs[0].Next != 2 || id.end != 3 {
		t.Errorf("%+v", p.Changelogs)
	}
	if !f.Done() || f.Remaining() != 0 || f.Point().Sequence != 1 {
		t.Errorf("remaining %d, %+v", f.Remaining(), f.Point())
	}
}

// A store learns that it is complete even if there was nothing to read.
func TestNothingToFollow(t *testing.T) {
	f := mustFollow(t, logsOf(&topic{}, &topic{}), record.LocalPosition{})
	steps := takeAll(f)
	if !f.Done() || len(steps) != 1 || !steps[0].Position.Complete || f.Point().Sequence != 0 {
		t.Errorf("%+v", steps)
	}
	// A9: an end behind markers only is reached, and nothing remains.
	id := &topic{end: 5}
	f = mustFollow(t, logsOf(id, &topic{}), record.LocalPosition{})
	if f.Done() {
		t.Error("done before anything was read")
	}
	if err := f.Add(idLog, nil, 5); err != nil || !f.Done() || f.Remaining() != 0 {
		t.Errorf("%v, remaining %d", err, f.Remaining())
	}
}

// FIELD A3: what comes after the end that was asked for does not hold up the restore.
func TestRecordsBehindTheEnd(t *testing.T) {
	id := &topic{}
	id.ids(1, 9, 1)
	logs := logsOf(id, &topic{})
	id.ids(2, 9, 1)
	id.put(both(EncodeBlock(someBlock())))
	f := mustFollow(t, logs, record.LocalPosition{})
	if err := f.Add(idLog, id.records, id.end); err != nil || !f.Done() {
		t.Fatalf("%v, remaining %d", err, f.Remaining())
	}
	if p := takeAll(f)[0].Position; !p.Complete || p.Sequence != 2 || p.Changelogs[0].Next != 5 {
		t.Errorf("%+v", p)
	}
}

func TestFollowErrors(t *testing.T) {
	local := func(seq, incarnation uint64, next record.Offset) record.LocalPosition {
		return record.LocalPosition{
			CommitPoint: record.CommitPoint{Sequence: seq, Incarnation: incarnation},
			Changelogs:  []record.ChangelogPosition{{TopicPartition: idLog, TopicID: "i", Next: next}, {TopicPartition: totals}},
		}
	}
	for name, c := range map[string]struct {
		from record.LocalPosition
		fill func(*topic)
		want error
	}{
		"gap":           {record.LocalPosition{}, func(id *topic) { id.ids(1, 9); id.ids(3, 9) }, ErrSequence},
		"repeat":        {record.LocalPosition{}, func(id *topic) { id.ids(2, 9); id.ids(2, 9) }, ErrSequence},
		"back":          {record.LocalPosition{}, func(id *topic) { id.ids(2, 9); id.ids(1, 9) }, ErrSequence},
		"tail gap":      {local(5, 9, 0), func(id *topic) { id.ids(7, 9) }, ErrSequence},
		"tail repeat":   {local(5, 9, 0), func(id *topic) { id.ids(5, 9) }, ErrSequence},
		"tail of reset": {local(5, 9, 0), func(id *topic) { id.ids(1, 10) }, ErrSequence},
		"reset in tail": {local(5, 9, 0), func(id *topic) { id.ids(6, 9, 1); id.ids(1, 10) }, ErrSequence},
		"torn":          {record.LocalPosition{}, func(id *topic) { id.ids(1, 9); id.put(both(EncodeBlock(someBlock()))); id.hole() }, ErrTorn},
		"foreign":       {record.LocalPosition{}, func(id *topic) { id.put([]byte("x"), []byte("y"), noon) }, ErrForeign},
		"newer":         {record.LocalPosition{}, func(id *topic) { id.put([]byte{2}, []byte{2}, noon) }, ErrNewerFormat},
		"corrupt":       {record.LocalPosition{}, func(id *topic) { id.put([]byte{2}, []byte{1}, noon) }, ErrCorrupt},
		"tail":          {local(5, 9, 0), func(id *topic) { id.ids(6, 9, 1, 2); id.ids(7, 9) }, nil},
		"cut head":      {record.LocalPosition{}, func(id *topic) { id.ids(700, 9); id.ids(701, 9) }, nil},
		"reset":         {record.LocalPosition{}, func(id *topic) { id.ids(700, 9); id.ids(1, 10) }, nil},
	} {
		id := &topic{}
		c.fill(id)
		f := mustFollow(t, logsOf(id, &topic{}), c.from)
		err := f.Add(idLog, id.records, id.end)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && !strings.Contains(err.Error(), "app-sub-ids-changelog/2") {
			t.Errorf("%s: no place in %v", name, err)
		}
	}
	f := mustFollow(t, logsOf(&topic{}, &topic{}), record.LocalPosition{})
	if err := f.Add(totals, []broker.Record{{Value: []byte("x")}}, 1); !errors.Is(err, ErrCorrupt) {
		t.Errorf("state without a key: %v", err)
	}
	if err := f.Add(record.TopicPartition{Topic: "x"}, nil, 1); err == nil {
		t.Error("records of a stranger are taken")
	}
	for name, logs := range map[string][]Log{"none": nil, "no ID log": logsOf(&topic{}, &topic{})[1:], "two": append(logsOf(&topic{}, &topic{}), logsOf(&topic{}, &topic{})...)} {
		if _, err := NewFollower(logs, record.LocalPosition{}); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if _, err := NewFollower(logsOf(&topic{}, &topic{}), record.LocalPosition{Changelogs: []record.ChangelogPosition{{TopicPartition: idLog}}}); err == nil {
		t.Error("a position that lacks a store is taken")
	}
}

// A reset in the middle of a full restore makes the IDs before it void.
func TestResetDropsGenerations(t *testing.T) {
	id := &topic{}
	id.ids(6, 9, 1, 2)
	id.ids(7, 9, 2)
	id.ids(1, 10, 1)
	f := mustFollow(t, logsOf(id, &topic{}), record.LocalPosition{})
	if err := f.Add(idLog, id.records, id.end); err != nil {
		t.Fatal(err)
	}
	steps := takeAll(f)
	if len(steps) != 3 || len(steps[0].Blocks) != 3 || len(steps[2].Blocks) != 1 {
		t.Fatalf("%+v", steps)
	}
	want := []record.GenerationDrop{{Operator: "unique", Generation: 1}, {Operator: "unique", Generation: 2}}
	if !reflect.DeepEqual(steps[1].Drops, want) || steps[1].Blocks != nil {
		t.Errorf("%+v", steps[1])
	}
	if p := steps[2].Position; p.Sequence != 1 || p.Incarnation != 10 || len(p.Counters) != 1 {
		t.Errorf("%+v", p)
	}
}

// TestFollowRandomly: however the fetches are cut, and wherever a crash makes it begin again, the sum of
// the steps is the committed content, and no step holds half a transaction's IDs.
func TestFollowRandomly(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		id, store := &topic{}, &topic{}
		wantIDs, wantState := map[string]bool{}, map[string]string{}
		ends := map[record.Offset]bool{0: true} // behind commit records
		for seq := uint64(1); seq <= uint64(rng.IntN(40)); seq++ {
			for range rng.IntN(3) { // aborted transactions
				id.hole()
				store.hole()
			}
			for range rng.IntN(4) {
				k, v := fmt.Sprint(rng.IntN(9)), []byte(fmt.Sprint(seq))
				if rng.IntN(5) == 0 {
					v = nil
					delete(wantState, k)
				} else {
					wantState[k] = string(v)
				}
				store.put([]byte(k), v, noon)
			}
			store.hole()
			gens := make([]uint64, rng.IntN(3))
			for i := range gens {
				gens[i] = seq/5 + 1
				wantIDs[fmt.Sprint(seq)] = true
			}
			id.ids(seq, 9, gens...)
			ends[id.end-1] = true
		}
		ids, state := map[string]bool{}, map[string]string{}
		var local record.LocalPosition
		for run := 0; ; run++ {
			f := mustFollow(t, logsOf(id, store), local)
			crash := run < 3 && rng.IntN(2) == 0
			for !f.Done() && (!crash || rng.IntN(6) > 0) {
				tp, top := idLog, id
				if rng.IntN(2) == 0 {
					tp, top = totals, store
				}
				next := f.find(tp).next
				from := next - record.Offset(rng.IntN(3)) // a fetch begins at a batch's start
				to := min(next+record.Offset(rng.IntN(12)), top.end)
				var recs []broker.Record
				for _, r := range top.records {
					if r.Offset >= from && r.Offset < to {
						recs = append(recs, r)
					}
				}
				if err := f.Add(tp, recs, max(to, next)); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if rng.IntN(3) == 0 && !f.Done() {
					continue
				}
				for _, b := range takeAll(f) {
					for _, blk := range b.Blocks {
						ids[fmt.Sprint(binary.BigEndian.Uint64(blk.Entries[8:]))] = true
					}
					for _, c := range b.State {
						if c.Value == nil {
							delete(state, string(c.Key))
						} else {
							state[string(c.Key)] = string(c.Value)
						}
					}
					local = b.Position
					if !ends[local.Changelogs[0].Next] || local.Complete && !f.Done() {
						t.Fatalf("seed %d: %+v", seed, local)
					}
				}
			}
			if f.Done() {
				takeAll(f)
				break
			}
		}
		if !reflect.DeepEqual(ids, wantIDs) || !reflect.DeepEqual(state, wantState) {
			t.Fatalf("seed %d: %v, want %v; %v, want %v", seed, ids, wantIDs, state, wantState)
		}
		if n := local.Sequence; n > 0 {
			// Counters that a commit record leaves out are still those of the ones before.
			if len(local.Counters) != int(min(n, 3)) {
				t.Fatalf("seed %d: counters %+v at %d", seed, local.Counters, n)
			}
			for _, c := range local.Counters {
				if c.Value > n || c.Value+3 <= n || c.Name != fmt.Sprint("c", c.Value%3) {
					t.Fatalf("seed %d: counters %+v at %d", seed, local.Counters, n)
				}
			}
		}
	}
}

// TestOverrunOfAStateTopic: a state change behind the end that was asked for is somebody else's, as a commit record is. A marker there is not.
func TestOverrunOfAStateTopic(t *testing.T) {
	for behind, want := range map[int]bool{0: false, 1: true} {
		id, store := &topic{}, &topic{}
		store.put([]byte("ann"), []byte("5"), noon)
		logs := logsOf(id, store)
		for range behind {
			store.put([]byte("bob"), []byte("6"), noon)
		}
		store.hole()
		f := mustFollow(t, logs, record.LocalPosition{})
		if err := f.Add(totals, store.records, store.end); err != nil {
			t.Fatal(err)
		}
		if got := f.Overrun(); got != want {
			t.Errorf("%d changes behind the end: overrun is %v", behind, got)
		}
	}
}

// TestAgeOfWhatIsLeft: a restore that was cut short is as old as the oldest of what was read last of each state topic, not as a commit record.
func TestAgeOfWhatIsLeft(t *testing.T) {
	id, store := &topic{}, &topic{}
	store.put([]byte("ann"), []byte("5"), noon.Add(-30*time.Hour))
	read := store.end
	store.put([]byte("ann"), nil, noon.Add(-29*time.Hour))
	id.ids(1, 9, 1)
	f := mustFollow(t, logsOf(id, store), record.LocalPosition{})
	if err := f.Add(idLog, id.records, id.end); err != nil {
		t.Fatal(err)
	}
	for _, s := range takeAll(f) {
		if !s.Position.AppliedAt.IsZero() {
			t.Errorf("no state was read, and it is of %v", s.Position.AppliedAt)
		}
	}
	if err := f.Add(totals, store.records[:1], read); err != nil {
		t.Fatal(err)
	}
	steps := takeAll(f)
	if len(steps) != 1 || steps[0].Position.Complete || !steps[0].Position.AppliedAt.Equal(noon.Add(-30*time.Hour)) {
		t.Errorf("%+v", steps)
	}
}

// TestAgeOfOldEvents: what was read of a state topic is as young as a commit that lies before its end, however old the events are and in whichever
// order the topics are read; without any sign it is as old as can be, but never as if nothing had been read.
func TestAgeOfOldEvents(t *testing.T) {
	for _, idsFirst := range []bool{true, false} {
		id, store := &topic{}, &topic{}
		store.put([]byte("ann"), []byte("5"), time.Time{})
		store.put([]byte("bob"), []byte("6"), noon.Add(-99*time.Hour))
		read := store.end
		store.put([]byte("ann"), nil, noon.Add(-99*time.Hour))
		for i, next := range []record.Offset{0, 2, 3} { // the third commit lies behind what is read
			k, v := EncodeCommit(record.CommitPoint{
				Sequence: uint64(i + 1), Incarnation: 9, Stores: []record.StorePosition{{Store: "totals", TopicID: "t", Next: next}},
			})
			id.put(k, v, noon.Add(time.Duration(i-10)*time.Hour))
			id.hole()
		}
		f := mustFollow(t, logsOf(id, store), record.LocalPosition{})
		ids := func() { must(t, f.Add(idLog, id.records, id.end)) }
		if idsFirst {
			ids()
		}
		must(t, f.Add(totals, store.records[:1], 1))
		steps := takeAll(f)
		want := unknownAge()
		if idsFirst {
			want = noon.Add(-10 * time.Hour)
		}
		if got := steps[len(steps)-1].Position.AppliedAt; !got.Equal(want) {
			t.Errorf("IDs first %v, one change read: of %v, want %v", idsFirst, got, want)
		}
		must(t, f.Add(totals, store.records[1:read], read))
		if !idsFirst {
			ids()
		}
		steps = takeAll(f)
		if p := steps[len(steps)-1].Position; p.Complete || !p.AppliedAt.Equal(noon.Add(-9*time.Hour)) {
			t.Errorf("IDs first %v: %+v", idsFirst, p)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
