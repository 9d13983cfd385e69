package main

import (
	"encoding/json"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamd/streamd/internal/daemon"
)

func (c *cli) statusCommand() *cobra.Command {
	var ask asking
	var asJSON, check bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Ask a running process: state, tasks, lag, last commit",
		Long: `Ask a running process for the state of its pipelines.

  streamd status                                  the one of ./.streamd
  streamd status --data-dir /var/lib/streamd
  streamd status --addr http://streamd-0:8080 --json
  streamd status --check                          for a health check: only an exit code, and why

LAG and DUPLICATES are part of the committed state: duplicates are counted since the pipeline's first start, on any machine.
COMMITS and ABORTS are those of this process since it started.

Exit codes: 0; 75 no process answers; 1 with --check, if not all tasks run.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := ask.client()
			if err != nil {
				return err
			}
			list, err := client.Pipelines(cmd.Context())
			switch {
			case err != nil:
				return err
			case check:
				return daemon.NotReady(list)
			case asJSON:
				enc := json.NewEncoder(c.stdout)
				enc.SetIndent("", "  ")
				return enc.Encode(map[string]any{"pipelines": list})
			}
			return daemon.WriteStatus(c.stdout, list, time.Now())
		},
	}
	f := cmd.Flags()
	ask.flags(f)
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.BoolVar(&check, "check", false, "print nothing; fail unless every task runs")
	return cmd
}
