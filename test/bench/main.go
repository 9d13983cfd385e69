package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// bench is what the flags ask for.
type bench struct {
	peer      string
	libs      string
	reps      int
	records   int
	parts     []string
	workloads []string
	conf      string // --conf flags for streamd only
	work      string // keeps the peer, the broker's data and the results between calls
	limit     time.Duration
	log       io.Writer

	start   time.Time
	streams *peer
	exec    string // the --exec argument
	journal *journal
}

// errUnfinished: the time of -for is over.
var errUnfinished = errors.New("not finished: call again with the same -work")

func main() {
	b := bench{log: os.Stderr, start: time.Now()}
	flag.StringVar(&b.peer, "peer", os.Getenv("PEER"), "folder of the Kafka Streams bench program (default $PEER)")
	flag.StringVar(&b.libs, "kafka-libs", os.Getenv("STREAMD_KAFKA_LIBS"), "folder of Kafka's jars (default $STREAMD_KAFKA_LIBS, which make sets)")
	flag.IntVar(&b.reps, "reps", 3, "repetitions, interleaved")
	flag.IntVar(&b.records, "records", 1_000_000, "records of the throughput part; a figure of fewer is that of a start")
	parts := flag.String("parts", "throughput,latency,recovery", "what to measure")
	workloads := flag.String("workloads", "w1,w2,w3,w3-window,w4-join,w5-streamjoin", "workloads of the throughput part")
	flag.StringVar(&b.conf, "streamd", "", "arguments for streamdbench, as \"--conf.workers=1\"")
	flag.StringVar(&b.work, "work", "", "folder to keep: a bench that was broken off goes on where it was (default: a temporary one)")
	flag.DurationVar(&b.limit, "for", 0, "begin no run after this time; needs -work (default: no limit)")
	flag.Parse()
	b.parts, b.workloads = strings.Split(*parts, ","), strings.Split(*workloads, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := b.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context) error {
	work := b.work
	if work == "" {
		temporary, err := os.MkdirTemp("", "streamd-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temporary)
		work = temporary
	}
	var err error
	if b.streams, err = preparePeer(ctx, b.peer, work, b.libs, b.log); err != nil {
		return err
	}
	if b.journal, err = openJournal(filepath.Join(work, "results.jsonl")); err != nil {
		return err
	}
	b.exec = filepath.Join(work, "streamdbench")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", b.exec, "./test/bench/streamdbench").CombinedOutput(); err != nil {
		return fmt.Errorf("building streamdbench: %w\n%s", err, out)
	}
	if b.conf != "" {
		b.exec += " " + b.conf
	}
	defer b.streams.stop()
	if _, err := b.streams.call(ctx, "broker"); err != nil {
		return err
	}
	var tables []table
	for _, p := range []struct {
		name string
		run  func(context.Context) ([]table, error)
	}{{"throughput", b.throughput}, {"latency", b.latency}, {"recovery", b.recovery}} {
		if !slices.Contains(b.parts, p.name) {
			continue
		}
		more, err := p.run(ctx)
		if err != nil {
			return err
		}
		tables = append(tables, more...)
	}
	if err := b.header(os.Stdout); err != nil {
		return err
	}
	for _, t := range tables {
		if err := t.write(os.Stdout); err != nil {
			return err
		}
	}
	return nil
}

// header says what was run where.
func (b *bench) header(w io.Writer) error {
	commit, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		commit = []byte("unknown")
	}
	_, err = fmt.Fprintf(w, "Commit %s, %s, %d cores, %s, %d repetitions, medians. Command:\n\n```\nmake bench PEER=...   # go run ./test/bench -reps %d -records %d -parts %s -workloads %s -streamd %q\n```\n\n",
		strings.TrimSpace(string(commit)), time.Now().UTC().Format("2006-01-02"), runtime.NumCPU(), runtime.Version(), b.reps,
		b.reps, b.records, strings.Join(b.parts, ","), strings.Join(b.workloads, ","), b.conf)
	return err
}

// system is one side of a comparison.
type system struct {
	name string
	args []string
}

// everyUpdate has the peer forward every update of a count, as streamd does. The checker reads it too, so it is given
// to both.
const everyUpdate = "--conf.statestore.cache.max.bytes=0"

func (b *bench) streamd() system { return system{"streamd", []string{"--exec=" + b.exec}} }

// plain is the peer with its defaults.
func plain() system { return system{"default", []string{"--profile=default"}} }

// operators has the peer's side of a workload run by our program for Kafka Streams, if its own does not have it. Options
// of the JVM are part of the command then.
func (b *bench) operators(workload string, s system) system {
	if !strings.Contains(workload, "-") {
		return s
	}
	command := b.streams.java("bench.Operators")
	var args []string
	for _, a := range s.args {
		if jvm, ok := strings.CutPrefix(a, "--jvm="); ok {
			command = slices.Insert(command, 1, jvm)
		} else {
			args = append(args, a)
		}
	}
	return system{s.name, append(args, "--exec="+strings.Join(command, " "))}
}

// tuned are the peer's better settings, as its run.sh has them.
func tuned(workload string) []system {
	one := []string{"--profile=tuned", "--jvm=-Xms1g -Xmx1g -XX:+UseParallelGC", "--conf.commit.interval.ms=1000"}
	all := []system{{"tuned", one}}
	if workload != "w1" { // for a copy the second thread only takes the broker's core
		all = append(all, system{"tuned, 2 threads", append(slices.Clone(one), "--conf.num.stream.threads=2")})
	}
	return all
}

var titles = map[string]string{
	"w1": "copy", "w2": "dedup over one hour", "w3": "dedup and count per key",
	"w3-window": "dedup and count per key and hour", "w4-join": "dedup and join with a table", "w5-streamjoin": "dedup and join of two streams",
}

// rounds runs every system once per repetition, so that a change of the machine's mood meets all of them. What the
// journal has already is not run again.
func (b *bench) rounds(ctx context.Context, title string, reps int, systems []system, args ...string) ([]series, error) {
	for rep := range reps {
		for _, s := range systems {
			if b.journal.count(title, s.name) > rep {
				continue
			}
			if b.limit > 0 && time.Since(b.start) > b.limit {
				return nil, errUnfinished
			}
			fmt.Fprintf(b.log, "--- %s, %s, %d of %d\n", title, s.name, rep+1, reps)
			got, err := b.streams.measure(ctx, append(slices.Clone(args), s.args...)...)
			if err != nil {
				return nil, err
			}
			if err := b.journal.add(title, s.name, got); err != nil {
				return nil, err
			}
		}
	}
	all := make([]series, len(systems))
	for i, s := range systems {
		all[i] = b.journal.series(title, s.name)
	}
	return all, nil
}

func (b *bench) throughput(ctx context.Context) ([]table, error) {
	var tables []table
	for _, w := range b.workloads {
		name, ok := titles[w]
		if !ok {
			return nil, fmt.Errorf("workload %q: want w1, w2, w3, w3-window, w4-join or w5-streamjoin", w)
		}
		topic := input
		if w == "w5-streamjoin" {
			topic = timedInput
		}
		if err := b.streams.load(ctx, topic, b.records); err != nil {
			return nil, err
		}
		title := fmt.Sprintf("Throughput: %s, %d records", name, b.records)
		systems := []system{b.streamd()}
		for _, s := range append([]system{plain()}, tuned(w)...) {
			systems = append(systems, b.operators(w, s))
		}
		all, err := b.rounds(ctx, title, b.reps, systems, "run", "--in="+topic, "--records="+strconv.Itoa(b.records), "--workload="+w, everyUpdate)
		if err != nil {
			return nil, err
		}
		tables = append(tables, table{title: title, rows: throughputRows, streamd: all[0], plain: all[1], tuned: all[2:]})
	}
	return tables, nil
}

func (b *bench) latency(ctx context.Context) ([]table, error) {
	var tables []table
	for _, rate := range []string{"1000", "10000"} {
		title := "Latency: dedup at " + rate + " records/s, produce to read_committed receipt"
		all, err := b.rounds(ctx, title, b.reps, []system{b.streamd(), plain()}, "latency", "--workload=w2", "--rate="+rate)
		if err != nil {
			return nil, err
		}
		tables = append(tables, table{title: title, rows: latencyRows, streamd: all[0], plain: all[1]})
	}
	return tables, nil
}

// recovery kills each system three times in one long run: loading two million IDs takes the peer a minute.
func (b *bench) recovery(ctx context.Context) ([]table, error) {
	static := plain()
	static.args = append(static.args, "--conf.group.instance.id=bench-1")
	title := "Recovery: kill -9 with two million IDs and 5,000 records/s coming in, three kills"
	all, err := b.rounds(ctx, title, 1, []system{b.streamd(), static},
		"recovery", "--workload=w3", "--records=2110000", "--rate=5000", "--steps=kill,kill,kill", everyUpdate)
	if err != nil {
		return nil, err
	}
	return []table{{
		title: title, rows: recoveryRows, streamd: all[0], plain: all[1],
	}}, nil
}
