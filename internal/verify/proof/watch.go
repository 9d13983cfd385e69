package proof

import (
	"context"
	"encoding/binary"
	"hash/fnv"
	"sync"

	"github.com/streamd/streamd/internal/verify/rawlog"
)

// checkpointEvery is how many records lie between two fingerprints that a watch keeps of a partition.
const checkpointEvery = 256

// trail is the fingerprint of a sequence of records.
type trail struct {
	count  int64
	hash   uint64
	points []uint64 // after every checkpointEvery records
	at     []int64  // the offset of the last record of each
}

func (t *trail) add(r *rawlog.Record) {
	h := fnv.New64a()
	var n [24]byte
	binary.BigEndian.PutUint64(n[:], t.hash)
	binary.BigEndian.PutUint64(n[8:], uint64(r.Offset))
	binary.BigEndian.PutUint64(n[16:], uint64(len(r.Key)))
	_, _ = h.Write(n[:]) // a hash takes everything
	_, _ = h.Write(r.Key)
	_, _ = h.Write(r.Value)
	t.hash = h.Sum64()
	if t.count++; t.count%checkpointEvery == 0 {
		t.points, t.at = append(t.points, t.hash), append(t.at, r.Offset)
	}
}

// Watch reads topics under read_committed while the faults happen, and hands every record out as it
// comes: C7 compares what it saw with what stands there at the end.
type Watch struct {
	c     *rawlog.Cluster
	each  func(rawlog.Record)
	stop  context.CancelFunc
	ended sync.WaitGroup

	mu     sync.Mutex // guards all below, and calls of each
	trails map[rawlog.Partition]*trail
	next   map[rawlog.Partition]int64
	err    error
}

// NewWatch begins to read all partitions of the topics from their start, until Stop. each may be nil.
func NewWatch(ctx context.Context, c *rawlog.Cluster, each func(rawlog.Record), topics ...string) (*Watch, error) {
	bounds, err := c.Bounds(ctx, topics...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w := &Watch{c: c, each: each, stop: cancel, trails: map[rawlog.Partition]*trail{}, next: map[rawlog.Partition]int64{}}
	for _, p := range rawlog.Sorted(bounds) {
		w.trails[p], w.next[p] = &trail{}, bounds[p].Start
		f := c.Follow(p, bounds[p].Start)
		w.ended.Go(func() { w.follow(ctx, p, f) })
	}
	return w, nil
}

func (w *Watch) follow(ctx context.Context, p rawlog.Partition, f *rawlog.Follower) {
	for ctx.Err() == nil {
		err := f.Poll(ctx, func(r rawlog.Record) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.trails[p].add(&r)
			if w.each != nil {
				w.each(r)
			}
			return nil
		})
		w.mu.Lock()
		w.next[p] = f.Next()
		if err != nil && ctx.Err() == nil {
			w.err = err
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
	}
}

// Locked calls fn while no record is handed out.
func (w *Watch) Locked(fn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn()
}

// AwaitEnd waits until the watch has read all that stands in its topics and nothing is undecided.
func (w *Watch) AwaitEnd(ctx context.Context) error {
	for {
		bounds, err := w.c.Bounds(ctx, w.topics()...)
		if err != nil {
			return err
		}
		there := true
		w.mu.Lock()
		for p, b := range bounds {
			there = there && b.Stable == b.End && w.next[p] >= b.End
		}
		err = w.err
		w.mu.Unlock()
		if there || err != nil {
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

func (w *Watch) topics() []string {
	var out []string
	last := ""
	for _, p := range rawlog.Sorted(w.trails) {
		if p.Topic != last {
			out = append(out, p.Topic)
		}
		last = p.Topic
	}
	return out
}

// Stop ends the reading. It is idempotent.
func (w *Watch) Stop() {
	w.stop()
	w.ended.Wait()
}

// Check is C7: it reads the topics again and compares. Stop comes before it.
func (w *Watch) Check(ctx context.Context) (*Result, error) {
	r := NewResult("C7", "a reader during the faults saw the final sequence")
	if w.err != nil {
		return nil, w.err
	}
	spans := map[rawlog.Partition]rawlog.Span{}
	bounds, err := w.c.Bounds(ctx, w.topics()...)
	if err != nil {
		return nil, err
	}
	again := map[rawlog.Partition]*trail{}
	for p := range w.trails {
		spans[p], again[p] = rawlog.Span{From: bounds[p].Start, To: w.next[p]}, &trail{}
	}
	err = w.c.Read(ctx, spans, func(x rawlog.Record) error {
		again[x.Partition].add(&x)
		r.Compared++
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, p := range rawlog.Sorted(w.trails) {
		saw, is := w.trails[p], again[p]
		if saw.count == is.count && saw.hash == is.hash {
			continue
		}
		from := int64(0)
		for i := 0; i < min(len(saw.points), len(is.points)) && saw.points[i] == is.points[i]; i++ {
			from = is.at[i] + 1
		}
		r.Differ(rawlog.At(p, from), "from here on: a reader saw %d records on the way, at the end there are %d", saw.count, is.count)
	}
	return r, nil
}
