package verify_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/verify"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/test/check/rig"
)

func run(t *testing.T, r *rig.Rig, span verify.Span) *verify.Report {
	t.Helper()
	pipelines, err := daemon.Load([]string{r.File}, r.Load())
	if err != nil {
		t.Fatal(err)
	}
	j, err := verify.New(verify.Config{Pipeline: pipelines[0], StateDir: r.StateDir(), Span: span})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	report, err := j.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if done, total := j.Progress(); total == 0 || done > total {
		t.Errorf("%d of %d offsets were read", done, total)
	}
	return report
}

func text(report *verify.Report) string {
	var b strings.Builder
	_ = verify.WriteTable(&b, report.Results)
	return b.String()
}

// settled is a rig with some bills processed in three lives, stopped.
func settled(t *testing.T) *rig.Rig {
	r := rig.New(t)
	for n := 0; n < 300; n += 100 {
		r.Start()
		r.Send(n, n+100)
		r.Settle()
		r.Stop()
	}
	return r
}

func TestEqual(t *testing.T) {
	r := settled(t)
	report := run(t, r, verify.Span{})
	if !report.Equal || !report.Complete || report.Running || report.Err() != nil || report.Verdict() != "bills: equal" {
		t.Errorf("running %v, %v\n%s", report.Running, report.Err(), text(report))
	}
	for _, x := range report.Results {
		if x.State() != "equal" || x.Compared == 0 || len(x.Notes) > 0 {
			t.Errorf("%s is %s after %d comparisons: %v", x.Check, x.State(), x.Compared, x.Notes)
		}
	}
	if t.Failed() {
		t.Log(text(report))
	}
	// Of a range it is known that its outputs are there, and not that there are no others.
	if report = run(t, r, verify.Span{To: 10}); !report.Equal || report.Complete || !strings.Contains(report.Verdict(), "outputs") {
		t.Errorf("of a range: %s\n%s", report.Verdict(), text(report))
	}
}

// TestRunning: what cannot be checked beside a running process is said, all else is.
func TestRunning(t *testing.T) {
	r := rig.New(t)
	r.Start()
	r.Send(0, 200)
	r.Settle()
	report := run(t, r, verify.Span{})
	if !report.Running || !report.Equal || report.Complete {
		t.Error(text(report))
	}
	for _, x := range report.Results {
		skipped := slices.Contains([]string{"state", "transactions", "changelogs"}, x.Check)
		if skipped != (x.Skipped != "") {
			t.Errorf("%s: skipped %q", x.Check, x.Skipped)
		}
	}
}

// TestPlanted: each difference is found, and only by the checks that are meant for it.
func TestPlanted(t *testing.T) {
	for _, c := range []struct {
		name  string
		plant func(r *rig.Rig)
		red   string // the checks that differ
		where string // a part of the first difference's place
	}{
		{"one byte of state", func(r *rig.Rig) {
			r.ChangeState("totals", func(b *record.Batch, key, value []byte) {
				value[len(value)-1] ^= 1
				b.State = append(b.State, record.StateChange{Store: "totals", Key: key, Value: value})
			})
		}, "state", "bills-totals-changelog/"},
		{"a state is gone", func(r *rig.Rig) {
			r.ChangeState("regions", func(b *record.Batch, key, _ []byte) {
				b.State = append(b.State, record.StateChange{Store: "regions", Key: key})
			})
		}, "state", "bills-regions-changelog/"},
		{"an output came twice", func(r *rig.Rig) { r.Produce(rig.Again(r.Records(rig.Output)[7])) }, "counts outputs", "bills.unique"},
		{"a total came twice", func(r *rig.Rig) { r.Produce(rig.Again(r.Records(rig.Totals)[7])) }, "counts outputs", rig.Totals},
		{"a strange output", func(r *rig.Rig) { r.Produce(&kgo.Record{Topic: rig.Regions, Value: []byte("{}")}) }, "counts outputs", rig.Regions},
		{"an offset moved back", func(r *rig.Rig) { r.MoveOffset(rawlog.Partition{Topic: rig.Input, Number: 1}, -3) }, "offsets", rig.Input + "/1@"},
		{"an offset moved forward", func(r *rig.Rig) {
			r.Send(300, 320)
			r.MoveOffset(rawlog.Partition{Topic: rig.Input, Number: 0}, 1)
		}, "offsets", rig.Input + "/0@"},
		{"a counter moved", func(r *rig.Rig) {
			r.ChangeState("totals", func(b *record.Batch, _, _ []byte) { b.Position.Counters[0].Value++ })
		}, "offsets", "task totals-by-repartition/"},
		{"a changelog with a foreign value", func(r *rig.Rig) {
			x := r.Records("bills-totals-changelog")[3]
			again := rig.Again(x)
			again.Value = append(slices.Clone(x.Value[:len(x.Value)-1]), x.Value[len(x.Value)-1]^1)
			r.Produce(again)
		}, "state changelogs", "bills-totals-changelog/"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := settled(t)
			c.plant(r)
			report := run(t, r, verify.Span{})
			var red []string
			for _, x := range report.Results {
				if !x.OK() {
					red = append(red, x.Check)
				}
			}
			if got := strings.Join(red, " "); got != c.red || report.Equal || report.Err() == nil {
				t.Errorf("different: %q, want %q\n%s", got, c.red, text(report))
			}
			if !strings.Contains(text(report), c.where) {
				t.Errorf("no difference at %q:\n%s", c.where, text(report))
			}
		})
	}
}
