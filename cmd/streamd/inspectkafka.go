package main

import (
	"context"
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

// endHanging ends what hangs, or says what it would do.
func (c *cli) endHanging(ctx context.Context, p *pipeline.Pipeline, list *operate.Transactions, execute, asJSON bool) error {
	var failed error
	if execute {
		_, failed = operate.EndHanging(ctx, p, list)
	}
	var err error
	if asJSON {
		err = c.writeJSON(map[string]any{"hanging": list.Hanging, "notes": list.Notes, "executed": execute})
	} else {
		err = list.WriteHanging(c.stdout, execute)
	}
	return errors.Join(failed, err)
}

func (c *cli) inspectTransactionsCommand() *cobra.Command {
	var load daemon.LoadConfig
	var abort string
	var all, execute, end, asJSON bool
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
again. A streamd process whose name is taken stops.

One that hangs is over for its coordinator, and has no owner any more: Kafka (seen with 4.4.0; KAFKA-20734) leaves out the markers of partitions that
have no leader just then, as when a lone broker was killed. --end-hanging ends all that are listed, each as its coordinator has decided: that is read from
__transaction_state, and where it is not found, nothing is done. Do not abort with kafka-transactions.sh what was to be committed: its records, or
part of them, would be lost. Programs other than streamd that write with the same transactional ID are stopped before: what they have open there would be
ended, too.

  streamd inspect transactions pipeline.yaml --end-hanging                           what would be ended, and how
  streamd inspect transactions pipeline.yaml --end-hanging --execute

It needs Describe on the transactional IDs and Read on the topics (Write on the ID for --abort; Read on __transaction_state and __consumer_offsets, and Alter
on the cluster, for --end-hanging). Coordinators are silent about IDs that the user may not describe: what looks as if it hung may be one of those.

Exit codes: 0; 75 a broker is not reachable; 77 rights are missing; 78 the file is wrong, or nothing of that name is open.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			if execute && abort == "" && !end {
				return daemon.Usagef("--execute needs --abort or --end-hanging")
			}
			if abort != "" && end {
				return daemon.Usagef("either --abort or --end-hanging")
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
			if end {
				return c.endHanging(cmd.Context(), p, list, execute, asJSON)
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
	f.BoolVar(&end, "end-hanging", false, "end what hangs, as its coordinator has decided")
	f.BoolVar(&execute, "execute", false, "with --abort or --end-hanging: do it, and not only say what")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.StringSliceVarP(&load.Brokers, "brokers", "b", nil, "bootstrap addresses instead of the file's")
	fileFlags(f, &load)
	return cmd
}
