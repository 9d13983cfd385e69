package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/streamd/streamd/internal/verify"
	"github.com/streamd/streamd/internal/verify/rawlog"
)

// EmptyGroup takes what processes have left behind out of their group, with streamd leave, until it is empty: a static
// member stays for its session timeout after its process has ended, and as long as one is there streamd verify takes the
// application for a running one.
func (d *Daemon) EmptyGroup(ctx context.Context, brokers []string, group string) error {
	c, err := rawlog.Open(rawlog.Config{Brokers: brokers})
	if err != nil {
		return fmt.Errorf("crash: %w", err)
	}
	defer c.Close()
	return poll(ctx, func() (string, error) {
		members, err := c.Members(ctx, group)
		said := []byte(nil)
		for _, m := range members {
			// An error need not be one: its session may have ended meanwhile.
			said, _ = exec.CommandContext(ctx, d.Program, "leave", d.File, "--instance", m.Instance).CombinedOutput()
		}
		if err != nil || len(members) > 0 {
			return fmt.Sprintf("group %q has %d members, %v %s", group, len(members), err, said), nil
		}
		return "", nil
	})
}

// Verify runs `streamd verify` on what the daemon has left behind: its local store against the fold of the committed
// changelog, offsets against commit records, outputs against a second computation from the inputs. The daemon must have
// ended, as all others of its group: see EmptyGroup. Anything but "equal" is an error, and so is a check that has compared nothing, but for those that are named in
// spared. The summary says how much was compared.
func (d *Daemon) Verify(ctx context.Context, spared ...string) (summary string, err error) {
	cmd := exec.CommandContext(ctx, d.Program, "verify", d.File, "--data-dir", d.Dir, "--json")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	ran := cmd.Run()
	var report verify.Report
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		return "", fmt.Errorf("crash: streamd verify: %w, %w\n%s", ran, err, stderr.Bytes())
	}
	return judge(report, ran, spared)
}

// judge turns a report into an error, if there is a reason.
func judge(report verify.Report, ran error, spared []string) (summary string, err error) {
	var errs []error
	if ran != nil || !report.Equal || report.Running {
		errs = append(errs, fmt.Errorf("crash: streamd verify: %w, equal %v, still running %v", ran, report.Equal, report.Running))
	}
	var parts []string
	for _, r := range report.Results {
		for _, x := range r.First {
			errs = append(errs, fmt.Errorf("crash: streamd verify: %s: %s: %s", r.Check, x.Where, x.What))
		}
		if (r.Skipped != "" || r.Compared == 0) && !slices.Contains(spared, r.Check) {
			errs = append(errs, fmt.Errorf("crash: streamd verify: %s: %d compared, %s, %s", r.Check, r.Compared, r.Skipped, strings.Join(r.Notes, "; ")))
		}
		parts = append(parts, fmt.Sprintf("%d %s", r.Compared, r.Check))
	}
	if len(parts) == 0 {
		errs = append(errs, errors.New("crash: streamd verify has checked nothing"))
	}
	return strings.Join(parts, ", "), errors.Join(errs...)
}
