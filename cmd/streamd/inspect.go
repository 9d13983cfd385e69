package main

import (
	"fmt"
	"io"
	"path"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/operate"
	"github.com/streamd/streamd/internal/verify"
	"github.com/streamd/streamd/pipeline"
	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
)

func (c *cli) inspectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Look closely: an ID, tasks, state, transactions",
		Long: `Find out why. Nothing is changed, but by --execute.

  streamd inspect id pipeline.yaml b-1001            when it was seen, what was dropped because of it, when it is forgotten
  streamd inspect tasks                              of a running process: state, positions, lag
  streamd inspect store pipeline.yaml totals a-7     the value of a key
  streamd inspect transactions pipeline.yaml         what is open or hangs, whose it is, who waits`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.inspectIDCommand(), c.inspectTasksCommand(), c.inspectStoreCommand(), c.inspectTransactionsCommand())
	return cmd
}

func (c *cli) inspectIDCommand() *cobra.Command {
	var load daemon.LoadConfig
	var step string
	var logOnly, asJSON bool
	cmd := &cobra.Command{
		Use:   "id FILE ID...",
		Short: "When and where an ID was first seen, what was dropped because of it, when it is forgotten",
		Long: `Say what a dedup step knows of an ID: when it was new and which record was let through, which ones were dropped because of it, and when
it is forgotten. It reads the committed ID log, which is the truth for a process that runs and for one that does not, then the inputs, for the records.

  streamd inspect id pipeline.yaml b-1001
  streamd inspect id pipeline.yaml b-1001 --step unique        of a pipeline with several dedup steps
  streamd inspect id pipeline.yaml eu 1001                     an ID of several parts, as id: [value.region, value.id]
  streamd inspect id pipeline.yaml b-1001 --log-only           without the inputs, which may take long to read

Times are those of records, not of clocks: an ID is forgotten when the stream time of its task has passed it. What is not committed yet is not seen.
Records that are named were found by running the inputs through the steps before; those that the topic no longer has are missing.

Exit codes: 0, also if it was never seen; 2 which step?; 75 a broker is not reachable; 77 rights are missing; 78 the file is wrong.`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := record.StringID(args[1])
			if len(args) > 2 {
				id = record.CompositeID(args[1:]...)
			}
			pipelines, err := daemon.Load(args[:1], load)
			if err != nil {
				return err
			}
			t, err := verify.NewTracer(verify.TraceConfig{Pipeline: pipelines[0], Step: step, ID: id, Inputs: !logOnly})
			if err != nil {
				return err
			}
			defer t.Close()
			line := func(took time.Duration) string {
				return fmt.Sprintf("%d offsets read, %.0f a second", t.Progress(), float64(t.Progress())/took.Seconds())
			}
			trace, err := withProgress(c, line, func() (*verify.Trace, error) { return t.Run(cmd.Context()) })
			if err != nil {
				return err
			}
			if asJSON {
				return c.writeJSON(trace)
			}
			return writeTrace(c.stdout, strings.Join(args[1:], " "), trace, !logOnly)
		},
	}
	f := cmd.Flags()
	f.StringVar(&step, "step", "", "dedup step (default: the only one)")
	f.BoolVar(&logOnly, "log-only", false, "read the ID log, and not the inputs")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.StringSliceVarP(&load.Brokers, "brokers", "b", nil, "bootstrap addresses instead of the file's")
	fileFlags(f, &load)
	return cmd
}

// writeTrace prints a trace for a reader.
func writeTrace(w io.Writer, id string, t *verify.Trace, inputs bool) error {
	var b strings.Builder
	id = operate.Printable(id)
	if len(t.Sightings) == 0 {
		fmt.Fprintf(&b, "%s   never seen by %s (as far back as its ID log goes; committed transactions only)\n", id, t.Step)
	}
	stamp := func(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }
	for i := range t.Sightings {
		s := &t.Sightings[i]
		fmt.Fprintf(&b, "%s   seen at %s by task %s\n", id, stamp(s.Seen), s.Task)
		switch {
		case s.First != "":
			fmt.Fprintf(&b, "  first     %s   %s\n", s.First, stamp(s.FirstTime))
		case inputs:
			fmt.Fprintf(&b, "  first     not found in %s: deleted since, or imported\n", strings.Join(s.Within, ", "))
		default:
			fmt.Fprintf(&b, "  first     in %s\n", strings.Join(s.Within, ", "))
		}
		if inputs {
			fmt.Fprintf(&b, "  copies    %d dropped\n", s.CopiesCount)
			for _, x := range s.Copies {
				after := ""
				if d := x.Time.Sub(s.FirstTime); s.First != "" && d >= 0 {
					after = fmt.Sprintf("   +%v", d)
				} else if s.First != "" {
					after = fmt.Sprintf("   %v", d) // a copy may have an older time
				}
				fmt.Fprintf(&b, "            %s   %s%s\n", x.Place, stamp(x.Time), after)
			}
			if more := s.CopiesCount - int64(len(s.Copies)); more > 0 {
				fmt.Fprintf(&b, "            and %d more\n", more)
			}
		}
		word := "forgets"
		if s.Forgotten {
			word = "forgotten"
		}
		least := ""
		if s.Open {
			least = " at the earliest"
		}
		fmt.Fprintf(&b, "  %-9s %s%s   retention %v, the task is at %s\n", word, stamp(s.Forgets), least, t.Retention, stamp(s.StreamTime))
		fmt.Fprintf(&b, "  logged    %s   generation %d, as %s\n", s.Logged, s.Generation, t.Hash)
	}
	for _, n := range t.Notes {
		fmt.Fprintf(&b, "! %s\n", operate.Printable(n))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (c *cli) inspectTasksCommand() *cobra.Command {
	var ask asking
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "tasks",
		Short: "Tasks of a running process: state, positions, lag",
		Long: `Ask a running process for its tasks: what each does, how far it has read, and what it waits for.

  streamd inspect tasks                                  of the process of ./.streamd
  streamd inspect tasks --data-dir /var/lib/streamd --json
  streamd inspect tasks --addr http://streamd-0:8080

Exit codes: 0; 75 no process answers.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := ask.client()
			if err != nil {
				return err
			}
			list, err := client.Pipelines(cmd.Context())
			if err != nil {
				return err
			}
			type tasks struct {
				Pipeline string                 `json:"pipeline"`
				Tasks    []processor.TaskStatus `json:"tasks"`
			}
			all := []tasks{}
			for _, p := range list {
				t := tasks{Pipeline: p.Name}
				if err := client.Get(cmd.Context(), path.Join("/api/v1/pipelines", p.Name, "tasks"), &t); err != nil {
					return err
				}
				all = append(all, t)
			}
			if asJSON {
				return c.writeJSON(all)
			}
			w := tabwriter.NewWriter(c.stdout, 0, 0, 3, ' ', 0)
			fmt.Fprintln(w, "PIPELINE\tTASK\tSTATE\tCOMMIT\tSTREAM TIME\tINPUT\tNEXT\tLAG\tREASON")
			for _, p := range all {
				for i := range p.Tasks {
					writeTask(w, p.Pipeline, &p.Tasks[i])
				}
			}
			return w.Flush()
		},
	}
	f := cmd.Flags()
	ask.flags(f)
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// writeTask writes a line for each input of a task.
func writeTask(w io.Writer, pipeline string, t *processor.TaskStatus) {
	stream, reason := "-", t.Reason
	if !t.StreamTime.IsZero() {
		stream = t.StreamTime.UTC().Format(time.RFC3339Nano)
	}
	if t.Remaining > 0 {
		reason = strings.TrimPrefix(fmt.Sprintf("%s, %d records to restore (%s)", reason, t.Remaining, t.RestoreMode), ", ")
	}
	for i, in := range t.Inputs {
		input := fmt.Sprintf("%s/%d", in.Topic, in.Partition)
		if i == 0 {
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%d\t%d\t%s\n", pipeline, t.Name, t.State, t.Sequence, stream, input, in.Next, in.Lag, operate.Printable(reason))
			continue
		}
		fmt.Fprintf(w, "\t\t\t\t\t%s\t%d\t%d\t\n", input, in.Next, in.Lag)
	}
	if len(t.Inputs) == 0 {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t-\t-\t-\t%s\n", pipeline, t.Name, t.State, t.Sequence, stream, operate.Printable(reason))
	}
}

func (c *cli) inspectStoreCommand() *cobra.Command {
	var load daemon.LoadConfig
	var dataDir string
	var limit int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "store FILE [STORE [KEY]]",
		Short: "Local state of a stopped process, and values of keys from the changelog",
		Long: `Look into state. Without a store: what each task has in the local store of this machine. With a store: its first keys there. Both need the
process to be stopped. With a key: its value in the committed changelog, whether a process runs or not.

  streamd inspect store pipeline.yaml --data-dir /var/lib/streamd
  streamd inspect store pipeline.yaml totals -n 20
  streamd inspect store pipeline.yaml totals a-7
  streamd inspect store pipeline.yaml totals a-7 --json

Keys and values are those of the changelog, byte by byte: text as text, others in hexadecimal, such as the sums of an aggregate, which are stored in a
compact form. Keys of windows have the window's time behind the key (docs/format.md).

Exit codes: 0; 1 the changelog does not have the key; 2 there is no such store; 75 the process runs, or a broker is not reachable; 77 rights are
missing; 78 the file is wrong, or there is no local store.`,
		Args: cobra.RangeArgs(1, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			pipelines, err := daemon.Load(args[:1], load)
			if err != nil {
				return err
			}
			p := pipelines[0]
			if len(args) == 3 {
				return c.inspectKey(cmd, p, args[1], args[2], asJSON)
			}
			dir := daemon.StateDir(p, dataDir, cmd.Flags().Changed("data-dir"))
			if len(args) == 1 {
				return c.inspectLocal(p, dir, asJSON)
			}
			topo, err := p.Topology()
			if err != nil {
				return err
			}
			if err := operate.HasStore(topo, args[1]); err != nil {
				return err
			}
			entries, err := operate.ListLocal(p, dir, args[1], limit)
			if err != nil {
				return err
			}
			if asJSON {
				return c.writeJSON(entries)
			}
			w := tabwriter.NewWriter(c.stdout, 0, 0, 3, ' ', 0)
			fmt.Fprintln(w, "TASK\tKEY\tVALUE")
			for _, e := range entries {
				fmt.Fprintf(w, "%s\t%s\t%s\n", e.Task, e.Key, e.Value)
			}
			return w.Flush()
		},
	}
	f := cmd.Flags()
	f.StringVar(&dataDir, "data-dir", defaultDataDir(), "data directory of the process")
	f.IntVarP(&limit, "limit", "n", 100, "list this many keys at most, 0 for all")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.StringSliceVarP(&load.Brokers, "brokers", "b", nil, "bootstrap addresses instead of the file's")
	fileFlags(f, &load)
	return cmd
}

func (c *cli) inspectLocal(p *pipeline.Pipeline, dir string, asJSON bool) error {
	tasks, err := operate.InspectLocal(p, dir)
	if err != nil {
		return err
	}
	if asJSON {
		return c.writeJSON(tasks)
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "TASK\tCOMMIT\tSTREAM TIME\tIDS\tKEYS\tBYTES\tINPUTS")
	for _, t := range tasks {
		name := t.Name
		if !t.Complete {
			name += " (restore not done)"
		}
		stream := "-"
		if !t.StreamTime.IsZero() {
			stream = t.StreamTime.UTC().Format(time.RFC3339Nano)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%d\t%d\t%s\n", name, t.Sequence, stream, t.IDs, t.Keys, t.Bytes, strings.Join(t.Inputs, ", "))
	}
	return w.Flush()
}
