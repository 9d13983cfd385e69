//go:build kills

package crash

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/test/planted"
)

// shortSession makes the group sessions of the processes as short as the fleet's brokers allow, and their rebalances with
// them: a user has no option for it. Nothing else of the program under test differs from what is shipped, but for the
// fault points.
func shortSession() []planted.Change {
	return []planted.Change{
		{File: "internal/kafka/group.go", Old: "g.SessionTimeout = 45 * time.Second", New: fmt.Sprintf("g.SessionTimeout = %d", SessionTimeout)},
		{File: "internal/kafka/group.go", Old: "g.RebalanceTimeout = 60 * time.Second", New: fmt.Sprintf("g.RebalanceTimeout = %d", 3*SessionTimeout)},
	}
}

// theProgram is the streamd without a bug, built once for all tests.
var theProgram struct {
	sync.Mutex
	path string
}

// TestMain takes the program away again.
func TestMain(m *testing.M) {
	code := m.Run()
	if theProgram.path != "" {
		_ = os.RemoveAll(filepath.Dir(theProgram.path))
	}
	os.Exit(code)
}

// program is streamd with the race detector and the fault points.
func program(t *testing.T) string {
	t.Helper()
	theProgram.Lock()
	defer theProgram.Unlock()
	if theProgram.path == "" {
		dir, err := os.MkdirTemp("", "streamd-kills-")
		if err != nil {
			t.Fatal(err)
		}
		theProgram.path = buildProgram(t, dir, planted.Bug{})
	}
	return theProgram.path
}

// buildProgram builds streamd with the race detector and the fault points into dir, and with a bug if there is one.
func buildProgram(t *testing.T, dir string, bug planted.Bug) string {
	t.Helper()
	root := planted.ModuleRoot(t)
	bug.Changes = append(shortSession(), bug.Changes...)
	overlay, err := bug.Overlay(root, dir)
	if err != nil {
		t.Fatal(err)
	}
	program, err := BuildDaemon(t.Context(), root, dir, "-race", "-tags", "faultpoints", "-overlay", overlay)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// soak says whether the large numbers are wanted.
func soak() bool { return os.Getenv("STREAMD_SOAK") == "1" }

// seedOf returns the seed of a run, and logs it. It repeats the choices of the run, not its timing.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(number("STREAMD_SEED", int(time.Now().UnixNano()&0xffffff)))
	t.Logf("STREAMD_SEED=%d", seed)
	return seed
}

// newCampaign starts a campaign that ends with the test; if the test fails, the logs are kept.
func newCampaign(t *testing.T, limit time.Duration, c CampaignConfig) *Campaign {
	t.Helper()
	m, err := tryCampaign(t, limit, c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// tryCampaign does the same; an error is what was wrong before the first fault.
func tryCampaign(t *testing.T, limit time.Duration, c CampaignConfig) (*Campaign, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	c.Dir, c.Log = t.TempDir(), t.Logf
	m, err := NewCampaign(ctx, c)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if t.Failed() {
			dir, err := m.KeepLogs()
			t.Logf("the logs are in %s (%v)", dir, err)
		}
		m.Close()
	})
	return m, nil
}

// finishLimit is how long the rest of a workload may take on a busy machine; how long it took is in the log.
const finishLimit = 2 * time.Minute

// inflict carries faults out, one after the other and so many kills at least, and judges after each.
func inflict(m *Campaign, faults, leastKills int, draw func(random *rand.Rand, n, hosts int) Fault) (kills int, err error) {
	random := rand.New(rand.NewPCG(m.config.Seed, 4))
	for n := 0; n < faults || kills < leastKills; n++ {
		f := draw(random, n, len(m.Hosts))
		for range 3 { // where the others did not come to lose a task, there was nothing to hit
			missed := m.Counts[missedCount(f.Again)]
			k, err := m.Inflict(f)
			kills += k
			if err = errors.Join(err, m.Check()); err != nil {
				return kills, err
			}
			if !slices.Contains(rebalancePoints(), f.Again) || m.Counts[missedCount(f.Again)] == missed {
				break
			}
		}
	}
	return kills, nil
}

// TestKills: kill -9 at each named point, at random, while EndTxn is unanswered, and in the recovery from the last
// one; with state directories that are wiped, older or have useless filters. What comes out is what would
// have come out without.
// CRASH 1-6, 10, 11, 13, 22, 38, 40, 49
func TestKills(t *testing.T) {
	if !soak() {
		killCampaign(t, seedOf(t), number("STREAMD_FAULTS", 34), 0) // 50 kills and more: some faults have two
		return
	}
	// Most of a campaign is waiting for processes to come back, so that several go on beside each other.
	t.Parallel()
	const campaigns, kills = 2, 500
	for i := range uint64(campaigns) {
		t.Run(fmt.Sprintf("campaign %d", i+1), func(t *testing.T) {
			t.Parallel()
			killCampaign(t, seedOf(t)+i, 170, kills/campaigns)
		})
	}
}

func killCampaign(t *testing.T, seed uint64, faults, leastKills int) {
	m := newCampaign(t, time.Minute+time.Duration(faults)*15*time.Second, CampaignConfig{Program: program(t), Seed: seed})
	begin := time.Now()
	kills, err := inflict(m, faults, leastKills, Kills)
	if err == nil {
		t.Logf("%d kills in %v", kills, time.Since(begin).Round(time.Second))
		err = m.Finish(finishLimit)
	}
	if err != nil {
		t.Fatal(err)
	}
	report(t, m)
	coverage(t, m, faults)
}

// fullCircle is how many faults a schedule takes to have had all kinds of them.
const fullCircle = 30

// coverage is C12: a run that has not been everywhere often enough proves nothing, nor does one in which unknown outcomes
// did not turn out both ways.
func coverage(t *testing.T, m *Campaign, faults int) {
	t.Helper()
	if faults < fullCircle {
		return
	}
	hits, fired := m.Points()
	for _, name := range fault.Names() {
		if hits[name] < 20 && faults >= 3*fullCircle || hits[name] == 0 {
			t.Errorf("C12: the run is invalid: %s was reached %d times", name, hits[name])
		}
		if want := uint64(20 * faults / 1000); fired[name] < want && faults >= 3*fullCircle {
			t.Errorf("C12: the run is invalid: a process died or stopped at %s %d times in %d faults, want %d", name, fired[name], faults, want)
		}
	}
	for _, handled := range []bool{true, false} {
		if n := m.Counts[endTxnCount(handled)]; n < max(1, 20*faults/1000) {
			t.Errorf("C12: the run is invalid: EndTxn was left unanswered, handled %v, %d times", handled, n)
		}
	}
}

// TestPauses: SIGSTOP for half, one and two times the session and the transaction timeout, at the places where a process
// that wakes up is most dangerous. It finds itself fenced, drops what it has, and does no harm.
// CRASH 18-20, 22, 26
func TestPauses(t *testing.T) {
	pauses := number("STREAMD_PAUSES", 12)
	if soak() {
		t.Parallel() // with the kills
		pauses = 50
	}
	m := newCampaign(t, time.Minute+time.Duration(pauses)*20*time.Second, CampaignConfig{Program: program(t), Seed: seedOf(t)})
	begin := time.Now()
	kills, err := inflict(m, pauses, 0, Pauses)
	if err == nil {
		t.Logf("%d pauses by SIGSTOP, and %d kills at the waking up, in %v", pauses, kills, time.Since(begin).Round(time.Second))
		err = m.Finish(finishLimit)
	}
	if err != nil {
		t.Fatal(err)
	}
	report(t, m)
}

// report prints what was covered.
func report(t *testing.T, m *Campaign) {
	t.Helper()
	var lines []string
	for _, k := range slices.Sorted(maps.Keys(m.Counts)) {
		lines = append(lines, fmt.Sprintf("%8d %s", m.Counts[k], k))
	}
	hits, fired := m.Points()
	for _, name := range fault.Names() {
		lines = append(lines, fmt.Sprintf("%8d hits, %3d faults at %s", hits[name], fired[name], name))
	}
	t.Logf("coverage:\n%s", strings.Join(lines, "\n"))
}
