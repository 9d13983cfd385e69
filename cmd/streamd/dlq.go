package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/operate"
)

func (c *cli) dlqCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dlq",
		Short: "Dead letters: list, show, send again, drop",
		Long: `Records that a step could not handle wait in the dead letter topic of their pipeline (errors: {on_error: dead_letter}), as they
came, with the reason in their headers. See what waits, mend the cause, and send them again:

  streamd dlq list pipeline.yaml
  streamd dlq show pipeline.yaml 0@12
  streamd dlq retry pipeline.yaml --step unique                the plan
  streamd dlq retry pipeline.yaml --step unique --execute
  streamd dlq drop pipeline.yaml 0@12 --execute`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.dlqListCommand(), c.dlqShowCommand(),
		c.dlqSettleCommand(operate.Retried, "retry", "Send dead letters again, each exactly once; plan first", `Put dead letters back to where they came from: the same topic and partition, key, value, headers, time and ID. The pipeline, which may run
meanwhile, reads them as new records. A header (__streamd.errors.retry_of) says where they lay, and one that fails again counts its attempts on.

Each goes in one Kafka transaction with a note in the dead letter topic that it was sent. Killed in the middle, it is completed by running it
again, and nothing is sent twice. What has a note is not sent again, by whatever filter it is found.

A dead letter topic should belong to one pipeline. If several share it, a letter of an input that they share is sent again once, whoever does it; but all
who read that input get it again, those that had no trouble with it too: a dedup step drops it there, nothing else does.`),
		c.dlqSettleCommand(operate.Dropped, "drop", "Give dead letters up; plan first", `Note in the dead letter topic that letters are given up: they are no longer listed, and not sent again. They stay in the topic until its
retention takes them.`))
	return cmd
}

// letterFlags are the flags that select dead letters.
func letterFlags(f *pflag.FlagSet, filter *operate.Filter, since *string) {
	f.StringVar(&filter.Step, "step", "", "only those of this step")
	f.StringVar(&filter.Stage, "stage", "", "only those that failed at decode, id, process, encode or produce")
	f.StringVar(&filter.From, "from", "", "only those that came from TOPIC or TOPIC/PARTITION")
	f.StringVar(&filter.Reason, "reason", "", "only those whose reason holds this text")
	f.StringVar(&filter.Key, "key", "", "only those with this key")
	f.StringVar(since, "since", "", "only records of this time and later: 2026-01-02T15:04:05Z, or an age such as 24h")
}

// parseSince reads a time, or an age.
func parseSince(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, daemon.Usagef("--since %q is neither a time such as 2026-01-02T15:04:05Z nor an age such as 24h", s)
	}
	return t, nil
}

// openLetters opens the dead letters of a file's pipeline.
func openLetters(file string, load daemon.LoadConfig) (*operate.Letters, error) {
	pipelines, err := daemon.Load([]string{file}, load)
	if err != nil {
		return nil, err
	}
	return operate.OpenLetters(pipelines[0])
}

// withLetters runs something on dead letters with progress.
func withLetters[T any](c *cli, file string, load daemon.LoadConfig, run func(*operate.Letters) (T, error)) (T, error) {
	d, err := openLetters(file, load)
	if err != nil {
		var none T
		return none, err
	}
	defer d.Close()
	line := func(took time.Duration) string {
		read := d.Progress()
		return fmt.Sprintf("%d offsets read, %.0f a second", read, float64(read)/took.Seconds())
	}
	return withProgress(c, line, func() (T, error) { return run(d) })
}

func (c *cli) dlqListCommand() *cobra.Command {
	var load daemon.LoadConfig
	var filter operate.Filter
	var since string
	var done, asJSON bool
	var limit int
	cmd := &cobra.Command{
		Use:   "list FILE",
		Short: "List the dead letters that wait",
		Long: `List the dead letters of a pipeline that wait, the oldest of each partition first, with the reason why they are there.

  streamd dlq list pipeline.yaml
  streamd dlq list pipeline.yaml --step unique --since 24h
  streamd dlq list pipeline.yaml --reason 'no such field' --json
  streamd dlq list pipeline.yaml --done              also those that were sent again or dropped

PLACE is PARTITION@OFFSET in the dead letter topic, and names a letter to show, retry and drop.

Exit codes: 0; 75 a broker is not reachable; 77 rights are missing; 78 the file is wrong, or the topic does not exist.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			var err error
			if filter.Since, err = parseSince(since, time.Now()); err != nil {
				return err
			}
			if limit < 0 {
				return daemon.Usagef("--limit %d is negative", limit)
			}
			list, err := withLetters(c, files[0], load, func(d *operate.Letters) (*operate.List, error) {
				return d.List(cmd.Context(), filter, done, limit)
			})
			if err != nil {
				return err
			}
			if asJSON {
				return c.writeJSON(list)
			}
			return c.writeLetters(list)
		},
	}
	f := cmd.Flags()
	letterFlags(f, &filter, &since)
	f.BoolVar(&done, "done", false, "list also those about which something was done")
	f.IntVarP(&limit, "limit", "n", 100, "list this many at most, 0 for all")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.StringSliceVarP(&load.Brokers, "brokers", "b", nil, "bootstrap addresses instead of the file's")
	fileFlags(f, &load)
	return cmd
}

func (c *cli) writeLetters(list *operate.List) error {
	t := tabwriter.NewWriter(c.stdout, 0, 0, 3, ' ', 0)
	if len(list.Letters) > 0 {
		fmt.Fprintln(t, "PLACE\tSTATE\tTIME\tSTEP\tSTAGE\tTRY\tFROM\tREASON")
	}
	for i := range list.Letters {
		l := &list.Letters[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", l.Place, l.State, l.Time.Format(time.RFC3339), operate.Printable(l.Step), operate.Printable(l.Stage), l.Attempt, operate.Printable(l.From), l.Brief())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(c.stdout, "%s: %d waiting, %d retried, %d dropped; %d listed\n", list.Topic, list.Waiting, list.Retried, list.Dropped, len(list.Letters))
	return err
}

func (c *cli) dlqShowCommand() *cobra.Command {
	var load daemon.LoadConfig
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show FILE PARTITION@OFFSET",
		Short: "Show a dead letter: reason, headers, payload",
		Long: `Show one dead letter as it came, with its reason. Text is printed with what could steer a terminal escaped, other bytes in hexadecimal;
--json has them as base64.

  streamd dlq show pipeline.yaml 0@12
  streamd dlq show pipeline.yaml 0@12 --json

Exit codes: 0; 75 a broker is not reachable; 77 rights are missing; 78 the file is wrong, or there is no such letter.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := operate.ParsePlace(args[1])
			if err != nil {
				return err
			}
			topic := ""
			content, err := withLetters(c, args[0], load, func(d *operate.Letters) (*operate.Content, error) {
				topic = d.Topic
				return d.Show(cmd.Context(), at)
			})
			if err != nil {
				return err
			}
			if asJSON {
				return c.writeJSON(content)
			}
			return content.Write(c.stdout, topic)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.StringSliceVarP(&load.Brokers, "brokers", "b", nil, "bootstrap addresses instead of the file's")
	fileFlags(f, &load)
	return cmd
}

// dlqSettleCommand is retry and drop.
func (c *cli) dlqSettleCommand(action operate.LetterState, verb, short, what string) *cobra.Command {
	var load daemon.LoadConfig
	var filter operate.Filter
	var since string
	var all, execute, asJSON bool
	cmd := &cobra.Command{
		Use:   verb + " FILE [PARTITION@OFFSET...]",
		Short: short,
		Long: what + fmt.Sprintf(`

It only prints its plan, unless --execute is given. Letters are named by their places, or found by filters, or --all of those that wait.

  streamd dlq %[1]s pipeline.yaml 0@12 1@3                      the plan
  streamd dlq %[1]s pipeline.yaml 0@12 1@3 --execute
  streamd dlq %[1]s pipeline.yaml --step unique --since 24h --execute
  streamd dlq %[1]s pipeline.yaml --all --execute --json

Exit codes: 0; 1 some could not be handled, which are named; 75 a broker is not reachable, or another one of this command was begun
later on the same dead letter topic, and goes on; 77 rights are missing (Write on the dead letter topic, on the inputs, and on the transactional
ID streamd-dlq-TOPIC of the dead letter topic); 78 the file is wrong.`, verb),
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if filter.Since, err = parseSince(since, time.Now()); err != nil {
				return err
			}
			if given := !filter.All(); given && len(args) > 1 || all && (given || len(args) > 1) {
				return daemon.Usagef("places, filters and --all exclude each other")
			} else if !given && !all && len(args) == 1 {
				return daemon.Usagef("which letters? name their places, give a filter, or --all")
			}
			for _, arg := range args[1:] {
				at, err := operate.ParsePlace(arg)
				if err != nil {
					return err
				}
				filter.Places = append(filter.Places, at)
			}
			s, err := withLetters(c, args[0], load, func(d *operate.Letters) (*operate.Settlement, error) {
				if execute {
					return d.Execute(cmd.Context(), action, filter, time.Now)
				}
				return d.Plan(cmd.Context(), action, filter)
			})
			if err != nil {
				return err
			}
			if asJSON {
				err = c.writeJSON(s)
			} else {
				err = s.Write(c.stdout)
			}
			if err != nil {
				return err
			}
			return s.Err()
		},
	}
	f := cmd.Flags()
	letterFlags(f, &filter, &since)
	f.BoolVar(&all, "all", false, "all that wait")
	f.BoolVar(&execute, "execute", false, "do it, and not only print the plan")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.StringSliceVarP(&load.Brokers, "brokers", "b", nil, "bootstrap addresses instead of the file's")
	fileFlags(f, &load)
	return cmd
}
