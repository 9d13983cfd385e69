package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "evidence:", err)
		os.Exit(1)
	}
}

// errRed: a layer has failed. The file says which.
var errRed = errors.New("a layer is red")

func run(args []string, stdout io.Writer) error {
	f := pflag.NewFlagSet("evidence", pflag.ContinueOnError)
	only := f.StringSlice("only", nil, "names of the layers to run, as L1,L3 (default: all)")
	planted := f.Bool("planted", false, "look for the planted bugs, too")
	read := f.String("read", "", "directory with the logs of an earlier run: write the file from them, run nothing")
	logs := f.String("logs", "build/soak", "directory for the logs")
	file := f.String("write", "docs/evidence.md", "file whose results are replaced")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil
		}
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir := *read
	if dir == "" {
		dir = *logs
		if err := runLayers(ctx, dir, *only, *planted, stdout); err != nil {
			return err
		}
	}
	results, err := readLogs(dir)
	if err != nil {
		return err
	}
	if err := write(*file, results); err != nil {
		return err
	}
	fmt.Fprint(stdout, block(results.entries(nil)))
	if results.red() {
		return errRed
	}
	return nil
}

// runLayers runs the chosen layers and leaves a log of each. Logs of layers that are not run stay.
func runLayers(ctx context.Context, dir string, only []string, planted bool, stdout io.Writer) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	all := layers()
	if planted {
		all = append(all, plantedLayers()...)
	}
	chosen := func(l layer) bool { return len(only) == 0 || slices.Contains(only, l.Name) }
	computing := slices.ContainsFunc(all, func(l layer) bool { return chosen(l) && l.Computes })
	waiting := slices.ContainsFunc(all, func(l layer) bool { return chosen(l) && !l.Computes })
	if !computing && !waiting {
		return fmt.Errorf("no layer is called %s", strings.Join(only, " or "))
	}
	var wg sync.WaitGroup
	var failed [2]error
	for i, computes := range []bool{false, true} {
		wg.Go(func() {
			for n, l := range all {
				if failed[i] == nil && l.Computes == computes && chosen(l) {
					failed[i] = runLayer(ctx, filepath.Join(dir, fmt.Sprintf("%02d.log", n)), l, computes && waiting, stdout)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(failed[:]...)
}

// runLayer runs one layer, at the lowest priority if it stands beside others. That it is red is no error: it stands in
// the log.
func runLayer(ctx context.Context, path string, l layer, beside bool, stdout io.Writer) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	commit, err := commit(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	h := header{
		Layer: l.Name, What: l.What, Command: strings.Join(append(append([]string{}, l.Env...), append([]string{"go"}, l.Args...)...), " "), Commit: commit,
		Date: began.UTC(), Cores: runtime.NumCPU(), Go: runtime.Version(),
	}
	if err := h.write(out); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s  %s: %s\n", began.UTC().Format(time.TimeOnly), l.Name, h.Command)
	layerCtx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	program := []string{"go"}
	if nice, err := exec.LookPath("nice"); err == nil && beside {
		program = []string{nice, "-n", "19", "go"}
	}
	cmd := exec.CommandContext(layerCtx, program[0], append(program[1:], l.Args...)...)
	cmd.Env = append(os.Environ(), l.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	// What it has started must end, too: it is asked to first.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	err = cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	result := "green"
	if err != nil {
		result = "RED"
	}
	took := time.Since(began).Round(time.Second)
	fmt.Fprintf(stdout, "%s  %s: %s after %v\n", time.Now().UTC().Format(time.TimeOnly), l.Name, result, took)
	_, err = fmt.Fprintf(out, "\n%s %s %v\n", resultMark, result, took)
	return err
}

// commit names the commit that is tested, with a mark if files differ from it.
func commit(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty=+changes", "--abbrev=12", "--exclude=*").Output()
	if err != nil {
		return "", fmt.Errorf("which commit this is: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
