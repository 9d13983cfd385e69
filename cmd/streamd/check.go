package main

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/streamd/streamd/internal/daemon"
)

func (c *cli) validateCommand() *cobra.Command {
	var load daemon.LoadConfig
	var format, against string
	var strict bool
	cmd := &cobra.Command{
		Use:     "validate FILE|DIR|./...",
		Aliases: []string{"lint", "check"},
		Short:   "Check pipeline files, without any network",
		Long: `Check pipeline files and print everything that is wrong with them, each with its place and a hint.
Variables without a value are no mistake here. Nothing is connected to.

  streamd validate pipeline.yaml
  streamd validate ./...                       all pipeline files below this directory
  streamd validate --strict deploy/            warnings fail, too
  streamd validate --format github ./...       annotations of a GitHub workflow
  streamd validate new.yaml --against old.yaml   also: does new.yaml keep the state of old.yaml?

Exit codes: 0 fine, maybe with warnings; 78 errors; 1 warnings and --strict.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			files, err := daemon.Find(args)
			if err != nil {
				return err
			}
			// The format is checked before the work: half an output helps nobody.
			if err := (daemon.Report{}).Write(io.Discard, format); err != nil {
				return err
			}
			report, err := daemon.Validate(files, load)
			if err == nil && against != "" {
				err = report.Compare(against, load)
			}
			if err != nil {
				return err
			}
			return errors.Join(report.Write(c.stdout, format), report.Err(strict))
		},
	}
	f := cmd.Flags()
	f.StringVar(&format, "format", "text", "text, json or github")
	f.BoolVar(&strict, "strict", false, "fail on warnings")
	f.StringVar(&against, "against", "", "an older version of the file: what of its state would be given up is an error")
	fileFlags(f, &load)
	return cmd
}

func (c *cli) graphCommand() *cobra.Command {
	var load daemon.LoadConfig
	var format string
	var internal bool
	cmd := &cobra.Command{
		Use:   "graph FILE",
		Short: "Draw what a pipeline computes",
		Long: `Draw what a pipeline computes. The text is the one that Kafka Streams prints, which its visualisers read.

  streamd graph pipeline.yaml
  streamd graph pipeline.yaml --format mermaid > pipeline.mmd
  streamd graph pipeline.yaml --format dot --internal-topics | dot -Tsvg > pipeline.svg`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := daemon.Graph(args[0], load, format, internal)
			if err != nil {
				return err
			}
			_, err = io.WriteString(c.stdout, text)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&format, "format", "text", "text, mermaid, dot or json")
	f.BoolVar(&internal, "internal-topics", false, "also draw repartition topics and state stores")
	fileFlags(f, &load)
	return cmd
}

func (c *cli) explainCommand() *cobra.Command {
	var load daemon.LoadConfig
	var asJSON bool
	var require string
	cmd := &cobra.Command{
		Use:   "explain FILE",
		Short: "Say what a pipeline guarantees, and why not more",
		Long: `Say what a pipeline guarantees from its inputs to its outputs: the weakest output first, what lowers it, what it
depends on, the level of each way between two steps, and which dedup steps need no log of IDs of their own.
Nothing is connected to.

  streamd explain pipeline.yaml
  streamd explain pipeline.yaml --require exactly_once     for a check before a deployment
  streamd explain pipeline.yaml --json

Exit codes: 0; 1 with --require, if the pipeline guarantees less; 78 the file is wrong.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return daemon.Explain(c.stdout, args[0], load, asJSON, require)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.StringVar(&require, "require", "", "fail unless the pipeline gives exactly_once, at_least_once or at_most_once")
	fileFlags(f, &load)
	return cmd
}
