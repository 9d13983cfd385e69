package processor_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/sink"
	"github.com/streamd/streamd/topology"
)

// gathering is a ledger in memory that makes several batches durable together, as files do.
type gathering struct {
	*memory
	// given counts the rows that it was given.
	given *atomic.Int64
	// never says that no portion is due before the end.
	never bool
}

func (g gathering) Claim(ctx context.Context, p sink.Partition) (sink.Writer, error) {
	w, err := g.memory.Claim(ctx, p)
	if err != nil {
		return nil, err
	}
	mine, ok := w.(*memoryWriter)
	if !ok {
		return nil, errors.New("another writer")
	}
	return &gatheringWriter{memoryWriter: mine, in: g}, nil
}

// gatheringWriter has an open portion, which is lost with it.
type gatheringWriter struct {
	*memoryWriter
	in      gathering
	open    sink.Batch
	settled int
}

func (w *gatheringWriter) Write(_ context.Context, b sink.Batch) error {
	if w.open.Next == 0 {
		w.open.First = b.First
		w.m.mu.Lock()
		defer w.m.mu.Unlock()
		if _, ok := w.m.next[w.tp]; !ok {
			w.m.next[w.tp] = b.First
		}
	}
	w.in.given.Add(int64(len(b.Rows)))
	w.open.Rows, w.open.Next = append(w.open.Rows, b.Rows...), b.Next
	return nil
}

func (w *gatheringWriter) Settle(ctx context.Context, _ time.Time) error {
	if w.settled++; w.open.Next == 0 || w.settled%4 != 0 || w.in.never {
		return nil
	}
	b := w.open
	w.open = sink.Batch{}
	return w.memoryWriter.Write(ctx, b)
}

// What a target has been given and has not made durable is given to it again, by the next writer; the group's offset, which lets go what stands
// before it, does not run ahead.
func TestSinkThatGathers(t *testing.T) {
	t.Parallel()
	target := newMemory(sink.Ledger)
	target.before = func(n int, _ sink.Batch) (bool, error) {
		if n%2 == 0 {
			return n%4 == 0, errors.New("the disk went away")
		}
		return false, nil
	}
	w := newSinkWorld(t, target, 0)
	for i := range 4 {
		w.send(i*25, i*25+25)
		if err := w.appInto(gathering{target, new(atomic.Int64), false}, topology.PolicyStop, w.complete(i*25+25)); err != nil {
			t.Fatal(err)
		}
	}
	w.exactly(100)
	if target.failed == 0 {
		t.Error("no write has failed")
	}

	w.send(100, 125)
	given := new(atomic.Int64)
	if err := w.appInto(gathering{target, given, true}, topology.PolicyStop, func() bool { return given.Load() == 25 }); err != nil {
		t.Fatal(err)
	}
	for part, offset := range w.groupOffsets("app-table-sink", 2) {
		if next := target.next[record.TopicPartition{Topic: "app-table-sink", Partition: part}]; offset > next {
			t.Errorf("partition %d: the group is at %d, the target at %d", part, offset, next)
		}
	}
	w.exactly(100)
	if err := w.appInto(gathering{target, given, false}, topology.PolicyStop, w.complete(125)); err != nil {
		t.Fatal(err)
	}
	w.exactly(125)
}
