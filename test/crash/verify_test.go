package crash

import (
	"errors"
	"strings"
	"testing"

	"github.com/streamd/streamd/internal/verify"
	"github.com/streamd/streamd/internal/verify/proof"
)

// A verification that differs, or that has compared nothing, does not pass for one that is equal.
func TestVerificationCanFail(t *testing.T) {
	equal := func() verify.Report {
		return verify.Report{Equal: true, Results: []*proof.Result{
			{Check: "state", Compared: 3}, {Check: "outputs", Compared: 4},
		}}
	}
	for _, c := range []struct {
		name   string
		change func(*verify.Report)
		ran    error
		spared []string
		want   string // a piece of the error; empty: none
	}{
		{"equal", func(*verify.Report) {}, nil, nil, ""},
		{"a difference", func(r *verify.Report) {
			r.Equal = false
			r.Results[1].Differ("bills@3", "came twice")
		}, nil, nil, "came twice"},
		{"an exit code", func(*verify.Report) {}, errors.New("exit status 1"), nil, "exit status 1"},
		{"nothing compared", func(r *verify.Report) { r.Results[0].Compared = 0 }, nil, nil, "state: 0 compared"},
		{"skipped", func(r *verify.Report) { r.Results[0].Skipped = "no store" }, nil, nil, "no store"},
		{"skipped as it may be", func(r *verify.Report) { r.Results[0].Skipped = "no store" }, nil, []string{"state"}, ""},
		{"no checks", func(r *verify.Report) { r.Results = nil }, nil, nil, "nothing"},
		{"still running", func(r *verify.Report) { r.Running = true }, nil, nil, "running true"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := equal()
			c.change(&r)
			summary, err := judge(r, c.ran, c.spared)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if len(r.Results) > 0 && !strings.Contains(summary, "4 outputs") {
				t.Errorf("summary %q", summary)
			}
		})
	}
}
