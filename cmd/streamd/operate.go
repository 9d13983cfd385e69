package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/operate"
)

func (c *cli) resetCommand() *cobra.Command {
	var load daemon.LoadConfig
	var dataDir, at string
	var earliest, latest, execute, asJSON bool
	cmd := &cobra.Command{
		Use:   "reset FILE",
		Short: "Forget what a pipeline has done: offsets, IDs, state; plan first",
		Long: `Forget all that a pipeline has done, so that its next start begins anew: committed offsets, IDs that were seen, state,
repartition topics, open transactions, and the local state of this machine. Local state on other machines is discarded at their
next start: topic PIPELINE-resets says so. What has been written to output topics stays, and records are written again.

It only prints its plan, unless --execute is given. It refuses while the pipeline has active members. Killed in the middle, it is
completed by running it again.

  streamd reset pipeline.yaml                                      the plan
  streamd reset pipeline.yaml --execute                            from the oldest records on
  streamd reset pipeline.yaml --to-latest --execute                from the records that come next
  streamd reset pipeline.yaml --to-datetime 2026-01-02T15:04:05Z

Exit codes: 0; 75 active members, or a broker is not reachable; 77 rights are missing; 78 the file is wrong.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			cfg := operate.ResetConfig{To: "earliest"}
			given := 0
			for _, on := range []bool{earliest, latest, at != ""} {
				if on {
					given++
				}
			}
			if given > 1 {
				return daemon.Usagef("--to-earliest, --to-latest and --to-datetime exclude each other")
			}
			if latest {
				cfg.To = "latest"
			}
			if at != "" {
				var err error
				if cfg.Time, err = time.Parse(time.RFC3339, at); err != nil {
					return daemon.Usagef("--to-datetime %q is not a time such as 2026-01-02T15:04:05Z", at)
				}
				cfg.To = "time"
			}
			pipelines, err := daemon.Load(files, load)
			if err != nil {
				return err
			}
			cfg.Pipeline = pipelines[0]
			cfg.StateDir = daemon.StateDir(cfg.Pipeline, dataDir, cmd.Flags().Changed("data-dir"))
			plan, err := operate.NewPlan(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if execute {
				if err := plan.Execute(cmd.Context()); err != nil {
					return err
				}
			}
			if asJSON {
				return c.writeJSON(plan)
			}
			return plan.Write(c.stdout)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&execute, "execute", false, "do it, and not only print the plan")
	f.BoolVar(&earliest, "to-earliest", false, "begin with the oldest records (default)")
	f.BoolVar(&latest, "to-latest", false, "begin with the records that come next")
	f.StringVar(&at, "to-datetime", "", "begin with the first records of this time, as 2026-01-02T15:04:05Z")
	f.StringVar(&dataDir, "data-dir", defaultDataDir(), "data directory whose local state of the pipeline is removed")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.StringSliceVarP(&load.Brokers, "brokers", "b", nil, "bootstrap addresses instead of the file's")
	fileFlags(f, &load)
	return cmd
}

func (c *cli) leaveCommand() *cobra.Command {
	var load daemon.LoadConfig
	var instance string
	cmd := &cobra.Command{
		Use:   "leave FILE --instance ID",
		Short: "Give the partitions of an instance that is gone to the others, at once",
		Long: `Take an instance out of the consumer group. An instance that stops keeps its place in the group for its session timeout, so that a
restart moves nothing. One that will not come back (scaling down, a machine that is gone) is taken out by this, and
the others get its partitions at once. One that still runs joins again.

  streamd leave pipeline.yaml --instance streamd-2

Exit codes: 0; 75 a broker is not reachable; 77 rights are missing; 78 there is no such member, whose names are then printed.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			if instance == "" {
				return daemon.Usagef("--instance is missing")
			}
			pipelines, err := daemon.Load(files, load)
			if err != nil {
				return err
			}
			if err := operate.Leave(cmd.Context(), pipelines[0], instance); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.stdout, "%s has left group %s\n", instance, pipelines[0].Name)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&instance, "instance", "", "instance ID of the member, as run --instance-id")
	f.StringSliceVarP(&load.Brokers, "brokers", "b", nil, "bootstrap addresses instead of the file's")
	fileFlags(f, &load)
	return cmd
}

func (c *cli) writeJSON(v any) error {
	enc := json.NewEncoder(c.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func (c *cli) doctorCommand() *cobra.Command {
	var load daemon.LoadConfig
	var dataDir string
	var acls, asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor FILE",
		Short: "Can this machine and this cluster run a pipeline? If not, why, and what to do",
		Long: `Look at the brokers, the topics and their retention, rights, the consumer group, the schema registry and the disk, and say
what is wrong with what to do about it. Nothing is changed.

  streamd doctor pipeline.yaml
  streamd doctor pipeline.yaml --json
  streamd doctor pipeline.yaml --acls         the rights that it needs, as commands; nothing is connected to

Exit codes: 0, maybe with warnings; 75 a broker is not reachable; 77 rights are missing; 78 the pipeline cannot run here.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			pipelines, err := daemon.Load(files, load)
			if err != nil {
				return err
			}
			p := pipelines[0]
			if acls {
				lines, err := operate.ACLs(p)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(c.stdout, strings.Join(lines, "\n"))
				return err
			}
			found, err := operate.Doctor(cmd.Context(), p, daemon.StateDir(p, dataDir, cmd.Flags().Changed("data-dir")))
			if err != nil {
				return err
			}
			if asJSON {
				err = c.writeJSON(found)
			} else {
				err = found.Write(c.stdout)
			}
			return errors.Join(err, found.Err())
		},
	}
	f := cmd.Flags()
	f.BoolVar(&acls, "acls", false, "print the rights that the pipeline needs, as kafka-acls commands")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.StringVar(&dataDir, "data-dir", defaultDataDir(), "data directory whose disk is looked at")
	f.StringSliceVarP(&load.Brokers, "brokers", "b", nil, "bootstrap addresses instead of the file's")
	fileFlags(f, &load)
	return cmd
}
