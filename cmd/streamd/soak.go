package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/soak"
)

func (c *cli) soakCommand() *cobra.Command {
	cfg := soak.Config{Name: os.Args[0]}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Prove it on your own cluster: a load that kills its workers and checks every result",
		Long: `Make topics, send bills into them (a fifth of them again), run workers that are killed with kill -9 at
random, and check everything that comes out: each bill once, in order, totals exact; at the end also local
state, offsets and counters. Then remove topics, group and files, also after Ctrl-C, which ends the run with
its checks.

  streamd soak --brokers kafka-1:9092,kafka-2:9092
  streamd soak --file pipeline.yaml --for 1h --rate 5000 --workers 3    the kafka section of a file
  streamd soak -b localhost:9092 --for 0 --kill-every 5s                until Ctrl-C
  streamd soak -b localhost:9092 --json                                 for a script

It only touches topics that begin with the prefix, and refuses to start if there are some. It needs the
rights to make and delete topics and groups. While it runs, kill brokers as you like.

Exit codes: 0 everything is exact; 1 a check failed, or a worker ended by itself; 75 a broker is not
reachable; 77 rights are missing; 78 there are such topics already; 130 second Ctrl-C, which leaves them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkSoak(cfg); err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("finding this program, to start the workers: %w", err)
			}
			cfg.Executable, cfg.Out, cfg.Rows = self, c.stdout, !asJSON && !c.quiet && !c.noProgress
			report, err := soak.Run(cmd.Context(), cfg)
			if report == nil || !asJSON {
				return err
			}
			enc := json.NewEncoder(c.stdout)
			enc.SetIndent("", "  ")
			return errors.Join(enc.Encode(report), err)
		},
	}
	f := cmd.Flags()
	f.StringSliceVarP(&cfg.Brokers, "brokers", "b", nil, "bootstrap addresses")
	f.StringVarP(&cfg.File, "file", "f", "", "pipeline file whose kafka section says how to reach the cluster")
	f.StringVar(&cfg.Prefix, "prefix", "streamd-soak", "begin of all topics' names, and name of the consumer group")
	f.DurationVar(&cfg.For, "for", 5*time.Minute, "how long to send; 0 until Ctrl-C")
	f.IntVar(&cfg.Rate, "rate", 2000, "records a second, copies included")
	f.IntVar(&cfg.Workers, "workers", 2, "worker processes")
	f.DurationVar(&cfg.KillEvery, "kill-every", 10*time.Second, "time between two kills, on average; 0 never")
	f.Int32Var(&cfg.Partitions, "partitions", 6, "partitions of each topic")
	f.IntVar(&cfg.Accounts, "accounts", 2000, "accounts that the bills belong to")
	f.Uint64Var(&cfg.Seed, "seed", 1, "seed of the load and the kills; it does not repeat their timing")
	f.BoolVar(&cfg.Yes, "yes", false, "remove what an earlier soak with the prefix has left behind")
	f.BoolVar(&cfg.Keep, "keep", false, "leave topics, group and files behind")
	f.BoolVar(&asJSON, "json", false, "print one JSON object at the end, and nothing before")
	f.StringArrayVarP(&cfg.Load.Variables, "var", "X", nil, "name=value of a ${name} in the file's kafka section; repeat it")
	f.StringArrayVarP(&cfg.Load.EnvFiles, "env-file", "e", nil, "file with NAME=VALUE lines for it; repeat it")
	return cmd
}

// soakPrefix leaves room for the longest name of an internal topic.
var soakPrefix = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{2,99}$`)

func checkSoak(c soak.Config) error {
	switch {
	case len(c.Brokers) == 0 && c.File == "":
		return daemon.Usagef("--brokers or --file is needed")
	case !soakPrefix.MatchString(c.Prefix):
		return daemon.Usagef("--prefix %q: want 3 to 100 letters, digits, dots, underscores or hyphens", c.Prefix)
	case c.Rate < 50 || c.Rate > 1_000_000:
		return daemon.Usagef("--rate %d: want 50 to 1000000", c.Rate)
	case c.Workers < 1 || c.Workers > 64:
		return daemon.Usagef("--workers %d: want 1 to 64", c.Workers)
	case c.Partitions < 1 || c.Partitions > 1000:
		return daemon.Usagef("--partitions %d: want 1 to 1000", c.Partitions)
	case c.Accounts < 1 || c.Accounts > 1_000_000:
		return daemon.Usagef("--accounts %d: want 1 to 1000000", c.Accounts)
	case c.For < 0 || c.KillEvery < 0:
		return daemon.Usagef("--for and --kill-every: want 0 or more")
	}
	return nil
}
