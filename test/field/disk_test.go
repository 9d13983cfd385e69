package field

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/txlog"
)

// store is a task's local log with one dedup operator on it, on a real disk.
type store struct {
	t    *testing.T
	log  *txlog.Log
	task *txlog.Task
	ids  *dedup.Index
	seq  uint64
	at   time.Time
	next uint64
}

func openStore(t *testing.T, dir string, cfg dedup.Config) *store {
	t.Helper()
	log, err := txlog.Open(txlog.Options{Dir: dir, App: "field", Cluster: "c", MinFreeBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	task, err := log.Task("field/0")
	if err != nil {
		t.Fatal(err)
	}
	ids, err := dedup.Open(cfg, task.Operator("unique"))
	if err != nil {
		t.Fatal(err)
	}
	return &store{t: t, log: log, task: task, ids: ids, at: time.UnixMilli(1_772_366_400_000).UTC()}
}

func idOf(n uint64) record.Hash {
	return record.BytesID(binary.BigEndian.AppendUint64(nil, n)).Hash()
}

// transaction commits n new IDs, at a stream time that is a step later, as a worker does it.
func (s *store) transaction(n int, step time.Duration) error {
	s.at = s.at.Add(step)
	s.ids.Advance(s.at)
	for range n {
		a, err := s.ids.Check(idOf(s.next), 0, s.at)
		if err != nil || a.Verdict != dedup.New {
			s.t.Fatalf("ID %d: %v, %v", s.next, a.Verdict, err)
		}
		s.next++
	}
	b := &record.Batch{}
	blocks, drops := s.ids.Prepare(s.at)
	for _, x := range blocks {
		b.Blocks = append(b.Blocks, record.OperatorBlock{Operator: "unique", IDBlock: x})
	}
	for _, g := range drops {
		b.Drops = append(b.Drops, record.GenerationDrop{Operator: "unique", Generation: g})
	}
	s.seq++
	b.Position = record.LocalPosition{CommitPoint: record.CommitPoint{Sequence: s.seq, Incarnation: 1, StreamTime: s.at}, Complete: true}
	if err := s.task.Apply(b); err != nil {
		return err
	}
	s.ids.Commit()
	if job := s.ids.SealJob(); job != nil {
		return s.ids.Sealed(job())
	}
	return nil
}

func (s *store) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// FIELD H9, J5, J6, H11: IDs come and expire for many windows without a pause. The disk and the memory stop
// growing, without a TTL and without a compaction that somebody asks for, and forgetting a generation of
// them all at once takes no longer than any other transaction.
func TestExpiredIDsGiveTheirSpaceBack(t *testing.T) {
	const (
		window       = 8 * time.Hour
		perWindow    = 80
		perTxn       = 2500 // 200,000 IDs are remembered at a time
		windows      = 24
		transactions = windows * perWindow
	)
	s := openStore(t, t.TempDir(), dedup.Config{Retention: window, ExpectedIDs: perWindow * perTxn})
	var sizes []int64
	for n := range transactions {
		s.must(s.transaction(perTxn, window/perWindow))
		if n%perWindow == perWindow-1 {
			size, err := s.log.Sizes()
			s.must(err)
			sizes = append(sizes, size.Total)
		}
	}
	st := s.ids.Stats()
	if live := perWindow * perTxn; int(st.IDs) > live*10/8+perTxn || st.Expired < uint64((windows-2)*live) {
		t.Errorf("%d IDs are remembered, %d expired", st.IDs, st.Expired)
	}
	t.Logf("bytes on disk after each window of %d IDs: %v; %d bytes of filters", perWindow*perTxn, sizes, st.BloomBytes)
	// Three times what is alive, and what the store may hold before it compacts: some memtables' worth.
	limit := 3*sizes[0] + 8*(8<<20)
	for i, size := range sizes {
		if size > limit {
			t.Errorf("%d bytes on disk after window %d, want at most %d", size, i+1, limit)
		}
	}
	// What was forgotten is forgotten, and nothing else is (J4: no key comes back).
	for _, c := range []struct {
		id   uint64
		want dedup.Verdict
	}{{s.next - 1, dedup.Duplicate}, {s.next - perWindow*perTxn/2, dedup.Duplicate}, {0, dedup.New}, {perTxn * perWindow * 5, dedup.New}} {
		if a, err := s.ids.Check(idOf(c.id), 0, s.at); err != nil || a.Verdict != c.want {
			t.Errorf("ID %d: %v, %v, want %v", c.id, a.Verdict, err, c.want)
		}
	}
}

// FIELD M7: somebody removes the state directory under a running process. It is told before the process can
// have believed in it for long, and a new start begins with nothing, which the changelog then fills.
func TestStateDirectoryRemovedWhileRunning(t *testing.T) {
	dir := t.TempDir() + "/state"
	cfg := dedup.Config{Retention: time.Hour}
	s := openStore(t, dir, cfg)
	s.must(s.transaction(1000, time.Second))
	s.must(os.RemoveAll(dir))
	var err error
	for n := 0; err == nil && n < 2000; n++ {
		err = s.transaction(1000, time.Second)
	}
	if err == nil {
		t.Fatal("2,000 transactions went into a directory that is not there")
	}
	t.Logf("told after %d transactions: %v", s.seq, err)
	again := openStore(t, dir, cfg)
	if _, found := again.task.Position(); found {
		t.Error("the new store has a position")
	}
}
