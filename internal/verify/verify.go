package verify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/streamd/streamd/internal/broker"
	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/verify/proof"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/internal/verify/rawstore"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/topology"
)

// ErrDifferent: something is not as it must be. The report says what.
var ErrDifferent = errors.New("the check failed: there are differences")

// Config says what is verified.
type Config struct {
	Pipeline *pipeline.Pipeline
	// StateDir is the pipeline's state directory on this machine. One that is not there, or that a process
	// runs on, is left out, and the report says so.
	StateDir string
	// Span limits the inputs whose outputs are compared.
	Span Span
}

// Report is the outcome.
type Report struct {
	Pipeline string `json:"pipeline"`
	Running  bool   `json:"running"` // commits may go on: see the notes
	runs     string // how that is known
	// Equal says that nothing differs of what was compared, Complete that all was compared that is there.
	Equal    bool            `json:"equal"`
	Complete bool            `json:"complete"`
	Results  []*proof.Result `json:"results"`
}

// Job is one verification. It is run once; Progress may be asked from anywhere.
type Job struct {
	Config
	c     *rawlog.Cluster
	topo  *topology.Topology
	total atomic.Int64
	runs  string // how it is known that the application runs, or may
}

// New prepares a verification.
func New(c Config) (*Job, error) {
	topo, err := c.Pipeline.Topology()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", daemon.ErrConfig, err)
	}
	reach, err := Reach(c.Pipeline.Kafka)
	if err != nil {
		return nil, err
	}
	cluster, err := rawlog.Open(reach)
	if err != nil {
		return nil, err
	}
	return &Job{Config: c, c: cluster, topo: topo}, nil
}

// Close ends the connections.
func (j *Job) Close() { j.c.Close() }

// Progress is how many offsets were read, and about how many there are to read; 0 as long as that is
// not known.
func (j *Job) Progress() (done, total int64) { return j.c.Progress(), j.total.Load() }

// Run reads everything and compares. An error means that it could not; differences stand in the report.
func (j *Job) Run(ctx context.Context) (*Report, error) {
	id, err := j.c.ID(ctx)
	if err != nil {
		return nil, err
	}
	if err := j.estimate(ctx); err != nil {
		return nil, err
	}
	app := proof.App{Name: j.topo.Name(), Retention: map[string]time.Duration{}}
	for _, s := range j.topo.Subtopologies() {
		for _, d := range s.Dedups {
			app.Retention[d.Name] = d.Config.Retention
		}
	}
	why, err := j.local(ctx, &app, id)
	if err != nil {
		return nil, err
	}
	tasks, err := proof.CheckTasks(ctx, j.c, app)
	if err != nil {
		return nil, err
	}
	if why != "" && len(tasks.Tasks) > 0 {
		tasks.State.Leave(why)
	}
	tasks.State.Check, tasks.Offsets.Check = "state", "offsets"
	quiet, err := j.quiet(ctx, app.Running)
	if err != nil {
		return nil, err
	}
	r := &replay{
		c: j.c, topo: j.topo, span: j.Span, running: app.Running, cluster: id, topics: map[string]*expectation{}, ahead: j.ahead(),
		inputs:  proof.NewResult("inputs", "each record was accepted or dropped as it had to be"),
		outputs: proof.NewResult("outputs", "outputs = what the inputs come to, each once, in order"),
		state:   proof.NewResult("changelogs", "committed changelogs = what the inputs come to"),
	}
	counts := proof.NewResult("counts", "counted records = records in the topics")
	if j.Pipeline.Processing.Level() == topology.AtMostOnce {
		// A position may rightly have passed what nobody has counted and nothing has come of.
		for _, x := range []*proof.Result{counts, r.inputs, r.outputs, r.state} {
			x.Leave("the guarantee is at_most_once: what is missing may have been lost")
		}
		return j.report(app.Running, tasks.State, tasks.Offsets, quiet, counts, r.inputs, r.outputs, r.state), nil
	}
	if err := j.counts(ctx, counts, tasks, app.Running); err != nil {
		return nil, err
	}
	if err := r.run(ctx, tasks.Tasks); err != nil {
		return nil, err
	}
	results := []*proof.Result{tasks.State, tasks.Offsets, quiet, counts, r.inputs, r.outputs, r.state}
	for _, x := range results[4:] {
		if x.Compared == 0 && x.Differences == 0 {
			x.Skipped = "there was nothing that could be compared"
		}
	}
	if app.Running {
		r.state.Leave(j.runs)
	}
	return j.report(app.Running, results...), nil
}

func (j *Job) report(running bool, results ...*proof.Result) *Report {
	return &Report{Pipeline: j.Pipeline.Name, Running: running, runs: j.runs, Equal: proof.OK(results), Complete: proof.Complete(results), Results: results}
}

// local finds out whether the application runs and whether its local store can be read. why says why not.
func (j *Job) local(ctx context.Context, app *proof.App, cluster string) (why string, err error) {
	members, err := j.c.Members(ctx, app.Name)
	if err != nil {
		return "", err
	}
	instance := ""
	key, old, unread := daemon.StateKeys(j.Pipeline)
	app.Keys = [][]byte{key, old}
	s, err := rawstore.Open(j.StateDir, app.Keys...)
	switch {
	case errors.Is(err, rawstore.ErrInUse):
		app.Running, j.runs = true, "the application runs"
		return "a process runs on " + j.StateDir + ": stop it to have its store compared", nil
	case errors.Is(err, fs.ErrNotExist):
		why = "there is no local store in " + j.StateDir
	case errors.Is(err, rawstore.ErrKey) && unread != nil: // elsewhere than where the store is, nobody needs a key
		return "", unread
	case errors.Is(err, rawstore.ErrKey):
		return "", fmt.Errorf("%s: state.key_file: %w: %w", j.Pipeline.File, daemon.ErrConfig, err)
	case err != nil:
		return "", err
	default:
		defer s.Close()
		if s.Cluster != "" && s.Cluster != cluster {
			return "", fmt.Errorf("verify: the state in %s belongs to cluster %q, this is %q: %w", j.StateDir, s.Cluster, cluster, daemon.ErrConfig)
		}
		app.Dirs, instance = []string{j.StateDir}, s.Instance
	}
	// The static member of the process whose store was opened has ended, though the group still has it.
	var others []string
	for _, m := range members {
		if instance == "" || m.Instance != instance {
			others = append(others, m.String())
		}
	}
	app.Running = len(others) > 0
	j.runs = "the application runs, or was stopped less than 45 s ago: " + strings.Join(others, "; ")
	return why, nil
}

// topics are all that the pipeline reads and writes.
func (j *Job) topics() (inputs, outputs, internal []string) {
	for _, s := range j.topo.Subtopologies() {
		for _, x := range s.Sources {
			if t := j.topo.SourceTopic(x); !slices.Contains(inputs, t) {
				inputs = append(inputs, t)
			}
		}
		for _, x := range s.Sinks {
			if t := j.topo.SinkTopic(x); !slices.Contains(outputs, t) {
				outputs = append(outputs, t)
			}
		}
		if s.Stateful() {
			internal = append(internal, j.topo.IDLogTopic(s))
		}
		for _, st := range s.Stores {
			internal = append(internal, j.topo.StoreTopic(st.Name))
		}
	}
	return inputs, outputs, internal
}

// estimate adds up what will be read.
func (j *Job) estimate(ctx context.Context) error {
	inputs, outputs, internal := j.topics()
	all := slices.Concat(inputs, outputs, internal)
	slices.Sort(all)
	bounds, err := j.c.Bounds(ctx, slices.Compact(all)...)
	if err != nil {
		if errors.Is(err, broker.ErrUnknownTopic) {
			return fmt.Errorf("%w: has the pipeline run on this cluster?: %w", daemon.ErrConfig, err)
		}
		return err
	}
	total := int64(0)
	for p, b := range bounds {
		n := b.Stable - b.Start
		if slices.Contains(inputs, p.Topic) {
			total += 2 * n // counted, and replayed
		}
		if slices.Contains(outputs, p.Topic) {
			total += 2 * n // counted, and compared
		}
		if slices.Contains(internal, p.Topic) {
			total += 2 * n // against the local store, and for the replay
		}
	}
	j.total.Store(total)
	return nil
}

func (j *Job) quiet(ctx context.Context, running bool) (*proof.Result, error) {
	inputs, outputs, internal := j.topics()
	all := slices.Concat(inputs, outputs, internal)
	slices.Sort(all)
	r, err := proof.CheckQuiet(ctx, j.c, slices.Compact(all)...)
	if err != nil {
		return nil, err
	}
	if r.Check = "transactions"; running {
		// One that is open now is at work.
		r = proof.Skip("transactions", r.Title, j.runs)
	}
	return r, nil
}

// counts compares the counters of the commit records with the topics: what was consumed with what stands
// below the committed offsets, what was produced with what stands in the outputs.
func (j *Job) counts(ctx context.Context, r *proof.Result, tasks *proof.Tasks, running bool) error {
	inputs, outputs, _ := j.topics()
	whole := map[string]bool{} // topics whose every reader or writer has commit records
	for _, s := range j.topo.Subtopologies() {
		for _, x := range s.Sources {
			t := j.topo.SourceTopic(x)
			if _, known := whole["in "+t]; !known || !s.Stateful() {
				whole["in "+t] = s.Stateful()
			}
		}
		for _, x := range s.Sinks {
			t := j.topo.SinkTopic(x)
			if _, known := whole["out "+t]; !known || !s.Stateful() {
				whole["out "+t] = s.Stateful()
			}
		}
	}
	for _, topic := range inputs {
		if err := j.countInput(ctx, r, tasks, topic, whole["in "+topic]); err != nil {
			return err
		}
	}
	if running {
		r.Lack("outputs: not counted: %s", j.runs)
		outputs = nil
	}
	ahead := j.ahead()
	for _, topic := range outputs {
		switch {
		case !whole["out "+topic]:
			r.Lack("topic %s: not counted: a part without state writes to it", topic)
		case ahead[topic]:
			r.Lack("topic %s: not counted: it is written at least once", topic)
		default:
			if err := j.countOutput(ctx, r, tasks, topic); err != nil {
				return err
			}
		}
	}
	if r.Compared == 0 && r.OK() {
		r.Skipped = "there was nothing that could be counted"
	}
	return nil
}

// ahead are the topics in which records may rightly stand twice.
func (j *Job) ahead() map[string]bool {
	topics := map[string]bool{}
	for _, s := range j.topo.Subtopologies() {
		for _, x := range s.Sinks {
			if x.Ahead(j.Pipeline.Processing.Level()) {
				topics[j.topo.SinkTopic(x)] = true
			}
		}
	}
	return topics
}

// countInput goes by the last commit record of each task, so that a running application can be counted.
func (j *Job) countInput(ctx context.Context, r *proof.Result, tasks *proof.Tasks, topic string, whole bool) error {
	if !whole {
		r.Lack("topic %s: not counted: a part without state reads it", topic)
		return nil
	}
	if j.Span.From > 0 { // all that was counted is in the counters, also what lies before
		r.Lack("topic %s: not counted: the range begins at %d", topic, j.Span.From)
		return nil
	}
	bounds, err := j.c.Bounds(ctx, topic)
	if err != nil {
		return err
	}
	for _, t := range tasks.Tasks {
		for _, in := range t.Last.Inputs {
			b := bounds[in.Partition]
			if in.Topic != topic || b.Start > 0 || t.Last.Sequence != uint64(t.Commits) {
				continue // its beginning is gone, or it was reset
			}
			n := int64(0)
			err := j.c.Read(ctx, map[rawlog.Partition]rawlog.Span{in.Partition: {From: 0, To: in.Next}}, j.counting(topic, &n))
			if err != nil {
				return err
			}
			r.Compared++
			if got := int64(t.Counters["consumed/records:"+topic]); got != n {
				r.Differ(rawlog.At(in.Partition, in.Next), "task %s has counted %d records up to here, there are %d%s", t.Name, got, n, begun(n-got))
			}
		}
	}
	return nil
}

// begun is what explains that a task has counted fewer records than there are, if nothing is wrong.
func begun(fewer int64) string {
	if fewer <= 0 {
		return ""
	}
	return fmt.Sprintf(" (if it was set to begin behind the first ones, as the %d that are missing would be: compare from that offset on, with --range)", fewer)
}

// counting counts the records of a topic, marks of event time left out.
func (j *Job) counting(topic string, n *int64) func(rawlog.Record) error {
	internal := isRepartition(j.topo, topic)
	return func(r rawlog.Record) error {
		if !internal || !r.IsMark() {
			*n++
		}
		return nil
	}
}

// isRepartition says whether tasks of the pipeline read what others of it write there.
func isRepartition(topo *topology.Topology, topic string) bool {
	for _, s := range topo.Subtopologies() {
		for _, src := range s.Sources {
			if src.Internal && topo.SourceTopic(src) == topic {
				return true
			}
		}
	}
	return false
}

func (j *Job) countOutput(ctx context.Context, r *proof.Result, tasks *proof.Tasks, topic string) error {
	bounds, err := j.c.Bounds(ctx, topic)
	if err != nil {
		return err
	}
	for p, b := range bounds {
		if b.Start > 0 {
			r.Lack("topic %s: not counted: %s begins at %d", topic, p, b.Start)
			return nil
		}
	}
	for _, t := range tasks.Tasks {
		if t.Last.Sequence != uint64(t.Commits) {
			r.Lack("topic %s: not counted: task %s was reset, or its ID log has lost its beginning", topic, t.Name)
			return nil
		}
	}
	n := int64(0)
	if err := j.c.Read(ctx, rawlog.Spans(bounds), j.counting(topic, &n)); err != nil {
		return err
	}
	r.Compared++
	if got := int64(tasks.Counter("produced/records:" + topic)); got != n {
		r.Differ("topic "+topic, "%d records stand in it, the pipeline has counted %d (does another program write there, or is it compacted?)", n, got)
	}
	return nil
}

// Verdict says in a line how it came out, and what could not be compared.
func (r *Report) Verdict() string {
	var none, part []string
	compared := int64(0)
	for _, x := range r.Results {
		switch compared += x.Compared; {
		case !x.Partial:
		case x.Compared == 0 || x.Skipped != "":
			none = append(none, x.Check)
		default:
			part = append(part, x.Check)
		}
	}
	verdict := "equal"
	switch {
	case !r.Equal:
		verdict = "different"
	case compared == 0:
		verdict = "nothing was compared"
	case !r.Complete:
		var lacks []string
		if len(none) > 0 {
			lacks = append(lacks, "not "+strings.Join(none, ", "))
		}
		if len(part) > 0 {
			lacks = append(lacks, "in part "+strings.Join(part, ", "))
		}
		verdict = "equal as far as compared: " + strings.Join(lacks, "; ")
	}
	if r.Running {
		verdict += " (as of the committed offsets: " + r.runs + ")"
	}
	return r.Pipeline + ": " + verdict
}

// Err is nil if nothing differs.
func (r *Report) Err() error {
	if r.Equal {
		return nil
	}
	n := int64(0)
	var where []string
	for _, x := range r.Results {
		if n += x.Differences; !x.OK() {
			where = append(where, x.Check)
		}
	}
	return fmt.Errorf("%w: %d in %s", ErrDifferent, n, strings.Join(where, ", "))
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
