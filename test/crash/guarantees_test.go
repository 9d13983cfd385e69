//go:build kills

package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/internal/fault"
	"github.com/streamd/streamd/topology"
)

// TestGuarantees: a process that is killed with kill -9 at the points of its commits. At most once loses and never repeats, at
// least once repeats and never loses, exactly once does neither. The totals, which are state, count no bill twice under any
// of them, and what is on the disk is the fold of the changelog.
func TestGuarantees(t *testing.T) {
	kills := number("STREAMD_KILLS", 6)
	for level, points := range map[topology.Level][]string{
		topology.ExactlyOnce: {"commit.prepared", "flush.done", "offsets.committed", "endtxn.acked", "commit.acked", "filter.added"},
		topology.AtLeastOnce: {"ahead.acked", "commit.prepared", "ahead.acked", "flush.done", "ahead.prepared", "commit.acked"},
		topology.AtMostOnce:  {"claim.acked", "claim.prepared", "claim.applied", "commit.prepared", "claim.acked", "commit.acked"},
	} {
		t.Run(string(level), func(t *testing.T) {
			seed := seedOf(t)
			g := newGuaranteed(t, level, seed, time.Minute+time.Duration(kills)*15*time.Second)
			random := rand.New(rand.NewPCG(seed, 5))
			for n := range kills {
				g.kill(points[n%len(points)], 1+random.Uint64N(4))
			}
			g.finish()
			g.judge(level)
		})
	}
}

// guaranteed is a bills pipeline with a guarantee, on one host.
type guaranteed struct {
	*testing.T
	*Fleet
	ctx        context.Context
	host       *Host
	echo, sums *Reader
	stop       chan struct{}
	loaded     chan loadResult
	want       Expectation

	bills map[string]int // of the echo: how often each came
	last  map[string]Total
	seen  int64
	// stepsLost and stepsRepeated are of the totals: numbers that were left out, and that came before.
	stepsLost, stepsRepeated int64
	wrong                    problems
}

func newGuaranteed(t *testing.T, level topology.Level, seed uint64, limit time.Duration) *guaranteed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	text := strings.Replace(campaignPipeline, "processing:\n", "processing:\n  guarantee: "+string(level)+"\n", 1)
	fleet, err := NewFleet(ctx, FleetConfig{
		Program: program(t), Pipeline: text, App: campaignApp, Dir: t.TempDir(), Hosts: 1, Topics: []string{"bills.raw", "bills.unique", "bill.totals"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fleet.Close)
	g := &guaranteed{
		T: t, Fleet: fleet, ctx: ctx, host: fleet.Hosts[0], stop: make(chan struct{}), loaded: make(chan loadResult, 1),
		bills: map[string]int{}, last: map[string]Total{},
	}
	g.echo, g.sums = g.follow("bills.unique", g.addBill), g.follow("bill.totals", g.addTotal)
	if err := g.host.Start(); err != nil {
		t.Fatal(err)
	}
	l := Loader{
		Brokers: g.Brokers(), Topic: "bills.raw", Rate: 1000, Key: func(b Bill) string { return b.Account }, Begin: time.Now().AddDate(0, 0, -1), Step: time.Millisecond, Stop: g.stop,
		Hold: func(sent int) bool { // it must not run away from a machine that has other work; what kills have lost is little
			return int64(sent)-g.count() > 20_000
		},
	}
	go func() {
		want, err := l.Run(ctx, Workload{Seed: seed, Records: 1 << 30, Accounts: campaignAccounts})
		g.loaded <- loadResult{want, err}
	}()
	g.flow()
	return g
}

// follow reads a topic as it grows.
func (g *guaranteed) follow(topic string, add func(where string, value []byte)) *Reader {
	g.Helper()
	r, err := NewReader(g.Brokers(), topic, FleetPartitions, add)
	if err != nil {
		g.Fatal(err)
	}
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(g.ctx)
	go func() {
		r.Run(ctx)
		close(ended)
	}()
	g.Cleanup(func() {
		cancel()
		<-ended
	})
	return r
}

func (g *guaranteed) addBill(where string, value []byte) {
	var b Bill
	if err := json.Unmarshal(value, &b); err != nil {
		g.wrong.add("%s: %v", where, err)
	}
	g.bills[b.ID]++
}

// addTotal takes a total. Its number is how many bills it has: the next one is one more.
func (g *guaranteed) addTotal(where string, value []byte) {
	g.seen++
	var now Total
	if err := json.Unmarshal(value, &now); err != nil {
		g.wrong.add("%s: %v", where, err)
	}
	before := g.last[now.Account]
	if now.Bills <= before.Bills {
		g.stepsRepeated++
		return
	}
	g.stepsLost += now.Bills - before.Bills - 1
	g.last[now.Account] = now
}

func (g *guaranteed) count() (n int64) {
	g.sums.Locked(func() { n = g.seen })
	return n
}

// flow waits until more totals come.
func (g *guaranteed) flow() {
	g.Helper()
	from := g.count()
	if err := poll(g.ctx, func() (string, error) {
		if g.count() == from {
			return "nothing comes out", g.host.KilledOnly()
		}
		return "", nil
	}); err != nil {
		g.Fatalf("%v\n%s", err, g.host.Tail())
	}
}

// kill kills the process at the n-th hit of a point from now on, and starts it again.
func (g *guaranteed) kill(point string, n uint64) {
	g.Helper()
	g.host.Table.Arm(point, n, fault.Kill)
	if dead, err := g.host.AwaitDeath(g.ctx, time.Minute); err != nil || !dead {
		g.Fatalf("no kill at %s: %v, %d hits\n%s", point, err, g.host.Table.Hits(point), g.host.Tail())
	}
	if err := g.host.Start(); err != nil {
		g.Fatal(err)
	}
	g.flow()
}

// finish waits until all that was sent is through, and ends the process.
func (g *guaranteed) finish() {
	g.Helper()
	close(g.stop)
	in := <-g.loaded
	g.want = in.want
	err := in.err
	for _, topic := range []string{"bills.raw", "bills-totals-by-repartition"} {
		if err == nil {
			err = AwaitCommitted(g.ctx, g.Brokers(), g.App, topic)
		}
	}
	for _, r := range []*Reader{g.echo, g.sums} {
		if err == nil {
			err = r.AwaitEnd(g.ctx)
		}
	}
	if err != nil {
		g.Fatalf("%v\n%s", err, g.host.Tail())
	}
	if code, err := g.host.Stop(30 * time.Second); err != nil || code != 0 {
		g.Errorf("after SIGTERM: exit code %d, %v\n%s", code, err, g.host.Tail())
	}
	if line, err := g.host.Scan(append(alarms(), WarnNotKept, WarnSetAside, WarnLost)...); line != "" || err != nil {
		g.Errorf("the process says %q, %v", line, err)
	}
}

// judge counts what was lost and repeated, and compares it with what the guarantee allows, and with what kills must have done.
func (g *guaranteed) judge(level topology.Level) {
	g.Helper()
	var lost, repeated, counted, sent int64
	for a, n := range g.want.Bills {
		sent += n
		for i := range n {
			switch c := g.bills[fmt.Sprintf("bill-%d-%d", a, i)]; c {
			case 0:
				lost++
			default:
				repeated += int64(c - 1)
			}
		}
		total := g.last[AccountName(a)]
		counted += total.Bills
		if total.Bills > n || level != topology.AtMostOnce && total.Cents != g.want.Cents[a] {
			g.Errorf("%s has %d bills of %d cents, %d of %d were sent", AccountName(a), total.Bills, total.Cents, n, g.want.Cents[a])
		}
	}
	stepsLost := sent - counted + g.stepsLost // of totals that never came, and that were left out
	g.Logf("%d bills, %d fell out of the echo and %d came again; of the totals %d steps were lost and %d repeated", sent, lost, repeated, stepsLost, g.stepsRepeated)
	if loses := level == topology.AtMostOnce; (lost+stepsLost > 0) != loses {
		g.Errorf("%s: %d bills and %d steps are lost", level, lost, stepsLost)
	}
	if repeats := level == topology.AtLeastOnce; (repeated+g.stepsRepeated > 0) != repeats {
		g.Errorf("%s: %d bills and %d steps are repeated", level, repeated, g.stepsRepeated)
	}
	if err := g.wrong.err(); err != nil {
		g.Error(err)
	}
	for _, name := range fault.GuaranteeNames() {
		own := strings.HasPrefix(name, "claim.") && level == topology.AtMostOnce || strings.HasPrefix(name, "ahead.") && level == topology.AtLeastOnce
		if hits := g.host.Table.Hits(name); (hits > 0) != own {
			g.Errorf("%d hits of %s", hits, name)
		}
	}
	if err := g.checkTraces(g.ctx, g.Logf); err != nil {
		g.Error(err)
	}
}
