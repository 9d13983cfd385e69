package program

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/topology"
)

// Run runs what build makes of the file that the arguments name, until SIGTERM or the end of the standard input.
func Run(args []string, build func(file []byte) (brokers []string, topo *topology.Topology, err error)) error {
	if len(args) < 2 {
		return fmt.Errorf("want run FILE and flags, got %q", args)
	}
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	dir, instance := flags.String("data-dir", "", "for the local state"), flags.String("instance-id", "", "of this process")
	flags.String("http", "", "not used")
	flags.String("log-format", "", "not used: JSON")
	flags.Bool("stop-on-eof", true, "end when the standard input does")
	if err := flags.Parse(args[2:]); err != nil {
		return err
	}
	text, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	brokers, topo, err := build(text)
	if err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	app, err := processor.New(topo, processor.WithBrokers(brokers...), processor.WithStateDir(*dir), processor.WithInstanceID(*instance),
		processor.WithLogger(slog.New(slog.NewJSONHandler(os.Stderr, nil))))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() { // it must not outlive the test
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	return app.Run(ctx)
}
