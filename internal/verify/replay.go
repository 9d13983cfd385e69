package verify

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/verify/proof"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/topology"
)

// replay computes once more, without Kafka transactions, stores or faults, what a pipeline must have
// written, and compares it with what stands in its topics. Each task is replayed alone, from the
// committed records of its own input, be that a topic of the user or a repartition topic.
type replay struct {
	c       *rawlog.Cluster
	topo    *topology.Topology
	span    Span
	running bool
	cluster string
	inputs  *proof.Result // every input was decided as it had to be
	outputs *proof.Result
	state   *proof.Result
	topics  map[string]*expectation
	ahead   map[string]bool // the topics that are written at least once
	places  []place
}

// expectation is what must stand in one output topic.
type expectation struct {
	records map[fingerprint]*expected
	// whole says that all writers of the topic were replayed from their first record on: whatever else
	// stands there is strange.
	whole bool
}

// expected is one output, or several equal ones.
type expected struct {
	count, seen int32
	place       int32 // index of where the input stands that made it
	order       int32 // among the outputs of its task
}

// place is a task's input record.
type place struct {
	task int32
	rawlog.Partition
	offset int64
}

// fingerprint stands for a record: topic, key, value and headers.
type fingerprint [16]byte

// Span limits which inputs are compared: offsets of every input partition, half-open. The zero Span is all.
type Span struct{ From, To int64 }

func (s Span) has(offset int64) bool { return offset >= s.From && (s.To == 0 || offset < s.To) }

func (s Span) all() bool { return s.From == 0 && s.To == 0 }

// skip says what is not known of a part, or of a task of it.
func (r *replay) skip(s *topology.Subtopology, what, why string) {
	lacks := []*proof.Result{r.inputs}
	if len(s.Sinks) > 0 {
		lacks = append(lacks, r.outputs)
	}
	if len(s.Stores) > 0 {
		lacks = append(lacks, r.state)
	}
	for _, x := range lacks {
		x.Lack("%s: not compared: %s", what, why)
	}
}

// run replays all tasks, then reads the outputs.
func (r *replay) run(ctx context.Context, tasks []proof.Task) error {
	for _, s := range r.topo.Subtopologies() {
		for _, k := range s.Sinks {
			if t := r.topo.SinkTopic(k); r.topics[t] == nil {
				r.topics[t] = &expectation{records: map[fingerprint]*expected{}, whole: true}
			}
		}
	}
	for _, s := range r.topo.Subtopologies() {
		if err := r.subtopology(ctx, s, tasks); err != nil {
			return err
		}
	}
	for _, t := range sorted(r.topics) {
		if err := r.compare(ctx, t, r.topics[t]); err != nil {
			return err
		}
	}
	return nil
}

// subtopology replays the tasks of a part. One that cannot be replayed spoils what is known of the
// topics that it writes.
func (r *replay) subtopology(ctx context.Context, s *topology.Subtopology, tasks []proof.Task) error {
	why := ""
	switch {
	case !s.Stateful():
		why = "it has no commit records to go by"
	case len(s.Sources) != 1:
		why = "it has several inputs, whose order is not written down"
	case len(s.Globals) > 0:
		why = "it looks into global tables, and which rows they had is not written down"
	default:
		chain, err := newChain(s, &memory{cluster: r.cluster, topicID: "any", counters: map[topology.CounterID]*uint64{}})
		if err != nil {
			why = err.Error()
		} else if len(chain.Timed) > 0 {
			why = "it acts when time passes, which is not written down"
		}
	}
	if why != "" {
		r.skip(s, "sub-topology "+s.Name, why)
		r.spoil(s)
		return nil
	}
	for i := range tasks {
		t := &tasks[i]
		if t.IDLog.Topic != r.topo.IDLogTopic(s) {
			continue
		}
		err := r.task(ctx, s, t)
		if errors.Is(err, errNotReplayable) {
			r.skip(s, "task "+t.Name, err.Error())
			r.spoil(s)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *replay) spoil(s *topology.Subtopology) {
	for _, k := range s.Sinks {
		r.topics[r.topo.SinkTopic(k)].whole = false
	}
}

func newChain(s *topology.Subtopology, m *memory) (*topology.Chain, error) {
	m.stores, m.logs = map[string]*memoryStore{}, map[string]*memoryLog{}
	for _, st := range s.Stores {
		m.stores[st.Name] = &memoryStore{values: map[string][]byte{}}
	}
	for _, d := range s.Dedups {
		m.logs[d.Name] = &memoryLog{
			m: m, name: d.Name, retention: d.Config.Retention, payload: d.Config.Payload,
			logged: map[record.Hash]uint64{}, seen: map[record.Hash]first{},
		}
	}
	return s.NewChain(m)
}

// taskReplay is one task under way.
type taskReplay struct {
	*replay
	s     *topology.Subtopology
	m     *memory
	chain *topology.Chain
	task  int32
	input rawlog.Partition
	txns  []transaction
	at    int // the transaction in hand
	now   rawlog.Record
	made  int32 // outputs so far
}

// transaction is one commit of the task.
type transaction struct {
	next   int64 // of the input, behind it
	time   time.Time
	blocks []*rawlog.Block
	where  string
	// imported says that its IDs came from elsewhere, by streamd ids import, and not from records.
	imported bool
}

func (r *replay) task(ctx context.Context, s *topology.Subtopology, t *proof.Task) error {
	last := t.Last
	if len(last.Inputs) != 1 {
		return nil // it has never read anything
	}
	x := &taskReplay{replay: r, s: s, task: int32(t.IDLog.Number), input: last.Inputs[0].Partition}
	bounds, err := r.c.Bounds(ctx, x.input.Topic, t.IDLog.Topic)
	if err != nil {
		return err
	}
	whole, err := x.transactions(ctx, t, bounds[t.IDLog])
	if err != nil {
		return err
	}
	start := bounds[x.input].Start
	switch {
	case !whole:
		return fmt.Errorf("%w: its ID log no longer has the first commit records", errNotReplayable)
	case start > 0 && len(s.Stores) > 0:
		return fmt.Errorf("%w: the input before offset %d is gone, and with it what its state was made of", errNotReplayable, start)
	}
	x.m = &memory{
		cluster: r.cluster, topicID: last.Inputs[0].TopicID, counters: map[topology.CounterID]*uint64{},
		partitions: make([]int32, len(s.Sinks)),
	}
	for i, k := range s.Sinks {
		b, err := r.c.Bounds(ctx, r.topo.SinkTopic(k))
		if err != nil {
			return err
		}
		x.m.partitions[i] = int32(len(b))
	}
	if x.chain, err = newChain(s, x.m); err != nil {
		return err
	}
	for _, l := range x.m.logs {
		l.differ = func(format string, args ...any) { r.inputs.Differ(x.now.Where(), format, args...) }
	}
	if start > 0 {
		r.spoil(s)
	}
	x.enter()
	if err := r.c.Read(ctx, map[rawlog.Partition]rawlog.Span{x.input: {From: start, To: last.Inputs[0].Next}}, x.add); err != nil {
		return err
	}
	x.leaveTo(last.Inputs[0].Next)
	x.unexplained()
	return x.compareState(ctx, t)
}

// transactions reads what the task has committed. whole is false if the log has lost its beginning.
func (x *taskReplay) transactions(ctx context.Context, t *proof.Task, b rawlog.Bounds) (whole bool, err error) {
	var blocks []*rawlog.Block
	var incarnation uint64
	whole = b.Start == 0
	err = x.c.Read(ctx, map[rawlog.Partition]rawlog.Span{t.IDLog: {From: b.Start, To: b.Stable}}, func(r rawlog.Record) error {
		block, commit, err := rawlog.DecodeIDLog(r.Key, r.Value)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", r.Where(), err)
		case block != nil:
			blocks = append(blocks, block)
			return nil
		case commit.Sequence > t.Last.Sequence && commit.Incarnation == t.Last.Incarnation:
			return nil // it came while we looked
		}
		if commit.Incarnation != incarnation {
			// A reset: what was before no longer counts, and its outputs are not compared.
			if x.txns != nil {
				whole = false
			}
			x.txns, incarnation = nil, commit.Incarnation
		}
		if len(commit.Inputs) == 1 {
			next := commit.Inputs[0].Next
			imported := ofImport(commit) && (len(x.txns) == 0 || x.txns[len(x.txns)-1].next == next)
			x.txns = append(x.txns, transaction{next, commit.Time, blocks, r.Where(), imported})
		}
		blocks = nil
		return nil
	})
	return whole, err
}

// ofImport says whether a commit record counts what an import has read. A task repeats such counters now and then, but in a
// transaction that moves its input.
func ofImport(c *rawlog.Commit) bool {
	for name := range c.Counters { // any of them
		if strings.HasPrefix(name, "ids-import/") {
			return true
		}
	}
	return false
}

// enter makes the IDs of the transaction in hand the ones that are new now.
func (x *taskReplay) enter() {
	if x.at >= len(x.txns) {
		return
	}
	for _, b := range x.txns[x.at].blocks {
		l := x.m.logs[b.Operator]
		if l == nil {
			x.inputs.Differ(x.txns[x.at].where, "IDs of an operator %q, which the pipeline does not have", b.Operator)
			continue
		}
		for e := b.Entries; len(e) > 0; e = e[b.EntryBytes:] {
			payload := uint64(0)
			if b.EntryBytes > record.HashBytes {
				payload = binary.BigEndian.Uint64(e[record.HashBytes:])
			}
			l.logged[record.Hash(e[:record.HashBytes])] = payload
		}
	}
}

// leaveTo goes on to the transaction that an offset belongs to.
func (x *taskReplay) leaveTo(offset int64) {
	for x.at < len(x.txns) && offset >= x.txns[x.at].next {
		x.unexplained()
		x.at++
		x.enter()
	}
}

// unexplained are IDs that the transaction in hand has logged and no record of it has.
func (x *taskReplay) unexplained() {
	if x.at >= len(x.txns) {
		return
	}
	txn := &x.txns[x.at]
	if txn.imported && txn.time.After(x.m.time) {
		x.m.time = txn.time
	}
	for name, l := range x.m.logs {
		// Nothing can be said of IDs whose records were deleted from the input.
		if n := len(l.logged); n > 0 && !txn.imported && x.topics != nil && x.whole() {
			x.inputs.Differ(txn.where, "%d IDs of operator %q that no record of its transaction has", n, name)
		}
		for h, payload := range l.logged {
			l.seen[h] = first{x.m.time, payload}
		}
		clear(l.logged)
	}
}

func (x *taskReplay) whole() bool {
	return !slices.ContainsFunc(x.s.Sinks, func(k topology.Sink) bool { return !x.topics[x.topo.SinkTopic(k)].whole })
}

// add replays one record.
func (x *taskReplay) add(r rawlog.Record) error {
	x.leaveTo(r.Offset)
	if x.s.Sources[0].Internal {
		if r.IsMark() {
			return nil
		}
		r.Headers = r.WithoutMark()
	}
	x.now = r
	in := &broker.Record{Offset: record.Offset(r.Offset), Timestamp: r.Time, Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		in.Headers = append(in.Headers, record.Header{Key: h.Key, Value: h.Value})
	}
	at := r.Time
	if f := x.s.Sources[0].Timestamp; f != nil {
		if t, err := f(in); err == nil {
			at = t
		}
	}
	// The task has never gone beyond what its commit record says: a record from the future is held back.
	if x.at < len(x.txns) && at.After(x.txns[x.at].time) {
		at = x.txns[x.at].time
	}
	if at.After(x.m.time) {
		x.m.time = at
	}
	x.m.position = record.Position{TopicPartition: record.TopicPartition{Topic: r.Topic, Partition: record.Partition(r.Number)}, Offset: in.Offset}
	x.inputs.Compared++
	x.m.begin()
	err := x.chain.Sources[0](in)
	var failed *topology.OperatorError
	switch {
	case errors.As(err, &failed):
		x.m.undo() // it went by its policy, and nothing else of it remains
		return nil
	case err != nil:
		return err
	}
	x.m.keep()
	for name, l := range x.m.logs {
		if l.unlogged() {
			x.inputs.Differ(r.Where(), "operator %q has dropped the record, although its ID was not seen before", name)
		}
	}
	if !x.span.has(r.Offset) {
		return nil
	}
	for i := range x.m.out {
		x.expect(&x.m.out[i])
	}
	return nil
}

// expect notes an output.
func (x *taskReplay) expect(o *emitted) {
	t := x.topics[x.topo.SinkTopic(x.s.Sinks[o.sink])]
	headers := make([]rawlog.Header, len(o.Headers))
	for i, h := range o.Headers {
		headers[i] = rawlog.Header{Key: h.Key, Value: h.Value}
	}
	f := printOf(o.Key, o.Value, headers)
	x.made++
	if e := t.records[f]; e != nil {
		e.count++
		return
	}
	if n := len(x.places); n == 0 || x.places[n-1].offset != x.now.Offset || x.places[n-1].Partition != x.input {
		x.places = append(x.places, place{x.task, x.input, x.now.Offset})
	}
	t.records[f] = &expected{count: 1, place: int32(len(x.places) - 1), order: x.made}
}

// printOf leaves out the header of a forwarded duplicate, whose value is only exact to a fraction of the
// retention.
func printOf(key, value []byte, headers []rawlog.Header) fingerprint {
	h := sha256.New()
	add := func(b []byte) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(b)))
		if b == nil {
			n = [8]byte{0xff}
		}
		_, _ = h.Write(n[:]) // a hash takes everything
		_, _ = h.Write(b)
	}
	add(key)
	add(value)
	for _, x := range headers {
		// What a trace is called says nothing of the result, and differs by whether the pipeline is traced.
		if x.Key != topology.DuplicateHeader && x.Key != record.TraceHeader {
			add([]byte(x.Key))
			add(x.Value)
		}
	}
	return fingerprint(h.Sum(nil)[:16])
}

// compareState compares what the replay has come to with the fold of the changelogs.
func (x *taskReplay) compareState(ctx context.Context, t *proof.Task) error {
	if x.running || len(x.m.stores) == 0 {
		return nil
	}
	for _, name := range sorted(x.m.stores) {
		p := rawlog.Partition{Topic: x.topo.StoreTopic(name), Number: t.IDLog.Number}
		bounds, err := x.c.Bounds(ctx, p.Topic)
		if err != nil {
			return err
		}
		fold, where := map[string][]byte{}, map[string]int64{}
		b := bounds[p]
		err = x.c.Read(ctx, map[rawlog.Partition]rawlog.Span{p: {From: b.Start, To: b.Stable}}, func(r rawlog.Record) error {
			where[string(r.Key)] = r.Offset
			if fold[string(r.Key)] = r.Value; r.Value == nil {
				delete(fold, string(r.Key))
			}
			return nil
		})
		if err != nil {
			return err
		}
		want := x.m.stores[name].values
		for _, k := range sorted(want) {
			x.state.Compared++
			if got, ok := fold[k]; !ok || string(got) != string(want[k]) {
				at, known := where[k]
				if !known {
					at = b.End
				}
				x.state.Differ(rawlog.At(p, at), "key %q is not what the input comes to", k)
			}
			delete(fold, k)
		}
		for _, k := range sorted(fold) {
			x.state.Differ(rawlog.At(p, where[k]), "key %q is there, the input does not lead to it", k)
		}
	}
	return nil
}

// compare reads one output topic.
func (r *replay) compare(ctx context.Context, topic string, want *expectation) error {
	bounds, err := r.c.Bounds(ctx, topic)
	if err != nil {
		return err
	}
	if !r.span.all() {
		r.outputs.Lack("topic %s: only what comes of the range was looked for", topic)
	}
	whole := want.whole && r.span.all() && !r.running
	lost := int64(0) // records that retention has taken
	for _, b := range bounds {
		lost += b.Start
	}
	type way struct{ task, partition int32 }
	last := map[way]*expected{}
	repeats := 0
	internal := isRepartition(r.topo, topic)
	err = r.c.Read(ctx, rawlog.Spans(bounds), func(x rawlog.Record) error {
		if internal {
			if x.IsMark() {
				return nil
			}
			x.Headers = x.WithoutMark()
		}
		e := want.records[printOf(x.Key, x.Value, x.Headers)]
		if e == nil {
			if whole {
				r.outputs.Differ(x.Where(), "no input leads to this record")
			}
			return nil
		}
		r.outputs.Compared++
		p := r.places[e.place]
		if e.seen++; e.seen > e.count && r.ahead[topic] {
			repeats++
			return nil
		} else if e.seen > e.count {
			r.outputs.Differ(x.Where(), "the output of %s is here again", rawlog.At(p.Partition, p.offset))
			return nil
		}
		w := way{p.task, x.Number}
		if before := last[w]; e.count == 1 && !r.ahead[topic] && before != nil && e.order < before.order && r.places[before.place].Topic == p.Topic {
			b := r.places[before.place]
			r.outputs.Differ(x.Where(), "the output of %s stands behind that of %s", rawlog.At(p.Partition, p.offset), rawlog.At(b.Partition, b.offset))
		}
		last[w] = e
		return nil
	})
	if err != nil {
		return err
	}
	if r.ahead[topic] {
		r.outputs.Note("topic %s: it is written at least once: %d records are there again, which is no difference", topic, repeats)
	}
	if lost > 0 {
		r.outputs.Note("topic %s: its first %d offsets are gone: what is missing there is not known", topic, lost)
		return nil
	}
	missing := make([]*expected, 0)
	for _, e := range want.records {
		if e.seen < e.count {
			missing = append(missing, e)
		}
	}
	slices.SortFunc(missing, func(a, b *expected) int { return int(a.place) - int(b.place) })
	for _, e := range missing {
		p := r.places[e.place]
		r.outputs.Differ(rawlog.At(p.Partition, p.offset), "the output of this record is missing in %s (%d of %d are there)", topic, e.seen, e.count)
	}
	return nil
}
