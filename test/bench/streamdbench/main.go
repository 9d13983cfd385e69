package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/streamd/streamd/processor"
	"github.com/streamd/streamd/record"
	"github.com/streamd/streamd/serde"
	"github.com/streamd/streamd/topology"
	"github.com/streamd/streamd/window"
)

// idHeader is the peer's.
const idHeader = "id"

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50) // as the daemon does
	}
	m := marks{start: time.Now()}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], &m); err != nil {
		fmt.Fprintln(os.Stderr, "streamdbench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, m *marks) error {
	flags, err := parse(args)
	if err != nil {
		return err
	}
	topo, err := build(flags, m)
	if err != nil {
		return err
	}
	opts, err := options(flags)
	if err != nil {
		return err
	}
	app, err := processor.New(topo, opts...)
	if err != nil {
		return err
	}
	if file := flags["conf.cpuprofile"]; file != "" {
		stop, err := profile(file)
		if err != nil {
			return err
		}
		defer stop()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go m.announce(ctx, app)
	if file := flags["conf.heapprofile"]; file != "" {
		go heapOnSignal(ctx, file)
	}
	err = app.Run(ctx)
	m.print(fmt.Sprintf("closed cpuTicks=%d", cpuTicks()))
	return err
}

// heapOnSignal writes a heap profile at each SIGUSR1.
func heapOnSignal(ctx context.Context, file string) {
	usr1 := make(chan os.Signal, 1)
	signal.Notify(usr1, syscall.SIGUSR1)
	defer signal.Stop(usr1)
	for {
		select {
		case <-ctx.Done():
			return
		case <-usr1:
		}
		f, err := os.Create(filepath.Clean(file))
		if err == nil {
			err = errors.Join(pprof.Lookup("heap").WriteTo(f, 0), f.Close())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "streamdbench: heap profile:", err)
		}
	}
}

// parse takes --name=value arguments; the last one of a name counts.
func parse(args []string) (map[string]string, error) {
	flags := map[string]string{}
	for _, a := range args {
		name, value, ok := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		if !ok || !strings.HasPrefix(a, "--") {
			return nil, fmt.Errorf("argument %q: want --name=value", a)
		}
		flags[name] = value
	}
	for _, need := range []string{"app", "bootstrap", "in", "out", "state", "workload"} {
		if flags[need] == "" {
			return nil, fmt.Errorf("--%s is missing", need)
		}
	}
	return flags, nil
}

// build makes the workload's topology.
func build(flags map[string]string, m *marks) (*topology.Topology, error) {
	b := topology.New(flags["app"])
	bytes := serde.Bytes()
	in := topology.From(b, flags["in"], bytes, bytes, topology.IDHeader(idHeader))
	in = topology.Filter(in, m.see, topology.Name("first"))
	dedup := []topology.DedupOption{topology.Retention(time.Hour)}
	if n, err := integer(flags, "conf.expected.ids"); err != nil {
		return nil, err
	} else if n > 0 {
		dedup = append(dedup, topology.ExpectedIDs(n))
	}
	switch w := flags["workload"]; w {
	case "w1":
		topology.To(in, flags["out"], bytes, bytes, topology.IDHeader(idHeader))
	case "w2":
		unique := topology.Dedup(in, "unique", dedup...)
		topology.To(unique, flags["out"], bytes, bytes, topology.IDHeader(idHeader))
	case "w3":
		unique := topology.Dedup(in, "unique", dedup...)
		counts := topology.Aggregate(unique, "counts", serde.Int64(), count)
		// The input's header "id" stays, as with the peer; a second one would make the outputs differ.
		topology.To(counts, flags["out"], bytes, serde.Int64(), topology.WithoutID())
	case "w3-window":
		unique := topology.Dedup(in, "unique", dedup...)
		hourly := topology.WindowedBy(unique, window.Tumbling(time.Hour).Grace(10*time.Minute))
		counts := topology.Map(topology.Count(hourly, "counts"), withoutWindow)
		topology.To(counts, flags["out"], bytes, serde.Int64(), topology.WithoutID())
	case "w4-join":
		unique := topology.Dedup(in, "unique", dedup...)
		rows := topology.ToTable(unique, "rows", bytes)
		joined := topology.JoinTable(unique, rows, "joined", func(_, _, row []byte) ([]byte, error) { return row, nil })
		topology.To(joined, flags["out"], bytes, bytes, topology.WithoutID())
	case "w5-streamjoin":
		unique := topology.Dedup(in, "unique", dedup...)
		sides := topology.Branch(unique, "sides", isLeft)
		within := topology.JoinWithin(2500 * time.Millisecond).Grace(2500 * time.Millisecond)
		joined := topology.Join(sides[0], sides[1], "joined", within, func(_, left, right []byte) ([]byte, error) { return slices.Concat(left, right), nil })
		// A result of streamd has no headers, one of the peer those of the record that made it: with its own ID it is as long.
		topology.To(joined, flags["out"], bytes, bytes, topology.IDHeader(idHeader))
	default:
		return nil, fmt.Errorf("workload %q: want w1, w2, w3, w3-window, w4-join or w5-streamjoin", w)
	}
	return b.Build()
}

// withoutWindow leaves the key alone: the peer's checker knows no windows.
func withoutWindow(r record.Record[window.Key[[]byte], int64]) ([]byte, int64, error) {
	return r.Key.Key, r.Value, nil
}

// isLeft says of which side of the join a record is, as the peer does.
func isLeft(r record.Record[[]byte, []byte]) (bool, error) { return r.Value[0]&1 == 0, nil }

func count(n int64, _ record.Record[[]byte, []byte]) (int64, error) { return n + 1, nil }

// options turns --conf into options; what is not given stays at streamd's default.
func options(flags map[string]string) ([]processor.Option, error) {
	level := slog.LevelWarn
	if l := flags["conf.log"]; l != "" {
		if err := level.UnmarshalText([]byte(l)); err != nil {
			return nil, fmt.Errorf("--conf.log: %w", err)
		}
	}
	opts := []processor.Option{
		processor.WithBrokers(flags["bootstrap"]),
		processor.WithStateDir(flags["state"]),
		processor.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))),
	}
	workers, err := integer(flags, "conf.workers")
	if err != nil {
		return nil, err
	}
	if workers > 0 {
		opts = append(opts, processor.WithWorkers(workers))
	}
	interval, err := integer(flags, "conf.commit.interval.ms")
	if err != nil {
		return nil, err
	}
	if interval > 0 {
		opts = append(opts, processor.WithCommitInterval(time.Duration(interval)*time.Millisecond))
	}
	return opts, nil
}

// integer returns a flag's number, 0 if it is not given.
func integer(flags map[string]string, name string) (int, error) {
	v, ok := flags[name]
	if !ok {
		return 0, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("--%s=%q: want a number above 0", name, v)
	}
	return n, nil
}

func profile(file string) (stop func(), err error) {
	f, err := os.Create(filepath.Clean(file))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}

// marks prints what the meter waits for.
type marks struct {
	start time.Time
	seen  atomic.Bool
}

// print writes one line "@MICROS AGE what".
func (m *marks) print(what string) {
	now := time.Now()
	fmt.Printf("@%d %d %s\n", now.UnixMicro(), now.Sub(m.start).Milliseconds(), what)
}

// see lets every record pass and prints a mark at the first one.
func (m *marks) see(record.Record[[]byte, []byte]) (bool, error) {
	if !m.seen.Load() && !m.seen.Swap(true) {
		m.print(fmt.Sprintf("first-record cpuTicks=%d", cpuTicks()))
	}
	return true, nil
}

// announce prints when the tasks run.
func (m *marks) announce(ctx context.Context, app *processor.App) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !app.Status().Ready() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	m.print("state=RUNNING")
}

// cpuTicks is the CPU time of this process so far, in the meter's ticks of 10 ms.
func cpuTicks() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return (u.Utime.Nano() + u.Stime.Nano()) / int64(10*time.Millisecond)
}
