package ids

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamd/streamd/dedup"
	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/verify"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/record"
)

// maxAhead is how far in the future the time of IDs may lie: as far as the engine believes a timestamp.
const maxAhead = time.Minute

// ImportConfig says what is imported where.
type ImportConfig struct {
	Pipeline *pipeline.Pipeline
	Step     string // empty: the only dedup step
	Source   SourceConfig
	Placing  Placing // empty: by the step's scope
	// At is the event time that the IDs count as seen at: they are remembered for the step's retention from then on. Zero: now.
	At time.Time
	// SkipInvalid passes over what cannot be imported (empty, too long, a missing column) and counts it.
	SkipInvalid bool
	// Progress, if set, is called after each transaction.
	Progress func(Progress)
}

// Progress is how far an import is.
type Progress struct {
	Read    uint64 `json:"read"`     // entries of the source
	New     uint64 `json:"imported"` // IDs that were written, each once for each task it went to
	Known   uint64 `json:"repeated"` // IDs that came before
	Invalid uint64 `json:"invalid"`
	Total   uint64 `json:"total"` // about; 0: not known
}

// Report is the outcome of an import.
type Report struct {
	Progress
	Pipeline string  `json:"pipeline"`
	Step     string  `json:"step"`
	Placing  Placing `json:"partition_by"`
	Tasks    int32   `json:"tasks"`
	// Resumed says that an earlier run was gone on with, Done that one had imported all.
	Resumed bool `json:"resumed"`
	Done    bool `json:"done_before"`
	// Until is up to when the IDs are remembered, in stream time; not known if an earlier run has imported them.
	Until time.Time `json:"remembered_until,omitzero"`
	// Note says what could not be seen.
	Note string `json:"note,omitempty"`
}

// importer is one run.
type importer struct {
	cfg      ImportConfig
	cluster  broker.Cluster
	step     *step
	src      source
	placing  Placing
	tasks    []*task
	member   *member
	producer broker.Producer
	prefix   string // of counters
	limit    int    // pending IDs of one task
	at       time.Time
	asked    string // at, if it was given: IDs are remembered from then on, so that it makes another import
	p        Progress
	report   Report
	room     []record.Partition
	pending  int // IDs that are not committed, of all tasks
}

// sourceTopics refuses if a topic is missing that nobody has to make: a source outside of Kafka makes its own.
func (m *importer) sourceTopics(ctx context.Context) error {
	for _, s := range m.cfg.Pipeline.Sources {
		if s.Ingress == nil {
			continue
		}
		there, err := m.cluster.Topics(ctx, s.Topic)
		if err != nil {
			return err
		}
		if _, ok := there[s.Topic]; !ok {
			return fmt.Errorf("%w: topic %q of source %q is not there yet. The first start of the pipeline makes it: start it once and stop it, or create it", daemon.ErrConfig, s.Topic, s.Name)
		}
	}
	return nil
}

// Import makes the IDs of a source known to a dedup step. What is imported is there also if it fails afterwards: run again, it goes
// on. Errors: daemon.ErrInUse while the pipeline runs.
func Import(ctx context.Context, cfg ImportConfig) (*Report, error) {
	now := time.Now()
	asked := ""
	if cfg.At.IsZero() {
		cfg.At = now
	} else {
		asked = strconv.FormatInt(cfg.At.UnixNano(), 10)
	}
	if cfg.At.After(now.Add(maxAhead)) {
		return nil, daemon.Usagef("--at %s lies in the future", cfg.At.Format(time.RFC3339))
	}
	topo, err := cfg.Pipeline.Topology()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", daemon.ErrConfig, err)
	}
	if err := stopped(ctx, cfg.Pipeline.Kafka, topo.Name()); err != nil {
		return nil, err
	}
	m := &importer{cfg: cfg, at: cfg.At, asked: asked}
	if m.cluster, err = daemon.OpenCluster(ctx, cfg.Pipeline.Kafka); err != nil {
		return nil, err
	}
	defer func() { _ = m.cluster.Close() }() // what was committed is there
	if err := m.sourceTopics(ctx); err != nil {
		return nil, err
	}
	if m.step, err = find(ctx, m.cluster, topo, cfg.Step); err != nil {
		return nil, err
	}
	if m.src, err = cfg.Source.open(ctx, m.cluster); err != nil {
		return nil, err
	}
	defer func() { _ = m.src.close() }() // it was only read
	if m.placing, err = m.place(); err != nil {
		return nil, err
	}
	if m.report.Note, err = m.step.compare(ctx, cfg.Pipeline, topo, m.placing); err != nil {
		return nil, err
	}
	if m.member, err = join(ctx, m.cluster, topo.Name(), m.step.Inputs); err != nil {
		return nil, err
	}
	defer m.member.leave(ctx)
	m.producer = m.cluster.NewProducer(broker.ProducerConfig{TransactionalID: topo.Name() + "-" + instance, TransactionTimeout: time.Minute})
	defer m.producer.Close()
	// Waits for a transaction of a run that was killed.
	if err := m.producer.Init(ctx); err != nil {
		return nil, err
	}
	if m.tasks, err = readTasks(ctx, m.cluster, topo.Name(), m.step, now); err != nil {
		return nil, err
	}
	return m.run(ctx)
}

// stopped asks, without joining, whether anybody is in the group: a join would disturb him.
func stopped(ctx context.Context, k pipeline.Kafka, group string) error {
	reach, err := verify.Reach(k)
	if err != nil {
		return err
	}
	c, err := rawlog.Open(reach)
	if err != nil {
		return err
	}
	defer c.Close()
	members, err := c.Members(ctx, group)
	if err != nil {
		return err
	}
	var names []string
	for _, m := range members {
		if m.Instance != instance { // one that was killed: it is replaced
			names = append(names, m.String())
		}
	}
	if len(names) > 0 {
		return fmt.Errorf("%w. Its members: %s. One that has ended keeps its place for up to 45 s, or until streamd leave FILE with what stands here of it takes it out", errOthers, strings.Join(names, "; "))
	}
	return nil
}

// place decides to which tasks IDs go. What an export holds goes where it was.
func (m *importer) place() (Placing, error) {
	asked := m.cfg.Placing
	if x, ok := m.src.(*csvSource); ok && x.export > 0 {
		switch {
		case asked == "" && x.export == m.step.Topic.Partitions:
			asked = ByPartition
		case asked == "" || asked == ByPartition && x.export != m.step.Topic.Partitions:
			return "", daemon.Usagef("the export is of a step with %d tasks, step %q has %d: a hash does not tell where its ID belongs, so only --partition-by everywhere is right",
				x.export, m.step.spec.Name, m.step.Topic.Partitions)
		}
	}
	return m.step.placing(asked)
}

func (m *importer) run(ctx context.Context) (*Report, error) {
	spec := m.step.spec
	m.report.Pipeline, m.report.Step, m.report.Placing, m.report.Tasks = m.cfg.Pipeline.Name, spec.Name, m.placing, m.step.Topic.Partitions
	m.prefix = "ids-import/" + fingerprintOf(m.src.fingerprint(), "at "+m.asked) + "/" + string(m.placing) + "/"
	// What Kafka takes in one record, less what a portion may bring in beyond the limit.
	message := m.step.Topic.MaxMessageBytes
	if message == 0 {
		message = 1 << 20
	}
	if m.limit = min(message-1024, 512<<10)/record.HashBytes - portion; m.limit < portion {
		return nil, fmt.Errorf("%w: max.message.bytes of topic %q is %d: too small for blocks of IDs", daemon.ErrConfig, m.step.Topic.Name, message)
	}
	until := m.at
	for _, t := range m.tasks {
		if t.point.StreamTime.Add(-spec.Config.Retention).After(m.at) {
			return nil, daemon.Usagef("--at %s: task %d has come to %s, so that IDs of then are forgotten already (retention %v)",
				m.at.Format(time.RFC3339), t.partition, t.point.StreamTime.Format(time.RFC3339), spec.Config.Retention)
		}
		if t.point.StreamTime.Before(m.at) {
			t.point.StreamTime = m.at
		} else if t.point.StreamTime.After(until) {
			until = t.point.StreamTime
		}
		t.index.Advance(t.point.StreamTime)
	}
	from, done := m.progress()
	m.report.Resumed = from != nil && !done
	// Also one that was read to its end is gone on with: topics and Redis may have got more since. Redis is walked anew then.
	if err := m.src.resume(ctx, from); err != nil {
		return nil, err
	}
	m.p.Total = m.src.total()
	for {
		err := m.src.next(ctx, m.take)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if m.full() {
			if err := m.commit(ctx, false); err != nil {
				return nil, err
			}
		}
	}
	if m.report.Done = done && m.p.Read == 0; m.report.Done {
		return &m.report, nil
	}
	if err := m.commit(ctx, true); err != nil {
		return nil, err
	}
	m.report.Progress, m.report.Until = m.p, until.Add(spec.Config.Retention)
	return &m.report, nil
}

// take puts an entry into its tasks.
func (m *importer) take(e *entry) error {
	m.p.Read++
	if e.err == nil {
		m.room, e.err = m.placing.tasks(m.room[:0], e, int32(len(m.tasks)))
	}
	if e.err != nil {
		if m.cfg.SkipInvalid && errors.Is(e.err, errEntry) {
			m.p.Invalid++
			return nil
		}
		return fmt.Errorf("%w: %s: %w (--skip-invalid passes over such entries and counts them)", daemon.ErrConfig, e.where, e.err)
	}
	for _, n := range m.room {
		t := m.tasks[n]
		a, err := t.index.Check(e.hash, 0, t.point.StreamTime)
		if err != nil {
			return err
		}
		if a.Verdict != dedup.New {
			m.p.Known++
			continue
		}
		m.p.New++
		m.pending++
		t.pending++
	}
	return nil
}

// maxPending bounds a transaction: 16 MiB of IDs.
const maxPending = 1 << 20

func (m *importer) full() bool {
	if m.pending >= maxPending {
		return true
	}
	for _, t := range m.tasks {
		if t.pending >= m.limit {
			return true
		}
	}
	return false
}

// doneCounter marks a source that was read to its end.
const doneCounter = "done"

// counter is the name of a counter in a commit record: the kind, a colon, and what it counts for.
func (m *importer) counter(name string) string { return m.prefix + name + ":" + m.step.spec.Name }

// progress is how far an earlier run has come; nil: there was none. Each transaction writes all tasks, so that one of them
// knows.
func (m *importer) progress() (from position, done bool) {
	for _, c := range m.tasks[0].point.Counters {
		name, ok := strings.CutPrefix(c.Name, m.prefix)
		if name, of, _ := strings.Cut(name, ":"); ok && of == m.step.spec.Name {
			if from == nil {
				from = position{}
			}
			from[name] = c.Value
		}
	}
	return from, from[doneCounter] > 0
}

// commit makes what was taken durable, and how far that is.
func (m *importer) commit(ctx context.Context, done bool) error {
	meta, err := m.member.current()
	if err != nil {
		return err
	}
	var counters []record.Counter
	at := m.src.position()
	for _, name := range slices.Sorted(maps.Keys(at)) {
		counters = append(counters, record.Counter{Name: m.counter(name), Value: at[name]})
	}
	if done {
		counters = append(counters, record.Counter{Name: m.counter(doneCounter), Value: 1})
	}
	now := time.Now()
	var offsets []broker.OffsetCommit
	points := make([]record.CommitPoint, len(m.tasks))
	for i, t := range m.tasks {
		out, positions, p := t.prepare(m.step.spec.Name, counters, now)
		for _, o := range out {
			m.producer.Add(o)
		}
		offsets, points[i] = append(offsets, positions...), p
	}
	_, outcome, err := m.producer.Commit(ctx, meta, offsets)
	switch {
	case errors.Is(err, broker.ErrIllegalGeneration), errors.Is(err, broker.ErrUnknownMember):
		return errOthers
	case outcome != broker.Committed:
		return fmt.Errorf("a transaction was not, or maybe not, committed; import again, which goes on where this ended: %w", err)
	}
	for i, t := range m.tasks {
		if err := t.committed(points[i]); err != nil {
			return err
		}
	}
	m.pending = 0
	if m.cfg.Progress != nil {
		m.cfg.Progress(m.p)
	}
	return nil
}
