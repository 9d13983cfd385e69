package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/streamd/streamd/internal/fault"
)

// CampaignConfig says what a campaign is.
type CampaignConfig struct {
	Program string // streamd, built with the tag faultpoints
	Dir     string // for everything; empty
	Seed    uint64
	Hosts   int                              // default 3
	Rate    int                              // records a second, default 1500
	Log     func(format string, args ...any) // of each fault; default none
}

const campaignApp = "bills"

// campaignPipeline has two sub-topologies: IDs alone, and state behind a repartition topic. Copies of a bill
// have the time of the first one, and reach back by less than the retention.
const campaignPipeline = `version: 1
name: bills

kafka:
  brokers: ["BROKERS"]

processing:
  commit_interval: 40ms
  transaction_timeout: 2s

types:
  Bill:
    bill_id: string
    account: string
    cents: int

sources:
  bills:
    topic: bills.raw
    format: json
    type: Bill

steps:
  - name: unique
    dedup:
      id: value.bill_id
      scope: partition
      retention: 40d

  - name: echo
    from: unique
    to:
      topic: bills.unique

  - name: totals
    from: unique
    aggregate:
      by: value.account
      fields:
        bills: {count: true}
        cents: {sum: value.cents}

  - name: publish
    to:
      topic: bill.totals
      key: key
      value:
        account: key
        bills: value.bills
        cents: value.cents
`

// Campaign is a workload that flows through a fleet while faults are inflicted upon it, and the readers that watch
// what comes out. It judges nothing by itself: see Check and Finish.
type Campaign struct {
	*Fleet
	config CampaignConfig
	random *rand.Rand
	ctx    context.Context
	cancel context.CancelFunc

	order      *Order
	totals     *Totals
	echo, sums *Reader
	reading    sync.WaitGroup
	stop       chan struct{} // ends the workload
	loaded     chan loadResult
	Counts     map[string]int // of what was inflicted and what came of it
	Allowed    []string       // warnings that this campaign may provoke
	flows      []*flow        // of the two outputs
}

// flow is how far an output was when it last moved.
type flow struct {
	topic string
	seen  int64
	moved time.Time
}

// stuckLimit is how long an output may stand still while faults go on: each of them may cost a session and a
// transaction timeout, and members that are lost in the midst of a join the rebalance timeout, for which the
// group waits for them. What comes after the last fault has a bound of its own.
const stuckLimit = 40 * time.Second

type loadResult struct {
	want Expectation
	err  error
}

const (
	campaignAccounts = 400
	campaignRepeats  = 20   // percent
	campaignBacklog  = 8000 // distinct records that may be under way
)

// NewCampaign starts a fleet, the readers and the workload. Close it.
func NewCampaign(ctx context.Context, c CampaignConfig) (*Campaign, error) {
	if c.Hosts == 0 {
		c.Hosts = 3
	}
	if c.Rate == 0 {
		c.Rate = 1500
	}
	if c.Log == nil {
		c.Log = func(string, ...any) {}
	}
	ctx, cancel := context.WithCancel(ctx)
	fleet, err := NewFleet(ctx, FleetConfig{
		Program: c.Program, Pipeline: campaignPipeline, App: campaignApp, Dir: c.Dir, Hosts: c.Hosts,
		Topics: []string{"bills.raw", "bills.unique", "bill.totals"},
	})
	if err != nil {
		cancel()
		return nil, err
	}
	m := &Campaign{
		Fleet: fleet, config: c, random: rand.New(rand.NewPCG(c.Seed, 3)), ctx: ctx, cancel: cancel,
		order: NewOrder(campaignAccounts), totals: NewTotals(campaignAccounts),
		stop: make(chan struct{}), loaded: make(chan loadResult, 1), Counts: map[string]int{},
	}
	if err := m.begin(); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

func (m *Campaign) begin() error {
	for _, r := range []struct {
		to    **Reader
		topic string
		add   func(string, []byte)
	}{{&m.echo, "bills.unique", m.order.Add}, {&m.sums, "bill.totals", m.totals.Add}} {
		reader, err := NewReader(m.Brokers(), r.topic, FleetPartitions, r.add)
		if err != nil {
			return err
		}
		*r.to = reader
		m.reading.Go(func() { reader.Run(m.ctx) })
	}
	for _, h := range m.Hosts {
		if err := h.Start(); err != nil {
			return err
		}
	}
	const step = 3 * time.Minute
	w := Workload{Seed: m.config.Seed, Records: 1 << 30, Accounts: campaignAccounts, RepeatPercent: campaignRepeats, Reach: 12_000}
	l := Loader{
		Brokers: m.Brokers(), Topic: "bills.raw", Rate: m.config.Rate, Key: func(b Bill) string { return b.Account },
		// Years ago: stream time runs much faster than ours, so that generations of IDs begin, are sealed and are
		// forgotten within a short run.
		Begin: time.Now().AddDate(-20, 0, 0), Step: step, Stop: m.stop,
		// What is sent must not run away from a machine that has other work.
		Hold: func(sent int) bool {
			var out int64
			m.sums.Locked(func() { out = m.totals.Seen() })
			return int64(sent)*(100-campaignRepeats)/100-out > campaignBacklog
		},
	}
	m.reading.Go(func() {
		want, err := l.Run(m.ctx, w)
		m.loaded <- loadResult{want, err}
	})
	now := time.Now()
	m.flows = []*flow{{topic: "bills.unique", moved: now}, {topic: "bill.totals", moved: now}}
	return m.AwaitFlow(time.Minute)
}

// Close ends everything that runs.
func (m *Campaign) Close() {
	m.cancel()
	m.Fleet.Close()
	m.reading.Wait()
}

// look notes how far the outputs are, and says which of them did not move since the last look.
func (m *Campaign) look() (still []*flow) {
	var seen [2]int64
	m.echo.Locked(func() { seen[0] = m.order.Seen() })
	m.sums.Locked(func() { seen[1] = m.totals.Seen() })
	for i, f := range m.flows {
		if seen[i] > f.seen {
			f.seen, f.moved = seen[i], time.Now()
		} else {
			still = append(still, f)
		}
	}
	return still
}

// AwaitFlow waits until more has come out of both outputs.
func (m *Campaign) AwaitFlow(within time.Duration) error {
	ctx, cancel := context.WithTimeout(m.ctx, within)
	defer cancel()
	m.look()
	moved := map[*flow]bool{}
	return poll(ctx, func() (string, error) {
		still := m.look()
		for _, f := range m.flows {
			moved[f] = moved[f] || !slices.Contains(still, f)
			if !moved[f] {
				return fmt.Sprintf("nothing comes out of %s after %d records", f.topic, f.seen), m.Check()
			}
		}
		return "", nil
	})
}

// alarms are what no log may say, whatever happens to a process.
func alarms() []string {
	return []string{"DATA RACE", "panic:", "invariant broken", "fatal error:"}
}

// Warnings that only damage to a state directory may provoke.
const (
	WarnNotKept  = "local store not kept"
	WarnSetAside = "set aside"
	WarnLost     = "the changelog does not continue the local store"
)

// Check judges what has come out so far, and what the processes say.
func (m *Campaign) Check() error {
	var errs []error
	for _, f := range m.look() {
		if d := time.Since(f.moved); d > stuckLimit {
			errs = append(errs, fmt.Errorf("crash: nothing came out of %s for %v, after %d records", f.topic, d.Round(time.Second), f.seen))
		}
	}
	m.echo.Locked(func() { errs = append(errs, m.order.err()) })
	m.sums.Locked(func() { errs = append(errs, m.totals.err()) })
	for _, h := range m.Hosts {
		texts := alarms()
		for _, w := range []string{WarnNotKept, WarnSetAside, WarnLost} {
			if !m.allows(w) {
				texts = append(texts, w)
			}
		}
		line, err := h.Scan(texts...)
		if line != "" {
			err = fmt.Errorf("crash: host %s says: %s", h.Name, line)
		}
		errs = append(errs, err, h.KilledOnly())
	}
	return errors.Join(errs...)
}

func (m *Campaign) allows(warning string) bool {
	for _, a := range m.Allowed {
		if a == warning {
			return true
		}
	}
	return false
}

// Finish ends the workload, waits until all of it is through, and judges the whole. All must be through within HealLimit (C9);
// limit is when it is given up.
func (m *Campaign) Finish(limit time.Duration) error {
	for _, h := range m.Hosts {
		if !h.Running() {
			if err := h.Start(); err != nil {
				return err
			}
		}
	}
	close(m.stop)
	in := <-m.loaded
	if in.err != nil {
		return in.err
	}
	healed, late := Within(m.ctx, HealLimit, limit, func(ctx context.Context) error {
		if err := m.sums.AwaitCount(ctx, m.totals.Seen, in.want.Distinct); err != nil {
			return errors.Join(err, m.Check())
		}
		if err := errors.Join(AwaitCommitted(ctx, m.Brokers(), m.App, "bills.raw"), m.echo.AwaitEnd(ctx), m.sums.AwaitEnd(ctx)); err != nil {
			return errors.Join(err, m.Check())
		}
		return m.awaitIdle(ctx)
	})
	if late != nil && !errors.Is(late, ErrLate) {
		return late
	}
	ctx, cancel := context.WithTimeout(m.ctx, limit)
	defer cancel()
	errs := []error{late, m.Check(), m.checkMetrics(ctx, in.want)}
	for _, h := range m.Hosts {
		if code, err := h.Stop(30 * time.Second); err != nil || code != 0 {
			errs = append(errs, fmt.Errorf("crash: host %s after SIGTERM: exit code %d, %w", h.Name, code, err))
		}
	}
	m.echo.Locked(func() { errs = append(errs, m.order.Verify(in.want)) })
	m.sums.Locked(func() { errs = append(errs, m.totals.Verify(in.want)) })
	errs = append(errs, m.checkTraces(ctx, m.config.Log), m.verify())
	m.config.Log("%d records in, %d out, %d repeats; all through %v after the last one was sent, the bound is %v", in.want.Distinct+in.want.Repeats, in.want.Distinct, in.want.Repeats, healed.Round(time.Millisecond), HealLimit)
	return errors.Join(errs...)
}

// awaitIdle waits until all tasks run and none has lag.
func (m *Campaign) awaitIdle(ctx context.Context) error {
	const tasks = 2 * FleetPartitions // of both sub-topologies
	return poll(ctx, func() (string, error) {
		running, lag := 0.0, 0.0
		for _, h := range m.Hosts {
			s, err := Scrape(ctx, h.HTTP)
			if err != nil {
				return err.Error(), h.KilledOnly()
			}
			n, _ := s.Sum("streamd_tasks", map[string]string{"state": "running"})
			l, _ := s.Sum("streamd_consumer_lag_max_records", nil)
			running, lag = running+n, lag+l
		}
		if int(running) != tasks || lag > 0 {
			return fmt.Sprintf("%v of %d tasks run, lag %v", running, tasks, lag), nil
		}
		return "", nil
	})
}

// checkMetrics: the counters are part of the committed state, so that their sum is exact after any faults (C10). A last
// rebalance may come between the looks: the counters of a task on its way are nobody's for a moment, so it looks again.
func (m *Campaign) checkMetrics(ctx context.Context, want Expectation) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return poll(ctx, func() (string, error) {
		if err := m.compareMetrics(ctx, want); err != nil {
			return err.Error(), nil
		}
		return "", nil
	})
}

func (m *Campaign) compareMetrics(ctx context.Context, want Expectation) error {
	var errs []error
	for _, c := range []struct {
		name string
		want int64
	}{
		{"streamd_dedup_duplicates_total", want.Repeats},
		{"streamd_dedup_checked_records_total", want.Repeats + want.Distinct},
	} {
		sum := 0.0
		for _, h := range m.Hosts {
			s, err := Scrape(ctx, h.HTTP)
			if err != nil {
				return err
			}
			n, _ := s.Sum(c.name, nil)
			sum += n
		}
		if int64(sum) != c.want {
			errs = append(errs, fmt.Errorf("crash: %s is %v over all hosts, want %d", c.name, sum, c.want))
		}
	}
	return errors.Join(errs...)
}

// verify has streamd itself compare what is left on one of the hosts, as a user would: see Daemon.Verify. CheckTasks has looked at
// the directories of all.
func (m *Campaign) verify() error {
	ctx, cancel := context.WithTimeout(m.ctx, verifyLimit)
	defer cancel()
	h := m.Hosts[m.random.IntN(len(m.Hosts))]
	// What was processed is deleted from the repartition topic, and with it what the totals could be computed from again: of
	// them speaks the workload's oracle.
	spared := []string{"changelogs"}
	if _, err := os.Stat(m.StateDir(h)); err != nil {
		spared = append(spared, "state") // it has never come to life again
	}
	if err := h.EmptyGroup(ctx, m.Brokers(), m.App); err != nil {
		return err
	}
	summary, err := h.Verify(ctx, spared...)
	m.config.Log("streamd verify of host %s: %s", h.Name, summary)
	return err
}

// verifyLimit is how long it may take to read all topics again and to compute the outputs a second time.
const verifyLimit = 5 * time.Minute

// KeepLogs copies the logs of all hosts to where they outlive the campaign, and returns the directory.
func (m *Campaign) KeepLogs() (string, error) {
	dir, err := os.MkdirTemp("", fmt.Sprintf("streamd-kills-%d-", m.config.Seed))
	if err != nil {
		return "", fmt.Errorf("crash: %w", err)
	}
	var errs []error
	for _, h := range m.Hosts {
		errs = append(errs, copyFile(h.Log, filepath.Join(dir, h.Name+".log")))
	}
	return dir, errors.Join(errs...)
}

// SnapshotDir is where the host's state directory is copied to, to be put back later.
func (m *Campaign) SnapshotDir(h *Host) string { return filepath.Join(m.config.Dir, h.Name, "older") }

// Points returns how often each fault point was hit and how often something happened there, over all hosts.
func (m *Campaign) Points() (hits, fired map[string]uint64) {
	hits, fired = map[string]uint64{}, map[string]uint64{}
	for _, name := range fault.Names() {
		for _, h := range m.Hosts {
			hits[name] += h.Table.Hits(name)
			fired[name] += h.Table.Fired(name)
		}
	}
	return hits, fired
}
