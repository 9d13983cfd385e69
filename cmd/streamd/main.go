package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/streamd/streamd/internal/daemon"
	"github.com/streamd/streamd/pipeline"
)

// version is set by the linker: -X main.version=v0.1.0.
var version string

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run runs one command and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := withSignals(context.Background())
	defer stop()
	c := &cli{stdout: stdout, stderr: stderr}
	root := c.root()
	root.SetArgs(asGoDoes(args))
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	// What cobra refuses before a command begins is how the command was called.
	var usage *daemon.UsageError
	if err != nil && !c.began && !errors.As(err, &usage) {
		if words := root.Flags().Args(); cmd == root && len(words) > 0 {
			err = unknownCommand(root, words[0], err)
		}
		err = &daemon.UsageError{Err: err}
	}
	report(stderr, cmd.CommandPath(), err)
	return daemon.ExitCode(err)
}

// unknownCommand adds the commands that may have been meant.
func unknownCommand(root *cobra.Command, word string, err error) error {
	root.SuggestionsMinimumDistance = min(2, len(word)/3) // letters that differ
	if names := root.SuggestionsFor(word); len(names) > 0 {
		return fmt.Errorf("%w; did you mean %s?", err, strings.Join(names, " or "))
	}
	return err
}

// asGoDoes lets test take -run as go test does: by the rules of the other flags that would be -r -u -n.
func asGoDoes(args []string) []string {
	if len(args) == 0 || args[0] != "test" {
		return args
	}
	out := slices.Clone(args)
	for i, a := range out {
		if a == "--" {
			break
		}
		if a == "-run" || strings.HasPrefix(a, "-run=") {
			out[i] = "-" + a
		}
	}
	return out
}

// withSignals returns a context that the first SIGINT or SIGTERM ends. The second one ends the
// process at once: the broker then aborts the open transaction, when this instance starts again or at
// the transaction timeout, so nothing of it remains. So does the first one while nobody listens to the context: the command
// waits for a file then, and has nothing to bring to an end.
func withSignals(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	heard := &heardContext{Context: ctx}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		if _, ok := <-signals; !ok {
			return
		}
		if !heard.asked.Load() {
			os.Exit(daemon.ExitInterrupted)
		}
		cancel()
		if _, ok := <-signals; ok {
			os.Exit(daemon.ExitInterrupted)
		}
	}()
	return heard, func() {
		signal.Stop(signals)
		close(signals)
		cancel()
	}
}

// heardContext knows whether anybody has asked when it ends.
type heardContext struct {
	context.Context
	asked atomic.Bool
}

// Done implements context.Context. A context made of this one asks, too.
func (c *heardContext) Done() <-chan struct{} {
	c.asked.Store(true)
	return c.Context.Done()
}

// Err implements context.Context.
func (c *heardContext) Err() error {
	c.asked.Store(true)
	return c.Context.Err()
}

// report prints an error in full, once.
func report(w io.Writer, command string, err error) {
	var usage *daemon.UsageError
	var file *pipeline.Error
	switch {
	case err == nil, errors.Is(err, daemon.ErrInvalid), errors.Is(err, daemon.ErrTests):
		// What is wrong has been printed.
	case errors.As(err, &usage):
		fmt.Fprintf(w, "streamd: %v\nSee '%s --help'.\n", err, command)
	case errors.As(err, &file):
		fmt.Fprintln(w, err)
	default:
		fmt.Fprintf(w, "streamd: %s\n", strings.TrimSpace(err.Error()))
	}
}
