package daemon

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamd/streamd/processor"
)

// listener plays the service manager.
func listener(t *testing.T) (string, func() string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return path, func() string {
		t.Helper()
		buf := make([]byte, 4096)
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		n, err := c.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
}

func environment(pairs ...string) func(string) string {
	return func(name string) string {
		for _, p := range pairs {
			if v, ok := strings.CutPrefix(p, name+"="); ok {
				return v
			}
		}
		return ""
	}
}

func TestManagerHearsOfReadinessAndProgress(t *testing.T) {
	path, next := listener(t)
	m, err := newManager(slog.New(slog.DiscardHandler), environment("NOTIFY_SOCKET="+path, "WATCHDOG_USEC=60000000", "WATCHDOG_PID="+strconv.Itoa(os.Getpid())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.conn.Close() })
	begin := time.Unix(1_700_000_000, 0)
	at := func(d time.Duration) time.Time { return begin.Add(d) }
	want := func(text string) {
		t.Helper()
		if got := next(); got != text {
			t.Errorf("the manager was told %q, want %q", got, text)
		}
	}
	s := processor.Status{Pipeline: "bills\nREADY=1", State: processor.Restoring}
	m.report([]processor.Status{s}, at(0))
	want("STATUS=bills READY=1 restoring\nWATCHDOG=1")
	s.State = processor.Running
	m.report([]processor.Status{s}, at(time.Second))
	want("READY=1\nSTATUS=bills READY=1 running\nWATCHDOG=1")
	// Nothing to do: for ever is fine.
	m.report([]processor.Status{s}, at(time.Hour))
	want("WATCHDOG=1")
	// A transaction that is opened and does not end.
	s.Transactions.OldestOpen = at(time.Hour)
	m.report([]processor.Status{s}, at(time.Hour))
	want("WATCHDOG=1")
	m.report([]processor.Status{s}, at(time.Hour+29*time.Second))
	want("WATCHDOG=1")
	m.report([]processor.Status{s}, at(time.Hour+31*time.Second)) // silence
	m.report([]processor.Status{s}, at(time.Hour+50*time.Second)) // silence
	s.Transactions.Committed++
	m.report([]processor.Status{s}, at(time.Hour+51*time.Second))
	want("WATCHDOG=1")
	// One pipeline that hangs is enough, whatever the others do.
	other := processor.Status{Pipeline: "other", State: processor.Running}
	m.report([]processor.Status{other, s}, at(time.Hour+52*time.Second))
	want("STATUS=other running, bills READY=1 running\nWATCHDOG=1")
	m.report([]processor.Status{other, s}, at(2*time.Hour)) // silence
	m.send("end")
	want("end")
}

func TestAtWork(t *testing.T) {
	const no, hung = "no progress in in/0 at offset 1, before 5 others, for 40s", "a transaction in in/0 that nobody has ended"
	task := func(state processor.TaskState, reason string, lag int64) []processor.TaskStatus {
		return []processor.TaskStatus{{State: state, Reason: reason, Inputs: []processor.InputStatus{{Lag: lag}}}}
	}
	open := processor.TransactionStatus{OldestOpen: time.Unix(1, 0)}
	for _, c := range []struct {
		name   string
		status processor.Status
		want   bool
	}{
		{"idle", processor.Status{State: processor.Running, Tasks: task(processor.TaskRunning, "", 0)}, false},
		{"brokers are down: lag, but nobody says that it could be read", processor.Status{State: processor.Running, Tasks: task(processor.TaskRunning, "", 9)}, false},
		{"a transaction is open", processor.Status{State: processor.Running, Transactions: open, Tasks: task(processor.TaskRunning, "", 9)}, true},
		{"the disk is full", processor.Status{State: processor.Running, Transactions: open, Tasks: task(processor.TaskPaused, "state disk full", 9)}, false},
		{"commits fail", processor.Status{State: processor.Blocked, Reason: no + "; transactions are not committed: x", Transactions: open, Tasks: task(processor.TaskRunning, no, 9)}, false},
		{"records wait and could be read", processor.Status{State: processor.Blocked, Reason: no, Tasks: task(processor.TaskRunning, no, 9)}, true},
		{"somebody else's transaction", processor.Status{State: processor.Blocked, Reason: hung, Tasks: task(processor.TaskRunning, hung, 0)}, false},
		{"restoring", processor.Status{State: processor.Restoring, Tasks: task(processor.TaskRestoring, "", 9)}, false},
		{"stopping", processor.Status{State: processor.Stopping, Transactions: open}, false},
	} {
		if got := atWork(c.status); got != c.want {
			t.Errorf("%s: at work %v, want %v", c.name, got, c.want)
		}
	}
}

func TestManagerOfAnEnvironment(t *testing.T) {
	path, next := listener(t)
	for _, c := range []struct {
		env  []string
		want time.Duration
		bad  bool
	}{
		{[]string{"NOTIFY_SOCKET=" + path}, 0, false},
		{[]string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=2000000"}, 2 * time.Second, false},
		{[]string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=2000000", "WATCHDOG_PID=1"}, 0, false}, // meant for another process
		{[]string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=soon"}, 0, true},
		{[]string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=-1"}, 0, true},
		{[]string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=9223372036854775807"}, 0, true},
		{[]string{"NOTIFY_SOCKET=" + path + "-not-there"}, 0, true},
	} {
		m, err := newManager(slog.New(slog.DiscardHandler), environment(c.env...))
		if (err != nil) != c.bad {
			t.Errorf("%v: %v", c.env, err)
			continue
		}
		if m != nil && m.watchdog != c.want {
			t.Errorf("%v: watchdog %v, want %v", c.env, m.watchdog, c.want)
		}
		if m != nil {
			_ = m.conn.Close()
		}
	}
	if m, err := newManager(slog.New(slog.DiscardHandler), environment()); m != nil || err != nil {
		t.Errorf("without a manager: %v, %v", m, err)
	}
	// Of a whole life: nothing runs, so that it is ready at once.
	t.Setenv("NOTIFY_SOCKET", path)
	ctx, cancel := context.WithCancel(t.Context())
	stop := notifyManager(ctx, slog.New(slog.DiscardHandler), nil)
	for next() != "READY=1" {
	}
	cancel()
	for next() != "STOPPING=1" {
	}
	stop()
}
