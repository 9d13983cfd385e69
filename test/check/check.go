package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/verify/proof"
	"github.com/streamd/streamd/internal/verify/rawlog"
)

// Target says what is there to be checked. Only Brokers is required.
type Target struct {
	Brokers []string
	App     string // consumer group and prefix of the internal topics; empty: no C5, C6, C9, C10

	Input  string        // topic of the bills; empty: no C1-C4, C9-C11
	Scheme proof.Scheme  // of the input
	Stream bool          // the dedup's scope is the stream, not the partition
	Window time.Duration // of the dedup; 0: for ever
	Dedup  string        // name of the dedup operator; empty: no C10

	Output       string       // topic of a dedup's output; empty: no C1 and C3
	OutputScheme proof.Scheme // where it holds the ID
	Totals       string       // topic of totals per account; empty: no C2
	Regions      string       // topic of totals per region; empty: no C4
	TotalScheme  proof.TotalScheme
	RegionScheme proof.TotalScheme

	StateDirs []string // of processes that have ended; empty: no C5
	Running   bool     // the application commits while it is checked

	// Within is C9's bound, from now on. 0: no C9.
	Within time.Duration
	// Watch is the reader that ran during the faults. nil: no C7.
	Watch *proof.Watch

	Expect                         string // file: what the producer knows that it sent, see [Expectation]
	Ledger, LedgerTotals, Coverage string // files; empty: no C11, no C12
}

// Expectation is what a producer knows: how many different records were acknowledged (OK), and for how
// many it does not know whether they arrived (Info).
type Expectation struct {
	OK   int64 `json:"ok"`
	Info int64 `json:"info"`
}

// Report is what came of it, in the order of the checks' numbers.
type Report struct {
	Results []*proof.Result `json:"results"`
}

// Err is nil if nothing differs, else the first differences.
func (r *Report) Err() error {
	var errs []error
	for _, x := range r.Results {
		if x.OK() {
			continue
		}
		for _, d := range x.First[:min(len(x.First), 5)] {
			errs = append(errs, fmt.Errorf("check: %s: %s: %s (one of %d)", x.Check, d.Where, d.What, x.Differences))
		}
	}
	return errors.Join(errs...)
}

// run is a check under way.
type run struct {
	Target
	c       *rawlog.Cluster
	oracle  *proof.Oracle
	results []*proof.Result
}

// Run makes every check that the target allows. The error is a fault of the reading, not a difference.
func Run(ctx context.Context, t Target) (*Report, error) {
	c, err := rawlog.Open(rawlog.Config{Brokers: t.Brokers})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r := &run{Target: t, c: c}
	for _, step := range []func(context.Context) error{r.caughtUp, r.input, r.echo, r.totals, r.tasks, r.watch, r.quiet, r.outside} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	// By number: C2 before C10.
	slices.SortStableFunc(r.results, func(a, b *proof.Result) int {
		if len(a.Check) != len(b.Check) {
			return len(a.Check) - len(b.Check)
		}
		return strings.Compare(a.Check, b.Check)
	})
	return &Report{r.results}, nil
}

func (r *run) add(results ...*proof.Result) { r.results = append(r.results, results...) }

// caughtUp is C9. It comes first: the others want a state that no longer moves.
func (r *run) caughtUp(ctx context.Context) error {
	const title = "lag reaches zero within the bound"
	if r.App == "" || r.Input == "" || r.Within <= 0 {
		r.add(proof.Skip("C9", title, "no application, input or bound was given"))
		return nil
	}
	inputs, err := r.c.Topics(ctx, r.App+"-")
	if err != nil {
		return err
	}
	inputs = slices.DeleteFunc(inputs, func(t string) bool { return !strings.HasSuffix(t, "-repartition") })
	result, err := proof.AwaitCaughtUp(ctx, r.c, r.App, r.Within, append(inputs, r.Input)...)
	if err == nil {
		r.add(result)
	}
	return err
}

// input reads what was sent and computes what must come of it.
func (r *run) input(ctx context.Context) error {
	if r.Input == "" {
		return nil
	}
	r.oracle = &proof.Oracle{Scheme: r.Scheme, Window: r.Window, Stream: r.Stream}
	return r.read(ctx, r.Input, r.oracle.Add)
}

// read reads a topic: to the end, or to the committed offsets of a group that still works on it.
func (r *run) read(ctx context.Context, topic string, add func(rawlog.Record) error) error {
	bounds, err := r.c.Bounds(ctx, topic)
	if err != nil {
		return err
	}
	return r.c.Read(ctx, rawlog.Spans(bounds), add)
}

func (r *run) echo(ctx context.Context) error {
	if r.oracle == nil || r.Output == "" {
		r.add(proof.Skip("C1", "every accepted ID comes out once", "no input or output was given"),
			proof.Skip("C3", "the order of a partition is kept", "no input or output was given"))
		return nil
	}
	e := r.oracle.NewEcho(r.OutputScheme)
	if err := r.read(ctx, r.Output, e.Add); err != nil {
		return err
	}
	results := e.Results()
	if r.Expect != "" {
		if err := r.expected(results[0]); err != nil {
			return err
		}
	}
	r.add(results...)
	return nil
}

// expected compares the input with what the producer knows: a record that Kafka acknowledged and lost is
// in no topic.
func (r *run) expected(once *proof.Result) error {
	data, err := os.ReadFile(r.Expect)
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	var e Expectation
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("check: %s: %w", r.Expect, err)
	}
	if n := r.oracle.Distinct(); n < e.OK || n > e.OK+e.Info {
		once.Differ("topic "+r.Input, "%d different IDs are in it, %d were acknowledged and %d may have arrived", n, e.OK, e.Info)
	}
	return nil
}

func (r *run) totals(ctx context.Context) error {
	for _, x := range []struct {
		topic, check, title string
		make                func() *proof.Totals
	}{
		{r.Totals, "C2", "the i-th total is what i bills come to", func() *proof.Totals { return r.oracle.NewTotals(r.TotalScheme) }},
		{r.Regions, "C4", "totals of regions = sum of their bills", func() *proof.Totals { return r.oracle.NewRegions(r.RegionScheme) }},
	} {
		if r.oracle == nil || x.topic == "" {
			r.add(proof.Skip(x.check, x.title, "no input or topic of totals was given"))
			continue
		}
		t := x.make()
		if err := r.read(ctx, x.topic, t.Add); err != nil {
			return err
		}
		r.add(t.Result())
	}
	return nil
}

// tasks is C5, C6 and C10.
func (r *run) tasks(ctx context.Context) error {
	const title = "counted duplicates = sent duplicates"
	if r.App == "" {
		r.add(proof.Skip("C5", "local store = fold of the committed changelog", "no application was given"),
			proof.Skip("C6", "offsets = commit records = local store", "no application was given"),
			proof.Skip("C10", title, "no application was given"))
		return nil
	}
	t, err := proof.CheckTasks(ctx, r.c, proof.App{Name: r.App, Dirs: r.StateDirs, Running: r.Running})
	if err != nil {
		return err
	}
	r.add(t.State, t.Offsets)
	if r.oracle == nil || r.Dedup == "" {
		r.add(proof.Skip("C10", title, "no input or dedup operator was given"))
		return nil
	}
	r.add(r.oracle.CountedDuplicates(t, r.Dedup))
	return nil
}

func (r *run) watch(ctx context.Context) error {
	if r.Watch == nil {
		r.add(proof.Skip("C7", "a reader during the faults saw the final sequence", "no reader ran"))
		return nil
	}
	if err := r.Watch.AwaitEnd(ctx); err != nil {
		return err
	}
	r.Watch.Stop()
	result, err := r.Watch.Check(ctx)
	if err == nil {
		r.add(result)
	}
	return err
}

// quiet is C8.
func (r *run) quiet(ctx context.Context) error {
	topics := slices.DeleteFunc([]string{r.Input, r.Output, r.Totals, r.Regions}, func(t string) bool { return t == "" })
	if r.App != "" {
		internal, err := r.c.Topics(ctx, r.App+"-")
		if err != nil {
			return err
		}
		topics = append(topics, internal...)
	}
	slices.Sort(topics)
	topics = slices.Compact(topics)
	if len(topics) == 0 || r.Running {
		r.add(proof.Skip("C8", "no transaction is open", "no topic was given, or the application runs"))
		return nil
	}
	result, err := proof.CheckQuiet(ctx, r.c, topics...)
	if err == nil {
		r.add(result)
	}
	return err
}

// outside is C11 and C12, from files.
func (r *run) outside(context.Context) error {
	if r.oracle == nil || r.Ledger == "" || r.LedgerTotals == "" {
		r.add(proof.Skip("C11", "the database holds each effect once", "no input or ledger was given"))
	} else {
		ledger, err := os.Open(r.Ledger)
		if err != nil {
			return fmt.Errorf("check: %w", err)
		}
		defer ledger.Close()
		totals, err := os.Open(r.LedgerTotals)
		if err != nil {
			return fmt.Errorf("check: %w", err)
		}
		defer totals.Close()
		result, err := r.oracle.CheckLedger(ledger, totals)
		if err != nil {
			return err
		}
		r.add(result)
	}
	if r.Coverage == "" {
		r.add(proof.Skip("C12", "the faults were really tried", "no coverage of a run was given"))
		return nil
	}
	f, err := os.Open(r.Coverage)
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	defer f.Close()
	result, err := proof.CheckCoverage(f)
	if err == nil {
		r.add(result)
	}
	return err
}
