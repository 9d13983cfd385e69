package processor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
)

const noRow = -1

// rated is an application that joins each record of "in" with the row of the first letter of its key in "rates": the value of what comes out
// is the row's, noRow where there is none. Stateful: behind a dedup.
func rated(t *testing.T, stateful bool, opts ...topology.GlobalTableOption) *topology.Topology {
	t.Helper()
	b := topology.New("app")
	rates := topology.GlobalTable(b, "rates", serde.String(), serde.Int64(), append([]topology.GlobalTableOption{topology.Name("rate")}, opts...)...)
	in := topology.From(b, "in", serde.String(), serde.Int64(), topology.IDHeader("id"))
	if stateful {
		in = topology.Dedup(in, "unique", topology.Retention(24*time.Hour))
	}
	by := func(k string, _ int64) (string, error) { return k[:1], nil }
	out := topology.LeftJoinGlobal(in, rates, "rated", by, func(_ string, _ int64, row *int64) (int64, error) {
		if row == nil {
			return noRow, nil
		}
		return *row, nil
	})
	topology.To(out, "out", serde.String(), serde.Int64())
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// tombstones is how long deletions are kept in the topic of the table.
const tombstones = time.Hour

func newGlobalWorld(t *testing.T, topo *topology.Topology) *world {
	w := newWorld(t, topo)
	w.makeRates()
	return w
}

func (w *world) makeRates() {
	w.t.Helper()
	if err := w.b.Client("setup").CreateTopic(context.Background(), broker.Topic{Name: "rates", Partitions: 2, Replicas: 1, Cleanup: broker.Compact, DeleteRetention: tombstones}); err != nil {
		w.t.Fatal(err)
	}
}

func ratesPartition(key string) record.TopicPartition {
	return record.TopicPartition{Topic: "rates", Partition: record.PartitionForKey([]byte(key), 2)}
}

// rate writes a row; a negative one deletes it.
func (w *world) rate(key string, v int64) {
	r := broker.Record{Key: []byte(key), Timestamp: w.b.Now()}
	if v >= 0 {
		r.Value = binary.BigEndian.AppendUint64(nil, uint64(v))
	}
	w.b.Append(ratesPartition(key), r)
}

// outs are the values of the results by their keys.
func (w *world) outs() map[string][]int64 {
	all := map[string][]int64{}
	for p := range record.Partition(2) {
		for _, r := range w.b.Committed(record.TopicPartition{Topic: "out", Partition: p}) {
			all[string(r.Key)] = append(all[string(r.Key)], int64(binary.BigEndian.Uint64(r.Value)))
		}
	}
	return all
}

func (w *world) wantOuts(key string, want ...int64) {
	w.t.Helper()
	if got := w.outs()[key]; !slices.Equal(got, want) {
		w.t.Errorf("results of %q: %v, want %v", key, got, want)
	}
}

// muted is a reader from which nothing is heard while its brokers are away.
type muted struct {
	broker.Reader
	away *bool
}

func (m muted) Poll(ctx context.Context, wait time.Duration) []broker.Batch {
	if *m.away {
		return nil
	}
	return m.Reader.Poll(ctx, wait)
}

// cutOff makes it possible to cut the reader of the global tables off.
func cutOff(s *Stepper) *bool {
	away := false
	s.engine.globals.reader = muted{s.engine.globals.reader, &away}
	return &away
}

// TestGlobalTable: the first record finds the rows that were there before the start, later ones what came meanwhile.
func TestGlobalTable(t *testing.T) {
	for _, stateful := range []bool{false, true} {
		w := newGlobalWorld(t, rated(t, stateful))
		for i := range int64(300) {
			w.rate(fmt.Sprint(i%7), i)
		}
		w.rate("a", 1)
		w.rate("b", 2)
		w.rate("b", -1)
		w.send(0, "ann", "1", 0)
		w.send(1, "bob", "2", 0)
		w.maxFetch = 100 // the table comes in many pieces
		s := w.live()
		w.settle(s)
		w.wantOuts("ann", 1)
		w.wantOuts("bob", noRow)
		w.rate("a", 3)
		w.rate("b", 4)
		w.settle(s)
		w.send(0, "ann", "3", 0)
		w.send(1, "bob", "4", 0)
		w.settle(s)
		w.wantOuts("ann", 1, 3)
		w.wantOuts("bob", noRow, 4)
		g := s.Status().Globals
		if len(g) != 1 || g[0].State != GlobalCurrent || g[0].Rows != 9 || g[0].Bytes != 9*(1+8+64) || g[0].Lag != 0 || g[0].Reads != 1 || w.b.Now().Sub(g[0].AsOf) > time.Second {
			t.Errorf("status %+v", g)
		}
		m := s.engine.stats.snapshot(w.topo, nil).Globals
		if len(m) != 1 || m[0].Rows != 9 || m[0].Bytes != g[0].Bytes || m[0].Lag != 0 || !m[0].AsOf.Equal(g[0].AsOf) {
			t.Errorf("metrics %+v", m)
		}
	}
}

// TestGlobalTableIsWaitedFor: no record is processed before the table is read to where its topic ended, be the brokers away at first.
func TestGlobalTableIsWaitedFor(t *testing.T) {
	for name, fault := range map[string]simbroker.API{"the end is not told": simbroker.ListOffsets, "nothing is read": ""} {
		w := newGlobalWorld(t, rated(t, false))
		w.rate("a", 1)
		w.send(0, "ann", "1", 0)
		s := w.live()
		away := cutOff(s)
		w.b.SetFault(func(c simbroker.Call) simbroker.Action {
			if fault != "" && c.API == fault {
				return simbroker.Action{Verdict: simbroker.LoseRequest, Wait: 10 * time.Millisecond}
			}
			return simbroker.Action{}
		})
		*away = fault == ""
		w.settle(s)
		st := s.Status()
		if len(w.outs()) > 0 || st.State != Restoring || st.Globals[0].State != GlobalReading || st.Globals[0].AsOf != (time.Time{}) {
			t.Errorf("%s: %v, state %s, table %+v", name, w.outs(), st.State, st.Globals)
		}
		if fault == "" && !strings.Contains(st.Tasks[0].Reason, `reading global table "rate": 1 offsets left`) || fault != "" && !strings.Contains(st.Globals[0].Reason, "cannot ask") {
			t.Errorf("%s: %q, table %+v", name, st.Tasks[0].Reason, st.Globals)
		}
		w.b.SetFault(nil)
		*away = false
		w.settle(s)
		w.wantOuts("ann", 1)
		if st := s.Status(); st.State != Running || st.Globals[0].State != GlobalCurrent || st.Globals[0].Reason != "" || st.Tasks[0].Reason != "" {
			t.Errorf("%s: afterwards: %s %q, table %+v", name, st.State, st.Tasks[0].Reason, st.Globals)
		}
	}
}

// TestGlobalTableGoesStale: while the topic cannot be read, joins go on with the rows as they were, and status says how old they are. A silence
// that deletions may not have outlived makes the table read anew.
func TestGlobalTableGoesStale(t *testing.T) {
	for _, long := range []bool{false, true} {
		w := newGlobalWorld(t, rated(t, true))
		w.rate("a", 1)
		w.rate("b", 2)
		s := w.live()
		away := cutOff(s)
		w.settle(s)
		asOf := s.Status().Globals[0].AsOf
		*away = true
		w.rate("a", 3)
		w.rate("b", -1)
		w.b.Advance(globalStale + time.Second)
		w.send(0, "ann", "1", 0)
		w.settle(s)
		w.wantOuts("ann", 1)
		if g := s.Status().Globals[0]; g.State != GlobalStale || g.AsOf.Sub(asOf) > time.Second || s.Status().State != Running {
			t.Errorf("state %s as of %v, %v after the last word", g.State, g.AsOf, g.AsOf.Sub(asOf))
		}
		if long {
			w.b.Advance(tombstones)
			for p := range record.Partition(2) { // the deletion of b is in no log any more
				w.b.Append(record.TopicPartition{Topic: "rates", Partition: p}, broker.Record{Key: []byte("z"), Value: make([]byte, 8)})
				w.b.Compact(record.TopicPartition{Topic: "rates", Partition: p})
			}
		}
		*away = false
		w.settle(s)
		w.send(0, "ann", "2", 0)
		w.send(0, "bob", "3", 0)
		w.settle(s)
		w.wantOuts("ann", 1, 3)
		w.wantOuts("bob", noRow)
		g := s.Status().Globals[0]
		if reads := map[bool]uint64{false: 1, true: 2}[long]; g.State != GlobalCurrent || g.Reads != reads {
			t.Errorf("long %v: %+v", long, g)
		}
	}
}

// TestGlobalTableReadThroughASilence: brokers that answer no more in the middle of a reading may have deleted meanwhile what was read before, and
// compacted the deletion away: the reading begins again.
func TestGlobalTableReadThroughASilence(t *testing.T) {
	w := newGlobalWorld(t, rated(t, false))
	w.rate("b", 2)
	for i := range int64(50) {
		w.rate(fmt.Sprint("k", i), i)
	}
	w.maxFetch = 100
	s := w.live()
	away := cutOff(s)
	for range 4 {
		if err := s.Step(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
	}
	if g := s.Status().Globals[0]; g.State != GlobalReading || s.engine.globals.named("rate").next["b"] == nil {
		t.Fatalf("not in the middle of a reading that has found the row: %+v", g)
	}
	*away = true
	w.rate("b", -1)
	w.b.Advance(tombstones + time.Second)
	for p := range record.Partition(2) {
		w.b.Compact(record.TopicPartition{Topic: "rates", Partition: p})
	}
	*away = false
	w.send(0, "bob", "1", 0)
	w.settle(s)
	w.wantOuts("bob", noRow)
	if g := s.Status().Globals[0]; g.State != GlobalCurrent || g.Rows != 50 || g.Reads != 2 {
		t.Errorf("%+v", g)
	}
}

// TestGlobalTableBehindRetention: what was to be read next is no longer there: the topic is read anew, and until that is done the old rows
// serve.
func TestGlobalTableBehindRetention(t *testing.T) {
	w := newGlobalWorld(t, rated(t, false))
	w.rate("a", 1)
	w.rate("b", 2)
	s := w.live()
	away := cutOff(s)
	w.settle(s)
	*away = true
	for _, k := range []string{"a", "b"} {
		w.rate(k, 5)
		w.rate("z"+k, 6)
		w.rate("z"+k, 7)
	}
	for p := range record.Partition(2) {
		tp := record.TopicPartition{Topic: "rates", Partition: p}
		_, end, _ := w.b.Offsets(tp)
		w.b.MoveStart(tp, end-1)
	}
	w.send(0, "ann", "1", 0)
	w.settle(s)
	*away = false
	w.settle(s)
	w.send(0, "ann", "2", 0)
	w.send(0, "zoe", "3", 0)
	w.settle(s)
	w.wantOuts("ann", 1, noRow)
	if g := s.Status().Globals[0]; g.Reads < 2 || g.Lag != 0 || g.State != GlobalCurrent {
		t.Errorf("%+v", g)
	}
}

// TestGlobalTableRefusals: what the table cannot be is said with place and remedy, and nothing goes on with half of it.
func TestGlobalTableRefusals(t *testing.T) {
	w := newGlobalWorld(t, rated(t, false, topology.MaxBytes(1000)))
	for i := range int64(20) {
		w.rate(fmt.Sprint("k", i), i)
	}
	w.send(0, "ann", "1", 0)
	wantError(t, w.stepUntil(w.live()), ErrGlobalTable, `"rate"`, "more than 1000 bytes", "MaxBytes")
	if len(w.outs()) > 0 {
		t.Error(w.outs())
	}

	w = newGlobalWorld(t, rated(t, false))
	w.rate("a", 1)
	s := w.live()
	w.settle(s)
	w.b.Append(ratesPartition("a"), broker.Record{Key: []byte("a"), Value: []byte("short")})
	wantError(t, w.stepUntil(s), ErrGlobalTable, `"rate"`, "rates/", "@1 is no row", "skip")

	w = newGlobalWorld(t, rated(t, false, topology.OnError(topology.PolicySkip)))
	w.rate("a", 1)
	w.b.Append(ratesPartition("a"), broker.Record{Key: []byte("a"), Value: []byte("short")}, broker.Record{Value: []byte("of no row")})
	w.send(0, "ann", "1", 0)
	s = w.live()
	w.settle(s)
	w.wantOuts("ann", 1)
	if g := s.Status().Globals[0]; g.Skipped != 1 || g.Rows != 1 {
		t.Errorf("%+v", g)
	}

	if err := s.engine.globals.checkIdentity(context.Background()); err != nil {
		t.Error(err)
	}
	w.b.AddPartitions("rates", 3)
	wantError(t, s.engine.globals.checkIdentity(context.Background()), ErrGlobalTable, `topic "rates" has 3 partitions`, "Start again")
	w.b.DeleteTopic("rates")
	if err := s.engine.globals.checkIdentity(context.Background()); err != nil {
		t.Errorf("a topic that is away is no news: %v", err)
	}
	w.makeRates()
	wantError(t, s.engine.globals.checkIdentity(context.Background()), ErrGlobalTable, `topic "rates" was deleted and made again`, "Start again")
	w.b.DeleteTopic("rates")
	_, err := w.newStepper()
	wantError(t, err, ErrTopics, `topic of global table "rate", "rates" does not exist`)
}

// TestGlobalTableOfANewTopic: a start reads what is there, whatever was there before.
func TestGlobalTableOfANewTopic(t *testing.T) {
	w := newGlobalWorld(t, rated(t, true))
	w.rate("a", 1)
	for i := range int64(9) {
		w.rate("b", i)
	}
	w.send(0, "ann", "1", 0)
	w.settle(w.live())
	w.b.DeleteTopic("rates")
	w.makeRates()
	w.rate("a", 2)
	w.send(0, "ann", "2", 0)
	w.send(0, "bob", "3", 0)
	w.settle(w.live())
	w.wantOuts("ann", 1, 2)
	w.wantOuts("bob", noRow)
}

// TestGlobalTableUnderFaults: two processes whose requests fail or are their last, whose disks are lost, between which tasks move, while rows and
// leaders change. Each record has exactly one result; and what a partition of the input has seen of a row is never taken back, by
// whichever process it goes on: results of a row go up as its versions do.
func TestGlobalTableUnderFaults(t *testing.T) {
	kills := 0
	for seed := range uint64(3) {
		w := newGlobalWorld(t, rated(t, true))
		r := rand.New(rand.NewPCG(seed, 20))
		fleet := &faulty{w: w, r: r, disks: map[string]*memoryLog{}, live: map[string]*Stepper{}}
		w.rate("a", 0)
		w.rate("b", 0)
		for _, name := range []string{"a", "b"} {
			fleet.disks[name] = newMemoryLog()
			fleet.start(name)
		}
		w.b.SetFault(fleet.fault)
		sent := 0
		for turn := range 200 {
			for _, k := range []string{"a", "b"} {
				w.rate(k, int64(turn+1))
				for p := range record.Partition(2) {
					w.send(p, fmt.Sprint(k, "/", p), fmt.Sprint(sent), 0)
					sent++
				}
			}
			if r.IntN(10) == 0 {
				w.b.ElectLeader(ratesPartition(string("ab"[r.IntN(2)])))
			}
			if r.IntN(20) == 0 {
				w.b.Compact(ratesPartition(string("ab"[r.IntN(2)])))
			}
			if r.IntN(15) == 0 { // tasks change places
				all := w.b.Group("app").Spread()
				w.b.SetFault(nil)
				w.b.Group("app").Rebalance(context.Background(), map[string][]record.TopicPartition{"a": all["b"], "b": all["a"]})
				w.b.SetFault(fleet.fault)
			}
			name := []string{"a", "b"}[r.IntN(2)]
			for range r.IntN(40) {
				fleet.step(name)
			}
		}
		w.b.SetFault(nil)
		got := func() (n int) {
			for _, vs := range w.outs() {
				n += len(vs)
			}
			return n
		}
		for n := 0; got() < sent; n++ {
			if n == 200 {
				t.Fatalf("seed %d: %d results of %d records", seed, got(), sent)
			}
			for range 100 {
				fleet.step("a")
				fleet.step("b")
			}
		}
		if n := got(); n != sent {
			t.Errorf("seed %d: %d results of %d records", seed, n, sent)
		}
		moved := false
		for key, vs := range w.outs() {
			for i, v := range vs {
				if v < 0 || i > 0 && v < vs[i-1] {
					t.Errorf("seed %d: result %d of %q takes back what was seen: %d behind %v", seed, i, key, v, vs[max(0, i-3):i])
					break
				}
				moved = moved || i > 0 && v > vs[i-1]
			}
		}
		if !moved {
			t.Errorf("seed %d: no result shows a change of a row: the test is blind", seed)
		}
		kills += fleet.kills
	}
	if kills < 15 {
		t.Errorf("only %d kills", kills)
	}
}

// TestGlobalReadings: what answers say of how far a partition is read.
func TestGlobalReadings(t *testing.T) {
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	r := globalReading{next: 3, reach: 3}
	answer := func(s int, next, stable record.Offset, size int) {
		b := broker.Batch{Next: next, LastStable: stable, Asked: at(s), Nothing: next == r.next}
		r.hear(b, size)
	}
	want := func(reach, whole record.Offset, asOf time.Time) {
		t.Helper()
		if r.reach != reach || r.whole != whole || !r.asOf.Equal(asOf) {
			t.Errorf("reach %d, whole %d as of %v, want %d, %d as of %v", r.reach, r.whole, r.asOf, reach, whole, asOf)
		}
	}
	answer(1, 5, 12, 100)
	want(5, 0, time.Time{})
	answer(2, 12, 14, 100) // where it ended before, and what came meanwhile may have cost it a row
	want(12, 0, time.Time{})
	answer(3, 14, 14, 100)
	want(14, 14, at(3))
	answer(4, 16, 18, 100)
	want(16, 14, at(3))
	answer(5, 18, 18, 100)
	answer(6, 18, 18, 0)
	want(18, 18, at(6))
	answer(7, 18, 20, 0) // more is committed, and nothing comes: it may be on its way
	answer(8, 18, 20, 0)
	want(18, 18, at(6))
	answer(9, 18, 20, globalBusy+1) // a full answer leaves partitions out
	answer(10, 18, 20, 0)
	answer(11, 18, 20, 0)
	want(18, 18, at(6))
	answer(12, 18, 20, 0)
	want(20, 20, at(12))
	answer(13, 18, 21, 0)
	want(20, 20, at(12))
	answer(14, 18, 21, 0)
	want(21, 21, at(14))
	answer(15, 25, 25, 0)
	want(25, 25, at(15))
}

// TestGlobalTableIsReadWhileItMoves: tasks of several workers look up rows while the reader changes them and reads the table anew.
func TestGlobalTableIsReadWhileItMoves(t *testing.T) {
	w := newGlobalWorld(t, rated(t, false))
	w.rate("a", 0)
	s := w.live()
	w.settle(s)
	table := s.engine.globals.named("rate")
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			last := uint64(0)
			for {
				v := binary.BigEndian.Uint64(table.Get([]byte("a")))
				if v < last {
					t.Errorf("a row went from %d back to %d", last, v)
				}
				last = v
				s.Status()
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range int64(200) {
		w.rate("a", i)
		if i%20 == 0 {
			s.engine.globals.again(table, "of a test")
		}
		if err := s.Step(context.Background(), 0); err != nil {
			t.Error(err)
		}
		w.b.Advance(time.Second)
	}
	close(done)
	readers.Wait()
	if g := s.Status().Globals[0]; g.Reads < 5 {
		t.Errorf("%+v", g)
	}
}

// TestGlobalReaderStops: what only a stop can answer ends the application; what heals does not.
func TestGlobalReaderStops(t *testing.T) {
	w := newGlobalWorld(t, rated(t, false))
	s := w.live()
	w.b.SetFault(func(c simbroker.Call) simbroker.Action {
		if c.API == simbroker.Fetch {
			return simbroker.Action{Verdict: simbroker.Refuse, Code: simbroker.TopicAuthorizationFailed}
		}
		return simbroker.Action{}
	})
	if err := w.stepUntil(s); !errors.Is(err, broker.ErrAuthorization) || !strings.Contains(err.Error(), `global table "rate"`) {
		t.Error(err)
	}
}
