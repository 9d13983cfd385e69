package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/streamd/streamd/internal/daemon"
)

func (c *cli) topCommand() *cobra.Command {
	var ask asking
	var once bool
	var show string
	cfg := daemon.TopConfig{Out: c.stdout}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch a running process: rates, lag, duplicates, errors, tasks",
		Long: `Watch the pipelines of a running process: figures, steps and tasks, renewed every two seconds.

  streamd top                                     the one of ./.streamd
  streamd top --addr http://streamd-0:8080 --sort lag
  streamd top --once                              one screen, for a script or a report

Keys: s sort, / filter steps and tasks by name, d duplicates, e errors, i instances, enter next pipeline, p pause, q quit.
Exit codes: 0; 75 no process answers at the start.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(daemon.Sorts(), cfg.View.Sort) {
				return daemon.Usagef("--sort %q is not one of %s", cfg.View.Sort, strings.Join(daemon.Sorts(), ", "))
			}
			detail := slices.Index(daemon.Details(), show)
			if detail < 0 {
				return daemon.Usagef("--show %q is not one of %s", show, strings.Join(daemon.Details(), ", "))
			}
			cfg.View.Detail = daemon.TopDetail(detail)
			if cfg.Interval <= 0 {
				return daemon.Usagef("--interval %v: want more than 0", cfg.Interval)
			}
			client, err := ask.client()
			if err != nil {
				return err
			}
			tops, err := client.Tops(cmd.Context())
			if err != nil {
				return err
			}
			terminal := daemon.IsTerminal(c.stdout)
			_, noColor := os.LookupEnv("NO_COLOR")
			cfg.View.Color = c.color == "always" || c.color == "auto" && !noColor && terminal
			if cfg.View.Once = once || !terminal; cfg.View.Once {
				_, err := fmt.Fprintln(c.stdout, strings.Join(daemon.RenderTop(tops, cfg.View, time.Now()), "\n"))
				return err
			}
			cfg.Size = func() (int, int) {
				width, height, err := term.GetSize(int(os.Stdout.Fd()))
				if err != nil {
					return 0, 0
				}
				return width, height
			}
			// Keys come one by one and unseen only from a terminal that is told so.
			if in := int(os.Stdin.Fd()); term.IsTerminal(in) {
				before, err := term.MakeRaw(in)
				if err != nil {
					return fmt.Errorf("top: terminal: %w", err)
				}
				defer func() { _ = term.Restore(in, before) }()
				cfg.Keys = os.Stdin
			}
			return daemon.RunTop(cmd.Context(), client, cfg)
		},
	}
	f := cmd.Flags()
	ask.flags(f)
	f.DurationVar(&cfg.Interval, "interval", 2*time.Second, "time from one screen to the next")
	f.BoolVar(&once, "once", false, "print one screen and end; also what happens when the output is no terminal")
	f.StringVar(&show, "show", daemon.Details()[0], "what stands below the steps: "+strings.Join(daemon.Details(), ", "))
	f.StringVar(&cfg.View.Sort, "sort", daemon.SortName, "order of steps and tasks: "+strings.Join(daemon.Sorts(), ", "))
	return cmd
}
