package topology

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/window"
)

// fakeRuntime is a task without a log, a store on disk and transactions: what a chain does is there to be looked at.
type fakeRuntime struct {
	partition  record.Partition
	position   record.Position
	streamTime time.Time
	stores     map[string]*fakeStore
	globals    map[string]fakeGlobal
	ids        map[string]*fakeIDs
	counters   map[CounterID]*uint64
	out        []fakeOutput
	keepOut    bool // false: only counted, for benchmarks
	emitted    int
	arena      []byte
	kept       int
	badSink    bool
}

type fakeOutput struct {
	sink int
	SinkRecord
}

func newFakeRuntime() *fakeRuntime {
	return &fakeRuntime{
		partition: 3, keepOut: true, arena: make([]byte, 1<<16),
		stores: map[string]*fakeStore{}, globals: map[string]fakeGlobal{}, ids: map[string]*fakeIDs{}, counters: map[CounterID]*uint64{},
	}
}

func (f *fakeRuntime) Store(name string) Store {
	if f.stores[name] == nil {
		f.stores[name] = &fakeStore{content: map[string][]byte{}}
	}
	return f.stores[name]
}

// fakeGlobal is a global table.
type fakeGlobal map[string][]byte

func (g fakeGlobal) Get(key []byte) []byte { return g[string(key)] }

func (f *fakeRuntime) Global(name string) GlobalStore {
	if f.globals[name] == nil {
		f.globals[name] = fakeGlobal{}
	}
	return f.globals[name]
}

func (f *fakeRuntime) Dedup(name string) IDLog {
	if f.ids[name] == nil {
		f.ids[name] = &fakeIDs{seen: map[record.Hash]uint64{}}
	}
	return f.ids[name]
}

func (f *fakeRuntime) Emit(sink int, out SinkRecord) {
	if f.badSink {
		panic("index out of range")
	}
	f.emitted++
	if f.keepOut {
		f.out = append(f.out, fakeOutput{sink, out})
	}
}

// Alloc gives small rooms while outputs are kept, so that encodings outgrow them, and one room again and again otherwise.
func (f *fakeRuntime) Alloc(n int) []byte {
	if f.keepOut {
		return make([]byte, 0, n)
	}
	return f.arena[:0]
}

func (f *fakeRuntime) Keep(used int)             { f.kept += used }
func (f *fakeRuntime) StreamTime() time.Time     { return f.streamTime }
func (f *fakeRuntime) Position() record.Position { return f.position }
func (f *fakeRuntime) ClusterID() string         { return "cluster" }
func (f *fakeRuntime) TopicID(t string) string   { return "uuid-of-" + t }
func (f *fakeRuntime) Partitions(int) int32      { return 4 }

func (f *fakeRuntime) Counter(c CounterID) *uint64 {
	if f.counters[c] == nil {
		f.counters[c] = new(uint64)
	}
	return f.counters[c]
}

// count reads a counter.
func (f *fakeRuntime) count(k CounterKind, of string) uint64 {
	if p := f.counters[CounterID{k, of}]; p != nil {
		return *p
	}
	return 0
}

type fakeStore struct {
	content map[string][]byte
	err     error
	fixed   []byte // for benchmarks: the value of every key
	panics  bool
}

func (s *fakeStore) Get(key []byte) ([]byte, error) {
	if s.err != nil {
		return nil, s.err
	}
	if s.fixed != nil {
		return s.fixed, nil
	}
	return s.content[string(key)], nil
}

func (s *fakeStore) Put(key, value []byte) error {
	if s.panics {
		panic("index out of range")
	}
	if s.err != nil {
		return s.err
	}
	if s.fixed != nil {
		return nil
	}
	if value == nil {
		delete(s.content, string(key))
	} else {
		s.content[string(key)] = append([]byte{}, value...)
	}
	return nil
}

func (s *fakeStore) Range(from, to []byte, fn func(key, value []byte) bool) error {
	var keys []string
	for k := range s.content {
		if (from == nil || k >= string(from)) && (to == nil || k < string(to)) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if !fn([]byte(k), s.content[k]) {
			break
		}
	}
	return s.err
}

// fakeIDs answers from a set; answer overrides it once.
type fakeIDs struct {
	seen    map[record.Hash]uint64
	answer  *dedup.Answer
	err     error
	checked []record.Hash
	quiet   bool // for benchmarks
	at      time.Time
}

func (l *fakeIDs) Check(h record.Hash, payload uint64, at time.Time) (dedup.Answer, error) {
	if l.quiet {
		return dedup.Answer{}, nil
	}
	l.at = at
	l.checked = append(l.checked, h)
	if l.err != nil {
		return dedup.Answer{}, l.err
	}
	if l.answer != nil {
		return *l.answer, nil
	}
	old, known := l.seen[h]
	switch {
	case !known:
		l.seen[h] = payload
		return dedup.Answer{Verdict: dedup.New, Bloom: dedup.Negative}, nil
	case old != payload:
		return dedup.Answer{Verdict: dedup.Conflict, Bloom: dedup.TruePositive}, nil
	}
	return dedup.Answer{Verdict: dedup.Duplicate, Bloom: dedup.TruePositive, SeenAt: testTime}, nil
}

var testTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// driver runs one sub-topology on a fake runtime.
type driver struct {
	t     testing.TB
	rt    *fakeRuntime
	topo  *Topology
	sub   *Subtopology
	chain *Chain
	next  record.Offset

	passed window.Millis // as far as pass let time come
}

func drive(t testing.TB, b *Builder) *driver {
	t.Helper()
	topo, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return driveSub(t, topo, 0)
}

func driveSub(t testing.TB, topo *Topology, sub int) *driver {
	t.Helper()
	d := &driver{t: t, passed: window.NoTime, rt: newFakeRuntime(), topo: topo, sub: topo.Subtopologies()[sub]}
	var err error
	if d.chain, err = d.sub.NewChain(d.rt); err != nil {
		t.Fatal(err)
	}
	for _, x := range d.chain.Calls {
		if err := x.Open(); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// call commits, makes all calls that are to be made, and hands their outcomes on.
func (d *driver) call() error {
	for _, x := range d.chain.Calls {
		for made := true; made; {
			if err := x.Committed(); err != nil {
				return err
			}
			c, ok, err := x.Next()
			if made = ok; err != nil || !ok {
				return err
			}
			v, err := c.Attempt(context.Background(), 1)
			x.Done(Outcome{Seq: c.Seq, Value: v, Err: err})
			if _, err := x.Fire(false); err != nil {
				return err
			}
		}
	}
	return nil
}

// send runs a record through the first source.
func (d *driver) send(in broker.Record) error { return d.sendTo(0, in) }

func (d *driver) sendTo(source int, in broker.Record) error {
	in.Offset = d.next
	d.next++
	if in.Timestamp.IsZero() {
		in.Timestamp = testTime.Add(time.Duration(in.Offset) * time.Second)
	}
	if in.Timestamp.After(d.rt.streamTime) {
		d.rt.streamTime = in.Timestamp
	}
	d.rt.position = record.Position{
		TopicPartition: record.TopicPartition{Topic: d.topo.SourceTopic(d.sub.Sources[source]), Partition: d.rt.partition},
		Offset:         in.Offset,
	}
	return d.chain.Sources[source](&in)
}

// sendText sends "key=value" records, with the header id if there is "#id" behind.
func (d *driver) sendText(texts ...string) {
	d.t.Helper()
	for _, s := range texts {
		if err := d.send(text(s)); err != nil {
			d.t.Fatalf("%s: %v", s, err)
		}
	}
}

// text makes a record of "key=value#id"; the id is optional.
func text(s string) broker.Record {
	s, id, hasID := strings.Cut(s, "#")
	k, v, _ := strings.Cut(s, "=")
	in := broker.Record{Key: []byte(k), Value: []byte(v)}
	if hasID {
		in.Headers = record.Headers{{Key: DefaultIDHeader, Value: []byte(id)}}
	}
	return in
}

// outputs are the outputs so far as "key=value", "-" standing for null.
func (d *driver) outputs() string {
	var all []string
	for _, o := range d.rt.out {
		all = append(all, shown(o.Key)+"="+shown(o.Value))
	}
	return strings.Join(all, " ")
}

func (d *driver) expect(want string) {
	d.t.Helper()
	if got := d.outputs(); got != want {
		d.t.Errorf("outputs are\n %s, want\n %s", got, want)
	}
}

func (d *driver) expectCounter(k CounterKind, of string, want uint64) {
	d.t.Helper()
	if got := d.rt.count(k, of); got != want {
		d.t.Errorf("counter %s of %q is %d, want %d", k, of, got, want)
	}
}

// forward takes the outputs of one sub-topology into the next one, as the repartition topic would.
func (d *driver) forward(to *driver) {
	d.t.Helper()
	for _, o := range d.rt.out {
		in := broker.Record{Key: bytes.Clone(o.Key), Value: bytes.Clone(o.Value), Timestamp: o.Timestamp}
		for _, h := range o.Headers {
			// A broker's client may give an empty header value back as nil.
			in.Headers = append(in.Headers, record.Header{Key: h.Key, Value: append([]byte(nil), h.Value...)})
		}
		if err := to.send(in); err != nil {
			d.t.Fatal(err)
		}
	}
}

func shown(b []byte) string {
	if b == nil {
		return "-"
	}
	return string(b)
}

func header(o fakeOutput, key string) string {
	v, ok := o.Headers.Get(key)
	if !ok {
		return "(none)"
	}
	return string(v)
}

// failure expects an OperatorError and checks its parts.
func failure(t testing.TB, err error, operator string, stage Stage, policy Policy) *OperatorError {
	t.Helper()
	var oe *OperatorError
	if !errors.As(err, &oe) {
		t.Fatalf("error is %v (%T), want an OperatorError", err, err)
	}
	if oe.Operator != operator || oe.Stage != stage || oe.Policy != policy {
		t.Fatalf("failed: operator %q stage %q policy %d, want %q %q %d (%v)", oe.Operator, oe.Stage, oe.Policy, operator, stage, policy, err)
	}
	return oe
}
