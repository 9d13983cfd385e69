package processor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/invariant"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// ErrGlobalTable: a global table cannot be read as it must be: it is larger than its bound, or a record in its topic is no row and its
// policy is to stop. Starting again does not help before the topic, or the bound, is another one.
var ErrGlobalTable = errors.New("processor: global table")

const (
	// globalRetry is the wait before brokers that did not answer are asked again.
	globalRetry = 250 * time.Millisecond
	// globalPoll is how long the reader of the global tables waits for news.
	globalPoll = 250 * time.Millisecond
	// globalStale is how old what is known of a global table may be before that is reported: as long as an input may stand still.
	globalStale = stuckAfter
	// globalBare is for how long the brokers must answer that there is nothing to read before a place behind which more is committed
	// is taken for the end. Compaction may take the last records of a topic, and its end stays where it was.
	globalBare = 2 * time.Second
	// globalBusy bounds what else a poll may have brought when an answer without records is believed: a full one leaves
	// partitions out.
	globalBusy = fetchBytes / 4
	// globalGap is the least silence after which a table is read anew: where tombstones are kept for less, one of that length.
	globalGap = 30 * time.Second
)

// globals reads the global tables of a process beside its workers. There is one for each process; it has no part in any
// transaction. A table is read from the start of its topic, in memory: so it follows retention, compaction and a topic that
// was made anew, and nothing on a disk can be older than it looks.
//
//	load      ask where the topic begins and ends (stable offsets), read from the start into a new map
//	          -> at the end the new map takes the place of the old one
//	follow    apply what comes
//	          -> what was missed is lost (retention, or a silence that outlives tombstones): load anew, beside the old map
//
// step does a bounded piece of this; it is called by one goroutine. Everybody else sees the tables through globalTable.
type globals struct {
	*engine
	reader broker.Reader
	tables []*globalTable
	tags   uint64
}

// newGlobals returns nil if the topology has no global table. topics are theirs, by name.
func newGlobals(e *engine, topics map[string]broker.Topic) *globals {
	specs := e.topo.Globals()
	if len(specs) == 0 {
		return nil
	}
	g := &globals{engine: e, reader: e.cluster.NewReader(broker.ReaderConfig{
		Isolation: broker.ReadCommitted, MaxBytes: fetchBytes, Buffer: fetchBuffer, Pace: fetchPace, Answers: true,
	})}
	for _, s := range specs {
		t := &globalTable{spec: s, topic: topics[s.Topic], rows: map[string][]byte{}}
		for p := range record.Partition(t.topic.Partitions) {
			t.parts = append(t.parts, &globalPart{tp: record.TopicPartition{Topic: s.Topic, Partition: p}})
		}
		g.tables = append(g.tables, t)
	}
	return g
}

// globalTable is one table.
type globalTable struct {
	spec  topology.GlobalSpec
	topic broker.Topic // as it was at the start

	// Of the reader alone.
	begun   bool // the reading under way has been started
	begunAt time.Time
	retryAt time.Time
	tag     uint64
	next    map[string][]byte // rows of a load that is not complete; nil: none is under way
	nextAt  int64             // its bytes
	said    bool              // that it is stale

	mu      sync.RWMutex // guards all below, and parts
	parts   []*globalPart
	rows    map[string][]byte
	bytes   int64
	loaded  bool   // rows is complete as of some moment
	reason  string // why it is not read; empty: it is
	skipped uint64 // records that are no rows
	loads   uint64
}

// globalPart is a partition of a table's topic.
type globalPart struct {
	tp  record.TopicPartition
	end record.Offset // of the load under way: where it is complete
	// now is the reading under way. Invariant: seen is as of the rows that joins find: equal to now but while a load is under way.
	now, seen globalReading
}

// globalReading is how far a partition is read.
type globalReading struct {
	next   record.Offset // the next one to read
	reach  record.Offset // what comes next is here or behind: next, or further on where nothing more is there
	stable record.Offset // last stable offset, as last heard
	heard  time.Time     // when the last answer was asked for
	// whole is where the rows were exactly those of the topic: all that its broker had was read, at asOf. Short of that a row may be
	// missing, since compaction takes a record for the sake of one that is further on.
	whole record.Offset
	asOf  time.Time
	// bare is when the brokers said first that nothing is there up to bareTo, though more is committed; zero: they did not.
	bare   time.Time
	bareTo record.Offset
}

// Get implements topology.GlobalStore.
func (t *globalTable) Get(key []byte) []byte {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.rows[string(key)]
}

// run reads until ctx ends, or something comes up that only a stop can answer.
func (g *globals) run(ctx context.Context) error {
	if g == nil {
		return nil
	}
	for ctx.Err() == nil {
		if err := g.step(ctx, globalPoll); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (g *globals) close() {
	if g != nil {
		g.reader.Close()
	}
}

// step starts what is to be read and takes what has come, waiting up to wait for it.
func (g *globals) step(ctx context.Context, wait time.Duration) error {
	if g == nil {
		return nil
	}
	for _, t := range g.tables {
		if t.begun || g.now().Before(t.retryAt) {
			continue
		}
		if err := g.begin(ctx, t); err != nil {
			if react(err) == reactStop {
				return fmt.Errorf("processor: global table %q: %w", t.spec.Name, err)
			}
			g.delay(t, err)
		}
	}
	batches := g.reader.Poll(ctx, wait)
	size := 0
	for _, b := range batches {
		for i := range b.Records {
			size += b.Records[i].Size()
		}
	}
	for _, b := range batches {
		if t, p := g.find(b); t != nil {
			if err := g.take(t, p, b, size); err != nil {
				return err
			}
		}
	}
	for _, t := range g.tables {
		g.finish(t)
		g.report(t)
	}
	return nil
}

// delay puts a begin off.
func (g *globals) delay(t *globalTable, err error) {
	t.retryAt = g.now().Add(globalRetry)
	t.mu.Lock()
	fresh := t.reason == ""
	t.reason = "cannot ask where its topic begins and ends: " + err.Error()
	t.mu.Unlock()
	if fresh {
		g.log.Warn("global table is not read; trying again", "table", t.spec.Name, "topic", t.spec.Topic, "err", err)
	}
}

// begin starts the reading of a whole table. The end is the last stable offset: what a reader with read_committed can reach.
func (g *globals) begin(ctx context.Context, t *globalTable) error {
	tps := t.partitions()
	starts, err := g.cluster.StartOffsets(ctx, tps)
	if err != nil {
		return err
	}
	ends, err := g.cluster.StableOffsets(ctx, tps)
	if err != nil {
		return err
	}
	g.tags++
	now := g.now()
	t.tag, t.begun, t.begunAt, t.next, t.nextAt = g.tags, true, now, map[string][]byte{}, 0
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.loaded {
		t.reason = ""
	}
	t.loads++
	for _, p := range t.parts {
		p.end = ends[p.tp]
		p.now = globalReading{next: starts[p.tp], reach: starts[p.tp], stable: p.end, heard: now}
		if p.now.reach >= p.end { // nothing is there
			p.now.whole, p.now.asOf = p.end, now
		}
		g.reader.Seek(p.tp, p.now.next, t.tag)
	}
	g.log.Info("reading global table", "table", t.spec.Name, "topic", t.spec.Topic, "partitions", len(tps))
	return nil
}

func (t *globalTable) partitions() []record.TopicPartition {
	tps := make([]record.TopicPartition, len(t.parts))
	for i, p := range t.parts {
		tps[i] = p.tp
	}
	return tps
}

// find is whose batch it is; nil: of a reading that is over.
func (g *globals) find(b broker.Batch) (*globalTable, *globalPart) {
	for _, t := range g.tables {
		if t.spec.Topic == b.Topic && t.tag == b.Tag && t.begun && int(b.Partition) < len(t.parts) {
			return t, t.parts[b.Partition]
		}
	}
	return nil, nil
}

// take applies a batch. size is what the poll brought in all.
func (g *globals) take(t *globalTable, p *globalPart, b broker.Batch, size int) error {
	if errors.Is(b.Err, broker.ErrOffsetOutOfRange) {
		g.again(t, fmt.Sprintf("%s no longer has what was to be read next, at offset %d", p.tp, p.now.next))
		return nil
	}
	if b.Err != nil {
		return fmt.Errorf("processor: global table %q: read %s: %w", t.spec.Name, p.tp, b.Err)
	}
	if g.outlived(t, p, b) {
		g.again(t, fmt.Sprintf("nothing was heard of %s for %v: deletions may have been compacted away", p.tp, b.Asked.Sub(p.now.heard).Round(time.Second)))
		return nil
	}
	rows, skipped, err := g.rowsOf(t, p, b)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.skipped += skipped
	into, bytes := t.rows, &t.bytes
	if t.next != nil {
		into, bytes = t.next, &t.nextAt
	}
	for _, r := range rows {
		*bytes += put(into, r)
		if *bytes > t.spec.MaxBytes {
			return fmt.Errorf("%w %q: its rows take more than %d bytes of memory (%d rows, at %s@%d): raise its bound (MaxBytes, max_bytes) if there is memory for it in each process, "+
				"or use a table with a join by key", ErrGlobalTable, t.spec.Name, t.spec.MaxBytes, len(into), p.tp, p.now.next)
		}
	}
	p.now.hear(b, size)
	if t.next == nil {
		p.seen = p.now
	}
	return nil
}

// outlived says whether the answer comes after a silence in which a deletion may have been written and compacted away. Rows that were
// deleted so would stay for ever. A reading of the whole topic has no moment yet as of which its rows are whole: it may have found a row as early as
// at its begin. Without a silence it goes on however long it takes, since it would take as long again.
func (g *globals) outlived(t *globalTable, p *globalPart, b broker.Batch) bool {
	asOf := p.now.asOf
	if t.next != nil {
		asOf = t.begunAt
	}
	return t.topic.Cleanup != broker.Delete && b.Asked.Sub(p.now.heard) >= globalGap && b.Asked.Sub(asOf) >= t.topic.DeleteRetention
}

// globalRow is a change of a table; a nil value deletes.
type globalRow struct {
	key   string
	value []byte
}

// put makes a change and returns by how much the rows have grown.
func put(rows map[string][]byte, r globalRow) (grown int64) {
	if old, ok := rows[r.key]; ok {
		grown -= topology.GlobalRowBytes([]byte(r.key), old)
	}
	if r.value == nil {
		delete(rows, r.key)
		return grown
	}
	rows[r.key] = r.value
	return grown + topology.GlobalRowBytes([]byte(r.key), r.value)
}

// rowsOf decodes the records of a batch.
func (g *globals) rowsOf(t *globalTable, p *globalPart, b broker.Batch) (rows []globalRow, skipped uint64, err error) {
	for i := range b.Records {
		r := &b.Records[i]
		key, value, err := t.spec.Row(r)
		switch {
		case err == nil && key == nil: // it belongs to no row
		case err == nil:
			rows = append(rows, globalRow{string(key), value})
		case t.spec.Policy == topology.PolicySkip:
			if skipped++; skipped == 1 {
				g.log.Warn("a record is no row of the global table and is passed over", "table", t.spec.Name, "topic", p.tp.Topic, "partition", p.tp.Partition, "offset", r.Offset, "err", err)
			}
		default:
			return nil, 0, fmt.Errorf("%w %q: the record at %s@%d is no row: %w; write the row anew, or set on_error to skip (OnError(PolicySkip)), with which the row stays as it was",
				ErrGlobalTable, t.spec.Name, p.tp, r.Offset, err)
		}
	}
	return rows, skipped, nil
}

// hear takes over an answer. size is what came with it in all.
func (r *globalReading) hear(b broker.Batch, size int) {
	r.next, r.stable = max(r.next, b.Next), max(r.stable, b.LastStable)
	reach := r.next
	switch {
	case !b.Nothing || r.next >= r.stable || size > globalBusy:
		r.bare = time.Time{}
	case r.bare.IsZero():
		r.bare, r.bareTo = b.Asked, r.stable
	case b.Asked.Sub(r.bare) >= globalBare:
		reach = r.bareTo
		r.bareTo = r.stable
	}
	r.reach = max(r.reach, reach)
	if r.reach >= b.LastStable {
		r.whole, r.asOf = r.reach, b.Asked
	}
	r.heard = b.Asked
}

// again reads a table anew; the rows stay as they are until that is done.
func (g *globals) again(t *globalTable, why string) {
	g.log.Warn("global table is read anew", "table", t.spec.Name, "reason", why)
	for _, p := range t.parts {
		g.reader.Remove(p.tp)
	}
	t.begun, t.retryAt, t.next = false, g.now().Add(globalRetry), nil
	t.mu.Lock()
	t.reason = why
	t.mu.Unlock()
}

// finish ends a load that has read all that there was when it began.
func (g *globals) finish(t *globalTable) {
	if t.next == nil || !t.begun {
		return
	}
	for _, p := range t.parts {
		if p.now.whole < p.end || p.now.asOf.IsZero() {
			return
		}
	}
	t.mu.Lock()
	t.rows, t.bytes, t.next, t.loaded, t.reason = t.next, t.nextAt, nil, true, ""
	for _, p := range t.parts {
		p.seen = p.now
	}
	rows, bytes := len(t.rows), t.bytes
	t.mu.Unlock()
	g.log.Info("global table is read", "table", t.spec.Name, "rows", rows, "bytes", bytes)
}

// report logs when a table begins to be older than it should, and when it is over.
func (g *globals) report(t *globalTable) {
	asOf := t.asOf()
	stale := t.loaded && g.now().Sub(asOf) >= globalStale
	switch {
	case stale && !t.said:
		g.log.Warn("global table is stale: its topic cannot be read; joins go on with the rows as they were", "table", t.spec.Name, "topic", t.spec.Topic, "as_of", asOf)
	case !stale && t.said:
		g.log.Info("global table is read again", "table", t.spec.Name)
	}
	t.said = stale
}

// asOf is the moment as of which the rows are complete: the oldest of the partitions. Zero: it was not read yet.
func (t *globalTable) asOf() (oldest time.Time) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.oldest()
}

// oldest is asOf while mu is held.
func (t *globalTable) oldest() (oldest time.Time) {
	for i, p := range t.parts {
		if i == 0 || p.seen.asOf.Before(oldest) {
			oldest = p.seen.asOf
		}
	}
	return oldest
}

// wants are the partitions of the topics of a sub-topology's global tables, for a question.
func (g *globals) wants(names []string) (tps []record.TopicPartition) {
	for _, n := range names {
		tps = append(tps, g.named(n).partitions()...)
	}
	return tps
}

func (g *globals) named(name string) *globalTable {
	for _, t := range g.tables {
		if t.spec.Name == name {
			return t
		}
	}
	invariant.Check(false, "no global table %q", name)
	return nil
}

// lacks says what is missing in the tables up to where their topics ended when a task asked; empty: nothing.
func (g *globals) lacks(names []string, ends map[record.TopicPartition]record.Offset) string {
	for _, n := range names {
		if why := g.named(n).lacks(ends); why != "" {
			return why
		}
	}
	return ""
}

func (t *globalTable) lacks(ends map[record.TopicPartition]record.Offset) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.loaded {
		if t.reason != "" {
			return fmt.Sprintf("waiting for global table %q: %s", t.spec.Name, t.reason)
		}
		return fmt.Sprintf("reading global table %q: %d offsets left", t.spec.Name, t.remaining())
	}
	for _, p := range t.parts {
		if p.seen.whole < ends[p.tp] {
			return fmt.Sprintf("waiting for global table %q: %s is read up to offset %d, and ended at %d when the task was to start", t.spec.Name, p.tp, p.seen.whole, ends[p.tp])
		}
	}
	return ""
}

// remaining is what a load has left. mu is held.
func (t *globalTable) remaining() (n int64) {
	for _, p := range t.parts {
		n += max(0, int64(p.end-p.now.reach))
	}
	return n
}
