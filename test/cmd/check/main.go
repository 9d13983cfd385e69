package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/verify"
	"github.com/streamd/streamd/internal/verify/proof"
	"github.com/streamd/streamd/internal/verify/rawlog"
	"github.com/streamd/streamd/test/check"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var t check.Target
	var asJSON bool
	var follow time.Duration
	f := flags(&t, &asJSON, &follow)
	f.SetOutput(stderr)
	err := f.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return daemon.ExitOK
	case err == nil && f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
	case err == nil && len(t.Brokers) == 0:
		err = errors.New("--brokers is missing")
	}
	if err != nil {
		fmt.Fprintln(stderr, "check:", err)
		return daemon.ExitUsage
	}
	t.OutputScheme = t.Scheme
	t.OutputScheme.Account, t.OutputScheme.Region, t.OutputScheme.Cents = "", "", ""
	t.RegionScheme = t.TotalScheme
	t.RegionScheme.Key = t.Scheme.Region
	report, err := watched(ctx, t, follow)
	if err != nil {
		fmt.Fprintln(stderr, "check:", err)
		return daemon.ExitCode(err)
	}
	if asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(report)
	} else {
		err = verify.WriteTable(stdout, report.Results)
	}
	if err != nil || !proof.OK(report.Results) {
		return daemon.ExitFailed
	}
	return daemon.ExitOK
}

// watched reads the outputs for a while before the checks, for C7.
func watched(ctx context.Context, t check.Target, follow time.Duration) (*check.Report, error) {
	topics := slices.DeleteFunc([]string{t.Output, t.Totals, t.Regions}, func(s string) bool { return s == "" })
	if follow <= 0 || len(topics) == 0 {
		return check.Run(ctx, t)
	}
	c, err := rawlog.Open(rawlog.Config{Brokers: t.Brokers})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if t.Watch, err = proof.NewWatch(ctx, c, nil, topics...); err != nil {
		return nil, err
	}
	defer t.Watch.Stop()
	select {
	case <-time.After(follow):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return check.Run(ctx, t)
}

func flags(t *check.Target, asJSON *bool, follow *time.Duration) *pflag.FlagSet {
	f := pflag.NewFlagSet("check", pflag.ContinueOnError)
	f.StringSliceVar(&t.Brokers, "brokers", nil, "bootstrap addresses")
	f.StringVar(&t.App, "app", "", "application: consumer group and prefix of its topics (C5, C6, C9, C10)")
	f.StringVar(&t.Input, "input", "", "topic of the input (C1-C4, C9-C11)")
	f.StringVar(&t.Output, "output", "", "topic of a dedup's output (C1, C3)")
	f.StringVar(&t.Totals, "totals", "", "topic of running totals per account (C2)")
	f.StringVar(&t.Regions, "regions", "", "topic of running totals per region (C4)")
	f.StringVar(&t.Scheme.IDHeader, "id-header", "", "header of input and output with the record's ID")
	f.StringVar(&t.Scheme.ID, "id-field", "", "field of input and output with the record's ID")
	f.StringVar(&t.Scheme.Account, "account-field", "", "field of the input with the account")
	f.StringVar(&t.Scheme.Region, "region-field", "", "field of input and totals with the region")
	f.StringVar(&t.Scheme.Cents, "cents-field", "", "field of the input with the amount")
	f.StringVar(&t.TotalScheme.Key, "total-key-field", "", "field of the totals with the account (default: the record's key)")
	f.StringVar(&t.TotalScheme.Count, "total-count-field", "bills", "field of the totals with the number of bills")
	f.StringVar(&t.TotalScheme.Sum, "total-sum-field", "cents", "field of the totals with their sum")
	f.StringVar(&t.TotalScheme.Min, "total-min-field", "", "field of the totals with the smallest bill")
	f.StringVar(&t.TotalScheme.Max, "total-max-field", "", "field of the totals with the largest bill")
	f.StringVar(&t.TotalScheme.IDHeader, "total-id-header", "", "header of the totals with the ID of the bill that made them")
	f.BoolVar(&t.Stream, "scope-stream", false, "copies of an ID in two partitions are copies, too")
	f.DurationVar(&t.Window, "window", 0, "retention of the dedup; 0: for ever")
	f.StringVar(&t.Dedup, "dedup", "", "name of the dedup operator (C10)")
	f.StringArrayVar(&t.StateDirs, "state-dir", nil, "state directory of a process that has ended; repeat it (C5)")
	f.BoolVar(&t.Running, "running", false, "the application commits while it is checked")
	f.DurationVar(&t.Within, "within", 0, "bound for the lag to reach zero (C9)")
	f.DurationVar(follow, "follow", 0, "read the outputs for this long first, during the faults (C7)")
	f.StringVar(&t.Expect, "expect", "", `file {"ok":N,"info":N}: what the producer knows of its different records`)
	f.StringVar(&t.Ledger, "ledger", "", `file with a line {"id","account","cents"} for each row of the ledger (C11)`)
	f.StringVar(&t.LedgerTotals, "ledger-totals", "", `file with a line {"account","count","cents"} for each total (C11)`)
	f.StringVar(&t.Coverage, "coverage", "", `file {"seeds","points","unknown_committed","unknown_aborted"} of a run (C12)`)
	f.BoolVar(asJSON, "json", false, "print JSON")
	return f
}
