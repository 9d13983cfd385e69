package soak

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/streamd/streamd/internal/verify"
	"github.com/streamd/streamd/internal/verify/proof"
)

// Report is the outcome of a run.
type Report struct {
	OK      bool    `json:"ok"`
	Seconds float64 `json:"seconds"`
	Seed    uint64  `json:"seed"`
	Counts
	Out    int64   `json:"out"`                // bills that came out of the dedup
	Rate   float64 `json:"records_per_second"` // that were sent
	Kills  int     `json:"kills"`
	Wiped  int     `json:"wiped"`  // of them, how often the state directory was lost, too
	Checks int     `json:"checks"` // how often everything was compared
	// Latency is from the broker's time of a bill to its arrival at a read_committed consumer, the kills and
	// what they held up included.
	Latency Latency         `json:"latency_ms"`
	Results []*proof.Result `json:"results"`
}

// Latency is in milliseconds; quantiles are at most a tenth too large.
type Latency struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// finishReport fills in everything but what was counted on the way.
func (r *run) finishReport(results []*proof.Result) {
	_, counts := r.load.expected()
	x := &r.report
	x.Counts, x.Seed, x.Out = counts, r.Seed, r.checks.out
	x.Rate = float64(counts.Sent) / x.Seconds
	h := &r.checks.latency
	x.Latency = Latency{ms(h.quantile(.5)), ms(h.quantile(.99)), ms(h.max)}
	slices.SortFunc(results, func(a, b *proof.Result) int {
		if len(a.Check) != len(b.Check) {
			return len(a.Check) - len(b.Check)
		}
		return strings.Compare(a.Check, b.Check)
	})
	x.Results, x.OK = results, proof.OK(results)
	for _, c := range results {
		// A check that has compared nothing proves nothing.
		if c.Compared == 0 {
			c.Differ("run", "nothing was compared: run it for longer")
			x.OK = false
		}
	}
}

func (x *Report) write(w io.Writer) error {
	fmt.Fprintln(w)
	if err := verify.WriteTable(w, x.Results); err != nil {
		return err
	}
	verdict := "✓ nothing lost, nothing twice"
	switch {
	case !x.OK:
		verdict = "✗ there are differences"
	case x.Kills == 0:
		verdict += "\n  but no worker was killed: that says little. Run it for longer, or with a shorter --kill-every"
	}
	_, err := fmt.Fprintf(w, `
%d records in %.0f s (%.0f a second): %d different bills, %d copies, %d too late, %d of unknown outcome sent again
%d kills, %d of them with the state lost; latency p50 %.0f ms, p99 %.0f ms, longest %.0f ms
%s
`, x.Sent, x.Seconds, x.Rate, x.Distinct, x.Copies, x.Late, x.Unknown, x.Kills, x.Wiped, x.Latency.P50, x.Latency.P99, x.Latency.Max, verdict)
	return err
}

// clock is the time since the start as the table shows it.
func (r *run) clock() string {
	d := time.Since(r.began).Truncate(time.Second)
	return fmt.Sprintf("%02d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}

func (r *run) row() {
	if !r.Rows {
		return
	}
	_, counts := r.load.expected()
	var out int64
	var p50, p99 time.Duration
	r.watch.Locked(func() {
		out, p50, p99 = r.checks.out, r.checks.latency.quantile(.5), r.checks.latency.quantile(.99)
	})
	fmt.Fprintf(r.Out, "   %s%12d%12d%12d%8d%12s%12s\n", r.clock(), counts.Sent, counts.Copies, out, r.report.Kills,
		p50.Round(time.Millisecond), p99.Round(time.Millisecond))
}
