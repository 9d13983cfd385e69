package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/streamd/streamd/processor"
)

// notifyInterval is how often the pipelines are looked at for the service manager, at most: a quarter of its
// watchdog's time if that is less.
const notifyInterval = time.Second

// manager is the service manager (systemd) that started the process and wants to hear of it: sd_notify(3). Messages are
// datagrams to a socket that the environment names.
type manager struct {
	conn     net.Conn
	watchdog time.Duration // without a sign of life for so long it kills the process; 0: it does not
	log      *slog.Logger

	ready  bool
	status string
	pulses map[string]*pulse
}

// newManager returns nil if nobody wants to hear of the process.
func newManager(log *slog.Logger, env func(string) string) (*manager, error) {
	socket := env("NOTIFY_SOCKET") // a leading @ is an abstract name, for Go as for systemd
	if socket == "" {
		return nil, nil
	}
	m := &manager{log: log, pulses: map[string]*pulse{}}
	if usec := env("WATCHDOG_USEC"); usec != "" && (env("WATCHDOG_PID") == "" || env("WATCHDOG_PID") == strconv.Itoa(os.Getpid())) {
		n, err := strconv.ParseInt(usec, 10, 64)
		if err != nil || n <= 0 || n > int64(24*time.Hour/time.Microsecond) {
			return nil, fmt.Errorf("daemon: WATCHDOG_USEC=%q is not a number of microseconds up to a day", usec)
		}
		m.watchdog = time.Duration(n) * time.Microsecond
	}
	var err error
	if m.conn, err = net.Dial("unixgram", socket); err != nil {
		return nil, fmt.Errorf("daemon: the service manager's socket: %w", err)
	}
	return m, nil
}

// notifyManager reports to the service manager until the returned function is called. That the process cannot report is
// logged and no reason to stop: the manager decides.
func notifyManager(ctx context.Context, log *slog.Logger, members []member) func() {
	m, err := newManager(log, os.Getenv)
	if err != nil {
		log.Error("the service manager hears nothing", "err", err)
	}
	if m == nil {
		return func() {}
	}
	interval := notifyInterval
	if m.watchdog > 0 {
		interval = min(interval, m.watchdog/4)
	}
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		defer m.conn.Close()
		tick := time.NewTicker(interval)
		defer tick.Stop()
		stopping := ctx.Done()
		for {
			select {
			case <-done:
				m.send("STOPPING=1")
				return
			case <-stopping:
				stopping = nil
				m.send("STOPPING=1")
			case now := <-tick.C:
				var all []processor.Status
				for _, member := range members {
					all = append(all, member.app.Status())
				}
				m.report(all, now)
			}
		}
	})
	return func() {
		close(done)
		running.Wait()
	}
}

// report sends what there is to say of the pipelines at this moment.
func (m *manager) report(all []processor.Status, now time.Time) {
	ready, alive := true, true
	var words []string
	for _, s := range all {
		ready = ready && s.Ready()
		words = append(words, s.Pipeline+" "+string(s.State))
		p := m.pulses[s.Pipeline]
		if p == nil {
			p = &pulse{}
			m.pulses[s.Pipeline] = p
		}
		// Half of the manager's patience is ours to find out, so that the log says why it ends the process.
		if idle := p.still(s, now); m.watchdog > 0 && idle >= m.watchdog/2 {
			alive = false
			if !p.told {
				p.told = true
				m.log.Error("no progress though there is work: the watchdog is not fed any more", "pipeline", s.Pipeline, "for", idle.Round(time.Second).String(), "reason", s.Reason)
			}
		} else {
			p.told = false
		}
	}
	var lines []string
	if ready && !m.ready {
		m.ready = true // once: a later rebalance does not take it back
		lines = append(lines, "READY=1")
	}
	// One line: a name cannot end the message and begin another one.
	if status := strings.Map(printable, strings.Join(words, ", ")); status != m.status {
		m.status = status
		lines = append(lines, "STATUS="+status)
	}
	if m.watchdog > 0 && alive {
		lines = append(lines, "WATCHDOG=1")
	}
	if len(lines) > 0 {
		m.send(strings.Join(lines, "\n"))
	}
}

// printable makes one line of any text.
func printable(r rune) rune {
	if r < ' ' {
		return ' '
	}
	return r
}

func (m *manager) send(text string) {
	if err := m.conn.SetWriteDeadline(time.Now().Add(notifyInterval)); err != nil {
		m.log.Debug("cannot tell the service manager", "err", err)
		return
	}
	if _, err := m.conn.Write([]byte(text)); err != nil {
		m.log.Debug("cannot tell the service manager", "err", err)
	}
}

// pulse tells whether a pipeline that has work does it. A timer alone would feed the watchdog of a process whose tasks
// hang for ever.
type pulse struct {
	mark  mark
	since time.Time // of mark; zero: there is nothing to do
	told  bool
}

// mark moves with each commit, each new transaction and each position.
type mark struct {
	committed uint64
	open      time.Time
	positions int64
}

// still returns for how long the pipeline has had work in hand without any progress, 0 if it has none.
func (p *pulse) still(s processor.Status, now time.Time) time.Duration {
	m := mark{committed: s.Transactions.Committed, open: s.Transactions.OldestOpen}
	for _, t := range s.Tasks {
		for _, in := range t.Inputs {
			m.positions += int64(in.Next)
		}
	}
	switch {
	case !atWork(s):
		p.since = time.Time{}
	case p.since.IsZero() || p.mark != m:
		p.since = now
	default:
		return now.Sub(p.since)
	}
	p.mark = m
	return 0
}

// atWork says whether the pipeline ought to move: it holds a transaction open, or the brokers say that records wait. What
// something outside holds up (brokers, a target, a full disk, a transaction of somebody else) no restart would mend.
func atWork(s processor.Status) bool {
	waits := false
	var reasons []string
	for _, t := range s.Tasks {
		if t.State == processor.TaskPaused {
			return false
		}
		if t.Reason == "" {
			continue
		}
		reasons = append(reasons, t.Reason)
		for _, in := range t.Inputs {
			waits = waits || t.State == processor.TaskRunning && in.Lag > 0
		}
	}
	switch s.State {
	case processor.Running, processor.Restoring, processor.Rebalancing:
		return !s.Transactions.OldestOpen.IsZero()
	case processor.Blocked:
		// Blocked by nothing but tasks that do not move. If commits or targets fail as well, the reason says more.
		slices.Sort(reasons)
		return waits && s.Reason == strings.Join(slices.Compact(reasons), "; ")
	}
	return false
}
