package check_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/internal/verify/proof"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/test/check"
	"github.com/streamd/streamd/test/check/rig"
)

func target(r *rig.Rig) check.Target {
	scheme := proof.Scheme{ID: "bill_id", Account: "account", Region: "region", Cents: "cents"}
	totals := proof.TotalScheme{Count: "bills", Sum: "cents", Min: "low", Max: "high"}
	regions := proof.TotalScheme{Count: "bills", Sum: "cents"}
	return check.Target{
		Brokers: []string{r.Broker.Address()}, App: rig.App, Dedup: "unique",
		Input: rig.Input, Scheme: scheme, Output: rig.Output, OutputScheme: proof.Scheme{ID: "bill_id"},
		Totals: rig.Totals, TotalScheme: totals, Regions: rig.Regions, RegionScheme: regions,
		StateDirs: []string{r.StateDir()}, Within: time.Minute,
	}
}

// settled is a rig with some bills processed, stopped.
func settled(t *testing.T) *rig.Rig {
	r := rig.New(t)
	r.Start()
	r.Send(0, 300)
	r.Settle()
	r.Stop()
	return r
}

func run(t *testing.T, x check.Target) *check.Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	report, err := check.Run(ctx, x)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// wants says which checks must differ, and that all others are equal.
func wants(t *testing.T, report *check.Report, different ...string) {
	t.Helper()
	for _, r := range report.Results {
		switch {
		case slices.Contains(different, r.Check) == r.OK():
			t.Errorf("%s is %s: %v %v", r.Check, r.State(), r.First, r.Notes)
		case r.Skipped == "" && r.Compared == 0:
			t.Errorf("%s compared nothing", r.Check)
		}
	}
}

// TestEqualAfterAGoodRun: every check that can be made here is made, and says equal.
func TestEqualAfterAGoodRun(t *testing.T) {
	r := rig.New(t)
	c := r.Cluster()
	w, err := proof.NewWatch(t.Context(), c, nil, rig.Output, rig.Totals, rig.Regions)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	r.Start()
	for n := 0; n < 600; n += 200 {
		r.Send(n, n+200)
		r.Settle()
		r.Stop()
		r.Start()
	}
	r.Settle()
	r.Stop()
	x := target(r)
	x.Watch = w
	report := run(t, x)
	wants(t, report)
	var made []string
	for _, res := range report.Results {
		if res.Skipped == "" {
			made = append(made, res.Check)
		}
	}
	if got := strings.Join(made, " "); got != "C1 C2 C3 C4 C5 C6 C7 C8 C9 C10" {
		t.Errorf("made: %s", got)
	}
}

// TestPlantedDifferences: each kind of damage turns exactly the checks red that are meant for it.
func TestPlantedDifferences(t *testing.T) {
	for _, c := range []struct {
		name  string
		plant func(r *rig.Rig, x *check.Target)
		red   []string
	}{
		{"an output came twice", func(r *rig.Rig, _ *check.Target) { r.Produce(rig.Again(r.Records(rig.Output)[7])) }, []string{"C1"}},
		{"an output is missing", func(r *rig.Rig, x *check.Target) {
			// What a lost record looks like: an input that nobody has processed.
			key, value := rig.Bill(1000)
			r.Produce(&kgo.Record{Topic: rig.Input, Key: key, Value: value})
			x.Within = 0
		}, []string{"C1", "C2", "C4", "C10"}},
		{"a strange output", func(r *rig.Rig, _ *check.Target) {
			r.Produce(&kgo.Record{Topic: rig.Output, Value: []byte(`{"bill_id":"nobody's"}`)})
		}, []string{"C1"}},
		{"a total came twice", func(r *rig.Rig, _ *check.Target) { r.Produce(rig.Again(r.Records(rig.Totals)[20])) }, []string{"C2"}},
		{"a region came twice", func(r *rig.Rig, _ *check.Target) { r.Produce(rig.Again(r.Records(rig.Regions)[20])) }, []string{"C4"}},
		{"a state with another byte", func(r *rig.Rig, _ *check.Target) {
			r.ChangeState("totals", func(b *record.Batch, key, value []byte) {
				value[len(value)-1]++
				b.State = append(b.State, record.StateChange{Store: "totals", Key: key, Value: value})
			})
		}, []string{"C5"}},
		{"a state is gone", func(r *rig.Rig, _ *check.Target) {
			r.ChangeState("totals", func(b *record.Batch, key, _ []byte) {
				b.State = append(b.State, record.StateChange{Store: "totals", Key: key})
			})
		}, []string{"C5"}},
		{"a state too many", func(r *rig.Rig, _ *check.Target) {
			r.ChangeState("totals", func(b *record.Batch, _, value []byte) {
				b.State = append(b.State, record.StateChange{Store: "totals", Key: []byte("nobody"), Value: value})
			})
		}, []string{"C5"}},
		{"a local counter moved", func(r *rig.Rig, _ *check.Target) {
			r.ChangeState("totals", func(b *record.Batch, _, _ []byte) { b.Position.Counters[0].Value++ })
		}, []string{"C6"}},
		{"an offset moved", func(r *rig.Rig, x *check.Target) {
			r.MoveOffset(rawlog.Partition{Topic: rig.Input, Number: 1}, -3)
			x.Within = 0 // it is behind now, and nobody works
		}, []string{"C6"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := settled(t)
			x := target(r)
			c.plant(r, &x)
			report := run(t, x)
			wants(t, report, c.red...)
			if report.Err() == nil {
				t.Error("the report has no error")
			}
		})
	}
}
