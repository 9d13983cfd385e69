package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/streamd/streamd/internal/daemon"
)

// cli is what all commands share.
type cli struct {
	stdout, stderr io.Writer
	began          bool // a command has begun: what fails from here on is no wrong usage

	logLevel, logFormat, color string
	quiet, noProgress          bool
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "streamd",
		Short: "Process records on Kafka exactly once",
		Long: `streamd processes records on Kafka exactly once: every record ID counts once, whatever fails.

Try it, with nothing but this program:
  streamd demo

Write a pipeline file, check it, look at it, run it:
  streamd init > pipeline.yaml
  streamd validate pipeline.yaml
  streamd test pipeline.yaml
  streamd graph pipeline.yaml
  streamd explain pipeline.yaml
  streamd run pipeline.yaml
  streamd status`,
		Version:           daemon.Build(version).Version,
		SilenceErrors:     true,
		SilenceUsage:      true,
		Args:              cobra.NoArgs,
		PersistentPreRunE: c.begin,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetCompletionCommandGroupID("write")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &daemon.UsageError{Err: err} })
	f := root.PersistentFlags()
	f.StringVar(&c.logLevel, "log-level", "info", "least severe lines to log: debug, info, warn or error")
	f.StringVar(&c.logFormat, "log-format", string(daemon.LogAuto), "auto (text on a terminal, else JSON), text or json")
	f.StringVar(&c.color, "color", "auto", "auto, always or never; NO_COLOR is honoured")
	f.BoolVarP(&c.quiet, "quiet", "q", false, "log warnings and errors only")
	f.BoolVar(&c.noProgress, "no-progress", false, "print results only, no table that grows")
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run"},
		&cobra.Group{ID: "write", Title: "Write and check"},
		&cobra.Group{ID: "look", Title: "Look into a running one"},
		&cobra.Group{ID: "operate", Title: "Operate"})
	for id, commands := range map[string][]*cobra.Command{
		"run":     {c.runCommand(), c.demoCommand(), c.devCommand()},
		"write":   {c.initCommand(), c.validateCommand(), c.testCommand(), c.graphCommand(), c.explainCommand(), c.evalCommand(), c.schemaCommand()},
		"look":    {c.statusCommand(), c.topCommand(), c.tapCommand(), c.inspectCommand(), c.dlqCommand()},
		"operate": {c.doctorCommand(), c.verifyCommand(), c.resetCommand(), c.leaveCommand(), c.idsCommand(), c.bundleCommand(), c.soakCommand()},
	} {
		for _, cmd := range commands {
			cmd.GroupID = id
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(c.versionCommand())
	nameArguments(root)
	return root
}

// begin takes flags that were not given from the environment: --data-dir from STREAMD_DATA_DIR.
func (c *cli) begin(cmd *cobra.Command, _ []string) error {
	var err error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		name := envName(f.Name)
		v, ok := os.LookupEnv(name)
		if !ok || f.Changed || err != nil || f.Name == "help" || f.Name == "version" {
			return
		}
		if serr := cmd.Flags().Set(f.Name, v); serr != nil {
			err = daemon.Usagef("%s: %w", name, serr)
		}
	})
	if err != nil {
		return err
	}
	if c.color != "auto" && c.color != "always" && c.color != "never" {
		return daemon.Usagef("--color %q is not one of auto, always, never", c.color)
	}
	c.began = true
	return nil
}

func envName(flag string) string {
	return "STREAMD_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// logger makes the logger that the flags ask for.
func (c *cli) logger() (*slog.Logger, error) {
	level := c.logLevel
	if c.quiet {
		level = "warn"
	}
	_, noColor := os.LookupEnv("NO_COLOR")
	return daemon.NewLogger(c.stderr, daemon.LogConfig{
		Level: level, Format: daemon.LogFormat(c.logFormat),
		Color: c.color == "always" || c.color == "auto" && !noColor && daemon.IsTerminal(c.stderr),
	})
}

// fileFlags are the flags of commands that read pipeline files.
func fileFlags(f *pflag.FlagSet, l *daemon.LoadConfig) {
	f.StringArrayVarP(&l.Variables, "var", "X", nil, "name=value of a ${name} in the file, before the environment; repeat it")
	f.StringArrayVarP(&l.EnvFiles, "env-file", "e", nil, "file with NAME=VALUE lines, used where the environment has none; repeat it")
	f.StringArrayVar(&l.Set, "set", nil, "path=value that replaces one of the file, as steps.unique.dedup.retention=3d; repeat it")
}

// defaultDataDir is what systemd gives to a service with StateDirectory=, else a folder beside the user.
func defaultDataDir() string {
	if dir, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":"); dir != "" {
		return dir
	}
	return ".streamd"
}

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := daemon.Build(version)
			revision := v.Revision
			if revision == "" {
				revision = "unknown revision"
			}
			_, err := fmt.Fprintf(c.stdout, "streamd %s (%s, %s)\n", v.Version, revision, v.GoVersion)
			return err
		},
	}
}
