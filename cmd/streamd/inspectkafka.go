package main

import (
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/operate"
	"github.com/streamd/streamd/pipeline"
)

// errNoKey: a key is not in a changelog.
var errNoKey = errors.New("the changelog does not have the key")

// inspectKey prints what the changelog of a store says of a key.
func (c *cli) inspectKey(cmd *cobra.Command, p *pipeline.Pipeline, store, key string, asJSON bool) error {
	l, err := operate.OpenChangelog(p, store)
	if err != nil {
		return err
	}
	defer l.Close()
	line := func(took time.Duration) string {
		return fmt.Sprintf("%d offsets read, %.0f a second", l.Progress(), float64(l.Progress())/took.Seconds())
	}
	found, err := withProgress(c, line, func() ([]operate.Stored, error) { return l.Find(cmd.Context(), []byte(key)) })
	if err != nil {
		return err
	}
	if asJSON {
		if err := c.writeJSON(found); err != nil {
			return err
		}
	} else {
		w := tabwriter.NewWriter(c.stdout, 0, 0, 3, ' ', 0)
		for _, s := range found {
			fmt.Fprintf(w, "%s/%d@%d\t%s\t%s\n", l.Topic, s.Partition, s.Offset, s.Time.Format(time.RFC3339Nano), s.Value)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if len(found) == 0 {
		return fmt.Errorf("%w: %q in %s (keys are compared as bytes)", errNoKey, key, l.Topic)
	}
	return nil
}

func (c *cli) inspectTransactionsCommand() *cobra.Command {
	var load daemon.LoadConfig
	var abort string
	var all, execute, asJSON bool
	cmd := &cobra.Command{
		Use:   "transactions FILE",
		Short: "Open and hanging transactions: owner, age, and who waits; abort one by its name",
		Long: `List transactions that are open: those of the pipeline, and those of anybody in its topics. Readers with isolation.level=read_committed, streamd among
them, wait at the first record of an open transaction: a pipeline in the state "blocked" names the partition, this names the owner. Hanging ones
are open in a partition while no coordinator tells of them.

  streamd inspect transactions pipeline.yaml
  streamd inspect transactions pipeline.yaml --all --json                            of the whole cluster
  streamd inspect transactions pipeline.yaml --abort payments-7                      what would be aborted
  streamd inspect transactions pipeline.yaml --abort payments-7 --execute

--abort fences the name: what it has written in the open transaction is never seen, and its owner, if it lives, is refused from then on and has to start
again. A streamd process whose name is taken stops. One that hangs has no name; the command that ends it is printed with it.

It needs Describe on the transactional IDs and Read on the topics (Write on the ID for --abort). Coordinators are silent about IDs that the user may not
describe: what looks as if it hung may be one of those.

Exit codes: 0; 75 a broker is not reachable; 77 rights are missing; 78 the file is wrong, or nothing of that name is open.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			if execute && abort == "" {
				return daemon.Usagef("--execute needs --abort")
			}
			pipelines, err := daemon.Load(files, load)
			if err != nil {
				return err
			}
			p := pipelines[0]
			list, err := operate.InspectTransactions(cmd.Context(), p, all)
			if err != nil {
				return err
			}
			if abort == "" {
				if asJSON {
					return c.writeJSON(list)
				}
				return list.Write(c.stdout, time.Now())
			}
			one, err := list.Find(abort)
			if err != nil {
				return err
			}
			if execute {
				if err := operate.AbortTransaction(cmd.Context(), p, abort); err != nil {
					return err
				}
			}
			if asJSON {
				return c.writeJSON(map[string]any{"transaction": one, "aborted": execute})
			}
			head := "Plan (nothing done yet; add --execute): abort"
			if execute {
				head = "Done: aborted"
			}
			_, err = fmt.Fprintf(c.stdout, "%s %s of %s, open for %v\n", head, operate.Printable(one.ID), one.Owner, time.Since(one.Started).Truncate(time.Millisecond))
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVar(&all, "all", false, "of the whole cluster, and not only what touches the pipeline")
	f.StringVar(&abort, "abort", "", "transactional ID to fence, which aborts its open transaction")
	f.BoolVar(&execute, "execute", false, "with --abort: do it, and not only say what")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.StringSliceVarP(&load.Brokers, "brokers", "b", nil, "bootstrap addresses instead of the file's")
	fileFlags(f, &load)
	return cmd
}
