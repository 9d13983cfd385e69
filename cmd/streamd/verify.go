package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/verify"
)

func (c *cli) verifyCommand() *cobra.Command {
	var load daemon.LoadConfig
	var dataDir, span string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Compare state, offsets and outputs of a pipeline with what they must be",
		Long: `Read what a pipeline has left behind in Kafka and on this machine, with readers that share no code with
what wrote it, and compare:

  state         the local store is the fold of the committed changelog
  offsets       committed offsets, commit records and the local store name one commit
  transactions  none is open
  counts        as many records were counted as stand in the topics
  inputs        each record was accepted or dropped as it had to be
  outputs       each output that the inputs come to is there once and in order, and no other one
  changelogs    the committed state is what the inputs come to

Nothing is changed, and no process may start on the state directory meanwhile. All topics are read from
their start, so it takes as long as reading them twice. What cannot be compared is said, and never called
equal: beside a running process that is its local store, in case of operators that act when time passes, and of
parts with several inputs, as joins and tables have, what comes of them. The last line names it, and
"complete" of the JSON is false then. A pipeline that was set to begin behind the first records (docs/migration.md) differs in
them: compare from there on, with --range. It keeps about 100 bytes in memory for each distinct ID, key and output.

  streamd verify pipeline.yaml
  streamd verify pipeline.yaml --data-dir /var/lib/streamd --json
  streamd verify pipeline.yaml --range 1000000:2000000     outputs of these offsets of each input partition

Exit codes: 0 nothing differs of what was compared; 1 there are differences; 75 a broker is not reachable; 77 rights are missing; 78 the
file, or the state of another cluster.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			cfg := verify.Config{}
			var err error
			if cfg.Span, err = parseSpan(span); err != nil {
				return err
			}
			pipelines, err := daemon.Load(files, load)
			if err != nil {
				return err
			}
			cfg.Pipeline = pipelines[0]
			cfg.StateDir = daemon.StateDir(cfg.Pipeline, dataDir, cmd.Flags().Changed("data-dir"))
			report, err := c.verify(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(c.stdout)
				enc.SetIndent("", "  ")
				err = enc.Encode(report)
			} else {
				err = c.writeReport(report)
			}
			if err != nil {
				return err
			}
			return report.Err()
		},
	}
	f := cmd.Flags()
	f.StringVar(&dataDir, "data-dir", defaultDataDir(), "data directory of the process whose local state is compared")
	f.StringVar(&span, "range", "", "FROM:TO, offsets of each input partition whose outputs are compared (default: all)")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.StringSliceVarP(&load.Brokers, "brokers", "b", nil, "bootstrap addresses instead of the file's")
	fileFlags(f, &load)
	return cmd
}

func (c *cli) writeReport(r *verify.Report) error {
	if err := verify.WriteTable(c.stdout, r.Results); err != nil {
		return err
	}
	_, err := fmt.Fprintln(c.stdout, r.Verdict())
	return err
}

// verify runs a verification and shows how far it is, if that takes longer than a second.
func (c *cli) verify(ctx context.Context, cfg verify.Config) (*verify.Report, error) {
	j, err := verify.New(cfg)
	if err != nil {
		return nil, err
	}
	defer j.Close()
	line := func(took time.Duration) string {
		read, total := j.Progress()
		return progressLine(read, total, took)
	}
	return withProgress(c, line, func() (*verify.Report, error) { return j.Run(ctx) })
}

// progressLine says how much was read, how fast, and how long the rest will take at that rate.
func progressLine(read, total int64, took time.Duration) string {
	rate := float64(read) / took.Seconds()
	line := fmt.Sprintf("%d of about %d offsets read, %.0f a second", read, max(read, total), rate)
	if left := float64(total - read); left > 0 && rate > 0 {
		line += fmt.Sprintf(", %v left", time.Duration(math.Ceil(left/rate))*time.Second)
	}
	return line
}

// parseSpan reads FROM:TO; either may be left out.
func parseSpan(s string) (verify.Span, error) {
	if s == "" {
		return verify.Span{}, nil
	}
	from, to, ok := strings.Cut(s, ":")
	out := verify.Span{To: math.MaxInt64}
	for _, x := range []struct {
		text string
		into *int64
	}{{from, &out.From}, {to, &out.To}} {
		if x.text == "" {
			continue
		}
		n, err := strconv.ParseInt(x.text, 10, 64)
		if err != nil || n < 0 {
			ok = false
		}
		*x.into = n
	}
	if !ok || out.From >= out.To {
		return out, daemon.Usagef("--range %q: want FROM:TO, two offsets", s)
	}
	return out, nil
}
