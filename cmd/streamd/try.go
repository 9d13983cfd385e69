package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/internal/demo"
	"github.com/streamd/streamd/internal/embedded"
	"github.com/streamd/streamd/internal/operate"
)

func (c *cli) demoCommand() *cobra.Command {
	cfg := demo.Config{Name: os.Args[0]}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "The tour: duplicates, a kill -9, exact totals; needs nothing but this program",
		Long: `Bills, some of them sent twice, become totals per account; the worker is killed with kill -9 and
started again; then a consumer of its own compares the totals with what was sent.

  streamd demo
  streamd demo --for 20s           ends by itself, with 1 if the totals are not exact
  streamd demo --dir tour          keeps the pipeline file and the worker's log

Broker, generator and check live in this process, the worker is a child of it. Nothing remains.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("finding this program, to start the worker: %w", err)
			}
			if cfg.Rate < 50 || cfg.Rate > 100_000 {
				return daemon.Usagef("--rate %d: want 50 to 100000", cfg.Rate)
			}
			if cfg.For < 0 {
				return daemon.Usagef("--for %v: want 0 or more", cfg.For)
			}
			cfg.Executable, cfg.Out, cfg.Rows = self, c.stdout, !c.quiet && !c.noProgress
			cfg.Version = daemon.Build(version).Version
			return demo.Run(cmd.Context(), cfg)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&cfg.For, "for", 0, "end after this time, as 20s (default: until Ctrl-C)")
	f.StringVar(&cfg.HTTP, "http", "127.0.0.1:8080", "address of the worker's page, or off; another port if it is in use")
	f.StringVar(&cfg.Dir, "dir", "", "directory for the pipeline file and the worker's log (default: a temporary one)")
	f.IntVar(&cfg.Rate, "rate", 1000, "bills a second, copies included")
	f.IntVar(&cfg.Port, "port", 0, "port of the broker (default: a free one)")
	f.Uint64Var(&cfg.Seed, "seed", 1, "seed of the generator")
	return cmd
}

// maxMemoryMiB bounds a flag, so that its bytes are a number.
const maxMemoryMiB = 1 << 30

func (c *cli) devCommand() *cobra.Command {
	var topics []string
	cfg := embedded.Config{}
	var noAuto bool
	var maxMemory int64
	var load daemon.LoadConfig
	cmd := &cobra.Command{
		Use:   "dev [FILE...]",
		Short: "A Kafka broker for trying things (never for data that matters)",
		Long: `Run a Kafka broker until Ctrl-C. It forgets everything then: never use it for data that matters. Only
this machine can reach it. Each start is a new cluster: remove the state directories (.streamd) of
what ran on the last one. The records are in a temporary directory meanwhile (where that is memory, as
/tmp may be, name another one with --dir), which a kill -9 leaves behind.

The topics that pipeline files name are made, inputs and outputs, and those of --topic.

  streamd dev
  streamd dev pipeline.yaml
  streamd dev --topic bills.raw:4 --topic bills.unique:4
  streamd run pipeline.yaml --brokers 127.0.0.1:9092       in another terminal`,
		RunE: func(cmd *cobra.Command, files []string) error {
			if cfg.Partitions < 1 || cfg.Partitions > embedded.MaxPartitions {
				return daemon.Usagef("--partitions %d: want 1 to %d", cfg.Partitions, embedded.MaxPartitions)
			}
			cfg.AutoCreate = !noAuto
			for _, t := range topics {
				topic, err := embedded.ParseTopic(t, cfg.Partitions)
				if err != nil {
					return daemon.Usagef("--topic: %w", err)
				}
				if has(cfg.Topics, topic.Name) {
					return daemon.Usagef("--topic: %q is given twice", topic.Name)
				}
				cfg.Topics = append(cfg.Topics, topic)
			}
			named, err := topicsOf(files, load)
			if err != nil {
				return err
			}
			for _, name := range named {
				if !has(cfg.Topics, name) {
					cfg.Topics = append(cfg.Topics, embedded.Topic{Name: name, Partitions: cfg.Partitions})
				}
			}
			if maxMemory < 1 || maxMemory > maxMemoryMiB {
				return daemon.Usagef("--max-memory %d: want 1 to %d (MiB)", maxMemory, maxMemoryMiB)
			}
			if cfg.MaxMemory = maxMemory << 20; cfg.Scratch == "" {
				cfg.Scratch = os.TempDir()
			}
			cfg.Full = func() {
				fmt.Fprintf(c.stderr, "%d MiB of memory are taken, the limit of --max-memory: records are refused from here on. Start it again.\n", maxMemory)
			}
			b, err := embedded.Start(cfg)
			if errors.Is(err, syscall.EADDRINUSE) {
				return fmt.Errorf("%w: port %d belongs to another process, perhaps a broker: choose another one with --port, or 0 for a free one", daemon.ErrInUse, cfg.Port)
			}
			if err != nil {
				return err
			}
			defer b.Close()
			fmt.Fprintf(c.stdout, "broker on %s (Ctrl-C to stop)\n", b.Address())
			for _, t := range cfg.Topics {
				fmt.Fprintf(c.stdout, "  topic %s, %d partitions\n", t.Name, t.Partitions)
			}
			if cfg.AutoCreate {
				fmt.Fprintf(c.stdout, "  other topics are made when a client that may asks for them, with %d partitions\n", cfg.Partitions)
			}
			fmt.Fprintln(c.stdout, "It forgets everything when it stops: never use it for data that matters.")
			began := time.Now()
			<-cmd.Context().Done()
			fmt.Fprintf(c.stdout, "stopped after %v\n", time.Since(began).Round(time.Second))
			return nil
		},
	}
	f := cmd.Flags()
	f.IntVar(&cfg.Port, "port", 9092, "port on 127.0.0.1; 0 takes a free one")
	f.StringArrayVar(&topics, "topic", nil, "NAME or NAME:PARTITIONS of a topic to make; repeat it")
	f.Int32Var(&cfg.Partitions, "partitions", 4, "partitions of topics without a number")
	f.StringVar(&cfg.Scratch, "dir", "", "where the directory of the records is made, and removed at the end (default: that for temporary files)")
	f.Int64Var(&maxMemory, "max-memory", 2048, "MiB of memory beyond which records are refused")
	f.BoolVar(&noAuto, "no-auto-create", false, "make no topic because a client asks for it")
	fileFlags(f, &load)
	return cmd
}

func has(topics []embedded.Topic, name string) bool {
	return slices.ContainsFunc(topics, func(t embedded.Topic) bool { return t.Name == name })
}

// topicsOf are the topics that pipeline files need.
func topicsOf(files []string, load daemon.LoadConfig) (names []string, err error) {
	if len(files) == 0 {
		return nil, nil
	}
	pipelines, err := daemon.Load(files, load)
	if err != nil {
		return nil, err
	}
	for _, p := range pipelines {
		of, err := operate.Topics(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.File, err)
		}
		names = append(names, of...)
	}
	return names, nil
}
