package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/ids"
)

func (c *cli) idsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ids",
		Short: "Move seen IDs into or out of a dedup step",
		Long: `Take over what an older system has seen: its IDs become known to a dedup step before the pipeline runs, so that nothing is
counted again on the first day. Or write out what a step remembers.

  streamd ids import pipeline.yaml --from redis://localhost:6379/0 --redis-key seen
  streamd ids import pipeline.yaml --from csv:seen.csv
  streamd ids export pipeline.yaml -o seen.csv`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.idsImportCommand(), c.idsExportCommand())
	return cmd
}

func (c *cli) idsImportCommand() *cobra.Command {
	var load daemon.LoadConfig
	var cfg ids.ImportConfig
	var at, placing string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "import FILE --from SOURCE",
		Short: "Make IDs that were seen elsewhere known to a dedup step",
		Long: `Write IDs into the log of a dedup step, as if it had processed them: records that come with them are duplicates. Stop the older
system, import, start the pipeline.

  streamd ids import pipeline.yaml --from redis://HOST:6379/0 --redis-key seen          a set, a sorted set, or the fields of a hash
  streamd ids import pipeline.yaml --from redis://HOST:6379/0 --redis-match 'seen:*'    keys; the ID is what the * stands for
  streamd ids import pipeline.yaml --from csv:seen.csv                                  the first column
  streamd ids import pipeline.yaml --from csv:seen.csv --id-column bill_id              a column by its name in the first line
  streamd ids import pipeline.yaml --from csv:seen.csv --id-column 1,2                  a composite ID, as id: [a, b] in the file
  streamd ids import pipeline.yaml --from topic:bills.done --topic-id header:bill-id    of each record, up to where the topic ends now
  streamd ids import pipeline.yaml --from csv:export.csv                                what streamd ids export has written
  STREAMD_FROM=redis://:secret@HOST:6379/0 streamd ids import ...                       so that no list of processes shows the password

IDs are texts, as the step's id makes them: a number in its plain form, a list as a composite. A record is compared with the IDs of its
own task only. With scope: stream that follows from the ID. With scope: partition say how records get to their partitions:

  --partition-by id            the ID is the key of the records
  --partition-by key           their key stands beside the ID: --key-column, or the key of the topic's records
  --partition-by partition     as the topic that is imported, or an export of as many tasks
  --partition-by everywhere    not known: each task gets each ID, which costs as many times the memory

Of the first two it is refused where the newest records of the inputs show that copies would not meet their IDs.

The IDs count as seen at --at, in the time of the records, and are remembered for the step's retention from then on. Records older than that
time less the retention are too late afterwards (on_too_late).

The pipeline must not run: the import takes its place in the consumer group, and whoever starts meanwhile ends it. Killed at any moment, it is
completed by running it again with the same arguments: files and topics go on where it ended, Redis too as long as that server was not started anew.
Offsets that were set for the group before are kept: set them before the import.

Exit codes: 0; 2 wrong usage; 75 the pipeline runs, or a broker or the source is not reachable; 77 rights are missing; 78 the file or an ID is wrong.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			if cfg.Source.From == "" {
				return daemon.Usagef("--from is missing")
			}
			if at != "" {
				var err error
				if cfg.At, err = time.Parse(time.RFC3339, at); err != nil {
					return daemon.Usagef("--at %q is not a time such as 2026-01-02T15:04:05Z", at)
				}
			}
			pipelines, err := daemon.Load(files, load)
			if err != nil {
				return err
			}
			var so atomic.Pointer[ids.Progress]
			so.Store(&ids.Progress{})
			cfg.Pipeline, cfg.Placing, cfg.Source.Stdin = pipelines[0], ids.Placing(placing), os.Stdin
			cfg.Progress = func(p ids.Progress) { so.Store(&p) }
			line := func(took time.Duration) string { return importLine(*so.Load(), took) }
			began := time.Now()
			report, err := withProgress(c, line, func() (*ids.Report, error) { return ids.Import(cmd.Context(), cfg) })
			if err != nil {
				return err
			}
			if asJSON {
				return c.writeJSON(report)
			}
			return writeImport(c.stdout, report, time.Since(began))
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Source.From, "from", "", "redis://HOST:PORT/DB, csv:FILE (csv:- standard input), topic:NAME")
	f.StringVar(&cfg.Source.RedisKey, "redis-key", "", "set, sorted set or hash that holds the IDs")
	f.StringVar(&cfg.Source.RedisMatch, "redis-match", "", "keys that hold an ID in their name, as seen:*")
	f.StringSliceVar(&cfg.Source.IDColumns, "id-column", nil, "column of a CSV file, by number or by name; several make a composite ID (default 1)")
	f.StringVar(&cfg.Source.KeyColumn, "key-column", "", "column of a CSV file with the key of the record, for --partition-by key")
	f.StringVar(&cfg.Source.TopicID, "topic-id", "", "where the ID stands in a topic's records: key, value, header:NAME (default key)")
	f.StringVar(&placing, "partition-by", "", "id, key, partition or everywhere: to which tasks an ID goes (default: as scope: stream says)")
	f.StringVar(&at, "at", "", "when the IDs were seen, as 2026-01-02T15:04:05Z (default now)")
	f.BoolVar(&cfg.SkipInvalid, "skip-invalid", false, "pass over entries without a usable ID and count them, instead of stopping")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	idsFlags(f, &load, &cfg.Step)
	return cmd
}

// idsFlags are the flags of both commands.
func idsFlags(f *pflag.FlagSet, load *daemon.LoadConfig, step *string) {
	f.StringVar(step, "step", "", "name of the dedup step, if there are several")
	f.StringSliceVarP(&load.Brokers, "brokers", "b", nil, "bootstrap addresses instead of the file's")
	fileFlags(f, load)
}

// importLine says how far an import is.
func importLine(p ids.Progress, took time.Duration) string {
	rate := float64(p.Read) / took.Seconds()
	line := fmt.Sprintf("%d IDs read, %.0f a second", p.Read, rate)
	if p.Total > p.Read && rate > 0 {
		line += fmt.Sprintf(", about %v left", time.Duration(math.Ceil(float64(p.Total-p.Read)/rate))*time.Second)
	}
	return line
}

func writeImport(w io.Writer, r *ids.Report, took time.Duration) error {
	if r.Done {
		_, err := fmt.Fprintf(w, "%s: all of this source was imported into %s before; nothing was done\n", r.Pipeline, r.Step)
		return err
	}
	resumed, invalid := "", ""
	if r.Resumed {
		resumed = " (going on where an earlier import ended)"
	}
	if r.Invalid > 0 {
		invalid = fmt.Sprintf(", %d invalid ones passed over", r.Invalid)
	}
	note := ""
	if r.Note != "" {
		note = "! " + r.Note + "\n"
	}
	_, err := fmt.Fprintf(w, "%s: %d IDs read%s, %d written to %d tasks of %s by %s, %d repeated%s, in %v\nremembered until %s in the time of the records\n%s",
		r.Pipeline, r.Read, resumed, r.New, r.Tasks, r.Step, r.Placing, r.Known, invalid, took.Round(100*time.Millisecond), r.Until.UTC().Format(time.RFC3339), note)
	return err
}

func (c *cli) idsExportCommand() *cobra.Command {
	var load daemon.LoadConfig
	var cfg ids.ExportConfig
	var file string
	cmd := &cobra.Command{
		Use:   "export FILE",
		Short: "Write out what a dedup step remembers",
		Long: `Write the IDs that a dedup step remembers, as CSV: for each its hash, the first half of its SHA-256 in hexadecimal digits, and the
number of its task. IDs themselves are not kept, so that they cannot be written. The pipeline may run; what it commits meanwhile may be missing.

  streamd ids export pipeline.yaml -o seen.csv
  streamd ids import other.yaml --from csv:seen.csv

Exit codes: 0; 2 wrong usage; 75 a broker is not reachable; 77 rights are missing; 78 the file is wrong.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			pipelines, err := daemon.Load(files, load)
			if err != nil {
				return err
			}
			var written atomic.Uint64
			cfg.Pipeline, cfg.Progress = pipelines[0], written.Store
			line := func(took time.Duration) string {
				n := written.Load()
				return fmt.Sprintf("%d IDs written, %.0f a second", n, float64(n)/took.Seconds())
			}
			run := func(to io.Writer) error {
				_, err := withProgress(c, line, func() (uint64, error) { return ids.Export(cmd.Context(), cfg, to) })
				return err
			}
			if file == "-" {
				return run(c.stdout)
			}
			if info, err := os.Stat(file); err == nil && info.IsDir() {
				return daemon.Usagef("--output %s is a directory: name a file in it", file)
			}
			if err := writeWhole(file, run); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.stdout, "%s: %d IDs in %s\n", cfg.Pipeline.Name, written.Load(), file)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "output", "o", "-", "file that is written, whole or not at all; - is standard output")
	idsFlags(f, &load, &cfg.Step)
	return cmd
}

// writeWhole writes a file under another name and gives it its own when it is complete.
func writeWhole(name string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	w := bufio.NewWriter(f)
	if err := errors.Join(write(w), w.Flush(), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
