//go:build bubble

package synctest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/test/planted"
)

// show prints what a red run needs.
func show(t *testing.T, what string, conf config, r result) {
	t.Helper()
	t.Errorf("%s: red\n  %s\nschedule:\n%strace:\n%s", what, strings.Join(r.errors, "\n  "), conf.events, strings.Join(r.trace[max(0, len(r.trace)-120):], "\n"))
}

func TestSeeds(t *testing.T) {
	if *seedFlag != 0 {
		conf := newConfig(*seedFlag)
		r := run(t, conf)
		t.Logf("%d clients\n%s%s", conf.clients, conf.events, strings.Join(r.trace, "\n"))
		for _, e := range r.errors {
			t.Error(e)
		}
		return
	}
	if testing.Short() {
		*seedsFlag = min(*seedsFlag, 20)
	}
	start := time.Now()
	hits := map[string]int{}
	red, stops := 0, 0
	for n := range *seedsFlag {
		conf := newConfig(*firstFlag + uint64(n))
		r := run(t, conf)
		for k, v := range r.hits {
			hits[k] += v
		}
		stops += len(r.stops)
		for _, err := range r.stops {
			if !legal(err) {
				r.errors = append(r.errors, fmt.Sprintf("stopped with an error that no fault of this run explains: %v", err))
			}
		}
		if len(r.errors) > 0 {
			if red++; red <= 3 {
				show(t, fmt.Sprintf("seed %d; replay with: go test ./test/synctest -run Seeds -seed %d -v", conf.seed, conf.seed), conf, r)
			}
			if *untilRed {
				t.Fatal(planted.Red(n + 1))
			}
		}
	}
	took := time.Since(start)
	t.Logf("%d seeds, %d red, %d stops and new starts, in %v (%.1f seeds/s)", *seedsFlag, red, stops, took.Round(time.Second), float64(*seedsFlag)/took.Seconds())
	for _, k := range slices.Sorted(maps.Keys(hits)) {
		t.Logf("%6d %s", hits[k], k)
	}
	if *seedsFlag >= 200 {
		checkCoverage(t, *seedsFlag, hits)
	}
}

// checkCoverage is C12: a harness whose faults do not happen proves nothing. Each request must have met
// each thing that can become of it often enough, and each unknown outcome must have turned out both ways.
func checkCoverage(t *testing.T, seeds int, hits map[string]int) {
	t.Helper()
	least := func(point string, per1000 int) {
		if want := per1000 * seeds / 1000; hits[point] < want {
			t.Errorf("C12: %q happened %d times in %d seeds, want at least %d", point, hits[point], seeds, want)
		}
	}
	for _, what := range []string{"restart", "crash", "cut", "pause", "move leaders", "move coordinators", "unknown: committed", "unknown: aborted"} {
		least(what, 20)
	}
	for _, key := range txnKeys {
		for _, what := range []string{"lose request", "lose answer", "hold", "late", "slow", "refuse", "handle, then refuse"} {
			least(what+" "+key, 20)
		}
	}
	for _, key := range slices.Concat(startKeys, otherKeys) {
		n := 0
		for k, v := range hits {
			if strings.HasSuffix(k, " "+key) {
				n += v
			}
		}
		if n < 20*seeds/1000 {
			t.Errorf("C12: %s met %d faults in %d seeds, want at least %d", key, n, seeds, 20*seeds/1000)
		}
	}
}
