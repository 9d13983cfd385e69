package main

import (
	"io"
	"os"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/streamd/streamd/internal/daemon"
)

func (c *cli) initCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init [dedup|totals|windows|enrich]",
		Short: "Print a commented pipeline file to begin with",
		Long: `Print a pipeline file with comments and tests, to begin with.

  streamd init > pipeline.yaml             dedup: each record of a topic once
  streamd init totals > pipeline.yaml      totals per account, exact
  streamd init windows > pipeline.yaml     counts per page and minute
  streamd init enrich > pipeline.yaml      a join with a table, and reminders by timer
  streamd validate pipeline.yaml && streamd test pipeline.yaml && streamd run pipeline.yaml`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: daemon.Templates(),
		RunE: func(_ *cobra.Command, args []string) error {
			name := daemon.Templates()[0]
			if len(args) > 0 {
				name = args[0]
			}
			text, err := daemon.Template(name)
			if err != nil {
				return err
			}
			_, err = io.WriteString(c.stdout, text)
			return err
		},
	}
}

func (c *cli) testCommand() *cobra.Command {
	var cfg daemon.TestConfig
	var run string
	cmd := &cobra.Command{
		Use:   "test FILE|DIR|./...",
		Short: "Run the tests of pipeline files, in memory",
		Long: `Run the tests that stand in pipeline files: without a broker, with the operators that run uses, one partition for each topic.

  tests:
    - name: a bill sent twice counts once
      input:
        - {source: bills, value: {bill_id: b1, account: a, amount: "10.10"}}
        - {source: bills, value: {bill_id: b1, account: a, amount: "10.10"}}
      expect:
        publish:                       # a step of kind to: all of its records, in order
          - {key: a, value: {total: "10.10"}}     # what is not named is not compared

A record can have key, value, headers and timestamp. Without a timestamp it has the one of the record before it, and the
first one 2026-01-01T00:00:00Z. The records come one after the other, and as much time passes between two as their timestamps
are apart; then time goes on until all windows are closed. Of a table in a database the last row of each key is compared.

What is different from run: one partition for each topic, so that copies always meet; a record is done, down to the last step,
before the next one comes; timestamps in the future are believed, IDs are forgotten exactly after their retention (run: after up
to 9/8 of it); nothing is committed, restarted or restored. Variables need a value only where a step depends on it.

  streamd test pipeline.yaml
  streamd test ./... -run 'twice|refund' -v      tests by name; prints what came out
  streamd test ./... --junit report.xml        for a CI system

Exit codes: 0 all passed; 1 a test failed; 78 a file is wrong.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var err error
			if run != "" {
				if cfg.Run, err = regexp.Compile(run); err != nil {
					return daemon.Usagef("--run: %w", err)
				}
			}
			files, err := daemon.Find(args)
			if err != nil {
				return err
			}
			return daemon.Test(c.stdout, files, cfg)
		},
	}
	f := cmd.Flags()
	f.StringVar(&run, "run", "", "run the tests whose names match this regular expression")
	f.BoolVarP(&cfg.Verbose, "verbose", "v", false, "print what came out, also of tests that passed")
	f.StringVar(&cfg.JUnit, "junit", "", "write a report in JUnit's XML to this file")
	fileFlags(f, &cfg.Load)
	return cmd
}

func (c *cli) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of pipeline files, for editors",
		Long: `Print the JSON Schema of pipeline files. An editor with the YAML language server completes and explains fields by it, if the first
line of a pipeline file is

  # yaml-language-server: $schema=pipeline.schema.json

  streamd schema > pipeline.schema.json

What a schema cannot say (types of expressions, names of steps) is what validate is for.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			text, err := daemon.Schema()
			if err != nil {
				return err
			}
			_, err = c.stdout.Write(text)
			return err
		},
	}
}

func (c *cli) evalCommand() *cobra.Command {
	var cfg daemon.EvalConfig
	cmd := &cobra.Command{
		Use:   "eval EXPR",
		Short: "Try an expression on records from standard input",
		Long: `Evaluate an expression of a pipeline file on records from standard input, one JSON value a line, and print each result as JSON.

  echo '{"amount":"10.10","n":3}' | streamd eval 'decimal(value.amount) * decimal(value.n)'
  kcat -C -e -b localhost:9092 -t bills.raw | streamd eval '[value.account, value.bill_id]'
  kcat -C -e -t bills.raw -J | streamd eval --envelope 'key + " " + value.bill_id'      kcat's JSON: key, payload, headers, ts
  streamd eval --file pipeline.yaml --type Bill 'value.amout'                           types of a file: finds the slip at once

An expression that is wrong ends with 78; a record on which it fails is named on standard error, and the exit code is 1.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg.Expr = args[0]
			return daemon.Eval(os.Stdin, c.stdout, c.stderr, cfg)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.File, "file", "", "pipeline file whose types are known")
	f.StringVar(&cfg.Type, "type", "", "type of the values, of --file or built in")
	f.BoolVar(&cfg.Envelope, "envelope", false, "each line is an object with key, value (or payload), headers, topic, partition, offset and ts")
	return cmd
}
