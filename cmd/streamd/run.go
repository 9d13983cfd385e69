package main

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamd/streamd/internal/daemon"
)

func (c *cli) runCommand() *cobra.Command {
	var load daemon.LoadConfig
	var cfg daemon.RunConfig
	var strict, stopOnEOF bool
	cmd := &cobra.Command{
		Use:   "run FILE...",
		Short: "Run one or more pipelines",
		Long: `Run one or more pipelines until SIGTERM or Ctrl-C, which finishes the open transaction and
ends with 0. A second one aborts it and ends with 130; its records are processed again.

  streamd run pipeline.yaml
  streamd run a.yaml b.yaml --data-dir /var/lib/streamd --http :8080
  streamd run pipeline.yaml --brokers kafka-1:9092,kafka-2:9092 -X region=eu -e secrets.env
  streamd run pipeline.yaml --set steps.unique.dedup.retention=3d
  streamd run pipeline.yaml --http-cert tls.crt --http-key tls.key --http-token-file token

Exit codes: 0 clean stop; 1 a pipeline stopped on an error; 2 wrong usage; 75 a broker is not reachable
within --startup-timeout, an address or a directory is in use, or the state disk is full; 77 credentials or rights are missing;
78 the file, a topic or the state directory does not fit (a restart cannot help); 130 second Ctrl-C.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			// As of a variable that is not set: whoever wanted the port protected must not get an open one.
			for _, name := range []string{"http-token-file", "http-client-ca", "http-cert", "http-key"} {
				if flag := cmd.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
					return daemon.Usagef("--%s is empty: name a file, or leave it out", name)
				}
			}
			log, err := c.logger()
			if err != nil {
				return err
			}
			pipelines, err := daemon.Load(files, load)
			if err != nil {
				return err
			}
			warned := false
			for _, p := range pipelines {
				for _, w := range p.Warnings {
					warned = true
					log.Warn(w.Message, "at", w.Position(), "rule", w.Rule)
				}
			}
			if strict && warned {
				return daemon.ErrWarnings
			}
			ctx := cmd.Context()
			if stopOnEOF {
				var stop context.CancelFunc
				ctx, stop = untilEOF(ctx, os.Stdin)
				defer stop()
			}
			cfg.Pipelines, cfg.Log, cfg.Version = pipelines, log, daemon.Build(version)
			cfg.DataDirWins = cmd.Flags().Changed("data-dir")
			return daemon.Run(ctx, cfg)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.DataDir, "data-dir", defaultDataDir(), "directory for the local state; one process at a time")
	f.StringVar(&cfg.HTTP, "http", ":8080", "address of page, metrics and health, or off")
	f.StringVar(&cfg.Secure.CertFile, "http-cert", "", "PEM file with the certificate of the HTTP port, which then speaks TLS only")
	f.StringVar(&cfg.Secure.KeyFile, "http-key", "", "PEM file with its key")
	f.StringVar(&cfg.Secure.ClientCAFile, "http-client-ca", "", "PEM file: a client certificate that it has signed is let in; without one only the token, and health")
	f.StringVar(&cfg.Secure.TokenFile, "http-token-file", "", "file with a token: who sends it is let in; without it only certificates, and health")
	f.StringVar(&cfg.Admin, "admin", "", "unix:PATH of the socket for streamd status, or off (default unix:DATA-DIR/admin.sock)")
	f.StringVar(&cfg.Instance, "instance-id", "", "name of this process in the consumer group (default: made once and kept in the data directory)")
	f.StringSliceVarP(&load.Brokers, "brokers", "b", nil, "bootstrap addresses instead of the file's")
	fileFlags(f, &load)
	f.StringArrayVar(&cfg.DropState, "drop-state", nil, "name of an operator, store or sub-topology that is gone, whose state may be given up; repeat it")
	f.DurationVar(&cfg.Startup, "startup-timeout", time.Minute, "how long to wait for a broker at the start")
	f.DurationVar(&cfg.Shutdown, "shutdown-timeout", time.Minute, "how long the last commit may take")
	f.BoolVar(&strict, "strict", false, "do not start if the file has warnings")
	f.BoolVar(&stopOnEOF, "stop-on-eof", false, "stop when standard input ends, as when the parent process dies")
	return cmd
}

// untilEOF returns a context that ends with the input.
func untilEOF(parent context.Context, in io.Reader) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	return ctx, cancel
}
