package sim

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/simbroker"
	"github.com/streamd/streamd/test/planted"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run this seed only, with its trace")
	seedsFlag = flag.Int("seeds", 1000, "how many seeds to run")
	firstFlag = flag.Uint64("first", 1, "the first seed")
	plainFlag = flag.Bool("plain", false, "without windows behind marks and global tables")
	untilRed  = flag.Bool("until-red", false, "stop at the first red seed and say how many it took")
)

// shrinkSteps bounds what is spent on a shorter schedule: some 500 runs, or few that make no progress.
const shrinkSteps = 500_000

// show prints what a red run needs.
func show(t *testing.T, conf Config, r Result) {
	t.Helper()
	small := conf
	if !*untilRed {
		small = Shrink(conf, shrinkSteps)
	}
	t.Errorf("seed %d is red after %d steps; replay with: make sim SEED=%d\n%s", conf.Seed, r.Steps, conf.Seed, Report(conf, small))
}

// A run makes much garbage and keeps little: collecting it less often makes the seeds a third faster.
func TestMain(m *testing.M) {
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}

// ofSeed is the run that the flags ask for.
func ofSeed(seed uint64) Config {
	if *plainFlag {
		return PlainFromSeed(seed)
	}
	return FromSeed(seed)
}

func TestSeeds(t *testing.T) {
	if *seedFlag != 0 {
		conf := ofSeed(*seedFlag)
		t.Log(conf)
		for _, f := range conf.Schedule {
			t.Log(f)
		}
		conf.Trace = testing.Verbose()
		r := Run(conf)
		t.Log("\n" + strings.Join(r.Trace, "\n"))
		if len(r.Errors) > 0 {
			show(t, ofSeed(*seedFlag), r)
		}
		return
	}
	start := time.Now()
	seeds := *seedsFlag
	if testing.Short() {
		seeds = min(seeds, 100)
	}
	hits := map[string]int{}
	steps, requests, red, done := 0, 0, 0, 0
	for r := range runAll(t.Context(), seeds) {
		done++
		steps += r.Steps
		requests += r.Requests
		for k, n := range r.Hits {
			hits[k] += n
		}
		if len(r.Errors) > 0 {
			if red++; red <= 3 {
				show(t, r.conf, r.Result)
			}
			if *untilRed {
				t.Fatal(planted.Red(done))
			}
		}
	}
	took := time.Since(start)
	t.Logf("%d seeds, %d red, %d steps, %d requests in %v (%.0f seeds/s)\n%s", seeds, red, steps, requests, took.Round(time.Millisecond),
		float64(seeds)/took.Seconds(), strings.Join(sortedHits(hits), "\n"))
	if seeds >= 1000 {
		checkCoverage(t, seeds, hits)
	}
}

// checkCoverage is C12: a harness whose faults do not happen proves nothing.
func checkCoverage(t *testing.T, seeds int, hits map[string]int) {
	t.Helper()
	points := []string{
		"deal", "timer fired", "window behind marks", "windows behind marks, none late", "idle writer of marks",
		"row of a global table seen to change", "global table read anew",
		"slow marker", "fault during a recovery", "unknown outcome: committed", "unknown outcome: aborted",
	}
	for _, f := range slots() {
		points = append(points, f.name())
	}
	slices.Sort(points)
	points = slices.Compact(points)
	for _, p := range points {
		if want := 20 * seeds / 1000; hits[p] < want {
			t.Errorf("C12: %q happened %d times in %d seeds, want at least %d", p, hits[p], seeds, want)
		}
	}
}

type seeded struct {
	Result
	conf Config
}

// runAll runs seeds on all processors and gives their results as they come.
func runAll(ctx context.Context, seeds int) <-chan seeded {
	out := make(chan seeded)
	next := make(chan uint64)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for s := range next {
				conf := ofSeed(s)
				select {
				case out <- seeded{Run(conf), conf}:
				case <-ctx.Done():
				}
			}
		})
	}
	go func() {
		for i := range uint64(seeds) {
			select {
			case next <- *firstFlag + i:
			case <-ctx.Done():
			}
		}
		close(next)
		wg.Wait()
		close(out)
	}()
	return out
}

// The same seed is the same run, to the last step.
func TestSeedReplays(t *testing.T) {
	for seed := range uint64(20) {
		conf := FromSeed(seed + 1)
		a, b := Run(conf), Run(conf)
		if a.Hash != b.Hash || a.Steps != b.Steps {
			t.Fatalf("seed %d: %d steps, hash %x; then %d steps, hash %x", seed, a.Steps, a.Hash, b.Steps, b.Hash)
		}
	}
}

// A process is killed at its k-th step, for every k of a run without other faults: between any two
// requests, around each write to the disk, at each point of the engine (crash table, rows 1 to 14).
func TestKillAtEveryStep(t *testing.T) {
	for _, base := range []Config{
		{Seed: 1, Partitions: 1, Owners: 1, Bills: 25},
		{Seed: 2, Partitions: 2, Owners: 2, Bills: 30, Protocol: simbroker.V2, Prefetch: true},
		{Seed: 4, Partitions: 2, Owners: 3, Bills: 45},
		{Seed: 5, Partitions: 1, Owners: 1, Bills: 20, Linked: true},
		{Seed: 6, Partitions: 2, Owners: 1, Bills: 12, Hops: 1},
		{Seed: 7, Partitions: 1, Owners: 1, Bills: 20, Rated: true},
	} {
		t.Run(fmt.Sprintf("%d partitions, linked %v, hops %d, rated %v", base.Partitions, base.Linked, base.Hops, base.Rated), func(t *testing.T) {
			t.Parallel()
			whole := Run(base)
			if len(whole.Errors) > 0 {
				show(t, base, whole)
				return
			}
			for k := 1; k <= whole.Steps; k++ {
				conf := base
				conf.KillAt = k
				if r := Run(conf); len(r.Errors) > 0 {
					conf.Trace = true
					r = Run(conf)
					t.Fatalf("killed at step %d of %d:\n  %s\n%s", k, whole.Steps, strings.Join(r.Errors, "\n  "), strings.Join(r.Trace[max(0, len(r.Trace)-80):], "\n"))
				}
			}
			t.Logf("killed at each of %d steps", whole.Steps)
		})
	}
}
